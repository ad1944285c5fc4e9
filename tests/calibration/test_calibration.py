"""What is measured by running it, and what follows for sizes that were not run."""

import io
import json
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from hmmlm.calibration import PARTS, Measured, Task, apart, ladder, measure, measure_apart, parts
from hmmlm.calibration.ladder import rungs
from hmmlm.calibration.memory import forget_peak, peak_bytes, resident_bytes
from hmmlm.calibration.parts import Unit, keywords
from hmmlm.errors import InputError
from hmmlm.evaluate import BATCH_TOKENS
from hmmlm.generate import Guide
from hmmlm.train.config import make_config
from hmmlm.train.estimate import estimate

TABLES = {"model": {"states": 32, "blocks": 4, "width": 4}, "data": {"batch_size": 2, "length": 8}}
LONG = 600.0
"""Seconds that suffice for everything: the number of units has its own limit, here a small one."""


def task(part: str, seconds: float = LONG, tables: dict | None = None, **more) -> Task:
    return Task(part, tables or TABLES, 30, "cpu", seconds, 1000, **more)


@pytest.fixture(autouse=True)
def few_units(monkeypatch):
    monkeypatch.setattr(parts, "MOST", 3)


@pytest.mark.parametrize("part", PARTS)
def test_the_whole_size_is_run_if_there_is_time(part):
    found = measure(task(part))
    assert (found.states, found.is_extrapolated, found.why) == (32, False, "")
    assert found.tokens_per_second > 0 and found.fits
    assert found.bytes >= found.base_bytes > 1 << 20
    assert part != "training" or found.facts["steps"] == 3  # the first one is not timed


@pytest.mark.parametrize(
    "model",
    [
        {"states": 8, "blocks": 0},
        {"states": 16, "states_per_word": 4},
        {"states": 1, "blocks": 0},
        {"kind": "scalar", "states": 8, "blocks": 2},
        {"states": 19, "blocks": 4, "uneven": 0.5},
    ],
)
@pytest.mark.parametrize("part", PARTS)
def test_other_shapes(part, model):
    assert measure(task(part, tables={**TABLES, "model": model})).tokens_per_second > 0


@pytest.mark.parametrize("optimiser", ["em", "gem"])
def test_steps_that_read_the_whole_text(optimiser):
    model = {"kind": "scalar", "states": 8, "blocks": 2}
    tables = {**TABLES, "model": model, "train": {"optimiser": optimiser}}
    found = measure(task("training", tables=tables))
    assert found.tokens_per_second > 0 and found.facts["once_seconds"] >= 0


@pytest.mark.parametrize("part", PARTS)
def test_blocks_that_are_not_alike_cost_what_the_largest_does(part):
    """Tiles are as large as those of the largest block, for all."""

    def made(**model):
        config = make_config({**TABLES, "model": {"states": 640, "blocks": 16, **model}})
        one = PARTS[part](500, None, torch.device("cpu"), 10_000)
        return one.support(config).width, one.work(config), one.bytes(config)

    (even, work, held), (largest, more_work, more) = made(), made(uneven=0.5)
    assert even == 40 and 48 < largest <= 80
    if part == "scoring":
        assert more_work == pytest.approx(work * (largest / even) ** 2)
    assert more_work >= work and more > held


def test_blocks_of_a_file_of_clusters():
    model = {"states": 32, "clusters": "paths"}
    found = measure(task("scoring", tables={**TABLES, "model": model}, blocks=8))
    assert found.states == 32
    made = PARTS["scoring"](30, 8, torch.device("cpu"), 1000)
    support = made.support(make_config({**TABLES, "model": model}))
    assert support.rows.shape == (8, 4)


def test_an_epoch_is_its_batches_and_what_comes_once(monkeypatch):
    """One batch of 10 tokens took 5 s, and three of them 6 s."""
    clock = iter([0.0, 5.0, 10.0, 16.0])
    made = PARTS["training"](30, None, torch.device("cpu"), 1000)
    monkeypatch.setattr(made, "now", lambda: next(clock))
    monkeypatch.setattr(made, "_training", lambda config, learner, batches: Steps(10 * batches))
    unit = made._epochs(make_config(TABLES), None, 0.0)
    assert unit.facts["once_seconds"] == pytest.approx(4.5)
    assert (unit.seconds, unit.tokens) == (pytest.approx(4.5 + 50), 1000)


class Steps:
    def __init__(self, tokens):
        self.tokens = tokens

    def __iter__(self):
        return iter([None])


def test_a_longer_text_is_scored_if_there_is_time():
    made = PARTS["scoring"](30, 4, torch.device("cpu"), 1000)
    short, long = (made.run(make_config(TABLES), seconds) for seconds in (0.0, LONG))
    assert (short.tokens, short.facts["batches"]) == (BATCH_TOKENS, 1)
    assert (long.tokens, long.facts["batches"]) == (4 * BATCH_TOKENS, 3 * 4)


