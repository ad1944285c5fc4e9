"""The training loop: any learner, with averaged weights, checks and early stopping."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_swa_multi_avg_fn

from hmmlm.data.batches import Batch
from hmmlm.errors import InputError
from hmmlm.train.schedule import TrainSettings, learning_rate
from hmmlm.train.stream import Batches, Stream


class Diverged(InputError):
    """Training stopped, on all ranks alike, because there is nothing left to learn from.

    A loss or a validation value is no number, or the model rules the text out.
    """


class Left(Exception):
    """A step was left between two of its batches; all is as it was before the step."""


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


class Step(NamedTuple):
    """What a learner did: nats per token over its `tokens`, before it learnt from them.

    `size` is the norm of the gradient, 0 where there is none.
    """

    loss: float
    tokens: int
    size: float


@runtime_checkable
class Learner(Protocol):
    """What makes a model better, a step at a time.

    `step` learns from some batches at a rate when a share `done` of training is over; a step whose
    loss or size is not finite must leave the model as it was. `state` is all that it needs to go on
    besides the weights of the model: tensors by name. `can_be_left` says that an error raised by
    its batches leaves the model as it was, too. If it has an attribute `peek`, that is set to a
    function that makes the next batch, to be called while a device works.
    """

    can_be_left: bool

    @property
    def model(self) -> nn.Module: ...

    def step(self, batches: Iterable[Batch], rate: float, done: float) -> Step: ...

    def state(self) -> dict[str, Tensor]: ...

    def restore(self, state: Mapping[str, Tensor]) -> None: ...


class State(NamedTuple):
    """All that a training needs to go on: tensors by name, and plain numbers."""

    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


class Training:
    """Steps of a learner over the epochs of its batches.

    Iterating trains the learner's model in place, from where it stands, and yields after every
    step. `evaluate` runs `checks` times an epoch; lower is better. When training ends, or is left
    early, the model has the weights that were best by `evaluate`; without `evaluate`, those of the
    last step, or their average. A loss that is not finite ends training with the best weights so
    far, or before the first check with recent ones whose loss was finite.

    `state()` after a step is all that another process needs to go on, with the same numbers as if
    training had never stopped. Its tensors are the ones in use: write them before the next step.

    `between` is called before every batch of a learner that can be left, by all ranks. If it gives
    True, the step is left, which raises `Left`; `state()` is then that before the step.
    """

    between: Callable[[], bool] | None = None

    def __init__(
        self,
        learner: Learner,
        batches: Batches,
        *,
        settings: TrainSettings,
        evaluate: Callable[[nn.Module], float] | None = None,
    ) -> None:
        self.learner, self.batches, self.settings = learner, batches, settings
        self.evaluate = evaluate
        self.group = settings.accumulate or batches.num_batches
        self.per_epoch = -(-batches.num_batches // max(1, self.group))
        self.steps = settings.epochs * self.per_epoch
        if self.steps == 0:
            raise InputError("There are no batches to train on; the corpus is empty.")
        self.averaged = None
        if settings.average > 0 or settings.average_after > 0:
            plain = settings.average_after > 0
            average: Any = get_swa_multi_avg_fn() if plain else self._average
            self.averaged = AveragedModel(learner.model, multi_avg_fn=average)
        self.best = Best(learner.model, settings)
        self.stream = Stream(batches)
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        self._begun: Any = None  # where the batches of the step that is being made begin
        # Checks are spread over an epoch; the last one is at its end.
        checks = min(settings.checks, self.per_epoch)
        self.checks = {round(self.per_epoch * n / checks) for n in range(1, checks + 1)}

    @property
    def is_over(self) -> bool:
        return self.step >= self.steps or 0 < self.settings.early_stop <= self.best.waited

    def __iter__(self) -> Iterator[Progress]:
        self.stream, settled = Stream(self.batches), False
        if hasattr(self.learner, "peek"):
            self.learner.peek = self._peek  # pyright: ignore
        try:
            while not self.is_over:
                done, within = self.step / self.steps, self.step % self.per_epoch
                rate = learning_rate(self.settings, self.step + 1, self.steps) / self.best.divisor
                size = min(self.group, self.batches.num_batches - within * self.group)
                began = time.perf_counter()
                # Whether weights are any good shows in the loss of the next step.
                tried = _copy(self.shown) if self._is_worth_keeping() else None
                made = self._learn(islice(self.stream, size), rate, done)
                if not math.isfinite(made.loss) or not math.isfinite(made.size):
                    self.best.restore()
                    raise Diverged(
                        f"Training stopped at step {self.step + 1:,} with learning rate "
                        f"{rate:.3g}: the loss is {made.loss:.3g} and the gradient's norm "
                        f"{made.size:.3g}. The weights are those of step {self.best.kept:,}; try "
                        f"a lower learning rate."
                    )
                if tried is not None:
                    self.best.weights, self.best.kept = tried, self.step
                if self.averaged is not None and self.best.is_averaging:
                    self.averaged.update_parameters(self.learner.model)
                self.step += 1
                self.tokens += made.tokens
                self.seconds += time.perf_counter() - began
                val = self._check() if within + 1 in self.checks else None
                yield Progress(
                    self.step,
                    self.steps,
                    (self.step - 1) // self.per_epoch + 1,
                    made.loss,
                    math.exp(min(made.loss, 700.0)),
                    self.tokens,
                    self.tokens / self.seconds,
                    rate,
                    val,
                )
        except (Diverged, Left):
            settled = True
            raise
        finally:
            self.stream.put_back()
            if hasattr(self.learner, "peek"):
                self.learner.peek = None  # pyright: ignore
            if not settled:
                self._settle()

    def _peek(self) -> Batch | None:
        return self.stream.peek() if self.step + 1 < self.steps else None

    def _learn(self, batches: Iterator[Batch], rate: float, done: float) -> Step:
        """A step of the learner, which may be left."""
        self._begun = self.stream.position
        try:
            return self.learner.step(self._watch(batches), rate, done)
        except Diverged:
            self._settle()
            raise
        except Left:
            if self._begun is not None:
                self.batches.position = self._begun  # pyright: ignore
            raise
        finally:
            self._begun = None

    def _watch(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            if self.learner.can_be_left and self.between is not None and self.between():
                raise Left
            yield batch

    def _average(self, averaged: Any, current: Any, _: Tensor) -> None:
        """Takes a step's weights into a mean with weights average^(steps since), which sum to one.

        So the first ones, which are those of the start, never count for more than others.
        """
        assert self.averaged is not None
        decay, number = self.settings.average, int(self.averaged.n_averaged) + 1
        share = (1 - decay) / (1 - decay**number)
        torch._foreach_lerp_(averaged, current, share)  # pyright: ignore[reportPrivateImportUsage]

    @property
    def shown(self) -> nn.Module:
        """The model that is evaluated: that of the averaged weights, if there are any."""
        if self.averaged is None or not int(self.averaged.n_averaged):
            return self.learner.model
        return self.averaged.module

    def _is_worth_keeping(self) -> bool:
        """Ten times an epoch, where no check says which weights to keep."""
        unchecked = self.evaluate is None or self.best.step == 0
        return unchecked and self.step > 0 and self.step % max(1, self.per_epoch // 10) == 0

    def _check(self) -> float | None:
        if self.evaluate is None:
            return None
        with torch.no_grad():
            val = self.evaluate(self.shown)
        self.best.visit(self.step, self.shown, val)
        return val

    def _settle(self) -> None:
        """Gives the model the weights that training was for."""
        if self.evaluate is not None and self.best.step > 0:
            self.best.restore()
        elif self.averaged is not None and self.step > 0:
            self.learner.model.load_state_dict(self.shown.state_dict())

    def state(self) -> State:
        parts = {
            "model": self.learner.model.state_dict(),
            "learner": self.learner.state(),
            "best": self.best.weights,
            "average": {} if self.averaged is None else self.averaged.state_dict(),
        }
        tensors = {f"{part}.{key}": v for part, held in parts.items() for key, v in held.items()}
        numbers: dict[str, Any] = {"step": self.step, "tokens": self.tokens}
        numbers |= {"seconds": self.seconds, "best": self.best.numbers()}
        numbers["position"] = self._begun or self.stream.position
        return State(tensors, numbers)

    def restore(self, state: State) -> None:
        """Puts the training where `state` says."""
        try:
            self._restore(state)
        except (KeyError, TypeError, RuntimeError) as error:
            why = str(error).replace("\n", " ")
            raise InputError(
                f"The checkpoint of step {state.numbers.get('step'):,} does not fit this training "
                f"({why}); remove its folder to go on from the one before, or from the start."
            ) from error

    def _restore(self, state: State) -> None:
        parts: dict[str, dict[str, Tensor]] = {}
        for name, tensor in state.tensors.items():
            part, _, key = name.partition(".")
            parts.setdefault(part, {})[key] = tensor
        self.learner.model.load_state_dict(parts["model"])
        self.learner.restore(parts.get("learner", {}))
        if self.averaged is not None:
            self.averaged.load_state_dict(parts["average"])
        self.best.weights = parts["best"]
        numbers = state.numbers
        self.best.set_numbers(numbers["best"])
        self.step, self.tokens = numbers["step"], numbers["tokens"]
        self.seconds = numbers["seconds"]
        self.stream.put_back()
        if numbers["position"] is not None:
            self.batches.position = numbers["position"]  # pyright: ignore


class Best:
    """The weights that were best on validation; before the first check, some that did no harm.

    `step` is that of the best value, 0 if there was none, and `kept` that of the weights. While all
    values are infinite, the newest weights count as the best.
    """

    def __init__(self, model: nn.Module, settings: TrainSettings) -> None:
        self.model, self.settings = model, settings
        self.weights, self.kept = _copy(model), 0
        self.step, self.val = 0, math.inf
        self.waited = 0  # checks since the best
        self.divisor = 1.0  # of the learning rate, by the plateau schedule
        self.bad = 0  # checks that did not lower the best enough
        self.past: list[float] = []  # the values of all checks, until weights are averaged
        self.is_averaging = settings.average_after == 0

    def visit(self, step: int, shown: nn.Module, val: float) -> None:
        if math.isnan(val):
            self.restore()
            raise Diverged(
                f"Training stopped at step {step:,}: the validation value is {val}. The weights "
                f"are those of step {self.kept:,}; try a lower learning rate."
            )
        self._wait(val)
        self._turn(val)
        self.waited = 0 if val < self.val or self.step == 0 else self.waited + 1
        if val < self.val or math.isinf(self.val):
            self.weights, self.kept = _copy(shown), step
            self.step, self.val = step, val

    def _wait(self, val: float) -> None:
        if self.settings.schedule != "plateau":
            return
        self.bad = 0 if val < self.val - self.settings.plateau_threshold else self.bad + 1
        if self.bad > self.settings.plateau_patience:
            self.divisor *= self.settings.plateau_factor
            self.bad = 0

    def _turn(self, val: float) -> None:
        """Begins to average where checks stop getting better, which may go up and down for long."""
        if not self.is_averaging:
            before = self.past[: -self.settings.average_after]
            self.is_averaging = bool(before) and val > min(before)
            self.past.append(val)

    def restore(self) -> None:
        self.model.load_state_dict(self.weights)

    def numbers(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _NUMBERS}

    def set_numbers(self, numbers: Mapping[str, Any]) -> None:
        for name in _NUMBERS:
            setattr(self, name, numbers[name])


_NUMBERS = ("kept", "step", "val", "waited", "divisor", "bad", "past", "is_averaging")


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
