"""The training loop: AdamW on any loss, with schedules, averaged weights and early stopping."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from hmmlm.data.batches import Batch
from hmmlm.errors import InputError


@dataclass(frozen=True)
class TrainSettings:
    """How to train.

    The learning rate rises over `warmup_steps`. Then with `schedule` "cosine" it falls to
    `final_rate` times its height; with "plateau" it is divided by `plateau_factor` when
    `plateau_patience` checks in a row have not lowered the best validation value by more than
    `plateau_threshold` (absolute); with "constant" it stays. `accumulate` batches make a step.
    With `average` > 0 the weights that are evaluated and kept are the exponential average of those
    of the steps, with that decay. `checks` is the number of validations per epoch; after
    `early_stop` of them without a new best, training ends (0: never). With `precision` "bf16" the
    loss is computed under PyTorch's autocast to bfloat16, from weights kept in float32; validation
    is always in float32.
    """

    epochs: int = 10
    learning_rate: float = 0.7
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.04
    clip: float = 5.0
    accumulate: int = 1
    warmup_steps: int = 20
    schedule: str = "cosine"
    final_rate: float = 0.0
    plateau_factor: float = 4.0
    plateau_patience: int = 4
    plateau_threshold: float = 0.0
    average: float = 0.0
    checks: int = 1
    early_stop: int = 0
    precision: str = "float32"

    def __post_init__(self) -> None:
        least = {"epochs": 1, "accumulate": 1, "checks": 1, "plateau_patience": 1}
        least |= dict.fromkeys(("weight_decay", "warmup_steps", "final_rate", "early_stop"), 0)
        for name, value in least.items():
            if not getattr(self, name) >= value:
                raise InputError(f"{name} is {getattr(self, name)} but must be at least {value}.")
        for name in ("learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)} but must be more than 0.")
        for name in ("beta1", "beta2", "average"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(
                    f"{name} is {getattr(self, name)} but must be at least 0 and less than 1."
                )
        if not self.plateau_factor > 1:
            raise InputError(f"plateau_factor is {self.plateau_factor} but must be more than 1.")
        for name, offered in (("schedule", SCHEDULES), ("precision", PRECISIONS)):
            if getattr(self, name) not in offered:
                raise InputError(
                    f"{name} is {getattr(self, name)!r} but must be one of {', '.join(offered)}."
                )


SCHEDULES = ("cosine", "plateau", "constant")
PRECISIONS = ("float32", "bf16")


class Progress(NamedTuple):
    """One step: `loss` in nats per token of its batches, `perplexity` its exponential.

    `tokens` and `tokens_per_second` are of the whole run so far, without the time of validation.
    `val` is what `evaluate` returned after this step, None if it did not run.
    """

    step: int
    steps: int
    epoch: int
    loss: float
    perplexity: float
    tokens: int
    tokens_per_second: float
    learning_rate: float
    val: float | None


@runtime_checkable
class Batches(Protocol):
    """The batches of an epoch: how many, and each in turn; iterating again is another epoch."""

    @property
    def num_batches(self) -> int: ...

    def __iter__(self) -> Iterator[Batch]: ...


@runtime_checkable
class Loss(Protocol):
    """Nats per token of a batch, differentiable, when a share `done` of training is over."""

    def __call__(self, batch: Batch, done: float) -> Tensor: ...


def train(
    model: nn.Module,
    loss: Loss,
    batches: Batches,
    *,
    settings: TrainSettings,
    evaluate: Callable[[nn.Module], float] | None = None,
) -> Iterator[Progress]:
    """Trains a module in place with AdamW and yields after every step.

    `evaluate` runs `checks` times an epoch, lower is better; when training ends, or is left early,
    the module has the weights that it liked best. A loss that is not finite ends training with the
    best weights so far.
    """
    per_epoch = -(-batches.num_batches // settings.accumulate)
    steps = settings.epochs * per_epoch
    if steps == 0:
        raise InputError("There are no batches to train on; the corpus is empty.")
    optimiser = torch.optim.AdamW(
        model.parameters(),
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        weight_decay=settings.weight_decay,
    )
    averaged = None
    if settings.average > 0:
        averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(settings.average))
    place, mixed = next(model.parameters()).device.type, settings.precision == "bf16"
    best, restore = Best(model, settings), averaged is not None
    stream, tokens, seconds = _epochs(batches), 0, 0.0
    # Checks are spread over an epoch; the last one is at its end.
    checks = {round(per_epoch * n / settings.checks) for n in range(1, settings.checks + 1)}
    try:
        for step in range(1, steps + 1):
            began = time.perf_counter()
            rate = learning_rate(settings, step, steps) / best.divisor
            within = (step - 1) % per_epoch
            group = min(settings.accumulate, batches.num_batches - within * settings.accumulate)
            optimiser.zero_grad()
            value, counted = 0.0, 0
            for batch in [next(stream) for _ in range(group)]:
                with torch.autocast(place, torch.bfloat16, enabled=mixed):
                    nats = loss(batch, (step - 1) / steps)
                (nats * batch.num_tokens).backward()
                value += float(nats.detach()) * batch.num_tokens
                counted += batch.num_tokens
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad /= counted
            value /= counted
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), settings.clip))
            if not math.isfinite(value) or not math.isfinite(norm):
                restore = True
                raise InputError(
                    f"Training stopped at step {step:,} with learning rate {rate:.3g}: the loss is "
                    f"{value:.3g} and the gradient's norm {norm:.3g}. The weights are those of "
                    f"step {best.step:,}; try a lower learning rate."
                )
            for part in optimiser.param_groups:
                part["lr"] = rate
            optimiser.step()
            if averaged is not None:
                averaged.update_parameters(model)
            tokens += counted
            seconds += time.perf_counter() - began

            val = None
            if within + 1 in checks:
                shown = model if averaged is None else averaged.module
                if evaluate is not None:
                    restore = True
                    with torch.no_grad():
                        val = evaluate(shown)
                best.visit(step, shown, val)
            yield Progress(
                step,
                steps,
                (step - 1) // per_epoch + 1,
                value,
                math.exp(min(value, 700.0)),
                tokens,
                tokens / seconds,
                rate,
                val,
            )
            if best.waited and best.waited == settings.early_stop:
                return
    finally:
        if restore:
            best.restore()


class Best:
    """The weights that were best on validation, or the last ones checked where there is none."""

    def __init__(self, model: nn.Module, settings: TrainSettings) -> None:
        self.model, self.settings = model, settings
        self.weights, self.step = _copy(model), 0
        self.val = math.inf
        self.waited = 0  # checks since the best
        self.divisor = 1.0  # of the learning rate, by the plateau schedule
        self._bad = 0

    def visit(self, step: int, shown: nn.Module, val: float | None) -> None:
        if val is not None and math.isnan(val):
            raise InputError(
                f"Training stopped at step {step:,}: the validation value is {val}. The weights "
                f"are those of step {self.step:,}; try a lower learning rate."
            )
        self._wait(val)
        if val is None or val < self.val or self.step == 0:
            self.weights, self.step = _copy(shown), step
            self.val = self.val if val is None else val
            self.waited = 0
        else:
            self.waited += 1

    def _wait(self, val: float | None) -> None:
        if self.settings.schedule != "plateau" or val is None:
            return
        self._bad = 0 if val < self.val - self.settings.plateau_threshold else self._bad + 1
        if self._bad > self.settings.plateau_patience:
            self.divisor *= self.settings.plateau_factor
            self._bad = 0

    def restore(self) -> None:
        self.model.load_state_dict(self.weights)


def learning_rate(settings: TrainSettings, step: int, steps: int) -> float:
    """The rate of step 1..steps, before a plateau divides it: a linear rise, then the schedule."""
    warm = min(1.0, step / max(1, settings.warmup_steps))
    if settings.schedule != "cosine":
        return settings.learning_rate * warm
    cosine = (1 + math.cos(math.pi * (step - 1) / steps)) / 2
    height = settings.final_rate + (1 - settings.final_rate) * cosine
    return settings.learning_rate * warm * height


def _epochs(batches: Batches) -> Iterator[Batch]:
    while True:
        yield from batches


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
