"""`hmmlm temper`: a model whose distributions are as flat as suits text that it has not seen."""

import math
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from hmmlm.cli.asking import check_split
from hmmlm.cli.output import Device, Json, pick_device, positive, print_json, say, warn
from hmmlm.errors import InputError
from hmmlm.storage import refuse_existing

BETWEEN = (0.5, 1.3)
"""Powers that are tried."""

EDGE = 0.03
"""So near to an end of them a better power may lie beyond it."""

TABLES = {"emit": "emissions", "trans": "transitions"}


def temper(
    model: Annotated[Path, typer.Argument(help="The folder of an HMM.")],
    out: Annotated[Path, typer.Option(help="The model folder to write.")],
    emit: Annotated[
        float | None,
        typer.Option(help="The power of p(word | state).", parser=positive, metavar="NUMBER"),
    ] = None,
    trans: Annotated[
        float | None,
        typer.Option(help="The power of p(next state | state).", parser=positive, metavar="NUMBER"),
    ] = None,
    on: Annotated[
        Path | None,
        typer.Option(
            help="A corpus folder on which powers from 0.5 to 1.3 are found.", metavar="CORPUS"
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="The split of that corpus; by default valid.")
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Flatten an HMM: p(word | state) and p(next state | state), raised to powers, normalised.

    With --on, powers that are not given are those with which the sentences of a split are most
    probable: first that of the emissions, then that of the transitions, each tried from 0.5 to 1.3.
    """
    refuse_existing(out)
    if on is None and emit is None and trans is None:
        raise InputError("Give --emit or --trans, or --on CORPUS to find both there.")
    if on is not None and emit is not None and trans is not None:
        raise InputError("--emit and --trans say what --on would find; leave one of them out.")
    if split is not None and on is None:
        raise InputError("--split is of --on CORPUS; give both, or neither.")
    from dataclasses import replace

    from hmmlm.data.shards import Corpus, check_vocabulary
    from hmmlm.evaluate import HmmLM, evaluate
    from hmmlm.model import Model
    from hmmlm.tempering import lowest, tempered

    loaded = Model.load(model, device=pick_device(device))
    given = {"emit": emit, "trans": trans}
    powers = {name: power or 1.0 for name, power in given.items()}
    if on is not None:
        corpus = Corpus.open(on)
        check_vocabulary(corpus, loaded.tokenizer)
        text = corpus.split(check_split(corpus, "valid" if split is None else split))

        def nats(**powers: float) -> float:
            made = HmmLM(tempered(loaded.hmm, **powers))
            read = {"eos_id": loaded.tokenizer.eos_id, "device": loaded.device}
            return evaluate(made, text, mode="sentence", **read).nats / len(text)

        def cost(name: str, power: float) -> float:
            return nats(**{**powers, name: power})

        before = nats()
        if before == math.inf:
            raise InputError(
                f"{on} has sentences of probability zero under {model}, with whatever power; leave "
                f"them out."
            )
        for name, power in given.items():
            if power is None:
                powers[name] = lowest(partial(cost, name), *BETWEEN)
                _warn_of_edge(name, powers[name])
        say(f"{len(text):,} tokens: {nats(**powers):.4f} nats each, {before:.4f} before")
    hmm = tempered(loaded.hmm, **powers).to("cpu")
    had = loaded.config.get("powers", {})
    kept = {name: power * had.get(name, 1.0) for name, power in powers.items()}
    replace(loaded, hmm=hmm, config={**loaded.config, "powers": kept}).save(out)
    say(_told(powers))
    if had:
        say(f"with what it had: {_told(kept)}")
    say(f"wrote {out}")
    if json:
        print_json({"folder": str(out), **powers})


def _told(powers: dict[str, float]) -> str:
    return f"emissions to the power of {powers['emit']:.3f}, transitions {powers['trans']:.3f}"


def _warn_of_edge(name: str, power: float) -> None:
    low, high = BETWEEN
    if not low + EDGE < power < high - EDGE:
        warn(
            f"the best power of the {TABLES[name]} is at the edge of what was tried, {low} to "
            f"{high}; temper the result again, or give --{name}."
        )
