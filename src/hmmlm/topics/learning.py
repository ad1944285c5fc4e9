"""Topics of an HMM that was trained before, learnt from lines that follow each other."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from hmmlm.data.batches import stretch_rows
from hmmlm.data.token_array import TokenArray
from hmmlm.errors import InputError, check_count, rounded
from hmmlm.hmm import HMM
from hmmlm.inference import smooth
from hmmlm.products import full_products
from hmmlm.topics.value import TopicHMM, check_base, emission_parts, sum_by_state
from hmmlm.train.memory import free_memory

RUN = 1024
"""Tokens of a run of lines, about, within which topics are followed."""

LINES = 64
"""Lines of a run at most."""

RUNS = 16
"""Runs of a step."""

CELLS = 1 << 23
"""Numbers of states and places, padding included, that are found at a time."""

SHARE = 0.25
"""Of the free memory, what the states of all words may take."""

STAYS = 0.9
"""p(the next line has the same topic) at the start."""

SPREAD = 0.2
"""Standard deviation of the tilts of words at the start."""

MOVES_RATE = 2.5
"""How many times faster than the tilts the moves between topics learn."""


@dataclass(frozen=True)
class TopicSettings:
    """How topics are learnt: Adam's rate falls to a tenth of its height.

    `penalty` are the nats that a tilt of 1, squared, costs: tilts have a normal prior of variance
    1 / (2 penalty). An epoch is a pass over the text.
    """

    topics: int = 64
    epochs: int = 10
    penalty: float = 0.5
    learning_rate: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("topics", self.topics)
        check_count("epochs", self.epochs)
        if not 0 <= self.seed < 1 << 63:
            raise InputError(f"seed is {self.seed:,} but must lie between 0 and 2^63 - 1.")
        for name, value in (("penalty", self.penalty), ("learning_rate", self.learning_rate)):
            if not 0 < value < math.inf:
                raise InputError(f"{name} is {value} but must be over 0 and finite.")


class Lines(NamedTuple):
    """Some runs of lines: their N words, the lines that these are in, and their states.

    `states` says how often each of the S lines has each state, `lasts` how often at its end;
    `place` is where each line stands among R runs of up to L lines, of `shape` (R, L).
    """

    words: Int[Tensor, " N"]
    line_of_word: Int[Tensor, " N"]
    states: Float[Tensor, "S Z"]
    lasts: Float[Tensor, "S Z"]
    place: Int[Tensor, " S"]
    shape: tuple[int, int]


class LearntTopics(NamedTuple):
    """An HMM with topics, and how often each had each word in the last epoch, in expectation."""

    topics: TopicHMM
    word_counts: Float[Tensor, "G V"]


def learn_topics(
    hmm: HMM,
    tokens: TokenArray,
    settings: TopicSettings | None = None,
    *,
    progress: Callable[[int, float], None] | None = None,
) -> LearntTopics:
    """Topics for an HMM, from lines that follow each other.

    With the posterior q of the states as the HMM has it, log p(line | topic) is at least

        log p(line) + E_q[sum_t word_tilts(x_t) - log N'(z_t) + state_tilts(z_t) - log N(z_t)],

    where p(z1) has its own N. This bound, summed over the topics of consecutive lines by the
    forward recursion, and a normal prior of the tilts are what Adam climbs; `hmm` stays as it is.
    O(T K^2 + G (V K + Z^2)) for each step of T tokens, some 16,000; memory O(Z^2 + S (Z + G^2)) for
    its S lines, O(V Z) where words share only some of their states, and two bytes for each token
    and state that may emit it, as far as there is room.
    `progress(tokens, gain)` hears how many more were read, and the bound's gain on them in nats
    per token.
    """
    how = settings or TopicSettings()
    hmm = hmm.detach()
    check_base(hmm)
    _check_room(hmm, how.topics)
    if not len(tokens):
        raise InputError("There are no tokens to learn topics from; give some text.")
    generator = torch.Generator().manual_seed(how.seed)
    learner = _Learner(hmm, how, generator)
    reader = _Reader(hmm, tokens)
    steps = how.epochs * -(-len(reader.runs) // RUNS)
    done = 0
    for _ in range(how.epochs):
        learner.word_counts.zero_()
        for some in torch.randperm(len(reader.runs), generator=generator).split(RUNS):
            lines = reader.read(some.tolist())
            gain = learner.step(lines, len(tokens), done / steps)
            done += 1
            if progress is not None:
                progress(len(lines.words), gain)
    return learner.found()


class _Learner:
    """The tilts and moves as they are learnt, and the tables that the HMM has for it."""

    def __init__(self, hmm: HMM, how: TopicSettings, generator: torch.Generator) -> None:
        number = how.topics
        self.hmm, self.how = hmm, how
        self.rows = hmm.transitions.rows(0, hmm.num_states).exp()  # (Z, Z)
        self.first = hmm.log_init.exp()
        self.emissions = list(emission_parts(hmm, hmm.dtype))
        words = SPREAD * torch.randn(number, hmm.vocab_size, generator=generator)
        self.word_tilts = words.to(self.rows)
        self.state_tilts = self._mean_tilts()
        self.word_counts = torch.zeros_like(self.word_tilts)
        stays = torch.full((number, number), (1 - STAYS) / max(1, number - 1))
        stays.fill_diagonal_(STAYS)
        self.start, self.moves = self.rows.new_zeros(number), stays.log().to(self.rows)
        rate = how.learning_rate
        tilts, moves = (self.word_tilts, self.state_tilts), (self.start, self.moves)
        for part in (*tilts, *moves):
            part.requires_grad_()
        self.optimiser = torch.optim.Adam(
            [{"params": tilts, "top": rate}, {"params": moves, "top": MOVES_RATE * rate}]
        )

    def _mean_tilts(self) -> Float[Tensor, "G Z"]:
        """Tilts of states that are the mean tilts of their words."""
        return sum_by_state(self.emissions, self.word_tilts.T, self.hmm.num_states).T.contiguous()

    @full_products()
    def step(self, lines: Lines, total: int, done: float) -> float:
        """One step up the bound; its gain in nats per token, without the prior."""
        for group in self.optimiser.param_groups:
            group["lr"] = group["top"] * (1 - 0.9 * done)
        gains = self._gains(lines)
        gains.retain_grad()  # of the bound, their gradient is p(topic) of each line
        bound = follow(gains, self.start, self.moves).sum()
        gain = bound / len(lines.words)
        prior = self.word_tilts.square().sum() + self.state_tilts.square().sum()
        loss = self.how.penalty / total * prior - gain
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        assert gains.grad is not None
        probs = -len(lines.words) * gains.grad.flatten(0, 1)[lines.place]  # (S, G)
        self.word_counts.index_add_(1, lines.words, probs[lines.line_of_word].T)
        return float(gain.detach())

    def _gains(self, lines: Lines) -> Float[Tensor, "R L G"]:
        """What each line gains by each topic, at least."""
        number = self.hmm.num_states
        # Tilts are of some nats: no largest one has to be taken out.
        words = sum_by_state(self.emissions, self.word_tilts.exp().T, number).log()
        tilts = self.state_tilts.exp().T  # (Z, G)
        norms = (self.rows @ tilts).log()
        by_state = self.state_tilts.T - words - norms  # (Z, G)
        each = lines.states @ by_state + lines.lasts @ norms - (self.first @ tilts).log()  # (S, G)
        said = F.embedding(lines.words, self.word_tilts.T)
        each = each.index_add(0, lines.line_of_word, said)
        runs, longest = lines.shape
        gains = each.new_zeros(runs * longest, each.shape[1]).index_copy(0, lines.place, each)
        return gains.view(runs, longest, -1)

    def found(self) -> LearntTopics:
        parts = (self.word_tilts, self.state_tilts, self.start, self.moves)
        words, states, start, moves = (part.detach() for part in parts)
        start, moves = start.double().log_softmax(0), moves.double().log_softmax(1)
        made = TopicHMM.make(self.hmm, words, states, start, moves)
        return LearntTopics(made, self.word_counts)


def follow(
    gains: Float[Tensor, "R L G"],
    start: Float[Tensor, " G"],
    moves: Float[Tensor, "G G"],
) -> Float[Tensor, " R"]:
    """log sum over the topics of all lines of p(topics) exp(gains), of each run.

    Lines that are not there, after the last one of a run, gain 0, which changes nothing.
    """
    onward = moves.log_softmax(1)
    now = start.log_softmax(0) + gains[:, 0]
    for line in range(1, gains.shape[1]):
        now = torch.logsumexp(now[:, :, None] + onward, 1) + gains[:, line]
    return torch.logsumexp(now, 1)


class _Reader:
    """Runs of consecutive lines, and the states that an HMM expects at their words.

    These are found once and kept in float16, while they take no more than `SHARE` of the memory
    that was free.
    """

    def __init__(self, hmm: HMM, tokens: TokenArray) -> None:
        self.hmm, self.tokens = hmm, tokens
        self.runs = _runs(tokens)
        self._kept: dict[int, Float[Tensor, "N K"]] = {}
        self._room = (free_memory(hmm.device) or 0) * SHARE

    def read(self, numbers: list[int]) -> Lines:
        """The runs of these numbers."""
        starts, lengths = (
            np.concatenate(parts)
            for parts in zip(*(self.runs[number] for number in numbers), strict=True)
        )
        device, sizes = self.hmm.device, torch.from_numpy(lengths)
        words = torch.from_numpy(
            np.concatenate([self.tokens[a : a + n] for a, n in zip(starts, lengths, strict=True)])
        ).to(device)
        line = torch.repeat_interleave(torch.arange(len(sizes)), sizes).to(device)
        probs, states = self._posteriors(numbers), self.hmm.support.states_of(words).clamp(min=0)
        last = (sizes.cumsum(0) - 1).to(device)

        def bag(places: Tensor) -> Tensor:
            """How often each line has each state at some places."""
            where = line[places, None].expand(-1, states.shape[1])
            bags = probs.new_zeros(len(sizes), self.hmm.num_states)
            return bags.index_put_((where, states[places]), probs[places], accumulate=True)

        counts = [len(self.runs[number][0]) for number in numbers]
        here = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
        place = here.flatten().nonzero()[:, 0].to(device)
        everywhere = torch.arange(len(words), device=device)
        return Lines(words, line, bag(everywhere), bag(last), place, (len(counts), max(counts)))

    def _posteriors(self, numbers: list[int]) -> Float[Tensor, "N K"]:
        """p(z_t | line) of the states that may emit each word."""
        missing = [number for number in numbers if number not in self._kept]
        found = dict(zip(missing, self._smooth(missing), strict=True)) if missing else {}
        for number, probs in found.items():
            if (size := probs.numel() * 2) <= self._room:
                self._kept[number] = probs.half()
                self._room -= size
        parts = [found[n] if n in found else self._kept[n] for n in numbers]
        return torch.cat([part.to(self.hmm.dtype) for part in parts])

    def _smooth(self, numbers: list[int]) -> list[Float[Tensor, "N K"]]:
        """The same of each run, from lines of similar length together, `CELLS` at a time."""
        starts, lengths = (
            np.concatenate(parts)
            for parts in zip(*(self.runs[number] for number in numbers), strict=True)
        )
        order = np.argsort(-lengths, kind="stable")
        most = max(1, CELLS // self.hmm.support.width)
        found: list[Tensor] = [torch.empty(0)] * len(order)
        begin = 0
        while begin < len(order):
            some = order[begin : begin + max(1, most // int(lengths[order[begin]]))]
            begin += len(some)
            batch = stretch_rows(self.tokens, None, starts[some], lengths[some], restart=True)
            sizes = batch.lengths.to(self.hmm.device)
            probs = smooth(self.hmm, batch.tokens.to(self.hmm.device), lengths=sizes).log_probs
            never = probs[:, 0].isneginf().all(1).nonzero()
            if len(never):
                line = int(starts[some][int(never[0])])
                raise InputError(
                    f"The line that begins at token {line:,} of the text, counted from 0, has "
                    f"probability zero under this HMM; leave it out."
                )
            rows = probs.exp()
            for row, (place, size) in enumerate(zip(some, lengths[some], strict=True)):
                found[place] = rows[row, :size]
        ends = np.cumsum([len(self.runs[number][0]) for number in numbers])
        return [
            torch.cat(found[begin:end]) for begin, end in zip([0, *ends[:-1]], ends, strict=True)
        ]


def _runs(tokens: TokenArray) -> list[tuple[Int[np.ndarray, " L"], Int[np.ndarray, " L"]]]:
    """Consecutive lines, about `RUN` tokens and at most `LINES`: their begins and lengths."""
    starts = np.asarray(tokens.sentence_offsets())
    lengths = np.diff(np.append(starts, len(tokens)))
    cuts = np.flatnonzero(np.diff(starts // RUN)) + 1
    found = []
    for begins, sizes in zip(np.split(starts, cuts), np.split(lengths, cuts), strict=True):
        for first in range(0, len(begins), LINES):
            found.append((begins[first : first + LINES], sizes[first : first + LINES]))
    return found


def _check_room(hmm: HMM, topics: int) -> None:
    """Refuses an HMM whose transitions do not fit into the memory, or too many topics."""
    states, words = hmm.num_states, hmm.vocab_size
    moves, tilts = 2 * RUNS * LINES * topics**2, 4 * topics * (words + states)
    needed = (2 * states**2 + moves + tilts) * hmm.dtype.itemsize
    free = free_memory(hmm.device)
    if free is not None and needed > free:
        raise InputError(
            f"To learn {topics:,} topics of {states:,} states, whose transitions are held whole, "
            f"takes {rounded(needed, 'B')}, and {rounded(free, 'B')} are free; use fewer topics or "
            f"states, or a larger device."
        )
