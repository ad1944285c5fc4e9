"""Batches that are made before they are used: nobody can tell, but for the time it takes."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hmmlm.data.batches import Batch, Windows
from hmmlm.data.shards import TokenArray
from hmmlm.train.loop import Step, Training, TrainSettings
from hmmlm.train.stream import Stream


class Peeking:
    """A learner that remembers its batches, and looks at the next one in every step."""

    can_be_left = False
    peek: Callable[[], Batch | None] | None = None

    def __init__(self) -> None:
        self.model, self.seen, self.peeked = nn.Linear(1, 1), [], []

    def step(self, batches: Iterable[Batch], rate: float, done: float) -> Step:
        (batch,) = batches
        self.seen.append(batch.tokens.tolist())
        assert self.peek is not None
        following = self.peek()
        self.peeked.append(None if following is None else following.tokens.tolist())
        return Step(1.0, batch.num_tokens, 0.0)

    def state(self) -> dict[str, Tensor]:
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None: ...


class Text(TokenArray):
    """Tokens that cannot be read from some place on."""

    def __init__(self, ends: int = 1000) -> None:
        super().__init__([np.arange(35)], eos_id=0)
        self.ends = ends

    def __len__(self) -> int:
        return 35

    def __getitem__(self, place: slice) -> np.ndarray:
        if place.start >= self.ends:
            raise OSError("the disk is gone")
        return np.arange(35)[place]


def make_batches(ends: int = 1000) -> Windows:
    return Windows(Text(ends), 2, 5, shuffle=ends == 1000)  # four batches an epoch


def make(batches: Windows, epochs: int = 3) -> tuple[Training, Peeking]:
    learner = Peeking()
    return Training(learner, batches, settings=TrainSettings(epochs=epochs)), learner


def test_the_position_is_that_of_what_was_taken() -> None:
    batches, plain = make_batches(), make_batches()
    stream, other = Stream(batches), Stream(plain)
    for _ in range(10):
        peeked = stream.peek()
        assert stream.peek() is peeked and peeked is not None
        assert stream.position == other.position
        assert next(stream) is peeked
        assert torch.equal(peeked.tokens, next(other).tokens)
        assert stream.position == other.position == plain.position
    stream.peek()
    assert batches.position != plain.position
    stream.put_back()
    assert batches.position == plain.position == stream.position
    stream.put_back()
    assert batches.position == plain.position


def test_a_batch_that_cannot_be_made_is_told_when_it_is_due() -> None:
    training, learner = make(make_batches(10))
    with pytest.raises(OSError, match="the disk is gone"):
        for _ in training:
            pass
    assert len(learner.seen) == training.step == 1 and learner.peeked == [None]


def test_a_learner_sees_the_next_batch_and_no_other() -> None:
    batches, plain = make_batches(), Stream(make_batches())
    training, learner = make(batches)
    for _ in training:
        pass
    wanted = [next(plain).tokens.tolist() for _ in range(12)]
    assert learner.seen == wanted and learner.peeked == [*wanted[1:], None]
    assert batches.position == plain.position and learner.peek is None


@pytest.mark.parametrize("stop", [1, 3, 4, 5, 11])
@pytest.mark.parametrize("again", [False, True])
def test_going_on_sees_what_is_left(stop: int, again: bool) -> None:
    whole, all_of_it = make(make_batches())
    for _ in whole:
        pass
    batches = make_batches()
    training, first = make(batches)
    for progress in training:
        if progress.step == stop:
            state = training.state()
            break
    second = first
    if not again:
        training, second = make(make_batches())
        training.restore(state)
    for _ in training:
        pass
    seen = second.seen if again else first.seen + second.seen
    assert seen == all_of_it.seen
