"""Commands that make things: a corpus out of text, a model out of a corpus."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from hmmlm.cli.clustering import Method, blocks_support
from hmmlm.cli.output import (
    Device,
    EmptyLines,
    Json,
    pick_device,
    positive,
    print_json,
    progress_bar,
    say,
    whole,
    zero_or_more,
)
from hmmlm.errors import InputError
from hmmlm.storage import check_space, refuse_existing


def prepare(
    text: Annotated[
        Path, typer.Argument(help="A text file, one sentence or document per line, or a folder.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="The folder to write; by default NAME.corpus here.")
    ] = None,
    valid: Annotated[Path | None, typer.Option(help="A text file for validation.")] = None,
    test: Annotated[Path | None, typer.Option(help="A text file for testing.")] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="A tokenizer.json or SentencePiece .model; by default words."),
    ] = None,
    eos: Annotated[str | None, typer.Option(help="The tokenizer's token that ends a line.")] = None,
    min_count: Annotated[
        int, typer.Option(help="Rarer words become <unk>.", parser=whole(1), metavar="N")
    ] = 1,
    max_size: Annotated[
        int | None,
        typer.Option(
            help="Most words in the vocabulary, <unk> and <eos> included.",
            parser=whole(3),
            metavar="N",
        ),
    ] = None,
    empty_lines: EmptyLines = None,
    json: Json = False,
) -> None:
    """Turn text into a corpus: numbered tokens in files that are read in place.

    A folder may be PTB, WikiText, or any with train.txt, valid.txt and test.txt (also .xz, .gz).
    """
    from hmmlm.data.corpus import find_splits
    from hmmlm.data.shards import write_corpus
    from hmmlm.data.tokenizer import Tokenizer

    if (text / "corpus.json").exists():
        raise InputError(f"{text} is already a prepared corpus; train on it with hmmlm train.")
    splits = find_splits(text)
    for name, path in (("valid", valid), ("test", test)):
        if path is not None:
            splits.files[name] = (path,)
    name = text.absolute().name.split(".")[0]
    out = refuse_existing(Path(f"{name}.corpus") if out is None else out)
    if tokenizer is not None and (min_count, max_size) != (1, None):
        raise InputError(
            "--min-count and --max-size make a vocabulary of words and do not go with --tokenizer; "
            "leave them out."
        )
    if tokenizer is not None:
        words = Tokenizer.load(tokenizer, eos)
    else:
        with progress_bar("Counting words", None):
            lines = splits.read("train", empty_lines=empty_lines)
            words = Tokenizer.words(lines, min_count=min_count, max_size=max_size)
    readers = {split: splits.read(split, empty_lines=empty_lines) for split in splits.files}
    with progress_bar("Encoding", None) as bar:

        def report(split: str, tokens: int) -> None:
            bar.update(bar.task_ids[0], details=f"{split} {tokens:,} tokens")

        result = write_corpus(out, words, readers, progress=report)
    for split, counts in result["splits"].items():
        unknown = counts["unknown"] / counts["tokens"]
        say(
            f"{split:>6}  {counts['tokens']:>13,} tokens  {counts['sentences']:>11,} lines  "
            f"{unknown:.2%} <unk>"
        )
    say(f"vocabulary of {result['vocab']:,}; written to {out}")
    if json:
        print_json({**result, "folder": str(out)})


def train(
    corpus: Annotated[Path, typer.Argument(help="A corpus folder, made by prepare.")],
    out: Annotated[Path, typer.Option(help="The model folder to write.")],
    states: Annotated[
        int, typer.Option(help="Number of hidden states.", parser=whole(1), metavar="N")
    ] = 64,
    blocks: Annotated[
        int | None,
        typer.Option(
            help="Emission blocks, those of <eos> and <unk> included: each word can come from the "
            "states of its block alone. By default from all states.",
            parser=whole(2),
            metavar="N",
        ),
    ] = None,
    clusters: Annotated[
        Path | None, typer.Option(help="A paths file to make the blocks of.")
    ] = None,
    cluster_by: Method = "exchange",
    like_hmm_lm: Annotated[
        bool,
        typer.Option(
            "--like-hmm-lm",
            help="Put tokens without a cluster, <eos> too, into the last one, as Chiu & Rush did.",
        ),
    ] = False,
    epochs: Annotated[
        int, typer.Option(help="Passes over the training text.", parser=whole(1), metavar="N")
    ] = 10,
    learning_rate: Annotated[
        float, typer.Option(help="Highest learning rate.", parser=positive, metavar="NUMBER")
    ] = 0.7,
    weight_decay: Annotated[
        float,
        typer.Option(
            help="Decay of the logits towards zero.", parser=zero_or_more, metavar="NUMBER"
        ),
    ] = 0.04,
    batch_size: Annotated[
        int, typer.Option(help="Rows of packed sentences per step.", parser=whole(1), metavar="N")
    ] = 16,
    length: Annotated[
        int, typer.Option(help="Tokens in a row.", parser=whole(1), metavar="N")
    ] = 64,
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of the start and of the order of sentences.", parser=whole(0), metavar="N"
        ),
    ] = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Train a model on a corpus and write its folder.

    If the corpus has a valid split, the model that was best on it is kept. With --blocks the words
    are clustered first; the clusters are kept in the corpus' folder.
    """
    from hmmlm.data.shards import Corpus

    refuse_existing(out)
    if corpus.is_file():
        raise InputError(
            f"{corpus} is a file but must be a corpus folder; run hmmlm prepare on it."
        )
    with progress_bar(f"Checking {corpus}", None):
        opened = Corpus.open(corpus)
    place = pick_device(device)
    blocked = blocks is not None or clusters is not None
    if like_hmm_lm and not blocked:
        raise InputError("--like-hmm-lm says how blocks are made; it needs --blocks or --clusters.")
    support, facts = None, {}
    if blocked:
        support, facts["blocks"] = blocks_support(
            opened,
            states,
            blocks=blocks,
            clusters=clusters,
            method=cluster_by,
            like_hmm_lm=like_hmm_lm,
        )
    result = fit(
        opened,
        out,
        {
            "states": states,
            "epochs": epochs,
            "learning_rate": learning_rate,
            "weight_decay": weight_decay,
            "batch_size": batch_size,
            "length": length,
            "seed": seed,
        },
        device=place,
        support=support,
        facts=facts,
    )
    best = "" if result["val"] is None else f", validation perplexity {result['val']:.2f}"
    say(f"{result['steps']:,} steps in {result['seconds']:.1f} s{best}; wrote {out}")
    if json:
        print_json(result)


