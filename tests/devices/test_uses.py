"""Models, constraints, training, teachers and the doors on a device, as on the CPU."""

from typing import Any

import numpy as np
import pytest
import torch

from devices.answers import check_same, drawn
from generate.random_constraints import make_model
from hmmlm import inference
from hmmlm.data.shards import TokenArray
from hmmlm.data.spelling import Spelling
from hmmlm.data.streams import Streams
from hmmlm.distill.kmeans import k_means
from hmmlm.distill.points import find_axes
from hmmlm.fitting import fit
from hmmlm.generate import Guide, Lookahead, contains, sample_met, tokens, words
from hmmlm.hmm import HMM
from hmmlm.inference.streaming import State
from hmmlm.model import Model
from hmmlm.model_source import ModelSource
from hmmlm.params.scalar import Scalar
from hmmlm.support import Support
from hmmlm.topic_model import TopicModel
from hmmlm.topics import TopicLM, TopicSettings, learn_topics, line_topics
from hmmlm.train.loop import Training, TrainSettings
from hmmlm.train.loss import Dropout, HmmLoss
from hmmlm.train.sgd import Sgd
from models import make_hmm

TOKENIZER, SMALL = make_model(torch.float64)
SPELLING, EOS, BUDGET = Spelling.of(TOKENIZER), TOKENIZER.eos_id, 7
SIZE = TOKENIZER.vocab_size
DRAWN = torch.Generator().manual_seed(0)
HMMS = {
    "dense": SMALL,
    "uneven": make_hmm(Support.from_clusters(torch.arange(SIZE) % 3, [1, 4, 2]), "dense"),
    "uniform": make_hmm(Support.uniform(SIZE, 8, 3, DRAWN), "factored"),
}
LINES = ["the rain fell in the park .", "the sun was bright !", "a park and the sun"] * 2
of_every_kind = pytest.mark.parametrize("kind", HMMS)


def seed(hmm: HMM) -> torch.Generator:
    return torch.Generator(hmm.device).manual_seed(3)


@of_every_kind
def test_constraints(kind, device):
    wanted = [contains("rain", "park") & words(2, 6), ~contains("the"), tokens(2, 4)]
    weights = torch.zeros(SIZE, dtype=torch.float64)
    weights[3] = 1.0

    def run(hmm: HMM) -> Any:
        made = [one.compile(SPELLING) for one in wanted]
        how: dict[str, Any] = {"eos_id": EOS, "budget": BUDGET}
        looks = [Lookahead.build(hmm, one, **how) for one in made]
        looks[2] = Lookahead.build(hmm, made[2], log_weights=weights, **how)
        yield [table for look in looks for table in (*look.tables, *look.scales)]
        for look in looks[:2]:
            state = inference.advance(inference.start(hmm, reset_id=EOS), 4)
            yield drawn(sample_met(look, state, num_samples=4, generator=seed(hmm)))
        for keep in (True, False):
            guide = Guide(looks, keep_table=keep, strength=0.7)
            prompts = [TOKENIZER.encode(text) for text in ("the sun was", "", "a park")]
            for texts in ([[], [], []], [[3], [4], [4]], [[3, 5], [4, EOS], [4, 6]]):
                yield guide.log_factors(prompts, texts, [0, 1, 2])
            yield guide.log_factors(prompts, [[3, 5, 6], [4, EOS], [4, 6, 7]], [0, 1, 2])

    check_same(run(HMMS[kind].to(device)), run(HMMS[kind]))


@of_every_kind
def test_a_guided_language_model(kind, device):
    transformers = pytest.importorskip("transformers")
    from hmmlm.hf.guiding import GuidedLogits

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=SIZE + 2, hidden_size=8, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, bos_token_id=0, eos_token_id=EOS,
        pad_token_id=EOS,
    )  # fmt: skip
    llm = transformers.LlamaForCausalLM(config).eval()
    wanted = [contains("rain"), contains("park") & words(3)]
    ids = torch.tensor([TOKENIZER.encode("the sun"), TOKENIZER.encode("a park")])

    def run(hmm: HMM) -> Any:
        looks = [
            Lookahead.build(hmm, one.compile(SPELLING), eos_id=EOS, budget=BUDGET) for one in wanted
        ]
        yield llm.to(hmm.device).generate(
            input_ids=ids.to(hmm.device), attention_mask=torch.ones_like(ids).to(hmm.device),
            logits_processor=[GuidedLogits(Guide(looks))], max_new_tokens=BUDGET, do_sample=False,
        )  # fmt: skip

    wanted_ids = list(run(HMMS[kind]))
    check_same(run(HMMS[kind].to(device)), wanted_ids)


