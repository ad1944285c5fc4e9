"""`hmmlm cluster`: classes of words out of text."""

import time
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hmmlm.cli.bars import progress_bar
from hmmlm.cli.output import Json, one_of, print_json, say, whole
from hmmlm.errors import InputError
from hmmlm.storage import refuse_existing

if TYPE_CHECKING:
    import numpy as np
    from rich.progress import Progress

    from hmmlm.clusters.clustering import Clustering
    from hmmlm.clusters.counts import TextWords

Method = Annotated[
    str,
    typer.Option(
        help="exchange (more mutual information) or brown (merges only).",
        parser=one_of("brown", "exchange"),
        metavar="METHOD",
    ),
]


def cluster(
    text: Annotated[
        Path, typer.Option(help="A text file, a folder of text, or a corpus; - is stdin.")
    ],
    out: Annotated[Path, typer.Option(help="The paths file to write: bits, word, count.")],
    clusters: Annotated[
        int, typer.Option(help="How many clusters.", parser=whole(1), metavar="N")
    ] = 128,
    method: Method = "exchange",
    pairs: Annotated[
        str,
        typer.Option(
            help="Neighbours whose mutual information is raised: those within lines, or all of "
            "the text as one stream.",
            parser=one_of("lines", "stream"),
            metavar="KIND",
        ),
    ] = "lines",
    threads: Annotated[
        int | None,
        typer.Option(help="Threads; by default all processors.", parser=whole(1), metavar="N"),
    ] = None,
    show: Annotated[
        int, typer.Option(help="Clusters to show by their words.", parser=whole(0), metavar="N")
    ] = 10,
    json: Json = False,
) -> None:
    """Cluster the words of a text by their neighbours, and write a paths file.

    Of a folder or a corpus the training text is taken. <eos> is no word here.
    """
    from hmmlm.clusters.blocks import METHODS
    from hmmlm.clusters.clustering import balance
    from hmmlm.clusters.counts import PAIRS, count_bigrams, mutual_information
    from hmmlm.clusters.paths import write_paths

    refuse_existing(out)
    began = time.perf_counter()
    with progress_bar(f"Reading {text}", None):
        read = _read(text)
    with progress_bar("Counting pairs", len(read.tokens)) as bar:
        counted = count_bigrams(
            read.tokens,
            len(read.words),
            pairs=pairs,
            progress=lambda n: bar.advance(bar.task_ids[0], n),
        )
    counting = time.perf_counter()
    with progress_bar("Clustering", None) as bar:
        made = METHODS[method](counted, clusters, threads=threads, progress=_counter(bar))
    seconds = time.perf_counter()
    write_paths(out, made, read.words, counted.words)
    information = {}
    with progress_bar("Mutual information", None):
        for kind in PAIRS:
            again = counted
            if kind != pairs:
                again = count_bigrams(read.tokens, len(read.words), pairs=kind)
            information[kind] = mutual_information(again, made.cluster_of_word)
    sizes = balance(made.cluster_of_word, counted.words)
    _say_clusters(made, read.words, counted.words, show)
    say(
        f"{clusters:,} clusters of {counted.num_types:,} words by {method} in "
        f"{seconds - counting:.1f} s: mutual information {information['lines']:.4f} nats within "
        f"lines, {information['stream']:.4f} as one stream; wrote {out}"
    )
    say(_sizes(sizes, "cluster"))
    if json:
        print_json(
            {
                "file": str(out),
                "method": method,
                "clusters": clusters,
                "types": counted.num_types,
                "tokens": int(counted.words.sum()),
                "pairs": pairs,
                "mutual_information": information,
                "seconds": round(seconds - began, 3),
                "seconds_clustering": round(seconds - counting, 3),
                "sizes": sizes._asdict(),
            }
        )


def paths_info(path: Path) -> dict[str, Any]:
    """What `hmmlm info` says of a paths file."""
    import numpy as np

    from hmmlm.clusters.clustering import balance
    from hmmlm.clusters.paths import clustering_from_paths, read_paths

    _refuse_text(path)
    found = read_paths(path)
    made = clustering_from_paths(found, found.words, source=str(path))
    sizes = balance(made.cluster_of_word, np.array(found.counts, np.int64))
    return {"kind": "clusters", "words": len(found.words), **balance_info(sizes, "cluster")}


def _refuse_text(path: Path) -> None:
    """Refuses a file whose first line has no tab, as all lines of a paths file do."""
    with path.open("rb") as file:
        first = file.readline(1 << 16)
    if not first.strip() or b"\t" in first or b"\0" in first:
        return
    try:
        first.decode()
    except UnicodeDecodeError:
        return  # what is wrong is said where the file is read
    name = quote(str(path))
    raise InputError(
        f"{path} is plain text; info tells of models, corpora and files of clusters. hmmlm prepare "
        f"{name} makes a corpus of it."
    )


def balance_info(sizes: Any, what: str) -> dict[str, Any]:
    """Sizes and imbalance of blocks or clusters, for `hmmlm info`."""
    result = {
        f"{what}s": sizes.blocks,
        f"words_per_{what}": f"{sizes.fewest_words:,} to {sizes.most_words:,}, "
        f"median {sizes.median_words:,g}",
        "imbalance": round(sizes.imbalance, 3),
    }
    if sizes.largest_share is not None:
        result["largest_share_of_text"] = round(sizes.largest_share, 4)
    return result


def _sizes(sizes: Any, what: str) -> str:
    return (
        f"{sizes.fewest_words:,} to {sizes.most_words:,} words each, median "
        f"{sizes.median_words:,g}; the most frequent {what} is {sizes.largest_share:.1%} of "
        f"the text"
    )


