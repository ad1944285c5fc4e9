"""Text drawn from a causal language model of Hugging Face's, made here: a corpus of it."""

import json
import shutil

import numpy as np
import pytest
import torch

from commands import tree
from hmmlm.data.shards import Corpus
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError

transformers = pytest.importorskip("transformers")

from hmmlm.distill import sampling  # noqa: E402
from hmmlm.distill.causal import CausalTeacher  # noqa: E402
from hmmlm.distill.drawing import SHARE, largest_batch  # noqa: E402
from hmmlm.distill.sampling import SampleSettings, read_log_probs, sample_corpus  # noqa: E402

WORDS = ["<unk>", "<s>", "</s>", *"abcdefgh"]
SMALL = {"tokens": 300, "valid": 60, "test": 40, "batch_size": 8, "length": 12}


def write(folder, kind: str = "causal", ends: int | list[int] | None = 2, scale: float = 0.4):
    """A tiny model of a kind, with a tokenizer that has one id less than the model."""
    torch.manual_seed(0)
    how = {"vocab_size": 12, "hidden_size": 8, "intermediate_size": 16}
    how |= {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}
    if kind == "causal":
        more = {"num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": ends}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**how, **more))
        model.lm_head.weight.data.normal_(0, scale)  # so that it has something to say
    else:
        model = getattr(transformers, kind)(transformers.BertConfig(**how, eos_token_id=2))
    model.save_pretrained(folder)
    spec = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {
            "type": "WordLevel",
            "vocab": {word: id for id, word in enumerate(WORDS)},
            "unk_token": "<unk>",
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    return model.eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teachers") / "causal"
    write(folder)
    return folder


@pytest.fixture(scope="module")
def teacher(folder) -> CausalTeacher:
    return CausalTeacher(folder)


def full_pass(teacher: CausalTeacher, ids, temperature: float = 1.0) -> torch.Tensor:
    """log p of every token of a text by one pass over all of it, in float64 at the end."""
    whole = torch.tensor([[teacher.first_id, *ids]])
    with torch.no_grad():
        logits = teacher.model(input_ids=whole, use_cache=False).logits[0, :-1, : len(WORDS)]
    known = torch.log_softmax(logits.double() / temperature, -1)
    return known.gather(1, whole[0, 1:, None])[:, 0]


def test_first_tokens_come_as_often_as_the_model_says(teacher) -> None:
    number = 20_000
    drawn = teacher.draw([[]] * number, length=1, generator=torch.Generator().manual_seed(0))
    counts = np.bincount([int(text.tokens[0]) for text in drawn], minlength=len(WORDS))
    every = torch.arange(len(WORDS))
    probs = np.array([full_pass(teacher, [id])[0].exp().item() for id in every])
    assert probs.sum() == pytest.approx(1) and len(counts) == len(WORDS) and probs.std() > 0.02
    # Chi-square with ten degrees of freedom: above 29.6 once in a thousand seeds.
    assert ((counts - number * probs) ** 2 / (number * probs)).sum() < 29.6


def test_second_tokens_come_as_often_as_the_model_says_after_the_first(teacher) -> None:
    number = 20_000
    drawn = teacher.draw([[3]] * number, length=2, generator=torch.Generator().manual_seed(0))
    counts = np.bincount([int(text.tokens[1]) for text in drawn], minlength=len(WORDS))
    probs = np.array([full_pass(teacher, [3, id])[1].exp().item() for id in range(len(WORDS))])
    assert ((counts - number * probs) ** 2 / (number * probs)).sum() < 29.6


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("prompts", [[[], [3, 4, 5], [6], []], [[3, 4, 5], [6, 2, 7, 8], [9, 3]]])
def test_log_probs_are_those_of_one_pass_over_the_text(teacher, temperature, prompts) -> None:
    prompts = prompts * 8
    how = {"length": 12, "temperature": temperature}
    drawn = teacher.draw(prompts, **how, generator=torch.Generator().manual_seed(1))
    assert len({len(text.tokens) for text in drawn}) > 3
    for prompt, (tokens, log_probs) in zip(prompts, drawn, strict=True):
        assert tokens[: len(prompt)].tolist() == prompt
        new = tokens[len(prompt) :].tolist()
        assert 2 not in new[:-1] and (new[-1] == 2 or len(tokens) == 12)
        assert np.isnan(log_probs[: len(prompt)]).all()
        truth = full_pass(teacher, tokens.tolist(), temperature)[len(prompt) :]
        np.testing.assert_allclose(log_probs[len(prompt) :], truth, atol=1e-4)


def test_a_corpus_of_text_that_was_drawn(teacher, folder, tmp_path) -> None:
    result = sample_corpus(tmp_path / "new", teacher, SampleSettings(**SMALL))
    corpus = Corpus.open(tmp_path / "new")
    assert corpus.tokenizer.hash == Tokenizer.load(folder / "tokenizer.json", "</s>").hash
    assert corpus.splits == result["splits"] and result["vocab"] == len(WORDS)
    assert not (tmp_path / ".new.unfinished").exists()
    seen = []
    for name, size in (("train", 300), ("valid", 60), ("test", 40)):
        ids = corpus.split(name)[0 : len(corpus.split(name))]
        assert size <= len(ids) < 1.3 * size and ids[-1] == 2
        texts = np.split(ids, np.flatnonzero(ids == 2) + 1)[:-1]
        longest = [text for text in texts if len(text) == 13]
        assert len(longest) == result["marks"][name] and max(map(len, texts)) <= 13
        seen += [tuple(text) for text in texts if len(text) > 6]
        if name == "train":
            continue
        log_probs = read_log_probs(corpus, name)
        assert log_probs.dtype == np.float32 and len(log_probs) == len(ids)
        parts = np.split(log_probs, np.flatnonzero(ids == 2) + 1)[:-1]
        for text, scores in zip(texts, parts, strict=True):
            truth = full_pass(teacher, text.tolist())
            if len(text) == 13:  # cut: the mark was not drawn
                assert np.isnan(scores[-1])
                text, truth, scores = text[:-1], truth[:-1], scores[:-1]
            np.testing.assert_allclose(scores, truth, atol=1e-4)
    assert len(set(seen)) == len(seen) > 20  # splits and batches are not one text again and again
    about = json.loads((tmp_path / "new/teacher.json").read_text())
    assert about["teacher"] == teacher.name and about["settings"]["length"] == 12


def test_what_a_prompt_has_before_an_end_is_read_but_not_written(teacher, tmp_path) -> None:
    sample_corpus(tmp_path / "new", teacher, SampleSettings(**SMALL), prompts=["a c </s> b a"])
    corpus, prompt = Corpus.open(tmp_path / "new"), teacher.tokenizer.encode("a c </s> b a")
    assert prompt[2] == 2
    ids, log_probs = corpus.split("test")[0:], read_log_probs(corpus, "test")
    ends = np.flatnonzero(ids == 2) + 1
    texts, scores = (np.split(some, ends)[:-1] for some in (ids, log_probs))
    assert len(texts) > 3
    for text, mine in zip(texts, scores, strict=True):
        assert text[:2].tolist() == prompt[3:] and np.isnan(mine[:2]).all() and len(text) <= 10
        drawn = ~np.isnan(mine)
        truth = full_pass(teacher, [*prompt[:3], *text.tolist()])[3:].numpy()
        np.testing.assert_allclose(mine[drawn], truth[drawn], atol=1e-4)


def test_another_seed_is_another_text_and_the_same_one_the_same(teacher, tmp_path) -> None:
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        sample_corpus(tmp_path / name, teacher, SampleSettings(**SMALL, seed=seed))
    assert tree(tmp_path / "one") == tree(tmp_path / "same")
    assert tree(tmp_path / "one") != tree(tmp_path / "other")


class Stop(BaseException):
    pass


@pytest.mark.parametrize("batches", [1, 4, 5])
def test_what_was_stopped_goes_on(teacher, tmp_path, monkeypatch, batches) -> None:
    settings, prompts = SampleSettings(**SMALL), ["a b", "c"]
    calls = []

    def draw(self, *given, **how):
        calls.append(1)
        if len(calls) > batches:
            raise Stop
        return plain(self, *given, **how)

    plain = CausalTeacher.draw
    sample_corpus(tmp_path / "whole", teacher, settings, prompts=prompts)
    monkeypatch.setattr(CausalTeacher, "draw", draw)
    with pytest.raises(Stop):
        sample_corpus(tmp_path / "new", teacher, settings, prompts=prompts)
    # As if killed while it wrote: more is in the files than the state says.
    kept = tmp_path / ".new.unfinished"
    for path in (*kept.glob("corpus/*.bin"), *kept.glob("*.log-probs")):
        with path.open("ab") as file:
            file.write(b"12345678")
    done, said = [], []
    monkeypatch.setattr(CausalTeacher, "draw", plain)
    sample_corpus(
        tmp_path / "new",
        teacher,
        settings,
        prompts=prompts,
        progress=lambda tokens, total: done.append((tokens, total)),
        notice=said.append,
    )
    assert said == [f"Going on with the unfinished {tmp_path / 'new'}."]
    assert done[0][0] > 0 and done[-1] == (400, 400)
    assert tree(tmp_path / "new") == tree(tmp_path / "whole")
    assert not kept.exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("seed", "the options are others"),
        ("prompts", "the options are others"),
        ("weights", "the teacher is another"),
        ("damage", "its files are damaged"),
    ],
)
def test_other_work_is_not_gone_on_with(folder, tmp_path, monkeypatch, change, reason) -> None:
    shutil.copytree(folder, tmp_path / "teacher")
    teacher, prompts, settings = CausalTeacher(tmp_path / "teacher"), [], SampleSettings(**SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(sampling, "write_index", lambda *_: (_ for _ in ()).throw(Stop))
        with pytest.raises(Stop):
            sample_corpus(tmp_path / "new", teacher, settings)
    if change == "seed":
        settings = SampleSettings(**SMALL, seed=1)
    elif change == "prompts":
        prompts = ["a"]
    elif change == "weights":
        write(tmp_path / "teacher", scale=2.0)
        teacher = CausalTeacher(tmp_path / "teacher")
    else:
        path = tmp_path / ".new.unfinished/valid.log-probs"
        path.write_bytes(bytes(len(path.read_bytes())))
    said = []
    sample_corpus(tmp_path / "new", teacher, settings, prompts=prompts, notice=said.append)
    assert said == [f"There is an unfinished {tmp_path / 'new'}, but {reason}; starting afresh."]
    sample_corpus(tmp_path / "whole", teacher, settings, prompts=prompts)
    assert tree(tmp_path / "new") == tree(tmp_path / "whole")


def test_texts_begin_with_the_prompts_in_turn(teacher, tmp_path) -> None:
    settings = SampleSettings(tokens=100, valid=100, test=0, batch_size=3, length=8)
    sample_corpus(tmp_path / "new", teacher, settings, prompts=["a b", "c", "d e f"])
    corpus = Corpus.open(tmp_path / "new")
    assert set(corpus.splits) == {"train", "valid"}
    texts = []
    for name in ("train", "valid"):
        ids = corpus.split(name)[0 : len(corpus.split(name))]
        texts += np.split(ids, np.flatnonzero(ids == 2) + 1)[:-1]
    begun = [[3, 4], [5], [6, 7, 8]]
    for number, text in enumerate(texts):
        prompt = begun[number % 3]
        assert text[: len(prompt)].tolist() == prompt


def test_any_of_the_ends_ends_a_text(tmp_path) -> None:
    write(tmp_path / "two", ends=[2, 5])
    teacher = CausalTeacher(tmp_path / "two")
    assert teacher.end_ids == [2, 5] and teacher.tokenizer.eos_id == 2
    sample_corpus(tmp_path / "new", teacher, SampleSettings(**SMALL))
    corpus = Corpus.open(tmp_path / "new")
    ids, log_probs = corpus.split("valid")[0:60], read_log_probs(corpus, "valid")[:60]
    assert 5 in ids
    for place in np.flatnonzero(ids[:-1] == 5):
        assert ids[place + 1] == 2 and np.isnan(log_probs[place + 1])
        assert not np.isnan(log_probs[place])


def test_numbers_of_another_type(folder) -> None:
    narrow = CausalTeacher(folder, dtype="bfloat16")
    drawn = narrow.draw([[]] * 4, length=6, generator=torch.Generator().manual_seed(0))
    assert drawn[0].log_probs.dtype == np.float32 and narrow.name.endswith("causal, bfloat16")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("BertModel", r"lacks weights of a causal language model, such as cls\..*; give a model"),
        ("BertForMaskedLM", "reads what comes after a token too, as encoders do"),
        ("no end", "has no end token, so where a text is over is not known; set eos_token_id"),
        ("other end", "ends a text with the id 11, which its tokenizer does not have; set"),
        ("many tokens", "knows 12 ids but its tokenizer has 13; take the tokens that were added"),
        ("damaged", "The tokenizer of .* cannot be read: "),
        ("empty", r"The teacher .*empty cannot be loaded: .* Give a folder that"),
    ],
)
def test_teachers_that_are_refused(tmp_path, kind, message) -> None:
    place = tmp_path / kind.replace(" ", "-")
    if kind == "empty":
        place.mkdir()
    elif kind.startswith("Bert"):
        write(place, kind)
    else:
        write(place, ends={"no end": None, "other end": 11}.get(kind, 2))
    path = place / "tokenizer.json"
    if kind == "many tokens":
        spec = json.loads(path.read_text())
        spec["model"]["vocab"] |= {"x": 11, "y": 12}
        path.write_text(json.dumps(spec))
    if kind == "damaged":
        path.write_text("{}")
    with pytest.raises(InputError, match=message):
        CausalTeacher(place)


