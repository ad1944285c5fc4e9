"""Texts that are made of others: the built-in one, and the head of a long one."""

from pathlib import Path

LENGTHS = {"train": 300_000, "valid": 16_000, "test": 1_000}
"""Tokens of the head of a text, which times are taken on."""


def write_builtin(folder: Path) -> None:
    """A corpus of the built-in text, to see experiments running."""
    from hmmlm.data.builtin import builtin_sentences
    from hmmlm.data.shards import write_corpus
    from hmmlm.data.tokenizer import Tokenizer

    splits = {name: lines[:300] for name, lines in builtin_sentences().items()}
    write_corpus(folder, Tokenizer.words(splits["train"], min_count=2), splits)


def write_head(folder: Path, whole: Path) -> None:
    """The first lines of each split of a corpus, with its vocabulary."""
    from hmmlm.data.shards import Corpus, ShardWriter, write_index
    from hmmlm.storage import new_folder

    corpus = Corpus.open(whole)
    with new_folder(folder) as made:
        corpus.tokenizer.save(made / "tokenizer.json")
        written = {}
        for name, length in LENGTHS.items():
            text = corpus.split(name)
            ends = text.sentence_offsets()
            with ShardWriter(made, name, corpus.tokenizer) as shards:
                shards.add(text[0 : ends[ends <= max(length, ends[1])].max()])
            written[name] = shards.written
        write_index(made, corpus.tokenizer, written)
