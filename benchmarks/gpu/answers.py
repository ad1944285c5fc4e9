"""How far an answer about some tokens is from that of the same tables in float64."""

import math

import torch
from torch import Tensor

from hmmlm.hmm import HMM
from hmmlm.inference import counts, log_prob, smooth, viterbi
from hmmlm.results import BestPath, Counts, LogProb, PathSamples
from hmmlm.transitions import Factored

LEAST = 5.0
"""Draws that a state must expect to be compared by itself."""


def logprob_error(answer: LogProb, exact: HMM, tokens: Tensor) -> float:
    """The largest relative error of a row's log evidence."""
    truth = log_prob(exact, tokens, implementation="scaled").log_evidence
    return float(((answer.log_evidence - truth) / truth).abs().max())


def counts_error(answer: Counts, exact: HMM, tokens: Tensor) -> float:
    """The share of the counted mass that lies elsewhere, in the worst of the tables."""
    truth = counts(exact, tokens, implementation="scaled")
    pairs = zip(answer.fields(), truth.fields(), strict=True)
    shares = [float((got.double() - t).abs().sum() / t.abs().sum()) for got, t in pairs]
    return max(shares) if not any(map(math.isnan, shares)) else math.nan


def viterbi_error(answer: BestPath, exact: HMM, tokens: Tensor) -> float:
    """The largest relative error of log p(best path), as said and as the states add up to."""
    truth = viterbi(exact, tokens, implementation="reference").log_prob
    added = path_log_probs(exact, tokens, answer.states[:, None])[:, 0]
    errors = torch.stack([answer.log_prob.double() - truth, added - truth]) / truth
    return float(errors.abs().max())


def sample_error(answer: PathSamples, exact: HMM, tokens: Tensor) -> float:
    """The largest deviation, in standard errors, of the states of a step and of log p(path, x)."""
    draws = answer.states.shape[1]
    posteriors = smooth(exact, tokens, implementation="scaled").dense(exact.num_states).exp()
    largest = 0.0
    for row, step in torch.cartesian_prod(*map(torch.arange, tokens.shape)).tolist():
        found = torch.bincount(answer.states[row, :, step], minlength=exact.num_states)
        largest = max(largest, _deviation(found.double(), draws * posteriors[row, step]))
    scores = path_log_probs(exact, tokens, answer.states)  # (B, N)
    expected = _expected_log_probs(exact, tokens)
    spread = scores.std(1) / math.sqrt(draws)
    means = (scores.mean(1) - expected).abs() / spread.clamp(min=1e-12)
    if not means.isfinite().all():  # a path that cannot be
        return math.inf
    return max(largest, float(means.max()))


def path_log_probs(hmm: HMM, tokens: Tensor, states: Tensor) -> Tensor:
    """log p(z_1..T, x_1..T) of paths (B, N, T), whose states are those of blocks or dense."""
    support, table = hmm.support, hmm.transitions
    slots = torch.arange(support.width, device=hmm.device).expand(support.rows.shape)
    rows = torch.arange(len(support.rows), device=hmm.device)[:, None].expand(slots.shape)
    real = support.rows >= 0
    slot_of, row_of = (torch.zeros_like(support.rows.flatten()) for _ in range(2))
    slot_of[support.rows[real]], row_of[support.rows[real]] = slots[real], rows[real]
    total = hmm.log_init[states[:, :, 0]]
    for step in range(tokens.shape[1]):
        here, words = states[:, :, step], tokens[:, step, None]
        emitted = hmm.log_emit[words, slot_of[here]]
        possible = row_of[here] == support.row_of_word[words]
        total = total + torch.where(possible, emitted, -torch.inf)
        if step:
            before = states[:, :, step - 1]
            if isinstance(table, Factored):
                logits = (table.left[before] * table.right[here]).sum(2)
                total = total + logits - table.log_norm[before]
            else:
                total = total + table.log_trans[before, here]
    return total


def _expected_log_probs(hmm: HMM, tokens: Tensor) -> Tensor:
    """E[log p(z, x) | x] of each row: its expected counts times the tables they count."""
    rows = []
    for row in tokens.split(1):
        seen = counts(hmm, row, implementation="scaled").fields()
        parts = list(zip(seen, hmm.fields(), strict=True))
        if isinstance(hmm.transitions, Factored):
            del parts[2]  # counts @ right lies in the left factor already
        rows.append([torch.where(n != 0, n * table, 0.0).sum() for n, table in parts])
    return torch.stack([torch.stack(row).sum() for row in rows])


def _deviation(found: Tensor, expected: Tensor) -> float:
    """Pearson's statistic as a standard normal (Wilson and Hilferty); inf for the impossible."""
    if (found[expected == 0] > 0).any():
        return math.inf
    often = expected >= LEAST
    cells = [(found[often], expected[often])]
    if (rest := expected[~often].sum()) >= LEAST:
        cells.append((found[~often].sum()[None], rest[None]))
    number = sum(len(cell[1]) for cell in cells) - 1
    if number < 1:
        return 0.0
    total = sum(float(((f - e) ** 2 / e).sum()) for f, e in cells)
    part = 2 / (9 * number)
    return ((total / number) ** (1 / 3) - (1 - part)) / math.sqrt(part)