def _counter(bar: "Progress") -> Callable[[int], None]:
    """Shows how many words were merged or looked at."""
    seen = 0

    def count(words: int) -> None:
        nonlocal seen
        seen += words
        bar.update(bar.task_ids[0], details=f"{seen:,} words merged or looked at")

    return count


def _read(text: Path) -> "TextWords":
    from hmmlm.clusters.counts import TextWords, read_words
    from hmmlm.data.corpus import find_splits, read_lines
    from hmmlm.data.shards import Corpus

    if (text / "corpus.json").exists():
        corpus = Corpus.open(text)
        words = corpus.tokenizer
        return TextWords(corpus.split("train"), [words.token(id) for id in range(words.vocab_size)])
    if text.is_dir():
        return read_words(find_splits(text).read("train", empty_lines="skip"))
    return read_words(read_lines(text, empty_lines="skip"))


def _say_clusters(made: "Clustering", words: list[str], counts: "np.ndarray", number: int) -> None:
    """The clusters that occur most, by their most frequent words, as many as fit on a line."""
    import numpy as np

    from hmmlm.cli.output import console

    kept = np.flatnonzero(made.cluster_of_word >= 0)
    kept = kept[np.argsort(-counts[kept], kind="stable")]
    use = np.bincount(made.cluster_of_word[kept], counts[kept])
    for c in np.argsort(-use, kind="stable")[:number].tolist():
        members = kept[made.cluster_of_word[kept] == c]
        line = f"{made.paths[c]:>16} {len(members):>6,} "
        for word in members[:40].tolist():
            if len(line) + len(words[word]) + 1 > console.width:
                break
            line += " " + words[word]
        say(line)


def count_blocks(path: Path, states: int, *, like_hmm_lm: bool) -> int:
    """How many blocks a paths file makes of a text with its words, after checking the states."""
    import numpy as np

    from hmmlm.clusters.blocks import assign_blocks
    from hmmlm.clusters.paths import clustering_from_paths, read_paths

    found = read_paths(path)
    words = list(dict.fromkeys([*found.words, "<eos>"]))
    made = clustering_from_paths(found, words, source=str(path))
    number = assign_blocks(
        made.cluster_of_word,
        np.ones(len(words), np.int64),
        eos_id=words.index("<eos>"),
        unk_id=words.index("<unk>") if "<unk>" in words else None,
        like_hmm_lm=like_hmm_lm,
    ).num_blocks
    _states_each(states, number)
    return number


def _states_each(states: int, blocks: int) -> int:
    if states % blocks:
        fits = max(1, round(states / blocks)) * blocks
        raise InputError(
            f"{states:,} states cannot be shared equally among {blocks:,} blocks; use {fits:,} "
            f"states, say."
        )
    return states // blocks


def blocks_support(
    corpus: Any,
    states: int,
    *,
    blocks: int | None,
    clusters: Path | None,
    method: str,
    like_hmm_lm: bool,
    uneven: float | None = None,
    indent: int = 0,
) -> tuple[Any, dict[str, Any]]:
    """The support of a blocked model, and facts for its config; says by which rules."""
    from hmmlm.clusters.blocks import assign_blocks, block_facts, corpus_blocks
    from hmmlm.clusters.clustering import balance
    from hmmlm.clusters.counts import count_words
    from hmmlm.clusters.paths import clustering_from_paths, read_paths
    from hmmlm.train.sizes import support_of_blocks

    words = corpus.tokenizer
    counts = count_words(corpus.split("train"), words.vocab_size)
    if blocks is not None and states < blocks:
        raise InputError(
            f"--states is {states:,} but {blocks:,} blocks need at least one state each; give more "
            "states or fewer blocks."
        )
    if clusters is not None:
        spelt = [words.token(id) for id in range(words.vocab_size)]
        found = clustering_from_paths(read_paths(clusters), spelt, source=str(clusters))
        made = assign_blocks(
            found.cluster_of_word,
            counts,
            eos_id=words.eos_id,
            unk_id=words.unk_id,
            like_hmm_lm=like_hmm_lm,
        )
        origin, when = str(clusters), ""
        if blocks is not None and blocks != made.num_blocks:
            raise InputError(
                f"--blocks is {blocks:,} but {clusters} makes {made.num_blocks:,} blocks; leave "
                "--blocks out."
            )
        if states < made.num_blocks:
            raise InputError(
                f"--states is {states:,} but the {made.num_blocks:,} blocks of {clusters} need at "
                "least one state each; give more states."
            )
    else:
        assert blocks is not None
        with progress_bar("Clustering", None) as bar:
            made, cached = corpus_blocks(
                corpus, blocks, method=method, like_hmm_lm=like_hmm_lm, progress=_counter(bar)
            )
        origin, when = method, ", kept with the corpus" if cached else ", made now"
    sizes = balance(made.block_of_word, counts)
    say(f"{made.num_blocks:,} blocks ({origin}{when}): {_sizes(sizes, 'block')}", indent=indent)
    for rule in made.rules:
        say(rule, indent=indent + 3)
    if not uneven:
        _states_each(states, made.num_blocks)  # refuses what cannot be shared equally
    support = support_of_blocks(made, counts, states, uneven)
    if uneven:
        shared = (support.rows >= 0).sum(1)
        least, most = int(shared.min()), int(shared.max())
        say(f"blocks have {least:,} to {most:,} states, by the tokens of each", indent=indent + 3)
    return support, block_facts(made, counts, origin)
