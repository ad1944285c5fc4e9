"""What a training step costs: numbers of parameters, bytes and floating-point operations."""

import math
from typing import Any, NamedTuple

from hmmlm.evaluate import BATCH_TOKENS, CHECKED_CELLS, CHECKED_ROWS
from hmmlm.inference.recursion import SUMMED, TILED
from hmmlm.ops.links import RESIDENT
from hmmlm.ops.normaliser import KEPT
from hmmlm.params import lowrank, mlp, pretrained, scalar, transformer
from hmmlm.train.config import Config

LOST = 1.12
"""What a process takes for each byte asked for, as measured: some is lost between allocations."""

SENTENCE = 20
"""Tokens of a sentence, as validation is taken to read them."""


class Estimate(NamedTuple):
    """`memory` names the parts of the peak in bytes; `flops` those of a step's operations.

    `file_bytes` is the size of the tables of the model's file. `unit` is "step", or "batch" where
    a step takes those of a whole epoch: then `tokens` and `flops` are those of one batch.
    """

    parameters: int
    file_bytes: int
    unit: str
    tokens: int
    kept_states: int
    memory: dict[str, int]
    flops: dict[str, int]

    @property
    def total_memory(self) -> int:
        return sum(self.memory.values())

    @property
    def total_flops(self) -> int:
        return sum(self.flops.values())


def estimate(
    config: Config,
    vocab_size: int,
    *,
    blocks: int | None = None,
    each: int | None = None,
    validation: bool = True,
) -> Estimate:
    """The cost of a training step of a configuration with its sizes, on a CPU in float32.

    Memory is the largest amount held at one time beyond the libraries: while counts are summed,
    while the gradient flows back, in the optimiser's update, or in validation, which uses all
    states. Operations are those of the matrix products, the gradient included. Where dropout
    changes, the step is the one that keeps the most states. `blocks` is the number of those that
    a file of clusters makes; where words have states by chance, it is as if those were blocks.
    `each` is how many states the largest has, if not all have as many.
    """
    states, params, train = config.model.states, config.params, config.train
    assert states is not None
    blocks = blocks or _blocks(config)
    width = getattr(params, "width", 0)
    rate = min(config.dropout.at(done, states, blocks) for done in (0.0, 1.0))
    each = each or states // blocks
    kept = math.ceil(each * (1 - rate) - 1e-9)  # states of a word
    # Of blocks that are not alike a step keeps no more than its share of each, rounded up.
    total = min(kept * blocks, math.ceil(states * (1 - rate) - 1e-9) + blocks, states)
    cells = vocab_size * kept
    tokens = config.data.batch_size * config.data.length
    parameters = count_parameters(config, vocab_size, blocks, each)
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
        resident = dense and total**2 <= RESIDENT
        counting["transitions"] += probs + 2 * total * width + 5 * resident * total**2
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
        products = factored and config.learner.is_descent  # EM counts with one table
        different = _tiles(
            config.data.batch_size, tokens, blocks, kept, width if products else total
        )
        counting["tiles"] = different * kept * (3 * kept + (4 * width if products else 0))
        if products:
            flops["tiles"] = 10 * tokens * kept**2 * width
    back["gradients"] = parameters // 2  # those of embeddings come last
    if train.accumulate != 1 and config.learner.is_descent:
        counting["gradients"] = parameters  # those of the batches before
        back["gradients"] += parameters
    update = {"gradients": parameters, "update": 2 * _largest(config, vocab_size, each)}
    copies = 2 + (train.average > 0 or train.average_after > 0)  # weights, the best; the average
    phases = [counting, back, update]
    batches, gradients = max(1, train.accumulate), parameters
    times = batches  # that tables are made
    if config.learner.is_descent:
        copies += 2 * (config.learner.optimiser == "adamw")  # moments
    else:
        phases = _counted(config, phases, total**2, cells, dense)
        times, gradients = config.learner.gradient_steps, 0
    flops = {name: (batches if name == "recursion" else times) * n for name, n in flops.items()}
    tried = config.learner.is_descent  # before the first check: those of the last step
    phases = [{"weights": (copies + tried) * parameters, **phase} for phase in phases]
    if validation:
        weights = {"weights": copies * parameters, "gradients": gradients}
        phases += [{**weights, **phase} for phase in _validation(config, vocab_size, blocks, each)]
    peak = max(phases, key=lambda phase: sum(phase.values()))
    memory = {name: round(4 * LOST * numbers) for name, numbers in peak.items() if numbers}
    table = states * (2 * width + 1) if factored else states**2
    file_bytes = 4 * (states + table + vocab_size * each)
    unit = "step" if train.accumulate else "batch"
    return Estimate(parameters, file_bytes, unit, batches * tokens, total, memory, flops)


