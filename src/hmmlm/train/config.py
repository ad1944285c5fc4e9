"""The configuration of a run: tables of settings, read from TOML and checked."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hmmlm.data.batches import Packed, Streams, Windows
from hmmlm.data.shards import TokenArray
from hmmlm.errors import InputError, counted
from hmmlm.evaluate import parse_mode
from hmmlm.params import lowrank, mlp, pretrained, scalar, transformer
from hmmlm.train.checkpoint import Saving
from hmmlm.train.distributed import ONE, Ranks
from hmmlm.train.em import TIES
from hmmlm.train.loop import TrainSettings
from hmmlm.train.loss import Dropout
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

_COUNTING = {"accumulate": 0, "schedule": "constant", "warmup_steps": 0, "weight_decay": 0.0}
LEARNING: dict[str, dict[str, Any]] = {
    "adamw": {},
    "sgd": {},
    "em": {"learning_rate": 1.0, "epochs": 30, "pseudocount": 0.01, **_COUNTING},
    "gem": {"epochs": 30, **_COUNTING},
}
"""What an optimiser changes in the recipe of a kind."""

STEPWISE = {"learning_rate": 0.7, "schedule": "power"}
"""What some batches a step change in that of EM: at rate 1 a step would forget all others."""

DESCENT = ("adamw", "sgd")
"""The optimisers that follow the gradient of a loss."""

HMM_TRAIN = (
    "dropout",
    "dropout_last",
    "pseudocount",
    "tie",
    "gradient_steps",
    "start",
    "begin_with",
    "frozen",
)
"""Settings of the train table that are for HMMs alone."""

LAYOUTS = ("packed", "streams", "windows")

BEGINNINGS = ("none", "centres", "head", "both")
"""What `data.states` has for the embeddings of states, of words, or of both."""

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
class DataSettings:
    """The text, and batches of `batch_size` rows of `length` tokens.

    The text is a `corpus` folder or a file of plain `text`, of which only the first `tokens` are
    read to train (0: all).

    `layout`: "packed" whole sentences, "streams" that go on from batch to batch with the belief
    carried over, or "windows", each a cold start. Streams stay in the order of the text, the rows
    of others are drawn anew each epoch. With `reset` the chain starts afresh after every
    `<eos>`; without `reset_at_ends` not after one that ends a slice of streams, whose belief is
    carried as any other (Chiu & Rush's released code). With `vary_length` the slices of streams
    are cut anew each epoch, and the learning rate is in proportion to their length. `validation`
    is how validation text is read; if it is empty, as in training. `labels` is a file with what is
    known of the words' states: `data.labels.read_labels`. `states` is a folder with a state for
    each of the first tokens (`distill.labels`): training begins with those, and p(words, states);
    with `shown` only with the first so many (0: all).
    """

    corpus: str = ""
    text: str = ""
    labels: str = ""
    states: str = ""
    shown: int = 0
    tokens: int = 0
    batch_size: int = 16
    length: int = 64
    layout: str = "packed"
    reset: bool = True
    reset_at_ends: bool = True
    vary_length: bool = False
    validation: str = ""

    def __post_init__(self) -> None:
        for name in ("batch_size", "length"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name):,} but must be at least 1.")
        for name in ("shown", "tokens"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name):,} but must be at least 0.")
        least = self.length if self.layout == "windows" else 1
        if self.shown and not least <= self.shown <= (self.tokens or self.shown):
            raise InputError(
                f"shown is {self.shown:,} but must be at least a window ({least:,}) and at most "
                f"data.tokens ({self.tokens:,}, 0: all)."
            )
        if self.labels and self.tokens:
            raise InputError(
                "labels are those of a whole text but tokens trains on the head of one; cut text "
                "and labels before, or leave tokens out."
            )
        if self.layout not in LAYOUTS:
            raise InputError(f"layout is {self.layout!r} but must be one of {', '.join(LAYOUTS)}.")
        if self.layout == "packed" and not self.reset:
            raise InputError(
                "reset is false but layout packed restarts at each sentence; use layout streams or "
                "windows, or leave reset out."
            )
        if not self.reset_at_ends and not (self.reset and self.layout == "streams"):
            raise InputError(
                f"reset_at_ends is false, which is for streams with reset, but layout is "
                f"{self.layout} and reset {str(self.reset).lower()}; leave it out."
            )
        if self.vary_length and self.layout != "streams":
            raise InputError(
                f"vary_length cuts streams anew but layout is {self.layout}; use layout streams, "
                f"or leave vary_length out."
            )
        if self.states and self.layout == "streams":
            raise InputError(
                "states are those of rows that start cold but layout is streams; use layout packed "
                "or windows."
            )
        if self.validation:
            parse_mode(self.validation)


@dataclass(frozen=True)
class ModelSettings:
    """The HMM: its states, in `blocks` that share them among words (0: every word has all).

    `kind` is the parameterisation; its own settings stand in the same table. `cluster_by` and
    `clusters` (a paths file) say how words come to blocks. States and blocks that are not given
    are chosen for the text (`with_sizes`). With `states_per_word` there are no blocks: every word
    has so many states, drawn by chance (Chiu & Rush's uniform constraint).
    """

    kind: str = "lowrank"
    states: int | None = None
    blocks: int | None = None
    cluster_by: str = "exchange"
    clusters: str = ""
    like_hmm_lm: bool = False
    states_per_word: int | None = None

    def __post_init__(self) -> None:
        if self.states is not None and self.states < 1:
            raise InputError(f"states is {self.states:,} but must be at least 1.")
        if self.blocks is not None and (self.blocks < 0 or self.blocks == 1):
            raise InputError(f"blocks is {self.blocks:,} but must be 0 or at least 2.")
        if self.states_per_word is not None:
            if self.states_per_word < 1:
                raise InputError(
                    f"states_per_word is {self.states_per_word:,} but must be at least 1."
                )
            if self.blocks or self.clusters or self.like_hmm_lm:
                raise InputError(
                    "states_per_word gives every word states by chance, so there are no blocks; "
                    "leave out blocks, clusters and like_hmm_lm."
                )
        if self.like_hmm_lm and self.blocks == 0 and not self.clusters:
            raise InputError("like_hmm_lm says how blocks are made, but blocks is 0.")
        if self.blocks and self.states and self.states % self.blocks:
            fits = max(1, round(self.states / self.blocks)) * self.blocks
            raise InputError(
                f"{counted(self.states, 'state')} cannot be shared equally among {self.blocks:,} "
                f"blocks; use {counted(fits, 'state')}, say."
            )


@dataclass(frozen=True)
class LearnerSettings:
    """What learns: "adamw", "sgd" (plain descent), "em" (tables from expected counts) or "gem"
    (AdamW towards them).

    `pseudocount` and `tie` are those of `em.Em`, `gradient_steps` that of `gem.GeneralisedEm`.
    `start` is a model's folder whose tables training begins with (kind scalar), or a decoder's,
    whose layers do (kind transformer). `begin_with` is what embeddings begin with of that which
    `data.states` has of a teacher: the "centres" of its clusters for states, its "head" for words,
    or "both"; for the first share `frozen` of all steps they stay as they are.
    """

    optimiser: str = "adamw"
    pseudocount: float = 0.0
    tie: str = "none"
    gradient_steps: int = 10
    start: str = ""
    begin_with: str = "none"
    frozen: float = 0.0

    def __post_init__(self) -> None:
        choices = {"optimiser": tuple(LEARNING), "tie": TIES, "begin_with": BEGINNINGS}
        for name, offered in choices.items():
            if getattr(self, name) not in offered:
                raise InputError(
                    f"{name} is {getattr(self, name)!r} but must be one of {', '.join(offered)}."
                )
        if not self.pseudocount >= 0:
            raise InputError(f"pseudocount is {self.pseudocount} but must be at least 0.")
        if self.gradient_steps < 1:
            raise InputError(f"gradient_steps is {self.gradient_steps} but must be at least 1.")
        if not 0 <= self.frozen <= 1:
            raise InputError(f"frozen is {self.frozen} but must be a share, from 0 to 1.")
        if self.frozen and self.begin_with == "none":
            raise InputError(
                f"frozen is {self.frozen} but begin_with is none, so nothing can be frozen; set "
                f"begin_with, or leave frozen out."
            )

    @property
    def is_descent(self) -> bool:
        """Whether it follows the gradient of a loss."""
        return self.optimiser in DESCENT


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
        if self.dropout.last is not None:
            train["dropout_last"] = self.dropout.last
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
    seed: int = 0

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise InputError(f"seed is {self.seed} but must be at least 0.")


def make_config(tables: Mapping[str, Any], others: Mapping[str, Any] | None = None) -> Config:
    """A configuration from tables; what is not named has its default, unknown keys are errors.

    `others` are kinds that are no HMMs, by name: modules with `Settings` and `RECIPES`, which are
    tables by the name of an optimiser, the usual one first.
    """
    for name, table in tables.items():
        if name not in TABLES:
            raise InputError(f"There is no table [{name}]." + nearest(name, TABLES))
        check_table(name, table)
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
        dropout=Dropout(extra.dropout, extra.dropout_last),
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
    elif config.dropout.rate or config.dropout.last:
        raise InputError(
            f"dropout is {config.dropout.rate} but optimiser {name} counts on all states: it must "
            f"be 0, and dropout_last left out."
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
    if train.precision != "float32" and kind == "scalar":
        raise InputError(
            f"precision is {train.precision} but kind scalar has no products to round; leave "
            f"precision out."
        )
    if not train.plateau_threshold >= 0:
        raise InputError(f"plateau_threshold is {train.plateau_threshold} but must be at least 0.")
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


def validation_mode(data: DataSettings) -> str:
    """How to evaluate: as asked for, or so that the model starts cold where it does in training."""
    if data.validation:
        return data.validation
    if data.reset or data.layout == "packed":
        return "sentence"
    return "streaming" if data.layout == "streams" else f"window {data.length}"


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
        vary = config.data.vary_length
        return Streams(tokens, size, length, vary=vary, seed=config.seed, **share)
    layout = Packed if config.data.layout == "packed" else Windows
    return layout(tokens, size, length, seed=config.seed, first=first, **share)
