"""Commands that ask something of a model."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from hmmlm.cli.output import Device, Json, console, pick_device, print_json, progress_bar
from hmmlm.errors import InputError

if TYPE_CHECKING:
    from hmmlm.model import Model

Folder = Annotated[Path, typer.Argument(help="A model's folder.")]
Text = Annotated[
    Path | None, typer.Argument(help="A text file, one sentence per line; by default stdin.")
]
EmptyLines = Annotated[
    str, typer.Option(help="What an empty line means: refuse, keep (only <eos>) or skip.")
]


def evaluate(
    model: Folder,
    corpus: Annotated[Path, typer.Argument(help="A corpus folder, or a text file.")],
    split: Annotated[str | None, typer.Option(help="Split of the corpus; by default test.")] = None,
    mode: Annotated[
        str, typer.Option(help="sentence, streaming or 'window N' (docs/evaluation.md).")
    ] = "sentence",
    empty_lines: EmptyLines = "refuse",
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Perplexity of a model on a text, every token counted once."""
    from hmmlm.data.corpus import read_lines
    from hmmlm.data.shards import Corpus, TokenArray, check_vocabulary
    from hmmlm.evaluate import HmmLM, parse_mode
    from hmmlm.evaluate import evaluate as run

    parse_mode(mode)
    loaded = _load(model, device)
    if corpus.is_dir():
        opened = Corpus.open(corpus)
        check_vocabulary(opened, loaded.tokenizer)
        tokens = opened.split(split or "test")
    else:
        if split is not None:
            raise InputError(f"--split {split} needs a corpus folder; {corpus} is one text.")
        import numpy as np

        lines = loaded.tokenizer.encode_lines(read_lines(corpus, empty_lines=empty_lines))
        tokens = TokenArray.from_ids(np.concatenate(list(lines)), eos_id=loaded.tokenizer.eos_id)
    with progress_bar("Evaluating", len(tokens)) as bar:
        result = run(
            HmmLM(loaded.hmm),
            tokens,
            mode=mode,
            eos_id=loaded.tokenizer.eos_id,
            device=loaded.hmm.device,
            progress=lambda done: bar.advance(bar.task_ids[0], done),
        )
    console.print(
        f"perplexity {result.perplexity:.3f} over {result.tokens:,} tokens, mode {result.mode} "
        f"({result.nats:,.1f} nats; rows of the model sum to one within {result.max_row_error:.1e})"
    )
    if json:
        print_json(result._asdict())


