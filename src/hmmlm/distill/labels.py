"""A state for each token, from what a teacher makes of it (Liu et al. 2022)."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from hmmlm.data.token_array import TokenArray
from hmmlm.distill.kmeans import k_means, nearest
from hmmlm.distill.points import find_axes
from hmmlm.distill.teachers import Teacher, check_teacher, head_of
from hmmlm.errors import InputError, check_least
from hmmlm.storage import new_folder
from hmmlm.support import Support

FORMAT = "hmmlm-states-1"


@dataclass(frozen=True)
class LabelSettings:
    """How the first `tokens` of a text come to their states.

    The teacher reads windows of `length`, `batch_size` at a time. Clusters are those of the first
    `points` tokens, seen in `dim` principal directions (0: as they are), found by k-means with so
    many `iterations` from a `start`.
    """

    tokens: int = 10_000_000
    points: int = 2_000_000
    length: int = 64
    batch_size: int = 256
    dim: int = 0
    iterations: int = 50
    start: str = "k-means++"
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, tokens=1, points=1, length=1, batch_size=1, iterations=1, dim=0)


class StateLabels(NamedTuple):
    """`states` of the first tokens of a text, the `centres` of all states, and how they came to be.

    A state that no token could be given has a centre of NaN. `head` is the teacher's for the words
    of the text, if it has one, in the space of the centres. Where that is of principal directions,
    head . centre lacks head . mean, a number for each word, which is dropped: models have a bias
    for that, which starts with how frequent words are.
    """

    states: Integer[np.ndarray, " N"]
    centres: Float[Tensor, "Z D"]
    about: dict[str, Any]
    head: Float[Tensor, "V D"] | None = None

    def parallel(self, tokens: TokenArray) -> TokenArray:
        """As `_Batches` takes them: parallel to a text, a state and 1, or 0 where none is known."""
        rest = np.broadcast_to(np.zeros(1, dtype=self.states.dtype), len(tokens) - len(self.states))
        return TokenArray([self.states + 1, rest], eos_id=tokens.eos_id)


def find_states(
    teacher: Teacher,
    tokens: TokenArray,
    support: Support,
    settings: LabelSettings,
    *,
    device: torch.device | str = "cpu",
) -> StateLabels:
    """Labels of the head of a text: the cluster of what the teacher makes of each token.

    The states of a block, or all where words have all, are the clusters of the tokens whose words
    are in it. The teacher reads every token once.
    """
    check_teacher(teacher, support.vocab_size)
    if not support.is_partition:
        raise InputError(
            "Words share only a part of their states, so a cluster has no words of its own; use "
            "blocks, or give every word all states."
        )
    number = min(settings.tokens, len(tokens))
    # In whole windows: an encoder makes something else of half of one.
    points = min(max(settings.points // settings.length, 1) * settings.length, number)
    reader, head = _Reader(teacher, tokens, settings), head_of(teacher)
    known = reader.read(0, points)
    axes = None
    if settings.dim:
        axes = find_axes(known, settings.dim, device=device)
        known = torch.cat([axes.apply(part) for part in known.split(1 << 16)])
    rows = support.row_of_word.cpu()
    centres, inertia = _cluster(known, rows[reader.words(0, points)], support, settings, device)
    kind = np.uint16 if support.num_states < 1 << 16 else np.uint32  # a label is a state and 1
    states = np.empty(number, dtype=kind)
    states[:points] = _label(known, rows[reader.words(0, points)], centres, support)
    step = settings.batch_size * settings.length
    for begin in range(points, number, step):
        end = min(begin + step, number)
        part = reader.read(begin, end)
        part = part if axes is None else axes.apply(part)
        states[begin:end] = _label(part, rows[reader.words(begin, end)], centres, support)
    share = {} if axes is None else {"share": axes.share}
    about = {"teacher": teacher.name, "settings": asdict(settings), "inertia": inertia, **share}
    if head is not None:
        head = head[: support.vocab_size]
        head = (head if axes is None else axes.turn(head)).to("cpu", copy=True)
    return StateLabels(states, _by_state(centres, support), about, head)


class _Reader:
    """What a teacher makes of a text, in windows that lie where they lie in training."""

    def __init__(self, teacher: Teacher, tokens: TokenArray, settings: LabelSettings) -> None:
        self.teacher, self.tokens, self.settings = teacher, tokens, settings

    def words(self, begin: int, end: int) -> Int[Tensor, " n"]:
        return torch.from_numpy(np.asarray(self.tokens[begin:end]).astype(np.int64))

    def read(self, begin: int, end: int) -> Float[Tensor, "n D"]:
        """The tokens from `begin` to `end`; a window that begins before is read from there."""
        length, size = self.settings.length, self.settings.batch_size
        first, found = begin // length * length, []
        for start in range(first, end, size * length):
            ids = self.words(start, min(start + size * length, end))
            whole = len(ids) // length * length
            for rows in (ids[:whole].view(-1, length), ids[whole:][None]):
                if rows.numel():
                    found.append(self.teacher.hidden(rows).flatten(0, 1))
        return torch.cat(found)[begin - first :]


def _cluster(
    points: Tensor,
    row_of_point: Int[Tensor, " n"],
    support: Support,
    settings: LabelSettings,
    device: torch.device | str,
) -> tuple[dict[int, Tensor], float]:
    """The centres of each row of the support, and the inertia of all."""
    sizes = (support.rows >= 0).sum(1).tolist()
    generator, centres, inertia = torch.Generator().manual_seed(settings.seed), {}, 0.0
    for row, size in enumerate(sizes):
        mine = points[(row_of_point == row).to(points.device)] if len(sizes) > 1 else points
        if not len(mine):
            continue
        found = k_means(
            mine,
            min(size, len(mine)),
            iterations=settings.iterations,
            start=settings.start,
            precision="tf32" if torch.device(device).type == "cuda" else "float32",
            device=device,
            generator=generator,
        )
        centres[row], inertia = found.centres.to(points.device), inertia + found.inertia
    return centres, inertia


def _label(
    points: Tensor, row_of_point: Int[Tensor, " n"], centres: dict[int, Tensor], support: Support
) -> Int[np.ndarray, " n"]:
    """The state whose centre is nearest, of those of the word's row."""
    states = np.empty(len(points), dtype=np.int64)
    for row in row_of_point.unique().tolist():
        mine = (row_of_point == row).nonzero().flatten()
        ids = support.rows[row].cpu()
        if row not in centres:  # no word of the row was among the points: its first state
            states[mine] = int(ids[0])
            continue
        for some in mine.split(1 << 14):
            places = nearest(points[some.to(points.device)], centres[row])
            states[some] = ids[places.cpu()]
    return states


