"""The `paths` file: what is written is read again, and nothing else is read."""

import numpy as np
import pytest

from clusters.texts import toy
from hmmlm.clusters.brown import brown
from hmmlm.clusters.clustering import Clustering
from hmmlm.clusters.paths import clustering_from_paths, read_paths, write_paths
from hmmlm.errors import InputError

WORDS = [*(f"w{i:02}" for i in range(29)), "in\tside", "<eos>"]


def test_round_trip(tmp_path):
    bigrams, _ = toy()
    made = brown(bigrams, 7)
    write_paths(tmp_path / "paths", made, WORDS, bigrams.words)
    read = read_paths(tmp_path / "paths")
    again = clustering_from_paths(read, WORDS)
    np.testing.assert_array_equal(again.cluster_of_word, made.cluster_of_word)
    assert again.paths == made.paths
    counts = {WORDS[i]: int(n) for i, n in enumerate(bigrams.words) if n}
    assert dict(zip(read.words, read.counts, strict=True)) == counts
    assert read.paths == sorted(read.paths)
    write_paths(tmp_path / "again", again, WORDS, bigrams.words)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "paths").read_bytes()


def test_the_lines_are_those_of_wcluster(tmp_path):
    made = Clustering(np.array([1, 0, -1, 1], np.int32), ("0", "1"))
    words, counts = ["a", "b", "never", "é"], np.array([2, 7, 0, 5])
    write_paths(tmp_path / "paths", made, words, counts)
    assert (tmp_path / "paths").read_bytes() == "0\tb\t7\n1\té\t5\n1\ta\t2\n".encode()


def test_one_cluster_has_an_empty_path(tmp_path):
    made = Clustering(np.zeros(2, np.int32), ("",))
    write_paths(tmp_path / "paths", made, ["a", "b"], np.array([2, 1]))
    assert (tmp_path / "paths").read_text() == "\ta\t2\n\tb\t1\n"
    assert clustering_from_paths(read_paths(tmp_path / "paths"), ["b", "a"]).paths == ("",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is empty; give a paths file"),
        (
            b"0\ta\t" + b"9" * 26,
            "line 1 is '0.ta.t9+' but must be a bit string, a word and a count",
        ),
        (b"0\ta\t1\n1\tb\n", "line 2 is '1.tb' but must be a bit string, a word and a count"),
        (b"0\ta\t1\n\n", "line 2 is '' but must be"),
        (b"02\ta\t1\n", "line 1 is '02.ta.t1' but must be"),
        (b"0\t\t1\n", "line 1 is '0.t.t1' but must be"),
        (b"0\ta\t-1\n", "line 1 is '0.ta.t-1' but must be"),
        (b"0 a 1\n", "line 1 is '0 a 1' but must be"),
        (b"0\ta\t1\n1\ta\t1\n", "line 2 has the word 'a' a second time, after line 1"),
        (b"0\ta\t1\n0\tb\t1\n0\ta\t1\n", "line 3 has the word 'a' a second time, after line 1"),
        (b"0\ta\t1\n0\t\xff\t1\n", "line 2: byte 0xff is not UTF-8"),
    ],
)
def test_a_bad_file_is_refused(tmp_path, text, message):
    path = tmp_path / "paths"
    path.write_bytes(text)
    with pytest.raises(InputError, match=message) as caught:
        read_paths(path)
    assert str(caught.value).startswith(str(path))


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_paths(tmp_path / "none")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_paths(tmp_path)


def test_clusters_of_another_vocabulary_are_refused(tmp_path):
    path = tmp_path / "paths"
    path.write_text("0\ta\t1\n1\tb\t2\n1\tc\t2\n")
    with pytest.raises(
        InputError, match="p has 2 of 3 words that this vocabulary does not have, such as 'b'"
    ):
        clustering_from_paths(read_paths(path), ["a", "x", "y"], source="p")
    with pytest.raises(InputError, match="these are the clusters of another vocabulary"):
        write_paths(path, Clustering(np.zeros(2, np.int32), ("",)), ["a"], np.array([1]))


def test_a_word_that_a_line_cannot_hold(tmp_path):
    made = Clustering(np.zeros(2, np.int32), ("",))
    with pytest.raises(InputError, match=r"the word 'a\\nb' is empty or has a line break"):
        write_paths(tmp_path / "paths", made, ["c", "a\nb"], np.array([2, 1]))
    assert not list(tmp_path.iterdir())
