"""Trains the rows of experiments, some side by side, and writes a line for each and each mode.

What was stopped, by --seconds or a signal, goes on when the same command is given again; rows
whose lines are in the results are not run again, and rows of the same settings share a training.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.measurers import Measurers
from experiments.results import (
    add_lines,
    is_done,
    make_lines,
    make_times,
    read_lines,
    take_over,
)
from experiments.rows import BUILTIN, HEAD, KNESER_NEY, Row, Taught, Teacher, digest
from experiments.stopping import Stop, Stopped
from experiments.texts import write_builtin, write_head
from experiments.trainings import Failed, run_hmmlm, share_of_processors
from hmmlm.errors import InputError

RESULTS = Path(__file__).parent / "results/chiu_rush_2020.jsonl"
TIMES = RESULTS.with_name("chiu_rush_2020_times.jsonl")
STREAM = 1000
"""Tokens of a stream of sentences that a teacher draws; its last one is cut."""

PREPARING = {
    "wikitext-2": ("wikitext-2", "keep", ""),
    "web": ("web", "skip", "llama2/tokenizer.model"),
    "web-smollm2": ("web", "skip", "smollm2/tokenizer.json"),
}
"""The folder of a text, what its empty lines mean, and its tokenizer, if those are special.

Of WikiText a blank line is a paragraph of only `<eos>`: the standard counts have them.
"""


OF_STATES = (
    "data.length",
    "model.states",
    "model.blocks",
    "model.cluster_by",
    "model.clusters",
    "model.like_hmm_lm",
    "model.uneven",
)
"""What of a row decides which states a teacher can give."""


@dataclass
class Job:
    """A training, the rows of tables that it is for, and what is known of it so far.

    `notes` outlive the process: the seconds of all calls, whether it is trained, what was measured.
    """

    row: Row
    wanted: list[tuple[str, Row]]
    work: Path

    def __post_init__(self) -> None:
        self.folder = self.work / "runs" / self.row.run
        self.notes_file = self.folder.with_suffix(".json")
        self.notes: dict[str, Any] = {"seconds": 0.0}
        if self.notes_file.exists():
            held = json.loads(self.notes_file.read_text())
            if "measured" in held or self.folder.exists():  # else somebody wants it anew
                self.notes = held

    def note(self, **facts: Any) -> None:
        self.notes |= facts
        self.notes_file.parent.mkdir(parents=True, exist_ok=True)
        new = self.notes_file.with_suffix(".new")
        new.write_text(json.dumps(self.notes))
        new.replace(self.notes_file)


class Runner:
    """Jobs, and all they share: the texts, the machine, and when to stop."""

    def __init__(self, given: argparse.Namespace, stop: Stop, measurers: Measurers) -> None:
        self.given, self.stop, self.measurers = given, stop, measurers
        self.making: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self.sizes: dict[str, int] = {}
        self.commit = given.commit or _commit()
        self.device = _device(given.device)
        self.at_once = given.workers + given.beside
        self.threads = share_of_processors(self.at_once)
        if self.commit == "unknown" and not given.smoke:
            raise SystemExit("git does not know this folder; say which commit it is: --commit NAME")

    def corpus(self, row: Row) -> Path:
        """The prepared text of a row; it is prepared once."""
        dataset = row.text or row.dataset
        folder = self.given.work / f"{dataset}.corpus"
        if (folder / "corpus.json").exists():
            return folder
        if dataset == BUILTIN:
            write_builtin(folder)
            return folder
        if dataset.endswith(HEAD):
            write_head(folder, self.corpus(replace(row, text=dataset.removesuffix(HEAD))))
            return folder
        name, empty, tokenizer = PREPARING.get(dataset, (dataset, "", ""))
        text = self.given.data / name
        if not text.is_dir():
            raise SystemExit(f"{self.given.data} has no folder {name}; give --data DIR with it.")
        command = [sys.executable, "-m", "hmmlm", "prepare", str(text), f"--out={folder}"]
        command += [f"--empty-lines={empty}"] if empty else []
        command += [f"--tokenizer={self.given.data / tokenizer}"] if tokenizer else []
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            raise SystemExit(f"{text} could not be prepared, as said above.")
        return folder

    def bytes_of(self, row: Row) -> dict[str, int]:
        """The bytes of the held-out text, of whatever tokenizer; of texts of words nobody asks."""
        if row.text or row.dataset not in PREPARING or not PREPARING[row.dataset][2]:
            return {}
        from hmmlm.data.corpus import find_splits

        folder, empty, _ = PREPARING[row.dataset]
        with self.making[folder]:
            if folder not in self.sizes:
                lines = find_splits(self.given.data / folder).read("test", empty_lines=empty)
                self.sizes[folder] = sum(len(line.encode()) + 1 for line in lines)
        return {"test": self.sizes[folder]}

    def run(self, job: Job) -> str:
        """Trains and measures, or goes on with that; says how it ended."""
        name, kind = job.row.name, job.row.kind
        try:
            self.stop.check()
            known = job.notes.get("commits", [])
            job.note(commits=[*known, *({self.commit} - set(known))])  # of all calls
            if kind != KNESER_NEY and not job.notes.get("trained"):
                self._train(job, self._heard(job.row))
            self.stop.check()
            self._measure(job)
            commits = "+".join(job.notes["commits"])
            make = make_times if self.given.time else make_lines
            add_lines(self.given.out, make(job.wanted, job.notes, commits))
        except Stopped:
            return f"{name} ({job.row.dataset}) is not finished; the same command goes on with it"
        if self.given.time:
            return f"{name} ({job.row.dataset}): {job.notes['measured']['ms_train_step']} ms a step"
        val = job.notes["measured"]["modes"][job.row.mode]["val"]
        return f"{name} ({job.row.dataset}): validation {val:.2f}, {job.row.mode}"

    def _heard(self, row: Row) -> list[str]:
        """What a row is told of teachers: the folders of states and of layers, made if need be."""
        told = []
        if row.taught is not None:
            told.append(f"data.states={json.dumps(str(self._states(row, row.taught)))}")
        if row.kind == "pretrained" and row.layers is not None:
            place = self._teacher(row, row.layers) if not row.text else self._llama()
            told.append(f"model.checkpoint={json.dumps(str(place))}")
            of_file = [part for part in row.layers.options if part.startswith("distill.gguf")]
            told += [part.replace("distill.", "model.") for part in of_file]
        elif row.layers is not None:
            told.append(f"train.start={json.dumps(str(self._teacher(row, row.layers)))}")
        return told

    def _llama(self) -> Path:
        """A tiny language model of Hugging Face's, to see one running."""
        folder = (self.given.work / "teachers/llama").absolute()
        with self.making[str(folder)]:
            if not folder.exists():
                _write_llama(folder)
        return folder

    def _teacher(self, row: Row, teacher: Teacher) -> Path:
        """The folder of a teacher; one of ours is trained once for each text."""
        if teacher.folder:
            return self.given.data / teacher.folder
        text, corpus = row.text or row.dataset, self.corpus(row)
        folder = (
            self.given.work / "teachers" / f"{text}-{digest((teacher.kind, *teacher.settings))}"
        )
        done = folder.with_name(f"{folder.name}.done")  # one that failed has a folder too
        with self.making[str(folder)]:
            if not done.exists():
                command = ["train", str(corpus), "--out", str(folder), "--resume-if-begun"]
                command += [f"--model={teacher.kind}", "--device", self.device]
                self._call([*command, *(f"--set={change}" for change in teacher.settings)], folder)
                done.touch()
        return folder.absolute()

    def _text(self, row: Row) -> Path:
        """What a row is trained on: its text, and what a teacher has drawn beside it, once."""
        corpus = self.corpus(row)
        if row.drawn is None:
            return corpus
        teacher = self._teacher(row, row.drawn.teacher)
        name = digest((corpus.name, teacher.name, row.drawn.tokens, STREAM))
        folder = self.given.work / "drawn" / f"{name}.corpus"
        with self.making[str(folder)]:
            if not folder.exists():
                command = ["sample-corpus", str(teacher), f"--beside={corpus}", f"--out={folder}"]
                command += [f"--tokens={row.drawn.tokens}", f"--length={STREAM}", "--go-on"]
                self._call([*command, "--device", self.device], folder)
        return folder

    def _states(self, row: Row, taught: Taught) -> Path:
        """The folder of the states that a teacher gives a text; made once."""
        teacher, corpus = self._teacher(row, taught.teacher), self.corpus(row)
        named = [change for change in self._changes(row) if change.partition("=")[0] in OF_STATES]
        told = [*named, *taught.teacher.options, *taught.settings]
        place = self.given.work / "states" / digest((str(corpus), str(teacher), *told))
        with self.making[str(place)]:
            if not place.with_suffix(".json").exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                file = place.with_suffix(".toml")
                file.write_text(
                    f"[data]\ncorpus = {json.dumps(str(corpus.absolute()))}\n"
                    f"[distill]\nteacher = {json.dumps(str(teacher))}\n"
                )
                command = ["distill", str(file), "--only-states", "--json", "--device", self.device]
                said = self._call([*command, *(f"--set={change}" for change in told)], place)
                place.with_suffix(".json").write_text(said.splitlines()[-1])
            states = json.loads(place.with_suffix(".json").read_text())["states"]
        return Path(states).absolute()

    def _call(self, words: Sequence[str], place: Path) -> str:
        """What a command of hmmlm says, which is written down beside a place."""
        self.stop.check()
        return run_hmmlm(words, place, self.stop, threads=self.threads)

    def _train(self, job: Job, heard: Sequence[str]) -> None:
        words = ["train", str(self._text(job.row)), "--out", str(job.folder)]
        words += ["--resume-if-begun", "--json", "--device", self.device]
        words += [f"--set={change}" for change in (*self._changes(job.row), *heard)]
        has_file = job.row.clusters is not None and self.given.clusters is not None
        made_of = cluster_file(self.given.clusters, job.row).name if has_file else None
        job.note(workers=self.at_once, clusters=made_of)
        before = job.notes["seconds"]

        def note(seconds: float) -> None:
            job.note(seconds=before + seconds)

        said = run_hmmlm(words, job.folder, self.stop, threads=self.threads, note=note)
        result = json.loads(said.splitlines()[-1])
        known = job.notes.get("peak_bytes")
        job.note(trained=True, peak_bytes=result["peak_bytes"] or known)

    def _changes(self, row: Row) -> list[str]:
        if row.clusters is None or self.given.clusters is None or row.text.startswith(BUILTIN):
            return row.changes
        path = cluster_file(self.given.clusters, row)
        return [*row.changes, f"model.clusters={json.dumps(str(path.absolute()))}"]

    def _measure(self, job: Job) -> None:
        from experiments import measuring

        row = job.row
        if _is_measured(job.notes.get("measured"), row):  # the test text is read once
            return
        has_been_read = row.kind != KNESER_NEY and row.drawn is None  # by the training
        what, facts = measuring.measure_kneser_ney, {}
        if row.kind != KNESER_NEY:
            what, facts = measuring.measure_times, {"folder": job.folder, "device": self.device}
            if not self.given.time:
                what = measuring.measure_model
                facts |= {"modes": row.modes, "bytes_of": self.bytes_of(row), "tested": row.tested}
        measured = self.measurers.measure(
            self.stop, what, self.corpus(row), verify=not has_been_read, **facts
        )
        if row.kind == KNESER_NEY:
            job.note(seconds=measured.pop("seconds"), peak_bytes=None, workers=self.at_once)
        job.note(measured=measured)