def network_memory(config: Config, parameters: int, vocab_size: int) -> dict[str, int]:
    """Bytes that training a network takes at least: its numbers, and those of a batch's words."""
    train, tokens = config.train, config.data.batch_size * config.data.length
    copies = 2 + (train.average > 0 or train.average_after > 0)  # weights, the best; the average
    copies += 2 * (config.learner.optimiser == "adamw")  # moments
    each = getattr(config.params, "states", None) or tokens  # of states words have a table, no more
    words = 2 * each * vocab_size  # log-probabilities, and the gradient of them
    numbers = {"weights": copies * parameters, "gradients": parameters, "words": words}
    return {name: 4 * number for name, number in numbers.items()}


def count_parameters(
    config: Config, vocab_size: int, blocks: int | None = None, each: int | None = None
) -> int:
    """How many numbers are learnt; `blocks` and `each` as in `estimate`."""
    states, params = config.model.states, config.params
    assert states is not None
    blocks = blocks or _blocks(config)
    each = each or states // blocks
    if isinstance(params, scalar.Settings):
        return states + states**2 + vocab_size * each
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
        return count + (words if params.factor_emit else vocab_size * each)
    roles = 2 + params.destination + (params.start == "network")
    tables = 3 + (params.start == "network") if params.split else 1
    networks = 1 if params.monolithic else roles
    heads = roles if params.monolithic and not params.split else 0
    count = tables * table + networks * (_network_size(params) + params.composed * residual)
    count += residual if params.composed and not params.destination else 0
    return count + heads * (width**2 + width) + width + 1 + words


