"""`hmmlm demo`: the whole way from text to answers, on text that comes with Python."""

import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from hmmlm.cli.asking import state_table
from hmmlm.cli.making import fit
from hmmlm.cli.output import Device, Json, console, pick_device, print_json
from hmmlm.storage import refuse_existing

SETTINGS = {
    "states": 128,
    "epochs": 20,
    "learning_rate": 0.3,
    "batch_size": 16,
    "length": 128,
    "seed": 0,
}


def demo(
    out: Annotated[
        Path | None, typer.Option(help="The model folder to write; by default runs/demo.")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the text.")] = SETTINGS["epochs"],
    states: Annotated[int, typer.Option(help="Number of hidden states.")] = SETTINGS["states"],
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Train a small model on text that comes with Python, compare it, and ask it things."""
    folder = _free_folder(Path("runs/demo")) if out is None else refuse_existing(out)
    began = time.perf_counter()
    place = pick_device(device)
    with tempfile.TemporaryDirectory() as scratch:
        corpus = _prepare(Path(scratch) / "corpus")
        result = fit(corpus, folder, {**SETTINGS, "epochs": epochs, "states": states}, device=place)
        numbers = _compare(corpus, folder)
    _ask(folder)
    seconds = time.perf_counter() - began
    console.print(f"\n[bold]{seconds:.0f} s in all.[/bold] The model is in {folder}; now try:")
    console.print(f"  hmmlm next {folder} 'the value of the'")
    console.print(f"  hmmlm sample {folder} -n 5")
    if json:
        print_json({**result, **numbers, "seconds": round(seconds, 3)})


def _prepare(folder: Path) -> Any:
    from hmmlm.data.builtin import builtin_sentences
    from hmmlm.data.shards import Corpus, write_corpus
    from hmmlm.data.tokenizer import Tokenizer

    console.print("[bold]1. Text:[/bold] the help topics of Python (pydoc_data.topics)")
    train, held_out = builtin_sentences()
    words = Tokenizer.words(train, min_count=2)
    summary = write_corpus(folder, words, {"train": train, "valid": held_out})
    counts = summary["splits"]
    console.print(
        f"   {counts['train']['tokens']:,} tokens in {len(train):,} sentences to train on, "
        f"{counts['valid']['tokens']:,} held out, {summary['vocab']:,} words"
    )
    console.print("[bold]2. Training[/bold] a hidden Markov model by gradient descent")
    return Corpus.open(folder)


def _compare(corpus: Any, folder: Path) -> dict[str, float]:
    from hmmlm.baselines.ngram import KneserNeyBigram, Unigram
    from hmmlm.evaluate import HmmLM, evaluate
    from hmmlm.model import Model

    model = Model.load(folder)
    words = corpus.tokenizer
    rivals = {
        "unigram": Unigram(corpus.split("train"), words.vocab_size),
        f"HMM, {model.hmm.num_states} states": HmmLM(model.hmm),
        "Kneser-Ney bigram": KneserNeyBigram(
            corpus.split("train"), words.vocab_size, eos_id=words.eos_id
        ),
    }
    console.print("[bold]3. Perplexity[/bold] on the held-out sentences (lower is better)")
    numbers = {}
    for name, rival in rivals.items():
        found = evaluate(rival, corpus.split("valid"), mode="sentence", eos_id=words.eos_id)
        numbers[name.split(",")[0].lower().replace(" ", "_")] = found.perplexity
        console.print(f"   {name:<20} {found.perplexity:8.1f}")
    return numbers


def _ask(folder: Path) -> None:
    import torch

    from hmmlm.model import Model

    model = Model.load(folder)
    # The states used most, by the chain's own long-run frequencies.
    use = torch.full((model.hmm.num_states,), 1 / model.hmm.num_states)
    for _ in range(100):
        use = use @ model.hmm.transitions.rows(0, model.hmm.num_states).exp()
    console.print("[bold]4. Ten states[/bold] by their most probable words")
    often = use.topk(min(10, len(use))).indices.tolist()
    console.print(state_table(model, often))
    console.print("[bold]5. Three sentences[/bold] drawn from the model")
    for text in model.sample(3, length=40, seed=1):
        console.print(f"   {text}", markup=False)
    console.print("[bold]6. One sentence[/bold] with its most probable states")
    tagged = model.viterbi("the value of the expression is a string .")[0]
    pairs = zip(tagged.tokens, tagged.states, strict=True)
    console.print("   " + " ".join(f"{word}/{state}" for word, state in pairs), markup=False)


def _free_folder(path: Path) -> Path:
    """The path, or the first of path-2, path-3, ... that is free."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return refuse_existing(free)