def _is_measured(measured: Mapping[str, Any] | None, row: Row) -> bool:
    """Whether all is known of a training; one that was only compared has not been tested."""
    if measured is None or not row.tested:
        return measured is not None
    return all(found["test"] is not None for found in measured.get("modes", {}).values())


def cluster_file(folder: Path, row: Row) -> Path:
    """The paths file that makes the blocks of a row."""
    assert row.clusters is not None
    method, number = row.clusters
    return folder / f"{row.dataset}-{method}-{number}.paths"


def make_jobs(
    wanted: Sequence[tuple[str, Row]], lines: Sequence[Mapping[str, Any]], work: Path
) -> list[Job]:
    """The trainings of rows whose lines are not there, each once."""
    jobs: dict[str, Job] = {}
    for experiment, row in wanted:
        if not is_done(lines, experiment, row):
            job = jobs.setdefault(row.run, Job(row, [], work))
            job.row = replace(job.row, tested=job.row.tested or row.tested)
            job.wanted.append((experiment, row))
    return list(jobs.values())


def make_timings(
    wanted: Sequence[tuple[str, Row]], times: Sequence[Mapping[str, Any]], work: Path
) -> list[Job]:
    """Short trainings for rows whose times are not there, each once."""
    known, jobs = {taken["run"] for taken in times}, {}
    for experiment, row in wanted:
        cut = row.cut()
        if not {cut.run, row.run} & known and row.kind != KNESER_NEY:  # older: the whole's
            jobs.setdefault(cut.run, Job(cut, [], work)).wanted.append((experiment, row))
    return list(jobs.values())


