"""How much tokens say of each other, and how far two HMMs are from each other."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.hmm import HMM
from hmmlm.inference.chain import Chain, make_table, predict
from hmmlm.inference.conditioning import read_pattern
from hmmlm.inference.evidence import log_prob
from hmmlm.inference.gradients import without_gradient
from hmmlm.inference.sampling import sample
from hmmlm.inference.soft import state_evidence
from hmmlm.inference.streaming import State, emission_probs, next_state_log_probs
from hmmlm.ops.links import TILE, Table, Tiles, Wide, finite, gather, spread
from hmmlm.ops.messages import reference, scaled
from hmmlm.products import full_products
from hmmlm.results import Belief, Estimate, PseudoLogProb

DRAWN = 1 << 24
"""Cells of states, texts times states, that are drawn from at a time."""


@full_products()
def pseudo_log_prob(
    hmm: HMM,
    tokens: Int[Tensor, "B T"],
    *,
    log_weights: Float[Tensor, "N V"] | None = None,
    lengths: Int[Tensor, " B"] | None = None,
    belief: Belief | None = None,
    reset_id: int | None = None,
) -> PseudoLogProb:
    """log p(x_t | all other tokens) of every token that is there.

    Another word in place of `reset_id`, or `reset_id` in place of another word, changes what
    follows, and is counted so. Rows of probability zero give -inf. O(T K Z) time and O(T K + Z)
    memory per row.
    """
    text = read_pattern(hmm, tokens, log_weights, lengths, reset_id)
    chain = Chain(
        text.softened, text.tokens, lengths=text.lengths, belief=belief, reset_id=reset_id
    )
    counted = chain.active & ~text.gaps
    others = None
    if reset_id is not None:
        weights = hmm.log_init.detach().new_zeros(1, hmm.vocab_size)
        weights[:, reset_id] = -torch.inf
        others = state_evidence(text.hmm, weights)  # a sum: 1 - p(reset) would lose digits
    with torch.no_grad():
        found = torch.where(counted, _leave_one_out(chain, others), 0.0)
    result = PseudoLogProb(found, found.double().sum(1), counted.sum(1))
    return without_gradient(result, "pseudo_log_prob(...)", hmm)


def _leave_one_out(chain: Chain, others: Float[Tensor, "1 Z"] | None) -> Float[Tensor, "B T"]:
    """log p(x_t | all others): what leads to step t, over all states, meets what follows it.

    `others` are log p(any word but `reset_id` | z), where there is one.
    """
    messages = _filtered(chain)
    result = chain.hmm.log_init.new_zeros(chain.active.shape)
    states = chain.hmm.num_states
    # What follows, up to one factor per row: from every state, and from a fresh start.
    after = chain.hmm.log_init.new_zeros(chain.batch, states)
    anew = after.new_zeros(chain.batch)
    reset = None
    if chain.reset_id is not None:
        word = torch.tensor([chain.reset_id], device=after.device)
        names = None if chain.dense else chain.hmm.support.states_of(word)
        reset = spread(chain.hmm.log_emit[word], names, states, -torch.inf)
    possible = torch.ones_like(anew, dtype=torch.bool)
    for step in range(chain.steps - 1, -1, -1):
        before = _arriving(chain, step, messages)
        is_reset = torch.zeros_like(chain.active[:, step])
        if reset is not None:
            is_reset = chain.tokens[:, step] == chain.reset_id
        onward = torch.where(is_reset[:, None], anew[:, None], after)
        emission = chain.emission(step)
        given = spread(emission, chain.states(step), states, -torch.inf)
        whole = torch.logsumexp(before + given + onward, 1)
        rest = before + after
        if reset is not None and others is not None:
            rest = torch.logaddexp(rest + others, before + reset + anew[:, None])
        rest = torch.logsumexp(rest, 1)
        possible = possible & (torch.isfinite(whole) | ~chain.active[:, step])
        result[:, step] = torch.where(torch.isneginf(whole), -torch.inf, whole - rest)
        if step > 0:
            weight = emission + gather(onward, chain.states(step), -torch.inf)
            most = weight.amax(1, keepdim=True)
            weight = weight - finite(most)
            through = chain.active[:, step, None]
            after = torch.where(through, _foresee(chain, step, weight), 0.0)
            anew = torch.where(through[:, 0], torch.logsumexp(chain.initial(step) + weight, 1), 0.0)
    return torch.where(possible[:, None], result, -torch.inf)


def _filtered(chain: Chain) -> list[Float[Tensor, "B W"]]:
    """log p(z_t | x_1..t) at every step, up to a factor."""
    messages = []
    prediction = chain.first
    for step in range(chain.steps):
        if step > 0:
            prediction = predict(chain.link(step), messages[-1])
            fresh = chain.restart[:, step, None]
            prediction = torch.where(fresh, chain.initial(step), prediction)
        joint = prediction + chain.emission(step)
        most = joint.amax(1, keepdim=True)
        messages.append(joint - finite(most))
    return messages


def _arriving(
    chain: Chain, step: int, messages: list[Float[Tensor, "B W"]]
) -> Float[Tensor, "B Z"]:
    """log p(z_t | x_<t) over all states, up to a factor."""
    initial = chain.hmm.log_init.expand(chain.batch, -1)
    if step > 0:
        link = chain.between(chain.states(step - 1), None)
        return torch.where(chain.restart[:, step, None], initial, predict(link, messages[step - 1]))
    if chain.belief is None:
        return initial
    nothing = chain.lengths.double()
    return next_state_log_probs(
        State(chain.hmm, chain.belief, nothing, chain.reset_id, chain.table)
    )


def _foresee(chain: Chain, step: int, log_weight: Float[Tensor, "B W"]) -> Float[Tensor, "B Z"]:
    """log sum_j p(j | i) exp(log_weight_j) for every state i, exact however small it is."""
    link = chain.between(None, chain.states(step))
    if isinstance(link, Tiles):
        return torch.logsumexp(link.log_tile + log_weight[:, None, :], 2)
    wide = spread(log_weight, chain.states(step), chain.hmm.num_states, -torch.inf)
    found, probs = torch.empty_like(wide), wide.exp()
    for rows, tile in chain.table.prob_tiles():
        found[:, rows] = (probs @ tile.T).log()
    low = (found < math.log(scaled.lowest(found.dtype))).any(1)
    if low.any():
        for rows, tile in chain.table.log_tiles():
            found[low, rows] = reference.log_matmul(wide[low], tile.T)
    return found


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
