"""The HMM value: checked tables, subsets, tiles."""

from dataclasses import replace

import pytest
import torch

from hmmlm.hmm import HMM, emission_table
from hmmlm.support import Support
from hmmlm.transitions import Dense, Factored
from models import SUPPORTS, TRANSITIONS, make_hmm

UNIFORM = (
    torch.full((2,), 0.5).log(),
    torch.full((2, 2), 0.5).log(),
    torch.full((2, 4), 0.25).log(),
)


def tables(**changes: torch.Tensor) -> list[torch.Tensor]:
    names = ("log_init", "log_trans", "log_emit")
    return [changes.get(n, t.clone()) for n, t in zip(names, UNIFORM, strict=True)]


def test_from_tables_stores_emissions_by_word() -> None:
    hmm = HMM.from_tables(*UNIFORM)
    assert hmm.log_emit.shape == (4, 2)
    assert (hmm.num_states, hmm.vocab_size) == (2, 4)


def test_from_tables_with_a_support_takes_only_its_cells() -> None:
    support = Support.from_clusters([0, 0, 1, 1], 1)
    emit = torch.tensor([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]]).log()
    hmm = HMM.from_tables(*UNIFORM[:2], emit, support=support)
    assert hmm.log_emit.shape == (4, 1)
    with pytest.raises(ValueError, match="log_emit gives 4 words to states that the support"):
        HMM.from_tables(*UNIFORM, support=support)
    with pytest.raises(ValueError, match="The support is for 4 words and 2 states, log_emit for 3"):
        HMM.from_tables(*UNIFORM[:2], torch.full((2, 3), 1 / 3).log(), support=support)


NAN = torch.tensor([[0.5, 0.5], [float("nan"), 1.0]]).log()
BAD = [
    ({"log_trans": NAN}, r"log_trans has nan at \(1, 0\) \(1 such cells\)"),
    ({"log_init": torch.tensor([0.5, 0.6]).log()}, "log_init is not normalised.*sum to 1.1, not 1"),
    ({"log_trans": torch.tensor([[0.5, 0.5], [0.5, 0.4]]).log()}, "of state 1 sum to 0.9, not 1"),
    ({"log_emit": torch.randn(2, 4)}, "log_emit is not normalised"),
    ({"log_init": torch.tensor([torch.inf, 0.0])}, r"log_init has inf at \(0, 0\)"),
    ({"log_emit": torch.full((3, 4), 0.25).log()}, r"do not fit together: log_init \(2,\)"),
    ({"log_trans": torch.full((3, 3), 1 / 3).log()}, r"do not fit together: .*log_trans \(3, 3\)"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=range(len(BAD)))
def test_tables_that_are_refused(changes: dict[str, torch.Tensor], message: str) -> None:
    from jaxtyping import TypeCheckError

    with pytest.raises((ValueError, TypeCheckError)) as caught:
        HMM.from_tables(*tables(**changes))
    if not isinstance(caught.value, TypeCheckError):
        assert caught.match(message)


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("transitions", TRANSITIONS)
def test_restrict_renormalises(support: str, transitions: str) -> None:
    hmm = make_hmm(support, transitions)
    kept, carried = torch.arange(1, hmm.num_states), torch.tensor([0, 1])
    part = hmm.restrict(kept, carried)
    table = hmm.transitions.rows(0, hmm.num_states)[:, 1:].log_softmax(-1)
    assert part.source_ids is not None and part.state_ids is not None
    assert part.source_ids.tolist() == [*kept.tolist(), 0]
    torch.testing.assert_close(
        part.transitions.rows(0, part.transitions.num_sources), table[part.source_ids]
    )
    torch.testing.assert_close(part.log_init, hmm.log_init[1:].log_softmax(0))
    everything = part.to(dtype=torch.float64)
    ids = everything.support.rows[everything.support.row_of_word]
    totals = torch.zeros(len(kept), dtype=torch.float64)
    totals.index_add_(0, ids.clamp(min=0).flatten(), everything.log_emit.exp().flatten())
    torch.testing.assert_close(totals, torch.ones_like(totals))
    assert part.global_states(torch.tensor([0, -1])).tolist() == [1, -1]


def test_restrict_twice_keeps_global_names() -> None:
    hmm = make_hmm("dense")
    twice = hmm.restrict(torch.tensor([2, 0])).restrict(torch.tensor([1]))
    assert twice.state_ids is not None and twice.state_ids.tolist() == [0]


@pytest.mark.parametrize("transitions", TRANSITIONS)
def test_tiles_and_rows_agree(transitions: str) -> None:
    table = make_hmm("ragged", transitions).transitions
    sources, destinations = torch.tensor([[0, 2], [3, 1]]), torch.tensor([[1, 3, 0], [2, 2, 0]])
    tile, rows = table.tile(sources, destinations), table.rows(0, 4)
    for b in range(2):
        torch.testing.assert_close(tile[b], rows[sources[b]][:, destinations[b]])


def test_row_error_sees_a_wrong_normaliser() -> None:
    left, right = torch.randn(4, 2), torch.randn(4, 2)
    good = Factored.normalise(left, right)
    assert good.row_error(torch.arange(4)) < 1e-6
    assert Factored(left, right, good.log_norm + 0.01).row_error(torch.arange(4)) > 5e-3
    assert Dense(torch.zeros(2, 2)).row_error(torch.arange(2)) == pytest.approx(1)


def test_to_moves_and_casts_every_field() -> None:
    part = make_hmm("blocks", "factored").restrict(torch.tensor([0, 2])).to(dtype=torch.float32)
    assert {field.dtype for field in part.fields()} == {torch.float32}
    assert part.state_ids is not None and part.state_ids.dtype == torch.long


def test_gradient_of_the_emission_normaliser_has_no_nan_in_padding() -> None:
    support = Support.ragged([[0, 1], [1]], 2)
    logits = torch.tensor([[0.3, 0.1], [0.5, -torch.inf]], requires_grad=True)
    table = emission_table(logits, support)
    assert torch.isneginf(table[1, 1])
    table.masked_fill(torch.isneginf(table), 0.0).sum().backward()
    assert logits.grad is not None and not torch.isnan(logits.grad).any()


@pytest.mark.parametrize("support", [Support.dense(50, 4), Support.from_clusters([0, 1] * 25, 2)])
def test_emissions_of_large_logits_sum_to_one(support: Support) -> None:
    noise = torch.randn(50, support.width, generator=torch.Generator().manual_seed(0))
    ids = support.rows[support.row_of_word]
    table = emission_table(20_000 + noise, support).double().exp()
    sums = torch.zeros(support.num_states, dtype=torch.float64)
    sums.index_add_(0, ids.flatten(), table.flatten())
    assert (sums - 1).abs().max() < 1e-6


def test_restrict_leaves_impossible_what_has_nothing_left() -> None:
    """Left to right: from the last state nothing but itself can be reached."""
    trans = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]).log()
    init = torch.tensor([1.0, 0.0, 0.0]).log()
    hmm = HMM.from_tables(init, trans, torch.full((3, 2), 0.5).log())
    part = hmm.restrict(torch.tensor([0, 1]), carried=torch.tensor([2]))
    assert torch.isneginf(part.transitions.rows(2, 3)).all()
    assert torch.isneginf(hmm.restrict(torch.tensor([1, 2])).log_init).all()
    for bad in ([0, 0, 1], [3], [-1], []):
        with pytest.raises(ValueError, match="A subset n"):
            hmm.restrict(torch.tensor(bad, dtype=torch.long))