def main(
    experiments: Mapping[str, Sequence[Row]], about: str, words: Sequence[str] | None = None
) -> int:
    """The command line of an experiment, or of several of one paper in one queue."""
    given = _parse(about, words)
    paper = next(iter(experiments)).partition("/")[0]
    results, times = (RESULTS.with_name(f"{paper}{end}.jsonl") for end in ("", "_times"))
    chosen = _choose(experiments, given)
    if given.list:
        for experiment, row in chosen:
            print(f"{experiment}  {row.dataset}  {row.name}  {' '.join(row.changes)}")
        return 0
    stop = Stop() if given.seconds is None else Stop(time.monotonic() + given.seconds)
    with ExitStack() as stack:
        if given.work is None:
            given.work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kept, other = (times, results) if given.time else (results, times)
        given.out = given.out or (given.work / "results.jsonl" if given.smoke else kept)
        for path, is_wrong in ((kept, given.smoke), (other, True)):
            if is_wrong and given.out.resolve() == path.resolve():
                raise SystemExit(f"Such lines are not those of {path}: give another --out")
        if given.epochs is not None and given.out.resolve() == kept.resolve():
            raise SystemExit(f"{kept} is of the rows as they are; with --epochs give another --out")
        (given.work / "runs").mkdir(parents=True, exist_ok=True)
        measurers = stack.enter_context(Measurers(given.workers, beside=given.beside))
        runner = Runner(given, stop, measurers)
        if given.time:
            jobs = make_timings(chosen, read_lines(given.out), given.work)
        else:
            add_lines(given.out, take_over(read_lines(given.out), chosen))
            jobs = make_jobs(chosen, read_lines(given.out), given.work)
            there = len(chosen) - sum(len(job.wanted) for job in jobs)
            if there:
                told = f"{there} of {len(chosen)} rows have their lines in {given.out}; to run them"
                print(f"{told} again give another --out", file=sys.stderr)
        _check_clusters(jobs, given)
        for job in jobs:
            runner.corpus(job.row)
        stack.enter_context(stop.heard())
        failed = _run_all(runner, jobs, given.workers)
        lines = read_lines(given.out)
    if given.time:
        late = [pair for job in make_timings(chosen, lines, given.work) for pair in job.wanted]
    else:
        late = [(name, row) for name, row in chosen if not is_done(lines, name, row)]
    left = [f"{row.dataset}: {row.name}" for _, row in late]
    done = len(chosen) - len(left)
    print(json.dumps({"rows": len(chosen), "done": done, "left": left, "failed": failed}))
    return 1 if failed else 0


