"""A step that counts over many batches can be left between two of them, without a trace."""

import copy

import pytest
import torch

from hmmlm.data.batches import Packed
from hmmlm.data.shards import TokenArray
from hmmlm.errors import InputError
from hmmlm.params import lowrank
from hmmlm.params.scalar import Scalar
from hmmlm.support import Support
from hmmlm.train.em import Em
from hmmlm.train.gem import GeneralisedEm
from hmmlm.train.loop import Diverged, Left, State, Training, TrainSettings
from hmmlm.train.loss import HmmLoss
from hmmlm.train.sgd import Sgd

SETTINGS = TrainSettings(
    epochs=4, accumulate=0, schedule="constant", learning_rate=0.5, warmup_steps=0
)


def make(learner: str) -> Training:
    ids = torch.randint(6, (400,), generator=torch.Generator().manual_seed(4)).numpy()
    batches = Packed(TokenArray.from_ids(ids, eos_id=0), 3, 7, seed=1)
    generator, support = torch.Generator().manual_seed(0), Support.dense(6, 4)
    if learner == "em":
        return Training(Em(Scalar(support, generator=generator)), batches, settings=SETTINGS)
    model = lowrank.Settings(width=3).build(support, generator=generator)
    if learner == "gem":
        made = GeneralisedEm(model, settings=SETTINGS, gradient_steps=2)
    else:
        made = Sgd(model, HmmLoss(model, support), SETTINGS)
    return Training(made, batches, settings=SETTINGS, evaluate=lambda model: 1.0)


def weights(training: Training) -> list[torch.Tensor]:
    return [value.clone() for value in training.learner.model.state_dict().values()]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("learner", ["em", "gem"])
@pytest.mark.parametrize("stop", [0, 2])
def test_a_step_that_was_left_is_made_again_from_its_start(learner, stop):
    whole = make(learner)
    truth = [step._replace(tokens_per_second=0) for step in whole]
    before, asked = make(learner), []

    def between() -> bool:
        asked.append(before.state().numbers["position"])
        return before.step == stop and len(asked) % before.group == 5

    before.between = between
    with pytest.raises(Left):
        list(before)
    assert before.step == stop and before.group > 5
    assert asked[-1] == asked[-4]  # what is saved in the middle is the start of the step
    state = State(*copy.deepcopy(before.state()))
    after = make(learner)
    after.restore(state)
    rest = [step._replace(tokens_per_second=0) for step in after]
    assert rest == truth[stop:]
    assert same(weights(after), weights(whole))
    # And so does the training itself, once nobody asks any more.
    before.between = None
    assert [step._replace(tokens_per_second=0) for step in before] == truth[stop:]


def test_gradients_are_not_left_in_the_middle():
    training = make("sgd")
    training.between = lambda: True
    assert len(list(training)) == 4


def test_a_model_that_rules_the_text_out_ends_as_its_best():
    training = make("em")
    seen: list[list[torch.Tensor]] = []

    def evaluate(model: torch.nn.Module) -> float:
        seen.append(weights(training))
        if len(seen) == 2:
            with torch.no_grad():
                model.emit_logits[3] = -torch.inf  # pyright: ignore
        return float(len(seen))

    training.evaluate = evaluate
    with pytest.raises(Diverged, match=r"the model gives probability zero to [0-9]+ of the rows"):
        list(training)
    assert training.step == 2 and same(weights(training), seen[0])
    assert issubclass(Diverged, InputError)
