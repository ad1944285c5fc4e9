import io
import re
from pydoc_data.topics import topics

import pytest
import sentencepiece
import tokenizers

from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError

LINES = [line for topic in topics.values() for line in topic.splitlines() if line.strip()][::6]
NASTY = [
    "",
    " ",
    "     ",
    " leading",
    "trailing ",
    "  both  ",
    "a  b   c    d",
    "tab\tx",
    "\t",
    "x\r\ny",
    "a\rb",
    "\u2028x\u2029",
    "\u00a0nbsp\u00a0",
    "\u3000全角　スペース",
    "日本語テキスト",
    "か\u3099",
    "한국어 \u1112\u1161\u11ab",
    "a\u200bb",
    "\u200b",
    "a \u200b b",
    "\ufeffbom",
    "\u00ad soft\u00adhyphen",
    "cafe\u0301 CAFE\u0301 q\u0301 Q\u0301",
    "\u0301",
    "\u1e69 s\u0323\u0307",
    "½ ² ﷺ ﬁ \uff21 ¨ a¨",
    "क\u093c क़",
    "İstanbul Straße ΣΑΣ",
    "😀 👩‍👩‍👧‍👦 🇫🇷 👍🏽 A🏽",
    "\x00\x01 control \x7f\x1f",
    "\x01",
    "\ufffd",
    "</s>",
    "<s> a</s>b <unk> <pad>",
    "<0x0A> <0xFF>",
    "▁",
    "▁▁ literal ▁x▁",
    "the" * 500,
    "ababababab abcabcabcabc",
]
CODE = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
OPTIONS = [
    {},
    {"byte_fallback": True, "vocab_size": 700},
    {"normalization_rule_name": "identity"},
    {"normalization_rule_name": "nfkc", "add_dummy_prefix": False},
    {"normalization_rule_name": "nmt_nfkc_cf", "byte_fallback": True, "vocab_size": 700},
    {"normalization_rule_name": "nfkc_cf", "remove_extra_whitespaces": False},
    {**CODE, "byte_fallback": True, "vocab_size": 700},
    {"add_dummy_prefix": False, "remove_extra_whitespaces": False},
]


