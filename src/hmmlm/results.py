"""What the inference functions return. B rows, T steps, Z states, K states per word."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hmmlm.errors import InputError, check_count

MASS_TOLERANCE = 1e-2
"""How far from one the probabilities of a belief that a caller gives may sum."""


class Belief(NamedTuple):
    """p(z_t | x_1..t) after the tokens read so far, one distribution per row.

    `states` are global state ids, padded with -1 (log-probability -inf), so that a belief can be
    carried into an HMM on other states. In rows where `fresh` is true nothing has been read since
    the start or a reset: the next state is drawn from p(z1) and the other two fields mean nothing.
    """

    states: Int[Tensor, "B W"]
    log_probs: Float[Tensor, "B W"]
    fresh: Bool[Tensor, " B"]

    def checked(self) -> "FoundBelief":
        """This belief after a check, with no states named in fresh rows, where they mean nothing.

        The values of a `FoundBelief` are not looked at: that would wait for the device.
        """
        _check_form(self)
        fresh = self.fresh[:, None]
        states = torch.where(fresh, -1, self.states)
        log_probs = torch.where(fresh, -torch.inf, self.log_probs)
        if not isinstance(self, FoundBelief):
            _check_values(states, log_probs.detach())
        return FoundBelief(states, log_probs, self.fresh.clone())

    def select(self, rows: Tensor) -> "Belief":
        """The belief of some rows, by index or mask: forks, reorders or drops rows."""
        return type(self)(self.states[rows], self.log_probs[rows], self.fresh[rows])

    def to(self, device: torch.device | str) -> "Belief":
        """The same on a device."""
        return type(self)(*(part.to(device) for part in self))


class FoundBelief(Belief):
    """A belief that the library made or has checked."""

    __slots__ = ()


def _check_form(belief: Belief) -> None:
    """Refuses parts whose shapes or types do not fit; a size of 1 would silently broadcast."""
    states, log_probs, fresh = belief
    if (
        states.ndim != 2
        or states.shape != log_probs.shape
        or fresh.shape != states.shape[:1]
        or states.dtype not in (torch.int64, torch.int32)
        or not log_probs.is_floating_point()
        or fresh.dtype != torch.bool
    ):
        given = ", ".join(
            f"{name} {part.dtype} of shape {tuple(part.shape)}"
            for name, part in belief._asdict().items()
        )
        raise InputError(
            f"The belief has {given}, but needs states (B, W) of integers, log_probs (B, W) of "
            f"floats and fresh (B,) of booleans; give each row its own."
        )


def _check_values(states: Int[Tensor, "B W"], log_probs: Float[Tensor, "B W"]) -> None:
    """Refuses rows that are no distribution, except all zeros: a text the model cannot produce."""
    bad = (states < -1) | ((states == -1) & ~log_probs.isneginf())
    if bad.any():
        row, slot = bad.nonzero()[0].tolist()
        raise InputError(
            f"The belief names state {int(states[row, slot]):,} in row {row:,}, with the "
            f"log-probability {float(log_probs[row, slot]):.6g}, but states are numbered from 0; "
            f"-1 is the padding, with -inf."
        )
    ordered = states.sort(1).values
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if twice.any():
        row, slot = twice.nonzero()[0].tolist()
        raise InputError(
            f"The belief names state {int(ordered[row, slot]):,} twice in row {row:,}; name it "
            f"once, with the sum of its probabilities."
        )
    total = torch.logsumexp(log_probs.double(), 1)
    bad = ~(total.isneginf() | (total.expm1().abs() <= MASS_TOLERANCE))
    if bad.any():
        row = int(bad.nonzero()[0])
        raise InputError(
            f"The probabilities of the belief sum to {float(total[row].exp()):.6g} in row {row:,} "
            f"but must sum to 1; normalise log_probs, as log_softmax(1) does."
        )


class LogProb(NamedTuple):
    """log p(x_t | x_<t) of every token, 0 where missing or past the end; and their float64 sum.

    After an impossible token the rest is -inf, up to the next fresh start.
    """

    token_log_probs: Float[Tensor, "B T"]
    log_evidence: Float[Tensor, " B"]
    belief: Belief


class StateProbs(NamedTuple):
    """A distribution over states at every step, on the states that may emit the step's token.

    `log_probs[b, t, k]` belongs to state `states[b, t, k]` (global id, -1 for padding). Rows that
    the model cannot produce, and steps past a row's end, are -inf.

    A missing token may come from every state. Where that is more than K states, its row here is
    padding and its distribution, over `missing_states`, is a row of `missing_log_probs`: one for
    each True of `missing`, in order of (b, t).
    """

    log_probs: Float[Tensor, "B T K"]
    states: Int[Tensor, "B T K"]
    missing_log_probs: Float[Tensor, "N Z"]
    missing_states: Int[Tensor, " Z"]
    missing: Bool[Tensor, "B T"]
    token_log_probs: Float[Tensor, "B T"]
    log_evidence: Float[Tensor, " B"]
    belief: Belief

    def dense(self, num_states: int) -> Float[Tensor, "B T Z"]:
        """The same as one table by global state id, -inf where impossible. O(B T num_states)."""
        largest = int(max(self.states.max(), self.missing_states.max()))
        if largest >= num_states:
            raise InputError(
                f"num_states is {num_states:,} but the result names state {largest:,}; give the "
                f"number of states of the whole model."
            )
        size = (*self.log_probs.shape[:2], num_states + 1)
        table = self.log_probs.new_full(size, -torch.inf)
        table.scatter_(2, self.states % (num_states + 1), self.log_probs)  # -1 -> the spare column
        table = table[..., :num_states]
        if self.missing_log_probs.numel():
            rows = table.new_full((len(self.missing_log_probs), num_states), -torch.inf)
            rows[:, self.missing_states] = self.missing_log_probs
            table[self.missing] = rows
        return table


class FactoredCounts(NamedTuple):
    """Expected transition counts seen through the factors: d log p / d (left, right, log_norm)."""

    left: Float[Tensor, "S H"]
    right: Float[Tensor, "Z H"]
    log_norm: Float[Tensor, " S"]


class Counts(NamedTuple):
    """Expected counts of starts, transitions and emissions, summed over the batch.

    They are the gradient of the summed log evidence with respect to the fields of the HMM:
    `init` of log_init, `trans` of log_trans (for factored transitions, of each factor) and `emit`
    of log_emit. Rows with probability zero add nothing.
    """

    init: Float[Tensor, " Z"]
    trans: Float[Tensor, "S Z"] | FactoredCounts
    emit: Float[Tensor, "V K"]
    log_evidence: Float[Tensor, " B"]
    belief: Belief

    def fields(self) -> tuple[Tensor, ...]:
        """In the order of `HMM.fields`: start, transitions, emissions."""
        trans = self.trans if isinstance(self.trans, FactoredCounts) else (self.trans,)
        return (self.init, *trans, self.emit)


class BestPath(NamedTuple):
    """argmax_z p(z_1..T, x_1..T) as global state ids (-1 past the end), and the log of its p."""

    states: Int[Tensor, "B T"]
    log_prob: Float[Tensor, " B"]


class PathSamples(NamedTuple):
    """Draws from p(z_1..T | x_1..T), N per row, as global state ids (-1 past the end)."""

    states: Int[Tensor, "B N T"]


class TextSamples(NamedTuple):
    """Draws of states and tokens from the model; `lengths` counts the tokens up to the stop."""

    tokens: Int[Tensor, "B T"]
    states: Int[Tensor, "B T"]
    lengths: Int[Tensor, " B"]


class WordProbs(NamedTuple):
    """log p(x_t = w | everything else) at every gap, in order of (b, t); `gaps` says where.

    In rows that the model cannot produce it is -inf. `log_evidence` is that of the text with gaps.
    """

    log_probs: Float[Tensor, "N V"]
    gaps: Bool[Tensor, "B T"]
    log_evidence: Float[Tensor, " B"]

    def top(self, k: int) -> "TopWords":
        """The k most probable words of each gap (all, if there are fewer), best first."""
        check_count("k", k)
        return TopWords(*self.log_probs.topk(min(k, self.log_probs.shape[1]), 1))


class TopWords(NamedTuple):
    """The most probable words of each gap, best first."""

    log_probs: Float[Tensor, "N k"]
    words: Int[Tensor, "N k"]


class Fills(NamedTuple):
    """Draws of the words in the gaps of each row, N per row: texts, states, log p(words | rest).

    `tokens` are whole texts and `lengths` theirs; tokens and states are -1 past the end.
    """

    tokens: Int[Tensor, "B N T"]
    states: Int[Tensor, "B N T"]
    log_probs: Float[Tensor, "B N"]
    lengths: Int[Tensor, "B N"]


class GapLengths(NamedTuple):
    """log p(the gap has `sizes[l]` words | the rest), and log p(the text, with any of them)."""

    sizes: Int[Tensor, " L"]
    log_probs: Float[Tensor, "B L"]
    log_evidence: Float[Tensor, " B"]


class BestPaths(NamedTuple):
    """The k best paths of each row, best first, as global state ids, and log p(z, x) of each.

    Where there are fewer, the rest is -1 and -inf.
    """

    states: Int[Tensor, "B k T"]
    log_probs: Float[Tensor, "B k"]


class MinRiskPath(NamedTuple):
    """The possible path with the most states expected to be right, and how many those are."""

    states: Int[Tensor, "B T"]
    expected: Float[Tensor, " B"]


class PseudoLogProb(NamedTuple):
    """log p(x_t | all other tokens) of every token, 0 in gaps and past the end; their sums."""

    token_log_probs: Float[Tensor, "B T"]
    log_prob: Float[Tensor, " B"]
    num_tokens: Int[Tensor, " B"]

    @property
    def perplexity(self) -> float:
        """exp of the mean of -log p(x_t | all other tokens), over the tokens of all rows."""
        return float((-self.log_prob.sum() / self.num_tokens.sum()).exp())


class Estimate(NamedTuple):
    """A mean over independent draws, in nats, and the standard error of it."""

    value: float
    standard_error: float
    samples: int
