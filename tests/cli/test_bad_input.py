"""Every mistake is one sentence on stderr, exit status 2, and leaves every file as it was."""

import gzip
import hashlib
import json
import pickle
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from commands import tree

READERS = {  # commands that read a text
    "prepare": ["prepare", "{}", "--out=new"],
    "prepare-valid": ["prepare", "text.txt", "--valid={}", "--out=new"],
    "evaluate": ["evaluate", "model", "{}"],
    "score": ["score", "model", "{}"],
    "score-json": ["score", "model", "{}", "--json"],
    "tag": ["tag", "model", "{}"],
    "tag-posterior": ["tag", "model", "{}", "--posterior"],
}
TEXTS = {  # what is wrong, the bytes of bad.txt, and what is said about it
    "empty": (b"", "bad.txt is empty; give at least one line of text."),
    "empty-line": (b"a b\n\nc\n", r"bad.txt, line 2 is empty; --empty-lines keep .*, .* skip .*"),
    "blank-line": (b"a b\n \t\n", "bad.txt, line 2 is empty; .*"),
    "not-utf-8": (
        b"a b\nc \xe9\n",
        "bad.txt, line 2: byte 0xe9 is not UTF-8; .* iconv -f LATIN1 .*",
    ),
    "utf-16": (
        "a b\n".encode("utf-16"),
        "bad.txt, line 1: byte 0xff is not UTF-8; convert .* iconv -f UTF-16 -t UTF-8 bad.txt .*",
    ),
    "utf-16-be": (
        b"\xfe\xff" + "a b\n".encode("utf-16-be"),
        "bad.txt, line 1: byte 0xfe is not UTF-8; convert .* iconv -f UTF-16 -t UTF-8 bad.txt .*",
    ),
}
MODEL_COMMANDS = {
    "evaluate": ["evaluate", "{}", "corpus"],
    "score": ["score", "{}", "test.txt"],
    "tag": ["tag", "{}", "test.txt"],
    "sample": ["sample", "{}"],
    "next": ["next", "{}", "the"],
    "fill": ["fill", "{}", "the ?"],
    "info": ["info", "{}"],
}
CORPUS_COMMANDS = {
    "train": ["train", "{}", "--out=new"],
    "evaluate": ["evaluate", "model", "{}"],
    "info": ["info", "{}"],
}


def with_name(command: list[str], name: object) -> list[str]:
    return [part.format(name) for part in command]


def each(table: dict):
    return pytest.mark.parametrize("command", table.values(), ids=table)


# Text


@each(READERS)
@pytest.mark.parametrize(("data", "said"), TEXTS.values(), ids=TEXTS)
def test_bad_text(place, refused, command, data, said):
    (place / "bad.txt").write_bytes(data)
    assert re.fullmatch(said, refused(*with_name(command, "bad.txt")))


@each(READERS)
def test_a_text_that_is_not_there(refused, command):
    said = r"no.txt (cannot be read: No such file or directory|does not exist; give a text .*)\."
    assert re.fullmatch(said, refused(*with_name(command, "no.txt")))


@each(READERS)
def test_half_of_a_compressed_text(place, refused, command):
    half = gzip.compress((place / "text.txt").read_bytes())[:-20]
    (place / "bad.txt.gz").write_bytes(half)
    said = r"bad.txt.gz is not a whole .gz file \(.*\); copy or compress it again."
    assert re.fullmatch(said, refused(*with_name(command, "bad.txt.gz")))


@each({name: READERS[name] for name in ("score", "tag", "tag-posterior", "prepare-valid")})
def test_a_folder_instead_of_a_text(refused, command):
    message = refused(*with_name(command, "corpus"))
    assert message == "corpus is a folder but must be a text file."


@pytest.mark.parametrize("command", ["score", "tag"])
@pytest.mark.parametrize("data", [b"", b"a \xff\n", b"a\n\nb\n"])
def test_bad_text_on_stdin(place, refused, monkeypatch, command, data):
    (place / "in.txt").write_bytes(data)
    with (place / "in.txt").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert re.search("is empty;|is not UTF-8;", refused(command, "model"))


