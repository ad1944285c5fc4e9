"""A training that is killed and killed again."""

import signal

from hmmlm.data.builtin import builtin_sentences
from hmmlm.data.shards import write_corpus
from hmmlm.data.tokenizer import Tokenizer
from kills import kill_at_random


def test_a_training_killed_at_random_instants_ends_with_the_same_weights(tmp_path):
    splits = builtin_sentences()
    write_corpus(tmp_path / "corpus", Tokenizer.words(splits["train"], min_count=2), splits)
    found = list(kill_at_random(tmp_path / "corpus", tmp_path, times=5, seed=1))
    assert sum(line["returned"] == -signal.SIGKILL for line in found) == 5
