"""Recipes by name: what they set, and what stands over them."""

import pytest
from experiments.chiu_rush_2020 import table1
from experiments.lee_berg_kirkpatrick_2025 import table1 as web
from experiments.past import final

from hmmlm.baselines.kinds import NEURAL
from hmmlm.errors import InputError
from hmmlm.train.config import make_config
from hmmlm.train.recipes import RECIPES
from hmmlm.train.tables import override
from result_lines import row_of


@pytest.mark.parametrize("name", RECIPES)
def test_all_that_a_recipe_sets_is_set(name: str) -> None:
    made = make_config({"train": {"recipe": name}}).as_tables()
    for table, settings in RECIPES[name].items():
        assert {key: made[table][key] for key in settings} == settings
    assert "recipe" not in made["train"]
    assert make_config(made).as_tables() == made
    given = {"train": {"recipe": name, "dropout": 0.125}, "model": {"states": 1024}}
    over = make_config(given)
    assert (over.dropout.rate, over.dropout.last, over.model.states) == (0.125, None, 1024)
    assert over.train.learning_rate == RECIPES[name]["train"]["learning_rate"]


def test_they_are_those_of_the_experiments() -> None:
    """Their rows are trained with nothing else."""
    for recipe, row in (
        ("chiu-rush-2020", row_of(table1, "VL-HMM 2^15 (faithful)")),
        ("best", row_of(final, "2^15 states, seed 1111")),
        ("lee-bk-2025", next(row for row in web.ROWS if row.name == "Ablation B (split H)")),
    ):
        theirs = make_config(override({}, row.changes)).as_tables()
        ours = make_config({"train": {"recipe": recipe}}).as_tables()
        for free in ("seed", "epochs", "warmup_steps"):
            theirs["train"].pop(free), ours["train"].pop(free)
        for table in (theirs, ours):
            table["data"].pop("tokens", None)
        assert ours == theirs


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match=r"recipe is 'bets' but must be one of best, .* mean best"):
        make_config({"train": {"recipe": "bets"}})
    with pytest.raises(InputError, match=r"recipe is \['best'\] but must be one of best, "):
        make_config({"train": {"recipe": ["best"]}})
    with pytest.raises(InputError, match=r"whose kind is mlp, but model\.kind is lstm; leave one"):
        make_config({"train": {"recipe": "best"}, "model": {"kind": "lstm"}}, NEURAL)
    with pytest.raises(InputError, match="kind scalar has no embeddings of states"):
        make_config({"model": {"kind": "scalar"}, "train": {"decay_states": 0.1}})


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"train": {"recipe": "best"}, "model": {"states_per_word": 4}},
            r"leave out blocks, .* \(blocks is of recipe best; set it yourself\.\)",
        ),
        (
            {"train": {"recipe": "chiu-rush-2020"}, "model": {"blocks": 0}},
            r"but blocks is 0\. \(like_hmm_lm is of recipe chiu-rush-2020; set it yourself\.\)",
        ),
        (
            {"train": {"recipe": "lee-bk-2025"}, "data": {"layout": "packed"}},
            r"leave reset out\. \(reset is of recipe lee-bk-2025; set it yourself\.\)",
        ),
        (
            {"train": {"recipe": "best", "optimiser": "gem"}},
            r"left out\. \(dropout is of recipe best; set it yourself\.\)",
        ),
        ({"train": {"recipe": "best", "epoch": 3}}, r"Did you mean epochs\?$"),
        ({"train": {"dropout": 0.3, "optimiser": "gem"}}, r"and kept left out\.$"),
    ],
)
def test_what_a_recipe_sets_is_told_apart(tables: dict, message: str) -> None:
    """A user is not told to leave out what they never wrote."""
    with pytest.raises(InputError, match=message):
        make_config(tables)
