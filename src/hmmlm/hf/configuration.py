"""The sizes of an HMM as Hugging Face's transformers keeps them."""

from typing import Any

from transformers import PreTrainedConfig

from hmmlm.hugging_face import MODEL_TYPE

OUR_OWN = ("format", "vocabulary_hash")
"""What a configuration of ours says of its folder."""


class HmmConfig(PreTrainedConfig):
    """Sizes of the tables; those that are not there are what a dense HMM has.

    `states_per_word` is the largest number of states of a word and `support_rows` how many rows the
    map from words to states has; `factors` is the width of factored transitions, 0 where they are a
    table. `reset`: after `<eos>` a text begins anew, as in training on sentences.
    """

    model_type = MODEL_TYPE

    vocab_size: int = 2
    num_states: int = 1
    states_per_word: int | None = None
    support_rows: int = 1
    factors: int = 0
    reset: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | None = None

    def __post_init__(self, **more: Any) -> None:
        # A folder that transformers writes is not one of ours, whose tokenizer is as it was.
        super().__post_init__(**{name: more[name] for name in more if name not in OUR_OWN})
        if self.bos_token_id is None and self.reset:  # after <eos> a text begins
            self.bos_token_id = self.eos_token_id

    @property
    def width(self) -> int:
        return self.num_states if self.states_per_word is None else self.states_per_word
