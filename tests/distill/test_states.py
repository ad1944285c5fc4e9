"""States for tokens, from a teacher whose mind is known."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from hmmlm.data.shards import TokenArray
from hmmlm.distill.labels import (
    LabelSettings,
    find_states,
    identity,
    read_states,
    write_states,
)
from hmmlm.errors import InputError
from hmmlm.support import Support

SMALL = LabelSettings(tokens=90, points=60, length=5, batch_size=3)


class Groups:
    """A teacher that thinks of the kind of a word, of the word before it, and a little noise."""

    name, vocab_size = "groups", 6

    def __init__(self) -> None:
        self.read: list[int] = []

    def hidden(self, tokens: Tensor) -> Tensor:
        self.read.append(tokens.numel())
        before = torch.nn.functional.pad(tokens, (1, 0), value=0)[:, :-1]
        known = torch.stack([tokens % 3, before % 2, tokens * 0], 2).float() * 10
        return known + 0.01 * torch.sin(tokens.float() * 7)[:, :, None]


def text(number: int = 100) -> TokenArray:
    ids = torch.randint(6, (number,), generator=torch.Generator().manual_seed(0))
    return TokenArray.from_ids(ids.tolist(), eos_id=0)


def kinds(tokens: TokenArray, number: int, length: int) -> list[tuple[int, int]]:
    """What the teacher tells apart: a window starts cold."""
    ids = np.asarray(tokens[0:number])
    before = [0 if n % length == 0 else int(ids[n - 1]) for n in range(number)]
    return [(int(one) % 3, other % 2) for one, other in zip(ids, before, strict=True)]


@pytest.mark.parametrize("dim", [0, 2])
def test_tokens_that_a_teacher_takes_for_alike_share_a_state(dim: int) -> None:
    teacher, tokens = Groups(), text()
    found = find_states(teacher, tokens, Support.dense(6, 6), replace(SMALL, dim=dim))
    assert len(found.states) == 90 and found.states.dtype == np.uint16
    state_of = {}
    for kind, state in zip(kinds(tokens, 90, 5), found.states.tolist(), strict=True):
        assert state_of.setdefault(kind, state) == state
    assert len(set(state_of.values())) == len(state_of) == 6
    assert found.centres.shape == (6, dim or 3) and torch.isfinite(found.centres).all()
    assert sum(teacher.read) == 90 and max(teacher.read) == 15
    assert ("share" in found.about) == bool(dim) and found.about["teacher"] == "groups"


def test_states_of_a_word_are_those_of_its_block() -> None:
    support = Support.from_clusters([0, 0, 1, 1, 2, 2], [3, 4, 2])
    tokens = text()
    found = find_states(Groups(), tokens, support, SMALL)
    for word, state in zip(np.asarray(tokens[0:90]).tolist(), found.states.tolist(), strict=True):
        assert state in support.rows[support.row_of_word[word]].tolist()
    assert len(set(found.states.tolist())) > 6  # a block tells some of its tokens apart


def test_blocks_with_few_points_leave_states_without_tokens() -> None:
    support = Support.from_clusters([0, 0, 0, 0, 0, 1], [2, 9])
    ids = [1, 2, 3, 4, 0] * 6 + [5, 5] + [1, 2, 5]
    tokens = TokenArray.from_ids(ids, eos_id=0)
    found = find_states(Groups(), tokens, support, replace(SMALL, points=30))
    assert set(found.states[[30, 31, 34]].tolist()) == {2}  # no point: the first of the block
    assert torch.isnan(found.centres[2:]).all() and torch.isfinite(found.centres[:2]).all()
    more = find_states(Groups(), tokens, support, replace(SMALL, points=35))
    assert not torch.isnan(more.centres[2]).any() and torch.isnan(more.centres[-1]).all()


def test_labels_lie_along_the_text() -> None:
    tokens = text()
    found = find_states(Groups(), tokens, Support.dense(6, 4), SMALL)
    along = found.parallel(tokens)
    assert len(along) == 100
    assert (np.asarray(along[0:90]) == found.states.astype(int) + 1).all()
    assert not np.asarray(along[90:100]).any()


def test_a_folder_keeps_them(tmp_path: Path) -> None:
    support, tokens = Support.dense(6, 4), text()
    found = find_states(Groups(), tokens, support, SMALL)
    name = identity(Groups(), {"hash": "x"}, "dense", SMALL)
    write_states(tmp_path / "kept", found, name)
    held, known = read_states(tmp_path / "kept")
    assert known == name and held.about == found.about
    assert np.array_equal(held.states, found.states)
    torch.testing.assert_close(held.centres, found.centres)
    others = [
        identity(Groups(), {"hash": "y"}, "dense", SMALL),
        identity(Groups(), {"hash": "x"}, "blocks", SMALL),
        identity(Groups(), {"hash": "x"}, "dense", replace(SMALL, seed=1)),
    ]
    assert len({name, *others}) == 4


def test_folders_that_are_none(tmp_path: Path) -> None:
    found = find_states(Groups(), text(), Support.dense(6, 4), SMALL)
    with pytest.raises(InputError, match=r"has no labels: about.json is missing"):
        read_states(tmp_path)
    for number, (name, content) in enumerate(
        [("about.json", "{"), ("states.npy", "x"), ("centres.safetensors", "x")]
    ):
        folder = tmp_path / str(number)
        write_states(folder, found, "id")
        (folder / name).write_text(content)
        with pytest.raises(InputError, match="are damaged; make them anew"):
            read_states(folder)
    about = tmp_path / "other"
    write_states(about, found, "id")
    (about / "about.json").write_text('{"format": "new", "identity": ""}')
    with pytest.raises(InputError, match="has the format 'new' but this version reads 'hmmlm-sta"):
        read_states(about)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": 0}, "tokens is 0 but must be at least 1"),
        ({"length": 0}, "length is 0 but must be at least 1"),
        ({"dim": -1}, "dim is -1 but must be at least 0"),
    ],
)
def test_settings_that_cannot_be(change: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(SMALL, **change)


def test_supports_that_have_no_clusters_are_refused() -> None:
    with pytest.raises(InputError, match="share only a part of their states, so a cluster has no"):
        find_states(Groups(), text(), Support.uniform(6, 5, 2, torch.Generator()), SMALL)
    with pytest.raises(InputError, match="knows 6 ids but the text has 7"):
        find_states(Groups(), text(), Support.dense(7, 4), SMALL)
