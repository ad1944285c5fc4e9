"""What the other tokens of a text say of a place: of its states, and of the token that is there."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.hmm import HMM
from hmmlm.inference.chain import MISSING, Chain, predict
from hmmlm.inference.conditioning import read_pattern
from hmmlm.inference.gradients import without_gradient
from hmmlm.inference.soft import state_evidence
from hmmlm.inference.streaming import State, next_state_log_probs
from hmmlm.ops.links import Link, Tiles, Wide, finite, gather, spread
from hmmlm.ops.messages import reference, scaled
from hmmlm.products import full_products
from hmmlm.results import Belief, PseudoLogProb

CELLS = 1 << 24
"""Places times states that are looked at together."""


@full_products()
def context_log_probs(
    hmm: HMM,
    tokens: Int[Tensor, "B T"],
    *,
    lengths: Int[Tensor, " B"] | None = None,
    belief: Belief | None = None,
    reset_id: int | None = None,
) -> Float[Tensor, "B T Z"]:
    """log p(z_t | all other tokens): the states that a context leads to, whatever stands there.

    A token that is `reset_id` keeps its effect: what follows it says nothing of its state. -inf
    past a row's end, and where the other tokens are impossible. O(T K Z) time and O(T Z) memory
    per row.
    """
    chain = Chain(hmm, tokens, lengths=lengths, belief=belief, reset_id=reset_id)
    found = hmm.log_init.detach().new_full((*chain.active.shape, hmm.num_states), -torch.inf)
    with torch.no_grad():
        for place in _places(chain):
            context = place.before + place.onward
            total = torch.logsumexp(context, 1, keepdim=True)
            found[place.row, place.step] = context - finite(total)
    return without_gradient(found, "context_log_probs(...)", hmm)


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
    result = chain.hmm.log_init.new_zeros(chain.active.shape)
    reset = None
    if chain.reset_id is not None:
        word = torch.tensor([chain.reset_id], device=result.device)
        names = None if chain.dense else chain.hmm.support.states_of(word)
        reset = spread(chain.hmm.log_emit[word], names, chain.hmm.num_states, -torch.inf)
    for row, step, before, after, anew, onward in _places(chain):
        whole = torch.logsumexp(before + _emissions(chain, row, step) + onward, 1)
        rest = before + after
        if reset is not None and others is not None:
            rest = torch.logaddexp(rest + others, before + reset + anew[:, None])
        rest = torch.logsumexp(rest, 1)
        result[row, step] = torch.where(torch.isneginf(whole), -torch.inf, whole - rest)
    return torch.where(result.isneginf().any(1, keepdim=True), -torch.inf, result)


class _Places(NamedTuple):
    """Some places of a batch, in logarithms, up to one factor for each."""

    row: Int[Tensor, " N"]
    step: Int[Tensor, " N"]
    before: Float[Tensor, "N Z"]  # what leads to each state
    after: Float[Tensor, "N Z"]  # what follows, from each state
    anew: Float[Tensor, " N"]  # what follows, from a fresh start
    onward: Float[Tensor, "N Z"]  # the one of them that follows the token of the place


def _places(chain: Chain) -> Iterator[_Places]:
    """All tokens of the rows, as many together as fit."""
    messages, fresh_after = _followed(chain)
    led, follows = _Messages(chain, _filtered(chain)), _Messages(chain, messages)
    fine = torch.stack([message.isfinite().any(1) for message in led.steps], 1) | ~chain.active
    possible = torch.ones_like(fine)  # (B, T): whether the text before a step is
    possible[:, 1:] = fine.cumprod(1)[:, :-1].bool()
    first = _entering(chain)
    last = (chain.lengths - 1)[:, None] == torch.arange(chain.steps, device=chain.hmm.device)
    size = max(1, CELLS // chain.hmm.num_states)
    for part in chain.active.nonzero().split(size):
        row, step = part.unbind(1)
        before = chain.hmm.log_init.expand(len(row), -1).clone()
        before[step == 0] = first[row[step == 0]]
        inner = ~chain.restart[row, step] & (step > 0)
        before[inner] = led.onward(row[inner], step[inner] - 1)
        before[~possible[row, step]] = -torch.inf
        after = torch.zeros_like(before)
        inner = ~last[row, step]
        after[inner] = follows.backward(row[inner], step[inner] + 1)
        anew = fresh_after[row, step]
        onward = after
        if chain.reset_id is not None:
            is_reset = chain.tokens[row, step, None] == chain.reset_id
            onward = torch.where(is_reset, anew[:, None], after)
        yield _Places(row, step, before, after, anew, onward)


class _Messages:
    """A message at every step, on the states of its token, to be taken to all states.

    Those of one row of the support go through one tile, wherever they stand.
    """

    def __init__(self, chain: Chain, steps: list[Float[Tensor, "B W"]]) -> None:
        self.chain, self.steps = chain, steps
        self.everything = torch.arange(chain.hmm.num_states, device=chain.hmm.device)[None]
        self.on_words: Tensor | None = None  # (B, T, K); steps of all states are not there
        if not chain.dense:
            empty = steps[0].new_empty(chain.batch, chain.hmm.support.width)
            known = [empty if wide else step for step, wide in zip(steps, chain.wide, strict=True)]
            self.on_words = torch.stack(known, 1)

    def onward(self, row: Int[Tensor, " N"], step: Int[Tensor, " N"]) -> Float[Tensor, "N Z"]:
        """log sum_i exp(message_i) p(j | i) for every state j."""
        return self._through(row, step, back=False)

    def backward(self, row: Int[Tensor, " N"], step: Int[Tensor, " N"]) -> Float[Tensor, "N Z"]:
        """log sum_j p(j | i) exp(message_j) for every state i."""
        return self._through(row, step, back=True)

    def _through(self, row: Tensor, step: Tensor, *, back: bool) -> Tensor:
        chain = self.chain
        found = self.steps[0].new_empty(len(row), chain.hmm.num_states)
        go = _pulled if back else predict
        wide = torch.tensor([chain.dense or is_wide for is_wide in chain.wide], device=row.device)
        for at in step[wide[step]].unique().tolist():
            here = step == at
            found[here] = go(Wide(chain.table), self.steps[at][row[here]])
        if self.on_words is None:
            return found
        places = (~wide[step]).nonzero().flatten()
        support = chain.hmm.support
        names = support.row_of_word[chain.tokens[row[places], step[places]]]
        names, order = names.sort()
        different, sizes = names.unique_consecutive(return_counts=True)
        for name, here in zip(different.tolist(), places[order].split(sizes.tolist()), strict=True):
            states = support.rows[name]
            is_state = states >= 0
            ends = (self.everything, states[is_state][None])
            tile = chain.hmm.transitions.tile(*(ends if back else ends[::-1]))[0]
            message = self.on_words[row[here], step[here]][:, is_state]
            found[here] = _log_product(message, tile.T if back else tile)
        return found


def _log_product(message: Float[Tensor, "N K"], tile: Float[Tensor, "K L"]) -> Float[Tensor, "N L"]:
    """log of exp(message) @ exp(tile), exact however small it is; no message is over 0."""
    found = (message.exp() @ tile.exp()).log()
    low = (found < _least(found)).any(1) & message.isfinite().any(1)
    if low.any():
        found[low] = reference.log_matmul(message[low], tile)
    return found


def _least(log_probs: Tensor) -> float:
    return math.log(scaled.lowest(log_probs.dtype))


def _filtered(chain: Chain) -> list[Float[Tensor, "B W"]]:
    """log p(z_t | x_1..t) at every step, up to a factor."""
    messages = []
    prediction = chain.first
    for step in range(chain.steps):
        if step > 0:
            prediction = predict(chain.link(step), messages[-1])
            fresh = chain.restart[:, step, None]
            prediction = torch.where(fresh, chain.initial(step), prediction)
        messages.append(_largest_zero(prediction + chain.emission(step)))
    return messages


def _followed(chain: Chain) -> tuple[list[Float[Tensor, "B W"]], Float[Tensor, "B T"]]:
    """log p(x_t and all that follows | z_t) at every step, up to a factor.

    And by the factor of the next step, log p(all that follows a step) from a fresh start.
    """
    messages = [chain.emission(chain.steps - 1)]
    fresh_after = chain.hmm.log_init.new_zeros(chain.active.shape)
    for step in range(chain.steps - 1, 0, -1):
        message = _largest_zero(messages[-1])
        messages[-1] = message
        onward = _pulled(chain.link(step), message)
        fresh = chain.restart[:, step]
        anew = torch.logsumexp(chain.initial(step) + message, 1)
        fresh_after[:, step - 1] = torch.where(chain.active[:, step], anew, 0.0)
        onward = torch.where(fresh[:, None], anew[:, None], onward)
        onward = torch.where(chain.active[:, step, None], onward, 0.0)
        messages.append(chain.emission(step - 1) + onward)
    return messages[::-1], fresh_after


def _largest_zero(logs: Float[Tensor, "B W"]) -> Float[Tensor, "B W"]:
    return logs - finite(logs.amax(1, keepdim=True))


def _entering(chain: Chain) -> Float[Tensor, "B Z"]:
    """log p(z_1 | what came before) over all states."""
    if chain.belief is None:
        return chain.hmm.log_init.expand(chain.batch, -1)
    nothing = chain.lengths.double()
    state = State(chain.hmm, chain.belief, nothing, chain.reset_id, chain.table)
    return next_state_log_probs(state)


def _emissions(
    chain: Chain, row: Int[Tensor, " N"], step: Int[Tensor, " N"]
) -> Float[Tensor, "N Z"]:
    """log p(x_t | z_t) over all states, 0 where the token is missing, or its soft evidence."""
    tokens = chain.tokens[row, step]
    words = tokens.clamp(min=0)
    names = None if chain.dense else chain.hmm.support.states_of(words)
    found = spread(chain.hmm.log_emit[words], names, chain.hmm.num_states, -torch.inf)
    found = found.masked_fill((tokens == MISSING)[:, None], 0.0)
    if chain.soft is not None and chain.hmm.log_soft is not None:
        which = chain.soft[row, step]
        found = torch.where(which[:, None] >= 0, chain.hmm.log_soft[which.clamp(min=0)], found)
    return found


def _pulled(link: Link, log_message: Float[Tensor, "B L"]) -> Float[Tensor, "B K"]:
    """log sum_j p(j | i) exp(log_message_j) for every i, exact however small it is."""
    if isinstance(link, Tiles):
        return torch.logsumexp(link.log_tile + log_message[:, None, :], 2)
    wide = spread(log_message, link.destinations, link.table.num_states, -torch.inf)
    found, probs = wide.new_empty(len(wide), link.table.num_sources), wide.exp()
    for rows, tile in link.table.prob_tiles():
        found[:, rows] = (probs @ tile.T).log()
    low = (found < _least(found)).any(1)
    if low.any():
        for rows, tile in link.table.log_tiles():
            found[low, rows] = reference.log_matmul(wide[low], tile.T)
    return gather(found, link.sources, -torch.inf)
