"""Stochastic gradient descent, by AdamW or as it is: a learner for any loss."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hmmlm.data.batches import Batch
from hmmlm.errors import InputError
from hmmlm.ops.kernels import describe, why_not, without_kernels
from hmmlm.products import full_products
from hmmlm.train.distributed import ONE, Ranks
from hmmlm.train.graph import Failed, GraphedSteps, why_no_graph
from hmmlm.train.loop import Batches, Progress, Step, Training
from hmmlm.train.loss import HmmLoss, arithmetic
from hmmlm.train.next_token import NextTokenLoss, products_of
from hmmlm.train.schedule import TrainSettings


@runtime_checkable
class Loss(Protocol):
    """Nats per token of a batch, differentiable, when a share `done` of training is over."""

    def __call__(self, batch: Batch, done: float) -> Tensor: ...


@runtime_checkable
class Carrying(Loss, Protocol):
    """A loss that carries something from batch to batch."""

    def state(self) -> dict[str, Tensor]: ...

    def restore(self, state: Mapping[str, Tensor]) -> None: ...


class Sgd:
    """AdamW, or plain descent with `optimiser` "sgd", on the mean loss of a token over the batches
    of a step, with clipped gradients.

    With `full_tokens` the rate is that of a step of so many tokens, and in proportion for others.

    Parameters that are `frozen` stay as they are, without decay, until a share `thaw` of training
    is over; the optimiser knows nothing of them before. They have no part in the gradient's norm.

    Several `ranks` take a step together, each on its rows: the mean is over the tokens of all, and
    all have the same weights afterwards.

    Where kernels or a CUDA graph fail, steps go on without them, as if they had never been tried,
    and `notice` hears it once (a warning, if there is none). A loss of `implementation` "kernel"
    is refused then.
    """

    notice: Callable[[str], None] | None = None
    peek: Callable[[], Batch | None] | None = None

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        settings: TrainSettings,
        ranks: Ranks = ONE,
        *,
        optimiser: str = "adamw",
        full_tokens: int = 0,
        frozen: Iterable[nn.Parameter] = (),
        thaw: float = 0.0,
    ) -> None:
        self.model, self.loss, self.settings, self.ranks = model, loss, settings, ranks
        self.full_tokens = full_tokens
        self.frozen, self.thaw = tuple(frozen), thaw
        self.held: tuple[nn.Parameter, ...] = ()  # those that are frozen now
        self.shared = None
        if ranks.ranks > 1:
            self.shared = DistributedDataParallel(_Whole(model, loss), gradient_as_bucket_view=True)
        device = next(model.parameters()).device
        self.place, on_gpu = device.type, device.type == "cuda"
        decay, groups = settings.weight_decay, decayed(model, settings)
        if optimiser == "adamw":
            self.optimiser = torch.optim.AdamW(
                groups,
                lr=torch.tensor(settings.learning_rate, device=device) if on_gpu else 1.0,
                betas=(settings.beta1, settings.beta2),
                weight_decay=decay,
                fused=on_gpu,
                capturable=on_gpu,
            )
        else:
            self.optimiser = torch.optim.SGD(groups, lr=1.0, weight_decay=decay)
        self.is_plain = False  # because kernels have failed
        self.graphed, self.why_no_graph = None, why_no_graph(loss, model, settings, ranks.ranks)
        if optimiser != "adamw":
            self.why_no_graph = f"the optimiser is {optimiser}"
        if self.why_no_graph is None and isinstance(self.optimiser, torch.optim.AdamW):
            assert isinstance(loss, HmmLoss | NextTokenLoss)
            self.graphed = GraphedSteps(model, loss, self.optimiser, settings, self._tell)

    can_be_left = False  # a loss may draw numbers and carry something on with every batch

    def step(self, batches: Iterable[Batch], rate: float, done: float) -> Step:
        self._hold(self.frozen if done < self.thaw else ())
        if self.graphed is None:
            return self._step(batches, rate, done)
        (batch,) = batches = list(batches)
        try:
            made = self.graphed.step(batch, self._rate(rate, batch.num_tokens), done, self.peek)
        except Failed as error:
            made = None
            self._leave_kernels(str(error))
        if made is not None:
            return made
        # A row that loses digits needs a wider arithmetic, whatever was asked for.
        asked = isinstance(self.loss, HmmLoss) and self.loss.implementation == "kernel"
        asked = asked and (self.graphed is None or self.graphed.lost)
        with without_kernels() if asked else nullcontext():
            return self._step(batches, rate, done)

    def _hold(self, parameters: tuple[nn.Parameter, ...]) -> None:
        """Lets these parameters stay as they are, and others learn."""
        if len(parameters) != len(self.held):
            self.held = parameters
            if self.graphed is not None:
                self.graphed.hold(parameters)

    def _rate(self, rate: float, tokens: int | float) -> float:
        """The learning rate of a step of so many tokens."""
        return rate * tokens / self.full_tokens if self.full_tokens else rate

    def _step(self, batches: Iterable[Batch], rate: float, done: float) -> Step:
        """The step as PyTorch takes it, for any loss and any number of batches and ranks."""
        self.optimiser.zero_grad()
        value, tokens = 0.0, 0
        for batch, is_last in _mark_last(batches):
            # Gradients go round once a step, with its last batch.
            with self.shared.no_sync() if self.shared and not is_last else nullcontext():
                nats = self._try(batch, done) if tokens == 0 else self._add(batch, done)
            value += nats * batch.num_tokens
            tokens += batch.num_tokens
        for parameter in self.held:
            parameter.grad = None
        value, tokens = self.ranks.total(value, tokens)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= tokens / self.ranks.ranks  # they come as means over the ranks
        value /= tokens
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip))
        if math.isfinite(value) and math.isfinite(norm):
            rate = self._rate(rate, tokens)
            for part in self.optimiser.param_groups:
                if isinstance(part["lr"], Tensor):
                    part["lr"].fill_(rate)
                else:
                    part["lr"] = rate
            self.optimiser.step()
        return Step(value, int(tokens), norm)

    def _add(self, batch: Batch, done: float) -> float:
        """The loss of a batch; its gradients are added to those that are there."""
        precision, products = self.settings.precision, nullcontext()
        if isinstance(self.loss, NextTokenLoss):
            products = products_of(precision)
        elif isinstance(self.loss, HmmLoss):
            products = full_products()
        with products, without_kernels() if self.is_plain else nullcontext():
            with arithmetic(precision, self.place):
                nats = (self.shared or self.loss)(batch, done)
            (nats * batch.num_tokens).backward()
        return float(nats.detach())

    def _try(self, batch: Batch, done: float) -> float:
        """The loss of a step's first batch, which shows whether the kernels of tables work."""
        loss = self.loss
        device = next(self.model.parameters()).device
        is_tried = not self.is_plain and self.ranks.ranks == 1 and why_not(device) is None
        if not is_tried or not isinstance(loss, HmmLoss):
            return self._add(batch, done)
        drawn, belief = loss.generator.get_state(), loss.belief
        try:
            return self._add(batch, done)
        except (InputError, torch.OutOfMemoryError):  # of memory the plain way takes no less
            raise
        except Exception as error:
            reason = describe(error)
        loss.generator.set_state(drawn)
        loss.belief = belief
        self.optimiser.zero_grad()
        self._leave_kernels(reason)
        return self._add(batch, done)

    def _leave_kernels(self, reason: str) -> None:
        """From here on steps are plain ones."""
        if isinstance(self.loss, HmmLoss) and self.loss.implementation == "kernel":
            raise InputError(
                f"implementation is 'kernel' but the kernels of a step failed ({reason}); use "
                f"auto, which goes on without them, or scaled."
            )
        self.graphed, self.is_plain, self.why_no_graph = None, True, reason
        self._tell(f"Steps go on without kernels, slower, because they failed: {reason}")

    def _tell(self, text: str) -> None:
        (self.notice or warnings.warn)(text)

    def state(self) -> dict[str, Tensor]:
        held = {}
        if isinstance(self.loss, Carrying):
            held = {f"loss.{key}": tensor for key, tensor in self.loss.state().items()}
        for name, parameter in self.model.named_parameters():
            for key, tensor in self.optimiser.state.get(parameter, {}).items():
                held[f"optimiser.{key}.{name}"] = tensor
        if self.graphed is not None:
            held |= self.graphed.widths.state()
        return held

    def restore(self, state: Mapping[str, Tensor]) -> None:
        if self.graphed is not None:
            self.graphed.forget()  # graphs read the moments that were
            self.graphed.widths.restore(state)
        if isinstance(self.loss, Carrying):
            carried = {key: tensor for key, tensor in state.items() if key.startswith("loss.")}
            self.loss.restore({key[len("loss.") :]: v for key, v in carried.items()})
        for name, parameter in self.model.named_parameters():
            kept = {}
            for key in ("step", "exp_avg", "exp_avg_sq"):
                tensor = state.get(f"optimiser.{key}.{name}")
                if tensor is not None:  # one that never had a gradient has none
                    # Of the step that a GPU takes by itself, the number is there too.
                    like = parameter if key != "step" or self.place == "cuda" else tensor
                    kept[key] = tensor.to(like.device, tensor.dtype)
            if kept:
                self.optimiser.state[parameter] = kept


