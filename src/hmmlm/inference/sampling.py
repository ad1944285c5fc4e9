"""Drawing text from the model."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.hmm import HMM
from hmmlm.inference.evidence import log_prob
from hmmlm.inference.paths import draw
from hmmlm.results import Belief, TextSamples


def sample(
    hmm: HMM,
    tokens: Int[Tensor, "B T"] | None = None,
    *,
    length: int,
    num_samples: int = 1,
    stop_id: int | None = None,
    generator: torch.Generator | None = None,
    lengths: Int[Tensor, " B"] | None = None,
    belief: Belief | None = None,
    reset_id: int | None = None,
    implementation: str = "auto",
) -> TextSamples:
    """Draws states and tokens: z_t ~ p(z | z_t-1), x_t ~ p(x | z_t), for `length` steps.

    With `tokens` (or a belief) the text goes on after them. Each row of them is drawn
    `num_samples` times, neighbours in the result. A row ends with `stop_id`, which counts; what
    follows is -1. O(Z + words per state) per token and row, after O(V K) once.
    """
    if length < 1 or num_samples < 1:
        raise InputError(
            f"length is {length:,} and num_samples {num_samples:,}; both must be at least 1."
        )
    for name, value in (("stop_id", stop_id), ("reset_id", reset_id)):
        if value is not None and not 0 <= value < hmm.vocab_size:
            raise InputError(
                f"{name} is {value:,} but this vocabulary has ids 0 to {hmm.vocab_size - 1:,}."
            )
    hmm = hmm.detach()
    with torch.no_grad():
        if tokens is not None:
            read = log_prob(
                hmm,
                tokens,
                lengths=lengths,
                belief=belief,
                reset_id=reset_id,
                implementation=implementation,
            )
            if torch.isneginf(read.log_evidence).any():
                row = int(torch.isneginf(read.log_evidence).nonzero()[0])
                raise InputError(
                    f"Row {row:,} of tokens has probability zero, so nothing can follow it."
                )
            belief = read.belief
        belief = None if belief is None else belief.checked().to(hmm.device)
        if belief is not None and (~belief.fresh & belief.log_probs.isneginf().all(1)).any():
            raise InputError(
                "A row of the belief has probability zero everywhere, so nothing can follow it."
            )
        return _sample(hmm, belief, length, num_samples, stop_id, reset_id, generator)


def _sample(
    hmm: HMM,
    belief: Belief | None,
    length: int,
    num_samples: int,
    stop_id: int | None,
    reset_id: int | None,
    generator: torch.Generator | None,
) -> TextSamples:
    rows = num_samples * (1 if belief is None else len(belief.fresh))
    source = torch.zeros(rows, dtype=torch.long, device=hmm.device)
    fresh = torch.ones(rows, dtype=torch.bool, device=hmm.device)
    if belief is not None:
        fresh = belief.fresh.repeat_interleave(num_samples)
        weights = torch.where(belief.fresh[:, None], 0.0, belief.log_probs)
        weights = weights.repeat_interleave(num_samples, 0)
        slot = draw(weights, generator)
        sources = hmm.local_sources(belief.states).repeat_interleave(num_samples, 0)
        source = sources.gather(1, slot[:, None])[:, 0].clamp(min=0)
    out = torch.full((rows, length), -1, device=hmm.device)
    paths = torch.full_like(out, -1)
    lengths = torch.full((rows,), length, device=hmm.device)
    running = torch.ones_like(fresh)
    for step in range(length):
        onward = hmm.transitions.rows_of(source)
        source = draw(torch.where(fresh[:, None], hmm.log_init, onward), generator)
        token = draw_words(hmm, source, generator)
        out[:, step] = torch.where(running, token, -1)
        paths[:, step] = torch.where(running, hmm.global_states(source), -1)
        fresh = token == reset_id if reset_id is not None else torch.zeros_like(fresh)
        if stop_id is not None:
            stopped = running & (token == stop_id)
            lengths = torch.where(stopped, step + 1, lengths)
            running = running & ~stopped
            if not running.any():
                break
    longest = int(lengths.max())
    return TextSamples(out[:, :longest], paths[:, :longest], lengths)


def draw_words(
    hmm: HMM,
    states: Int[Tensor, " B"],
    generator: torch.Generator | None,
    *,
    log_weights: Float[Tensor, "N V"] | None = None,
    weights_of: Int[Tensor, " B"] | None = None,
) -> Int[Tensor, " B"]:
    """x ~ p(x | z) for each row's state, or x ~ p(x | z) weight(x) by the row `weights_of` says."""
    if hmm.support.is_dense:
        log_probs = hmm.log_emit[:, states].T
        if log_weights is not None:
            log_probs = log_probs + log_weights[weights_of]
        return draw(log_probs, generator)
    cells = hmm.support.state_words
    sizes = cells.offsets[states + 1] - cells.offsets[states]
    place = torch.arange(int(sizes.max()), device=hmm.device)
    inside = place < sizes[:, None]
    cell = torch.where(inside, cells.offsets[states][:, None] + place, 0)
    log_probs = hmm.log_emit[cells.words[cell], cells.slots[cell]]
    if log_weights is not None and weights_of is not None:
        log_probs = log_probs + log_weights[weights_of[:, None], cells.words[cell]]
    chosen = draw(torch.where(inside, log_probs, -torch.inf), generator)
    return cells.words[cell.gather(1, chosen[:, None])[:, 0]]
