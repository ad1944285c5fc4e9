"""The text that comes with Python."""

from hmmlm.data.builtin import builtin_sentences


def test_sentences_are_split_once_and_for_all() -> None:
    splits = builtin_sentences()
    assert splits == builtin_sentences()
    train, valid, test = (set(splits[name]) for name in ("train", "valid", "test"))
    assert not train & valid and not train & test and not valid & test
    assert len(train) > 1500 and len(valid) > 50 and len(test) > 100
    assert all(len(line.split()) >= 3 and line == line.lower() for line in train)
