"""`hmmlm estimate`: what a training would cost."""

from pathlib import Path
from typing import Annotated

import typer

from hmmlm.cli.clustering import count_blocks
from hmmlm.cli.output import Json, number, print_json, say


def estimate(
    source: Annotated[Path | None, typer.Argument(help="A run.toml; by default no file.")] = None,
    vocab: Annotated[int, number("--vocab", "Words of the vocabulary.", 1)] = 10_000,
    tokens: Annotated[
        int, number("--tokens", "Tokens of the text, for sizes that are not given.")
    ] = 1_000_000,
    set: Annotated[
        list[str] | None,
        typer.Option(help="A setting, such as model.states=4096; may be repeated.", metavar="K=V"),
    ] = None,
    json: Json = False,
) -> None:
    """What a training step would cost: parameters, memory and operations.

    Memory is the most that a step or a validation takes.
    """
    from hmmlm.train.config import make_config
    from hmmlm.train.estimate import estimate as cost_of
    from hmmlm.train.sizes import with_sizes
    from hmmlm.train.tables import override, read_config

    tables = {} if source is None else read_config(source)
    config, reason = with_sizes(make_config(override(tables, set or [])), tokens, vocab)
    model, blocks = config.model, None
    if model.clusters:
        assert model.states is not None
        path = Path(model.clusters)
        blocks = count_blocks(path, model.states, like_hmm_lm=model.like_hmm_lm)
        reason = f" in {blocks:,} blocks"
    elif model.states_per_word:
        assert model.states is not None
        blocks = max(1, model.states // model.states_per_word)  # a word has that share of them
    cost = cost_of(config, vocab, blocks=blocks)
    say(
        f"{config.model.kind}, {config.model.states:,} states{reason}, {cost.kept_states:,} kept; "
        f"{cost.parameters:,} parameters, {cost.tokens:,} tokens a {cost.unit}"
    )
    for name in dict.fromkeys([*cost.memory, *cost.flops]):
        say(
            f"{name:>14}  {cost.memory.get(name, 0) / 1e6:>10,.1f} MB  "
            f"{cost.flops.get(name, 0) / 1e9:>10,.2f} GFLOP"
        )
    memory, flops = cost.total_memory / 1e6, cost.total_flops / 1e9
    say(f"{'in all':>14}  {memory:>10,.1f} MB  {flops:>10,.2f} GFLOP")
    if json:
        print_json(
            {
                "parameters": cost.parameters,
                "unit": cost.unit,
                "tokens": cost.tokens,
                "bytes": cost.total_memory,
                "flops": cost.total_flops,
                "file_bytes": cost.file_bytes,
                "memory": cost.memory,
                "operations": cost.flops,
            }
        )