@of_every_kind
def test_topics(kind, device):
    text = TokenArray.from_ids(
        np.concatenate([[*TOKENIZER.encode(line), EOS] for line in LINES * 3]), eos_id=EOS
    )
    rows = torch.tensor([[3, 4, EOS, 5, 6], [EOS, 4, 4, EOS, 3]])

    def run(hmm: HMM) -> Any:
        learnt = learn_topics(hmm, text, TopicSettings(topics=3, epochs=3, learning_rate=0.01))
        yield learnt.word_counts
        yield list(learnt.topics.topics())
        lm = TopicLM(learnt.topics, EOS)
        for reset in (None, EOS):
            first = lm.score_tokens(rows, lengths=torch.tensor([5, 4]), reset_id=reset)
            yield first.token_log_probs
            yield lm.score_tokens(rows, carry=first.carry, reset_id=reset).token_log_probs
        yield lm.row_error(5, 0) < 1e-9
        yield line_topics(learnt.topics, rows)
        model = TopicModel(learnt.topics, TOKENIZER)
        yield torch.tensor([model.topic_probs(line) for line in LINES])
        yield [prob for _, prob in model.next("the sun")]
        assert len(model.sample(4, seed=1)) == 4
        if kind == "uneven":
            own = make_hmm(Support.from_clusters([0, 1, 2, 2], 2), "factored").to(hmm.device)
            made = learn_topics(own, TokenArray.from_ids([0, 2, 1, 3, 1], eos_id=1)).topics
            yield inference.log_prob(made.joined(1), rows[:1, :2] * 0).log_evidence

    check_same(run(HMMS[kind].to(device)), run(HMMS[kind]))


@of_every_kind
def test_the_face_of_hugging_face(kind, device):
    pytest.importorskip("transformers")
    from hmmlm.hf import HmmForCausalLM

    ids = torch.tensor([[2, 3, 4, 5, 2, 3], [5, 5, 2, 1, 4, 1]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1]])

    def run(place: str) -> Any:
        lm = HmmForCausalLM.from_model(Model(HMMS[kind].to(place, dtype=torch.float32), TOKENIZER))
        assert lm.device.type == torch.device(place).type
        given = {"attention_mask": mask.to(place)}
        yield lm(ids.to(place), **given).logits
        yield lm.generate(ids.to(place), **given, max_new_tokens=4, do_sample=False)
        lm.train()
        loss = lm(ids.to(place), labels=ids.to(place), **given).loss
        loss.backward()
        yield loss, [parameter.grad for parameter in lm.parameters()]

    check_same(run(device), run("cpu"), atol=1e-4)


@of_every_kind
def test_methods_of_a_model(kind, device, tmp_path):
    Model(HMMS[kind], TOKENIZER).save(tmp_path / "model")

    def run(place: str) -> Any:
        model = Model.load(tmp_path / "model", device=place)
        lines = [*LINES[:3], "the ?"]
        yield [line.log_probs for line in model.score(lines)]
        yield [line.states for line in (*model.viterbi(lines), *model.tag(lines))]
        yield model.posterior(LINES[0])
        yield [model.perplexity(lines, mode=mode) for mode in ("sentence", "streaming")]
        yield [prob for _, prob in (*model.next("the sun"), *model.top_words(1))]
        wanted = contains("sun") & words(2, 5)
        yield model.log_probability(wanted, prompt="a", length=6)
        assert all("sun" in text for text in model.sample(3, constraint=wanted, length=6, seed=1))
        assert len(model.sample(2, prompt="the", length=5, seed=1)) == 2
        assert len(model.fill("the ? fell *", 2, seed=1)) == 2
        yield [prob for gap in model.gap_words("the ? fell in the ?") for _, prob in gap]
        yield model.span("the ? fell in the ?", ["rain", "park"])
        source = ModelSource(tmp_path / "model", device=place)
        texts = source.draw([[], [3, 4]], length=6, generator=seed(model.hmm))
        yield drawn([torch.from_numpy(text.tokens.astype(np.int64)) for text in texts])
        yield drawn([torch.from_numpy(text.log_probs[2:]) for text in texts])

    check_same(run(device), run("cpu"))


