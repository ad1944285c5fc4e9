"""How to train: the settings of the loop, and the learning rate of each step."""

import math
from dataclasses import dataclass

from hmmlm.errors import InputError, check_least, check_rates

SCHEDULES = ("cosine", "plateau", "constant", "power")
PRECISIONS = ("float32", "tf32", "bf16")


@dataclass(frozen=True)
class TrainSettings:
    """How to train.

    A step is `accumulate` batches (0: a whole epoch). `weight_decay` holds for all weights, but an
    HMM's embeddings of states may have their own, `decay_states`, and so may what belongs to words,
    `decay_words`.

    The learning rate rises over `warmup_steps`, at most a tenth of all. Then `schedule` says:
    "cosine" lets it fall to `final_rate` times its height; "plateau" divides it by `plateau_factor`
    when more than `plateau_patience` checks in a row have not lowered the best validation value by
    more than `plateau_threshold` (absolute); "power" divides it by the step's number to the power
    of `schedule_power`; "constant" leaves it.

    There are `checks` validations per epoch; after `early_stop` of them without a new best,
    training ends (0: never).

    With `average` > 0 the weights that are evaluated and kept are the exponential average over the
    steps, with that decay. With `average_after` = n > 0 they are the mean over all steps since a
    check was worse than the best of those more than n checks before (NT-ASGD, Merity et al. 2017).

    `precision` "bf16" computes the loss under PyTorch's autocast to bfloat16. "tf32" rounds
    factors (of neural baselines, all products) to the 11 bits that tensor cores read. Weights stay
    in float32, and validation is always in float32.
    """

    epochs: int = 10
    learning_rate: float = 0.7
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.04
    decay_states: float | None = None
    decay_words: float | None = None
    clip: float = 5.0
    accumulate: int = 1
    warmup_steps: int = 20
    schedule: str = "cosine"
    final_rate: float = 0.0
    schedule_power: float = 0.6
    plateau_factor: float = 4.0
    plateau_patience: int = 4
    plateau_threshold: float = 0.0
    average: float = 0.0
    average_after: int = 0
    checks: int = 1
    early_stop: int = 0
    precision: str = "float32"

    def __post_init__(self) -> None:
        check_least(self, epochs=1, accumulate=0, checks=1, warmup_steps=0, early_stop=0)
        check_least(self, weight_decay=0, decay_states=0, decay_words=0, final_rate=0)
        check_least(self, plateau_patience=1, plateau_threshold=0, average_after=0)
        check_rates(self, "beta1", "beta2", "average")
        for name in ("learning_rate", "clip", "schedule_power"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)} but must be more than 0.")
        if self.average > 0 and self.average_after > 0:
            raise InputError(
                f"average is {self.average} and average_after {self.average_after}, but there is "
                f"one average; leave one of them out."
            )
        if not self.plateau_factor > 1:
            raise InputError(f"plateau_factor is {self.plateau_factor} but must be more than 1.")
        for name, offered in (("schedule", SCHEDULES), ("precision", PRECISIONS)):
            if getattr(self, name) not in offered:
                raise InputError(
                    f"{name} is {getattr(self, name)!r} but must be one of {', '.join(offered)}."
                )


def learning_rate(settings: TrainSettings, step: int, steps: int) -> float:
    """The rate of step 1..steps, before a plateau divides it: a linear rise, then the schedule."""
    highest, warm = settings.learning_rate, min(settings.warmup_steps, steps // 10)
    if step <= warm:
        return highest * step / warm
    if settings.schedule == "power":
        return highest * (step - warm) ** -settings.schedule_power
    if settings.schedule != "cosine":
        return highest
    cosine = (1 + math.cos(math.pi * (step - 1 - warm) / (steps - warm))) / 2
    return highest * (settings.final_rate + (1 - settings.final_rate) * cosine)
