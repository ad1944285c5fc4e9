import json
import sys
import unicodedata
from collections import Counter

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, processors

from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError

LINES = ["the cat sat on the mat", "the <unk> sat", "a cat <eos> a mat"]


def foreign(vocab, *, unk="<unk>", template=None, tmp_path):
    backend = tokenizers.Tokenizer(models.WordLevel({w: i for i, w in enumerate(vocab)}, unk))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    if template:
        ids = [(w, vocab.index(w)) for w in template.split() if w != "$A"]
        backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)
    path = tmp_path / "foreign.json"
    backend.save(str(path))
    return path


def test_words_are_ordered_by_count_then_alphabet():
    tokenizer = Tokenizer.words(LINES)
    tokens = [tokenizer.token(i) for i in range(tokenizer.vocab_size)]
    assert tokens == ["<unk>", "<eos>", "the", "a", "cat", "mat", "sat", "on"]
    assert (tokenizer.unk_id, tokenizer.eos_id) == (0, 1)


def test_words_from_counts_are_the_same_as_from_lines():
    counts = Counter(word for line in LINES for word in line.split())
    assert Tokenizer.words(counts).hash == Tokenizer.words(LINES).hash


def test_min_count_and_max_size_bound_the_vocabulary():
    assert Tokenizer.words(LINES, min_count=2).vocab_size == 7
    smallest = Tokenizer.words(LINES, max_size=4)
    assert [smallest.token(i) for i in range(4)] == ["<unk>", "<eos>", "the", "a"]
    assert smallest.vocab_size == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_count": 0}, r"^min_count is 0 but must be at least 1\.$"),
        ({"max_size": 2}, r"^max_size is 2 but must be at least 3: <unk>, <eos> and one word\.$"),
        ({"min_count": 9}, r"^No word of the text occurs 9 times or more, .* a lower min_count\.$"),
    ],
)
def test_words_refuses_impossible_options(options, message):
    with pytest.raises(InputError, match=message):
        Tokenizer.words(LINES, **options)


def test_encode_has_no_eos_and_unknown_words_are_unk():
    tokenizer = Tokenizer.words(LINES)
    assert tokenizer.encode("the dog sat") == [2, 0, 6]
    assert tokenizer.encode("") == []
    assert tokenizer.encode("<eos> x<eos> <unk>") == [1, 0, 0]


def test_encode_lines_ends_each_line_in_eos():
    tokenizer = Tokenizer.words(LINES)
    arrays = list(tokenizer.encode_lines(["the cat", "", "mat"]))
    assert [a.tolist() for a in arrays] == [[2, 4, 1], [1], [5, 1]]
    assert all(a.dtype == np.int64 for a in arrays)


def test_encode_lines_takes_the_text_in_groups(monkeypatch):
    tokenizer = Tokenizer.words(LINES)
    whole = [a.tolist() for a in tokenizer.encode_lines(LINES)]
    monkeypatch.setattr("hmmlm.data.tokenizer._BATCH_CHARACTERS", 30)
    taken = []
    arrays = tokenizer.encode_lines(line for line in LINES if not taken.append(line))
    first = next(arrays).tolist()
    assert len(taken) == 2
    assert [first, *(a.tolist() for a in arrays)] == whole


def test_split_is_pythons_at_every_kind_of_space():
    characters = [chr(c) for c in range(sys.maxunicode + 1)]
    odd = [c for c in characters if unicodedata.category(c) in ("Zs", "Zl", "Zp", "Cc", "Cf")]
    assert all(c in odd for c in characters if c.isspace())
    text = "".join(f"a{c}b " for c in odd)
    tokenizer = Tokenizer.words([text])
    assert [tokenizer.token(i) for i in tokenizer.encode(text)] == text.split()


@given(st.lists(st.lists(st.text("ab<>/\u00e9\U0001f600", min_size=1)), min_size=1))
def test_word_lines_survive_the_round_trip(sentences):
    lines = [" ".join(sentence) for sentence in sentences]
    tokenizer = Tokenizer.words([*lines, "word"])
    ids = np.concatenate(list(tokenizer.encode_lines(lines)))
    assert tokenizer.decode(ids) == "\n".join(lines)


