"""`hmmlm recluster`: the blocks of a trained model, with words where it expects them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmmlm.cli.bars import progress_bar
from hmmlm.cli.output import Device, Json, pick_device, print_json, say
from hmmlm.errors import counted
from hmmlm.storage import refuse_existing

if TYPE_CHECKING:
    import numpy as np


def recluster(
    model: Annotated[Path, typer.Argument(help="The folder of an HMM with blocks.")],
    on: Annotated[Path, typer.Option(help="The corpus it was trained on.", metavar="CORPUS")],
    out: Annotated[Path, typer.Option(help="The paths file to write: bits, word, count.")],
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Move words between the blocks of a trained HMM, and write them as a paths file.

    Every word goes to the block whose states its contexts lead to; as many blocks are left. A small
    model will do: hmmlm train --clusters takes the file for a larger one.
    """
    refuse_existing(out)
    from hmmlm.clusters.brown import merge_tree
    from hmmlm.clusters.counts import count_bigrams
    from hmmlm.clusters.paths import write_paths
    from hmmlm.data.shards import Corpus, check_vocabulary
    from hmmlm.model import Model
    from hmmlm.train.moving import check_blocks, move_words

    loaded = Model.load(model, device=pick_device(device))
    check_blocks(loaded.hmm.support)
    corpus = Corpus.open(on)
    check_vocabulary(corpus, loaded.tokenizer)
    tokens, words = corpus.split("train"), corpus.tokenizer
    with progress_bar("Moving words", len(tokens)) as bar:
        moved = move_words(loaded.hmm, tokens, progress=lambda n: bar.advance(bar.task_ids[0], n))
    bigrams = count_bigrams(tokens, words.vocab_size)
    made = merge_tree(bigrams, _classes(moved.block_of_word, bigrams.words))
    names = [words.token(id) for id in range(words.vocab_size)]
    write_paths(out, made, names, bigrams.words)
    movers = moved.gains > 0
    share = bigrams.words[movers].sum() / max(1, bigrams.words.sum())
    gain = moved.gains.sum() / max(1, len(tokens))
    say(
        f"{counted(int(movers.sum()), 'word')} of {bigrams.num_types:,} moved, {share:.1%} of the "
        f"text: {gain:.4f} nats a token by the model's account; wrote {out}"
    )
    best = moved.gains.argsort()[::-1][:10]
    if movers.any():
        say("most gain: " + " ".join(names[word] for word in best if movers[word]), indent=3)
    if json:
        print_json(
            {
                "file": str(out),
                "clusters": len(made.paths),
                "words_moved": int(movers.sum()),
                "share_moved": round(float(share), 4),
                "nats_per_token": float(gain),
            }
        )


def _classes(block_of_word: "np.ndarray", counts: "np.ndarray") -> "np.ndarray":
    """Blocks as classes from 0 up, of the words that occur; -1 for the others."""
    import numpy as np

    classes = np.full(len(counts), -1, np.int32)
    occurs = counts > 0
    classes[occurs] = np.unique(block_of_word[occurs], return_inverse=True)[1]
    return classes