def _by_state(centres: dict[int, Tensor], support: Support) -> Float[Tensor, "Z D"]:
    width = next(iter(centres.values())).shape[1]
    made = torch.full((support.num_states, width), torch.nan)
    for row, found in centres.items():
        made[support.rows[row, : len(found)].cpu()] = found.cpu()
    return made


def identity(
    teacher: Teacher, corpus: dict[str, Any], support: str, settings: LabelSettings
) -> str:
    """What tells labels from others: whose they are, of which text, and how they were made.

    `support` is what tells the map from words to states from others.
    """
    said = [FORMAT, teacher.name, corpus, support, asdict(settings)]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def write_states(folder: Path, labels: StateLabels, identity: str) -> None:
    """Labels as a folder, whole or not at all."""
    with new_folder(folder) as made:
        np.save(made / "states.npy", labels.states)
        tensors = {"centres": labels.centres}
        tensors |= {} if labels.head is None else {"head": labels.head}
        save_file(tensors, made / "centres.safetensors")
        about = {"format": FORMAT, "identity": identity, **labels.about}
        (made / "about.json").write_text(json.dumps(about, indent=1) + "\n")


def read_states(folder: Path) -> tuple[StateLabels, str]:
    """Labels that were written, and their identity."""
    try:
        about = json.loads((folder / "about.json").read_text())
        found, name = about.pop("format"), about.pop("identity")
        states = np.load(folder / "states.npy", mmap_mode="r", allow_pickle=False)
        tensors = load_file(folder / "centres.safetensors")
        centres = tensors["centres"]
    except FileNotFoundError as error:
        missing = Path(error.filename).name
        raise InputError(f"{folder} has no labels: {missing} is missing.") from None
    except (OSError, ValueError, KeyError, EOFError, SafetensorError):
        raise InputError(f"The labels in {folder} are damaged; make them anew.") from None
    if found != FORMAT:
        raise InputError(
            f"{folder} has the format {found!r} but this version reads {FORMAT!r}; make the labels "
            f"anew."
        )
    return StateLabels(states, centres, about, tensors.get("head")), name
