"""State paths: the best one, and draws from the posterior."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hmmlm.hmm import HMM
from hmmlm.inference.chain import Chain
from hmmlm.inference.dispatch import (
    KERNEL,
    WITH_KERNEL,
    answer,
    kernel_passes,
    recursion,
    widened,
)
from hmmlm.inference.gradients import without_gradient
from hmmlm.inference.missing import Parted
from hmmlm.ops.links import finite
from hmmlm.ops.viterbi import best_predecessors
from hmmlm.results import Belief, BestPath, PathSamples


def viterbi(
    hmm: HMM,
    tokens: Int[Tensor, "B T"],
    *,
    lengths: Int[Tensor, " B"] | None = None,
    belief: Belief | None = None,
    reset_id: int | None = None,
    restart: Bool[Tensor, "B T"] | None = None,
    implementation: str = "auto",
) -> BestPath:
    """argmax_z p(z_1..T, x_1..T | what came before) and its log-probability.

    Of equally good paths it gives one; rows of probability zero give states of -1 and -inf.
    O(T K^2) time and O(T K) memory per row.
    """
    chain = Chain(hmm, tokens, lengths=lengths, belief=belief, reset_id=reset_id, restart=restart)
    with torch.no_grad():
        result, _ = answer(implementation, ("reference", KERNEL), chain, partial(_best, chain))
    return without_gradient(result, "viterbi(...)", hmm)


def sample_paths(
    hmm: HMM,
    tokens: Int[Tensor, "B T"],
    *,
    num_samples: int = 1,
    generator: torch.Generator | None = None,
    lengths: Int[Tensor, " B"] | None = None,
    belief: Belief | None = None,
    reset_id: int | None = None,
    restart: Bool[Tensor, "B T"] | None = None,
    implementation: str = "auto",
) -> PathSamples:
    """Exact draws from p(z_1..T | x_1..T): filter forward, sample backward.

    Rows of probability zero give states of -1. O(T K (K + N)) time, O(T (K + N)) memory per row.
    """
    chain = Chain(hmm, tokens, lengths=lengths, belief=belief, reset_id=reset_id, restart=restart)
    run = partial(_sample_paths, chain, num_samples=num_samples, generator=generator)
    with torch.no_grad():
        return PathSamples(answer(implementation, WITH_KERNEL, chain, run)[0])


def _best(chain: Chain, name: str) -> BestPath:
    return _viterbi_by_kernel(chain) if name == KERNEL else _viterbi(chain)


def _viterbi(chain: Chain) -> BestPath:
    pointers: list[Tensor | None] = [None]
    ends = LastBest(chain)
    score = ends.visit(0, chain.first + chain.emission(0))  # (B, W)
    for step in range(1, chain.steps):
        fresh = chain.restart[:, step, None]
        best, pointer = best_predecessors(chain.link(step), score)
        if chain.any_restart[step]:
            # The chain starts afresh: the best path so far, whatever it ends in, and p(z1).
            most, where = score.max(1, keepdim=True)
            best = torch.where(fresh, most + chain.initial(step), best)
            pointer = torch.where(fresh, where.int(), pointer)
        score = best + chain.emission(step)
        pointers.append(pointer)
        score = ends.visit(step, score)
    slot = ends.slot
    path = torch.full(chain.active.shape, -1, device=chain.hmm.device)
    possible = torch.isfinite(ends.log_prob)
    for step in range(chain.steps - 1, -1, -1):
        active = chain.active[:, step]
        here = torch.where(active, slot, 0)  # a row that ended keeps its slot for its last step
        states = chain.states_at(step, here[:, None])[:, 0]
        path[:, step] = torch.where(active & possible, states, -1)
        pointer = pointers[step]
        if pointer is not None:
            slot = torch.where(active, pointer.gather(1, here[:, None])[:, 0].long(), slot)
    return BestPath(path, ends.log_prob)


def _viterbi_by_kernel(chain: Chain) -> BestPath:
    passes = kernel_passes(chain)
    forward = passes.forward(0, chain.steps, None, keep=True, best=True)
    assert isinstance(forward.messages, Tensor)
    places = passes.trace(forward.messages, 1, None)
    log_prob = forward.log_probs.double().sum(1)
    path = _states(chain, places, torch.isfinite(log_prob))[:, 0]
    if forward.low.any():
        rows = forward.low.nonzero().flatten()
        path[rows], log_prob[rows] = _best(*widened(chain, KERNEL, rows))
    return BestPath(path, log_prob)


def _states(
    chain: Chain, places: Int[Tensor, "B N T"], possible: Bool[Tensor, " B"]
) -> Int[Tensor, "B N T"]:
    """The global ids of states given by their place in every step, -1 where there is none."""
    places = places.long()
    if not chain.dense:
        ids = chain.hmm.support.states_of(chain.tokens)  # (B, T, K)
        places = ids.gather(2, places.transpose(1, 2).clamp(0, ids.shape[2] - 1)).transpose(1, 2)
    inside = (chain.active & possible[:, None])[:, None]
    return torch.where(inside, chain.hmm.global_states(torch.where(inside, places, 0)), -1)


class LastBest:
    """The best state at each row's last step, and the log-probability of its path.

    The best score is taken out of every step and summed in float64, so that scores keep their
    digits however long the text is.
    """

    def __init__(self, chain: Chain) -> None:
        self.last = chain.lengths - 1
        self.total = torch.zeros(chain.batch, dtype=torch.float64, device=chain.hmm.device)
        self.log_prob = torch.full_like(self.total, -torch.inf)
        self.slot = torch.zeros_like(self.last)

    def visit(self, step: int, score: Float[Tensor, "B W"]) -> Float[Tensor, "B W"]:
        """The scores of a step, the best of each row 0."""
        best, slot = score.max(1)
        self.total = self.total + best.double()
        here = self.last == step
        self.log_prob = torch.where(here, self.total, self.log_prob)
        self.slot = torch.where(here, slot, self.slot)
        return score - finite(best)[:, None]


def _sample_paths(
    chain: Chain, name: str, num_samples: int, generator: torch.Generator | None
) -> Int[Tensor, "B N T"]:
    if name == KERNEL:
        return _sample_by_kernel(chain, num_samples, generator)
    passes = recursion(chain, name)
    forward = passes.forward(0, chain.steps, None, keep=True)
    paths = torch.full((chain.batch, num_samples, chain.steps), -1, device=chain.hmm.device)
    possible = torch.isfinite(forward.log_probs).all(1)
    drawn = torch.zeros(chain.batch, num_samples, dtype=torch.long, device=chain.hmm.device)
    for step in range(chain.steps - 1, -1, -1):
        for rows, states, message in _messages_at(chain, forward.messages, step):
            log_message = passes.arithmetic.leave(message)  # (n, W)
            weights = log_message[:, None, :].expand(-1, num_samples, -1)
            if step + 1 < chain.steps:
                # What follows says something of this step only if it was entered from here.
                through = chain.active[rows, step + 1] & ~chain.restart[rows, step + 1]
                onward = _into(chain, states, drawn[rows])  # (n, N, W)
                weights = torch.where(through[:, None, None], weights + onward, weights)
            slot = torch.where(possible[rows, None], draw(weights, generator), 0)
            drawn[rows] = slot if states is None else states.gather(1, slot)
        inside = (chain.active[:, step] & possible)[:, None]
        paths[:, :, step] = torch.where(inside, chain.hmm.global_states(drawn), -1)
    if name != "reference" and forward.low.any():
        rows = forward.low.nonzero().flatten()
        paths[rows] = _sample_paths(*widened(chain, name, rows), num_samples, generator)
    return paths


def _sample_by_kernel(
    chain: Chain, num_samples: int, generator: torch.Generator | None
) -> Int[Tensor, "B N T"]:
    passes = kernel_passes(chain)
    forward = passes.forward(0, chain.steps, None, keep=True)
    assert isinstance(forward.messages, Tensor)
    size = (chain.batch, num_samples, chain.steps)
    # Numbers come from where the generator is.
    place = chain.hmm.device if generator is None else generator.device
    uniform = torch.rand(size, generator=generator, device=place).to(chain.hmm.device)
    places = passes.trace(forward.messages, num_samples, uniform)
    paths = _states(chain, places, torch.isfinite(forward.log_probs).all(1))
    if forward.low.any():
        rows = forward.low.nonzero().flatten()
        paths[rows] = _sample_paths(*widened(chain, KERNEL, rows), num_samples, generator)
    return paths


def _messages_at(
    chain: Chain, messages: Sequence[Tensor] | Tensor | Parted, step: int
) -> Iterator[tuple[Int[Tensor, " n"], Int[Tensor, "n K"] | None, Float[Tensor, "n W"]]]:
    """Rows of a step, their states (None: all of them) and messages; missing tokens apart."""
    rows = torch.arange(chain.batch, device=chain.hmm.device)
    if not isinstance(messages, Parted):
        here = messages[:, step] if isinstance(messages, Tensor) else messages[step]
        yield rows, chain.states(step), here
        return
    gone = chain.missing[:, step]
    if not bool(gone.all()):
        words = rows[~gone]
        states = chain.hmm.support.states_of(chain.tokens[words, step])
        yield words, states, messages.narrow[words, step]
    if chain.wide[step]:
        yield rows[gone], None, messages.wide[messages.order[gone, step]]


def _into(
    chain: Chain, states: Int[Tensor, "n W"] | None, following: Int[Tensor, "n N"]
) -> Float[Tensor, "n N W"]:
    """log p(z_t+1 = the chosen state | z_t) for every state of a step."""
    if states is None:
        columns = chain.hmm.transitions.columns_of(following.clamp(min=0).flatten())
        return columns[:, : chain.hmm.num_states].reshape(*following.shape, -1)
    tile = chain.hmm.transitions.tile(states, following)  # (n, W, N)
    return tile.masked_fill((states < 0)[:, :, None], -torch.inf).transpose(1, 2)


def draw(
    log_weights: Float[Tensor, "*rows W"], generator: torch.Generator | None
) -> Int[Tensor, "*rows"]:
    """A place in proportion to exp(log_weights), for every row; any place where all are -inf."""
    most = log_weights.amax(-1, keepdim=True)
    probs = (log_weights - finite(most)).exp()
    # A row without any weight is impossible and not used; multinomial refuses it.
    probs = torch.where(torch.isfinite(most) & ~torch.isnan(probs), probs, 1.0)
    rows = probs.flatten(0, -2)
    if rows.device.type == "cuda":
        # The same draws as multinomial's, which waits for the device twice to look at its weights.
        places = (rows / torch.empty_like(rows).exponential_(generator=generator)).argmax(1)
    else:
        places = torch.multinomial(rows, 1, generator=generator)
    return places.view(probs.shape[:-1])
