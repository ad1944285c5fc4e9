"""Powers of an HMM's distributions."""

from dataclasses import replace

import pytest
import torch

from enumeration import full_emissions
from hmmlm import inference
from hmmlm.errors import InputError
from hmmlm.hmm import HMM
from hmmlm.products import BF16, FLOAT32
from hmmlm.tempering import lowest, tempered
from models import SUPPORTS, TRANSITIONS, make_hmm, with_holes


def by_hand(log_probs: torch.Tensor, power: float, dim: int) -> torch.Tensor:
    probs = log_probs.exp() ** power
    return probs / probs.sum(dim, keepdim=True)


@pytest.mark.parametrize("transitions", TRANSITIONS)
@pytest.mark.parametrize("support", SUPPORTS)
def test_each_distribution_is_a_power_of_what_it_was(support: str, transitions: str) -> None:
    hmm = make_hmm(support, transitions)
    made = tempered(hmm, emit=0.7, trans=1.4).validate()
    torch.testing.assert_close(full_emissions(made).exp(), by_hand(full_emissions(hmm), 0.7, 0))
    before, after = (each.transitions.rows(0, each.num_states) for each in (hmm, made))
    torch.testing.assert_close(after.exp(), by_hand(before, 1.4, 1))
    assert made.log_init.equal(hmm.log_init)
    same = tempered(hmm)
    assert all(a.equal(b) for a, b in zip(same.fields(), hmm.fields(), strict=True))


def test_zeros_stay() -> None:
    hmm = with_holes(make_hmm("blocks"))
    emit = hmm.log_emit.clone()
    emit[1, 0], emit[2, 0] = -torch.inf, torch.logaddexp(emit[1, 0], emit[2, 0])
    hmm = HMM(hmm.log_init, hmm.transitions, emit, hmm.support).validate()
    made = tempered(hmm, emit=0.5, trans=0.5).validate()
    for old, new in zip(hmm.fields(), made.fields(), strict=True):
        assert torch.isneginf(old).equal(torch.isneginf(new))


def test_factors_are_no_longer_rounded() -> None:
    hmm = make_hmm("blocks", "factored")
    hmm = replace(hmm, transitions=replace(hmm.transitions, operand=BF16))
    assert tempered(hmm, emit=0.5).transitions.operand == BF16
    assert tempered(hmm, trans=0.5).transitions.operand == FLOAT32


def test_soft_evidence_is_of_the_emissions_as_they_are() -> None:
    hmm = make_hmm("blocks")
    soft = inference.soften(hmm, torch.zeros(1, 5))
    with pytest.raises(InputError, match="has soft evidence, which is of its emissions; temper"):
        tempered(soft, emit=0.5)


@pytest.mark.parametrize("power", [0.0, -1.0, float("inf"), float("nan")])
def test_a_power_that_is_none(power: float) -> None:
    with pytest.raises(InputError, match=r"trans is .* but must be over 0 and finite"):
        tempered(make_hmm(), trans=power)


@pytest.mark.parametrize("name", ["emit", "trans"])
def test_a_power_that_is_too_small_or_too_large(name: str) -> None:
    hmm = with_holes(make_hmm("blocks")).to(dtype=torch.float32)
    for power in (1e-6, 100.0):
        tempered(hmm, **{name: power}).validate()
    for power, told in ((1e-50, "1e-50"), (1e39, r"1e\+39")):
        words = rf"{name} is {told} but must lie between 1e-06, which makes .* alike, and 100, whi"
        with pytest.raises(InputError, match=words):
            tempered(hmm, **{name: power})


def test_the_lowest_place_of_a_valley() -> None:
    asked = []

    def cost(place: float) -> float:
        asked.append(place)
        return (place - 0.8) ** 2

    assert lowest(cost, 0.5, 1.3) == pytest.approx(0.8, abs=0.02)
    assert len(asked) == len(set(asked)) <= 9
    assert lowest(lambda place: 0.0 if place == 1.0 else 1.0, 0.5, 1.3) == 1.0
