"""The configuration of a run: tables of settings, read from TOML and checked."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hmmlm.data.batches import Packed, Windows
from hmmlm.data.streams import Streams
from hmmlm.data.token_array import TokenArray
from hmmlm.errors import InputError, check_least
from hmmlm.params import lowrank, mlp, pretrained, scalar, transformer
from hmmlm.train.checkpoint import Saving
from hmmlm.train.distributed import ONE, Ranks
from hmmlm.train.loss import Dropout
from hmmlm.train.recipes import set_by_recipe, with_recipe
from hmmlm.train.schedule import TrainSettings
from hmmlm.train.settings import (
    DESCENT,
    LEARNING,
    STEPWISE,
    DataSettings,
    LearnerSettings,
    ModelSettings,
)
from hmmlm.train.tables import TABLES, check_table, nearest, take

KINDS = {
    "scalar": scalar,
    "lowrank": lowrank,
    "mlp": mlp,
    "transformer": transformer,
    "pretrained": pretrained,
}
"""The parameterisations; each module has `Settings` with `build`."""

RECIPES: dict[str, dict[str, Any]] = {
    "scalar": {"learning_rate": 0.5, "weight_decay": 0.04},
    "lowrank": {"learning_rate": 0.03, "weight_decay": 0.04},
    "mlp": {"learning_rate": 0.01, "weight_decay": 0.04},
    "transformer": {"learning_rate": 0.003, "weight_decay": 0.04},
    "pretrained": {"learning_rate": 0.0003, "weight_decay": 0.04},
}
"""Where to start with each; the first three did well on the demo's text (docs/training.md)."""

HMM_TRAIN = (
    "dropout",
    "dropout_last",
    "kept",
    "decay_states",
    "decay_words",
    "pseudocount",
    "tie",
    "gradient_steps",
    "start",
    "begin_with",
    "frozen",
)
"""Settings of the train table that are for HMMs alone."""

FILES = (
    "data.corpus",
    "data.text",
    "data.labels",
    "data.states",
    "model.clusters",
    "model.checkpoint",
    "train.start",
)
"""The settings that are paths, from the current folder if they are not absolute.

A checkpoint may be a name on a hub instead.
"""


@dataclass(frozen=True)
class Config:
    """All settings of a run."""

    data: DataSettings
    model: ModelSettings
    params: Any  # the Settings of the kind
    train: TrainSettings
    learner: LearnerSettings
    dropout: Dropout
    saving: Saving
    seed: int

    @property
    def is_hmm(self) -> bool:
        return self.model.kind in KINDS

    def as_tables(self) -> dict[str, dict[str, Any]]:
        """The tables that would be read back as this configuration."""
        train = {**dataclasses.asdict(self.train), **dataclasses.asdict(self.learner)}
        train |= dataclasses.asdict(self.saving)
        train |= {"dropout": self.dropout.rate, "seed": self.seed}
        train |= {"dropout_last": self.dropout.last, "kept": self.dropout.most}
        model = dataclasses.asdict(self.model)
        if not self.is_hmm:
            model = {"kind": self.model.kind}
            train = {key: value for key, value in train.items() if key not in HMM_TRAIN}
        model |= dataclasses.asdict(self.params)
        tables = {"data": dataclasses.asdict(self.data), "model": model, "train": train}
        return {  # TOML has no word for nothing
            name: {key: value for key, value in table.items() if value not in (None, "")}
            for name, table in tables.items()
        }


@dataclass(frozen=True)
class _Extra:
    """Settings of the train table that are not the loop's."""

    dropout: float = 0.25
    dropout_last: float | None = None
    kept: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, seed=0)


def make_config(tables: Mapping[str, Any], others: Mapping[str, Any] | None = None) -> Config:
    """A configuration from tables; what is not named has its default, unknown keys are errors.

    `others` are kinds that are no HMMs, by name: modules with `Settings` and `RECIPES`, which are
    tables by the name of an optimiser, the usual one first.
    """
    for name, table in tables.items():
        if name not in TABLES:
            raise InputError(f"There is no table [{name}]." + nearest(name, TABLES))
        check_table(name, table)
    made = with_recipe(tables)
    try:
        return _make_config(made, others)
    except InputError as error:
        found = [
            place
            for place in set_by_recipe(tables)
            if _trouble(with_recipe(tables, without=place), others) != str(error)
        ]
        if not found:
            raise
        keys, are = " and ".join(key for _, key in found), "is" if len(found) == 1 else "are"
        raise InputError(
            f"{error} ({keys} {are} of recipe {tables['train']['recipe']}; set "
            f"{'it' if len(found) == 1 else 'them'} yourself.)"
        ) from error


def _trouble(tables: Mapping[str, Any], others: Mapping[str, Any] | None) -> str:
    """What is wrong with tables."""
    try:
        _make_config(tables, others)
    except InputError as error:
        return str(error)
    return ""


