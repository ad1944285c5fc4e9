"""`hmmlm recluster`."""

import random
from pathlib import Path

from commands import last_json
from hmmlm.data.shards import Corpus
from hmmlm.model import Model
from hmmlm.train.moving import move_words

TRAIN = ("--kind=scalar", "--states=16", "--dropout=0", "--epochs=3", "--batch-size=4", "--json")


def test_words_move_and_a_model_is_made_of_the_new_blocks(place: Path, call) -> None:
    """Sentences of three kinds of words in turn; one word of the second is clustered wrongly."""
    draw = random.Random(0)
    kinds = [[f"{kind}{i}" for i in range(5)] for kind in "abc"]
    lines = [" ".join(draw.choice(kind) for kind in kinds * 2) for _ in range(150)]
    Path("turns.txt").write_text("\n".join(lines) + "\n")
    assert call("prepare", "turns.txt", "--out=turns").status == 0
    paths = {
        word: bits for kind, bits in zip(kinds, ("0", "10", "11"), strict=True) for word in kind
    }
    paths["b4"] = "11"
    rows = [f"{path}\t{word}\t1\n" for word, path in paths.items()]
    Path("wrong.paths").write_text("".join(rows))
    trained = call("train", "turns", "--out=blocked", "--clusters=wrong.paths", *TRAIN)
    assert trained.status == 0, trained.err
    answer = call("recluster", "blocked", "--on=turns", "--out=moved.paths", "--json")
    assert answer.status == 0, answer.err
    found = last_json(answer.out)
    assert found["words_moved"] == 1 and found["clusters"] == 3
    assert "1 word of 15 moved" in answer.out and "most gain: b4" in answer.out
    text = Corpus.open("turns").split("train")
    moved = move_words(Model.load("blocked").hmm, text)
    assert abs(found["nats_per_token"] - moved.gains.sum() / len(text)) < 1e-6
    again = call("train", "turns", "--out=again", "--clusters=moved.paths", *TRAIN)
    assert again.status == 0, again.err
    support, spelt = Model.load("again").hmm.support, Corpus.open("turns").tokenizer
    blocks = [{int(support.row_of_word[spelt.encode(w)[0]]) for w in kind} for kind in kinds]
    assert len(set().union(*blocks)) == 3 and all(len(block) == 1 for block in blocks)


def test_what_cannot_be_done_is_refused(place: Path, call, refused) -> None:
    assert "not in blocks" in refused("recluster", "model", "--on=corpus", "--out=moved.paths")
    said = refused("recluster", "model", "--on=corpus", "--out=text.txt")
    assert "text.txt already exists" in said
    assert call("train", "corpus", "--out=blocked", "--blocks=8", *TRAIN).status == 0
    assert call("prepare", "test.txt", "--out=other", "--json").status == 0
    before = sorted(place.iterdir())
    answer = call("recluster", "blocked", "--on=other", "--out=moved.paths")
    assert answer.status == 2 and "vocabulary" in answer.err
    assert sorted(place.iterdir()) == before