def test_decode_makes_eos_a_line_end():
    tokenizer = Tokenizer.words(LINES)
    assert tokenizer.decode([2, 4, 1, 5]) == "the cat\nmat"
    assert tokenizer.decode([2, 4, 1]) == "the cat"
    assert tokenizer.decode([1, 1]) == "\n"
    assert tokenizer.decode([]) == ""
    assert tokenizer.decode([0, 2]) == "<unk> the"


def test_unknown_ids_and_tokens_are_refused():
    tokenizer = Tokenizer.words(LINES)
    message = (
        r"^The id 1,000 is outside this vocabulary, which ends at 7; use the tokenizer that the "
        r"ids were made with\.$"
    )
    for call in (tokenizer.token, lambda i: tokenizer.decode([i])):
        with pytest.raises(InputError, match=message):
            call(1000)
        with pytest.raises(InputError, match="The id -1 is outside"):
            call(-1)
    with pytest.raises(InputError, match=r"^'dog' is not one of the 8 tokens of this vocabulary"):
        tokenizer.id("dog")
    assert tokenizer.id("cat") == 4


def test_save_and_load_keep_everything(tmp_path):
    tokenizer = Tokenizer.words(LINES)
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    for name in ("hash", "eos_id", "unk_id", "vocab_size"):
        assert getattr(loaded, name) == getattr(tokenizer, name)
    assert loaded.encode(LINES[0]) == tokenizer.encode(LINES[0])
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == (tmp_path / "tokenizer.json").read_text()


def test_plain_library_reads_the_json_and_appends_eos(tmp_path):
    tokenizer = Tokenizer.words(LINES)
    tokenizer.save(tmp_path / "tokenizer.json")
    plain = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert plain.encode("the cat").ids == [2, 4, 1]


def test_hash_tells_vocabularies_and_eos_apart(tmp_path):
    path = foreign(["<unk>", "<eos>", "</s>", "a"], tmp_path=tmp_path)
    hashes = {Tokenizer.load(path).hash, Tokenizer.load(path, eos="</s>").hash}
    hashes |= {Tokenizer.words(LINES).hash, Tokenizer.words(LINES[:2]).hash}
    assert len(hashes) == 4


def test_hash_does_not_change_from_version_to_version():
    assert Tokenizer.words(["b a"]).hash.startswith("01041b2e8884")


@pytest.mark.parametrize("eos", ["<eos>", "</s>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>"])
def test_eos_is_found_by_name(eos, tmp_path):
    tokenizer = Tokenizer.load(foreign(["<unk>", "a", eos], tmp_path=tmp_path))
    assert tokenizer.eos_id == 2
    assert next(tokenizer.encode_lines(["a b"])).tolist() == [1, 0, 2]


def test_chosen_eos_survives_saving(tmp_path):
    path = foreign(["<unk>", "<eos>", "[SEP]"], tmp_path=tmp_path)
    Tokenizer.load(path, eos="[SEP]").save(tmp_path / "saved.json")
    assert Tokenizer.load(tmp_path / "saved.json").eos_id == 2


def test_eos_of_the_files_own_template_wins_and_bos_is_dropped(tmp_path):
    path = foreign(["<unk>", "<eos>", "</s>", "a"], template="$A </s>", tmp_path=tmp_path)
    assert Tokenizer.load(path).eos_id == 2
    path = foreign(["<unk>", "<s>", "</s>", "a"], template="<s> $A </s>", tmp_path=tmp_path)
    tokenizer = Tokenizer.load(path)
    assert tokenizer.encode("a") == [3]
    assert next(tokenizer.encode_lines(["a"])).tolist() == [3, 2]


def test_truncation_and_padding_of_a_foreign_file_are_off(tmp_path):
    path = foreign(["<unk>", "<eos>", "a"], tmp_path=tmp_path)
    backend = tokenizers.Tokenizer.from_file(str(path))
    backend.enable_truncation(3)
    backend.enable_padding(length=10)
    backend.save(str(path))
    assert next(Tokenizer.load(path).encode_lines(["a a a a a"])).tolist() == [2] * 5 + [1]


