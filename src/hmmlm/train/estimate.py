"""What a training step costs: numbers of parameters, bytes and floating-point operations."""

import math
from typing import Any, NamedTuple

from hmmlm.inference.recursion import TILED
from hmmlm.ops.normaliser import KEPT
from hmmlm.params import lowrank, mlp, scalar, transformer
from hmmlm.train.config import Config

LOST = 1.12
"""What a process takes for each byte asked for, as measured: some is lost between allocations."""


class Estimate(NamedTuple):
    """`memory` names the parts of the peak in bytes; `flops` those of a step's operations.

    `file_bytes` is the size of the tables of the model's file.
    """

    parameters: int
    file_bytes: int
    tokens_per_step: int
    kept_states: int
    memory: dict[str, int]
    flops: dict[str, int]

    @property
    def total_memory(self) -> int:
        return sum(self.memory.values())

    @property
    def total_flops(self) -> int:
        return sum(self.flops.values())


def estimate(config: Config, vocab_size: int) -> Estimate:
    """The cost of a training step of a configuration with its sizes, on a CPU in float32.

    Memory is the largest amount held at one time beyond the libraries: while counts are summed,
    while the gradient flows back, or in the optimiser's update. Operations are those of the matrix
    products, the gradient included.
    """
    states, blocks, params = config.model.states, config.model.blocks or 1, config.params
    assert states is not None
    width = getattr(params, "width", 0)
    kept = math.ceil(states // blocks * (1 - config.dropout.rate) - 1e-9)  # states of a word
    total, cells = kept * blocks, vocab_size * kept
    tokens = config.data.batch_size * config.data.length
    parameters = count_parameters(config, vocab_size)
    factored, networks = _is_factored(params, "trans"), _networks(params)
    dense = blocks == 1
    # Numbers that the forward computation keeps for the gradient; ids of cells count twice.
    held = {
        "networks": networks * _network_memory(params, states, total) if networks else 0,
        "transitions": 3 * total * width,
        "emissions": (2 if dense else 8) * cells,
    }
    counting, back = dict(held), dict(held)
    flops = {"networks": 3 * networks * _network_flops(params, states, total)} if networks else {}
    if factored:
        probs = total**2 if total**2 <= KEPT else 0
        counting["transitions"] += probs + 2 * total * width + 5 * dense * total**2
        back["transitions"] += 2 * probs + 4 * total * width
        flops["transitions"] = (6 if probs else 8) * total**2 * width
    else:
        counting["transitions"] += (5 if dense else 3) * total**2
        back["transitions"] += 4 * total**2
    counting["emissions"] += cells
    back["emissions"] += 4 * cells
    if _is_factored(params, "emit"):
        flops["emissions"] = 6 * vocab_size * kept * width
    counting["messages"] = 3 * min(tokens * kept, 1 << 24)
    flops["recursion"] = 8 * tokens * kept**2
    if not dense:
        products = factored and config.learner.optimiser == "adamw"  # EM counts with one table
        made = TILED // (kept * (kept + min(2 * width if products else 2 * total, 1024)))
        rows, pairs = config.data.batch_size, blocks**2
        together = min(tokens, rows * max(1, made // rows))  # tokens of a stretch
        different = round(pairs * (1 - math.exp(-together / pairs)))  # of words drawn at random
        counting["tiles"] = different * kept * (3 * kept + (4 * width if products else 0))
    if not dense and factored:
        flops["tiles"] = 10 * tokens * kept**2 * width
    back["gradients"] = parameters // 2  # those of embeddings come last
    update = {"gradients": parameters, "update": 2 * _largest(config, vocab_size)}
    copies = 4 + (config.train.average > 0)  # weights, two moments, the best; the average
    phases = [counting, back, update]
    if config.learner.optimiser != "adamw":
        copies -= 2 * (config.learner.optimiser == "em")  # no moments
        phases = _counted(config, phases, total**2, cells)
    peak = {"weights": copies * parameters}
    peak |= max(phases, key=lambda phase: sum(phase.values()))
    memory = {name: round(4 * LOST * numbers) for name, numbers in peak.items() if numbers}
    table = states * (2 * width + 1) if factored else states**2
    file_bytes = 4 * (states + table + vocab_size * (states // blocks))
    return Estimate(parameters, file_bytes, tokens, total, memory, flops)


def count_parameters(config: Config, vocab_size: int) -> int:
    """How many numbers are learnt."""
    states, blocks, params = config.model.states, config.model.blocks or 1, config.params
    assert states is not None
    if isinstance(params, scalar.Settings):
        return states + states**2 + vocab_size * (states // blocks)
    width = params.width
    table = (states + blocks) * width // 2 if params.composed else states * width
    residual = 2 * (width**2 + width) + 2 * width
    words = vocab_size * (width + params.bias)
    if isinstance(params, lowrank.Settings):
        roles = 2 * params.factor_trans + params.factor_emit
        roles += params.factor_init and not params.factor_trans
        count = (
            min(1, roles) if params.shared else roles
        ) * table + roles * params.composed * residual
        count += width if params.factor_init else states
        count += 0 if params.factor_trans else states**2
        return count + (words if params.factor_emit else vocab_size * (states // blocks))
    roles = 2 + params.destination + (params.start == "network")
    tables = 3 + (params.start == "network") if params.split else 1
    networks = 1 if params.monolithic else roles
    heads = roles if params.monolithic and not params.split else 0
    count = tables * table + networks * (_network_size(params) + params.composed * residual)
    count += residual if params.composed and not params.destination else 0
    return count + heads * (width**2 + width) + width + 1 + words


def _counted(config: Config, phases: list[dict[str, int]], trans: int, cells: int) -> list[dict]:
    """The phases of a step of EM: counts of tables without gradients, then the M-step.

    Sums are in float64, two of our numbers each. EM writes its tables piece by piece: what it needs
    most for are ids of cells.
    """
    dense, sums = not config.model.blocks, 2 * (trans + cells)
    counting = {key: value for key, value in phases[0].items() if key in ("messages", "tiles")}
    counting |= {"transitions": (4 if dense else 2) * trans, "emissions": 2 * cells, "sums": sums}
    if config.learner.optimiser == "em":
        made = {"transitions": trans, "emissions": (1 if dense else 7) * cells, "sums": sums}
    else:
        made = {**phases[1], "sums": sums + trans}
    return [counting, made]


def _is_factored(params: Any, table: str) -> bool:
    return not isinstance(params, scalar.Settings) and getattr(params, f"factor_{table}", True)


def _networks(params: Any) -> int:
    """How many networks there are."""
    if isinstance(params, mlp.Settings | transformer.Settings):
        return 1 if params.monolithic else 2 + params.destination + (params.start == "network")
    return 3 if isinstance(params, lowrank.Settings) and params.composed else 0


def _network_size(params: Any) -> int:
    width = params.width
    if isinstance(params, transformer.Settings):
        return params.depth * (12 * width**2 + 13 * width) + 2 * width
    return params.layers * (width**2 + width) + 2 * width * params.layer_norm


def _network_flops(params: Any, states: int, kept: int) -> int:
    """Operations of one network, forward only."""
    if isinstance(params, transformer.Settings):
        return params.depth * 2 * states * params.width * (12 * params.width + states)
    return getattr(params, "layers", 2) * 2 * kept * params.width**2


def _network_memory(params: Any, states: int, kept: int) -> int:
    """Numbers that one network keeps for its gradient."""
    if isinstance(params, transformer.Settings):
        return 16 * params.depth * states * params.width
    return (1 + 2 * getattr(params, "layers", 2)) * kept * params.width


def _largest(config: Config, vocab_size: int) -> int:
    """Numbers of the largest parameter, whose update needs as many again, twice."""
    states, blocks, params = config.model.states, config.model.blocks or 1, config.params
    assert states is not None
    trans, emit = _is_factored(params, "trans"), _is_factored(params, "emit")
    width = getattr(params, "width", 0)
    return max(
        states * (width if trans else states),
        vocab_size * (width if emit else states // blocks),
    )
