"""How much words say of each other at a distance, and how far two HMMs are from each other."""

import torch
from jaxtyping import Float
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.hmm import HMM
from hmmlm.inference.chain import make_table
from hmmlm.inference.evidence import log_prob
from hmmlm.inference.sampling import sample
from hmmlm.inference.streaming import emission_probs
from hmmlm.ops.links import TILE, Table, Wide, spread
from hmmlm.ops.messages import scaled
from hmmlm.products import full_products
from hmmlm.results import Estimate

DRAWN = 1 << 24
"""Cells of states, texts times states, that are drawn from at a time."""


def cross_entropy(
    model: HMM,
    other: HMM,
    *,
    length: int,
    num_samples: int = 1000,
    reset_id: int | None = None,
    generator: torch.Generator | None = None,
) -> Estimate:
    """-sum_x p(x) log q(x) over texts x of `length` tokens, in nats per text: an estimate.

    p is `model` and q is `other`. No closed form is known; the mean of -log q(x) over texts drawn
    from p has it as its expectation. Infinite where q cannot produce a text that was drawn.
    """
    return _estimate(model, other, length, num_samples, reset_id, generator, difference=False)


def kl_divergence(
    model: HMM,
    other: HMM,
    *,
    length: int,
    num_samples: int = 1000,
    reset_id: int | None = None,
    generator: torch.Generator | None = None,
) -> Estimate:
    """KL(p || q) = sum_x p(x) log p(x)/q(x) over texts of `length` tokens, in nats: an estimate.

    p is `model` and q is `other`: the mean of log p(x) - log q(x) over texts drawn from p, which
    may come out below zero where the two are close.
    """
    return _estimate(model, other, length, num_samples, reset_id, generator, difference=True)


def _estimate(
    model: HMM,
    other: HMM,
    length: int,
    num_samples: int,
    reset_id: int | None,
    generator: torch.Generator | None,
    *,
    difference: bool,
) -> Estimate:
    if model.vocab_size != other.vocab_size:
        raise InputError(
            f"The HMMs have {model.vocab_size:,} and {other.vocab_size:,} words; compare models of "
            f"the same vocabulary."
        )
    if num_samples < 2:
        raise InputError(f"num_samples is {num_samples:,} but an error needs at least 2.")
    values = []
    size = max(1, DRAWN // model.num_states)
    with torch.no_grad():
        for start in range(0, num_samples, size):
            count = min(size, num_samples - start)
            drawn = sample(
                model, length=length, num_samples=count, reset_id=reset_id, generator=generator
            ).tokens
            value = -log_prob(other, drawn.to(other.device), reset_id=reset_id).log_evidence
            if difference:
                value += log_prob(model, drawn, reset_id=reset_id).log_evidence.to(value.device)
            values.append(value)
    every = torch.cat(values)
    error = every.std() / num_samples**0.5 if torch.isfinite(every).all() else torch.inf
    return Estimate(float(every.mean()), float(error), num_samples)


@full_products()
def word_information(hmm: HMM, first: int, second: int) -> float:
    """I(x_s; x_t) in nats between the tokens at two positions, counted from 0, given nothing.

    Exact, through the states; the chain is never reset. O(V Z^2) time for each step between them,
    and no more than some words times V of the joint distribution at a time.
    """
    table, states, distance = _positions(hmm, first, second)
    words = torch.arange(hmm.vocab_size, device=hmm.device)
    later = _onward(table, states[None], distance)
    ahead, behind = (emission_probs(hmm, probs)[0] for probs in (states[None], later))
    width = 1 if hmm.support.is_dense else hmm.support.width
    total = torch.zeros((), dtype=torch.float64, device=hmm.device)
    for part in words.split(max(1, TILE // max(hmm.num_states, hmm.vocab_size))):
        names = None if hmm.support.is_dense else hmm.support.states_of(part)
        emission = spread(hmm.log_emit[part].exp(), names, hmm.num_states, 0.0)  # (N, Z)
        pushed = _onward(table, emission * states, distance)
        for other in words.split(max(1, TILE // (len(part) * width))):
            joint = emission_probs(hmm, pushed, other)
            total += _information(joint, ahead[part], behind[other])
    return float(total)


@full_products()
def state_information(hmm: HMM, first: int, second: int) -> float:
    """I(z_s; z_t) in nats between the states at two positions, counted from 0, given nothing.

    No tokens at these positions can say more of each other. O(Z^3) time for each step between
    them beyond the first, and some states times Z of the joint distribution at a time.
    """
    table, states, distance = _positions(hmm, first, second)
    later = _onward(table, states[None], distance)[0]
    total = torch.zeros((), dtype=torch.float64, device=hmm.device)
    step = max(1, TILE // hmm.num_states)
    for start in range(0, hmm.num_states, step):
        stop = min(start + step, hmm.num_states)
        here = states[start:stop]
        joint = here[:, None] * hmm.transitions.rows(start, stop).detach().exp()
        total += _information(_onward(table, joint, distance - 1), here, later)
    return float(total)


def _positions(hmm: HMM, first: int, second: int) -> tuple[Table, Float[Tensor, " Z"], int]:
    """The transitions, p(z_s) at the earlier position, and how far the other one is."""
    if first < 0 or second < 0 or first == second:
        raise InputError(
            f"The positions are {first:,} and {second:,} but must be two different ones of at "
            f"least 0."
        )
    table = make_table(hmm.detach())
    start = hmm.log_init.detach().exp()[None]
    return table, _onward(table, start, min(first, second))[0], abs(first - second)


def _onward(table: Table, probs: Float[Tensor, "N Z"], steps: int) -> Float[Tensor, "N Z"]:
    """Rows of probabilities of states, so many steps later."""
    for _ in range(steps):
        probs, _ = scaled.push(Wide(table), probs)
    return probs


def _information(
    joint: Float[Tensor, "N M"], ahead: Float[Tensor, " N"], behind: Float[Tensor, " M"]
) -> Float[Tensor, ""]:
    """sum p(a, b) log p(a, b) / p(a) p(b) over some pairs; those of probability 0 add nothing."""
    joint = joint.double()
    ratio = joint.log() - ahead.double().log()[:, None] - behind.double().log()
    return torch.where(joint > 0, joint * ratio, 0.0).sum()
