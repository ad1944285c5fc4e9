"""All of `experiments.guiding`, unattended, in stages that are passed over where they are done.

    python -m experiments.guiding_stages --llm FOLDER --work runs/guiding --out RESULTS --commit X

prompts, text (of the language model), states (that it sees in it), guide (the HMM), gap (how far it
is from the language model), texts (guided, masked, rejected), page, bench and bench-guide (what
guiding takes, with random tables and with the guide's). All is made in `--work`; what is small (the
log, the lines and the page) is copied to `--out` now and then. Stopped at any point, by `--seconds`
or a signal, the same command goes on. `--smoke` is all of it at sizes for a small CPU.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.results import add_lines, read_lines
from experiments.stopping import TO_STOP, Stop

# 57 million tokens are more than 50 million that the model drew: a text, of about 50 tokens, begins
# with five of the prompt.
FULL = {
    "prompts": 200_000, "tokens": 57_000_000, "length": 128, "states": 4096, "width": 256,
    "taught": 10_000_000, "points": 2_000_000, "epochs": 3, "asked": 100, "count": 16,
    "bench": 4096,
}  # fmt: skip
SMOKE = {
    "prompts": 50, "tokens": 1500, "length": 40, "states": 32, "width": 8,
    "taught": 1000, "points": 500, "epochs": 1, "asked": 2, "count": 2, "bench": 32,
}  # fmt: skip

# What a language model keeps grows with every token: room that was freed must fit the next.
MEMORY = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
LOG, LINES, BENCH, PAGE = "stages.log", "guiding.jsonl", "bench.jsonl", "guided.md"
Stage = tuple[str, list[str]]
STOPPED = (-signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM)
"""How a command ends that was asked to stop; any other status but 0 is a failure."""

BETWEEN = 20
"""Seconds after which what is small is copied again."""


def stages(given: argparse.Namespace, size: dict[str, int]) -> list[Stage]:
    """Each stage's name, and what to call."""
    work, llm = given.work, str(given.llm)
    guide, corpus, prompts = work / "guide", work / "guide.corpus", work / "prompts.txt"
    tool, ours = ["-m", "hmmlm"], ["-m", "experiments.guiding"]
    drawn = [f"--prompts={prompts}", f"--dtype={given.dtype}", f"--length={size['length']}"]
    drawn += [f"--tokens={size['tokens']}"]
    learn = [*tool, "distill", f"--llm={llm}", f"--out={guide}", f"--states={size['states']}"]
    learn += [*drawn, f"--set=distill.tokens={size['taught']}"]
    learn += [f"--set=distill.points={size['points']}", f"--set=model.width={size['width']}"]
    learn += [f"--set=train.epochs={size['epochs']}"]
    learn += given.set
    train = [*tool, "train", f"--resume={guide}"] if guide.exists() else learn
    if (guide / "config.json").exists():  # trained, and stopped while it was measured
        train = [*tool, "info", str(guide)]
    lines, tokenizer = work / LINES, corpus / "tokenizer.json"
    asked = [f"--prompts={size['asked']}", f"--count={size['count']}"]
    bench = ["-m", "benchmarks.guiding", str(tokenizer), f"--commit={given.commit}"]
    bench += [f"--states={size['bench']}", f"--out={work / BENCH}"]
    bench += ["--budget=8"] if given.smoke else []
    return [
        ("prompts", [*ours, "prompts", f"--number={size['prompts']}", f"--out={prompts}"]),
        ("text", [*tool, "sample-corpus", llm, f"--out={corpus}", *drawn]),
        ("states", [*learn, "--only-states"]),
        ("guide", train),
        ("gap", [*tool, "gap", str(guide), str(corpus), "--json"]),
        ("texts", [*ours, "run", f"--llm={llm}", f"--guide={guide}", f"--commit={given.commit}",
                   *asked, f"--out={lines}"]),
        ("page", [*ours, "page", f"--lines={lines}", f"--out={work / PAGE}"]),
        ("bench", bench),
        ("bench-guide", [*bench, f"--guide={guide}"]),
    ]  # fmt: skip


