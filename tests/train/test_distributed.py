"""Two ranks give what one gives with the same batches, and end together when one of them fails."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import ranks
from commands import SOURCE, Answer, made_up_lines, run_command
from hmmlm.data.batches import Packed, own_rows
from hmmlm.errors import InputError
from hmmlm.params import lowrank, mlp, scalar, transformer
from hmmlm.support import Support
from hmmlm.train.distributed import ONE, join, own_device
from hmmlm.train.loss import Dropout, HmmLoss
from ranks import CASES, STOP, make_batches, run


def torchrun(*arguments: object, cwd: Path) -> Answer:
    """Two ranks of one thread each."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launch, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
        timeout=120,
    )
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())


def lines_of_ours(answer: Answer) -> list[str]:
    return [line for line in answer.err.splitlines() if line.startswith("hmmlm: ")]


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """What one rank does in every case; the folder has where it stood in the middle."""
    folder = tmp_path_factory.mktemp("alone")
    made = {name: run(name) for name in CASES}
    for name, found in made.items():
        torch.save(found["stopped"], folder / f"{name}.pt")
    return folder, made


@pytest.fixture(scope="module")
def together(alone) -> dict[str, Any]:
    folder = alone[0]
    answer = torchrun(ranks.__file__, "compare", folder, cwd=folder)
    assert answer.status == 0, answer.err
    return torch.load(folder / "together.pt", weights_only=False)


def assert_same_steps(ours: list[Any], truth: list[Any]) -> None:
    assert [(step, tokens) for step, _, tokens in ours] == [(s, n) for s, _, n in truth]
    losses = ([loss for _, loss, _ in steps] for steps in (ours, truth))
    assert next(losses) == pytest.approx(next(losses), abs=1e-6)


