"""What is measured: training steps, scoring, and guiding, on words that are made up.

How many different tiles a batch has depends on the text. This one is drawn by Zipf's law from
phrases of words that are: with 32 blocks 819 places have 395 different pairs of them and with 128
blocks 515, where the demo's text has 328 and 600, and words alone would have 516 and 742.
"""

import dataclasses
import time
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from hmmlm.calibration.memory import forget_peak
from hmmlm.clusters.blocks import Blocks
from hmmlm.data.token_array import TokenArray
from hmmlm.evaluate import BATCH_TOKENS, CHECKED_ROWS, HmmLM, evaluate
from hmmlm.generate import Guide, Lookahead
from hmmlm.generate.automata import Automaton
from hmmlm.generate.guide import TABLE_STATES
from hmmlm.generate.lookahead import MOVES_STATES
from hmmlm.hmm import HMM
from hmmlm.ops.links import RESIDENT
from hmmlm.support import Support
from hmmlm.train.config import Config, make_batches, validation_mode
from hmmlm.train.estimate import SENTENCE, Estimate, estimate, scoring_memory
from hmmlm.train.learner import make_learner
from hmmlm.train.loop import Training
from hmmlm.train.sizes import support_of_blocks

EOS, MOST = 0, 50
PHRASES, WORDS = 500, 3
"""How many phrases there are, of how many words."""

TEXT, DRAWN = 1 << 19, 24
"""Tokens of the text that training is timed with, about, and the bytes of one while it is drawn."""

COUNTED = 1 << 16
"""Tokens of the text by which blocks share states that they do not share equally."""

SCORED = 4
"""Batches of the text that is scored."""

KEYWORDS, BUDGET, TIMED_BUDGET = 5, 32, 10
"""The constraint that guiding is timed with; its tables are made for fewer tokens."""


class Unit(NamedTuple):
    """Seconds that so many tokens took; `missing` bytes would have been held too, had it been all.

    `facts` are for people.
    """

    seconds: float
    tokens: int
    facts: dict[str, float]
    missing: int = 0


class Part(Protocol):
    """Something that is measured."""

    def work(self, config: Config) -> float:
        """What the time of a unit grows with."""
        ...

    def bytes(self, config: Config) -> int:
        """What it holds, by its sizes."""
        ...

    def run(self, config: Config, seconds: float) -> Unit:
        """Units for about so long."""
        ...

    def facts(self, small: Config, whole: Config, found: dict[str, float]) -> dict[str, float]:
        """What was found with a small model, for the whole one."""
        ...


