"""A guide as Hugging Face's `generate` takes it."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LogitsProcessor

from hmmlm.errors import InputError
from hmmlm.generate.guide import Guide


class GuidedLogits(LogitsProcessor):
    """p(token | text) of a language model, times p(met | text, token) / p(met | text), normalised.

        llm.generate(**inputs, logits_processor=[GuidedLogits(guide)], max_new_tokens=guide.budget)

    Row n of a batch has the guide's constraint n, all its rows the one of a guide that has one;
    beams and samples of a row share its. What a row has written is found in its ids: the prompt is
    what the first call of a generation sees. Ids past the guide's vocabulary never come. Rows are
    padded with `pad_id` on the left.

    `eos_token_id` must be the guide's; what comes after it is no text. A generation goes on as long
    as rows begin with its prompts, have fewer new tokens than the guide's budget, and one has not
    ended. Where a new prompt may look so, `begin()` says that a generation begins.
    """

    def __init__(self, guide: Guide, *, pad_id: int | None = None) -> None:
        self.guide = guide
        self.pad_id = pad_id
        self.begin()

    def begin(self) -> None:
        """The next call is the first of a generation."""
        self._prompt = 0
        self._prompts: set[tuple[int, ...]] = set()

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        rows: list[list[int]] = input_ids.tolist()
        size = input_ids.shape[1]
        if not self._goes_on(rows, size):
            self._prompt, self._prompts = size, {tuple(row) for row in rows}
        texts = [row[self._prompt :] for row in rows]
        prompts = [self._stripped(row[: self._prompt]) for row in rows]
        factors = self.guide.log_factors(prompts, texts, self._which(len(rows)))
        known = factors.shape[1]
        if scores.shape[1] < known:
            raise InputError(
                f"The language model has {scores.shape[1]:,} tokens but the guide {known:,}; use a "
                f"guide that was made for this model's tokenizer."
            )
        factors = factors.to(scores.device, torch.float32)
        heard = scores[:, :known].float()
        _check_scores(heard)
        both = heard.log_softmax(1) + factors
        # Where the language model rules out all that is legal, the guide alone is heard.
        both = both.masked_fill(both.isnan(), -torch.inf)
        both = torch.where(both.isneginf().all(1, keepdim=True), factors, both)
        guided = torch.full_like(scores, -torch.inf)
        guided[:, :known] = both.log_softmax(1).to(scores.dtype)
        return guided

    def _goes_on(self, rows: Sequence[Sequence[int]], size: int) -> bool:
        """Whether this is the generation of the calls before."""
        return (
            0 < size - self._prompt < self.guide.budget
            and all(tuple(row[: self._prompt]) in self._prompts for row in rows)
            and any(self.guide.eos_id not in row[self._prompt :] for row in rows)
        )

    def _which(self, number: int) -> list[int]:
        """The constraint of each row."""
        constraints = len(self.guide.looks)
        if constraints == 1:
            return [0] * number
        if number % constraints:
            raise InputError(
                f"The guide has {constraints:,} constraints but there are {number:,} rows; give as "
                f"many prompts as constraints, or one constraint."
            )
        share = number // constraints
        return [row // share for row in range(number)]

    def _stripped(self, prompt: Sequence[int]) -> Sequence[int]:
        first = 0
        while first < len(prompt) and prompt[first] == self.pad_id:
            first += 1
        return prompt[first:]


def _check_scores(scores: Tensor) -> None:
    """Refuses NaN and inf, of which the softmax is NaN; -inf is a token that was ruled out."""
    bad = ~(scores < torch.inf)
    if bad.any():
        row, token = bad.nonzero()[0].tolist()
        raise InputError(
            f"The language model gave a score that is not a number in row {row:,} "
            f"({float(scores[row, token])} for token {token:,}); load it in float32 or bfloat16, "
            f"or leave out the logits processor that made it."
        )