def _run_all(runner: Runner, jobs: Sequence[Job], workers: int) -> list[str]:
    """Runs jobs, some side by side; the last words of those that failed."""
    failed = []
    with ThreadPoolExecutor(workers) as pool:
        waiting = [pool.submit(runner.run, job) for job in jobs]
        for job, future in zip(jobs, waiting, strict=True):
            while not future.done():  # signals are heard by this thread, between two looks
                time.sleep(0.05)
            error = future.exception()
            if error is None:
                print(future.result(), flush=True)
                continue
            if not isinstance(error, Failed | InputError):
                traceback.print_exception(error)
            failed.append(f"{job.row.name} ({job.row.dataset}): {error}")
            print(failed[-1], file=sys.stderr, flush=True)
    return failed


def _parse(about: str, words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="a folder with ptb/, wikitext-2/ or web/")
    parser.add_argument("--work", type=Path, help="where texts, models and checkpoints are kept")
    parser.add_argument(
        "--out",
        type=Path,
        help=f"the lines; by default PAPER.jsonl, or with --time "
        f"PAPER_times.jsonl, in {RESULTS.parent}",
    )
    parser.add_argument("--clusters", type=Path, help="a folder of paths files made before")
    parser.add_argument("--row", action="append", help="a row by its name; may be repeated")
    parser.add_argument("--dataset", help="only rows of this text, such as ptb")
    parser.add_argument("--workers", type=int, default=1, help="trainings side by side")
    parser.add_argument(
        "--beside",
        type=int,
        default=0,
        metavar="N",
        help="how many other trainings run on the device, of other queues",
    )
    parser.add_argument("--seconds", type=float, help="after which all stops, to go on later")
    parser.add_argument("--epochs", type=int, help="other than a row's own")
    parser.add_argument("--device", default="auto", help="as of hmmlm train")
    parser.add_argument("--commit", help="what the code is, where there is no git")
    parser.add_argument(
        "--time",
        action="store_true",
        help="only time a step and a batch of each row, on the head of its text, one by one",
    )
    parser.add_argument("--list", action="store_true", help="print the rows and run nothing")
    parser.add_argument("--smoke", action="store_true", help="the built-in text, tiny, in seconds")
    given = parser.parse_args(words)
    if not (given.smoke or given.list) and (given.data is None or given.work is None):
        parser.error("say where the texts are and where to work: --data DIR --work DIR")
    if given.workers < 1:
        parser.error(f"--workers is {given.workers} but must be at least 1")
    if given.beside < 0:
        parser.error(f"--beside is {given.beside} but must be at least 0")
    if given.time and given.workers + given.beside > 1:
        parser.error("--time is of trainings alone on a device; leave out --workers and --beside")
    return given