def assert_same_weights(ours: dict[str, Any], truth: dict[str, Any]) -> None:
    assert ours.keys() == truth.keys()
    for name in truth:
        torch.testing.assert_close(ours[name], truth[name], rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_give_what_one_gives(name, alone, together):
    truth, found = alone[1][name], together["cases"][name]
    assert len(truth["steps"]) >= 20
    assert_same_steps(found["whole"]["steps"], truth["steps"])
    assert_same_weights(found["whole"]["weights"], truth["weights"])
    for weights in found["others"]:
        assert all(torch.equal(weights[key], found["others"][0][key]) for key in weights)


@pytest.mark.parametrize("name", CASES)
def test_a_state_of_one_rank_goes_on_with_two_and_the_other_way_round(name, alone, together):
    truth, found = alone[1][name], together["cases"][name]
    state = found["whole"]["stopped"]
    assert state.tensors.keys() == truth["stopped"].tensors.keys()
    for ours in (found["resumed"], run(name, state=state)):
        assert_same_steps(ours["steps"], truth["steps"][STOP:])
        assert_same_weights(ours["weights"], truth["weights"])


def test_ranks_exchange_sums_and_values(together):
    for found in together["exchanged"]:
        assert found["sums"][0].tolist() == [3.0, 3.0] and found["sums"][1].tolist() == [1]
        assert found["total"] == [2.0, 4.0]
        assert found["once"] == "0"


def test_ranks_that_disagree_are_told_the_setting_and_both_values(together):
    for found in together["exchanged"]:
        assert found["refused"] == [
            "train.learning_rate is 0.1 on rank 0 but 1.1 on rank 1; start all ranks with the "
            "same settings and the same text.",
            "train.dropout_last is not set on rank 0 but 0.0 on rank 1; start all ranks with the "
            "same settings and the same text.",
        ]


def test_a_loss_that_is_no_number_on_one_rank_stops_all(together):
    for found in together["exchanged"]:
        assert found["diverged"].startswith("Training stopped at step 3 with learning rate")
        assert "the loss is nan" in found["diverged"]


@pytest.mark.parametrize("layout", ["packed", "streams", "windows"])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_ranks_share_the_rows_of_every_batch(layout, number):
    whole = make_batches(layout)
    parts = [make_batches(layout, rank, number) for rank in range(number)]
    assert {part.num_batches for part in parts} == {whole.num_batches}
    without = 0
    for together, *apart in zip(whole, *parts, strict=True):
        rows = []
        for batch in apart:
            if batch.num_tokens:
                every = zip(batch.tokens, batch.lengths, batch.restart, strict=True)
                rows += [(row[:n].tolist(), starts[:n].tolist()) for row, n, starts in every]
            else:
                without += 1
                assert batch.tokens.tolist() == [[-1]] and batch.restart.all()
        every = zip(together.tokens, together.lengths, together.restart, strict=True)
        assert rows == [(row[:n].tolist(), starts[:n].tolist()) for row, n, starts in every]
        assert sum(batch.num_tokens for batch in apart) == together.num_tokens
    assert bool(without) == (number > 1)  # the last batch is short in all layouts


def every_kind() -> Iterator[Any]:
    """Every way to put a parameterisation together."""

    def choices(*names: str) -> Iterator[dict[str, bool]]:
        for values in itertools.product([False, True], repeat=len(names)):
            yield dict(zip(names, values, strict=True))

    yield scalar.Settings()
    for given in choices("shared", "factor_init", "factor_trans", "factor_emit", "composed"):
        yield lowrank.Settings(width=4, **given)
    for start, given in itertools.product(
        ("network", "linear"), choices("split", "monolithic", "destination", "composed")
    ):
        yield mlp.Settings(width=4, start=start, **given)
        yield transformer.Settings(width=4, depth=1, heads=2, start=start, **given)


def test_every_parameter_has_a_gradient_in_every_step():
    """Gradients of a step go round together, so none may be missing."""
    support = Support.from_clusters(ranks.BLOCKS, 3)
    *_, full, nothing = make_batches("packed", 1, 2)
    assert full.num_tokens and not nothing.num_tokens
    for settings, batch in itertools.product(every_kind(), (full, nothing)):
        model = settings.build(support, generator=torch.Generator(), dtype=torch.float64)
        HmmLoss(model, support, dropout=Dropout(0.5))(batch, 0.0).backward()
        sizes = {key: p.grad.abs().max() for key, p in model.named_parameters() if p.numel()}
        assert batch.num_tokens or max(sizes.values()) < 1e-12, settings


def test_rows_that_cannot_be_shared_equally_are_refused():
    with pytest.raises(InputError, match=r"batch_size is 10, which 4 .*; use 8 or 12\."):
        Packed(ranks.tokens(), 10, 64, rank=1, ranks=4)
    with pytest.raises(InputError, match=r"batch_size is 3, which 4 ranks .*; use 4\."):
        own_rows(3, 0, 4)


def test_without_torchrun_there_is_one_rank(monkeypatch):
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with join("cuda") as found:
        assert (found.rank, found.ranks, found.device) == (0, 1, "cuda")
        assert not torch.distributed.is_initialized()
        assert found.gather(3) == [3] and found.once(int, "4") == 4 and found.total(2) == [2.0]
        found.agree({"train.epochs": 3})
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="WORLD_SIZE is 2 but RANK is not set"), join("cpu"):
        pass
    assert ONE.ranks == 1


def test_each_rank_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert own_device("cpu", 5) == "cpu"
    assert own_device("cuda", 1) == "cuda:1" and chosen == [1]
    with pytest.raises(InputError, match="more than 2 ranks on this machine but torch finds 2 GPU"):
        own_device("cuda", 2)
    with pytest.raises(InputError, match="The device is cuda:1 but several ranks would share it"):
        own_device("cuda:1", 0)