def test_numbers_that_are_none_are_told(folder) -> None:
    teacher = CausalTeacher(folder)
    teacher.model.lm_head.weight[5, 0] = torch.nan
    with pytest.raises(InputError, match="gave a probability that is not a number; use dtype"):
        teacher.draw([[]], length=2, generator=torch.Generator())


@pytest.mark.parametrize(
    ("how", "prompts", "message"),
    [
        ({"tokens": 0}, [], "tokens is 0 but must be at least 1"),
        ({"valid": -1}, [], "valid is -1 but must be at least 0"),
        ({"length": 0}, [], "length is 0 but must be at least 1"),
        ({"temperature": 0.0}, [], "temperature is 0 but must be above 0"),
        ({"temperature": float("nan")}, [], "temperature is nan but must be above 0"),
        ({"length": 65}, [], "length is 65 but the teacher .* reads at most 64 tokens; draw"),
        ({}, ["a", "a " * 12], "Prompt 2 has 12 tokens but a text only 12; make the prompt"),
    ],
)
def test_what_is_refused(teacher, tmp_path, how, prompts, message) -> None:
    with pytest.raises(InputError, match=message):
        sample_corpus(
            tmp_path / "new", teacher, SampleSettings(**{**SMALL, **how}), prompts=prompts
        )
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_there_is_left_alone(teacher, tmp_path) -> None:
    (tmp_path / "new").mkdir()
    with pytest.raises(InputError, match="new already exists and is never overwritten"):
        sample_corpus(tmp_path / "new", teacher, SampleSettings(**SMALL))


