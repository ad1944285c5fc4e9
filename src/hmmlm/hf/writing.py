"""A causal language model of Hugging Face's that writes what an HMM guides it to."""

from collections.abc import Sequence
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
        guide = Guide([self.hmm.look_ahead(constraint, length=length)], strength=strength)
        ids = self.hmm.tokenizer.encode(prompt)
        rows = self.go_on([ids], guide, count=count, temperature=temperature, seed=seed)
        return [self.hmm.tokenizer.decode([*ids, *row]) for row in rows]

    @torch.no_grad()
    def go_on(
        self,
        prompts: Sequence[Sequence[int]],
        guide: Guide | None,
        *,
        length: int | None = None,
        count: int = 1,
        temperature: float = 1.0,
        seed: int | None = None,
    ) -> list[list[int]]:
        """New tokens after each of some prompts, `count` times, without what ends them.

        The guide has one constraint for each prompt, or one for all; its budget is the `length`.
        Without a guide a text that has not ended by then is cut.
        """
        if guide is None and length is None:
            raise InputError("Without a guide length must be given.")
        most = length if guide is None else guide.budget
        model, first, end = self.llm.model, self.llm.first_id, self.hmm.tokenizer.eos_id
        # As its texts were drawn: after its first token, which also pads; the HMM reads the rest.
        width = 1 + max(len(ids) for ids in prompts)
        start = torch.full((len(prompts), width), first)
        seen = torch.ones_like(start)
        for row, ids in enumerate(prompts):
            start[row, width - len(ids) :] = torch.tensor(list(ids), dtype=start.dtype)
            seen[row, : width - len(ids) - 1] = 0
        processors = [] if guide is None else [GuidedLogits(guide, pad_id=first)]
        drawn = {"do_sample": True, "temperature": temperature, "num_return_sequences": count}
        if not temperature:  # all are the same
            start, seen = (part.repeat_interleave(count, 0) for part in (start, seen))
            drawn = {"do_sample": False}
        devices = [model.device] if model.device.type == "cuda" else []
        with torch.random.fork_rng(devices, enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            out = model.generate(
                input_ids=start.to(model.device),
                attention_mask=seen.to(model.device),
                logits_processor=processors,
                max_new_tokens=most,
                eos_token_id=end,
                pad_token_id=end,
                top_k=0,
                top_p=1.0,
                **drawn,
            )
        rows = out[:, width:].tolist()
        return [row[: row.index(end)] if end in row else row for row in rows]


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
