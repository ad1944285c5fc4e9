"""A training step as one CUDA graph: dropout, tables or layers, gradient, clip and AdamW."""

import gc
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from hmmlm.data.batches import Batch
from hmmlm.errors import InputError
from hmmlm.inference.dispatch import WIDEST
from hmmlm.ops.kernels import describe, why_not
from hmmlm.params.scalar import Scalar
from hmmlm.train.loop import Step, TrainSettings
from hmmlm.train.loss import Differentiated, HmmLoss
from hmmlm.train.next_token import NextTokenLoss

MOST = 16
"""Graphs that are kept: each takes memory of its own."""

WARM = 2
"""Steps taken as they are before a graph is captured: kernels are compiled, memory is found."""

SHORTEST, LONGEST = 50, 1000
"""Steps in float64 after one that lost digits, before float32 is tried again: at first, at most."""


class Failed(Exception):
    """Kernels could not take a step, for this reason; all is as it was before."""


@runtime_checkable
class Capturable(Protocol):
    """A loss whose gradient is made without waiting for the device."""

    generator: torch.Generator

    @property
    def can_widen(self) -> bool:
        """Whether a step that lost digits may be taken again `wide`."""
        ...

    def fit(self, batch: Batch, done: float) -> float | None:
        """The share of dropout, which a graph is captured for; None if this batch is for none."""
        ...

    def differentiate(
        self,
        tokens: Tensor,
        restart: Tensor,
        ends: Tensor,
        level: float,
        precision: str,
        wide: bool = False,
    ) -> Differentiated: ...