@pytest.mark.parametrize("rule", ["keep", "skip"])
def test_empty_lines_can_be_allowed(place, call, rule):
    (place / "gaps.txt").write_text("the dog\n\na cat\n")
    answer = call("score", "model", "gaps.txt", f"--empty-lines={rule}", "--json")
    assert json.loads(answer.out)["tokens"] == {"keep": 7, "skip": 6}[rule]


@pytest.mark.parametrize(
    "command", [["next", "model", "a \udcff"], ["sample", "model", "--prompt"]]
)
def test_a_prompt_that_is_not_utf_8(refused, command):
    command = [*command, "a \udcff"] if command[-1] == "--prompt" else command
    said = r"Invalid value for '.+': byte 0xff is not UTF-8; write the text in UTF-8; see hmmlm .+"
    assert re.fullmatch(said, refused(*command))


def test_a_vocabulary_that_would_be_empty(refused):
    message = refused("prepare", "text.txt", "--min-count=100000", "--out=new")
    assert message.startswith("No word of the text occurs 100,000 times or more")


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("t.json", b"{", "t.json is not json, or only part of a file; give a tokenizer.json .*"),
        ("t.json", b"{}", 't.json is json but not a tokenizer: it has no "model"; give a .*'),
        ("t.model", b"\xff\xff", "t.model .*"),
        ("no.json", None, "no.json cannot be read: No such file or directory."),
    ],
)
def test_a_tokenizer_that_is_none(place, refused, name, data, said):
    if data is not None:
        (place / name).write_bytes(data)
    assert re.fullmatch(said, refused("prepare", "text.txt", "--tokenizer", name, "--out=new"))


# A corpus


def shard(place: Path) -> Path:
    return place / "corpus/test-00000.bin"


def set_checksum(place: Path) -> None:
    index = json.loads((place / "corpus/corpus.json").read_text())
    digest = hashlib.sha256(shard(place).read_bytes()).hexdigest()
    index["splits"]["test"]["shards"][0]["sha256"] = digest
    (place / "corpus/corpus.json").write_text(json.dumps(index))


def change_a_token(place: Path) -> str:
    ids = np.fromfile(shard(place), "<u2")
    ids[3] = 77
    ids.tofile(shard(place))
    return r".*test-00000.bin has changed since it was written \(sha256 .*\); copy it again or .*"


def name_a_token_outside_the_vocabulary(place: Path) -> str:
    change_a_token(place)
    set_checksum(place)
    return ".*test-00000.bin has id 77 but this vocabulary ends at 12; re-encode the corpus .*"


def cut_a_shard(place: Path) -> str:
    shard(place).write_bytes(shard(place).read_bytes()[:-2])
    return r".*test-00000.bin has 638 bytes but corpus.json says 640; copy it again or .*"


def lose_a_shard(place: Path) -> str:
    shard(place).unlink()
    return r".*test-00000.bin cannot be read: No such file or directory; prepare the text again\."


def damage_the_index(place: Path) -> str:
    index = place / "corpus/corpus.json"
    index.write_text(index.read_text()[:40])
    return r"corpus/corpus.json is not json, or only part of a file; prepare the text again\."


def empty_the_index(place: Path) -> str:
    (place / "corpus/corpus.json").write_text('{"format": "hmmlm-corpus-1"}')
    return r"corpus/corpus.json lacks what this version needs \('vocabulary_hash'\); prepare .*"


def write_another_index(place: Path) -> str:
    (place / "corpus/corpus.json").write_text('{"format": "other"}')
    return "corpus/corpus.json has the format 'other' but this version reads 'hmmlm-corpus-1'; .*"


def exchange_the_tokenizer(place: Path) -> str:
    path = place / "corpus/tokenizer.json"
    path.write_text(path.read_text().replace("zebra", "lion").replace("dog", "lion"))
    return r"corpus/tokenizer.json is not the vocabulary this corpus was written with \(hash .*"


