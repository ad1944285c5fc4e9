"""The sizes of an HMM as Hugging Face's transformers keeps them."""

from transformers import PreTrainedConfig

from hmmlm.hugging_face import MODEL_TYPE


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

    @property
    def width(self) -> int:
        return self.num_states if self.states_per_word is None else self.states_per_word
