"""Embeddings that begin with the centres and the head of a teacher."""

import shutil
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

from hmmlm.data.shards import TokenArray  # noqa: E402
from hmmlm.distill.beginnings import begin  # noqa: E402
from hmmlm.distill.labels import (  # noqa: E402
    LabelSettings,
    StateLabels,
    find_states,
    read_states,
    write_states,
)
from hmmlm.distill.teachers import HuggingFaceTeacher, head_of  # noqa: E402
from hmmlm.errors import InputError  # noqa: E402
from hmmlm.params import lowrank, mlp, transformer  # noqa: E402
from hmmlm.support import Support  # noqa: E402

WORDS, WIDTH = 12, 8
HOW = {"vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": 16}
HOW |= {"num_hidden_layers": 2, "num_attention_heads": 2}
TOKENS = torch.randint(WORDS, (4, 5), generator=torch.Generator().manual_seed(0))
SMALL = LabelSettings(tokens=20, points=20, length=5, batch_size=4)
TEXT = TokenArray.from_ids(TOKENS.flatten().tolist(), eos_id=0)


def write(folder: Path, *, tied: bool = False, body: bool = False) -> torch.nn.Module:
    """A tiny Llama in a folder, or its body alone."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**HOW, num_key_value_heads=2, tie_word_embeddings=tied)
    model = transformers.LlamaForCausalLM(config).eval()
    (model.model if body else model).save_pretrained(folder)
    return model


def make_labels(has_head: bool = True, states: int = 3) -> StateLabels:
    random = torch.Generator().manual_seed(1)
    centres = torch.randn(states, 4, generator=random)
    centres[1] = torch.nan
    head = torch.randn(5, 4, generator=random) if has_head else None
    return StateLabels(torch.zeros(2).int().numpy(), centres, {"teacher": "someone"}, head)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("layer", [-1, 2])
def test_the_head_makes_the_teacher_s_logits(tied: bool, layer: int, tmp_path: Path) -> None:
    model = write(tmp_path / "llama", tied=tied)
    teacher = HuggingFaceTeacher(tmp_path / "llama", layer=layer, begins=False)
    head = teacher.head()
    assert head is not None and not head.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(teacher.hidden(TOKENS) @ head.T, model(TOKENS).logits)


def test_teachers_without_a_head(tmp_path: Path) -> None:
    write(tmp_path / "llama")
    assert HuggingFaceTeacher(tmp_path / "llama", layer=1).head() is None
    torch.manual_seed(0)
    transformers.BertForMaskedLM(transformers.BertConfig(**HOW)).save_pretrained(tmp_path / "bert")
    assert HuggingFaceTeacher(tmp_path / "bert").head() is None
    write(tmp_path / "body", body=True)  # transformers would draw a head
    assert HuggingFaceTeacher(tmp_path / "body").head() is None
    found = find_states(HuggingFaceTeacher(tmp_path / "body"), TEXT, Support.dense(12, 2), SMALL)
    assert found.head is None


def test_a_random_teacher_has_a_random_head(tmp_path: Path) -> None:
    write(tmp_path / "llama")
    heads = [
        HuggingFaceTeacher(tmp_path / "llama", random=random, seed=seed).head()
        for random, seed in ((False, 0), (True, 1), (True, 1), (True, 2))
    ]
    assert torch.equal(heads[1], heads[2])
    assert not any(torch.equal(heads[n], heads[1]) for n in (0, 3))
    write(tmp_path / "tied", tied=True)
    teacher = HuggingFaceTeacher(tmp_path / "tied", random=True)
    shutil.rmtree(tmp_path / "tied")  # what it has already is not read again
    assert torch.equal(teacher.head(), teacher.model.get_input_embeddings().weight)


@pytest.mark.parametrize("dim", [0, WIDTH, 3])
def test_labels_keep_the_head_in_the_space_of_the_centres(dim: int, tmp_path: Path) -> None:
    """The logits of a centre are the teacher's, up to a number for each word."""
    model = write(tmp_path / "llama")
    teacher = HuggingFaceTeacher(tmp_path / "llama", begins=False)
    settings = LabelSettings(tokens=20, points=20, length=5, batch_size=4, dim=dim)
    # As many states as tokens: what the teacher makes of each is a centre.
    labels = find_states(teacher, TEXT, Support.dense(WORDS, 20), settings)
    assert labels.head is not None and labels.head.shape == (WORDS, dim or WIDTH)
    with torch.no_grad():
        wanted = model(TOKENS).logits.flatten(0, 1)
    missing = wanted - labels.centres[labels.states.astype(int)] @ labels.head.T
    if dim == 0:
        torch.testing.assert_close(missing, torch.zeros_like(missing), rtol=0, atol=1e-5)
    elif dim == WIDTH:
        mean = teacher.hidden(TOKENS).flatten(0, 1).mean(0)
        constant = (teacher.head() @ mean).expand_as(missing)
        torch.testing.assert_close(missing, constant, rtol=0, atol=1e-5)
        assert constant.abs().max() > 1e-3
    write_states(tmp_path / "kept", labels, "id")
    held, _ = read_states(tmp_path / "kept")
    assert held.head is not None and torch.equal(held.head, labels.head)


