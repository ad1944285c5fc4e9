"""The training loop: stochastic gradient descent on -log p(text), through expected counts."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hmmlm.data.batches import Batch
from hmmlm.errors import InputError
from hmmlm.hmm import HMM
from hmmlm.inference import counts
from hmmlm.inference.gradients import with_gradient


@dataclass(frozen=True)
class TrainSettings:
    """How to train. The learning rate rises over `warmup_steps`, then falls to zero as a cosine."""

    epochs: int = 10
    learning_rate: float = 0.7
    weight_decay: float = 0.04
    clip: float = 5.0
    warmup_steps: int = 20

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("weight_decay", 0), ("warmup_steps", 0)):
            if not getattr(self, name) >= least:
                raise InputError(f"{name} is {getattr(self, name)} but must be at least {least}.")
        for name in ("learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)} but must be more than 0.")


class Progress(NamedTuple):
    """One step: `loss` in nats per token of its batch, `perplexity` its exponential.

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


def loss(
    hmm: HMM,
    tokens: Int[Tensor, "B T"],
    *,
    lengths: Int[Tensor, " B"] | None = None,
    reset_id: int | None = None,
    restart: Bool[Tensor, "B T"] | None = None,
    implementation: str = "auto",
) -> Float[Tensor, ""]:
    """-log p(tokens) / number of tokens, in nats; its gradient is minus the expected counts.

    Time and memory are those of `inference.counts`.
    """
    counted = counts(
        hmm.detach(),
        tokens,
        lengths=lengths,
        reset_id=reset_id,
        restart=restart,
        implementation=implementation,
    )
    number = tokens.numel() if lengths is None else int(lengths.sum())
    value = -counted.log_evidence.sum() / number

    def gradients(scale: Tensor) -> list[Tensor]:
        return [field * (-scale / number).to(field.dtype) for field in counted.fields()]

    return with_gradient(value, hmm, gradients)


def learning_rate(settings: TrainSettings, step: int, steps: int) -> float:
    """The rate of step 1..steps: linear warm-up times half a cosine."""
    warm = min(1.0, step / max(1, settings.warmup_steps))
    return settings.learning_rate * warm * (1 + math.cos(math.pi * (step - 1) / steps)) / 2


def train(
    model: nn.Module,
    batches: Batches,
    *,
    settings: TrainSettings,
    evaluate: Callable[[HMM], float] | None = None,
    implementation: str = "auto",
) -> Iterator[Progress]:
    """Trains a parameterisation in place with AdamW and yields after every step.

    Rows of a batch start cold, and anew where its `restart` says so. `evaluate` runs after each
    epoch, lower is better; when training ends, or is left early, the model has the weights that it
    liked best. A loss that is not finite stops training with the weights of the last epoch that
    were good.
    """
    steps, device = settings.epochs * batches.num_batches, next(model.parameters()).device
    if steps == 0:
        raise InputError("There are no batches to train on; the corpus is empty.")
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    kept, kept_step, best, restore = _copy(model), 0, math.inf, False
    stream, tokens, seconds = _epochs(batches), 0, 0.0
    try:
        for step in range(1, steps + 1):
            began = time.perf_counter()
            batch, rate = next(stream), learning_rate(settings, step, steps)
            optimiser.zero_grad()
            nats = loss(
                model(),
                batch.tokens.to(device),
                lengths=batch.lengths.to(device),
                restart=batch.restart.to(device),
                implementation=implementation,
            )
            nats.backward()
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), settings.clip))
            value = float(nats.detach())
            if not math.isfinite(value) or not math.isfinite(norm):
                restore = True
                raise InputError(
                    f"Training stopped at step {step:,} with learning rate {rate:.3g}: the loss is "
                    f"{value:.3g} and the gradient's norm {norm:.3g}. The weights are those of "
                    f"step {kept_step:,}; try a lower learning rate."
                )
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.step()
            tokens += batch.num_tokens
            seconds += time.perf_counter() - began

            val = None
            if step % batches.num_batches == 0:
                if evaluate is not None:
                    with torch.no_grad():
                        val = evaluate(model())
                    restore = True
                if kept_step == 0 or val is None or val < best:
                    kept, kept_step, best = _copy(model), step, best if val is None else val
            yield Progress(
                step,
                steps,
                (step - 1) // batches.num_batches + 1,
                value,
                math.exp(min(value, 700.0)),
                tokens,
                tokens / seconds,
                rate,
                val,
            )
    finally:
        if restore:
            model.load_state_dict(kept)


def _epochs(batches: Batches) -> Iterator[Batch]:
    while True:
        yield from batches


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