class _Sizes:
    """What parts share: sizes that do not change from one model to the next."""

    def __init__(
        self,
        vocab_size: int,
        blocks: int | None,
        device: torch.device,
        tokens: int,
        states: int = 0,
    ) -> None:
        self.vocab_size, self.blocks = vocab_size, blocks
        self.device, self.tokens, self.states = device, tokens, states

    def facts(self, small: Config, whole: Config, found: dict[str, float]) -> dict[str, float]:
        return found

    def support(self, config: Config) -> Support:
        model, blocks = config.model, self.blocks or config.model.blocks
        assert model.states is not None
        if model.states_per_word:
            drawn = torch.Generator().manual_seed(0)
            return Support.uniform(self.vocab_size, model.states, model.states_per_word, drawn)
        if not blocks or blocks == 1:
            return Support.dense(self.vocab_size, model.states)
        clusters = 1 + np.arange(self.vocab_size) % (blocks - 1)
        clusters[EOS] = 0  # has a block to itself
        counts = self.word_counts if model.uneven else clusters  # of use to uneven blocks only
        return support_of_blocks(Blocks(clusters, blocks, ()), counts, model.states, model.uneven)

    @cached_property
    def word_counts(self) -> np.ndarray:
        """How often each word stands in the text."""
        return np.bincount(self.text(COUNTED), minlength=self.vocab_size)

    def cost(self, config: Config) -> Estimate:
        return estimate(config, self.vocab_size, blocks=self.blocks, each=self.widest(config))

    def widest(self, config: Config) -> int | None:
        """States of the largest block, where blocks are not alike."""
        return self.support(config).width if config.model.uneven else None

    def model(self, config: Config, support: Support) -> Any:
        seeded = torch.Generator().manual_seed(0)
        return config.params.build(support, generator=seeded).to(self.device)

    def hmm(self, config: Config) -> HMM:
        with torch.no_grad():
            return self.model(config, self.support(config))()

    def score(self, config: Config, lm: HmmLM, batches: int = 1) -> int:
        """Evaluates a text of some batches; how many tokens that are."""
        text = self.text(batches * BATCH_TOKENS)
        mode = validation_mode(config.data)
        return evaluate(lm, text, mode=mode, eos_id=EOS, device=self.device).tokens

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def text(self, number: int) -> np.ndarray:
        """So many words, with ends of sentences by chance."""
        draw = np.random.default_rng(0)
        phrases = _zipf(draw, self.vocab_size - 1, PHRASES * WORDS).reshape(PHRASES, WORDS) + 1
        words = phrases[_zipf(draw, PHRASES, -(-number // WORDS))].flatten()[:number]
        return np.where(draw.random(number) * SENTENCE < 1, EOS, words)


def widest_block(config: Config, vocab_size: int, blocks: int | None) -> int:
    """States of the largest block where blocks share them by the text that is made up."""
    return _Sizes(vocab_size, blocks, torch.device("cpu"), 0).support(config).width


def _zipf(draw: np.random.Generator, ranks: int, number: int) -> np.ndarray:
    weights = 1 / (np.arange(ranks) + 2.7)
    return draw.choice(ranks, number, p=weights / weights.sum())


class TrainingPart(_Sizes):
    """Steps of `hmmlm train`, and a validation, of which only the memory counts.

    The first step makes the optimiser's state; on a GPU the first three make a graph.
    """

    @property
    def warm(self) -> int:
        return 3 if self.device.type == "cuda" else 1

    def work(self, config: Config) -> float:
        return self.cost(config).total_flops

    def bytes(self, config: Config) -> int:
        text = DRAWN * config.data.batch_size * config.data.length
        return self.cost(config).total_memory + text

    def run(self, config: Config, seconds: float) -> Unit:
        support, ends = self.support(config), time.perf_counter() + seconds
        learner = make_learner(config, self.model(config, support), support, eos_id=EOS)
        forget_peak(self.device)
        steps = self._epochs if config.train.accumulate == 0 else self._steps
        unit = steps(config, learner, ends)
        with torch.no_grad():
            self.score(config, HmmLM(learner.model()))
        return unit

    def _steps(self, config: Config, learner: Any, ends: float) -> Unit:
        each = config.train.accumulate * config.data.batch_size * config.data.length
        # Real text lies on disk; this one must not be what fills the memory.
        steps = max(1, min(100, TEXT // each))
        training = self._training(config, learner, steps * config.train.accumulate)
        run: Any = iter(training)
        taken = []
        for number in range(self.warm + MOST):
            before, began = training.tokens, self.now()
            next(run)
            spent = self.now() - began
            if number >= self.warm:
                taken.append((spent, training.tokens - before))
            if taken and time.perf_counter() > ends:
                break
        run.close()
        spent, tokens = (sum(column) for column in zip(*taken, strict=True))
        return Unit(spent / len(taken), round(tokens / len(taken)), {"steps": len(taken)})

    def _epochs(self, config: Config, learner: Any, ends: float) -> Unit:
        """A step that reads the whole text: what a batch takes, and what comes once."""
        times = []
        for batches in (1, 3):
            training = self._training(config, learner, batches)
            began = self.now()
            next(iter(training))
            times.append((self.now() - began, training.tokens))
        each = max(1e-9, (times[1][0] - times[0][0]) / (times[1][1] - times[0][1]))
        once = max(0.0, times[0][0] - each * times[0][1])
        return Unit(each * self.tokens + once, self.tokens, {"once_seconds": once})

    def _training(self, config: Config, learner: Any, batches: int) -> Training:
        settings = dataclasses.replace(config.train, epochs=MOST, early_stop=0, checks=1)
        size = batches * config.data.batch_size * config.data.length
        text = TokenArray.from_ids(self.text(size), eos_id=EOS)
        made = _Some(make_batches(config, text), batches)
        return Training(learner, made, settings=settings)


class _Some:
    """The first batches of an epoch."""

    def __init__(self, batches: Any, number: int) -> None:
        self.batches, self.num_batches = batches, min(number, batches.num_batches)

    def __iter__(self) -> Any:
        return islice(iter(self.batches), self.num_batches)


class ScoringPart(_Sizes):
    """A text of `hmmlm evaluate`, or a batch of it where there is time for no more.

    Of a longer text the sentences of a batch are more alike in length.
    """

    def work(self, config: Config) -> float:
        cost = self.cost(_kept(config))
        return sum(cost.flops.get(name, 0) for name in ("recursion", "tiles"))

    def bytes(self, config: Config) -> int:
        each = self.widest(config)
        return scoring_memory(config, self.vocab_size, blocks=self.blocks, each=each)

    def run(self, config: Config, seconds: float) -> Unit:
        lm, ends = HmmLM(self.hmm(config)), time.perf_counter() + seconds
        forget_peak(self.device)
        began = self.now()
        lm.row_error(CHECKED_ROWS, 0)
        checked, taken, tokens, batches = self.now() - began, [], 0, 1
        while not taken or (time.perf_counter() < ends and len(taken) < MOST):
            began = self.now()
            tokens = self.score(config, lm, batches)
            taken.append(max(1e-9, self.now() - began - checked))
            if batches == 1 and SCORED * taken[0] < ends - time.perf_counter():
                batches, taken = SCORED, []
        return Unit(float(np.median(taken)), tokens, {"batches": batches * len(taken)})


class GuidingPart(_Sizes):
    """A token of each row of a batch, by one constraint; making its tables is timed apart."""

    def work(self, config: Config) -> float:
        assert config.model.states is not None
        return float(config.model.states) ** 2

    def bytes(self, config: Config) -> int:
        states = config.model.states
        assert states is not None
        tables = 4 * BUDGET * 2**KEYWORDS * states
        rows = config.data.batch_size * (4 * states + 48 * self.vocab_size)
        file = self.cost(config).file_bytes
        # Looking ahead has p(z' | z) as a table while it is made, the guide may keep it.
        model = config.model
        is_dense = not (model.states_per_word or model.blocks or self.blocks)
        stays = self.keep_table or (is_dense and states**2 <= RESIDENT)
        return file + tables + rows + 8 * states**2 * (stays or states <= MOVES_STATES)

    @property
    def keep_table(self) -> bool:
        """As the whole model has it, for smaller ones too: else their times would not tell."""
        return self.states <= TABLE_STATES

    def facts(self, small: Config, whole: Config, found: dict[str, float]) -> dict[str, float]:
        more = self.work(whole) / self.work(small)
        return {**found, "prepare_seconds": found["prepare_seconds"] * more}

    def run(self, config: Config, seconds: float) -> Unit:
        hmm, ends = self.hmm(config), time.perf_counter() + seconds
        constraint = keywords(self.vocab_size, KEYWORDS)
        forget_peak(self.device)
        look, prepared = self._prepare(hmm, constraint, TIMED_BUDGET)
        if 2 * prepared < ends - time.perf_counter():
            look, prepared = self._prepare(hmm, constraint, BUDGET)
        rows = config.data.batch_size
        seeded, taken = torch.Generator(self.device).manual_seed(0), []
        prompts = [self.text(SENTENCE).tolist()] * rows
        while not taken or (time.perf_counter() < ends and len(taken) < MOST):
            guide = Guide([look], keep_table=self.keep_table)
            texts, spent = [[] for _ in range(rows)], []
            for _ in range(look.budget - 1):
                began = self.now()
                factors = guide.log_factors(prompts, texts, [0] * rows)
                spent.append(self.now() - began)
                chosen = factors.softmax(1).multinomial(1, generator=seeded)[:, 0].tolist()
                texts = [_longer(text, word) for text, word in zip(texts, chosen, strict=True)]
            taken.append(np.mean(spent[1:]))  # the first one reads the prompt
        facts = {
            "prepare_seconds": prepared,
            "budget": BUDGET,
            "automaton_states": constraint.num_states,
        }
        missing = (BUDGET - look.budget) * sum(table.nbytes for table in look.tables[:1])
        return Unit(float(np.median(taken)), rows, facts, missing)

    def _prepare(self, hmm: HMM, constraint: Automaton, budget: int) -> tuple[Lookahead, float]:
        """Tables for some tokens, and the seconds that all of `BUDGET` take."""
        began = self.now()
        look = Lookahead.build(hmm, constraint, eos_id=EOS, budget=budget)
        return look, (self.now() - began) * (BUDGET - 1) / (budget - 1)


def _longer(text: list[int], word: int) -> list[int]:
    return text if EOS in text else [*text, word]


def keywords(vocab_size: int, number: int) -> Automaton:
    """All of some words, of a token each, in any order: a state for each set of those that came."""
    number = min(number, vocab_size - 1)
    column = np.zeros(vocab_size, dtype=np.int64)
    column[1 : number + 1] = np.arange(1, number + 1)
    sets = np.arange(1 << number)
    after = np.stack([sets, *(sets | 1 << word for word in range(number))], 1)
    return Automaton(column, after, sets == (1 << number) - 1)


def _kept(config: Config) -> Config:
    """As it is evaluated: no states left out."""
    dropout = dataclasses.replace(config.dropout, rate=0.0, last=None, most=None)
    return dataclasses.replace(config, dropout=dropout)


PARTS = {"training": TrainingPart, "scoring": ScoringPart, "guiding": GuidingPart}
"""What can be measured, by name."""