def test_a_text_of_fewer_words_has_a_shorter_head(tmp_path: Path) -> None:
    write(tmp_path / "llama")
    teacher = HuggingFaceTeacher(tmp_path / "llama")
    few = TokenArray.from_ids([1, 2, 3, 0] * 5, eos_id=0)
    labels = find_states(teacher, few, Support.dense(4, 2), SMALL)
    assert torch.equal(labels.head, head_of(teacher)[:4])


MODELS = {
    "lowrank": lowrank.Settings(width=4),
    "shared": lowrank.Settings(width=4, shared=True),
    "mlp": mlp.Settings(width=4),
    "split": mlp.Settings(width=4, split=True),
    "transformer": transformer.Settings(width=4, heads=2, depth=1),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("what", ["centres", "head", "both"])
def test_embeddings_begin_with_what_was_found(kind: str, what: str) -> None:
    support, labels = Support.dense(5, 3), make_labels()
    model, other = (
        MODELS[kind].build(support, generator=torch.Generator().manual_seed(0)) for _ in range(2)
    )
    given = begin(model, labels, what)
    changed = []
    for (name, one), before in zip(model.named_parameters(), other.parameters(), strict=True):
        if name.startswith("embeddings") and what != "head":
            assert torch.equal(one[[0, 2]], labels.centres[[0, 2]])
            assert torch.equal(one[1], before[1])  # a state without tokens
        elif name == "words" and what != "centres":
            assert torch.equal(one, labels.head)
        else:
            assert torch.equal(one, before)
            continue
        changed.append(one)
    tables = {"lowrank": 3, "split": 4}.get(kind, 1)
    assert len(changed) == (0 if what == "head" else tables) + (what != "centres")
    assert {id(one) for one in given} == {id(one) for one in changed}
    assert all(table.isfinite().all() for table in model().fields())


@pytest.mark.parametrize(
    ("labels", "width", "message"),
    [
        (
            make_labels(has_head=False),
            4,
            "is both but the labels of someone have no head: a ca",
        ),
        (make_labels(), 6, "width 6 and what someone gives has 4 numbers; set distill.dim=6 if"),
        (make_labels(states=2), 4, "have 2 centres but the model has 3 states; make states for"),
        (make_labels()._replace(head=torch.zeros(7, 4)), 4, "of 7 words but the model has 5 wor"),
    ],
)
def test_what_does_not_fit(labels: StateLabels, width: int, message: str) -> None:
    settings = lowrank.Settings(width=width)
    model = settings.build(Support.dense(5, 3), generator=torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match=message):
        begin(model, labels, "both")