def test_whole_texts_are_guided(monkeypatch):
    """All tokens of a text count, but for the first, which reads the prompt; texts are equals."""
    made = PARTS["guiding"](30, 4, torch.device("cpu"), 1000)
    clock, calls = [0.0], []

    class Slower(Guide):
        def log_factors(self, prompts, texts, which):
            calls.append(len(texts[0]))
            clock[0] += 100.0 if not any(texts) else 1.0 if len(calls) < 60 else 2.0
            return super().log_factors(prompts, texts, which)

    monkeypatch.setattr(parts, "Guide", Slower)
    monkeypatch.setattr(made, "now", lambda: clock[0])
    unit = made.run(make_config(TABLES), LONG)
    assert len(calls) == 3 * 31 and unit.seconds == pytest.approx((27 + 3 * 2) / 30)


def test_small_models_guide_as_the_whole_one_would(monkeypatch):
    """Without a table, if the whole one has too many states for it."""
    kept = []

    class Told(Guide):
        def __init__(self, looks, **how):
            kept.append((looks[0].hmm.num_states, how["keep_table"]))
            super().__init__(looks, **how)

    monkeypatch.setattr(parts, "Guide", Told)
    for limit in (32, 31):
        monkeypatch.setattr(parts, "TABLE_STATES", limit)
        kept.clear()
        measure(task("guiding", seconds=0.0))
        assert len(kept) > 1 and {keep for _, keep in kept} == {limit == 32}


@pytest.mark.parametrize(
    ("blocks", "limits", "has_table"),
    [
        (4, {"TABLE_STATES": 31, "MOVES_STATES": 31}, False),
        (4, {"TABLE_STATES": 32, "MOVES_STATES": 31}, True),  # the guide keeps it
        (4, {"TABLE_STATES": 31, "MOVES_STATES": 32}, True),  # has it while it looks ahead
        (0, {"TABLE_STATES": 31, "MOVES_STATES": 31}, True),  # all states for each word
        (0, {"TABLE_STATES": 31, "MOVES_STATES": 31, "RESIDENT": 1000}, False),
    ],
)
def test_bytes_of_guiding_have_the_table_of_transitions(blocks, limits, has_table, monkeypatch):
    tables = {**TABLES, "model": {**TABLES["model"], "blocks": blocks}}
    made = PARTS["guiding"](30, None, torch.device("cpu"), 1000, 32)
    for name in ("TABLE_STATES", "MOVES_STATES"):
        monkeypatch.setattr(parts, name, 0)
    monkeypatch.setattr(parts, "RESIDENT", 0)
    without = made.bytes(make_config(tables))
    monkeypatch.setattr(parts, "RESIDENT", 1 << 28)
    for name, limit in limits.items():
        monkeypatch.setattr(parts, name, limit)
    assert made.bytes(make_config(tables)) - without == (8 * 32**2 if has_table else 0)


def test_tables_of_guiding_take_longer_with_more_states():
    small, whole = list(rungs(make_config(TABLES), None))[-2:]
    made = PARTS["guiding"](30, None, torch.device("cpu"), 1000)
    facts = made.facts(small, whole, {"prepare_seconds": 3.0, "budget": 32})
    assert facts == {"prepare_seconds": 12.0, "budget": 32}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux says it")
def test_the_most_memory_is_kept_until_it_is_forgotten():
    device, size = torch.device("cpu"), 1 << 26
    before = resident_bytes(device)
    table = torch.ones(size, dtype=torch.uint8)
    del table
    assert peak_bytes(device) >= before + size // 2
    forget_peak(device)
    assert peak_bytes(device) < before + size // 2


@pytest.mark.parametrize("part", PARTS)
def test_without_time_two_small_sizes_are_run(part):
    found = measure(task(part, seconds=1e-9))
    assert (found.also, found.states, found.why) == (4, 8, "time") and found.is_extrapolated
    assert found.tokens_per_second > 0


def test_sizes_have_shares_of_the_states_of_a_word():
    def states(**model):
        return [one.model.states for one in rungs(make_config({"model": model}), None)]

    assert states(states=32768, blocks=128) == [4096, 8192, 16384, 32768]
    assert states(states=30, blocks=10) == [10, 30]
    assert states(states=1, blocks=0) == [1]
    assert states(states=99, blocks=10, uneven=0.5) == [12, 24, 49, 99]
    assert states(states=13, blocks=10, uneven=0.5) == [10, 13]
    clustered = rungs(make_config({"model": {"states": 32, "blocks": 4}}), 8)  # a file's blocks
    assert [one.model.states for one in clustered] == [8, 16, 32]
    uniform = make_config({"model": {"states": 64, "states_per_word": 8}})
    found = [(one.model.states, one.model.states_per_word) for one in rungs(uniform, 8)]
    assert found == [(8, 1), (16, 2), (32, 4), (64, 8)]


