"""A training step as one CUDA graph: dropout, tables, recursion, gradient, clip and AdamW."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from hmmlm.data.batches import Batch
from hmmlm.inference.kernels import count
from hmmlm.ops.kernels import why_not
from hmmlm.train.loop import Step, TrainSettings
from hmmlm.train.loss import LEVELS, HmmLoss

WARM = 2
"""Steps taken as they are before a graph is captured: kernels are compiled, memory is found."""


class GraphedSteps:
    """Steps of an HMM's loss on blocks or dense states, replayed from CUDA graphs.

    There is a graph for each shape of batches and each number of kept states, `LEVELS` at most;
    other steps are taken as they are, with the same numbers. Where a row of the batch loses
    digits, or a number is not finite, the weights stay as they are.
    """

    def __init__(
        self, model: nn.Module, loss: HmmLoss, optimiser: torch.optim.AdamW, settings: TrainSettings
    ) -> None:
        self.model, self.loss, self.optimiser, self.settings = model, loss, optimiser, settings
        self.device = next(model.parameters()).device
        self.graphs: dict[tuple, Replay] = {}
        self.taken: dict[tuple, int] = {}
        self.pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        self.skip, self.scale = (torch.zeros((), device=self.device) for _ in range(2))

    def step(self, batch: Batch, rate: float, done: float) -> Step | None:
        """The step, or None where it was not taken: the caller takes it another way."""
        level = self.loss.dropout.at(done)
        key = (tuple(batch.tokens.shape), level)
        taken = self.taken[key] = self.taken.get(key, 0) + 1
        for part in self.optimiser.param_groups:
            part["lr"].fill_(rate)
        packed = pack(batch)
        if key not in self.graphs and taken > WARM and len(self.graphs) < LEVELS:
            self.graphs[key] = Replay(
                lambda given: self.compute(given, level),
                packed,
                self.loss.generator,
                self.device,
                self.pool,
            )
        if key in self.graphs:
            answer = self.graphs[key](packed)
        else:
            answer = self.compute(packed.to(self.device), level)
        value, norm, skipped = answer.tolist()
        return None if skipped else Step(value, batch.num_tokens, norm)

    def compute(self, packed: Tensor, level: float) -> Tensor:
        """The loss, the norm of the gradient, and whether the step was left out, (3,)."""
        tokens, restart, ends = unpack(packed)
        self.optimiser.zero_grad()
        states = kept = None
        if level > 0:
            keeper = self.loss.keeper(level)
            states, kept = keeper.draw(self.loss.generator), keeper.support
        mixed = self.settings.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=mixed):
            hmm = self.model(states, kept=kept)
        with torch.no_grad():
            number = ends.sum()
            times = (-1.0 / number.to(torch.float32)).expand(len(ends))
            counted = count(hmm.detach(), tokens, restart, ends, times)
            value = -counted.log_scales.sum(dtype=torch.float64) / number
        torch.autograd.backward(hmm.fields(), counted.fields)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        fine = torch.isfinite(norm) & torch.isfinite(value) & ~counted.low.any()
        self.skip.copy_(~fine)
        self.scale.copy_(((norm + 1e-6) / self.settings.clip).clamp(min=1.0))
        # The fused step divides gradients by the one and does nothing if the other is 1.
        scaling = {"grad_scale": self.scale, "found_inf": self.skip}
        vars(self.optimiser).update(scaling)
        self.optimiser.step()
        vars(self.optimiser).update(dict.fromkeys(scaling))
        return torch.stack([value.float(), norm.float(), self.skip])


class Replay:
    """A function of one tensor, captured: later calls copy the tensor in and replay."""

    def __init__(
        self,
        run: Callable[[Tensor], Tensor],
        given: Tensor,
        generator: torch.Generator,
        device: torch.device,
        pool: Any,
    ) -> None:
        self.waiting = given.pin_memory()
        self.given = given.to(device)
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(generator)
        with torch.cuda.graph(self.graph, pool=pool):
            self.answer = run(self.given)

    def __call__(self, given: Tensor) -> Tensor:
        self.waiting.copy_(given)  # the caller has waited for the last answer, so it is free
        self.given.copy_(self.waiting, non_blocking=True)
        self.graph.replay()
        return self.answer


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
    if not isinstance(loss, HmmLoss):
        return "the loss is not that of an HMM"
    if device.type != "cuda":
        return f"graphs are of a CUDA device, and this is {device.type}"
    if (reason := why_not(device)) is not None:
        return reason
    if ranks > 1:
        return "ranks exchange gradients between the parts of a step"
    if settings.accumulate != 1:
        return "gradients of several batches are summed"
    if loss.carry:
        return "belief is carried from batch to batch"
    if settings.precision != "bf16":
        return f"precision is {settings.precision}, and the kernels of a step are for bf16"
    if not loss.support.is_partition:
        return "words share only a part of their states"
    if "kept" not in signature(model.forward).parameters:
        return "the model does not take the support of the states that are kept"
    if loss.implementation not in ("auto", "kernel"):
        return f"implementation {loss.implementation} was asked for"
    return None
