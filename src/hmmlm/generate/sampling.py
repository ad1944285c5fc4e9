"""Texts drawn from an HMM among those that meet a constraint."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.generate.lookahead import Lookahead
from hmmlm.inference.paths import draw
from hmmlm.inference.streaming import State, advance, next_state_log_probs


class MetSamples(NamedTuple):
    """Draws from p(text | met), `<eos>` last, -1 past the end; and log p(met) before the first."""

    tokens: Int[Tensor, "N T"]
    lengths: Int[Tensor, " N"]
    log_probs: Float[Tensor, " N"]
    log_met: float


@torch.no_grad()
def sample_met(
    look: Lookahead,
    state: State,
    *,
    num_samples: int = 1,
    generator: torch.Generator | None = None,
) -> MetSamples:
    """Texts that go on after one row of a state, each of which meets the constraint.

    Exact: a token is drawn from p(token | text so far, met). `log_probs` are log p(text | met).
    O(V K + Z^2) per token and row.
    """
    if num_samples < 1:
        raise InputError(f"num_samples is {num_samples:,} but must be at least 1.")
    if len(state.belief.fresh) != 1:
        raise InputError(f"The state has {len(state.belief.fresh):,} rows; give one with one.")
    device, automaton = look.hmm.device, look.automaton
    places = torch.zeros(num_samples, dtype=torch.long, device=device)
    log_met = float(look.log_met(next_state_log_probs(state), places[:1], look.budget))
    if log_met == -torch.inf:
        raise InputError(
            "This model gives every text that meets the constraint probability zero; ask for "
            "something else, or train it on text that has what is asked for."
        )
    state = state.select([0] * num_samples)
    after = torch.from_numpy(automaton.next).to(device)
    column = torch.from_numpy(automaton.column).to(device)
    out = torch.full((num_samples, look.budget), -1, device=device)
    lengths = torch.full((num_samples,), look.budget, device=device)
    log_probs = torch.zeros(num_samples, dtype=torch.float64, device=device)
    rows = torch.arange(num_samples, device=device)  # those that go on
    for step in range(look.budget):
        left = look.budget - step
        joint = look.next_log_met(next_state_log_probs(state), places, left)
        token = draw(joint, generator)
        chosen = joint.gather(1, token[:, None])[:, 0]
        log_probs[rows] += chosen - torch.logsumexp(joint, 1)
        out[rows, step] = token
        goes_on = token != look.eos_id
        lengths[rows] = torch.where(goes_on, lengths[rows], step + 1)
        kept = goes_on.nonzero()[:, 0]
        if not len(kept) or left == 1:
            break
        rows, token, places = rows[kept], token[kept], places[kept]
        state = advance(state.select(kept), token)
        places = after[places, column[token]]
    longest = int(lengths.max())
    return MetSamples(out[:, :longest], lengths, log_probs, log_met)
