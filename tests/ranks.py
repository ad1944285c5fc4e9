"""What ranks do in tests: `torchrun ... tests/ranks.py ACT ...`, each rank a process."""

import copy
import functools
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hmmlm.data.batches import Batch, Packed, Windows
from hmmlm.data.shards import TokenArray
from hmmlm.data.streams import Streams
from hmmlm.errors import InputError
from hmmlm.params import lowrank, mlp, scalar, transformer
from hmmlm.support import Support
from hmmlm.train.distributed import ONE, Ranks, join, restarts
from hmmlm.train.em import Em
from hmmlm.train.expectation import Expectation
from hmmlm.train.gem import GeneralisedEm
from hmmlm.train.loop import State, Training, TrainSettings
from hmmlm.train.loss import Dropout, HmmLoss
from hmmlm.train.sgd import Sgd

EOS, VOCAB, STOP = 0, 9, 11
BLOCKS = [0, 1, 1, 1, 2, 2, 2, 3, 3]

ACCUMULATE = {"epochs": 4, "accumulate": 2, "average": 0.9}
BAUM_WELCH = {"epochs": 20, "accumulate": 0, "learning_rate": 1.0, "schedule": "constant"}

# The parameterisation, layout and settings; batches have four rows.
CASES: dict[str, dict[str, Any]] = {
    "scalar": {"params": scalar.Settings(), "dropout": 0.5},
    "lowrank": {"params": lowrank.Settings(width=6), "dropout": 0.25, "layout": "windows"},
    "mlp": {"params": mlp.Settings(width=6), "dropout": 0.5, "train": {"clip": 0.05}},
    "transformer": {"params": transformer.Settings(width=8, depth=1, heads=2, composed=True)},
    "streams": {"params": scalar.Settings(), "dropout": 0.5, "layout": "streams"},
    "uniform": {"params": lowrank.Settings(width=6), "dropout": 0.6, "support": "uniform"},
    "accumulate": {"params": lowrank.Settings(width=6), "train": ACCUMULATE},
    "frozen": {"params": lowrank.Settings(width=6), "dropout": 0.25, "thaw": 0.6},
    "em": {"params": scalar.Settings(), "learner": "em", "train": {"schedule": "power"}},
    "baum-welch": {"params": scalar.Settings(), "learner": "em", "train": BAUM_WELCH},
    "gem": {"params": lowrank.Settings(width=6), "learner": "gem", "train": BAUM_WELCH},
}


def tokens() -> TokenArray:
    """Lines of 1 to 12 tokens: batches differ in tokens, and the last rows of an epoch are few."""
    draw = np.random.default_rng(5)
    lines = [[*draw.integers(1, VOCAB, draw.integers(12)), EOS] for _ in range(83)]
    return TokenArray.from_ids(np.concatenate(lines), eos_id=EOS)


def make_batches(layout: str, rank: int = 0, ranks: int = 1) -> Packed | Streams | Windows:
    share = {"rank": rank, "ranks": ranks}
    if layout == "packed":
        return Packed(tokens(), 4, 13, seed=2, **share)
    # Rows of 144 and 143 tokens: in the last batch, all but the first are over.
    return (Streams if layout == "streams" else Windows)(tokens(), 4, 11, **share)


