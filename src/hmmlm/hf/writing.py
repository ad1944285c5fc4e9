"""A causal language model of Hugging Face's that writes what an HMM guides it to."""

from dataclasses import dataclass

import torch

from hmmlm.data.tokenizer import Tokenizer
from hmmlm.distill.causal import CausalTeacher
from hmmlm.errors import InputError
from hmmlm.generate import Constraint, Guide, Lookahead
from hmmlm.hf.guiding import GuidedLogits
from hmmlm.model import Model


@dataclass(frozen=True, eq=False)
class Writer:
    """A language model, and an HMM of the same tokens that guides it."""

    llm: CausalTeacher
    hmm: Model

    def __post_init__(self) -> None:
        check_same(self.llm.tokenizer, self.hmm.tokenizer)

    def write(
        self,
        constraint: Constraint | Lookahead,
        prompt: str = "",
        *,
        count: int = 1,
        length: int = 32,
        strength: float = 1.0,
        temperature: float = 1.0,
        seed: int | None = None,
    ) -> list[str]:
        """Texts after a prompt, each of which meets the constraint and ends within `length` tokens.

        The temperature is that of the guided distribution; at 0 each token is the best one.
        """
        look = self.hmm.look_ahead(constraint, length=length)
        guide = Guide([look], strength=strength)
        tokenizer, model = self.hmm.tokenizer, self.llm.model
        ids = tokenizer.encode(prompt)
        start = [self.llm.first_id, *ids]  # as its texts were drawn; the HMM reads what follows
        drawn = {"do_sample": True, "temperature": temperature} if temperature else {}
        devices = [model.device] if model.device.type == "cuda" else []
        with torch.no_grad(), torch.random.fork_rng(devices, enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            out = model.generate(
                input_ids=torch.tensor([start] * count, device=model.device),
                attention_mask=torch.ones(count, len(start), dtype=torch.long).to(model.device),
                logits_processor=[GuidedLogits(guide, pad_id=self.llm.first_id)],
                max_new_tokens=length,
                eos_token_id=tokenizer.eos_id,
                pad_token_id=tokenizer.eos_id,
                top_k=0,
                top_p=1.0,
                **({"do_sample": False} | drawn),
            )
        rows = out[:, len(start) :].tolist()
        return [tokenizer.decode([*ids, *row[: row.index(tokenizer.eos_id)]]) for row in rows]


def check_same(llm: Tokenizer, hmm: Tokenizer) -> None:
    """Refuses vocabularies in which an id is not the same token, and says which."""
    sizes = (llm.vocab_size, hmm.vocab_size)
    for id in range(min(sizes)):
        if llm.token(id) != hmm.token(id):
            raise InputError(
                f"Token {id:,} is {llm.token(id)!r} to the language model and {hmm.token(id)!r} to "
                f"the HMM; use an HMM of text that this model wrote (hmmlm sample-corpus)."
            )
    if sizes[0] != sizes[1] or llm.eos_id != hmm.eos_id:
        raise InputError(
            f"The language model has {sizes[0]:,} tokens and ends texts with {llm.eos_id:,}, the "
            f"HMM {sizes[1]:,} and {hmm.eos_id:,}; use an HMM of text that this model wrote (hmmlm "
            f"sample-corpus)."
        )
