"""`hmmlm mix`: several HMMs as one."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from hmmlm.cli.asking import check_split
from hmmlm.cli.output import Device, Json, pick_device, print_json, say
from hmmlm.errors import InputError, counted
from hmmlm.storage import refuse_existing

KEPT = ("training", "powers", "parts")
"""What a mixture keeps of how a part was made."""


def mix(
    models: Annotated[list[Path], typer.Argument(help="Folders of HMMs of one vocabulary.")],
    out: Annotated[Path, typer.Option(help="The model folder to write.")],
    weights: Annotated[
        str | None,
        typer.Option(help="What each weighs, such as 2,1,1; by default alike.", metavar="LIST"),
    ] = None,
    weigh_on: Annotated[
        Path | None,
        typer.Option(help="A corpus folder on which to find the weights.", metavar="CORPUS"),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="The split of that corpus; by default valid.")
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Make one HMM of several, a mixture: each line comes from one of them, and nobody says which.

    p(line) is the weighted sum of what the models say. With --weigh-on the weights are those that
    make the sentences of a split most probable.
    """
    refuse_existing(out)
    if weights is not None and weigh_on is not None:
        raise InputError("--weights says what --weigh-on would find; leave one of them out.")
    if split is not None and weigh_on is None:
        raise InputError("--split is of --weigh-on CORPUS; give both, or neither.")
    import torch

    from hmmlm.mixture import check_parts, learn_weights, mixture
    from hmmlm.model import Model

    given = None if weights is None else _read_weights(weights, len(models))
    place = pick_device(device)
    loaded = [Model.load(folder, device=place) for folder in models]
    for folder, model in zip(models, loaded, strict=True):
        if model.tokenizer.hash != loaded[0].tokenizer.hash:
            raise InputError(
                f"{folder} has another vocabulary than {models[0]}; mix models of one corpus."
            )
    check_parts([model.hmm for model in loaded])
    if weigh_on is not None:
        evidence = _evidence(loaded, weigh_on, "valid" if split is None else split)
        log_weights, total = learn_weights(evidence)
        alike = float(torch.logsumexp(evidence - math.log(len(loaded)), 0).sum())
        say(f"{evidence.shape[1]:,} sentences: {-total:,.1f} nats, {-alike:,.1f} weighed alike")
    else:
        log_weights = torch.tensor(given or [1.0] * len(loaded), dtype=torch.float64).log()
    shares = torch.softmax(log_weights, 0).tolist()
    made = mixture([model.hmm for model in loaded], log_weights).to("cpu")
    parts: list[dict[str, Any]] = []
    for folder, model, share in zip(models, loaded, shares, strict=True):
        about = {"model": folder.name, "weight": share, "states": model.hmm.num_states}
        parts.append(about | {key: model.config[key] for key in KEPT if key in model.config})
        say(f"{share:.4f}  {folder}, {counted(model.hmm.num_states, 'state')}")
    Model(made, loaded[0].tokenizer, {"parts": parts, **_labels(loaded)}).save(out)
    say(f"wrote {out}, {counted(made.num_states, 'state')}")
    if json:
        print_json({"folder": str(out), "states": made.num_states, "weights": shares})


def _labels(models: list[Any]) -> dict[str, Any]:
    """The labels that own the states, one part after the other; says why if they are left out."""
    found = [model.config["labels"] for model in models if model.tag_names is not None]
    if not found:
        return {}
    sizes = sorted({labels["states_per_tag"] for labels in found})
    if len(found) < len(models):
        say("labels are left out: not every model has them")
    elif len(sizes) > 1:
        say(f"labels are left out: a label has {' or '.join(map(str, sizes))} states")
    else:
        tags = [tag for labels in found for tag in labels["tags"]]
        return {"labels": {"tags": tags, "states_per_tag": sizes[0]}}
    return {}


def _read_weights(text: str, number: int) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if len(found) != number or not all(0 < weight < math.inf for weight in found):
        raise InputError(
            f"--weights is {text} but must be {counted(number, 'number')} over 0 with commas "
            f"between, one for each model."
        )
    return found


def _evidence(models: list[Any], folder: Path, split: str) -> Any:
    """log p of every sentence of a split by every model, (N, S)."""
    import numpy as np
    import torch

    from hmmlm.data.shards import Corpus, check_vocabulary
    from hmmlm.evaluate import sentence_log_probs

    corpus = Corpus.open(folder)
    check_vocabulary(corpus, models[0].tokenizer)
    tokens = corpus.split(check_split(corpus, split))
    found = [
        sentence_log_probs(model.lm, tokens, eos_id=model.tokenizer.eos_id, device=model.device)
        for model in models
    ]
    return torch.from_numpy(np.stack(found))