@each(CORPUS_COMMANDS)
@pytest.mark.parametrize(
    "damage",
    [
        change_a_token,
        name_a_token_outside_the_vocabulary,
        cut_a_shard,
        lose_a_shard,
        damage_the_index,
        empty_the_index,
        write_another_index,
        exchange_the_tokenizer,
    ],
)
def test_a_damaged_corpus(place, refused, command, damage):
    said = damage(place)
    assert re.fullmatch(said, refused(*with_name(command, "corpus")))


def test_a_corpus_of_another_vocabulary(place, call, refused):
    (place / "other.txt").write_text("quite another text\n")
    assert call("prepare", "other.txt", "--out=other").status == 0
    said = (
        r"the corpus other has another vocabulary \(5 tokens, hash \w{12}\) than the model "
        r"\(13 tokens, hash \w{12}\); prepare the text again with the model's tokenizer.json\."
    )
    assert re.fullmatch(said, refused("evaluate", "model", "other", "--split=train"))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["train", "text.txt", "--out=new"], "text.txt is a file but must be a corpus folder; .*"),
        (
            ["train", "model", "--out=new"],
            "model is a model; a corpus is needed here, such as hmmlm prepare makes.",
        ),
        (["train", "no", "--out=new"], "no does not exist; give a corpus folder, made by hmmlm .*"),
        (["evaluate", "model", "model"], "model is a model; a corpus is needed here, such as .*"),
        (["evaluate", "corpus", "model"], "corpus is a corpus; a model is needed here."),
        (["train", ".", "--out=new"], ". is not a prepared corpus; its corpus is corpus."),
        (
            ["train", "--resume", "no"],
            "no does not exist; give the folder of a training that was stopped.",
        ),
        (
            ["info", "text.txt"],
            "text.txt is plain text; info tells of models, corpora and files of clusters. hmmlm "
            "prepare text.txt makes a corpus of it.",
        ),
        (
            ["score", "model", "the red"],
            r"the red does not exist; give a text file; echo 'the red' \| hmmlm score model reads "
            "the words themselves.",
        ),
        (
            ["tag", "model", "the" * 1000],
            rf"{'the' * 1000} does not exist; .* \| hmmlm tag model reads the words themselves.",
        ),
        (["evaluate", "text.txt", "corpus"], "text.txt is a file but must be a model's folder."),
        (["score", "no", "text.txt"], "no does not exist; give a model's folder."),
        (["info", "no"], "no does not exist; give a model's folder."),
        (["info"], "Give a folder or a file, or --device to see what runs there."),
        (
            ["info", "--device=meta"],
            r"--device is meta, which holds no numbers; use --device cpu\.",
        ),
        (["prepare", "corpus", "--out=new"], "corpus is already a prepared corpus; train on it .*"),
        (["prepare", "model", "--out=new"], "model has no training text; looked for .*"),
        (
            ["evaluate", "model", "corpus", "--split=dev"],
            "corpus has no split 'dev'; choose one with --split train or --split valid or .*",
        ),
        (
            ["evaluate", "model", "text.txt", "--split=dev"],
            "--split dev needs a corpus folder; text.txt is one text.",
        ),
    ],
)
def test_one_thing_given_for_another(refused, command, said):
    assert re.fullmatch(said, refused(*command))


# A model


def change(place: Path, **changes) -> None:
    path = place / "model/model.safetensors"
    tensors = load_file(path)
    for name, new in changes.items():
        tensors[name] = new(tensors[name].clone()).contiguous()
    save_file(tensors, path)


def put(place: object, value: float):
    def changed(tensor: torch.Tensor) -> torch.Tensor:
        tensor[place] = value
        return tensor

    return changed


def cut_the_weights(place: Path) -> str:
    path = place / "model/model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    return r"model/model.safetensors is not a whole safetensors file \(.*\); copy or train .*"


def empty_the_weights(place: Path) -> str:
    (place / "model/model.safetensors").write_bytes(b"")
    return r"model/model.safetensors is not a whole safetensors file \(.*\); copy or train .*"


def write_foreign_weights(place: Path) -> str:
    save_file({"lm_head.weight": torch.zeros(3)}, place / "model/model.safetensors")
    return r"model/model.safetensors holds lm_head.weight, but a model of this library holds .*"