def hand_over(work: Path, out: Path) -> None:
    """Copies what is small."""
    for name in (LOG, LINES, BENCH, PAGE):
        if (work / name).exists():
            shutil.copy(work / name, out / name)


def call(command: list[str], given: argparse.Namespace, stop: Stop) -> int:
    """The status of a command, which is asked to stop when that is due, and writes into the log."""
    asked, copied = float("inf"), time.monotonic()
    with (given.work / LOG).open("a") as file:
        process = subprocess.Popen(
            [sys.executable, *command],
            stdout=file,
            stderr=file,
            env={**MEMORY, **os.environ},
            process_group=0,  # a signal comes to this process alone, which passes it on once
        )
        try:
            while (status := process.poll()) is None:
                now = time.monotonic()
                if stop.is_due and asked == float("inf"):
                    process.send_signal(signal.SIGTERM)
                    asked = now
                elif now > asked + TO_STOP:
                    process.kill()
                if now > copied + BETWEEN:
                    hand_over(given.work, given.out)
                    copied = now
                time.sleep(0.05)
        finally:
            process.kill()  # where it has ended, nothing
    return status


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llm", type=Path, required=True, help="the language model's folder")
    parser.add_argument("--work", type=Path, required=True, help="what is large")
    parser.add_argument("--out", type=Path, required=True, help="logs, lines and the page")
    parser.add_argument("--commit", required=True, help="what the code is")
    parser.add_argument("--dtype", default="bfloat16", help="of the model that draws the text")
    parser.add_argument("--until", default="bench-guide", help="the last stage to run")
    parser.add_argument("--seconds", type=float, help="after which it stops, to go on later")
    parser.add_argument("--set", action="append", default=[], help="of training, such as K=V")
    parser.add_argument("--smoke", action="store_true", help="tiny, to see that all of it runs")
    given = parser.parse_args(words)
    given.set = [f"--set={one}" for one in given.set]
    for folder in (given.work, given.out):
        folder.mkdir(parents=True, exist_ok=True)
    kept, log = given.work / "stages.jsonl", given.work / LOG
    size = SMOKE if given.smoke else FULL
    names = [name for name, _ in stages(given, size)]
    if given.until not in names:
        parser.error(f"--until is {given.until!r} but must be one of {', '.join(names)}.")
    # Of all calls, also of stages that are not over.
    times = given.work / "seconds.json"
    spent = json.loads(times.read_text()) if times.exists() else {}
    stop = Stop() if given.seconds is None else Stop(time.monotonic() + given.seconds)
    with stop.heard():
        for name in names[: names.index(given.until) + 1]:
            done = {line["stage"]: line for line in read_lines(kept)}
            if name in done:
                print(f"{name}: done before, in {done[name]['seconds']:.1f} s", flush=True)
                continue
            if stop.is_due:
                break
            command = dict(stages(given, size))[name]  # as things stand now
            print(f"{name}: {' '.join(command)}", flush=True)
            began = time.perf_counter()
            with log.open("a") as file:
                file.write(f"== {name}: {' '.join(command)}\n")
            status = call(command, given, stop)
            spent[name] = round(spent.get(name, 0.0) + time.perf_counter() - began, 1)
            times.write_text(json.dumps(spent))
            seconds = spent[name]
            tail = log.read_text(errors="replace").splitlines()[-4:]
            print("\n".join(f"    {line[:300]}" for line in tail), flush=True)
            hand_over(given.work, given.out)
            print(f"{name}: exit status {status} after {seconds} s", flush=True)
            if status in STOPPED and stop.is_due:
                break
            if status:
                return status
            add_lines(kept, [{"stage": name, "seconds": seconds}])
    done = [line["stage"] for line in read_lines(kept)]
    left = [name for name in names[: names.index(given.until) + 1] if name not in done]
    hand_over(given.work, given.out)
    total = sum(line["seconds"] for line in read_lines(kept))
    print(json.dumps({"seconds": round(total, 1), "until": given.until, "left": left}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
