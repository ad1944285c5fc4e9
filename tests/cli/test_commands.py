"""Every command as people run it: what it prints, and the JSON line that programs read."""

import io
import json
import math
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

from commands import SOURCE, last_json, made_up_lines, run_command
from hmmlm.cli.output import say_fact
from hmmlm.model import Model
from hmmlm.ops.kernels import lacking

LINE = "the red dog sees a cat ."


def test_prepare_counts_every_split(made):
    assert made.prepared.status == 0 and made.prepared.err == ""
    result = last_json(made.prepared.out)
    assert set(result) == {"splits", "vocab", "folder"}
    assert {name: split["tokens"] for name, split in result["splits"].items()} == {
        "train": 200 * 8,
        "valid": 30 * 8,
        "test": 40 * 8,
    }
    assert result["vocab"] == 13  # eleven words, <unk> and <eos>
    assert "vocabulary of 13; written to corpus" in made.prepared.out


def test_train_writes_a_model(made):
    assert made.trained.status == 0
    assert all(line.startswith("step ") for line in made.trained.err.splitlines())
    result = last_json(made.trained.out)
    assert set(result) == {"folder", "steps", "seconds", "val", "peak_bytes"}
    assert result["folder"] == "model" and result["steps"] == 80 and 1 < result["val"] < 6
    names = {"model.safetensors", "config.json", "tokenizer.json", "metrics.jsonl", "tensorboard"}
    assert {path.name for path in (made.folder / "model").iterdir()} == names
    steps = [json.loads(x) for x in (made.folder / "model/metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == list(range(1, 81))
    assert min(step["val"] for step in steps if step["val"] is not None) == result["val"]


def test_files_of_a_model_can_be_read_by_whoever_may_read_the_folder(made):
    files = [path for path in (made.folder / "model").iterdir() if path.is_file()]
    modes = {path.stat().st_mode & 0o777 for path in files}
    mask = os.umask(0)
    os.umask(mask)
    assert modes == {0o666 & ~mask}


def test_evaluate_gives_the_perplexity_of_a_split_and_of_the_same_text(place, call):
    answer = call("evaluate", "model", "corpus", "--json")
    result = last_json(answer.out)
    assert set(result) == {"tokens", "nats", "perplexity", "mode", "max_row_error"}
    assert result["tokens"] == 320 and result["mode"] == "sentence"
    assert result["perplexity"] == pytest.approx(math.exp(result["nats"] / 320))
    assert result["max_row_error"] < 1e-4
    assert answer.out.startswith(f"perplexity {result['perplexity']:.3f} over 320 tokens")
    assert len(answer.out.splitlines()) == 2  # nothing is wrapped where nobody watches
    assert last_json(call("evaluate", "model", "test.txt", "--json").out) == result
    other = last_json(call("evaluate", "model", "corpus", "--split=valid", "--json").out)
    assert other["tokens"] == 240
    for mode in ("streaming", "window 5"):
        again = last_json(call("evaluate", "model", "corpus", "--mode", mode, "--json").out)
        assert again["mode"] == mode and again["nats"] != result["nats"]


def test_score_reads_stdin(made):
    text = f"{LINE}\nthe zebra .\n".encode()
    answer = run_command("score", "model", "--json", cwd=made.folder, stdin=text)
    assert answer.status == 0 and "zebra" in answer.err and answer.err.count("\n") == 1
    result = last_json(answer.out)
    assert set(result) == {"tokens", "nats", "log_probs"}
    assert result["tokens"] == len(result["log_probs"]) == 8 + 4
    assert result["nats"] == pytest.approx(-sum(result["log_probs"]))
    expected = Model.load(made.folder / "model").score([LINE, "the zebra ."])
    parts = [p for line in expected for p in line.log_probs]
    assert result["log_probs"] == pytest.approx(parts, abs=1e-5)


def test_score_writes_a_line_of_output_for_a_line_of_text(place, call):
    (place / "two.txt").write_text(f"{LINE}\nthe zebra .\n")
    first, second = call("score", "model", "two.txt").out.splitlines()
    total, _, rest = first.partition("\t")
    words = rest.split("  ")
    assert [word.split(" ")[0] for word in words] == [*LINE.split(), "<eos>"]
    assert float(total) == pytest.approx(sum(float(w.split(" ")[1]) for w in words), abs=1e-3)
    assert "<unk>" in second


def test_an_impossible_token_is_null_in_json(place, call):
    from safetensors.torch import load_file, save_file

    weights = place / "model/model.safetensors"
    tensors = load_file(weights)
    word = Model.load(place / "model").tokenizer.id("red")
    rest = tensors["log_emit"].exp()
    rest[word] = 0
    tensors["log_emit"] = (rest / rest.sum(0)).log()
    save_file(tensors, weights)
    (place / "one.txt").write_text(LINE + "\n")
    result = last_json(call("score", "model", "one.txt", "--json").out)
    assert result["log_probs"][1] is None and result["nats"] is None
    assert last_json(call("tag", "model", "one.txt", "--json").out)["states"] == [[-1] * 8]
    answer = last_json(call("tag", "model", "one.txt", "--posterior", "--json").out)
    assert answer["states"] == [[-1] * 8]
    refused = call("next", "model", "the red")
    assert refused.status == 2
    assert refused.err == (
        "hmmlm: The prompt 'the red' has probability zero under this model, so nothing can follow "
        "it; give another.\n"
    )


@pytest.mark.parametrize("given", [[], ["-"]])
def test_a_terminal_is_told_that_lines_are_read_from_it(place, call, monkeypatch, given):
    outer, inner = pty.openpty()
    os.write(outer, f"{LINE}\n\x04".encode())
    with open(inner) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        answer = call("score", "model", *given)
    os.close(outer)
    assert answer.err == "hmmlm: reading lines from the terminal; Ctrl-D ends.\n"
    assert len(answer.out.splitlines()) == 1 and "<eos>" in answer.out


def test_tag_reads_stdin(made):
    answer = run_command("tag", "model", cwd=made.folder, stdin=f"{LINE}\n".encode())
    pairs = [pair.rsplit("/", 1) for pair in answer.out.split()]
    assert [word for word, _ in pairs] == [*LINE.split(), "<eos>"]
    assert all(0 <= int(state) < 4 for _, state in pairs)


@pytest.mark.parametrize("how", [[], ["--posterior"]])
def test_tag_gives_states_in_json(place, call, how):
    result = last_json(call("tag", "model", "test.txt", "--json", *how).out)
    assert result["tokens"] == 320
    model = Model.load("model")
    lines = Path("test.txt").read_text()
    tagged = model.tag(lines) if how else model.viterbi(lines)
    assert result["states"] == [line.states for line in tagged]


def test_sample_is_the_same_with_the_same_seed(place, call):
    texts = [call("sample", "model", "-n", 3, "--seed=5").out for _ in range(2)]
    assert texts[0] == texts[1] and len(texts[0].splitlines()) == 3
    result = last_json(call("sample", "model", "-n", 3, "--seed=5", "--json").out)
    assert "".join(text + "\n" for text in result["texts"]) == texts[0]
    assert call("sample", "model", "-n", 3, "--seed=6").out != texts[0]


def test_sample_goes_on_after_a_prompt_and_no_longer_than_asked(place, call):
    options = ["--prompt=the red dog", "--length=2", "-n", 20, "--seed=0", "--json"]
    texts = last_json(call("sample", "model", *options).out)["texts"]
    assert all(text.startswith("the red dog") for text in texts)
    assert {len(text.split()) for text in texts} <= {3, 4, 5}


def test_long_texts_are_not_wrapped(made):
    options = ["-n", "40", "--length=200", "--seed=0"]
    answer = run_command("sample", "model", *options, cwd=made.folder)
    assert len(answer.out.splitlines()) == 40
    assert max(map(len, answer.out.splitlines())) > 60


def test_next_gives_probabilities_that_fall(place, call):
    result = last_json(call("next", "model", "the red", "-k", 13, "--json").out)["next"]
    assert sum(pair["prob"] for pair in result) == pytest.approx(1, abs=1e-5)
    assert [p["prob"] for p in result] == sorted((p["prob"] for p in result), reverse=True)
    lines = call("next", "model", "the red").out.splitlines()
    assert len(lines) == 10
    assert lines[0].split() == [f"{result[0]['prob']:.6f}", result[0]["token"]]


def test_info_says_what_runs_on_a_device(place, call) -> None:
    answer = call("info", "--device", "cpu", "--json")
    alone = last_json(answer.out)
    lines = [" ".join(line.split()) for line in answer.out.splitlines()[:-1]]
    why = "this is a CPU" if torch.cuda.is_available() else "torch sees no GPU"
    assert lines == [
        "device cpu",
        f"kernels none, and no CUDA graphs: {why}",
        "inference depends on the model; give its folder",
    ]
    assert alone == {
        "device": "cpu",
        "kernels": "none: kernels run on a CUDA device, and this is cpu",
        "inference": "depends on the model; give its folder",
        "step_float32": "no CUDA graph: graphs are of a CUDA device, and this is cpu",
        "step_tf32": "no CUDA graph: graphs are of a CUDA device, and this is cpu",
        "step_bf16": "no CUDA graph: graphs are of a CUDA device, and this is cpu",
    }
    answer = call("info", "model", "--device", "cpu", "--json")
    assert last_json(answer.out)["inference"].startswith("scaled: ")
    assert "inference  scaled: " in answer.out


@pytest.mark.parametrize(
    "capability, triton, said",
    [
        ((9, 0), False, "Triton is not installed; pip install triton"),
        ((7, 5), True, "kernels need bfloat16 (compute capability 8.0); this GPU has 7.5"),
        ((9, 0), True, None),
    ],
)
def test_info_says_what_runs_on_a_gpu(call, monkeypatch, capability, triton, said) -> None:
    pytest.importorskip("triton")
    if not triton:
        monkeypatch.setitem(sys.modules, "triton", None)
    given = {"is_available": True, "device_count": 1, "get_device_name": "A GPU"}
    given["get_device_capability"] = capability
    for name, answer in given.items():
        monkeypatch.setattr(torch.cuda, name, lambda *device, answer=answer: answer)
    lacking.cache_clear()
    try:
        answer = call("info", "--device", "cuda", "--json")
    finally:
        lacking.cache_clear()
    result = last_json(answer.out)
    assert result["device"] == "A GPU" and "              device  A GPU\n" in answer.out
    if said is not None:
        assert result["kernels"] == f"none: {said}" and "emissions_bf16" not in result
        assert result["step_bf16"] == f"no CUDA graph: {said}"
        return
    assert result["kernels"] == "can run"
    assert result["step_float32"].startswith("no CUDA graph: precision is float32")
    assert result["step_bf16"].startswith("one CUDA graph, if one process trains")
    assert result["normaliser_bf16"] == "kernel: products in bfloat16"
    assert result["step_tf32"].startswith("one CUDA graph, if one process trains")
    assert result["normaliser_tf32"] == "kernel: products in tf32"
    assert result["emissions_tf32"] == "kernel: products in tf32"
    assert result["networks_tf32"].startswith("plain: products in float32")
    assert result["networks_float32"].startswith("plain: products in float32")


def test_a_long_fact_goes_on_under_where_it_began(monkeypatch) -> None:
    shown = io.StringIO()
    terminal = Console(file=shown, force_terminal=True, color_system=None, width=40)
    monkeypatch.setattr("hmmlm.cli.output.console", terminal)
    say_fact("device", "a name in [brackets] and more")
    lines = [line.rstrip() for line in shown.getvalue().splitlines()]
    assert lines == [f"{'device':>20}  a name in", f"{'':22}[brackets] and", f"{'':22}more"]


def test_info_of_a_model_and_of_a_corpus(place, call):
    answer = call("info", "model", "--json")
    result = last_json(answer.out)
    assert (result["kind"], result["states"], result["vocabulary"]) == ("model", 4, 13)
    assert result["training"]["train"]["epochs"] == 20
    shown = answer.out.splitlines()
    assert any(line.split()[:2] == ["training", "model"] for line in shown)
    numbers = sum(field.numel() for field in Model.load("model").hmm.fields())
    assert f"{'numbers':>20}  {numbers:,} in its tables" in shown and result["numbers"] == numbers
    result = last_json(call("info", "corpus", "--json").out)
    assert (result["kind"], result["train_tokens"]) == ("corpus", 1600)


def test_info_shows_the_most_used_states_after_the_summary(place, call):
    model = Model.load("model")
    use = torch.zeros(4, dtype=torch.float64)
    for line in Path("valid.txt").read_text().splitlines():
        found = model.posterior(line)
        use.index_add_(0, found.states.flatten(), found.log_probs.double().exp().flatten())
    order = use.argsort(descending=True).tolist()
    shown = call("info", "model", "--states=3").out.splitlines()
    assert shown[0].split() == ["kind", "model"]
    assert shown[-4] == "the most used states, in validation text of corpus, 240 tokens:"
    assert [int(line.split()[0]) for line in shown[-3:]] == order[:3]
    word, prob = model.top_words(order[0], k=1)[0]
    assert shown[-3].split()[1:3] == [word, f"{prob:.2f}"]


def test_info_shows_states_by_their_numbers(place, call, refused):
    shown = call("info", "model", "--state=3", "--state=1").out.splitlines()
    assert [int(line.split()[0]) for line in shown[-2:]] == [3, 1]
    said = "There is no state 4; this model has states 0 to 3."
    assert refused("info", "model", "--state=4") == said
    said = "--states and --state are of an HMM; give its folder, or leave them out."
    assert refused("info", "corpus", "--state=1") == said
    assert refused("info", "text.txt", "--states=1") == said


def test_names_in_brackets_are_printed_as_they_are(place, call):
    answer = call("prepare", "text.txt", "--out=[bold]")
    assert answer.out.endswith("written to [bold]\n")


def test_prepare_takes_a_tokenizer(place, call):
    tokenizer = "model/tokenizer.json"
    assert call("prepare", "test.txt", "--tokenizer", tokenizer, "--out=again").status == 0
    answer = call("evaluate", "model", "again", "--split=train", "--json")
    assert last_json(answer.out)["tokens"] == 320


def test_help_is_fast_and_does_not_wait_for_torch(tmp_path):
    code = """
import sys
from hmmlm.cli import main
sys.argv = ["hmmlm", "--help"]
try:
    main()
except SystemExit as end:
    assert not end.code
print("torch" in sys.modules, "numpy" in sys.modules)
"""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout.splitlines()[-1] == "False False"
    commands = ["prepare", "train", "evaluate", "score", "tag", "sample", "next", "info", "demo"]
    commands += ["sweep", "plot", "sample-corpus", "gap", "constraint", "guide", "world"]
    assert all(f" {command} " in done.stdout for command in commands)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1


def test_no_command_shows_the_help(call):
    answer = call()
    assert answer.status == 2 and "Usage: hmmlm" in answer.out and answer.err == ""


def test_demo_goes_the_whole_way(tmp_path):
    answer = run_command(
        "demo", "--epochs=1", "--states=65", "--out=here/demo", "--json", cwd=tmp_path
    )
    assert answer.status == 0
    assert all(line.startswith("step ") for line in answer.err.splitlines())
    for heading in (
        "1. Text:",
        "2. Training",
        "3. Perplexity",
        "4. 10 states",
        "5. Three",
        "6. One",
    ):
        assert sum(line.startswith(heading) for line in answer.out.splitlines()) == 1, heading
    result = last_json(answer.out)
    numbers = {"unigram", "hmm", "kneser-ney_bigram"}
    assert {"folder", "steps", "seconds", "val", "peak_bytes"} | numbers == set(result)
    assert 1 < result["kneser-ney_bigram"] < result["hmm"]
    assert re.search(rf"HMM, 65 states +{result['hmm']:.1f}\n", answer.out)
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["demo"]
    assert Model.load(tmp_path / "here/demo").hmm.num_states == 65


def test_demo_takes_the_next_free_name(place, call, monkeypatch):
    from hmmlm.cli import tour

    (place / "runs/demo").mkdir(parents=True)
    (place / "runs/demo-2").mkdir()
    seen = []
    monkeypatch.setattr(tour, "fit", lambda corpus, out, *_, **__: seen.append(out) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        call("demo")
    assert [str(path) for path in seen] == ["runs/demo-3"]


class Terminal:
    """A terminal that shows the standard error of a process."""

    def __init__(self, *arguments: str, cwd: Path, stdout) -> None:
        self.side, inner = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hmmlm", *arguments],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=inner,
            env={**os.environ, "PYTHONPATH": SOURCE, "TERM": "xterm", "COLUMNS": "100"},
        )
        os.close(inner)
        self.shown = ""

    def read(self, until: str | None) -> None:
        """Reads what is shown until a word appears, or to the end."""
        ends = time.monotonic() + 120
        while time.monotonic() < ends and (until is None or until not in self.shown):
            try:
                data = os.read(self.side, 4096)
            except OSError:  # the other side is closed
                return
            if not data:
                return
            self.shown += data.decode(errors="replace")


def test_a_bar_on_the_terminal_leaves_standard_output_alone(made, tmp_path):
    with (tmp_path / "out.txt").open("wb") as out:
        terminal = Terminal("score", "model", "text.txt", cwd=made.folder, stdout=out)
        terminal.read(None)
    assert terminal.process.wait(60) == 0
    assert "Scoring" in terminal.shown
    assert len((tmp_path / "out.txt").read_text().splitlines()) == 200


def test_stopping_a_training_leaves_a_checkpoint(made, tmp_path):
    target = tmp_path / "deep/model"
    options = ["--out", str(target), "--epochs=1000000"]
    terminal = Terminal("train", "corpus", *options, cwd=made.folder, stdout=subprocess.PIPE)
    terminal.read("perplexity")
    terminal.process.send_signal(signal.SIGINT)
    terminal.read(None)
    out, _ = terminal.process.communicate(timeout=60)
    assert terminal.process.returncode == 130
    step = (target / "metrics.jsonl").read_text().count("\n")
    last = f"hmmlm: Stopped; hmmlm train --resume {target} goes on after step {step:,}."
    # Its lines are wrapped, also within a name that is longer than they are.
    assert "".join(terminal.shown.split()).endswith("".join(last.split()))
    assert "stopping after this step; Ctrl-C again leaves now" in terminal.shown
    assert "Traceback" not in terminal.shown
    assert out.startswith(b"lowrank, 64 states") and out.count(b"\n") == 1  # said before it began
    names = [path.name for path in (target / "checkpoints").iterdir()]
    assert names == [f"step-{step:09d}"]


def test_stopping_twice_leaves_at_once(made, tmp_path):
    target = tmp_path / "model"
    code = (
        "import sys, time, hmmlm.train.checkpoint as checkpoint\n"
        "checkpoint.save_file = lambda *_: (print('saving', flush=True), time.sleep(60))\n"
        "from hmmlm.cli import main\n"
        "sys.argv = ['hmmlm', 'train', 'corpus', '--epochs=1000000', '--out', sys.argv[1]]\n"
        "main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(target)],
        cwd=made.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert process.stdout is not None
    until = time.monotonic() + 60
    while not (target / "metrics.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert any(b"saving" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130 and said.endswith(b" leaves now\nhmmlm: stopped.\n")
    assert not (target / "checkpoints").exists()


def test_a_reader_that_has_enough_ends_the_command_quietly(made):
    (made.folder / "long.txt").write_text("".join(f"{x}\n" for x in made_up_lines(5000, 1)))
    process = subprocess.Popen(
        [sys.executable, "-m", "hmmlm", "score", "model", "long.txt"],
        cwd=made.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 1


def test_standard_output_on_a_full_disk_is_one_sentence(made):
    # Buffered, as it is for people: the disk is found full only when the buffer is written.
    environment = {**os.environ, "PYTHONPATH": SOURCE, "PYTHONUNBUFFERED": ""}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hmmlm", "next", "model"],
            cwd=made.folder,
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment,
        )
    assert (done.returncode, done.stderr) == (2, b"hmmlm: No space left on device.\n")
