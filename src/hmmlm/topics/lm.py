"""An HMM with topics as a language model."""

import math
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hmmlm.errors import InputError, counted
from hmmlm.evaluate import HmmLM
from hmmlm.inference import log_prob
from hmmlm.inference.chain import check_tokens
from hmmlm.lm import Scores
from hmmlm.topics.forward import TopicBelief, Weights, forward, is_steep, weights
from hmmlm.topics.value import TopicHMM

STRETCH = 64
"""Tokens after which a row is cut where the next sentence begins, at least."""


class TopicCarry(NamedTuple):
    """What a topic model has read: the belief over states in each topic, and p(topic | text)."""

    belief: TopicBelief
    log_topics: Float[Tensor, "B G"]


class TopicLM:
    """A `TopicHMM` as a language model; `eos_id` ends a sentence, and the topic moves.

    A text is read in all topics at once, O(T K^2 (H + G)) time, and sentences of a row side by
    side, for the states of one know nothing of those before. Rows that lose digits so are read
    again, by the HMM of one topic after the other, and all rows if tilts are of hundreds of nats.
    """

    def __init__(self, topics: TopicHMM, eos_id: int) -> None:
        self.topics, self.eos_id = topics, eos_id

    @property
    def vocab_size(self) -> int:
        return self.topics.hmm.vocab_size

    @cached_property
    def weights(self) -> Weights:
        return weights(self.topics)

    @cached_property
    def is_steep(self) -> bool:
        return is_steep(self.topics)

    @property
    def precision(self) -> str:
        return str(self.topics.hmm.dtype).removeprefix("torch.")

    @torch.no_grad()
    def score_tokens(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        lengths: Int[Tensor, " B"] | None = None,
        carry: TopicCarry | None = None,
        reset_id: int | None = None,
        ends: bool = False,
    ) -> Scores:
        """log p(x_t | x_<t) of each token. With `reset_id` topics begin anew after it, too."""
        if reset_id not in (None, self.eos_id):
            raise InputError(
                f"reset_id is {reset_id:,} but sentences of this model end with {self.eos_id:,}; "
                f"give that, or none."
            )
        device = self.topics.hmm.device
        lengths = None if lengths is None else lengths.to(device)
        tokens, sizes = check_tokens(self.vocab_size, tokens.to(device), lengths)
        if carry is not None and len(carry.log_topics) != len(tokens):
            raise InputError(
                f"The carry is of {counted(len(carry.log_topics), 'row')} but tokens has "
                f"{counted(len(tokens), 'row')}; give each row its own."
            )
        inside = torch.arange(tokens.shape[1], device=device) < sizes[:, None]
        if bool(((tokens < 0) & inside).any()):
            raise InputError(
                "tokens has a missing one (-1), which a model with topics does not read; ask the "
                "HMM of a topic, TopicHMM.part(topic)."
            )
        tokens = tokens.masked_fill(~inside, 0)
        is_end = (tokens == self.eos_id) & inside
        pieces = cut_rows(is_end, sizes)
        begin = None if carry is None else pieces.begin(carry.belief)
        known, belief = self._read(pieces.of(tokens), pieces.sizes, begin)
        start, moves = self.topics.log_start, self.topics.log_moves
        first = start.expand(len(tokens), -1) if carry is None else carry.log_topics
        scores, last = mix_topics(
            pieces.join(known),
            is_end,
            first,
            moves if reset_id is None else start,
        )
        return Scores(
            scores.masked_fill(~inside, 0.0).to(self.topics.hmm.dtype),
            None if ends else TopicCarry(belief.select(pieces.lasts), last),
        )

    def _read(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], begin: TopicBelief | None
    ) -> tuple[Float[Tensor, "B T G"], TopicBelief]:
        """log p of every token in each topic, and the belief at the end of each row."""
        if self.is_steep:
            return self._read_apart(tokens, lengths, begin)
        known, belief, is_low = forward(
            self.topics, self.weights, tokens, lengths, self.eos_id, begin
        )
        low = is_low.nonzero()[:, 0]
        if len(low):
            start = None if begin is None else begin.select(low)
            again, last = self._read_apart(tokens[low], lengths[low], start)
            known[low] = again
            belief.log_probs[low] = last.log_probs
        return known, belief

    def _read_apart(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], begin: TopicBelief | None
    ) -> tuple[Float[Tensor, "B T G"], TopicBelief]:
        """The same by the HMM of each topic."""
        found = [
            log_prob(
                hmm,
                tokens,
                lengths=lengths,
                belief=None if begin is None else begin.of(topic),
                reset_id=self.eos_id,
            )
            for topic, hmm in enumerate(self.topics.parts())
        ]
        known = torch.stack([each.token_log_probs for each in found], 2).double()
        log_probs = torch.stack([each.belief.log_probs for each in found], 2).double()
        states, _, fresh = found[0].belief
        return known, TopicBelief(states, log_probs, fresh)

    @torch.no_grad()
    def row_error(self, rows: int, seed: int) -> float:
        """Largest |sum - 1| of the HMM's tables, of the topics' own, and, in every topic, of p(z1)
        and of the transitions and emissions of `rows` random states, in float64."""
        topics, hmm = self.topics, self.topics.hmm
        tables = torch.cat([topics.log_start[None], topics.log_moves]).double().exp()
        found = [float((tables.sum(1) - 1).abs().max()), HmmLM(hmm).row_error(rows, seed)]
        if self.is_steep:
            each = max(1, rows // topics.num_topics)
            found += [HmmLM(part).row_error(each, seed) for part in topics.parts()]
        else:
            generator = torch.Generator().manual_seed(seed)
            some = torch.randperm(hmm.num_states, generator=generator)[:rows]
            found.append(float((self._sums(some.to(hmm.device)) - 1).abs().max()))
        return max(found, key=lambda error: error if error == error else math.inf)

    def _sums(self, states: Int[Tensor, " R"]) -> Float[Tensor, " N"]:
        """What p(z1) and rows of these states sum to in each topic, by what texts are read with."""
        hmm, by, cells = self.topics.hmm, self.weights, self.topics.hmm.support.state_words
        tilts = self.topics.state_tilts.double().T.exp()  # (Z, G)
        row = torch.full((hmm.num_states,), -1, device=hmm.device)
        row[states] = torch.arange(len(states), device=hmm.device)
        here = (row[cells.states] >= 0).nonzero()[:, 0]
        words = cells.words[here]
        probs = hmm.log_emit[words, cells.slots[here]].double().exp()
        emits = by.said.new_zeros(len(states), len(by.begin))
        emits.index_add_(0, row[cells.states[here]], probs[:, None] * by.said[words])
        moves = hmm.transitions.rows_of(states).double().exp() @ tilts
        first = hmm.log_init.double().exp() @ tilts * by.begin
        emits = emits * by.into[states] / tilts[states]
        return torch.cat([first, emits.flatten(), (moves * by.out[states]).flatten()])


class Pieces(NamedTuple):
    """B rows of T tokens, cut into N pieces, each of some whole sentences.

    `places` are those of a piece's tokens among all B T of them, `rows` says which row it is of;
    `lasts` is the last piece of each row.
    """

    shape: tuple[int, int]
    rows: Int[Tensor, " N"]
    places: Int[Tensor, "N L"]
    sizes: Int[Tensor, " N"]
    is_first: Bool[Tensor, " N"]
    lasts: Int[Tensor, " B"]

    def of(self, tokens: Int[Tensor, "B T"]) -> Int[Tensor, "N L"]:
        return tokens.flatten()[self.places]

    def begin(self, belief: TopicBelief) -> TopicBelief:
        """What the first piece of each row goes on from; the others begin afresh."""
        each = belief.select(self.rows)
        return each._replace(fresh=each.fresh | ~self.is_first)

    def join(self, found: Float[Tensor, "N L G"]) -> Float[Tensor, "B T G"]:
        """What was found of the tokens of all pieces, as rows; 0 behind their ends."""
        here = torch.arange(found.shape[1], device=found.device) < self.sizes[:, None]
        # Behind its end a piece's places are those of others: all of these go to one place more.
        batch, steps = self.shape
        places = torch.where(here, self.places, batch * steps).flatten()
        joined = found.new_zeros(batch * steps + 1, found.shape[2])
        joined.index_copy_(0, places, found.flatten(0, 1))
        return joined[:-1].view(batch, steps, -1)


def cut_rows(is_end: Bool[Tensor, "B T"], sizes: Int[Tensor, " B"]) -> Pieces:
    """Pieces of rows that are not much longer than the longest sentence, or `STRETCH`."""
    batch, steps = is_end.shape
    begins = torch.ones(batch, steps + 1, dtype=torch.bool, device=is_end.device)
    begins[:, 1:] = is_end
    begins[:, 1:] &= torch.arange(1, steps + 1, device=is_end.device) < sizes[:, None]
    rows, starts = begins.nonzero(as_tuple=True)

    def until(rows: Tensor, starts: Tensor) -> Tensor:
        """How many tokens lie before the next start, or the end of the row."""
        stops = sizes[rows]
        stops[:-1] = torch.where(rows[1:] == rows[:-1], starts[1:], stops[:-1])
        return stops - starts

    stretch = starts // max(STRETCH, int(until(rows, starts).max()))
    is_kept = torch.ones_like(rows, dtype=torch.bool)
    is_kept[1:] = (rows[1:] != rows[:-1]) | (stretch[1:] != stretch[:-1])
    rows, starts = rows[is_kept], starts[is_kept]
    lengths = until(rows, starts)
    places = torch.arange(int(lengths.max()), device=is_end.device)
    places = ((rows * steps + starts)[:, None] + places).clamp(max=batch * steps - 1)
    lasts = torch.bincount(rows).cumsum(0) - 1
    return Pieces((batch, steps), rows, places, lengths, starts == 0, lasts)


@torch.no_grad()
def line_topics(topics: TopicHMM, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B G"]:
    """log p(topic | line) of lines that stand alone, or of their beginnings; -inf if impossible."""
    tokens = tokens.to(topics.hmm.device)
    if not tokens.shape[1]:
        return topics.log_start.expand(len(tokens), -1)
    known = [log_prob(hmm, tokens).log_evidence for hmm in topics.parts()]
    return _normalised(topics.log_start + torch.stack(known, 1).double())


def mix_topics(
    log_probs: Float[Tensor, "B T G"],
    is_end: Bool[Tensor, "B T"],
    log_topics: Float[Tensor, "B G"],
    log_moves: Float[Tensor, "G G"] | Float[Tensor, " G"],
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B G"]]:
    """log p(x_t | x_<t) from that of every topic, and p(topic) of what comes after the last token.

    `is_end` marks the last tokens of sentences, after which topics move by `log_moves`, or begin
    anew where that is one distribution. O(B T G) time, and O(G^2) for each sentence.
    """
    batch, steps, number = log_probs.shape
    sentence = is_end.long().cumsum(1) - is_end.long()  # of each token, counted in its row
    count = int(sentence.max()) + 1 if steps else 0
    place = sentence[:, :, None].expand_as(log_probs)
    # What is impossible in a topic is counted and not added: -inf less -inf would be NaN.
    never = log_probs.isneginf()
    sums = log_probs.masked_fill(never, 0.0).cumsum(1)
    misses = never.long().cumsum(1)
    is_first = torch.ones_like(is_end)
    is_first[:, 1:] = is_end[:, :-1]
    begin = torch.where(is_first, torch.arange(steps, device=is_end.device), 0).cummax(1).values
    begin = begin[:, :, None].expand_as(log_probs)

    def since(totals: Tensor) -> Tensor:
        """What was added up since the first token of the sentence."""
        shifted = torch.cat([torch.zeros_like(totals[:, :1]), totals[:, :-1]], 1)
        return totals - shifted.gather(1, begin)

    within = since(sums).masked_fill(since(misses) > 0, -torch.inf)  # (B, T, G)
    whole = log_probs.new_zeros(batch, count, number).scatter_add(1, place, log_probs)
    over = torch.zeros(batch, count, dtype=torch.long, device=is_end.device)
    over = over.scatter_add(1, sentence, is_end.long()) > 0
    before, now = [], log_topics.to(log_probs.dtype)
    for each in range(count):
        before.append(now)
        read = _normalised(now + whole[:, each])
        if log_moves.ndim == 1:
            moved = log_moves.to(read.dtype).expand_as(read)
        else:
            moved = torch.logsumexp(read[:, :, None] + log_moves.to(read.dtype), 1)
        now = torch.where(over[:, each, None], moved, read)
    if not before:
        return log_probs.new_zeros(batch, 0), now
    weights = torch.stack(before, 1).gather(1, place)
    totals = torch.logsumexp(weights + within, 2)  # log p(the sentence so far | those before it)
    earlier = torch.cat([torch.zeros_like(totals[:, :1]), totals[:, :-1]], 1)
    earlier = earlier.masked_fill(is_first, 0.0)
    return totals - earlier.masked_fill(totals.isneginf(), 0.0), now


def _normalised(log_weights: Float[Tensor, "B G"]) -> Float[Tensor, "B G"]:
    """Distributions; -inf throughout after what the model cannot produce."""
    total = torch.logsumexp(log_weights, 1, keepdim=True)
    return torch.where(total.isneginf(), log_weights, log_weights - total)