def test_tables_of_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match=r"float16 but must all be float32 or all float64"):
        HMM.from_tables(*(table.half() for table in UNIFORM))
    with pytest.raises(ValueError, match=r"float32, float64 but must all be"):
        HMM.from_tables(UNIFORM[0].double(), *UNIFORM[1:])


@pytest.mark.parametrize("kind", ["dense", "factored"])
def test_long_run_frequencies_do_not_change(kind: str) -> None:
    hmm = make_hmm("blocks", kind)
    table = hmm.transitions.rows(0, hmm.num_states).exp()
    use = hmm.long_run()
    torch.testing.assert_close(use @ table, use, rtol=0, atol=1e-6)
    assert float(use.sum()) == pytest.approx(1)


def test_long_run_of_a_chain_that_goes_round_in_circles() -> None:
    log_trans = torch.eye(3).roll(1, 1).log()
    hmm = HMM.from_tables(torch.tensor([1.0, 0, 0]).log(), log_trans, torch.zeros(3, 1))
    torch.testing.assert_close(hmm.long_run(), torch.full((3,), 1 / 3), rtol=0, atol=1e-5)


def test_of_a_large_table_rows_all_over_it_are_looked_at(monkeypatch) -> None:
    hmm = make_hmm("blocks", "factored")
    seen = []
    plain = Factored.rows
    monkeypatch.setattr(
        Factored, "rows", lambda self, a, b: (seen.append((a, b)), plain(self, a, b))[1]
    )
    hmm.validate()
    assert seen == [(0, 4)]
    seen.clear()
    monkeypatch.setattr("hmmlm.hmm.CHECKED", 15)
    monkeypatch.setattr("hmmlm.hmm.SAMPLED", 8)
    monkeypatch.setattr("hmmlm.hmm.GROUP", 4)
    hmm.validate()
    assert seen == [(0, 1), (2, 3)]
    wrong = hmm.transitions.log_norm + torch.tensor([0.0, 0.0, 0.1, 0.0], dtype=torch.float64)
    left, right, _ = hmm.transitions.fields()
    with pytest.raises(ValueError, match=r"of state 2 sum to 0\.90"):
        replace(hmm, transitions=hmm.transitions.with_fields(left, right, wrong)).validate()
    error = hmm.transitions.with_fields(left, right, wrong).row_error(torch.arange(4))
    monkeypatch.setattr("hmmlm.transitions.GROUP", 4)
    again = hmm.transitions.with_fields(left, right, wrong)
    assert (
        again.row_error(torch.arange(4)) == pytest.approx(error) == pytest.approx(0.0952, abs=1e-4)
    )
    lost = again.with_fields(left, right, torch.full_like(wrong, torch.nan))
    assert lost.row_error(torch.arange(4)) != lost.row_error(torch.arange(4))


def test_long_run_of_a_chain_that_hardly_moves() -> None:
    """Also where it can never leave some of its states."""
    sticky = torch.tensor([[1 - 1e-7, 1e-7, 0.0], [3e-7, 1 - 3e-7, 0.0], [0.0, 0.0, 1.0]])
    hmm = HMM.from_tables(
        torch.tensor([0.5, 0.0, 0.5]).double().log(),
        sticky.double().div(sticky.double().sum(1, keepdim=True)).log(),
        torch.full((3, 2), 0.5).double().log(),
    )
    truth = torch.tensor([0.375, 0.125, 0.5]).double()
    torch.testing.assert_close(hmm.long_run(), truth, rtol=0, atol=2e-3)