def _blocks(config: Config) -> int:
    model = config.model
    assert model.states is not None
    if model.states_per_word:
        return max(1, model.states // model.states_per_word)
    return model.blocks or 1


def scoring_memory(
    config: Config, vocab_size: int, *, blocks: int | None = None, each: int | None = None
) -> int:
    """The most bytes held while the tables of all states are checked and text is scored."""
    states, blocks = config.model.states, blocks or _blocks(config)
    assert states is not None
    _, *phases = _validation(config, vocab_size, blocks, each or states // blocks)
    return round(4 * LOST * max(sum(phase.values()) for phase in phases))


def _validation(config: Config, vocab_size: int, blocks: int, each: int) -> list[dict[str, int]]:
    """The phases of a validation, on all states without gradients: making, checking, scoring."""
    states, params = config.model.states, config.params
    assert states is not None
    width, networks = getattr(params, "width", 0), _networks(params)
    factored, dense = _is_factored(params, "trans"), blocks == 1
    cells, rows = vocab_size * each, BATCH_TOKENS // SENTENCE
    table = (2 * states * width if networks else 0) if factored else states**2
    making = {"networks": 8 * states * width if networks else 0, "transitions": table}
    making["emissions"] = (2 if dense else 6) * cells
    # Numbers in float64 and ids count twice.
    checking = {"transitions": table, "emissions": cells}
    checking["checks"] = 6 * max(min(cells, CHECKED_CELLS), min(states, CHECKED_ROWS) * states)
    scoring = {"transitions": table, "emissions": cells, "messages": 7 * rows * each}
    if dense and (not factored or states**2 <= RESIDENT):
        scoring["transitions"] += (1 + factored) * states**2
    elif not dense:
        different = _tiles(rows, BATCH_TOKENS, blocks, each, width if factored else states)
        scoring["tiles"] = different * each * (2 * each + 2 * max(width, each) + 8)
    return [making, checking, scoring]


def _tiles(rows: int, tokens: int, blocks: int, each: int, factors: int) -> int:
    """How many different tiles a stretch of words has, if these are drawn at random."""
    made = min(SUMMED, TILED // (each * (each + min(2 * factors, 1024))))
    together = min(tokens, max(rows, made))  # tokens of a stretch
    return round(blocks**2 * (1 - math.exp(-together / blocks**2)))


def _counted(
    config: Config, phases: list[dict[str, int]], trans: int, cells: int, dense: bool
) -> list[dict[str, int]]:
    """The phases of a step of EM: counts of tables without gradients, then the M-step.

    Sums are in float64, two of our numbers each. EM writes its tables piece by piece: what it needs
    most for are ids of cells.
    """
    sums = 2 * (trans + cells)
    counting = {key: value for key, value in phases[0].items() if key in ("messages", "tiles")}
    counting |= {"transitions": (4 if dense else 2) * trans, "emissions": 2 * cells, "sums": sums}
    if config.learner.optimiser == "em":
        made = {"transitions": trans, "emissions": (1 if dense else 7) * cells, "sums": sums}
    else:
        sums += 0 if _is_factored(config.params, "trans") else trans
        kept = 3 * phases[2]["gradients"]  # the weights before, two moments
        made = {**phases[1], "sums": sums, "update": kept}
    return [counting, made]


def _is_factored(params: Any, table: str) -> bool:
    return not isinstance(params, scalar.Settings) and getattr(params, f"factor_{table}", True)


def _networks(params: Any) -> int:
    """How many networks there are."""
    if isinstance(params, mlp.Settings | transformer.Settings | pretrained.Settings):
        return 1 if params.monolithic else 2 + params.destination + (params.start == "network")
    return 3 if isinstance(params, lowrank.Settings) and params.composed else 0


def _network_size(params: Any) -> int:
    width = params.width
    if isinstance(params, pretrained.Settings):
        return params.shape.size
    if isinstance(params, transformer.Settings):
        return params.depth * (12 * width**2 + 13 * width) + 2 * width
    return params.layers * (width**2 + width) + 2 * width * params.layer_norm


def _network_flops(params: Any, states: int, kept: int) -> int:
    """Operations of one network, forward only."""
    if isinstance(params, pretrained.Settings):
        shape = params.shape
        return 2 * states * (shape.size + shape.depth * shape.width * states)
    if isinstance(params, transformer.Settings):
        return params.depth * 2 * states * params.width * (12 * params.width + states)
    return getattr(params, "layers", 2) * 2 * kept * params.width**2


def _network_memory(params: Any, states: int, kept: int) -> int:
    """Numbers that one network keeps for its gradient."""
    if isinstance(params, pretrained.Settings):
        return 4 * params.shape.passed * states // 3  # a third of it for norms and rotations
    if isinstance(params, transformer.Settings):
        return 16 * params.depth * states * params.width
    return (1 + 2 * getattr(params, "layers", 2)) * kept * params.width


def _largest(config: Config, vocab_size: int, each: int) -> int:
    """Numbers of the largest parameter, whose update needs as many again, twice."""
    states, params = config.model.states, config.params
    assert states is not None
    trans, emit = _is_factored(params, "trans"), _is_factored(params, "emit")
    width = getattr(params, "width", 0)
    return max(
        states * (width if trans else states),
        vocab_size * (width if emit else each),
        params.shape.largest if isinstance(params, pretrained.Settings) else 0,
    )
