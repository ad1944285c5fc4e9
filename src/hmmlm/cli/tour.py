"""`hmmlm demo`: the whole way from text to answers, on text that comes with Python."""

import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from hmmlm.cli.fitting import fit
from hmmlm.cli.output import Device, Json, pick_device, print_json, say, whole
from hmmlm.cli.states import state_lines
from hmmlm.cli.training import free_folder
from hmmlm.storage import refuse_existing

SETTINGS: dict[str, dict[str, Any]] = {
    "model": {"kind": "lowrank", "width": 64, "states": 2080, "blocks": 65},
    "train": {"epochs": 12, "learning_rate": 0.03, "weight_decay": 0.04, "dropout": 0.25},
    "data": {"batch_size": 16, "length": 64},
}
"""One of the two that did best on validation in a search (docs/training.md), with fewer blocks."""


def demo(
    out: Annotated[
        Path | None, typer.Option(help="The model folder to write; by default runs/demo.")
    ] = None,
    epochs: Annotated[
        int, typer.Option(help="Passes over the text.", parser=whole(1), metavar="N")
    ] = SETTINGS["train"]["epochs"],
    states: Annotated[
        int, typer.Option(help="Hidden states, a multiple of 65.", parser=whole(1), metavar="N")
    ] = SETTINGS["model"]["states"],
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Train a small model on text that comes with Python, compare it, and ask it things."""
    folder = free_folder(Path("runs/demo")) if out is None else refuse_existing(out)
    began = time.perf_counter()
    place = pick_device(device)
    from hmmlm.model import Model
    from hmmlm.train.config import make_config
    from hmmlm.train.distributed import Ranks
    from hmmlm.train.tables import override

    with tempfile.TemporaryDirectory() as scratch:
        corpus = _prepare(Path(scratch) / "corpus")
        changes = [f"train.epochs={epochs}", f"model.states={states}"]
        config = make_config(override(SETTINGS, changes))
        result = fit(corpus, folder, config, ranks=Ranks(device=place), indent=3)
        model = Model.load(folder)
        numbers = _compare(corpus, model)
    _ask(model)
    seconds = time.perf_counter() - began
    say()
    say(f"The model is in {folder}; now try:", heading=f"{seconds:.0f} s in all.")
    say(f"hmmlm next {folder} 'the value of the'", indent=3)
    say(f"hmmlm sample {folder} -n 5", indent=3)
    if json:
        print_json({**result, **numbers, "seconds": round(seconds, 3)})


def _prepare(folder: Path) -> Any:
    from hmmlm.data.builtin import builtin_sentences
    from hmmlm.data.shards import Corpus, write_corpus
    from hmmlm.data.tokenizer import Tokenizer

    say("the help topics of Python (pydoc_data.topics)", heading="1. Text:")
    splits = builtin_sentences()
    words = Tokenizer.words(splits["train"], min_count=2)
    summary = write_corpus(folder, words, splits)
    counts = summary["splits"]
    say(
        f"{counts['train']['tokens']:,} tokens in {len(splits['train']):,} sentences to train on, "
        f"{counts['test']['tokens']:,} to test, {summary['vocab']:,} words",
        indent=3,
    )
    say("a hidden Markov model, its words in blocks", heading="2. Training")
    return Corpus.open(folder)


def _compare(corpus: Any, model: Any) -> dict[str, float]:
    from hmmlm.baselines.ngram import KneserNeyBigram, Unigram
    from hmmlm.evaluate import HmmLM, evaluate

    words = corpus.tokenizer
    rivals = {
        "unigram": Unigram(corpus.split("train"), words.vocab_size),
        f"HMM, {model.hmm.num_states} states": HmmLM(model.hmm),
        "Kneser-Ney bigram": KneserNeyBigram(
            corpus.split("train"), words.vocab_size, eos_id=words.eos_id
        ),
    }
    say("on the test sentences (lower is better)", heading="3. Perplexity")
    numbers = {}
    for name, rival in rivals.items():
        found = evaluate(rival, corpus.split("test"), mode="sentence", eos_id=words.eos_id)
        numbers[name.split(",")[0].lower().replace(" ", "_")] = found.perplexity
        say(f"{name:<20} {found.perplexity:8.1f}", indent=3)
    return numbers


def _ask(model: Any) -> None:
    often = _telling(model, model.hmm.long_run().sort(descending=True).indices.tolist())
    say("by their most probable words", heading=f"4. {len(often)} states")
    for line in state_lines(model, often):
        say(line)
    say("drawn from the model", heading="5. Three sentences")
    for text in model.sample(3, length=40, seed=1):
        say(text, indent=3)
    say("with its most probable states", heading="6. One sentence")
    tagged = model.viterbi("the value of the expression is a string .")[0]
    pairs = zip(tagged.tokens, tagged.states, strict=True)
    say(" ".join(f"{word}/{state}" for word, state in pairs), indent=3)


def _telling(model: Any, states: Iterable[int], number: int = 10) -> list[int]:
    """The first states that show what was learnt: several words each, and others than before."""
    found, shown = [], set()
    for state in states:
        words = model.top_words(state, k=3)
        if words[0][1] < 0.5 and words[0][0] not in shown:
            found.append(state)
            shown |= {word for word, _ in words}
        if len(found) == number:
            break
    return found
