"""`hmmlm info`: what is in a folder or a file, and what runs on a device."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hmmlm.cli.asking import load_any, load_hmm
from hmmlm.cli.bars import progress_bar
from hmmlm.cli.clustering import balance_info, paths_info
from hmmlm.cli.output import Json, pick_device, print_json, say, say_fact, whole
from hmmlm.cli.states import most_used, state_lines
from hmmlm.errors import InputError

if TYPE_CHECKING:
    from hmmlm.model import Model
    from hmmlm.neural_model import NeuralModel
    from hmmlm.topic_model import TopicModel


def info(
    folder: Annotated[
        Path | None, typer.Argument(help="A model's or a corpus' folder, or a paths file.")
    ] = None,
    states: Annotated[
        int,
        typer.Option(
            help="How many states to show by their words, the most used ones.",
            parser=whole(0),
            metavar="N",
        ),
    ] = 0,
    state: Annotated[
        list[int] | None,
        typer.Option(
            help="The number of a state to show; may be repeated.", parser=whole(0), metavar="N"
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", help="Say what runs on auto, cpu or cuda:N, and why.", metavar="D"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """What is in a model's folder, a corpus' or a file of clusters; what runs on a device."""
    if folder is None and device is None:
        raise InputError("Give a folder or a file, or --device to see what runs there.")
    hmm: Any = None
    shown: list[str] = []
    if (states or state) and (folder is None or folder.is_file() or _is_corpus(folder)):
        raise InputError("--states and --state are of an HMM; give its folder, or leave them out.")
    if folder is None:
        result = {}
    elif folder.is_file():
        result = paths_info(folder)
    elif _is_corpus(folder):
        result = _corpus_info(folder)
    else:
        place = "cpu" if device is None else device
        if states or state:
            loaded = load_hmm(folder, place)
            shown = _states_shown(loaded, states, state or [])
        else:
            loaded = load_any(folder, place)
        result, hmm = _model_info(loaded), getattr(loaded, "hmm", None)
    if device is not None:
        result |= device_info(pick_device(device), hmm)
    for key, value in _for_people(result).items():
        for name, fact in _table_lines(key, value):
            # Not the parameters that training counts, which these were made of.
            where = " in its tables" if name == "numbers" and hmm is not None else ""
            say_fact(name.replace("_", " "), _shown(fact) + where)
    for line in shown:
        say(line)
    if json:
        print_json(result)


def _is_corpus(folder: Path) -> bool:
    return (folder / "corpus.json").exists()


def _states_shown(model: "Model", count: int, given: list[int]) -> list[str]:
    """Lines about the states that were asked for by number, and about the most used ones."""
    lines = state_lines(model, given)
    if count:
        with progress_bar("Counting the use of states", None):
            used, name = most_used(model, count)
        lines += [f"the most used states, in {name}:", *state_lines(model, used)]
    return lines


def device_info(device: str, hmm: Any = None) -> dict[str, Any]:
    """Which implementations run on a device, and why; those of inference for a model."""
    import torch

    from hmmlm.inference.chain import Chain
    from hmmlm.inference.dispatch import WITH_KERNEL, choose
    from hmmlm.ops import emission, normaliser, residual
    from hmmlm.ops.kernels import why_not
    from hmmlm.products import BF16, FLOAT32, TF32
    from hmmlm.train.graph import why_no_graph_on

    place = torch.device(device)
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu"
    reason = why_not(place)
    result: dict[str, Any] = {"device": name}
    result["kernels"] = "can run" if reason is None else f"none: {reason}"
    result["inference"] = "depends on the model; give its folder"
    if hmm is not None:
        chain = Chain(hmm, torch.zeros(1, 1, dtype=torch.long))
        result["inference"] = "{}: {}".format(*choose("auto", WITH_KERNEL, chain))
    graph = "one CUDA graph, if one process trains, a step is one batch, and no belief is carried"
    graph += " over dense states; train says so"
    for precision, operand in (("float32", FLOAT32), ("tf32", TF32), ("bf16", BF16)):
        plain = why_no_graph_on(place, precision)
        result[f"step_{precision}"] = graph if plain is None else f"no CUDA graph: {plain}"
        chosen = {
            "normaliser": normaliser.choose(place, operand),
            "emissions": emission.choose(place, True, operand),
            "networks": residual.choose(place, 256, operand),
        }
        if reason is None:  # else all of them are plain, for that reason
            result |= {f"{key}_{precision}": f"{one}: {why}" for key, (one, why) in chosen.items()}
    return result


def _for_people(result: dict[str, Any]) -> dict[str, Any]:
    """What is said of a CPU: once, that nothing of a GPU runs; JSON has it for each part."""
    if result.get("device") != "cpu":
        return result
    import torch

    why = "this is a CPU" if torch.cuda.is_available() else "torch sees no GPU"
    said = {key: value for key, value in result.items() if not key.startswith("step_")}
    return {**said, "kernels": f"none, and no CUDA graphs: {why}"}


def _table_lines(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What is shown of a value: a line, or of a table or list of tables one for each of them."""
    if isinstance(value, list):
        value = {str(number): part for number, part in enumerate(value, 1)}
    tables = value if isinstance(value, dict) else {}
    inner = {name: part for name, part in tables.items() if isinstance(part, dict)}
    yield from ((f"{key} {name}", part) for name, part in inner.items())
    if rest := {name: part for name, part in tables.items() if name not in inner}:
        yield key, rest
    if not isinstance(value, dict):
        yield key, value