class Made:
    """A part that takes 3 s and a second for each operation, and a byte for each state."""

    def __init__(self, *sizes):
        pass

    def work(self, config):
        return config.model.states**2

    def bytes(self, config):
        return config.model.states

    def facts(self, small, whole, found):
        return {"more": whole.model.states / small.model.states}

    def run(self, config, seconds):
        return Unit(3.0 + self.work(config), 100, {})


def test_what_is_not_run_follows_from_operations_and_sizes(monkeypatch):
    monkeypatch.setitem(PARTS, "made", Made)
    monkeypatch.setattr(ladder, "peak_bytes", lambda device: 1000)
    monkeypatch.setattr(ladder, "resident_bytes", lambda device: 200)
    monkeypatch.setattr(ladder, "free_memory", lambda device: 16)
    found = measure(task("made"))
    assert (found.also, found.states, found.why) == (8, 16, "memory")
    assert found.tokens_per_second == pytest.approx(100 / (3 + 32**2))
    assert found.bytes == 200 + 2 * 800 and found.facts == {"more": 2}
    assert not found.fits and found.free_bytes == 16


def test_what_a_larger_model_does_not_have_is_no_share_of_all(monkeypatch):
    """A table that only small models keep: the whole one has 400 bytes less of the 800."""

    class Kept(Made):
        def bytes(self, config):
            return 500 if config.model.states <= 16 else 100

    monkeypatch.setitem(PARTS, "kept", Kept)
    monkeypatch.setattr(ladder, "peak_bytes", lambda device: 1000)
    monkeypatch.setattr(ladder, "resident_bytes", lambda device: 200)
    found = measure(task("kept", seconds=1e-9))
    assert found.is_extrapolated and found.bytes == 1000 - 400


def test_what_follows_from_one_size(monkeypatch):
    monkeypatch.setitem(PARTS, "made", Made)
    monkeypatch.setattr(ladder, "free_memory", lambda device: 4)
    found = measure(task("made"))
    assert (found.also, found.states, found.why) == (4, 4, "memory")
    assert found.tokens_per_second == pytest.approx(100 / ((3 + 4**2) * 8**2))


def test_a_larger_size_that_took_less_says_nothing_of_growth(monkeypatch):
    class Faster(Made):
        def run(self, config, seconds):
            return Unit(40.0 / config.model.states, 100, {})

    monkeypatch.setitem(PARTS, "faster", Faster)
    monkeypatch.setattr(ladder, "free_memory", lambda device: 8)
    assert measure(task("faster")).tokens_per_second == pytest.approx(100 / (5 * 4**2))


def test_sizes_of_the_same_work_say_nothing_of_growth(monkeypatch):
    class Flat(Made):
        def work(self, config):
            return 1

        def run(self, config, seconds):
            return Unit(float(config.model.states), 100 + config.model.states, {})

    monkeypatch.setitem(PARTS, "flat", Flat)
    monkeypatch.setattr(ladder, "free_memory", lambda device: 8)
    assert measure(task("flat")).tokens_per_second == pytest.approx(108 / 8)