def _make_config(tables: Mapping[str, Any], others: Mapping[str, Any] | None) -> Config:
    data, model, train = (dict(tables.get(name, {})) for name in TABLES)
    kinds = {**KINDS, **(others or {})}
    kind = model.get("kind", ModelSettings.kind)
    if isinstance(kind, str) and kind not in kinds:
        raise InputError(
            f"kind is {kind!r} but must be one of {', '.join(kinds)}."
            + nearest(kind, kinds, otherwise="")
        )
    params = kinds[kind].Settings if isinstance(kind, str) else None
    if params is not None and kind not in KINDS:
        return _other_config(kind, kinds[kind], data, model, train)
    known = [ModelSettings] if params is None else [ModelSettings, params]
    found = [take(cls, model, "model", known) for cls in known]
    known = [TrainSettings, LearnerSettings, Saving, _Extra]
    given = train
    optimiser = train.get("optimiser", LearnerSettings.optimiser)
    train = {**RECIPES[found[0].kind], **LEARNING.get(str(optimiser), {}), **given}
    if optimiser == "em" and train["accumulate"] != 0:
        train = {**train, **STEPWISE, **given}
    if optimiser in ("em", "gem"):
        train.setdefault("dropout", 0.0)
    extra = take(_Extra, train, "train", known)
    config = Config(
        data=take(DataSettings, data, "data", [DataSettings]),
        model=found[0],
        params=found[1],
        train=take(TrainSettings, train, "train", known),
        learner=take(LearnerSettings, train, "train", known),
        dropout=Dropout(extra.dropout, extra.dropout_last, extra.kept),
        saving=take(Saving, train, "train", known),
        seed=extra.seed,
    )
    _check_learner(config)
    return config


def _other_config(
    kind: str, module: Any, data: dict[str, Any], model: dict[str, Any], train: dict[str, Any]
) -> Config:
    """The configuration of a model that is no HMM: settings of HMMs are refused."""
    own = [field.name for field in dataclasses.fields(module.Settings)]
    of_hmms = {field.name for field in dataclasses.fields(ModelSettings)} - {"kind", *own}
    of_beliefs = {"reset_at_ends"} if data.get("reset_at_ends") is False else set()
    of_beliefs |= {"shown"} if data.get("shown") else set()
    refused = {
        "data": {"labels", "states", *of_beliefs},
        "model": of_hmms,
        "train": set(HMM_TRAIN),
    }
    for table, given in (("data", data), ("model", model), ("train", train)):
        for key in sorted(refused[table] & given.keys()):
            drops = [f"model.{name}" for name in own if "drop" in name]
            hint = f"; its own are {', '.join(drops)}" if key.startswith("dropout") else ""
            raise InputError(
                f"{table}.{key} is a setting of HMMs but kind is {kind}; leave it out{hint}."
            )
    usual = next(iter(module.RECIPES))
    optimiser = train.get("optimiser", usual)
    if optimiser not in DESCENT:
        raise InputError(
            f"optimiser is {optimiser!r} but kind {kind} is trained by {' or '.join(DESCENT)}."
        )
    data = {**module.RECIPES[usual]["data"], **data}
    recipe = module.RECIPES.get(optimiser, {"train": {}})["train"]
    train = {"optimiser": optimiser, **recipe, **train}
    named = {key: value for key, value in model.items() if key != "kind"}
    known = [TrainSettings, LearnerSettings, Saving, _Extra]
    return Config(
        data=take(DataSettings, data, "data", [DataSettings]),
        model=ModelSettings(kind=kind),
        params=take(module.Settings, named, "model", [module.Settings]),
        train=take(TrainSettings, train, "train", known),
        learner=take(LearnerSettings, train, "train", known),
        dropout=Dropout(),
        saving=take(Saving, train, "train", known),
        seed=take(_Extra, train, "train", known).seed,
    )


