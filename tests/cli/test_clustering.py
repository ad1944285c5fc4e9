"""`hmmlm cluster`, and models with emission blocks."""

from pathlib import Path

import numpy as np
import pytest

from commands import last_json, made_up_lines, run_command, tree
from hmmlm.clusters.counts import PAIRS, count_bigrams, mutual_information, read_words
from hmmlm.clusters.paths import clustering_from_paths, read_paths
from hmmlm.data.shards import Corpus
from hmmlm.model import Model


@pytest.mark.parametrize("method", ["brown", "exchange"])
def test_cluster_writes_paths(place, call, method):
    options = ["--clusters=5", f"--method={method}", "--out=paths", "--json"]
    answer = call("cluster", "--text=text.txt", *options)
    assert answer.status == 0 and answer.err == "", answer.err
    result = last_json(answer.out)
    words = read_words((place / "text.txt").read_text().splitlines())
    read = read_paths(place / "paths")
    clusters = clustering_from_paths(read, words.words).cluster_of_word
    assert len(set(read.paths)) == 5 and len(read.words) == 11
    for kind in PAIRS:
        bigrams = count_bigrams(words.tokens, len(words.words), pairs=kind)
        expected = mutual_information(bigrams, clusters)
        assert result["mutual_information"][kind] == pytest.approx(expected, abs=1e-12)
    assert result["method"] == method and result["clusters"] == 5 and result["pairs"] == "lines"
    assert result["types"] == 11 and result["tokens"] == sum(read.counts) == 200 * 7
    assert 0 < result["seconds_clustering"] <= result["seconds"]
    assert result["sizes"]["blocks"] == 5
    assert f"5 clusters of 11 words by {method} in " in answer.out


def test_words_of_a_kind_are_one_cluster(call, place):
    call("cluster", "--text=text.txt", "--clusters=5", "--out=paths")
    clusters: dict[str, set[str]] = {}
    read = read_paths("paths")
    for path, word in zip(read.paths, read.words, strict=True):
        clusters.setdefault(path, set()).add(word)
    kinds = [{"dog", "cat", "bird", "tree"}, {"sees", "likes"}, {"red", "blue"}]
    assert all(kind in clusters.values() for kind in kinds)


def test_text_folder_corpus_and_stdin_give_the_same(call, place):
    folder = Path("texts")
    folder.mkdir()
    (folder / "train.txt").write_text((place / "text.txt").read_text().replace("\n", "\n\n"))
    for name, text in (("a", "text.txt"), ("b", "texts"), ("c", "corpus")):
        assert call("cluster", f"--text={text}", "--clusters=4", f"--out={name}").status == 0
    data = (place / "text.txt").read_bytes()
    run_command("cluster", "--text=-", "--clusters=4", "--out=d", cwd=place, stdin=data)
    paths = [Path(name).read_bytes() for name in "abcd"]
    assert len(set(paths)) == 1


def test_the_chosen_pairs_are_what_is_optimised(call, place):
    lines = made_up_lines(60, seed=1)
    # Where lines meet, one of three words stands for which of three comes next.
    ends = [("x", "u"), ("y", "v"), ("z", "w")] * 20
    lines = [f"{ends[i - 1][1]} {line} {ends[i][0]}" for i, line in enumerate(lines)]
    Path("mixed.txt").write_text("".join(line + "\n" for line in lines))
    found = {}
    for kind in PAIRS:
        options = ["--clusters=8", f"--pairs={kind}", f"--out={kind}", "--json"]
        found[kind] = last_json(call("cluster", "--text=mixed.txt", *options).out)
    for kind, other in (PAIRS, PAIRS[::-1]):
        mine, theirs = (found[k]["mutual_information"][kind] for k in (kind, other))
        assert mine > theirs


def test_show_prints_clusters(call, place):
    answer = call("cluster", "--text=text.txt", "--clusters=6", "--out=p", "--show=3")
    assert len(answer.out.splitlines()) == 5
    assert len(call("cluster", "--text=text.txt", "--out=q", "--clusters=6", "--show=0").out) > 0


def test_info_of_a_paths_file(call, place):
    Path("paths").write_text("0\ta\t6\n10\tb\t1\n10\tc\t1\n11\td\t2\n")
    result = last_json(call("info", "paths", "--json").out)
    assert result == {
        "kind": "clusters",
        "words": 4,
        "clusters": 3,
        "words_per_cluster": "1 to 2, median 1",
        "imbalance": 1.5,
        "largest_share_of_text": 0.6,
    }


FEW = ["--epochs=1", "--batch-size=4", "--length=64"]


