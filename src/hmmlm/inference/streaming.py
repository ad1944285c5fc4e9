"""A state that reads one token at a time, and what comes next."""

import os
from dataclasses import dataclass, replace
from typing import overload

import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hmmlm.errors import InputError, check_count, counted
from hmmlm.hmm import HMM
from hmmlm.inference.chain import Chain, entry_table, make_table, predict
from hmmlm.inference.dispatch import choose
from hmmlm.inference.evidence import log_prob, score_chain
from hmmlm.inference.gradients import without_gradient
from hmmlm.ops.links import TILE, Table, Tiles, Wide
from hmmlm.ops.messages import reference, scaled
from hmmlm.products import full_products
from hmmlm.results import Belief, FoundBelief
from hmmlm.storage import new_file
from hmmlm.transitions import Factored

SHARED = 50_000
"""Cells for each block, times texts, above which a product for each block is faster on a CPU than
one for each word."""


@dataclass(frozen=True)
class State:
    """Where a batch of texts stands: the belief over states after the tokens read so far.

    `log_evidence` sums log p(x_t | x_<t) of what was read, in float64. A state never changes:
    `advance` gives a new one, so keeping the old one is a fork.
    """

    hmm: HMM
    belief: Belief
    log_evidence: Float[Tensor, " B"]
    reset_id: int | None
    table: Table

    def select(self, rows: Int[Tensor, " N"] | list[int]) -> "State":
        """The state of some rows, which may repeat: forks, reorders or drops rows."""
        rows = torch.as_tensor(rows, device=self.hmm.device)
        return replace(self, belief=self.belief.select(rows), log_evidence=self.log_evidence[rows])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the state, without its HMM, as safetensors."""
        tensors = {"log_evidence": self.log_evidence, **self.belief._asdict()}
        meta = {"reset_id": "" if self.reset_id is None else str(self.reset_id)}
        with new_file(path) as temporary:
            save_file({k: v.contiguous() for k, v in tensors.items()}, temporary, metadata=meta)

    @staticmethod
    def load(path: str | os.PathLike[str], hmm: HMM) -> "State":
        """A state saved by `save`, for the same HMM."""
        try:
            with safe_open(path, framework="pt", device=str(hmm.device)) as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                reset_id = file.metadata()["reset_id"]
            log_probs = tensors["log_probs"].to(hmm.dtype)
            belief = Belief(tensors["states"], log_probs, tensors["fresh"])
            evidence = tensors["log_evidence"]
        except (SafetensorError, KeyError, TypeError) as error:
            raise InputError(
                f"{path} is not a saved state ({error}); save one with state.save."
            ) from error
        belief = belief.checked()
        hmm.local_sources(belief.states)
        reset = int(reset_id) if reset_id else None
        return State(hmm.detach(), belief, evidence, reset, make_table(hmm.detach()))


def start(hmm: HMM, batch: int = 1, *, reset_id: int | None = None) -> State:
    """The state before any token: the next state is drawn from p(z1)."""
    check_count("batch", batch)
    if reset_id is not None and not 0 <= reset_id < hmm.vocab_size:
        raise InputError(
            f"reset_id is {reset_id:,} but this vocabulary has ids 0 to {hmm.vocab_size - 1:,}."
        )
    belief = FoundBelief(
        torch.full((batch, 1), -1, device=hmm.device),
        hmm.log_init.detach().new_full((batch, 1), -torch.inf),
        torch.ones(batch, dtype=torch.bool, device=hmm.device),
    )
    evidence = torch.zeros(batch, dtype=torch.float64, device=hmm.device)
    return State(hmm.detach(), belief, evidence, reset_id, make_table(hmm.detach()))


@full_products()
def advance(
    state: State,
    token: Int[Tensor, " B"] | Int[Tensor, "B T"] | int,
    *,
    implementation: str = "auto",
) -> State:
    """The state after one more token per row, or several (B, T). O(K^2) per token."""
    tokens = torch.as_tensor(token, device=state.hmm.device)
    if tokens.ndim == 0:
        tokens = tokens.expand(state.belief.fresh.shape[0])
    tokens = tokens[:, None] if tokens.ndim == 1 else tokens
    rows = state.belief.fresh.shape[0]
    if tokens.shape[0] != rows:
        raise InputError(
            f"advance was given {counted(tokens.shape[0], 'token')} but the state has "
            f"{counted(rows, 'row')}; give one token for each row, or (rows, time)."
        )
    chain = Chain(
        state.hmm, tokens, belief=state.belief, reset_id=state.reset_id, table=state.table
    )
    name, _ = choose(implementation)
    with torch.no_grad():
        result = score_chain(chain, name)
    return replace(
        state, belief=result.belief, log_evidence=state.log_evidence + result.log_evidence
    )


@overload
def next_log_probs(state: State, /) -> Float[Tensor, "B V"]: ...
@overload
def next_log_probs(
    hmm: HMM,
    tokens: Int[Tensor, "B T"],
    /,
    *,
    lengths: Int[Tensor, " B"] | None = None,
    belief: Belief | None = None,
    reset_id: int | None = None,
    restart: Bool[Tensor, "B T"] | None = None,
    implementation: str = "auto",
) -> Float[Tensor, "B V"]: ...
def next_log_probs(
    state: State | HMM,
    tokens: Tensor | None = None,
    /,
    *,
    lengths: Tensor | None = None,
    belief: Belief | None = None,
    reset_id: int | None = None,
    restart: Tensor | None = None,
    implementation: str = "auto",
) -> Tensor:
    """log p(x_t+1 = w | x_1..t) for every word w: of a state, or of an HMM and the tokens it read.

    Words that cannot come next are -inf. O(B Z K) for the next states, O(B V K) for the words.
    """
    given = state if isinstance(state, HMM) else state.hmm
    if isinstance(state, HMM):
        if tokens is None:
            raise InputError("next_log_probs needs the tokens read so far, or a state from start.")
        hmm = state.detach()
        with torch.no_grad():
            read = log_prob(
                hmm,
                tokens,
                lengths=lengths,
                belief=belief,
                reset_id=reset_id,
                restart=restart,
                implementation=implementation,
            )
        state = State(hmm, read.belief, read.log_evidence, reset_id, make_table(hmm))
    with torch.no_grad():
        following = emission_log_probs(state.hmm, next_state_log_probs(state))
    return without_gradient(following, "next_log_probs(...)", given)


@full_products()
def next_state_log_probs(state: State) -> Float[Tensor, "B Z"]:
    """log p(z_t+1 | x_1..t) over the states of the HMM, in log space where digits would be lost."""
    hmm, belief = state.hmm, state.belief
    initial = hmm.log_init.expand(len(belief.fresh), -1)
    if belief.fresh.all():
        return initial
    sources = hmm.local_sources(belief.checked().states)
    message = torch.where(belief.fresh[:, None], -torch.inf, belief.log_probs.to(hmm.dtype))
    table = entry_table(hmm, state.table)
    if table.is_resident:
        following = _through_table(table, sources, message)
    elif len(sources) == 1 and isinstance(hmm.transitions, Factored):
        following = _from_one(hmm.transitions, sources[0], message[0])[None]
    elif sources.numel() < hmm.num_states:
        following = _from_some(hmm, sources, message)
    else:
        following = predict(Wide(table, sources), message)
    return torch.where(belief.fresh[:, None], initial, following)


def _through_table(
    table: Table, sources: Int[Tensor, "B K"], message: Float[Tensor, "B K"]
) -> Float[Tensor, "B Z"]:
    """log sum_k p(z_k) p(z' | z_k) for every z' by a table that is kept.

    Its rows are read where they are few, all of it for many texts. What would lose digits is
    redone in log space, cell by cell.
    """
    weights, names = message.exp(), sources.clamp(min=0)  # padding has no weight
    if sources.numel() < table.num_states:
        step = max(1, TILE // (sources.shape[1] * table.num_states))
        pairs = zip(weights.split(step), names.split(step), strict=True)
        probs = torch.cat([(some[:, None] @ table.probs[of])[:, 0] for some, of in pairs])
    else:
        probs, _ = scaled.push(Wide(table, sources), weights)
    low = (probs < scaled.lowest(probs.dtype)) & message.isfinite().any(1, keepdim=True)
    following = probs.log_()
    rows, states = low.nonzero(as_tuple=True)
    step = max(1, TILE // sources.shape[1])
    for row, state in zip(rows.split(step), states.split(step), strict=True):
        joint = message[row] + table.log_rows[names[row], state[:, None]]
        following[row, state] = torch.logsumexp(joint, 1)
    return following


def _from_some(
    hmm: HMM, sources: Int[Tensor, "B K"], message: Float[Tensor, "B K"]
) -> Float[Tensor, "B Z"]:
    """log sum_k p(z_k) p(z' | z_k) for every z' in log space, some of them at a time."""
    following = message.new_empty(len(sources), hmm.num_states)
    step = max(1, TILE // sources.numel())
    for start in range(0, hmm.num_states, step):
        stop = min(start + step, hmm.num_states)
        names = torch.arange(start, stop, device=hmm.device).expand(len(sources), -1)
        tile = hmm.transitions.stretch(sources, start, stop)
        following[:, start:stop] = reference.push(Tiles(tile, sources, names), message)[0]
    return following


def _from_one(
    table: Factored, sources: Int[Tensor, " K"], message: Float[Tensor, " K"]
) -> Float[Tensor, " Z"]:
    """log sum_k p(z_k) p(z' | z_k) for every z', which the sum runs along in memory."""
    left = table.left[sources.clamp(min=0)].T
    weights = message - table.log_norm[sources.clamp(min=0)]
    parts = table.right.split(max(1, TILE // len(sources)))
    joints = (table.with_zeros(torch.addmm(weights, part, left)) for part in parts)
    return torch.cat([torch.logsumexp(joint, 1) for joint in joints])


@full_products()
def emission_log_probs(hmm: HMM, log_states: Float[Tensor, "B Z"]) -> Float[Tensor, "B V"]:
    """log sum_z p(z) p(w | z) for every word w."""
    total = emission_probs(hmm, log_states.exp())
    poor = (total < scaled.lowest(total.dtype)) & log_states.isfinite().any(1, keepdim=True)
    out = total.log_()
    rows, words = poor.nonzero(as_tuple=True)
    for some in torch.arange(len(rows), device=rows.device).split(
        max(1, TILE // hmm.support.width)
    ):
        row, word = rows[some], words[some]
        states = hmm.support.states_of(word)
        joint = log_states[row[:, None], states.clamp(min=0)] + hmm.log_emit[word]
        out[row, word] = torch.logsumexp(joint, 1)
    return out


def emission_probs(
    hmm: HMM, probs: Float[Tensor, "B Z"], words: Int[Tensor, " N"] | None = None
) -> Float[Tensor, "B N"]:
    """sum_z p(z) p(w | z) for some words w, or for all of them. O(B N K)."""
    support = hmm.support
    if words is not None:
        emission = hmm.log_emit[words].exp()  # (N, K)
        if support.is_dense:
            return probs @ emission.T
        states = support.states_of(words).clamp(min=0)
        return torch.einsum("bnk,nk->bn", probs[:, states], emission)
    out = probs.new_empty(len(probs), support.vocab_size)
    is_blocks = probs.device.type == "cpu" and support.is_partition
    if is_blocks and len(probs) * hmm.log_emit.numel() > SHARED * len(support.rows):
        # Words of one row are one product: their states are not copied for each of them.
        for states, some in zip(support.rows, support.words_by_row, strict=True):
            these = probs[:, states.clamp(min=0)]
            for part in some.split(max(1, TILE // support.width)):
                out[:, part] = these @ hmm.log_emit[part].exp_().T
        return out
    # Rows of uneven blocks are mostly padding: a copy of all would have no bound.
    is_even = support.rows.numel() <= 4 * support.num_states
    rows = probs[:, support.rows.clamp(min=0)] if is_blocks and is_even else None  # (B, R, K)
    step = max(1, TILE // max(1, len(probs) * support.width))
    for part in torch.arange(support.vocab_size, device=hmm.device).split(step):
        if rows is None:
            out[:, part] = emission_probs(hmm, probs, part)
        else:
            these = rows[:, support.row_of_word[part]]
            out[:, part] = torch.linalg.vecdot(these, hmm.log_emit[part].exp())
    return out
