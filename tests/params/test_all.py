"""What must hold of every parameterisation."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hmmlm import inference
from hmmlm.data.batches import Batch
from hmmlm.errors import InputError
from hmmlm.hmm import HMM
from hmmlm.params import lowrank, mlp, pretrained, scalar, transformer
from hmmlm.params.dropout import keep_states
from hmmlm.products import round_to_tf32
from hmmlm.support import Support
from hmmlm.train.loop import TrainSettings
from hmmlm.train.loss import HmmLoss, arithmetic, loss
from hmmlm.train.sgd import train
from hmmlm.transitions import Factored

SUPPORTS = {
    "dense": lambda: Support.dense(7, 5),
    "blocks": lambda: Support.from_clusters([0, 1, 1, 0, 2, 2, 0], [2, 1, 2]),
    "uniform": lambda: Support.uniform(7, 5, 3, torch.Generator().manual_seed(0)),
    "ragged": lambda: Support.ragged([[0], [1, 2], [4, 3, 0], [2], [0, 1, 2, 3, 4], [3], [1]], 5),
}
SETTINGS = {
    "scalar": scalar.Settings(),
    "lowrank": lowrank.Settings(width=3, scale=1.0),
    "one table": lowrank.Settings(width=3, shared=True, scale=1.0),
    "factored emissions": lowrank.Settings(width=3, factor_trans=False, factor_init=False),
    "factored transitions": lowrank.Settings(width=3, factor_emit=False, bias=False),
    "factored start": lowrank.Settings(width=3, factor_trans=False, factor_emit=False),
    "released mlp": mlp.Settings(width=4),
    "paper's mlp": mlp.Settings(width=4, destination=True, start="linear", bias=False),
    "split mlp": mlp.Settings(width=4, split=True, layers=1, skip=False, layer_norm=False),
    "monolithic mlp": mlp.Settings(width=4, monolithic=True, destination=True),
    "monolithic, plain": mlp.Settings(width=4, monolithic=True, start="linear"),
    "monolithic split": mlp.Settings(width=4, monolithic=True, split=True, relu=False),
    "transformer": transformer.Settings(width=4, heads=2, depth=2),
    "three transformers": transformer.Settings(width=4, heads=2, depth=1, monolithic=False),
}
# GPT-2, whose layers are float64 throughout if they are asked to be: others have norms in float32.
GPT2 = pretrained.Settings(str(Path(__file__).parent / "gpt2"), random=True, scale=1.0)
SETTINGS |= {"pretrained": GPT2} if find_spec("transformers") else {}
COMPOSED = {
    "composed lowrank": lowrank.Settings(width=4, composed=True),
    "composed mlp": mlp.Settings(width=4, composed=True),
    "composed transformer": transformer.Settings(width=4, heads=2, composed=True),
}
ALL = {**SETTINGS, **COMPOSED}
PAIRS = [(s, p) for s in SUPPORTS for p in ALL if s in ("dense", "blocks") or p in SETTINGS]
TEXT = torch.tensor([[0, 3, 2, 6, 1], [5, 2, 4, 0, 3]])


def build(support: str | Support, name: str, **changes) -> nn.Module:
    support = SUPPORTS[support]() if isinstance(support, str) else support
    generator = torch.Generator().manual_seed(1)
    return ALL[name].build(support, **{"generator": generator, "dtype": torch.float64, **changes})


def same(a: HMM, b: HMM) -> None:
    table_a, table_b = (h.transitions.rows(0, h.transitions.num_sources) for h in (a, b))
    torch.testing.assert_close(a.log_init, b.log_init, rtol=0, atol=1e-12)
    torch.testing.assert_close(table_a, table_b, rtol=0, atol=1e-12)
    torch.testing.assert_close(a.log_emit, b.log_emit, rtol=0, atol=1e-12)
    assert torch.equal(a.support.rows, b.support.rows)


@pytest.mark.parametrize(("support", "name"), PAIRS)
def test_rows_sum_to_one(support: str, name: str) -> None:
    build(support, name)().validate()


def test_rows_of_very_large_logits_sum_to_one_where_they_are_asked() -> None:
    """Float32 factors say logits of tens of thousands to a hundredth."""
    settings = lowrank.Settings(width=3, scale=100.0)
    model = settings.build(Support.dense(7, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        asked = model().detach()
        part = model(torch.arange(30), torch.tensor([33, 35])).transitions
    table = asked.transitions
    learnt = model().transitions  # of which factors a gradient is wanted
    assert isinstance(learnt, Factored) and (learnt.log_norm > 1e4).any()
    exact = model.double()().transitions.rows(0, 40).detach()
    assert table.row_error(torch.arange(40)) < 1e-6
    assert part.num_sources == 32 and part.row_error(torch.arange(32)) < 1e-6
    kept = exact[[*range(30), 33, 35], :30].log_softmax(1)
    torch.testing.assert_close(part.rows(0, 32).double().exp(), kept.exp(), rtol=0, atol=1e-6)
    torch.testing.assert_close(table.rows(0, 40).double().exp(), exact.exp(), rtol=0, atol=1e-6)
    asked.validate()


def test_other_tables_stay_factors() -> None:
    """Of small logits, of blocks, and of factors that were rounded."""
    generator = torch.Generator().manual_seed(1)
    blocks, dense = Support.from_clusters([0, 1, 1, 0, 0, 1, 0], 20), Support.dense(7, 40)
    large, small = (lowrank.Settings(width=3, scale=scale) for scale in (100.0, 1.0))
    with torch.no_grad():
        for settings, support in ((small, dense), (large, blocks)):
            model = settings.build(support, generator=generator)
            assert isinstance(model().transitions, Factored)
        with torch.autocast("cpu", torch.bfloat16):
            assert isinstance(large.build(dense, generator=generator)().transitions, Factored)


def test_sums_that_cancel_are_large_too() -> None:
    """Two columns whose products are 3e8 and their opposite: the logits are small."""
    settings = lowrank.Settings(width=3, scale=1.0)
    model = settings.build(Support.dense(7, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for name, far in (("source", 3e4), ("destination", 1e4)):
            (weights,) = model.embeddings[name].parameters()
            weights[:, 1:] = torch.tensor([far, far if name == "source" else -far])
        model().validate()


@pytest.mark.parametrize(("support", "name"), PAIRS)
@pytest.mark.parametrize("carried", [None, [1, 3]])
def test_a_subset_is_the_whole_restricted_and_renormalised(
    support: str, name: str, carried: list[int] | None
) -> None:
    model, states = build(support, name), torch.tensor([4, 0, 3])
    extra = None if carried is None else torch.tensor(carried)
    part, whole = model(states, extra), model().restrict(states, extra)
    same(part, whole)
    assert torch.equal(part.state_ids, whole.state_ids)
    assert torch.equal(part.source_ids, whole.source_ids)


@pytest.mark.parametrize(("support", "name"), PAIRS)
@pytest.mark.parametrize("subset", [False, True])
def test_the_gradient_of_the_loss_against_finite_differences(
    support: str, name: str, subset: bool
) -> None:
    model = build(support, name)
    states = torch.tensor([0, 2, 3, 4]) if subset else None
    tokens = TEXT
    if subset:  # words that are left with a state
        named = (model(states).support.states_of(torch.arange(7)) >= 0).any(1)
        words = named.nonzero().flatten()
        tokens = words[TEXT % len(words)]

    def value() -> Tensor:
        return loss(model(states), tokens)

    value().backward()
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        assert parameter.grad is not None
        direction = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        sides = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                parameter += step * direction
                sides.append(float(value()))
                parameter -= step * direction
        slope = (sides[0] - sides[1]) / 2e-5
        assert float((parameter.grad * direction).sum()) == pytest.approx(slope, rel=1e-5, abs=5e-9)


@pytest.mark.parametrize("name", ["scalar", "lowrank", "released mlp", "transformer"])
def test_a_planted_model_is_recovered(name: str) -> None:
    """Three states that speak of three pairs of words, in a cycle: the loss comes to its best."""
    trans = torch.full((3, 3), 0.05) + 0.85 * torch.eye(3).roll(1, 1)
    emit = torch.full((3, 6), 0.0125)
    for state in range(3):
        emit[state, 2 * state : 2 * state + 2] = 0.475
    planted = HMM.from_tables(torch.full((3,), 1 / 3).log(), trans.log(), emit.log())
    planted = planted.to(dtype=torch.float64)
    text = inference.sample(
        planted, length=50, num_samples=64, generator=torch.Generator().manual_seed(0)
    ).tokens
    restart = torch.zeros_like(text, dtype=torch.bool)
    batch = Batch(text, torch.full((64,), 50), restart, text.numel())
    best = float(loss(planted, text))
    settings = {"scalar": scalar.Settings(), "lowrank": lowrank.Settings(width=4)}
    settings |= {"released mlp": mlp.Settings(width=16)}
    settings |= {"transformer": transformer.Settings(width=16, depth=1)}
    rate = {"scalar": 0.3, "transformer": 0.003}.get(name, 0.03)
    model = settings[name].build(
        Support.dense(6, 4), generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    how = TrainSettings(epochs=200, learning_rate=rate, weight_decay=0.0)
    *_, last = train(model, HmmLoss(model, model.support), Once(batch), settings=how)
    assert last.loss < best + 0.01
    assert (
        float(loss(model(), text).detach()) > best - 0.05
    )  # no further than four states can overfit


class Once:
    """An epoch of one batch."""

    num_batches = 1

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def __iter__(self):
        yield self.batch


def test_parameters_of_the_released_model() -> None:
    """|Z| * 256 + 3 * 132,096 + 257 + 257 * |V|: 11,355,153 on PTB at 2^15 states."""
    words, states = 40, 128
    support = Support.from_clusters(torch.arange(words) % 8, states // 8)
    model = mlp.Settings().build(support, generator=torch.Generator())
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == states * 256 + 3 * 132_096 + 257 + 257 * words
    assert (1 << 15) * 256 + 3 * 132_096 + 257 + 257 * 10_000 == 11_355_153


def test_the_seed_alone_decides_the_start() -> None:
    for name in ALL:
        torch.manual_seed(0)
        one = build("blocks", name)
        torch.manual_seed(1)
        two = build("blocks", name)
        for a, b in zip(one.parameters(), two.parameters(), strict=True):
            assert torch.equal(a, b)


def test_words_start_at_their_frequencies() -> None:
    frequent = torch.tensor([0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05], dtype=torch.float64)
    for settings in (lowrank.Settings(width=3, scale=1e-6), mlp.Settings(width=4, scale=1e-6)):
        model = settings.build(
            Support.dense(7, 5),
            word_probs=frequent,
            generator=torch.Generator().manual_seed(0),
            dtype=torch.float64,
        )
        model.words.data.zero_()
        torch.testing.assert_close(model().log_emit, frequent.log()[:, None].expand(7, 5))


@pytest.mark.parametrize(
    "settings",
    [
        scalar.Settings(scale=0.0, unigram=False),
        lowrank.Settings(width=3, scale=0.0, unigram=False),
        lowrank.Settings(width=3, scale=0.0, unigram=False, factor_emit=False),
    ],
)
def test_words_start_alike_if_asked_to(settings) -> None:
    frequent = torch.tensor([0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05])
    support, generator = Support.dense(7, 5), torch.Generator().manual_seed(0)
    model = settings.build(support, word_probs=frequent, generator=generator)
    torch.testing.assert_close(model().log_emit.exp(), torch.full((7, 5), 1 / 7))


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="layers is 3 but must be 1 or 2"):
        mlp.Settings(layers=3).build(Support.dense(7, 5), generator=torch.Generator())
    with pytest.raises(InputError, match="start is 'warm' but must be 'network' or 'linear'"):
        mlp.Settings(start="warm")
    with pytest.raises(InputError, match="The width is 10, which 4 heads cannot share"):
        transformer.Settings(width=10)
    with pytest.raises(InputError, match="depth is 0 but must be at least 1"):
        transformer.Settings(depth=0)
    with pytest.raises(InputError, match="Composed embeddings need states in blocks"):
        build("uniform", "composed mlp")
    with pytest.raises(InputError, match="The width is 3 but composed embeddings need an even"):
        lowrank.Settings(width=3, composed=True).build(
            Support.dense(7, 5), generator=torch.Generator()
        )


@pytest.mark.parametrize("rate", [0.0, 0.25, 0.5, 0.9])
def test_dropout_keeps_a_fixed_number_of_each_block(rate: float) -> None:
    support = Support.from_clusters(torch.arange(30) % 3, [8, 4, 1])
    generator = torch.Generator().manual_seed(0)
    wanted = {0.0: [8, 4, 1], 0.25: [6, 3, 1], 0.5: [4, 2, 1], 0.9: [1, 1, 1]}[rate]
    times = torch.zeros(13)
    for _ in range(400):
        kept = keep_states(support, rate, generator)
        times[kept] += 1
        blocks = [int(torch.isin(row, kept).sum()) for row in support.rows]
        assert blocks == wanted and kept.unique().numel() == kept.numel()
    share = times / 400
    for row, size in zip(support.rows, wanted, strict=True):
        ids = row[row >= 0]
        torch.testing.assert_close(
            share[ids], torch.full((len(ids),), size / len(ids)), rtol=0, atol=0.12
        )


@pytest.mark.parametrize("name", ["uniform", "ragged"])
def test_a_word_of_the_batch_that_would_lose_every_state_keeps_one(name: str) -> None:
    support = SUPPORTS[name]()
    generator = torch.Generator().manual_seed(0)
    words, rescued = torch.tensor([[0, 2, -1], [5, 0, 6]]), 0
    for _ in range(200):
        kept = keep_states(support, 0.7, generator, words)
        rescued += len(kept) > 2
        left = support.restrict(kept).states_of(torch.tensor([0, 2, 5, 6]))
        assert (left >= 0).any(1).all()
        hmm = build(support, "lowrank")(kept)
        assert torch.isfinite(inference.log_prob(hmm, words[words >= 0][None]).log_evidence).all()
    assert rescued > 20


@pytest.mark.parametrize("rate", [1.0, -0.1, 1.5])
def test_dropout_that_keeps_no_state_is_refused(rate: float) -> None:
    with pytest.raises(InputError, match=f"The state dropout is {rate} but must be at least 0"):
        keep_states(Support.dense(3, 2), rate, torch.Generator())


ROUNDED = ["lowrank", "released mlp", "monolithic mlp", "transformer", "pretrained"]


@pytest.mark.parametrize("name", [name for name in ROUNDED if name in SETTINGS])
@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_a_precision_rounds_the_factors_once(support, name, precision):
    exact, model = build(support, name), build(support, name, dtype=torch.float32)
    model.load_state_dict(exact.state_dict())
    batch = Batch(TEXT, torch.tensor([5, 5]), torch.zeros(2, 5, dtype=torch.bool), 10)
    wanted = HmmLoss(exact, exact.support)(batch, 0.0)
    wanted.backward()
    with arithmetic(precision, "cpu"):
        hmm = model()
        found = HmmLoss(model, model.support)(batch, 0.0)
    found.backward()
    left, right, _ = hmm.transitions.fields()
    for factor in (left, right):
        narrow = factor.bfloat16().float() if precision == "bf16" else round_to_tf32(factor)
        assert factor.dtype == torch.float32 and torch.equal(factor, narrow)
    assert hmm.detach().transitions.row_error(torch.arange(5)) < 1e-6
    hmm.detach().to(dtype=torch.float64).validate()
    within = {"bf16": 5e-3, "tf32": 1e-4}[precision]
    torch.testing.assert_close(found.double(), wanted, rtol=within, atol=0)
    assert not torch.equal(left, model().transitions.left)
    pairs = zip(model.parameters(), exact.parameters(), strict=True)
    both = [(p.grad.double(), q.grad) for p, q in pairs if q.grad is not None]
    off = sum(float((a - b).square().sum()) for a, b in both)
    assert off < 0.03**2 * sum(float(b.square().sum()) for _, b in both)


@pytest.mark.parametrize("monolithic", [False, True])
@pytest.mark.parametrize("split", [False, True])
def test_without_a_network_on_that_side_the_destination_is_its_embedding(monolithic, split):
    settings = mlp.Settings(width=4, monolithic=monolithic, split=split)
    model = settings.build(SUPPORTS["blocks"](), generator=torch.Generator().manual_seed(0))
    embeddings = model.embeddings["destination" if split else "all"](None)
    assert torch.equal(model().transitions.right, embeddings)
    other = mlp.Settings(width=4, monolithic=monolithic, split=split, destination=True)
    model = other.build(SUPPORTS["blocks"](), generator=torch.Generator().manual_seed(0))
    embeddings = model.embeddings["destination" if split else "all"](None)
    assert not torch.allclose(model().transitions.right, embeddings)


def test_composed_embeddings_are_mixed_for_every_role():
    """Also for the destination, which has no other network (Chiu & Rush, equation 10)."""
    model = build("blocks", "composed mlp")
    raw = model.embeddings["all"](None)
    mixed = model.networks["destination"](raw)
    torch.testing.assert_close(model().transitions.right, mixed)
    assert not torch.allclose(mixed, raw)


@pytest.mark.parametrize("size, rate, kept", [(50, 0.4, 30), (100, 0.7, 30), (200, 0.85, 30)])
def test_as_many_states_are_kept_as_the_rate_says(size, rate, kept):
    generator = torch.Generator().manual_seed(0)
    assert len(keep_states(Support.from_clusters([0, 1], size), rate, generator)) == 2 * kept
    overlapping = Support.ragged([[*range(size)], [*range(size - 1)]], size)
    assert len(keep_states(overlapping, rate, generator)) == kept