def decayed(model: nn.Module, settings: TrainSettings) -> list[dict[str, Any]]:
    """The parameters in groups that decay alike: those of states, those of words, the others."""
    own = {"embeddings": settings.decay_states, "words": settings.decay_words}
    own |= dict.fromkeys(("word_bias", "emit_logits"), settings.decay_words)
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        decay = own.get(name.partition(".")[0])
        decay = settings.weight_decay if decay is None else decay
        groups.setdefault(decay, []).append(parameter)
    return [{"params": held, "weight_decay": decay} for decay, held in groups.items()]


class _Whole(nn.Module):
    """A model with its loss: what ranks compute, each for its rows."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Batch, done: float) -> Tensor:
        return self.loss(batch, done)


def _mark_last(batches: Iterable[Batch]) -> Iterator[tuple[Batch, bool]]:
    """Each batch, and whether it is the last one."""
    rest = iter(batches)
    batch = next(rest, None)
    while batch is not None:
        following = next(rest, None)
        yield batch, following is None
        batch = following


def train(
    model: nn.Module,
    loss: Loss,
    batches: Batches,
    *,
    settings: TrainSettings,
    evaluate: Callable[[nn.Module], float] | None = None,
    ranks: Ranks = ONE,
) -> Iterator[Progress]:
    """Trains a module in place and yields after every step; see `loop.Training`.

    `evaluate` must give the same on all ranks, such as by `Ranks.once`.
    """
    learner = Sgd(model, loss, settings, ranks)
    return iter(Training(learner, batches, settings=settings, evaluate=evaluate))