class GraphedSteps:
    """Steps of an HMM's loss, or of a network's, from CUDA graphs.

    There is a graph for each shape of batches, `MOST` at most, captured again when the number of
    kept states changes; other steps are taken as they are, with the same numbers. Where a row of
    the batch loses digits, or a number is not finite, the weights and what is carried stay as they
    are; that of an HMM is taken again with messages in float64 (see `Widths`). A graph that cannot
    be made is the last one: `tell` hears why, and steps go on without.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Capturable,
        optimiser: torch.optim.AdamW,
        settings: TrainSettings,
        tell: Callable[[str], None] = warnings.warn,
    ) -> None:
        self.model, self.loss, self.optimiser, self.settings = model, loss, optimiser, settings
        self.tell = tell
        self.device = next(model.parameters()).device
        self.graphs: dict[tuple, Replay] = {}
        self.taken: dict[tuple, int] = {}
        self.may_capture = True
        self.widths = Widths(loss.can_widen)
        self.level: float | None = None
        self.held: tuple[nn.Parameter, ...] = ()
        self.lost = False  # whether the last step was not taken because digits were lost
        self.pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        self.ahead: tuple[Batch, Tensor] | None = None  # the next batch, packed
        self.skip, self.scale = (torch.zeros((), device=self.device) for _ in range(2))

    def step(
        self,
        batch: Batch,
        rate: float,
        done: float,
        peek: Callable[[], Batch | None] | None = None,
    ) -> Step | None:
        """The step, or None where it was not taken: the caller takes it another way.

        Where kernels fail that is `Failed`. Either way all is as it was before. `peek` gives the
        batch of the next step, which is made ready while the device works on this one.
        """
        level, self.lost = self.loss.fit(batch, done), False
        if level is None:
            return None
        if level != self.level:
            self.forget()
            self.level = level
        for part in self.optimiser.param_groups:
            part["lr"].fill_(rate)
        packed = self._pack(batch)
        for wide in self.widths.ways():
            answer = self._take(packed, level, wide, peek)
            if isinstance(answer, str) and not wide:
                raise Failed(answer)
            if isinstance(answer, str):
                self.widths.can_widen, self.lost = False, True
                self.tell(f"Steps that lose digits are slower, because float64 failed: {answer}")
                return None
            value, norm, skipped = answer
            self.widths.note(wide, bool(skipped))
            if not skipped:
                return Step(value, batch.num_tokens, norm)
            peek = None  # the next batch is ready
        self.lost = True
        return None

    def hold(self, parameters: tuple[nn.Parameter, ...]) -> None:
        """From here on these parameters stay as they are; graphs of others would not do."""
        self.forget()
        self.held = parameters

    def forget(self) -> None:
        """Lets go of all graphs; others are captured in memory of their own."""
        if self.graphs:
            self.graphs.clear()
            self.optimiser.zero_grad()  # gradients lie where the graphs put them
            self.pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        self.taken.clear()

    def _take(
        self,
        packed: Tensor,
        level: float,
        wide: bool,
        peek: Callable[[], Batch | None] | None,
    ) -> list[float] | str:
        """The numbers of a step, by a graph or without, or what went wrong."""
        key = (tuple(packed.shape), wide)  # of one level: see `forget`
        taken = self.taken[key] = self.taken.get(key, 0) + 1
        is_due = self.may_capture and taken > WARM and key not in self.graphs
        if is_due and len(self.graphs) == MOST:
            self.may_capture = is_due = False
            self.tell(f"Batches of more shapes than {MOST} have no CUDA graph; the others have.")
        answer: list[float] | str = "no graph"
        if key in self.graphs or is_due:
            answer = self._try(lambda: self._replay(key, packed, level, wide), peek)
            if isinstance(answer, str):
                self.may_capture = False
                self.tell(
                    f"Steps go on without a CUDA graph, by the same kernels, because the graph "
                    f"failed: {answer}"
                )
        if isinstance(answer, str):
            answer = self._try(lambda: self.compute(self._send(packed), level, wide), peek)
        return answer

    def _replay(self, key: tuple, packed: Tensor, level: float, wide: bool) -> Tensor:
        """The step by a graph, which is captured if there is none."""
        if key not in self.graphs:
            self.graphs[key] = Replay(
                lambda given: self.compute(given, level, wide),
                packed,
                self.loss.generator,
                self.pool,
            )
        return self.graphs[key](packed)

    def _pack(self, batch: Batch) -> Tensor:
        """A batch in memory that the device reads without the host."""
        if self.ahead is not None and self.ahead[0] is batch:
            return self.ahead[1]
        packed = pack(batch)
        return packed.pin_memory() if self.device.type == "cuda" else packed

    def _send(self, packed: Tensor) -> Tensor:
        return packed.to(self.device, non_blocking=True)

    def _try(
        self, run: Callable[[], Tensor], peek: Callable[[], Batch | None] | None
    ) -> list[float] | str:
        """The numbers of an attempt, or what went wrong: then nothing is left of it."""
        drawn, known = self.loss.generator.get_state(), set(self.optimiser.state)
        try:
            waiting = run()
        except InputError:
            raise
        except Exception as error:
            reason = describe(error)
        else:  # the weights move: what goes wrong from here on is no reason to step again
            following = None if peek is None else peek()
            if following is not None:
                self.ahead = following, self._pack(following)
            answer = waiting.tolist()
            if answer[-1]:  # the same states are drawn when the step is taken again
                self.loss.generator.set_state(drawn)
            return answer
        # Out of the handler, whose traceback would keep the tensors of the attempt.
        self.graphs.clear()
        self.pool = None
        self.optimiser.zero_grad()
        for parameter in set(self.optimiser.state) - known:  # moments that are half there
            del self.optimiser.state[parameter]
        # A new one: that of a broken capture draws no more.
        self.loss.generator = torch.Generator(self.device)
        self.loss.generator.set_state(drawn)
        if self.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
        return reason

    def compute(self, packed: Tensor, level: float, wide: bool = False) -> Tensor:
        """The loss, the norm of the gradient, and whether the step was left out, (3,)."""
        self.optimiser.zero_grad()
        made = self.loss.differentiate(*unpack(packed), level, self.settings.precision, wide)
        for parameter in self.held:
            parameter.grad = None
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        numbers = norm + made.value
        # A number less itself is zero, unless it is not finite; each call is a kernel of its own.
        self.skip.copy_((numbers - numbers != 0) | made.is_low)
        self.scale.copy_(((norm + 1e-6) / self.settings.clip).clamp(min=1.0))
        answer = torch.stack([made.value.float(), norm.float(), self.skip])
        after = [torch.where(self.skip > 0, held, new) for held, new in made.carried]
        # The fused step divides gradients by the one and does nothing if the other is 1.
        scaling = {"grad_scale": self.scale, "found_inf": self.skip}
        vars(self.optimiser).update(scaling)
        try:
            self.optimiser.step()  # what fails before it has moved no weight
        finally:
            vars(self.optimiser).update(dict.fromkeys(scaling))
        for (held, _), new in zip(made.carried, after, strict=True):
            held.copy_(new)
        return answer


class Widths:
    """Whether a step has messages in float32 or, for so many after one that lost digits, float64.

    Then float32 is tried again; as long as that loses digits, twice as many follow.
    """

    def __init__(self, can_widen: bool) -> None:
        self.can_widen, self.left, self.pause = can_widen, 0, SHORTEST

    def ways(self) -> tuple[bool, ...]:
        """What a step tries in turn: whether messages are float64."""
        if not self.can_widen:
            return (False,)
        return (True,) if self.left > 0 else (False, True)

    def note(self, wide: bool, skipped: bool) -> None:
        """Takes in whether a step that was tried had to be left out."""
        if wide:  # what float64 cannot take either was no matter of digits
            self.left = 0 if skipped else max(0, self.left - 1)
        elif skipped and self.can_widen:
            self.left, self.pause = self.pause, min(2 * self.pause, LONGEST)
        else:
            self.pause = SHORTEST

    def state(self) -> dict[str, Tensor]:
        """What a training that goes on later needs, so that it takes the same steps."""
        is_new = self.pause == SHORTEST
        return {} if is_new else {"widths": torch.tensor([self.left, self.pause])}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.left, self.pause = 0, SHORTEST
        if "widths" in state:
            self.left, self.pause = state["widths"].tolist()


class Replay:
    """A function of one tensor, captured: later calls copy it in, from pinned memory, and replay.

    The caller holds the tensor until it has read the answer.
    """

    def __init__(
        self,
        run: Callable[[Tensor], Tensor],
        given: Tensor,
        generator: torch.Generator,
        pool: Any,
    ) -> None:
        self.given = given.to(generator.device)
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(generator)
        before = torch.cuda.current_stream(generator.device)
        try:
            with _no_collection(), torch.cuda.graph(self.graph, pool=pool):
                self.answer = run(self.given)
        finally:  # which a capture that breaks does not leave by itself
            torch.cuda.set_stream(before)
        # The capture has set the generator's numbers on its own stream: on a busy device they
        # could arrive after those of the first replay, which would then draw other states.
        torch.cuda.synchronize(generator.device)

    def __call__(self, given: Tensor) -> Tensor:
        self.given.copy_(given, non_blocking=True)
        self.graph.replay()
        return self.answer


@contextmanager
def _no_collection() -> Iterator[None]:
    """Within it nothing is collected: the end of another graph would break a capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def pack(batch: Batch) -> Tensor:
    """Tokens, restarts and lengths side by side, (B, 2 T + 1), to travel together."""
    parts = (batch.tokens.int(), batch.restart.int(), batch.lengths.int()[:, None])
    return torch.cat(parts, 1)