def fit(
    corpus: Any,
    out: Path,
    settings: dict[str, Any],
    *,
    device: str,
    support: Any = None,
    facts: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Trains a scalar HMM on an opened corpus with a progress bar, and writes the model.

    `support` says which states may emit which word, by default all; `facts` go into the config.
    """
    import torch

    from hmmlm.baselines.ngram import Unigram
    from hmmlm.data.batches import Packed
    from hmmlm.evaluate import HmmLM, evaluate
    from hmmlm.model import Model
    from hmmlm.params.scalar import Scalar
    from hmmlm.support import Support
    from hmmlm.train.loop import TrainSettings
    from hmmlm.train.loop import train as train_loop
    from hmmlm.train.loss import HmmLoss

    tokens, words = corpus.split("train"), corpus.tokenizer
    states = settings["states"]
    if support is None:
        support = Support.dense(words.vocab_size, states)
    check_space(out, 4 * (states * (1 + states) + words.vocab_size * support.width))
    generator = torch.Generator().manual_seed(settings["seed"])
    unigram = Unigram(tokens, words.vocab_size)
    parameters = Scalar(
        support,
        word_probs=unigram.log_probs.exp().float(),
        generator=generator,
    ).to(device)
    batches = Packed(tokens, settings["batch_size"], settings["length"], seed=settings["seed"])
    how = TrainSettings(
        epochs=settings["epochs"],
        learning_rate=settings["learning_rate"],
        weight_decay=settings["weight_decay"],
    )

    def validate(model: Any) -> float:
        held_out = corpus.split("valid")
        result = evaluate(
            HmmLM(model()), held_out, mode="sentence", eos_id=words.eos_id, device=device
        )
        return result.perplexity

    began, metrics, best = time.perf_counter(), [], None
    steps = how.epochs * batches.num_batches
    with progress_bar("Training", steps) as bar:
        for step in train_loop(
            parameters,
            HmmLoss(parameters, parameters.support),
            batches,
            settings=how,
            evaluate=validate if "valid" in corpus.splits else None,
        ):
            metrics.append(step._asdict())
            if step.val is not None and (best is None or step.val < best):
                best = step.val
            details = f"perplexity {step.perplexity:.1f}"
            details += "" if best is None else f", best on validation {best:.1f}"
            bar.update(bar.task_ids[0], completed=step.step, details=details)
    seconds = time.perf_counter() - began
    with torch.no_grad():
        model = Model(
            parameters().to("cpu"),
            words,
            {"training": {**settings, "device": device}, **(facts or {})},
        )
    try:
        model.save(out, metrics=metrics)
    except (InputError, OSError) as error:
        raise InputError(
            f"Training ended after {seconds:.0f} s, but its model is lost: {error}"
        ) from error
    return {"folder": str(out), "steps": steps, "seconds": round(seconds, 3), "val": best}
