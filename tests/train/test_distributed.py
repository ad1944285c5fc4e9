"""Two ranks give what one gives with the same batches."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import ranks
from commands import lines_of_ours, run_command, torchrun
from hmmlm.data.batches import Packed, own_rows
from hmmlm.errors import InputError
from hmmlm.params import lowrank, mlp, scalar, transformer
from hmmlm.support import Support
from hmmlm.train.distributed import ONE, join, own_device
from hmmlm.train.loss import Dropout, HmmLoss
from ranks import CASES, STOP, make_batches, run


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


@pytest.mark.parametrize(
    "name, value",
    [("WORLD_SIZE", "abc"), ("WORLD_SIZE", "0"), ("RANK", "-1"), ("LOCAL_RANK", "1.5")],
)
def test_an_environment_that_names_no_rank(monkeypatch, name, value):
    for other in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.setenv(other, "2")
    monkeypatch.setenv(name, value)
    wanted = f"{name} is '{value}' but must be a whole number of at least [01]; start ranks with t"
    with pytest.raises(InputError, match=wanted), join("cpu"):
        raise AssertionError


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