def unpack(packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    steps = packed.shape[1] // 2
    return packed[:, :steps].long(), packed[:, steps:-1] > 0, packed[:, -1].long()


def why_no_graph(loss: object, model: nn.Module, settings: TrainSettings, ranks: int) -> str | None:
    """What keeps steps from being captured; None if nothing does."""
    device = next(model.parameters()).device
    if device.type != "cuda":
        return f"graphs are of a CUDA device, and this is {device.type}"
    if ranks > 1:
        return "ranks exchange gradients between the parts of a step"
    if settings.accumulate != 1:
        return "gradients of several batches are summed"
    if isinstance(loss, NextTokenLoss):
        return _why_no_graph_of_network(loss)
    if not isinstance(loss, HmmLoss):
        return "the loss is neither that of an HMM nor of a network"
    # Of tables without products nothing is rounded.
    precision = "bf16" if isinstance(model, Scalar) else settings.precision
    if (reason := why_no_graph_on(device, precision)) is not None:
        return reason
    if loss.carry and loss.support.is_dense:
        return "belief is carried over all states, and kernels carry that over a word's own"
    if not loss.support.is_dense and loss.support.width > WIDEST:
        return f"a word has {loss.support.width:,} states, and the kernels take {WIDEST:,}"
    if "kept" not in signature(model.forward).parameters:
        return "the model does not take the support of the states that are kept"
    if loss.implementation not in ("auto", "kernel"):
        return f"implementation {loss.implementation} was asked for"
    return None


def _why_no_graph_of_network(loss: NextTokenLoss) -> str | None:
    if not loss.carry:
        return "every batch starts cold"
    if loss.reset_id is not None:
        return "rows are cut where a sentence ends"
    return None


def why_no_graph_on(device: torch.device, precision: str) -> str | None:
    """What keeps steps of whatever HMM from being captured on a device; None if nothing does."""
    if device.type != "cuda":
        return f"graphs are of a CUDA device, and this is {device.type}"
    if (reason := why_not(device)) is not None:
        return reason
    if precision == "float32":
        return "precision is float32, and the kernels of a step are for bf16 and tf32"
    return None