def test_log_probs_that_are_not_there_or_damaged(teacher, tmp_path) -> None:
    sample_corpus(tmp_path / "new", teacher, SampleSettings(**SMALL))
    corpus, path = Corpus.open(tmp_path / "new"), tmp_path / "new/teacher-test.npy"
    with pytest.raises(InputError, match="no log-probabilities that a teacher gave its train text"):
        read_log_probs(corpus, "train")
    np.save(path, np.zeros(3, dtype=np.float32))
    with pytest.raises(InputError, match=r"has numbers of shape \(3,\) but the test text has \d+"):
        read_log_probs(corpus, "test")
    path.write_bytes(b"no numbers")
    with pytest.raises(InputError, match=r"teacher-test\.npy is damaged; copy it again"):
        read_log_probs(corpus, "test")
    path.unlink()
    with pytest.raises(
        InputError, match=r"its test text \(teacher-test\.npy\); hmmlm sample-corpu"
    ):
        read_log_probs(corpus, "test")


def test_texts_that_are_over_are_left(teacher, monkeypatch) -> None:
    seen = []
    plain = teacher.next_log_probs

    def watched(last, *how):
        seen.append(len(last))
        return plain(last, *how)

    monkeypatch.setattr(teacher, "next_log_probs", watched)
    drawn = teacher.draw([[]] * 64, length=40, generator=torch.Generator().manual_seed(2))
    sizes = np.array([len(text.tokens) for text in drawn])
    assert seen[:8] == [64] * 8 and len(set(seen)) > 2
    for step, rows in enumerate(seen):
        going = int((sizes > step // 8 * 8).sum())  # as of the last look
        assert going <= rows <= max(going / SHARE + 1, going)


def test_how_many_texts_are_drawn_side_by_side(teacher) -> None:
    assert teacher.rows_together(10) == 64
    # 2 layers of keys and values, 2 heads of 4 numbers; then 12 logits, five times.
    assert teacher.bytes_of_text(10) == 2 * 2 * 2 * 4 * 4 * 10 + 12 * (4 + 20)
    assert largest_batch(1 << 40, 100) == 1 << 14
    assert largest_batch(1000, 100) == 8 and largest_batch(10, 100) == 1


def test_few_batches_make_a_split(teacher, tmp_path, monkeypatch) -> None:
    numbers = []
    plain = teacher.draw

    def watched(prompts, **how):
        numbers.append(len(prompts))
        return plain(prompts, **how)

    monkeypatch.setattr(teacher, "draw", watched)
    settings = SampleSettings(tokens=2000, valid=0, test=0, batch_size=64, length=40)
    sample_corpus(tmp_path / "new", teacher, settings)
    written = Corpus.open(tmp_path / "new").splits["train"]
    assert written["tokens"] >= 2000 and sum(numbers) == written["sentences"]
    # Not ever smaller ones towards the end, which take as long as any.
    assert len(numbers) <= 3 + sum(numbers) // 64
