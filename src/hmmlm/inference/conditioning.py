"""What stands in the gaps of a text, given the rest of it.

A gap is a missing token (-1) or one that stands for soft evidence: id V + n for row n of
`log_weights` (N, V), the logarithms of weights of words. Where a token resets the chain
(`reset_id`), no gap stands for that token, for what follows would then begin afresh.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hmmlm.errors import InputError, check_count, counted
from hmmlm.hmm import HMM
from hmmlm.inference.chain import MISSING, check_tokens
from hmmlm.inference.evidence import log_prob
from hmmlm.inference.paths import sample_paths
from hmmlm.inference.sampling import draw_words
from hmmlm.inference.smoothing import smooth
from hmmlm.inference.soft import check_weights, soften
from hmmlm.inference.streaming import emission_log_probs
from hmmlm.ops.links import TILE, finite
from hmmlm.results import Belief, Fills, WordProbs


class Pattern(NamedTuple):
    """A text with gaps, as the HMM that knows their evidence reads it."""

    hmm: HMM
    softened: HMM
    tokens: Int[Tensor, "B T"]  # V + n where there is evidence, else -1 in a gap
    lengths: Int[Tensor, " B"]
    gaps: Bool[Tensor, "B T"]
    log_weights: Float[Tensor, "N+1 V"]  # the last row is that of a missing token, all 0
    weights_of: Int[Tensor, "B T"]  # the row of weights of a gap; 0 elsewhere

    def log_weight(self, words: Int[Tensor, "B T"]) -> Float[Tensor, " B"]:
        """The sum of the log weights of the words that stand in gaps."""
        here = self.gaps & (words >= 0) & (words < self.hmm.vocab_size)
        weights = self.log_weights[self.weights_of, torch.where(here, words, 0)]
        return torch.where(here, weights, 0.0).double().sum(1)


def word_log_probs(
    hmm: HMM,
    tokens: Int[Tensor, "B T"],
    *,
    log_weights: Float[Tensor, "N V"] | None = None,
    lengths: Int[Tensor, " B"] | None = None,
    belief: Belief | None = None,
    reset_id: int | None = None,
    restart: Bool[Tensor, "B T"] | None = None,
    implementation: str = "auto",
) -> WordProbs:
    """log p(x_t = w | everything else) for every word w, at every gap of a text.

    Other gaps are summed over. Smoothing, and O(N V K) for N gaps.
    """
    text = read_pattern(hmm, tokens, log_weights, lengths, reset_id)
    how = {"lengths": text.lengths, "belief": belief, "reset_id": reset_id, "restart": restart}
    with torch.no_grad():
        found = smooth(text.softened, text.tokens, implementation=implementation, **how)
        wide = not text.hmm.support.is_dense
        states = found.missing_log_probs if wide else found.log_probs[text.gaps]  # (N, Z)
        which = text.weights_of[text.gaps]  # (N,)
        # Without the evidence of the position itself; a state that it excludes emits no such word.
        states = torch.where(torch.isneginf(states), -torch.inf, states - _evidence_at(text)[which])
        words = text.log_weights[which]
        if len(states):
            most = finite(states.amax(1, keepdim=True))
            words = words + most + emission_log_probs(text.hmm, states - most)
    return WordProbs(words, text.gaps, found.log_evidence)


def _evidence_at(text: Pattern) -> Float[Tensor, "N+1 Z"]:
    """What each row of weights says of the states; nothing (0) where a token is just missing."""
    size = len(text.log_weights) - 1
    rows = text.softened.log_soft
    nothing = text.hmm.log_init.new_zeros(1, text.hmm.num_states)
    return nothing if size == 0 or rows is None else torch.cat([rows, nothing])


def fill_log_prob(
    hmm: HMM,
    tokens: Int[Tensor, "B T"],
    filled: Int[Tensor, "B T"],
    *,
    log_weights: Float[Tensor, "N V"] | None = None,
    lengths: Int[Tensor, " B"] | None = None,
    belief: Belief | None = None,
    reset_id: int | None = None,
    restart: Bool[Tensor, "B T"] | None = None,
    implementation: str = "auto",
) -> Float[Tensor, " B"]:
    """log p(gaps = these words | the rest): evidence of the filled text over that of the text.

    `filled` is the text with words in its gaps, or in some of them: those that it leaves as they
    are are summed over. Rows of probability zero give -inf. Scoring, twice.
    """
    text = read_pattern(hmm, tokens, log_weights, lengths, reset_id)
    filled = torch.as_tensor(filled).to(text.hmm.device)
    if filled.shape != text.tokens.shape or filled.is_floating_point():
        raise InputError(
            f"filled is {filled.dtype} of shape {tuple(filled.shape)} but must be ids of shape "
            f"{tuple(text.tokens.shape)}, as tokens is."
        )
    given = torch.as_tensor(tokens).to(filled)
    active = torch.arange(filled.shape[1], device=filled.device) < text.lengths[:, None]
    other = active & (filled != given) & ~(text.gaps & (filled >= 0) & (filled < hmm.vocab_size))
    if other.any():
        row, step = other.nonzero()[0].tolist()
        raise InputError(
            f"filled has {int(filled[row, step]):,} at ({row:,}, {step:,}) where tokens has "
            f"{int(given[row, step]):,}; fill gaps with words and leave everything else as it is."
        )
    # What is left open goes by the number that its evidence has here.
    filled = torch.where(active & (filled != given), filled, text.tokens)
    how = {"belief": belief, "restart": restart, "implementation": implementation}
    return _fill_log_prob(text, filled, reset_id, **how)


def _fill_log_prob(
    text: Pattern,
    filled: Int[Tensor, "B T"],
    reset_id: int | None,
    evidence: Float[Tensor, " B"] | None = None,
    **how: Any,
) -> Float[Tensor, " B"]:
    how = {"lengths": text.lengths, "reset_id": reset_id, **how}
    with torch.no_grad():
        if evidence is None:
            evidence = log_prob(text.softened, text.tokens, **how).log_evidence
        whole = log_prob(text.softened, filled, **how).log_evidence + text.log_weight(filled)
    # A row without probability has no gaps to ask for: -inf - -inf would be NaN.
    return torch.where(torch.isneginf(evidence), -torch.inf, whole - evidence)


def sample_fills(
    hmm: HMM,
    tokens: Int[Tensor, "B T"],
    *,
    log_weights: Float[Tensor, "N V"] | None = None,
    num_samples: int = 1,
    generator: torch.Generator | None = None,
    lengths: Int[Tensor, " B"] | None = None,
    belief: Belief | None = None,
    reset_id: int | None = None,
    restart: Bool[Tensor, "B T"] | None = None,
    implementation: str = "auto",
) -> Fills:
    """Draws from p(words of all gaps, states | the rest), N per row, and log p(words | the rest).

    Exact: paths from their posterior, then words from their states. Rows of probability zero give
    -1 in gaps and -inf. The cost of `sample_paths`, and of scoring B N texts.
    """
    check_count("num_samples", num_samples)
    text = read_pattern(hmm, tokens, log_weights, lengths, reset_id)
    how = {"lengths": text.lengths, "reset_id": reset_id, "implementation": implementation}
    drawn = sample_paths(
        text.softened,
        text.tokens,
        num_samples=num_samples,
        generator=generator,
        belief=belief,
        restart=restart,
        **how,
    ).states  # (B, N, T)
    batch, steps = text.tokens.shape
    again = torch.arange(batch, device=text.hmm.device).repeat_interleave(num_samples)
    many = text._replace(
        tokens=text.tokens[again],
        lengths=text.lengths[again],
        gaps=text.gaps[again],
        weights_of=text.weights_of[again],
    )
    paths = drawn.view(-1, steps)
    with torch.no_grad():
        evidence = log_prob(
            text.softened, text.tokens, belief=belief, restart=restart, **how
        ).log_evidence
        words = torch.where(many.gaps, _draw_in_gaps(many, paths, generator), many.tokens)
        log_probs = _fill_log_prob(
            many,
            words,
            reset_id,
            evidence[again],
            belief=None if belief is None else belief.to(hmm.device).select(again),
            restart=None if restart is None else restart.to(again.device)[again],
            implementation=implementation,
        )
    words = words.masked_fill(many.gaps & torch.isneginf(evidence)[again, None], MISSING)
    words[_past_end(many)] = MISSING
    return Fills(
        words.view(batch, num_samples, steps),
        drawn,
        log_probs.view(batch, num_samples),
        many.lengths.view(batch, num_samples),
    )


def _draw_in_gaps(
    text: Pattern, paths: Int[Tensor, "B T"], generator: torch.Generator | None
) -> Int[Tensor, "B T"]:
    """A word for every gap, given its state; what stands elsewhere means nothing."""
    words = torch.zeros_like(paths)
    states, rows = paths[text.gaps], text.weights_of[text.gaps]
    if not len(states):
        return words
    # The rows of a transition table begin with the states. An impossible row has none: -1.
    states = text.hmm.local_sources(states).clamp(min=0)
    size = max(1, TILE // text.hmm.vocab_size)
    parts = [
        draw_words(
            text.hmm, some, generator, log_weights=text.log_weights, weights_of=rows[start:][:size]
        )
        for start, some in zip(range(0, len(states), size), states.split(size), strict=True)
    ]
    words[text.gaps] = torch.cat(parts)
    return words


def _past_end(text: Pattern) -> Bool[Tensor, "B T"]:
    steps = torch.arange(text.tokens.shape[1], device=text.tokens.device)
    return steps >= text.lengths[:, None]


def read_pattern(
    hmm: HMM, tokens: Any, log_weights: Any, lengths: Any, reset_id: int | None
) -> Pattern:
    """A text with gaps, checked."""
    if hmm.num_soft:
        raise InputError(
            f"This HMM has {counted(hmm.num_soft, 'piece')} of soft evidence already; give the one "
            f"without them, and log_weights."
        )
    hmm = hmm.detach()
    if log_weights is None:
        log_weights = hmm.log_init.new_empty(0, hmm.vocab_size)
    log_weights = check_weights(hmm, log_weights)
    size = len(log_weights)
    tokens, lengths = check_tokens(hmm.vocab_size, tokens, lengths, reset_id, num_soft=size)
    tokens, lengths = tokens.to(hmm.device), lengths.to(hmm.device)
    active = torch.arange(tokens.shape[1], device=hmm.device) < lengths[:, None]
    tokens = torch.where(active, tokens, 0)
    gaps = (tokens < 0) | (tokens >= hmm.vocab_size)
    if reset_id is not None:
        if not bool(torch.isneginf(log_weights[:, reset_id]).all()):
            row = int(torch.isfinite(log_weights[:, reset_id]).nonzero()[0])
            raise InputError(
                f"Row {row:,} of log_weights allows word {reset_id:,}, which is reset_id: what "
                f"follows such a word begins afresh, so no gap may stand for it; make it -inf."
            )
        if bool((tokens == MISSING).any()):
            other = log_weights.new_zeros(1, hmm.vocab_size)
            other[:, reset_id] = -torch.inf
            log_weights = torch.cat([log_weights, other])
            tokens = torch.where(tokens == MISSING, hmm.vocab_size + size, tokens)
            size += 1
    softened = soften(hmm, log_weights) if size else hmm
    which = torch.where(tokens == MISSING, size, tokens - hmm.vocab_size)
    return Pattern(
        hmm,
        softened,
        tokens,
        lengths,
        gaps,
        torch.cat([log_weights, log_weights.new_zeros(1, hmm.vocab_size)]),
        torch.where(gaps, which, 0),
    )