@pytest.mark.parametrize(
    ("seconds", "states"), [(0, 8), (335, 8), (336, 16), (1359, 16), (1360, 32)]
)
def test_a_size_is_run_if_it_is_expected_to_end_in_time(monkeypatch, seconds, states):
    """Without the warming up: 16 s, 64 s, and then 256 s and 1024 s by their operations."""
    clock = [0.0]

    class Slow(Made):
        def run(self, config, seconds):
            clock[0] += self.work(config)
            return super().run(config, seconds)

    monkeypatch.setitem(PARTS, "slow", Slow)
    monkeypatch.setattr(ladder, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    assert measure(task("slow", seconds)).states == states


def test_what_fits_is_told_without_the_libraries():
    found = Measured("made", 1.0, 1000, 900, 8, 8, False, "", 100, {})
    assert found.fits and not found._replace(base_bytes=899).fits
    assert found._replace(bytes=10**15, free_bytes=None).fits


def test_the_time_is_for_the_whole_size_and_what_was_not_held_counts(monkeypatch):
    times = []

    class Short(Made):
        def run(self, config, seconds):
            times.append(seconds)
            return Unit(1e-9, 1, {}, missing=7)

    monkeypatch.setitem(PARTS, "short", Short)
    monkeypatch.setattr(ladder, "peak_bytes", lambda device: 1000)
    found = measure(task("short"))
    assert times[:-1] == [0.0] * 4 and LONG - 60 < times[-1] <= LONG
    assert found.bytes == 1007


def test_not_even_a_small_one_fits(monkeypatch):
    monkeypatch.setattr(ladder, "free_memory", lambda device: 2_000_000)
    tables = {"model": {"states": 4096, "blocks": 0}}
    with pytest.raises(InputError, match=r"Training needs about .* GB with 512 states but 0.0 GB"):
        measure(task("training", tables=tables))


def test_keywords_in_any_order():
    constraint = keywords(10, 3)
    assert constraint.num_states == 8
    assert constraint.accepts([9, 3, 1, 1, 2]) and not constraint.accepts([3, 1, 9])
    assert keywords(2, 5).num_states == 2


def test_a_process_of_its_own():
    found = measure_apart(task("guiding", seconds=0.1))
    assert isinstance(found, Measured) and found.tokens_per_second > 0


def test_a_mistake_is_told_by_the_other_process(monkeypatch, capsys):
    def in_this_one(words, *, input, **options):
        monkeypatch.setattr("sys.stdin", io.StringIO(input))
        status, said = apart.answer(), capsys.readouterr()
        return SimpleNamespace(returncode=status, stdout=said.out, stderr=said.err)

    monkeypatch.setattr(subprocess, "run", in_this_one)
    with pytest.raises(InputError, match="30 states cannot be shared equally among 4 blocks"):
        measure_apart(task("scoring", tables={"model": {"states": 30, "blocks": 4}}))
    batch = {**TABLES, "data": {"batch_size": 10**12, "length": 8}}
    with pytest.raises(InputError, match=r"Training needs about 192,000.* GB with 4 states but"):
        measure_apart(task("training", tables=batch))
    for error in (MemoryError(), RuntimeError("can't allocate memory")):
        monkeypatch.setattr(apart, "measure", Mock(side_effect=error))
        with pytest.raises(InputError, match="There is not enough memory to measure this; use few"):
            measure_apart(task("training"))
    for said in ("something else", "an illegal memory access was encountered"):
        monkeypatch.setattr(apart, "measure", Mock(side_effect=RuntimeError(said)))
        with pytest.raises(RuntimeError, match=said):
            measure_apart(task("training"))


def test_the_text_of_large_batches_is_no_longer_than_they_need(monkeypatch):
    sizes = []
    text = parts.TrainingPart.text
    record = lambda self, number: sizes.append(number) or text(self, number)  # noqa: E731
    monkeypatch.setattr(parts.TrainingPart, "text", record)
    monkeypatch.setattr(parts, "TEXT", 64)
    for batch, wanted in ((2, 64), (64, 512)):  # of 8 tokens a row: 4 steps, and one
        sizes.clear()
        measure(task("training", 1e-9, {**TABLES, "data": {"batch_size": batch, "length": 8}}))
        assert wanted in sizes and all(size in (wanted, parts.BATCH_TOKENS) for size in sizes)


def test_other_lines_of_the_process_are_not_read(monkeypatch):
    said = json.dumps(Measured("training", 5.0, 2, 1, 8, 8, False, "", None, {})._asdict())
    done = SimpleNamespace(returncode=0, stdout=f"a library's\n{said}\n", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: done)
    assert measure_apart(task("training")).tokens_per_second == 5.0


def test_a_process_that_was_ended(monkeypatch):
    ended = SimpleNamespace(returncode=-signal.SIGKILL, stdout="", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: ended)
    with pytest.raises(InputError, match="ended the measuring of training, as it does where"):
        measure_apart(task("training"))


def test_a_reason_is_read_among_other_lines(monkeypatch):
    done = SimpleNamespace(returncode=2, stdout="", stderr="one\ncalibration: too large.\ntwo\n")
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: done)
    with pytest.raises(InputError, match=r"^too large\.$"):
        measure_apart(task("training"))


@pytest.mark.parametrize("status", [1, -signal.SIGSEGV])
def test_a_process_that_failed_is_shown(monkeypatch, status):
    failed = SimpleNamespace(returncode=status, stdout="", stderr="Traceback: boom")
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: failed)
    with pytest.raises(RuntimeError, match=r"^measuring training failed:\nTraceback: boom$"):
        measure_apart(task("training"))


def test_memory_that_is_known_grows_with_the_states():
    small, whole = list(rungs(make_config(TABLES), None))[-2:]
    for part in PARTS.values():
        known = part(30, None, torch.device("cpu"), 1000)
        assert 0 < known.bytes(small) < known.bytes(whole) and known.work(small) < known.work(whole)
    training = PARTS["training"](30, None, torch.device("cpu"), 1000)
    text = parts.DRAWN * 2 * 8
    assert training.bytes(whole) == estimate(whole, 30).total_memory + text