def score(
    model: Folder,
    text: Text = None,
    empty_lines: EmptyLines = "refuse",
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Log-probability (nats) of every token of a text or of stdin, each line on its own.

    One line of output per line of text: its total, then token and log-probability in turn.
    """
    import numpy as np

    loaded = _load(model, device)
    found: list[Any] = []
    tokens, nats = 0, 0.0
    with progress_bar("Scoring", None) as bar:
        for ids, log_probs in loaded.score_ids(
            loaded.tokenizer.encode_lines(_lines(text, empty_lines))
        ):
            tokens += len(ids)
            nats -= float(log_probs.sum(dtype=np.float64))
            bar.update(bar.task_ids[0], details=f"{tokens:,} tokens")
            if json:
                found.append(log_probs)
            else:
                words = (loaded.tokenizer.token(int(i)) for i in ids)
                pairs = (f"{w} {p:.4f}" for w, p in zip(words, log_probs.tolist(), strict=True))
                total = log_probs.sum(dtype=np.float64)
                sys.stdout.write(f"{total:.4f}\t" + "  ".join(pairs) + "\n")
    if json:
        print_json({"tokens": tokens, "nats": nats, "log_probs": np.concatenate(found).tolist()})


def tag(
    model: Folder,
    text: Text = None,
    posterior: Annotated[
        bool, typer.Option("--posterior", help="Each token's best state on its own.")
    ] = False,
    empty_lines: EmptyLines = "refuse",
    device: Device = "auto",
    json: Json = False,
) -> None:
    """The hidden state of every token, written token/state: the best path, or token by token."""
    loaded = _load(model, device)
    tagger = loaded.tag if posterior else loaded.viterbi
    tagged = tagger(_lines(text, empty_lines))
    if json:
        print_json(
            {"tokens": sum(len(line.tokens) for line in tagged), "states": [t.states for t in tagged]}
        )
        return
    for line in tagged:
        pairs = (f"{w}/{z}" for w, z in zip(line.tokens, line.states, strict=True))
        sys.stdout.write(" ".join(pairs) + "\n")


def sample(
    model: Folder,
    count: Annotated[int, typer.Option("--count", "-n", help="How many texts.")] = 1,
    prompt: Annotated[str, typer.Option(help="Go on after this text.")] = "",
    length: Annotated[int, typer.Option(help="Most tokens to draw.")] = 100,
    seed: Annotated[int | None, typer.Option(help="Seed; by default a new one each time.")] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Text drawn from a model, one per line."""
    texts = _load(model, device).sample(count, prompt=prompt, length=length, seed=seed)
    if json:
        print_json({"texts": texts})
        return
    sys.stdout.write("".join(text + "\n" for text in texts))


def next_tokens(
    model: Folder,
    prompt: Annotated[str, typer.Argument(help="The text so far.")] = "",
    k: Annotated[int, typer.Option("--k", "-k", help="How many tokens to show.")] = 10,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """The most probable tokens after a text, with their probabilities."""
    found = _load(model, device).next(prompt, k=k)
    if json:
        print_json({"next": [{"token": token, "prob": prob} for token, prob in found]})
        return
    for token, prob in found:
        sys.stdout.write(f"{prob:.6f}  {token}\n")


def info(
    folder: Annotated[Path, typer.Argument(help="A model's or a corpus' folder.")],
    states: Annotated[int, typer.Option(help="How many states to show by their words.")] = 0,
    json: Json = False,
) -> None:
    """What is in a model's folder, or a corpus'."""
    if (folder / "corpus.json").exists():
        result = _corpus_info(folder)
    else:
        loaded = _load(folder, "cpu")
        result = _model_info(loaded)
        if states:
            console.print(state_table(loaded, range(min(states, loaded.hmm.num_states))))
    for key, value in result.items():
        shown = f"{value:,}" if isinstance(value, int) else str(value)
        console.print(f"{key.replace('_', ' '):>20}  {shown}", markup=False)
    if json:
        print_json(result)


def state_table(model: "Model", states: Any) -> Table:
    """States by the words they emit most."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("state", justify="right")
    table.add_column("most probable words", overflow="fold")
    for state in states:
        words = (f"{word} {prob:.2f}" for word, prob in model.top_words(state, k=8))
        table.add_row(str(state), "  ".join(words))
    return table


def _model_info(model: "Model") -> dict[str, Any]:
    hmm, support = model.hmm, model.hmm.support
    sizes = (support.rows >= 0).sum(1)
    kind = "dense" if support.is_dense else "blocks" if support.is_partition else "overlapping"
    return {
        "kind": "model",
        "states": hmm.num_states,
        "vocabulary": hmm.vocab_size,
        "support": kind,
        "rows_of_support": support.rows.shape[0],
        "states_per_word": f"{int(sizes.min()):,} to {int(sizes.max()):,}",
        "transitions": type(hmm.transitions).__name__.lower(),
        "numbers": sum(field.numel() for field in hmm.fields()),
        "dtype": str(hmm.dtype).removeprefix("torch."),
        "made_by": f"hmmlm {model.config.get('hmmlm_version', 'unknown')}",
        "training": model.config.get("training", "unknown"),
    }


def _corpus_info(folder: Path) -> dict[str, Any]:
    from hmmlm.data.shards import Corpus

    corpus = Corpus.open(folder)
    result: dict[str, Any] = {"kind": "corpus", "vocabulary": corpus.tokenizer.vocab_size}
    for name, counts in corpus.splits.items():
        result |= {f"{name}_{key}": value for key, value in counts.items()}
    return result


def _load(folder: Path, device: str) -> "Model":
    from hmmlm.model import Model

    return Model.load(folder, device=pick_device(device))


def _lines(text: Path | None, empty_lines: str) -> Iterator[str]:
    from hmmlm.data.corpus import read_lines

    return read_lines("-" if text is None else text, empty_lines=empty_lines)