TRAININGS: dict[str, dict[str, dict[str, Any]]] = {
    "sgd": {"model": {"kind": "lowrank", "width": 4, "blocks": 0}, "train": {"dropout": 0.0}},
    "dropped": {"model": {"kind": "lowrank", "width": 4, "blocks": 0}, "train": {"dropout": 0.5}},
    "blocks": {"model": {"kind": "mlp", "width": 4, "blocks": 3}, "train": {"dropout": 0.0}},
    "uneven": {"model": {"kind": "lowrank", "width": 4, "blocks": 3, "uneven": 0.5}, "train": {}},
    "averaged": {"model": {"kind": "scalar", "blocks": 0}, "train": {"average": 0.9}},
    "mean": {"model": {"kind": "scalar", "blocks": 3}, "train": {"average_after": 1}},
    "em": {"model": {"kind": "scalar", "blocks": 0}, "train": {"optimiser": "em"}},
    "em of blocks": {"model": {"kind": "scalar", "blocks": 3}, "train": {"optimiser": "em"}},
    "gem": {"model": {"kind": "lowrank", "width": 4, "blocks": 0}, "train": {"optimiser": "gem"}},
}


@pytest.mark.parametrize("name", TRAININGS)
def test_training(name, device):
    tables = TRAININGS[name]

    def run(place: str) -> Any:
        train = {"epochs": 2, "dropout": 0.0, **tables["train"]}
        made = fit(
            LINES, valid=LINES[:2], model={"states": 6, **tables["model"]}, train=train,
            data={"length": 16, "batch_size": 2}, device=place,
        )  # fmt: skip
        yield made.hmm.fields()

    found, wanted = list(run(device)), list(run("cpu"))
    if tables["train"].get("dropout") != 0.5:  # a GPU drops other states
        check_same(found, wanted, atol=1e-3)


@pytest.mark.parametrize("start", ["sample", "k-means++"])
def test_clusters_and_directions(start, device):
    points = torch.randn(200, 5, generator=torch.Generator().manual_seed(1))

    def run(place: str) -> Any:
        for given in (points, points.to(place)):
            draws = torch.Generator().manual_seed(0)
            yield k_means(given, 9, start=start, device=place, generator=draws)
            yield find_axes(given, 3, device=place)

    check_same(run(device), run("cpu"), atol=1e-4)


def test_going_on_with_a_training(device):
    """The state of an optimiser, its averaged weights and what is carried come back to a device."""
    settings = TrainSettings(epochs=2, learning_rate=0.3, average=0.9)
    tokens = TokenArray.from_ids([2, 3, 4, EOS, 5, 6, 2, EOS, 3, 3, EOS, 4] * 4, eos_id=EOS)

    def make() -> Training:
        hmm = HMMS["uneven"].to(device, dtype=torch.float32)
        model = Scalar.from_hmm(hmm)
        loss = HmmLoss(model, hmm.support, dropout=Dropout(0.4), carry=True, seed=5)
        return Training(Sgd(model, loss, settings), Streams(tokens, 4, 5), settings=settings)

    whole, before, after = make(), make(), make()
    losses = [step.loss for step in whole]
    steps = iter(before)
    found = [next(steps).loss for _ in range(len(losses) // 2)]
    after.restore(before.state())
    assert found + [step.loss for step in after] == pytest.approx(losses)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="safetensors reads to a GPU by itself")
def test_states_are_kept_in_files(tmp_path):
    state = inference.advance(inference.start(SMALL.to("cuda"), 2), 3)
    state.save(tmp_path / "state")
    check_same([State.load(tmp_path / "state", state.hmm).belief], [state.belief])


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_the_estimator_of_scikit_learn(method, device):
    pytest.importorskip("sklearn")
    from hmmlm.scikit import HmmEstimator

    symbols = np.random.default_rng(0).integers(0, 6, (60, 1))
    sizes = [20, 30, 10]

    def run(place: str) -> Any:
        made = HmmEstimator(3, n_iter=3, random_state=0, device=place, transmat_prior=1.1)
        getattr(made, method)(symbols, sizes)
        yield torch.from_numpy(made.predict_proba(symbols, sizes))
        yield torch.from_numpy(made.next_proba(symbols, sizes))
        yield made.score(symbols, sizes), made.decode(symbols, sizes)[0]
        assert made.sample(5, random_state=1)[0].shape == (5, 1)

    check_same(run(device), run("cpu"))
