"""The settings of each table of a configuration: what a run reads, what it is, and what learns."""

from dataclasses import dataclass
from typing import Any

from hmmlm.errors import InputError, check_least, counted
from hmmlm.evaluate import parse_mode
from hmmlm.train.em import TIES

LAYOUTS = ("packed", "streams", "windows")

BEGINNINGS = ("none", "centres", "head", "both")
"""What `data.states` has for the embeddings of states, of words, or of both."""

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


@dataclass(frozen=True)
class DataSettings:
    """The text, and batches of `batch_size` rows of `length` tokens.

    The text is a `corpus` folder or a file of plain `text`, of which only the first `tokens` are
    read to train (0: all).

    `layout`: "packed" whole sentences, "streams" that go on from batch to batch with the belief
    carried over, or "windows", each a cold start. Streams stay in the order of the text, unless
    `shuffle` reorders its sentences each epoch; the rows of others are drawn anew each epoch. With
    `reset` the chain starts afresh after every `<eos>`; without `reset_at_ends` not after one that
    ends a slice of streams, whose belief is carried as any other (Chiu & Rush's released code).
    With `vary_length` the slices of streams are cut anew each epoch, and the learning rate is in
    proportion to their length. `validation` is how validation text is read; if it is empty, as in
    training. `labels` is a file with what is known of the words' states: `data.labels.read_labels`.
    `states` is a folder with a state for each of the first tokens (`distill.labels`): training
    begins with those, and p(words, states); with `shown` only with the first so many (0: all).
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
    shuffle: bool = False
    validation: str = ""

    def __post_init__(self) -> None:
        check_least(self, batch_size=1, length=1, shown=0, tokens=0)
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
        if self.shuffle and self.layout != "streams":
            raise InputError(
                f"shuffle reorders the sentences of streams but layout is {self.layout}, whose "
                f"rows are drawn anew each epoch anyway; leave it out."
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
    are chosen for the text (`with_sizes`). States are shared among blocks in proportion to the
    tokens of each to the power of `uneven`: equally without. With `states_per_word` there are no
    blocks: every word has so many states, drawn by chance (Chiu & Rush's uniform constraint).
    """

    kind: str = "lowrank"
    states: int | None = None
    blocks: int | None = None
    cluster_by: str = "exchange"
    clusters: str = ""
    like_hmm_lm: bool = False
    uneven: float | None = None
    states_per_word: int | None = None

    def __post_init__(self) -> None:
        check_least(self, states=1, states_per_word=1)
        if self.blocks is not None and (self.blocks < 0 or self.blocks == 1):
            raise InputError(f"blocks is {self.blocks:,} but must be 0 or at least 2.")
        if self.uneven is not None and not 0 <= self.uneven <= 1:
            raise InputError(
                f"uneven is {self.uneven:g} but must lie between 0, the same number of states for "
                f"every block, and 1, in proportion to its tokens."
            )
        is_blocked = self.blocks or self.clusters or self.like_hmm_lm
        if self.states_per_word is not None and is_blocked:
            raise InputError(
                "states_per_word gives every word states by chance, so there are no blocks; leave "
                "out blocks, clusters and like_hmm_lm."
            )
        if self.uneven and (self.blocks == 0 or self.states_per_word is not None):
            raise InputError("uneven says how blocks share the states, but there are no blocks.")
        if self.like_hmm_lm and self.blocks == 0 and not self.clusters:
            raise InputError("like_hmm_lm says how blocks are made, but blocks is 0.")
        if self.blocks and self.states and self.states % self.blocks and not self.uneven:
            fits = max(1, round(self.states / self.blocks)) * self.blocks
            raise InputError(
                f"{counted(self.states, 'state')} cannot be shared equally among {self.blocks:,} "
                f"blocks; use {counted(fits, 'state')}, say."
            )
        if self.uneven and self.blocks and self.states and self.states < self.blocks:
            raise InputError(
                f"{counted(self.states, 'state')} are fewer than {self.blocks:,} blocks, each of "
                f"which needs one; use {counted(self.blocks, 'state')} or more, or fewer blocks."
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
        check_least(self, pseudocount=0, gradient_steps=1)
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