def write_nothing(place: Path) -> str:
    save_file({}, place / "model/model.safetensors")
    return r"model/model.safetensors holds nothing, but a model of this library holds .*"


class Trap:
    """Unpickling it leaves a file."""

    def __reduce__(self):
        return (Path.touch, (Path("unpickled"),))


def write_a_pickle(place: Path) -> str:
    (place / "model/model.safetensors").write_bytes(pickle.dumps(Trap()))
    return r"model/model.safetensors is not a whole safetensors file \(.*\); copy or train .*"


def write_a_torch_file(place: Path) -> str:
    torch.save({"log_init": torch.zeros(4)}, place / "model/model.safetensors")
    return r"model/model.safetensors is not a whole safetensors file \(.*\); copy or train .*"


def lose_the_weights(place: Path) -> str:
    (place / "model/model.safetensors").unlink()
    return (
        r"model/model.safetensors cannot be read: No such file or directory; copy .* as a whole\."
    )


def make_the_weights_a_folder(place: Path) -> str:
    (place / "model/model.safetensors").unlink()
    (place / "model/model.safetensors").mkdir()
    return r"model/model.safetensors cannot be read: Is a directory; copy .* as a whole\."


def put_nan_in_transitions(place: Path) -> str:
    change(place, log_trans=put((1, 2), torch.nan))
    return r"model/model.safetensors: log_trans has nan at \(1, 2\) \(1 such cells\); .*"


def put_nan_in_emissions(place: Path) -> str:
    change(place, log_emit=put((5, 1), torch.nan))
    return r"model/model.safetensors: log_emit has nan at \(5, 1\) \(1 such cells\); .*"


def unnormalise_start(place: Path) -> str:
    change(place, log_init=put(0, 3.0))
    return r"model/model.safetensors: log_init is not normalised: .* sum to 2\d\.\d+, not 1; .*"


def unnormalise_transitions(place: Path) -> str:
    change(place, log_trans=lambda t: t - 0.5)
    return r"model/model.safetensors: log_trans is not normalised: .* sum to 0\.606531, not 1; .*"


def unnormalise_emissions(place: Path) -> str:
    change(place, log_emit=lambda t: t - 0.5)
    return r"model/model.safetensors: log_emit is not normalised: .* sum to 0\.606531, not 1; .*"


def leave_a_state_unnamed(place: Path) -> str:
    change(
        place,
        support_rows=lambda rows: rows[:, :3],
        log_emit=lambda t: torch.log_softmax(t[:, :3], 0),
    )
    return (
        r"model/model.safetensors: State 3 is named by no word \(1 such states of 4\), so it could "
        r"never emit anything; remove it or name it\."
    )


def name_a_state_that_is_not_there(place: Path) -> str:
    change(place, support_rows=put((0, 0), 9))
    return r"model/model.safetensors: The support names state 9 but there are 4 states .*"


def cut_the_transitions(place: Path) -> str:
    change(place, log_trans=lambda t: t[:, :3])
    return (
        r"model/model.safetensors: log_trans is float32 of shape \(4, 3\), which does not fit the "
        r"other tables; copy or train the model again\."
    )


def flatten_the_transitions(place: Path) -> str:
    change(place, log_trans=lambda t: t.flatten())
    return r"model/model.safetensors: log_trans is float32 of shape \(16,\), which does not fit .*"


def mix_types(place: Path) -> str:
    change(place, log_trans=lambda t: t.double())
    return r"model/model.safetensors: log_trans is float64 of shape \(4, 4\), which does not fit .*"


def write_words_as_numbers(place: Path) -> str:
    change(place, support_rows=lambda t: t.float())
    return r"model/model.safetensors: support_rows is float32 of shape .*, which does not fit .*"


def damage_the_config(place: Path) -> str:
    path = place / "model/config.json"
    path.write_text(path.read_text()[:30])
    return r"model/config.json is not json, or only part of a file; copy the model's folder again\."


def write_bytes_in_the_config(place: Path) -> str:
    (place / "model/config.json").write_bytes(b"\xff\xfe\x80")
    return r"model/config.json is not json, or only part of a file; .*"