def _choose(
    experiments: Mapping[str, Sequence[Row]], given: argparse.Namespace
) -> list[tuple[str, Row]]:
    every = [(experiment, row) for experiment, rows in experiments.items() for row in rows]
    names = list(dict.fromkeys(row.name for _, row in every))
    if unknown := [name for name in given.row or () if name not in names]:
        raise SystemExit(f"There is no row {unknown[0]!r}; there are: {'; '.join(names)}")
    every = [
        (experiment, row) for experiment, row in every if not given.row or row.name in given.row
    ]
    texts = list(dict.fromkeys(row.dataset for _, row in every))
    if given.dataset not in (None, *texts):
        raise SystemExit(f"There is no such row of {given.dataset}; there are: {', '.join(texts)}")
    every = [pair for pair in every if given.dataset in (None, pair[1].dataset)]
    if given.smoke:
        every = [(experiment, row.shrink()) for experiment, row in every]
    if given.epochs is not None:
        every = [(experiment, replace(row, epochs=given.epochs)) for experiment, row in every]
    return every


def _check_clusters(jobs: Sequence[Job], given: argparse.Namespace) -> None:
    """Refuses to begin where a paths file is missing, and says how to make all that are."""
    if given.smoke:
        return
    moved = [job.row.name for job in jobs if job.row.moved]
    if given.clusters is None and moved:
        raise SystemExit(f"{moved[0]} needs a file of hmmlm recluster; give --clusters DIR.")
    if given.clusters is None:
        return
    missing = {}
    for job in jobs:
        if job.row.clusters is not None and not cluster_file(given.clusters, job.row).exists():
            missing[cluster_file(given.clusters, job.row)] = job.row
    if missing:
        commands = [
            f"hmmlm recluster MODEL --on {given.work / row.dataset}.corpus --out {path}"
            if row.moved
            else f"hmmlm cluster --text {given.data / row.dataset} --method {row.clusters[0]} "
            f"--clusters {row.clusters[1]} --out {path}"
            for path, row in missing.items()
            if row.clusters is not None
        ]
        raise SystemExit("Clusters are missing; make them with:\n" + "\n".join(commands))


def _write_llama(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 32, "vocab_size": 8}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(LlamaConfig(**sizes, **heads)).save_pretrained(folder)


def _commit() -> str:
    from benchmarks.machine import describe

    return describe()["commit"]


def _device(name: str) -> str:
    import torch

    has_gpu = torch.cuda.is_available()
    return ("cuda" if has_gpu else "cpu") if name == "auto" else name