def _model_info(model: "Model | NeuralModel | TopicModel") -> dict[str, Any]:
    from hmmlm.clusters.clustering import balance
    from hmmlm.neural_model import NeuralModel
    from hmmlm.topic_model import KIND, TopicModel

    made_by = {"made_by": f"hmmlm {model.config.get('hmmlm_version', 'unknown')}"}
    made_by |= _origin(model.config)
    if isinstance(model, NeuralModel):
        weights = list(model.network.parameters())
        size = {"numbers": sum(weight.numel() for weight in weights)}
        words = {"kind": model.kind, "vocabulary": model.network.vocab_size}
        return {**words, **size, "dtype": model.network.precision, **made_by}
    if isinstance(model, TopicModel):
        topics = model.topics
        size = {"topics": topics.num_topics, "states": topics.hmm.num_states}
        tables = (*topics.hmm.fields(), *topics.topics())
        size |= {"numbers": sum(table.numel() for table in tables)}
        about = {"dtype": model.lm.precision, **made_by}
        told = {str(number): one for number, one in enumerate(model.config.get("topics", []))}
        return {"kind": KIND, "vocabulary": model.lm.vocab_size, **size, **about, "topic": told}
    hmm, support = model.hmm, model.hmm.support
    sizes = (support.rows >= 0).sum(1)
    kind = "dense" if support.is_dense else "blocks" if support.is_partition else "overlapping"
    result = {
        "kind": "model",
        "states": hmm.num_states,
        "vocabulary": hmm.vocab_size,
        "support": kind,
        "rows_of_support": support.rows.shape[0],
        "states_per_word": f"{int(sizes.min()):,} to {int(sizes.max()):,}",
        "transitions": type(hmm.transitions).__name__.lower(),
        "numbers": sum(field.numel() for field in hmm.fields()),
        "dtype": str(hmm.dtype).removeprefix("torch."),
        **made_by,
    }
    if kind == "blocks":
        made = model.config.get("blocks", {})
        sizes = balance(support.row_of_word.cpu().numpy())
        result |= balance_info(sizes._replace(largest_share=made.get("largest_share")), "block")
        result["blocks_from"] = made.get("origin", "unknown")
    return result


def _origin(config: dict[str, Any]) -> dict[str, Any]:
    """How a model was trained, or what it is a mixture of; to which powers it was raised."""
    parts = config.get("parts")
    if isinstance(parts, list) and all(isinstance(part, dict) for part in parts):
        told = ("model", "weight", "states", "powers")
        found: dict[str, Any] = {
            "parts": [{key: part[key] for key in told if key in part} for part in parts]
        }
    else:
        found = {"training": config.get("training", "unknown")}
    return found | ({"powers": config["powers"]} if "powers" in config else {})


def _corpus_info(folder: Path) -> dict[str, Any]:
    from hmmlm.clusters.kept import kept_clusters
    from hmmlm.data.shards import Corpus

    corpus = Corpus.open(folder)
    result: dict[str, Any] = {"kind": "corpus", "vocabulary": corpus.tokenizer.vocab_size}
    for name, counts in corpus.splits.items():
        result |= {f"{name}_{key}": value for key, value in counts.items()}
    if kept := kept_clusters(folder):
        result["kept_clusters"] = ", ".join(kept)
    return result


def _shown(value: Any) -> str:
    """A fact in words."""
    if isinstance(value, dict):
        inner = (
            (key, _shown(part) if isinstance(part, (dict, list)) else part)
            for key, part in value.items()
        )
        return ", ".join(f"{key.replace('_', ' ')} {part}" for key, part in inner)
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
