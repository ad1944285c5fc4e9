"""The oracle: every quantity by summing over all state paths, one row at a time, in float64."""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from hmmlm.hmm import HMM
from hmmlm.results import Belief


@dataclass
class Row:
    """One row of text over an HMM, with all of its paths and their joint log-probabilities."""

    paths: Tensor  # (N, T) local states
    log_joint: Tensor  # (N, T + 1): log p(path up to t, tokens up to t), column 0 is zero
    entry: Tensor  # (S,) belief over the sources before the first step, zero when fresh
    starts: list[bool]
    log_trans: Tensor  # (S, Z)
    log_emit: Tensor  # (V, Z)
    log_init: Tensor
    tokens: list[int]

    @property
    def token_log_probs(self) -> Tensor:
        totals = torch.logsumexp(self.log_joint, 0)
        totals = totals - torch.logsumexp(self.log_joint[:, 0], 0)
        steps = totals[1:] - totals[:-1]
        # Once the prefix is impossible every later probability is reported as zero (no text of
        # the oracle's has an impossible prefix and then a fresh start).
        return torch.where(torch.isneginf(totals[1:]), -torch.inf, steps)

    @property
    def log_evidence(self) -> float:
        return float(torch.logsumexp(self.log_joint[:, -1], 0))

    def filtered(self) -> Tensor:
        """(T, Z) log p(z_t | x_1..t)."""
        return torch.stack([self._marginal(self.log_joint[:, t + 1], t) for t in range(self.steps)])

    def smoothed(self) -> Tensor:
        """(T, Z) log p(z_t | x_1..T)."""
        return torch.stack([self._marginal(self.log_joint[:, -1], t) for t in range(self.steps)])

    @property
    def steps(self) -> int:
        return self.paths.shape[1]

    def _marginal(self, log_weights: Tensor, t: int) -> Tensor:
        probs = (log_weights - torch.logsumexp(log_weights, 0)).exp()
        table = torch.zeros(len(self.log_init), dtype=torch.float64)
        return table.index_add(0, self.paths[:, t], probs).log()

    def counts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Expected starts (Z,), transitions (S, Z) and emissions (V, Z)."""
        weights = (self.log_joint[:, -1] - self.log_evidence).exp()
        init = torch.zeros_like(self.log_init)
        trans, emit = torch.zeros_like(self.log_trans), torch.zeros_like(self.log_emit)
        if self.log_evidence == -torch.inf:
            return init, trans, emit
        for path, weight in zip(self.paths.tolist(), weights, strict=True):
            for t, state in enumerate(path):
                if self.tokens[t] >= 0:
                    emit[self.tokens[t], state] += weight
                if self.starts[t]:
                    init[state] += weight
                elif t > 0:
                    trans[path[t - 1], state] += weight
                else:
                    into = self.entry * self.log_trans[:, state].exp()
                    trans[:, state] += weight * into / into.sum().clamp(min=1e-300)
        return init, trans, emit

    def best(self) -> tuple[float, Tensor]:
        """The largest joint log-probability of any path, and all paths that reach it."""
        most = self.log_joint[:, -1].max()
        return float(most), self.paths[self.log_joint[:, -1] >= most - 1e-9]

    def next_states(self, reset_id: int | None) -> Tensor:
        """(Z,) p(z_T+1 | x_1..T)."""
        if reset_id is not None and self.tokens[-1] == reset_id:
            return self.log_init.exp()
        last = self._marginal(self.log_joint[:, -1], self.steps - 1).exp()
        return last @ self.log_trans[: len(self.log_init)].exp()


def enumerate_row(
    hmm: HMM,
    tokens: list[int],
    *,
    belief: Belief | None = None,
    reset_id: int | None = None,
    restart: list[bool] | None = None,
    log_weights: Tensor | None = None,
) -> Row:
    """All paths of one row; `belief` has one row. Token V + n has the weights of row n."""
    hmm = hmm.to(dtype=torch.float64)
    states = hmm.num_states
    log_trans = hmm.transitions.rows(0, hmm.transitions.num_sources)
    log_emit = full_emissions(hmm)
    if log_weights is not None:
        soft = [torch.logsumexp(log_emit + row[:, None], 0) for row in log_weights.double()]
        log_emit = torch.cat([log_emit, *(row[None] for row in soft)])
    starts = [t > 0 and tokens[t - 1] == reset_id for t in range(len(tokens))]
    starts[0] = belief is None or bool(belief.fresh[0])
    if restart is not None:
        starts = [start or flag for start, flag in zip(starts, restart, strict=True)]
    entry = torch.zeros(len(log_trans), dtype=torch.float64)
    if not starts[0] and belief is not None:
        ids = hmm.source_ids if hmm.source_ids is not None else torch.arange(len(log_trans))
        for state, value in zip(belief.states[0].tolist(), belief.log_probs[0], strict=True):
            if state >= 0:
                entry[(ids == state).nonzero()[0, 0]] += value.double().exp()
    paths = torch.tensor(list(itertools.product(range(states), repeat=len(tokens))))
    log_joint = torch.zeros(len(paths), len(tokens) + 1, dtype=torch.float64)
    # Paths that agree up to t share their prefix: each prefix must be counted once.
    for t, token in enumerate(tokens):
        here = paths[:, t]
        if starts[t]:
            step = hmm.log_init[here]
        elif t > 0:
            step = log_trans[paths[:, t - 1], here]
        else:
            step = (entry @ log_trans.exp()).log()[here]
        if token >= 0:
            step = step + log_emit[token, here]
        log_joint[:, t + 1] = log_joint[:, t] + step
    steps = len(tokens)
    for t in range(steps + 1):
        log_joint[:, t] -= (steps - t) * torch.log(torch.tensor(float(states), dtype=torch.float64))
    return Row(paths, log_joint, entry, starts, log_trans, log_emit, hmm.log_init, tokens)


def enumerate_fills(
    hmm: HMM,
    tokens: list[int],
    *,
    reset_id: int | None = None,
    log_weights: Tensor | None = None,
    **how,
) -> dict[tuple[int, ...], float]:
    """log of p(text) times its words' weights, for every text that fills the gaps of a row.

    A gap is any word but `reset_id`.
    """
    vocab = hmm.vocab_size
    gaps = [t for t, token in enumerate(tokens) if not 0 <= token < vocab]
    found = {}
    words = [word for word in range(vocab) if word != reset_id]
    for chosen in itertools.product(words, repeat=len(gaps)):
        text, weight = list(tokens), 0.0
        for t, word in zip(gaps, chosen, strict=True):
            text[t] = word
            if tokens[t] >= vocab:
                assert log_weights is not None
                weight += float(log_weights[tokens[t] - vocab, word])
        row = enumerate_row(hmm, text, reset_id=reset_id, **how)
        found[tuple(text)] = row.log_evidence + weight
    return found


def full_emissions(hmm: HMM) -> Tensor:
    """(V, Z) log p(w | z), -inf where the support has no such cell."""
    table = torch.full((hmm.vocab_size, hmm.num_states), -torch.inf, dtype=torch.float64)
    for word in range(hmm.vocab_size):
        for slot, state in enumerate(hmm.support.states_of(torch.tensor(word)).tolist()):
            if state >= 0:
                table[word, state] = hmm.log_emit[word, slot]
    return table