def _check_learner(config: Config) -> None:
    """Refuses settings that do not go together."""
    learner, train, kind = config.learner, config.train, config.model.kind
    name = learner.optimiser
    if name == "em" and kind != "scalar":
        raise InputError(
            f"optimiser em learns tables, so kind must be scalar, not {kind}; use optimiser gem, "
            f"or kind scalar with train.start, a trained model's folder, to polish its tables."
        )
    if learner.start and kind not in ("scalar", "transformer"):
        raise InputError(
            f"train.start gives the tables to begin with, so kind must be scalar, or the layers of "
            f"a decoder for kind transformer; it is {kind}."
        )
    if learner.start and kind == "transformer" and not config.params.monolithic:
        raise InputError(
            "train.start gives one transformer its layers but monolithic is false; leave it out."
        )
    _check_beginning(config)
    if learner.is_descent:
        for setting, ruled_out in (
            ("pseudocount", learner.pseudocount > 0),
            ("labels", bool(config.data.labels)),
        ):
            if ruled_out:
                raise InputError(
                    f"{setting} needs expected counts; use optimiser em or gem, or leave it out."
                )
    elif config.data.states:
        raise InputError(
            f"data.states are learnt by descent but optimiser is {name}; use adamw or sgd, then "
            f"polish the tables with optimiser em and train.start."
        )
    elif config.dropout.rate or config.dropout.last or config.dropout.most:
        raise InputError(
            f"dropout is {config.dropout.rate} but optimiser {name} counts on all states: it must "
            f"be 0, and dropout_last and kept left out."
        )
    elif config.data.layout == "streams":
        raise InputError(
            f"layout is streams but optimiser {name} counts each row of a batch as a text of its "
            f"own: what comes after a row would be missing. Use layout packed or windows."
        )
    elif train.precision != "float32":
        raise InputError(
            f"precision is {train.precision} but optimiser {name} counts in float32 and sums in "
            f"float64; leave precision out."
        )
    if train.precision != "float32" and kind == "scalar" and config.model.blocks:
        raise InputError(
            f"precision is {train.precision} but kind scalar has no products to round in blocks; "
            f"leave precision out, or have dense states (blocks = 0)."
        )
    if train.decay_states is not None and kind == "scalar":
        raise InputError(
            f"decay_states is {train.decay_states} but kind scalar has no embeddings of states; "
            f"use weight_decay, or decay_words for its emissions."
        )
    if learner.tie != "none" and name != "em":
        raise InputError(f"tie is {learner.tie} but only optimiser em ties tables; use em.")
    if train.average > 0 and (name == "em" or (learner.start and kind == "scalar")):
        raise InputError(
            f"average is {train.average} but must be 0: logits of probability zero have no average."
        )
    if name == "em" and train.learning_rate > 1:
        raise InputError(
            f"learning_rate is {train.learning_rate} but that of em is the weight of the new "
            f"tables: at most 1, which is Baum-Welch."
        )


def _check_beginning(config: Config) -> None:
    """Refuses parameterisations without the embeddings that `begin_with` is for."""
    what, kind, params = config.learner.begin_with, config.model.kind, config.params
    if what == "none":
        return
    if kind == "scalar":
        raise InputError(
            f"train.begin_with is {what} but kind scalar has no embeddings; use kind lowrank, mlp "
            f"or transformer."
        )
    if what != "head" and params.composed:
        raise InputError(
            f"train.begin_with is {what} but composed embeddings are shared in part; leave "
            f"composed out."
        )
    if kind != "lowrank" or params.factor_emit:
        return
    if what != "centres" or not (params.factor_init or params.factor_trans):
        raise InputError(
            f"train.begin_with is {what} but factor_emit is false: emissions have no embeddings; "
            f"leave factor_emit out."
        )


def check_known_states(config: Config) -> None:
    """Refuses what is done with the states of a teacher where `data.states` names none."""
    what, shown = config.learner.begin_with, config.data.shown
    if config.data.states:
        return
    if what != "none":
        raise InputError(
            f"train.begin_with is {what} but there are no states of a teacher to take it from; set "
            f"data.states, the folder that hmmlm distill made, or use hmmlm distill."
        )
    if shown:
        raise InputError(
            f"data.shown is {shown:,} but there are no states to show; give data.states too."
        )


def asks_validation(settings: TrainSettings) -> str | None:
    """The first setting that asks for validation text, if there is one."""
    asked = {
        "schedule plateau": settings.schedule == "plateau",
        "early_stop": settings.early_stop > 0,
        "average_after": settings.average_after > 0,
    }
    return next((name for name, is_asked in asked.items() if is_asked), None)


def validation_mode(data: DataSettings) -> str:
    """How to evaluate: as asked for, or so that the model starts cold where it does in training."""
    if data.validation:
        return data.validation
    if data.reset or data.layout == "packed":
        return "sentence"
    return "streaming" if data.layout == "streams" else f"window {data.length}"


def mode_of_training(config: Mapping[str, Any]) -> str | None:
    """How a model that was kept with its `config` is evaluated in training; None if not known."""
    training = config.get("training")
    data = training.get("data") if isinstance(training, Mapping) else None
    if not isinstance(data, Mapping):
        return None
    known = {field.name for field in dataclasses.fields(DataSettings)}
    try:
        return validation_mode(DataSettings(**{key: data[key] for key in known & data.keys()}))
    except (InputError, TypeError):  # another version's
        return None


def make_batches(
    config: Config,
    tokens: TokenArray,
    labels: TokenArray | None = None,
    ranks: Ranks = ONE,
    *,
    first: int = 0,
) -> Packed | Streams | Windows:
    """The batches of a configuration, or this rank's rows of them; `first` is as of `Windows`."""
    size, length = config.data.batch_size, config.data.length
    share: dict[str, Any] = {"labels": labels, "rank": ranks.rank, "ranks": ranks.ranks}
    if config.data.layout == "streams":
        drawn = {"vary": config.data.vary_length, "shuffle": config.data.shuffle}
        return Streams(tokens, size, length, **drawn, seed=config.seed, **share)
    layout = Packed if config.data.layout == "packed" else Windows
    return layout(tokens, size, length, seed=config.seed, first=first, **share)