def test_a_wrong_option_is_told_by_the_first_rank(monkeypatch, tmp_path):
    for rank, told in (("0", 1), ("1", 0)):
        for name, value in (("WORLD_SIZE", "2"), ("RANK", rank), ("LOCAL_RANK", rank)):
            monkeypatch.setenv(name, value)
        answer = run_command("train", "--nonsense", cwd=tmp_path)
        assert answer.status == 2 and len(lines_of_ours(answer)) == told


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "text.txt").write_text("\n".join(made_up_lines(150, seed=0)))
    (folder / "valid.txt").write_text("\n".join(made_up_lines(20, seed=1)))
    made = run_command("prepare", "text.txt", "--valid", "valid.txt", "--out", "c", cwd=folder)
    assert made.status == 0, made.err
    return folder


TRAIN = ("train", "c", "--states", "24", "--blocks", "6", "--batch-size", "6", "--length", "24")


def test_the_command_under_torchrun(corpus):
    how = (*TRAIN, "--epochs", "2", "--set", "model.width=4", "--json")
    two = torchrun("-m", "hmmlm", *how, "--out", "two", cwd=corpus)
    assert two.status == 0, two.err
    one = run_command(*how, "--out", "one", cwd=corpus)
    said = two.out.splitlines()
    assert len(said) == len(set(said)) and "2 ranks, each 3 rows of a batch" in said
    for key in ("steps", "val"):
        found = [json.loads(answer.out.splitlines()[-1])[key] for answer in (one, two)]
        assert found[1] == pytest.approx(found[0], rel=1e-4)
    metrics = [
        (corpus / name / "metrics.jsonl").read_text().splitlines() for name in ("one", "two")
    ]
    ours, truth = ([json.loads(line)["loss"] for line in lines] for lines in metrics)
    assert ours == pytest.approx(truth, rel=1e-4)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            "disagree",
            "hmmlm: train.learning_rate is 0.03 on rank 0 but 0.125 on rank 1; start all ranks "
            "with the same settings and the same text.",
        ),
        ("fail", "hmmlm: train-00000.bin: Input/output error."),
    ],
)
def test_an_error_of_one_rank_is_told_once_and_ends_all(act, message, corpus):
    answer = torchrun(ranks.__file__, act, *TRAIN, "--out", act, cwd=corpus)
    assert answer.status != 0 and not (corpus / act / "config.json").exists()
    assert lines_of_ours(answer) == [message]


def test_a_rank_that_dies_ends_all(corpus):
    answer = torchrun(ranks.__file__, "die", *TRAIN, "--out", "die", cwd=corpus)
    assert answer.status != 0 and not (corpus / "die/config.json").exists()
    # torchrun may end the other one before it has said anything.
    assert all("Rank 0 lost another rank" in line for line in lines_of_ours(answer))
    assert "SIGKILL" in answer.err


def test_a_rank_that_dies_and_is_started_again_changes_nothing(corpus):
    how = (*TRAIN, "--epochs", "3", "--set", "model.width=4", "--set", "train.save_steps=2")
    answer = torchrun(
        "--max-restarts=1", ranks.__file__, "die once", *how, "--out", "restarted", cwd=corpus
    )
    assert answer.status == 0, answer.err
    assert "exitcode: -9" in answer.err and "going on after step 2 of " in answer.out
    whole = torchrun("-m", "hmmlm", *how, "--out", "undisturbed", cwd=corpus)
    assert whole.status == 0, whole.err
    files = [corpus / name / "model.safetensors" for name in ("restarted", "undisturbed")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_signal_to_one_rank_stops_all_and_any_number_goes_on(corpus):
    how = (*TRAIN, "--epochs", "3", "--set", "model.width=4")
    answer = torchrun(ranks.__file__, "stop", *how, "--out", "stopped", cwd=corpus)
    assert answer.status != 0
    (said,) = lines_of_ours(answer)
    assert said == "hmmlm: Stopped; hmmlm train --resume stopped goes on after step 4."
    resumed = run_command("train", "--resume", "stopped", "--json", cwd=corpus)
    assert resumed.status == 0, resumed.err
    whole = run_command(*how, "--out", "never-stopped", "--json", cwd=corpus)
    found = [json.loads(answer.out.splitlines()[-1])["val"] for answer in (resumed, whole)]
    assert found[0] == pytest.approx(found[1], rel=1e-4)
