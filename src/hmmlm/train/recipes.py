"""Settings that go together: what `train.recipe` names. What is set by hand stands over them."""

from collections.abc import Mapping
from typing import Any

from hmmlm.errors import InputError
from hmmlm.train.tables import nearest

_BLOCKS = {"kind": "mlp", "states": 32768, "blocks": 128, "width": 256}

RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "best": {
        "data": {"batch_size": 8, "length": 64, "layout": "packed"},
        "model": {**_BLOCKS, "cluster_by": "exchange", "uneven": 0.5, "scale": 0.2},
        "train": {
            "epochs": 14,
            "learning_rate": 0.005,
            "weight_decay": 0.02,
            "dropout": 0.5,
            "dropout_last": 0.1,
            "average": 0.9998,
            "schedule": "cosine",
            "checks": 2,
            "precision": "bf16",
        },
    },
    "chiu-rush-2020": {
        "data": {
            "batch_size": 16,
            "length": 32,
            "layout": "streams",
            "reset": True,
            "reset_at_ends": False,
            "shuffle": True,
            "validation": "streaming",
        },
        "model": {**_BLOCKS, "cluster_by": "brown", "like_hmm_lm": True, "scale": 1.0},
        "train": {
            "epochs": 50,
            "learning_rate": 0.01,
            "weight_decay": 0.0,
            "warmup_steps": 0,
            "clip": 5.0,
            "dropout": 0.5,
            "schedule": "plateau",
            "plateau_factor": 4.0,
            "plateau_patience": 4,
            "checks": 4,
            "precision": "bf16",
        },
    },
    "lee-bk-2025": {
        "data": {"batch_size": 200, "length": 64, "layout": "windows", "reset": False},
        "model": {"kind": "lowrank", "states": 512, "blocks": 0, "width": 256},
        "train": {
            "epochs": 1,
            "learning_rate": 0.03,
            "beta2": 0.95,
            "weight_decay": 0.1,
            "clip": 1.0,
            "warmup_steps": 2000,  # at most a tenth of all
            "final_rate": 0.1,
            "dropout": 0.0,
            "precision": "bf16",
        },
    },
}
"""By name, tables of a configuration.

"best" is what was measured to be the best on PTB at 2^15 states, the other two the papers' own (the
second without its teacher).
"""


def with_recipe(
    tables: Mapping[str, Mapping[str, Any]], *, without: tuple[str, str] = ("", "")
) -> dict[str, dict[str, Any]]:
    """The tables with what `train.recipe` sets, where nothing is set, in its place.

    But for one of its settings, if `without` names its table and key.
    """
    made = {name: dict(table) for name, table in tables.items()}
    if "recipe" not in made.get("train", {}):
        return made
    name = made["train"].pop("recipe")
    if not isinstance(name, str) or name not in RECIPES:
        raise InputError(
            f"train.recipe is {name!r} but must be one of {', '.join(RECIPES)}."
            + nearest(str(name), RECIPES, otherwise="")
        )
    recipe = RECIPES[name]
    kind = made.get("model", {}).get("kind", recipe["model"]["kind"])
    if kind != recipe["model"]["kind"]:
        raise InputError(
            f"train.recipe is {name}, whose kind is {recipe['model']['kind']}, but model.kind is "
            f"{kind}; leave one of them out."
        )
    recipe = {
        table: {key: value for key, value in settings.items() if (table, key) != without}
        for table, settings in recipe.items()
    }
    if "dropout" in made.get("train", {}):
        recipe["train"].pop("dropout_last", None)  # where it ends goes with where it begins
    return {table: {**recipe.get(table, {}), **made.get(table, {})} for table in {**recipe, **made}}


def set_by_recipe(tables: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Table and key of what the recipe of tables sets and they do not, but for the kind."""
    recipe = RECIPES.get(tables.get("train", {}).get("recipe", ""), {})
    return [
        (table, key)
        for table, settings in recipe.items()
        for key in settings
        if key not in tables.get(table, {}) and key != "kind"
    ]