def write_a_list_in_the_config(place: Path) -> str:
    (place / "model/config.json").write_text("[]")
    return "model/config.json has the format None but this version reads 'hmmlm-model-1'; give .*"


def change_the_format(place: Path) -> str:
    path = place / "model/config.json"
    path.write_text(path.read_text().replace("hmmlm-model-1", "hmmlm-model-9"))
    return "model/config.json has the format 'hmmlm-model-9' but this version reads .*"


def change_the_number_of_states(place: Path) -> str:
    path = place / "model/config.json"
    path.write_text(path.read_text().replace('"num_states": 4', '"num_states": 5'))
    return (
        r"model/model.safetensors has 4 states and 13 words but config.json says 5 and 13; copy "
        r"the folder again as a whole\."
    )


def lose_the_config(place: Path) -> str:
    (place / "model/config.json").unlink()
    return r"model is not a model: it has no config.json; train one with hmmlm train\."


def take_another_tokenizer(place: Path) -> str:
    path = place / "model/tokenizer.json"
    path.write_text(path.read_text().replace("dog", "lion"))
    return r"model/tokenizer.json is not the vocabulary this model was trained with; copy the .*"


def lose_the_tokenizer(place: Path) -> str:
    (place / "model/tokenizer.json").unlink()
    return r"model/tokenizer.json cannot be read: No such file or directory\."


@each(MODEL_COMMANDS)
@pytest.mark.parametrize(
    "damage",
    [
        cut_the_weights,
        empty_the_weights,
        write_foreign_weights,
        write_nothing,
        write_a_pickle,
        write_a_torch_file,
        lose_the_weights,
        make_the_weights_a_folder,
        put_nan_in_transitions,
        put_nan_in_emissions,
        unnormalise_start,
        unnormalise_transitions,
        unnormalise_emissions,
        leave_a_state_unnamed,
        name_a_state_that_is_not_there,
        cut_the_transitions,
        flatten_the_transitions,
        mix_types,
        write_words_as_numbers,
        damage_the_config,
        write_bytes_in_the_config,
        write_a_list_in_the_config,
        change_the_format,
        change_the_number_of_states,
        lose_the_config,
        take_another_tokenizer,
        lose_the_tokenizer,
    ],
)
def test_a_damaged_model(place, refused, command, damage):
    said = damage(place)
    assert re.fullmatch(said, refused(*with_name(command, "model")))
    assert not (place / "unpickled").exists()


# A name that is taken, or cannot be written to


@pytest.mark.parametrize("kind", ["folder", "full", "file", "link"])
@pytest.mark.parametrize("command", [["prepare", "text.txt"], ["train", "corpus"], ["demo"]])
def test_what_is_there_is_never_overwritten(place, refused, command, kind):
    taken = place / "taken"
    if kind == "file":
        taken.write_text("mine")
    elif kind == "link":
        taken.symlink_to("nowhere")
    else:
        taken.mkdir()
        if kind == "full":
            (taken / "model.safetensors").write_text("mine")
    message = refused(*command, "--out=taken")
    assert message == (
        "taken already exists and is never overwritten; choose another name or remove it first."
    )
    assert taken.is_symlink() == (kind == "link")


def test_the_default_name_of_a_corpus_is_not_overwritten(place, refused):
    (place / "text.corpus").mkdir()
    assert refused("prepare", "text.txt").startswith("text.corpus already exists")


@pytest.mark.parametrize("command", [["prepare", "text.txt"], ["train", "corpus"], ["demo"]])
def test_a_file_where_a_folder_should_be(place, refused, command):
    message = refused(*command, "--out=text.txt/a/new")
    assert message == (
        f"text.txt/a/new cannot be written: {place}/text.txt is a file, not a folder; choose "
        f"another name."
    )


@pytest.mark.parametrize("command", [["prepare", "text.txt"], ["train", "corpus"], ["demo"]])
def test_a_name_that_is_too_long(place, refused, command):
    message = refused(*command, "--out=" + "x" * 250)
    assert message.endswith(
        "cannot be written: File name too long; choose another place or ask for permission."
    )


