"""What an experiment runs: the rows of a paper's table, as data."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

KNESER_NEY = "kneser_ney"
BUILTIN = "built-in"
HEAD = "-head"
"""The end of the name of a text that is the head of another."""

TINY = {
    "model.width": "16",
    "model.embedding": "16",
    "model.states_per_word": "4",
    "data.batch_size": "8",
    "data.length": "32",
}
"""What a row has instead where it is only to be seen running."""

TINY_TEACHERS = {"decoder": ("model.context=8",), "awd_lstm": ("model.embedding=16",)}
TINY_DISTILL = ("distill.tokens=2000", "distill.points=1000", "distill.iterations=2")
SLOW = (
    "train.precision",
    "train.learning_rate",
    "train.keep",
    "train.warmup_steps",
    "data.tokens",
    "model.scale",
    "model.dropout_input",
)
"""What it does without: rows that differ in nothing else share a training."""

ALIKE = {
    "train.dropout": "0.5",
    "train.average": "0.999",
    "train.weight_decay": "0.02",
    "train.decay_states": "0.1",
    "train.decay_words": "0.1",
}
"""What it has where it has any of it, for the same reason."""

WHOLE = ("data.tokens", "data.shown", "train.begin_with", "train.frozen")
"""What the head of a text does without."""

BOTH = ("sentence", "streaming")


def digest(said: Any) -> str:
    """A short name for what is said."""
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:10]


@dataclass(frozen=True)
class Teacher:
    """A network of ours, trained on a row's text with `settings`, or a model of Hugging Face's.

    That is in the `folder` of --data. `options` are of the distill table: what of it is heard.
    """

    name: str
    settings: tuple[str, ...] = ()
    folder: str = ""
    options: tuple[str, ...] = ()
    kind: str = "decoder"

    def shrink(self) -> "Teacher":
        heard = tuple(option for option in self.options if "random" in option)
        tiny = ("model.width=16", *TINY_TEACHERS.get(self.kind, ()))
        tiny += ("train.epochs=1", "data.batch_size=4", "data.length=8")
        return Teacher(self.name, tiny, "", heard, self.kind)


@dataclass(frozen=True)
class Drawn:
    """Text that a teacher draws, so many tokens as a stream of sentences, to be read beside the
    row's own.
    """

    teacher: Teacher
    tokens: int

    def shrink(self) -> "Drawn":
        return Drawn(self.teacher.shrink(), 2000)


@dataclass(frozen=True)
class Taught:
    """States that a teacher gives the first tokens; `settings` are of the distill table."""

    teacher: Teacher
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """A training, and what the paper says of it.

    `settings` are those of `hmmlm train --set`, beside the kind, states, blocks, seed and epochs.
    `mode` is the evaluation mode it is trained for, of the `modes` it is read in. It may be
    `taught` the first tokens' states, begin with the layers of another model, and read text that
    another one has `drawn` beside its own: epochs are then of both. Words of `moved` blocks are
    where a smaller model expects them (`hmmlm recluster`). Numbers that the
    paper does not print are None. `text` is what it is trained on instead of the dataset, to be
    seen running. One of many that are compared is not `tested`: only validation text is read.
    """

    name: str
    dataset: str
    kind: str = "mlp"
    states: int | None = None
    blocks: int | None = None
    settings: tuple[str, ...] = ()
    mode: str = "sentence"
    modes: tuple[str, ...] = BOTH
    taught: Taught | None = None
    layers: Teacher | None = None
    drawn: Drawn | None = None
    moved: bool = False
    seed: int = 1111
    epochs: int = 14
    paper_val: float | None = None
    paper_test: float | None = None
    paper_train: float | None = None
    paper_ms: float | None = None
    paper_size: str = ""
    text: str = ""
    tested: bool = True

    def __post_init__(self) -> None:
        named = [setting.partition("=")[0] for setting in self.settings]
        twice = {name for name in named if named.count(name) > 1}
        if twice:
            raise ValueError(f"{self.name} sets {sorted(twice)} twice.")

    @property
    def table(self) -> dict[str, str]:
        return dict(setting.split("=", 1) for setting in self.settings)

    @property
    def changes(self) -> list[str]:
        """All that `hmmlm train` is told by --set, but where its files are."""
        sizes = {"model.states": self.states, "model.blocks": self.blocks}
        named = [f"{key}={value}" for key, value in sizes.items() if value is not None]
        named += [f"train.seed={self.seed}", f"train.epochs={self.epochs}"]
        return [f"model.kind={self.kind}", *named, *self.settings]

    @property
    def run(self) -> str:
        """A name for the training: rows of the same settings, in whatever table, share it."""
        text = self.text or self.dataset
        parts = (self.taught, self.layers, self.drawn)
        heard: list[Any] = [asdict(part) for part in parts if part is not None]
        heard += ["moved"] if self.moved else []
        return f"{text}-{self.kind}-{digest([text, sorted(self.changes), *heard])}"

    @property
    def clusters(self) -> tuple[str, int] | None:
        """The method and the number of the clusters that make its blocks.

        Unless it is like hmm-lm, `<eos>` and `<unk>` have two blocks of their own.
        """
        if not self.blocks:
            return None
        is_like = self.table.get("model.like_hmm_lm") == "true"
        method = "moved" if self.moved else self.table.get("model.cluster_by", "exchange")
        return method, self.blocks if is_like else self.blocks - 2

    def cut(self) -> "Row":
        """The same training on the head of its text, once over, without a teacher's states."""
        kept = tuple(f"{key}={value}" for key, value in self.table.items() if key not in WHOLE)
        text = f"{self.text or self.dataset}{HEAD}"
        return replace(self, text=text, settings=kept, taught=None, drawn=None, epochs=1)

    def shrink(self) -> "Row":
        """The same kind of training in seconds."""
        kept = {key: value for key, value in self.table.items() if key not in SLOW}
        kept |= {key: value for key, value in ALIKE.items() if float(kept.get(key, 0)) > 0}
        needed = {"data.batch_size", "data.length"}
        needed |= set() if self.kind in ("scalar", "pretrained") else {"model.width"}
        needed |= {"model.embedding"} if self.kind in ("awd_lstm", "hmm_rnn") else set()
        kept |= {key: value for key, value in TINY.items() if key in needed or key in kept}
        if "data.shown" in kept:
            kept["data.shown"] = "1000"
        taught = self.taught and Taught(self.taught.teacher.shrink(), TINY_DISTILL)
        return replace(
            self,
            text=BUILTIN,
            taught=taught,
            layers=self.layers and self.layers.shrink(),
            drawn=self.drawn and self.drawn.shrink(),
            states=self.states and 32,
            blocks=self.blocks and 8,
            settings=tuple(f"{key}={value}" for key, value in sorted(kept.items())),
            seed=Row.seed,
            epochs=1,
        )