def train(path, **options):
    """A tiny SentencePiece model in `path`, and its own processor."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(  # pyright: ignore
        sentence_iterator=iter(LINES),
        model_writer=model,
        minloglevel=2,
        hard_vocab_limit=False,
        **{"vocab_size": 500, **options},
    )
    path.write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())  # pyright: ignore


def compare(processor, tokenizer, lines, *, ties=False):
    """Equal ids; with `ties`, the pieces of runs of one character may be in another order."""
    excused = 0
    for line, ids in zip(lines, tokenizer.encode_lines(lines), strict=True):
        expected, ours = processor.encode(line), ids[:-1].tolist()
        if ties and ours != expected and re.search(r"(.)\1\1\1", line):
            excused += 1
            ours, expected = sorted(ours), sorted(expected)
        assert ours == expected, line
    assert excused <= len(lines) / 50


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(map(str, o.values())) or "-")
@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_ids_are_those_of_sentencepiece(model_type, options, tmp_path):
    processor = train(tmp_path / "m.model", model_type=model_type, **options)
    tokenizer = Tokenizer.from_sentencepiece(tmp_path / "m.model")
    assert tokenizer.vocab_size == processor.vocab_size()
    assert (tokenizer.eos_id, tokenizer.unk_id) == (processor.eos_id(), processor.unk_id())
    pieces = [processor.id_to_piece(i) for i in range(processor.vocab_size())]
    assert [tokenizer.token(i) for i in range(tokenizer.vocab_size)] == pieces
    assert [tokenizer.id(piece) for piece in pieces] == list(range(len(pieces)))
    compare(processor, tokenizer, LINES + NASTY, ties=model_type == "unigram")
    for line in LINES[:300]:
        ids = [i for i in processor.encode(line) if i != processor.unk_id()]  # spelt otherwise
        assert tokenizer.decode(ids) == processor.decode(ids)


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_bytes_make_any_text_survive(model_type, tmp_path):
    train(tmp_path / "m.model", model_type=model_type, byte_fallback=True, vocab_size=700, **CODE)
    tokenizer = Tokenizer.load(tmp_path / "m.model")
    for line in NASTY:
        if "▁" not in line:
            assert tokenizer.decode(tokenizer.encode(line)) == line


def test_saved_json_is_the_same_tokenizer(tmp_path):
    processor = train(tmp_path / "m.model")
    Tokenizer.load(tmp_path / "m.model").save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.hash == Tokenizer.load(tmp_path / "m.model").hash
    assert loaded.eos_id == processor.eos_id()
    compare(processor, loaded, NASTY)
    plain = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert plain.encode("a</s>").ids == [*processor.encode("a</s>"), processor.eos_id()]


def test_user_defined_pieces_are_never_cut(tmp_path):
    symbols = ["<mask>", "qqq", "ion"]
    lines = ["a <mask> b", "<mask>", "qqqqqqqq", "nation station <mask><mask>"]
    processor = train(tmp_path / "u.model", user_defined_symbols=symbols)
    compare(processor, Tokenizer.load(tmp_path / "u.model"), lines)
    options = {**CODE, "model_type": "bpe", "user_defined_symbols": symbols}
    processor = train(tmp_path / "b.model", add_dummy_prefix=False, **options)
    compare(processor, Tokenizer.load(tmp_path / "b.model"), lines)
    train(tmp_path / "c.model", **options)
    with pytest.raises(InputError, match=r"bpe model with 3 user-defined pieces and add_dummy_pre"):
        Tokenizer.load(tmp_path / "c.model")


def test_ids_of_special_pieces_may_lie_anywhere(tmp_path):
    processor = train(tmp_path / "m.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    tokenizer = Tokenizer.load(tmp_path / "m.model")
    assert (tokenizer.eos_id, tokenizer.unk_id) == (1, 2)
    compare(processor, tokenizer, NASTY)


def test_model_without_eos_asks_for_one(tmp_path):
    train(tmp_path / "m.model", eos_id=-1)
    with pytest.raises(InputError, match=r"m.model has none of <eos>.*; pass --eos TOKEN"):
        Tokenizer.load(tmp_path / "m.model")
    assert Tokenizer.load(tmp_path / "m.model", eos="<s>").eos_id == 1


@pytest.mark.parametrize("model_type", ["word", "char"])
def test_other_kinds_of_model_are_refused(model_type, tmp_path):
    train(tmp_path / "m.model", model_type=model_type)
    with pytest.raises(
        InputError, match=rf"m.model is a SentencePiece model of type {model_type}; only unigram an"
    ):
        Tokenizer.load(tmp_path / "m.model")


def test_options_that_cannot_be_converted_are_refused(tmp_path):
    train(tmp_path / "m.model", treat_whitespace_as_suffix=True)
    with pytest.raises(InputError, match=r"m.model marks spaces in a way that cannot be converted"):
        Tokenizer.load(tmp_path / "m.model")
    (tmp_path / "rules.tsv").write_text("41\t42\n")
    train(tmp_path / "m.model", normalization_rule_tsv=str(tmp_path / "rules.tsv"))
    with pytest.raises(InputError, match=r"rules of its own \(\w+\), which cannot be converted"):
        Tokenizer.load(tmp_path / "m.model")


def test_truncated_and_foreign_models_are_refused(tmp_path):
    path = tmp_path / "m.model"
    with pytest.raises(InputError, match=r"m.model cannot be read: No such file"):
        Tokenizer.load(path)
    train(path)
    data = path.read_bytes()
    message = r"m.model is not a SentencePiece model, or only part of one; give a whole .model"
    for bad in (b"", data[: len(data) // 2], data[:10], data[:-300], b"PK\x03\x04" * 50, b"{}\n"):
        path.write_bytes(bad)
        with pytest.raises(InputError, match=message):
            Tokenizer.load(path)