@pytest.mark.parametrize("command", [["prepare", "text.txt"], ["train", "corpus"], ["demo"]])
def test_no_permission_is_said_before_any_work(place, refused, monkeypatch, command):
    # Root may write everywhere, so the refusal is planted; tests/cli/test_disk.py has a real one.
    def deny(*_, **names):
        raise PermissionError(13, "Permission denied", str(names.get("dir")))

    def work(*_, **__):
        raise AssertionError("work was done for nothing")

    monkeypatch.setattr("tempfile.mkdtemp", deny)
    for name in ("data.tokenizer.Tokenizer.words", "data.shards.Corpus.open", "cli.tour._prepare"):
        monkeypatch.setattr(f"hmmlm.{name}", work)
    message = refused(*command, "--out=a/b/new")
    assert message == (
        "a/b/new cannot be written: Permission denied; choose another place or ask for permission."
    )


# Options


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["train", "corpus", "--out=new", "--states=0"], "'0' is not a whole number of at least 1"),
        (["train", "corpus", "--out=new", "--states=x"], "'x' is not a whole number of at least 1"),
        (["train", "corpus", "--out=new", "--epochs=0"], "'0' is not a whole number of at least 1"),
        (
            ["train", "corpus", "--out=new", "--epochs=1.5"],
            "'1.5' is not a whole number of at leas",
        ),
        (
            ["train", "corpus", "--out=new", "--batch-size=0"],
            "'0' is not a whole number of at leas",
        ),
        (["train", "corpus", "--out=new", "--length=0"], "'0' is not a whole number of at least 1"),
        (["train", "corpus", "--out=new", "--seed=-1"], "'-1' is not a whole number of at least 0"),
        (["train", "corpus", "--out=new", "--learning-rate=0"], "'0' is not a number above 0"),
        (["train", "corpus", "--out=new", "--learning-rate=nan"], "'nan' is not a number above 0"),
        (["train", "corpus", "--out=new", "--weight-decay=-1"], "'-1' is not a number of at least"),
        (["train", "corpus", "--out=new", "--device=tpu"], "'tpu' is not one of cpu, cuda, cuda:N"),
        (
            ["evaluate", "model", "corpus", "--device=meta"],
            "'meta' is not one of cpu, cuda, cuda:N",
        ),
        (
            ["score", "model", "text.txt", "--empty-lines=no"],
            "'no' is not one of refuse, keep, skip",
        ),
        (
            ["prepare", "text.txt", "--out=new", "--empty-lines=no"],
            "'no' is not one of refuse, kee",
        ),
        (
            ["prepare", "text.txt", "--out=new", "--min-count=0"],
            "'0' is not a whole number of at l",
        ),
        (
            ["prepare", "text.txt", "--out=new", "--max-size=2"],
            "'2' is not a whole number of at le",
        ),
        (["sample", "model", "--count=0"], "'0' is not a whole number of at least 1"),
        (["sample", "model", "--length=0"], "'0' is not a whole number of at least 1"),
        (
            ["sample", "model", f"--seed={1 << 63}"],
            "is above the largest number possible, 2^63 - 1",
        ),
        (["next", "model", "-k", "0"], "'0' is not a whole number of at least 1"),
        (["info", "model", "--states=-1"], "'-1' is not a whole number of at least 0"),
        (["demo", "--out=new", "--states=0"], "'0' is not a whole number of at least 1"),
        (["demo", "--out=new", "--epochs=0"], "'0' is not a whole number of at least 1"),
    ],
)
def test_an_option_with_a_wrong_value(refused, command, said):
    message = refused(*command)
    assert message.startswith("Invalid value for '-") and said in message
    assert message.endswith(f"; see hmmlm {command[0]} --help.")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            ["evaluate", "model", "corpus", "--mode=foo"],
            "The evaluation mode is 'foo' but must be ",
        ),
        (
            ["evaluate", "model", "corpus", "--mode=window 0"],
            "The evaluation mode is 'window 0' bu",
        ),
        (["train"], "Give either a corpus folder, made by hmmlm prepare, or plain text with --t"),
        (["train", "corpus", "--text=text.txt"], "Give either a corpus folder, made by hmmlm prep"),
        (["train", "corpus", "--out"], "Option '--out' requires an argument; see hmmlm"),
        (["train", "corpus", "--nope"], "No such option: --nope"),
        (["next", "model", "a", "b"], "Got unexpected extra argument"),
        (["dance"], "No such command 'dance'; see hmmlm --help."),
        (
            ["prepare", "text.txt", "--out=new", "--tokenizer=t", "--min-count=2"],
            "--min-count and --max-size make a vocabulary of words and do not go with --tokenizer",
        ),
    ],
)
def test_a_command_that_is_not_understood(refused, command, said):
    assert refused(*command).startswith(said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--epochs=3", "--set=train.epochs=5"], "--epochs is 3 but --set says train.epochs=5; le"),
        (["--set", "model.kind=mlp", "--kind=scalar"], "--kind is scalar but --set says model.ki"),
        (["--batch-size=3", "--set=data.batch_size=4"], "--batch-size is 3 but --set says data.b"),
        (["--set=data.corpus=other"], "the corpus is corpus but --set says data.corpus=other; lea"),
        (["--set=train.epochs=1\ntrain.seed=2"], r"'train.epochs=1\ntrain.seed=2' has more than "),
    ],
)
def test_options_that_contradict_each_other(refused, options, said):
    assert refused("train", "corpus", "--out=new", *options).startswith(said)


