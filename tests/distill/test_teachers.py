"""Teachers of Hugging Face's, made here and read from a folder."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

from hmmlm.distill.teachers import HuggingFaceTeacher, Teacher, check_teacher  # noqa: E402
from hmmlm.errors import InputError  # noqa: E402

TOKENS = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])


def write(folder, kind: str) -> torch.nn.Module:
    """A tiny model of a kind, as it stands in a folder."""
    torch.manual_seed(0)
    how = {"vocab_size": 12, "hidden_size": 8, "intermediate_size": 16}
    how |= {"num_hidden_layers": 2, "num_attention_heads": 2}
    if kind == "causal":
        config = transformers.LlamaConfig(**how, num_key_value_heads=2, bos_token_id=1)
        model = transformers.LlamaForCausalLM(config)
    else:
        model = transformers.BertModel(transformers.BertConfig(**how))
    model.save_pretrained(folder)
    return model.eval()


@pytest.mark.parametrize("layer", [-1, 0, 1, 2, -2])
def test_hidden_states_are_the_model_s(layer: int, tmp_path) -> None:
    model = write(tmp_path / "causal", "causal")
    teacher = HuggingFaceTeacher(tmp_path / "causal", layer=layer)
    assert isinstance(teacher, Teacher) and teacher.vocab_size == 12
    begun = torch.nn.functional.pad(TOKENS, (1, 0), value=1)
    with torch.no_grad():
        truth = model(begun, output_hidden_states=True).hidden_states[layer][:, 1:]
    found = teacher.hidden(TOKENS)
    torch.testing.assert_close(found, truth)
    assert found.dtype == torch.float32 and not found.requires_grad
    # A token's numbers do not depend on those after it.
    torch.testing.assert_close(teacher.hidden(TOKENS[:, :2]), found[:, :2])


def test_an_encoder_begins_with_nothing(tmp_path) -> None:
    model = write(tmp_path / "encoder", "encoder")
    with torch.no_grad():
        truth = model(TOKENS).last_hidden_state
    teacher = HuggingFaceTeacher(tmp_path / "encoder")
    torch.testing.assert_close(teacher.hidden(TOKENS), truth)
    assert "after" not in teacher.name


def test_random_teachers_are_those_of_their_seed(tmp_path) -> None:
    write(tmp_path / "causal", "causal")
    before = torch.random.get_rng_state()
    known, one, same, other = (
        HuggingFaceTeacher(tmp_path / "causal", random=random, seed=seed)
        for random, seed in ((False, 0), (True, 1), (True, 1), (True, 2))
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.testing.assert_close(one.hidden(TOKENS), same.hidden(TOKENS))
    for left, right in ((one, other), (one, known)):
        assert not torch.allclose(left.hidden(TOKENS), right.hidden(TOKENS))
    assert len({teacher.name for teacher in (known, one, same, other)}) == 3


def test_numbers_of_another_type_come_as_float32(tmp_path) -> None:
    write(tmp_path / "causal", "causal")
    narrow = HuggingFaceTeacher(tmp_path / "causal", dtype="bfloat16")
    found = narrow.hidden(TOKENS)
    assert found.dtype == torch.float32 and "bfloat16" in narrow.name
    wide = HuggingFaceTeacher(tmp_path / "causal").hidden(TOKENS)
    torch.testing.assert_close(found, wide, rtol=0, atol=0.1)
    assert not torch.equal(found, wide)


def test_a_teacher_that_is_not_there_is_an_error(tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    for random in (False, True):
        with pytest.raises(InputError, match=r"The teacher .*empty cannot be loaded: .* Give a fo"):
            HuggingFaceTeacher(tmp_path / "empty", random=random)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"layer": 3}, "layer is 3 but .*causal has 2: use 0 \\(embeddings\\) to 2, or -1"),
        ({"layer": -4}, "layer is -4 but"),
        ({"dtype": "int8"}, "dtype is 'int8' but must be one of float32, bfloat16, float16"),
    ],
)
def test_what_is_refused(how: dict, message: str, tmp_path) -> None:
    write(tmp_path / "causal", "causal")
    with pytest.raises(InputError, match=message):
        HuggingFaceTeacher(tmp_path / "causal", **how)


def test_a_teacher_must_know_all_words(tmp_path) -> None:
    write(tmp_path / "causal", "causal")
    teacher = HuggingFaceTeacher(tmp_path / "causal")
    check_teacher(teacher, 12)
    with pytest.raises(InputError, match="knows 12 ids but the text has 13; prepare the text with"):
        check_teacher(teacher, 13)
