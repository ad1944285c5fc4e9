"""The named cases: the same seeded tables and tokens for everyone."""

import re
from dataclasses import dataclass

import torch
from torch import Tensor

QUANTITIES = ("log-likelihood", "counts", "em-step")

CPU = (
    "dense-z64-v10000-b16-t256",
    "dense-z512-v10000-b16-t256",
    "dense-z2048-v10000-b16-t256",
)
SMOKE = ("dense-z5-v37-b3-t11",)


@dataclass(frozen=True)
class Case:
    """A dense HMM of Z states over V words, and B rows of T tokens."""

    name: str
    states: int
    words: int
    batch: int
    steps: int

    @staticmethod
    def parse(name: str) -> "Case":
        found = re.fullmatch(r"dense-z(\d+)-v(\d+)-b(\d+)-t(\d+)", name)
        if found is None:
            raise SystemExit(f"No such case: {name}; write it like {CPU[0]}.")
        return Case(name, *(int(number) for number in found.groups()))

    @property
    def tokens_per_call(self) -> int:
        return self.batch * self.steps

    def flops(self, what: str) -> int:
        """Of the matrix products alone, two for a multiply and an add."""
        step = 2 * self.batch * self.states**2
        if what == "log-likelihood":
            return self.steps * step
        return 3 * self.steps * step

    def bytes(self, what: str) -> int:
        """What has to be read and written at least once, in float32.

        Transitions, the emission rows of the tokens, for counts the two tables of counts, and for
        an EM step the two new tables as well.
        """
        inputs = self.states**2 + self.tokens_per_call * self.states
        tables = {"log-likelihood": 0, "counts": 1, "em-step": 2}[what]
        return 4 * (inputs + tables * (self.states**2 + self.words * self.states))


@dataclass(frozen=True)
class Problem:
    """float32 log tables, emissions (V, Z) by word, and tokens (B, T)."""

    case: Case
    log_init: Tensor
    log_trans: Tensor
    log_emit: Tensor
    tokens: Tensor

    @staticmethod
    def make(case: Case) -> "Problem":
        generator = torch.Generator().manual_seed(case.states)
        states, words = case.states, case.words

        def normal(*size: int) -> Tensor:
            return torch.randn(size, generator=generator)

        return Problem(
            case,
            normal(states).log_softmax(0),
            normal(states, states).log_softmax(1),
            normal(words, states).log_softmax(0),
            torch.randint(words, (case.batch, case.steps), generator=generator),
        )