def test_options_that_say_the_same_twice(place, call):
    options = ["--states=4", "--epochs=1", "--set=model.states=4", "--set= train.epochs = 1"]
    assert call("train", "corpus", "--out=new", *options, "--set=data.corpus=corpus").status == 0


@pytest.mark.parametrize(
    ("setting", "name"),
    [("train.schedule=plateau", "schedule plateau"), ("train.early_stop=2", "early_stop")],
)
def test_what_needs_validation_text(place, call, refused, setting, name):
    said = f"{name} needs validation text, and there is none; "
    assert call("prepare", "text.txt", "--out=alone").status == 0
    message = refused("train", "alone", "--out=new", "--set", setting)
    assert message == said + "prepare the corpus with --valid, or leave it out."
    Path("few.txt").write_text("the dog sees a cat .\n" * 10)
    message = refused("train", "--text=few.txt", "--out=new", "--set", setting)
    assert message == said + "give at least 40 lines, of which some are held out, or leave it out."


def test_a_sweep_is_not_trained(place, refused):
    Path("rates.toml").write_text("[sweep.grid]\n'train.epochs' = [1, 2]\n")
    said = "rates.toml has a table [sweep], of many trainings; use hmmlm sweep rates.toml."
    assert refused("train", "rates.toml", "--out=new") == said


def test_a_run_that_is_not_named_toml(place, refused):
    Path("run.conf").write_text("[train]\nepochs = 3\n")
    said = "run.conf is a file but must be a corpus folder; if it is a run's file, its name must "
    assert refused("train", "run.conf", "--out=new") == f"{said}end in .toml."
    Path("other.txt").write_text("a = 3\n")
    assert "run hmmlm prepare on it" in refused("train", "other.txt", "--out=new")


@pytest.mark.skipif(torch.cuda.device_count() > 3, reason="this machine has that GPU")
def test_a_gpu_that_is_not_there(refused):
    message = refused("score", "model", "text.txt", "--device=cuda:3")
    assert re.fullmatch(
        r"--device is cuda:3 but torch finds \d GPUs here; use --device cpu\.", message
    )


def test_too_little_memory_is_a_sentence(place, refused, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to ...")

    monkeypatch.setattr("hmmlm.params.scalar.Scalar.__init__", fail)
    message = refused("train", "corpus", "--out=new", "--kind=scalar")
    assert message.startswith("There is not enough memory for this; use fewer states")


def test_a_mistake_of_ours_is_not_hidden(place, call, monkeypatch):
    monkeypatch.setattr("hmmlm.model.Model.next", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        call("next", "model")


def test_a_model_that_was_moved_still_answers(place, call):
    before = call("next", "model", "--json").out
    shutil.move("model", "moved")
    assert call("next", "moved", "--json").out == before
    assert "moved/model.safetensors" in tree(place)
