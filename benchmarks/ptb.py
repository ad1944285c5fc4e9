"""A folder of text as token ids in memory, and blocks made without clustering."""

import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from hmmlm.data.corpus import find_splits
from hmmlm.data.preparation import prepare_corpus
from hmmlm.data.shards import Corpus
from hmmlm.data.token_array import TokenArray
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.support import Support


class Texts(NamedTuple):
    tokenizer: Tokenizer
    splits: dict[str, TokenArray]


def read_texts(folder: Path, tokenizer: Tokenizer | None = None) -> Texts:
    """The splits of a folder such as PTB's, encoded as `hmmlm prepare` does."""
    with tempfile.TemporaryDirectory() as place:
        prepare_corpus(f"{place}/corpus", find_splits(folder), tokenizer=tokenizer, workers=1)
        corpus = Corpus.open(f"{place}/corpus")
        eos = corpus.tokenizer.eos_id
        splits = {
            name: TokenArray.from_ids(corpus.split(name)[0 : len(corpus.split(name))], eos_id=eos)
            for name in corpus.splits
        }
    return Texts(corpus.tokenizer, splits)


def quick_support(texts: Texts, states: int, blocks: int) -> Support:
    """Blocks of equal size with words dealt out in order of frequency, `<eos>` among them."""
    train = texts.splits["train"]
    often = np.bincount(train[0 : len(train)], minlength=texts.tokenizer.vocab_size)
    clusters = np.empty(len(often), dtype=np.int64)
    clusters[np.argsort(-often, kind="stable")] = np.arange(len(often)) % blocks
    return Support.from_clusters(torch.from_numpy(clusters), states // blocks)
