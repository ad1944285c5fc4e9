"""More than the best path: the k best, the one with most states right, and how many there are."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hmmlm.errors import check_count
from hmmlm.hmm import HMM, renormalise
from hmmlm.inference.chain import Chain
from hmmlm.inference.gradients import without_gradient
from hmmlm.inference.smoothing import smooth
from hmmlm.inference.soft import soften
from hmmlm.ops.links import finite, spread
from hmmlm.products import full_products
from hmmlm.results import Belief, BestPaths, MinRiskPath, StateProbs


@full_products()
def best_paths(
    hmm: HMM,
    tokens: Int[Tensor, "B T"],
    *,
    k: int,
    log_weights: Float[Tensor, "N V"] | None = None,
    lengths: Int[Tensor, " B"] | None = None,
    belief: Belief | None = None,
    reset_id: int | None = None,
    restart: Bool[Tensor, "B T"] | None = None,
) -> BestPaths:
    """The k paths z with the largest p(z_1..T, x_1..T | what came before), all different.

    Every state of a step keeps its k best beginnings. O(T K^2 k) time and O(T K k) memory per row.
    """
    check_count("k", k)
    chain = Chain(
        hmm if log_weights is None else soften(hmm, log_weights),
        tokens,
        lengths=lengths,
        belief=belief,
        reset_id=reset_id,
        restart=restart,
    )
    with torch.no_grad():
        result = _best_paths(chain, k)
    return without_gradient(result, "best_paths(...)", hmm)


def _best_paths(chain: Chain, k: int) -> BestPaths:
    score = (chain.first + chain.emission(0))[:, :, None]  # (B, W, ranks)
    total = torch.zeros(chain.batch, dtype=torch.float64, device=chain.hmm.device)
    log_probs = total.new_full((chain.batch, k), -torch.inf)
    place = torch.zeros(chain.batch, k, dtype=torch.long, device=chain.hmm.device)
    pointers: list[Tensor] = []
    ranks = [1]  # beginnings that a state of a step keeps: not more than there are
    for step in range(chain.steps):
        if step > 0:
            score, pointer = _best_beginnings(chain, step, score, k)
            pointers.append(pointer)
            ranks.append(score.shape[2])
            score = score + chain.emission(step)[:, :, None]
        # The best of a step is taken out, so that scores keep their digits in long texts.
        flat = score.flatten(1)
        most = flat.amax(1)
        total = total + most.double()
        score = score - finite(most)[:, None, None]
        ends = chain.lengths == step + 1
        if ends.any():
            size = min(k, flat.shape[1])
            best, where = score.flatten(1).topk(size, 1)
            log_probs[ends, :size] = (total[:, None] + best.double())[ends]
            place[ends, :size] = where[ends]
    paths = torch.full((chain.batch, k, chain.steps), -1, device=chain.hmm.device)
    possible = torch.isfinite(log_probs)
    for step in range(chain.steps - 1, -1, -1):
        active = chain.active[:, step, None]
        here = torch.where(active, place, 0)  # a row that ended keeps its places for its last step
        states = chain.states_at(step, here // ranks[step])
        paths[:, :, step] = torch.where(active & possible, states, -1)
        if step > 0:
            before = pointers[step - 1].flatten(1).gather(1, here).long()
            place = torch.where(active, before, place)
    return BestPaths(paths, log_probs)


def _best_beginnings(
    chain: Chain, step: int, score: Float[Tensor, "B K r"], k: int
) -> tuple[Float[Tensor, "B L q"], Int[Tensor, "B L q"]]:
    """The best ways into every state of a step, and their places among (state, rank) before it."""
    size = min(k, score[0].numel())
    found, places = [], []
    for _, log_tile in chain.columns(step, copies=score.shape[2]):
        ways = (score[:, :, :, None] + log_tile[:, :, None, :]).flatten(1, 2)  # (B, K r, C)
        best, where = ways.topk(size, 1)
        found.append(best.transpose(1, 2))
        places.append(where.transpose(1, 2).int())
    best, place = torch.cat(found, 1), torch.cat(places, 1)
    if chain.any_restart[step]:
        # The chain starts afresh: the best paths so far, whatever they end in, and p(z1).
        fresh = chain.restart[:, step, None, None]
        most, where = score.flatten(1).topk(size, 1)
        best = torch.where(fresh, most[:, None] + chain.initial(step)[:, :, None], best)
        place = torch.where(fresh, where[:, None].int(), place)
    return best, place


@full_products()
def min_risk_path(
    hmm: HMM,
    tokens: Int[Tensor, "B T"],
    *,
    log_weights: Float[Tensor, "N V"] | None = None,
    lengths: Int[Tensor, " B"] | None = None,
    belief: Belief | None = None,
    reset_id: int | None = None,
    restart: Bool[Tensor, "B T"] | None = None,
    implementation: str = "auto",
) -> MinRiskPath:
    """argmax_z sum_t p(z_t | x) over paths with p(z, x) > 0: the most states right on average.

    The best state of each step on its own may give a path that cannot be; this one can. Rows of
    probability zero give -1 and -inf. Smoothing, and O(T K^2) time and O(T K) memory per row.
    """
    if log_weights is not None:
        hmm = soften(hmm, log_weights)
    how = {"lengths": lengths, "belief": belief, "reset_id": reset_id, "restart": restart}
    chain = Chain(hmm, tokens, **how)
    with torch.no_grad():
        found = smooth(hmm.detach(), tokens, implementation=implementation, **how)
        result = _min_risk(chain, found)
    return without_gradient(result, "min_risk_path(...)", hmm)


def _min_risk(chain: Chain, found: StateProbs) -> MinRiskPath:
    score = _probs_at(chain, found, 0)
    score = torch.where(torch.isfinite(chain.first + chain.emission(0)), score, -torch.inf)
    expected = torch.full((chain.batch,), -torch.inf, dtype=torch.float64).to(score.device)
    slot = torch.zeros_like(chain.lengths)
    pointers: list[Tensor] = []
    for step in range(chain.steps):
        if step > 0:
            parts = [
                torch.where(torch.isfinite(log_tile), score[:, :, None], -torch.inf).max(1)
                for _, log_tile in chain.columns(step)
            ]
            best = torch.cat([part.values for part in parts], 1)
            pointer = torch.cat([part.indices for part in parts], 1)
            if chain.any_restart[step]:
                fresh = chain.restart[:, step, None]
                most, where = score.max(1, keepdim=True)
                anew = torch.where(torch.isfinite(chain.initial(step)), most, -torch.inf)
                best = torch.where(fresh, anew, best)
                pointer = torch.where(fresh, where, pointer)
            here = _probs_at(chain, found, step)
            score = torch.where(torch.isfinite(chain.emission(step)), best + here, -torch.inf)
            pointers.append(pointer)
        ends = chain.lengths == step + 1
        most, where = score.max(1)
        expected = torch.where(ends, most.double(), expected)
        slot = torch.where(ends, where, slot)
    paths = torch.full(chain.active.shape, -1, device=chain.hmm.device)
    possible = torch.isfinite(expected) & torch.isfinite(found.log_evidence)
    for step in range(chain.steps - 1, -1, -1):
        active = chain.active[:, step]
        here = torch.where(active, slot, 0)[:, None]
        states = chain.states_at(step, here)[:, 0]
        paths[:, step] = torch.where(active & possible, states, -1)
        if step > 0:
            slot = torch.where(active, pointers[step - 1].gather(1, here)[:, 0], slot)
    return MinRiskPath(paths, torch.where(possible, expected, -torch.inf))


def _probs_at(chain: Chain, found: StateProbs, step: int) -> Float[Tensor, "B W"]:
    """p(z_t | x) on the states of a step, as the chain has them."""
    log_probs = found.log_probs[:, step]
    if chain.wide[step]:
        states = chain.hmm.support.states_of(chain.tokens[:, step].clamp(min=0))
        log_probs = spread(log_probs, states, chain.hmm.num_states, -torch.inf)
        gone = chain.missing_rows[:, step]
        log_probs[gone] = found.missing_log_probs[chain.missing_order[gone, step]]
    return log_probs.exp()


@full_products()
def path_entropy(
    hmm: HMM,
    tokens: Int[Tensor, "B T"],
    *,
    log_weights: Float[Tensor, "N V"] | None = None,
    lengths: Int[Tensor, " B"] | None = None,
    belief: Belief | None = None,
    reset_id: int | None = None,
    restart: Bool[Tensor, "B T"] | None = None,
) -> Float[Tensor, " B"]:
    """H(z_1..T | x_1..T) = -sum_z p(z | x) log p(z | x) in nats: how open the path is.

    By the chain rule, forward: the entropy of the path into every state. Rows of probability zero
    give -inf. In log space; O(T K^2) time per row.
    """
    chain = Chain(
        hmm if log_weights is None else soften(hmm, log_weights),
        tokens,
        lengths=lengths,
        belief=belief,
        reset_id=reset_id,
        restart=restart,
    )
    with torch.no_grad():
        result = _path_entropy(chain)
    return without_gradient(result, "path_entropy(...)", hmm)


def _path_entropy(chain: Chain) -> Float[Tensor, " B"]:
    message = renormalise(chain.first + chain.emission(0))  # (B, W): log p(z_t | x_1..t)
    inside = torch.zeros_like(message)  # H(z_1..t-1 | z_t, x_1..t) for every z_t
    result = torch.full((chain.batch,), -torch.inf, dtype=torch.float64).to(message.device)
    for step in range(chain.steps):
        if step > 0:
            parts = [_entropy_into(message, inside, tile) for _, tile in chain.columns(step)]
            prediction = torch.cat([part[0] for part in parts], 1)
            into = torch.cat([part[1] for part in parts], 1)
            if chain.any_restart[step]:
                fresh = chain.restart[:, step, None]
                so_far = _sum_by(message, inside - message)[:, None]
                prediction = torch.where(fresh, chain.initial(step), prediction)
                # A beginning without probability leaves none to what follows a fresh start.
                gone = torch.isneginf(message).all(1, keepdim=True)
                prediction = torch.where(fresh & gone, -torch.inf, prediction)
                into = torch.where(fresh, so_far, into)
            message, inside = renormalise(prediction + chain.emission(step)), into
        ends = (chain.lengths == step + 1) & torch.isfinite(message).any(1)
        result = torch.where(ends, _sum_by(message, inside - message).double(), result)
    return result


def _entropy_into(
    message: Float[Tensor, "B K"], inside: Float[Tensor, "B K"], log_tile: Float[Tensor, "R K C"]
) -> tuple[Float[Tensor, "B C"], Float[Tensor, "B C"]]:
    """log sum_i p(i) p(j | i), and the entropy of the path up to i, given j."""
    joint = message[:, :, None] + log_tile
    total = torch.logsumexp(joint, 1)
    back = joint - finite(total)[:, None]  # log p(i | j)
    return total, _sum_by(back, inside[:, :, None] - back)


def _sum_by(log_probs: Tensor, values: Tensor) -> Tensor:
    """sum_i p_i value_i along dimension 1, where 0 times infinity is 0."""
    return torch.where(torch.isneginf(log_probs), 0.0, log_probs.exp() * values).sum(1)