def make_training(name: str, ranks: Ranks = ONE) -> Training:
    case = CASES[name]
    support = Support.from_clusters(BLOCKS, 3)
    if case.get("support") == "uniform":
        support = Support.uniform(VOCAB, 12, 2, torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(0)
    # Adam makes large numbers of rounding errors, which float64 has not.
    model = case["params"].build(support, generator=generator, dtype=torch.float64)
    settings = TrainSettings(
        **{"epochs": 2, "learning_rate": 0.1, "warmup_steps": 3, **case.get("train", {})}
    )
    layout = case.get("layout", "packed")
    batches = make_batches(layout, ranks.rank, ranks.ranks)
    if "learner" in case:
        counting = Expectation(reset_id=EOS, reduce=ranks.sum_tensors)
        learner = Em(model, counting) if case["learner"] == "em" else None
        learner = learner or GeneralisedEm(model, counting, settings=settings, gradient_steps=3)
        return Training(learner, batches, settings=settings)
    lossy = HmmLoss(
        model,
        support,
        dropout=Dropout(case.get("dropout", 0.0)),
        carry=layout == "streams",
        seed=3,
        ranks=ranks,
    )
    frozen, thaw = [], case.get("thaw", 0.0)
    if thaw:
        frozen = [model.words, model.embeddings["emit"].weight]
    learner = Sgd(model, lossy, settings, ranks, frozen=frozen, thaw=thaw)
    return Training(learner, batches, settings=settings)


def run(name: str, ranks: Ranks = ONE, state: State | None = None) -> dict[str, Any]:
    """The steps of a case and its last weights; and where it stood after `STOP` steps."""
    training = make_training(name, ranks)
    if state is not None:
        training.restore(state)
    seen, stopped = [], None
    for step in training:
        seen.append((step.step, step.loss, step.tokens))
        if step.step == STOP:
            stopped = copy.deepcopy(training.state())
    weights = {key: value.clone() for key, value in training.learner.model.state_dict().items()}
    return {"steps": seen, "weights": weights, "stopped": stopped}


def compare(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Every case, from its start and from where one rank stopped."""
    found: dict[str, Any] = {}
    for name in CASES:
        whole = run(name, ranks)
        resumed = run(name, ranks, torch.load(folder / f"{name}.pt", weights_only=False))
        found[name] = {"whole": whole, "resumed": resumed, "others": ranks.gather(whole["weights"])}
    return found


def exchange(ranks: Ranks) -> dict[str, Any]:
    """What the methods of `Ranks` give, gathered from all."""
    sums = [torch.full((2,), ranks.rank + 1.0, dtype=torch.float64), torch.tensor([ranks.rank])]
    ranks.sum_tensors(sums)
    alone = ranks.once(lambda: os.environ["RANK"])
    refused = []
    for facts in (
        {"train.epochs": 3, "train.learning_rate": 0.1 + ranks.rank},
        {"train.epochs": 3} | ({"train.dropout_last": 0.0} if ranks.rank else {}),
        {"train.epochs": 3},
    ):
        try:
            ranks.agree(facts)
        except InputError as error:
            refused.append(str(error))
    diverged = ""
    training = make_training("scalar", ranks)
    plain = training.learner.loss

    def broken(batch: Batch, done: float) -> Tensor:
        return plain(batch, done) * (torch.nan if ranks.rank == 1 and training.step == 2 else 1)

    training.learner = Sgd(training.learner.model, broken, training.settings, ranks)
    try:
        list(training)
    except InputError as error:
        diverged = str(error)
    return ranks.gather(
        {
            "sums": sums,
            "total": ranks.total(ranks.rank + 0.5, 2),
            "once": alone,
            "refused": refused,
            "diverged": diverged,
        }
    )


def die_after(function: Callable[..., Any], *given: Any, **named: Any) -> None:
    function(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)


def command(act: str, *arguments: str) -> None:
    """`hmmlm ARGUMENTS`, where something is the matter with rank 1."""
    from hmmlm.cli import main, training

    sys.argv = ["hmmlm", *arguments]
    if os.environ["RANK"] == "1" and act == "disagree":
        sys.argv += ["--learning-rate", "0.125"]
    elif act.startswith("swap "):
        _, given, other = act.split()
        if os.environ["RANK"] == "1":
            sys.argv = [other if argument == given else argument for argument in sys.argv]
    elif act == "die late":
        if os.environ["RANK"] == "1" and not restarts():
            training.fit = functools.partial(die_after, training.fit)
    elif os.environ["RANK"] == "1" and not (act == "die once" and restarts()):
        plain = Packed.__iter__

        def broken(self: Packed) -> Iterator[Batch]:
            yield from itertools.islice(plain(self), 3)
            if act in ("die", "die once"):
                os.kill(os.getpid(), signal.SIGKILL)
            if act == "stop":
                os.kill(os.getpid(), signal.SIGINT)
                yield from plain(self)
                return
            raise OSError(5, "Input/output error", "train-00000.bin")

        Packed.__iter__ = broken
    main()


if __name__ == "__main__":
    if sys.argv[1] == "compare":
        with join("cpu") as ranks:
            made = {"cases": compare(ranks, Path(sys.argv[2])), "exchanged": exchange(ranks)}
            if ranks.rank == 0:
                torch.save(made, Path(sys.argv[2]) / "together.pt")
    else:
        command(*sys.argv[1:])