def test_vocabulary_with_gaps_ends_at_its_largest_id(tmp_path):
    path = foreign(["<unk>", "<eos>", "a"], tmp_path=tmp_path)
    spec = json.loads(path.read_text())
    spec["model"]["vocab"]["b"] = 9
    path.write_text(json.dumps(spec))
    tokenizer = Tokenizer.load(path)
    assert tokenizer.vocab_size == 10
    assert tokenizer.token(5) == ""


def test_no_eos_says_how_to_give_one(tmp_path):
    path = foreign(["<unk>", "a"], tmp_path=tmp_path)
    with pytest.raises(
        InputError, match=r"has none of <eos>, </s>, .*<\|im_end\|>, so .*; pass --eos TOKEN with"
    ):
        Tokenizer.load(path)
    with pytest.raises(
        InputError, match=r"has no token '<e>' to end a line with; pass --eos TOKEN"
    ):
        Tokenizer.load(path, eos="<e>")
    assert Tokenizer.load(path, eos="a").eos_id == 1


def test_truncated_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(InputError, match=r"tokenizer.json cannot be read: No such file"):
        Tokenizer.load(path)
    Tokenizer.words(LINES).save(path)
    path.write_text(path.read_text()[:-40])
    with pytest.raises(InputError, match=r"tokenizer.json is not json, or only part of a file; "):
        Tokenizer.load(path)
    path.write_bytes(b"\x80\x02\xff")
    with pytest.raises(InputError, match=r"is not json, or only part of a file"):
        Tokenizer.load(path)
    path.write_text('{"a": 1}')
    with pytest.raises(InputError, match=r'is json but not a tokenizer: it has no "model"; give'):
        Tokenizer.load(path)
    path.write_text('{"model": {"type": "Word2Vec"}}')
    with pytest.raises(InputError, match=r"is not a tokenizer that tokenizers [\d.]+ can read: "):
        Tokenizer.load(path)


def test_text_that_cannot_be_encoded_is_refused(tmp_path):
    path = foreign(["<eos>", "a"], unk="missing", tmp_path=tmp_path)
    with pytest.raises(InputError, match=r"^The tokenizer cannot encode this text: .*UNK"):
        Tokenizer.load(path).encode("b")
    with pytest.raises(InputError, match=r"^The tokenizer cannot encode this text: "):
        Tokenizer.words(LINES).encode("\udc80")


def test_tokenizer_is_frozen():
    with pytest.raises(AttributeError):
        Tokenizer.words(LINES).eos_id = 3  # pyright: ignore


@given(st.lists(st.text(st.sampled_from("ab \t\x1c\x85\u2003\r<eos>unk")), max_size=9))
def test_stretches_are_the_lines_joined(lines):
    tokenizer = Tokenizer.words(["a a ab b <unk b> <eos>"])
    joined = [id for ids in tokenizer.encode_lines(lines) for id in ids.tolist()]
    stretches = list(tokenizer.encode_stretches(lines))
    assert [id for ids in stretches for id in ids.tolist()] == joined
    assert all(ids.dtype == np.int64 for ids in stretches)


def test_stretches_of_a_tokenizer_that_does_more_than_look_up_words(tmp_path):
    plain = Tokenizer.words(["a b"])
    plain.save(tmp_path / "t.json")
    spec = json.loads((tmp_path / "t.json").read_text())
    added = {"id": 4, "content": "B", "single_word": False, "lstrip": False, "rstrip": False}
    for change in (
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"added_tokens": [{**added, "normalized": False, "special": False}]},
    ):
        (tmp_path / "t.json").write_text(json.dumps({**spec, **change}))
        other = Tokenizer.load(tmp_path / "t.json")
        (ids,) = other.encode_stretches(["a B b.b aBb"])
        assert ids.tolist() == [*other.encode("a B b.b aBb"), 1]
        (ids_of_words,) = plain.encode_stretches(["a B b.b aBb"])
        assert ids.tolist() != ids_of_words.tolist()
    assert len(list(plain.encode_stretches(["a b"] * 100_000))) == 2