def test_train_with_blocks(call, place):
    answer = call("train", "corpus", "--blocks=6", "--states=12", "--out=blocked", *FEW)
    assert answer.status == 0, answer.err
    assert "6 blocks (exchange, made now): 1 to 5 words each, median" in answer.out
    assert "<eos> has block 5 to itself" in answer.out
    assert "1 token that never occurs is in block" in answer.out  # <unk>
    support = Model.load("blocked").hmm.support
    assert support.is_partition and support.rows.shape[0] == 6 and support.num_states == 12
    assert sorted((support.rows >= 0).sum(1).tolist()) == [2] * 6
    result = last_json(call("info", "blocked", "--json").out)
    assert result["blocks"] == 6 and result["words_per_block"].startswith("1 to ")
    assert result["imbalance"] > 1 and 0 < result["largest_share_of_text"] < 1
    assert result["blocks_from"] == "exchange"
    assert last_json(call("info", "corpus", "--json").out)["kept_clusters"] == "exchange-lines-5"
    answer = call("train", "corpus", "--blocks=6", "--states=12", "--out=again", *FEW)
    assert "6 blocks (exchange, kept with the corpus)" in answer.out
    Corpus.open("corpus")


def test_train_like_hmm_lm(call, place):
    options = ["--blocks=4", "--states=8", "--cluster-by=brown", "--like-hmm-lm"]
    answer = call("train", "corpus", "--out=blocked", *options, *FEW)
    assert "2 tokens without a cluster, <eos> among them, are in the last cluster, 3" in answer.out
    support = Model.load("blocked").hmm.support
    assert support.row_of_word[:2].tolist() == [3, 3] and support.rows.shape == (4, 2)


def test_train_with_a_paths_file(call, place):
    call("cluster", "--text=text.txt", "--clusters=4", "--out=paths")
    options = ["--clusters=paths", "--states=10", *FEW]
    answer = call("train", "corpus", "--out=blocked", *options)
    assert "5 blocks (paths)" in answer.out
    model = Model.load("blocked")
    spelt = [model.tokenizer.token(id) for id in range(13)]
    clusters = clustering_from_paths(read_paths("paths"), spelt).cluster_of_word
    np.testing.assert_array_equal(model.hmm.support.row_of_word[2:], clusters[2:])
    assert call("train", "corpus", "--out=b2", *options, "--blocks=5").status == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--clusters=12"], "12 clusters were asked for but the text has only 11 different words"),
        (["--clusters=0"], "'0' is not a whole number of at least 1"),
        (["--method=kmeans"], "'kmeans' is not one of brown, exchange"),
        (["--pairs=words"], "'words' is not one of lines, stream"),
        (["--threads=0"], "'0' is not a whole number of at least 1"),
        (["--text=empty.txt"], "empty.txt is empty; give at least one line of text"),
        (["--text=blank.txt"], "blank.txt is empty; give at least one line of text"),
        (["--text=eos.txt"], "the text has no words to cluster"),
        (["--text=none.txt"], "none.txt cannot be read: No such file or directory"),
        (["--text=model"], "model has no training text"),
        (["--out=text.txt"], "text.txt already exists and is never overwritten"),
        (["--out=text.txt/x"], "text.txt is a file, not a folder"),
        (["--out=none/paths"], "none/paths cannot be written: No such file or directory"),
    ],
)
def test_cluster_refuses(refused, place, options, message):
    Path("empty.txt").write_text("")
    Path("blank.txt").write_text("\n \n")
    Path("eos.txt").write_text("<eos>\n<eos>\n")
    assert message in refused("cluster", "--text=text.txt", "--clusters=3", "--out=new", *options)


PATHS = {
    "twice": ("0\tdog\t1\n1\tcat\t1\n1\tdog\t1\n", "line 3 has the word 'dog' a second time"),
    "malformed": ("0\tdog\t1\ncat 1\n", "paths, line 2 is 'cat 1' but must be a bit string"),
    "empty": ("", "paths is empty"),
    "other": ("0\tdog\t1\n1\tchien\t1\n", "paths has 1 of 2 words that this vocabulary does not"),
    "missing": ("0\tdog\t1\n1\tcat\t1\n", "9 tokens of the training text have no cluster"),
}


@pytest.mark.parametrize(("text", "message"), PATHS.values(), ids=PATHS)
def test_train_refuses_bad_clusters(refused, place, text, message):
    Path("paths").write_text(text)
    assert message in refused("train", "corpus", "--clusters=paths", "--states=9", "--out=new")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--blocks=16"], "16 blocks were asked for but with 11 different words"),
        (["--blocks=1"], "blocks is 1 but must be 0 or at least 2."),
        (["--blocks=6", "--states=5"], "5 states cannot be shared equally among 6 blocks; use 6 s"),
        (["--clusters=paths", "--states=3"], "--states is 3 but the 5 blocks of paths need at le"),
        (["--clusters=paths", "--blocks=4"], "--blocks is 4 but paths makes 5 blocks"),
        (["--clusters=paths", "--states=64"], "64 states cannot be shared equally among 5 blocks"),
        (["--like-hmm-lm", "--blocks=0"], "like_hmm_lm says how blocks are made, but blocks is 0."),
    ],
)
def test_train_refuses(call, refused, place, options, message):
    call("cluster", "--text=text.txt", "--clusters=4", "--out=paths")
    assert message in refused("train", "corpus", "--states=64", "--out=new", *options)
    assert not [name for name in tree(place) if "clusters-" in name]
