"""A corpus of text that is drawn from a teacher, batch by batch; it goes on after a stop."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float

from hmmlm import __version__
from hmmlm.data.corpus import SPLITS
from hmmlm.data.shards import (
    Corpus,
    ShardWriter,
    check_vocabulary,
    hash_file,
    write_index,
)
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.data.unfinished import KeptFile, Unfinished, shard_files
from hmmlm.distill.drawing import DrawnText
from hmmlm.errors import InputError, check_least, counted
from hmmlm.storage import work_folder

HELD_OUT = SPLITS[1:]
"""The splits for which the teacher's log p of each token is kept."""

MARGIN = 1.02

_NUMBER = np.dtype("<f4")
_CHUNK = 1 << 22
_NOTHING = {"written": None, "marks": 0, "drawn": 0, "copied": 0}


@runtime_checkable
class TextSource(Protocol):
    """Whom text is drawn from.

    A text is over after any of `end_ids`, and `signature` is another where the model is another.
    """

    tokenizer: Tokenizer
    name: str
    signature: list[Any]
    end_ids: list[int]

    @property
    def device(self) -> torch.device: ...

    @property
    def max_length(self) -> int | None: ...

    def draw(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        length: int,
        temperature: float,
        generator: torch.Generator,
    ) -> list[DrawnText]: ...


@dataclass(frozen=True)
class SampleSettings:
    """At least `tokens` to train on, and so many held out for `valid` and `test`; 0 leaves one out.

    Texts have at most `length` tokens, and `batch_size` of them are drawn side by side.
    """

    tokens: int
    valid: int
    test: int
    batch_size: int = 64
    length: int = 256
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, tokens=1, batch_size=1, length=1, valid=0, test=0, seed=0)
        if not 0 < self.temperature < float("inf"):
            raise InputError(f"temperature is {self.temperature:g} but must be above 0.")

    @property
    def sizes(self) -> dict[str, int]:
        """The tokens of each split that is asked for."""
        asked = zip(SPLITS, (self.tokens, self.valid, self.test), strict=True)
        return {name: size for name, size in asked if size}


def sample_corpus(
    out: str | os.PathLike[str],
    teacher: TextSource,
    settings: SampleSettings,
    *,
    prompts: Sequence[str] = (),
    beside: Corpus | None = None,
    progress: Callable[[int, int], None] | None = None,
    notice: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Draws texts into a new corpus with the teacher's tokenizer, and returns what is in it.

    Every text ends in the corpus' `<eos>`. One that the teacher did not end so gets it as a mark,
    which is not drawn; `drawn` counts the tokens that were. Texts begin with one of the `prompts`
    in turn, if there are any; what comes before an end token in a prompt, such as another speaker's
    turn, is read but not written.
    With a corpus `beside`, its training text comes first, which drawn text follows, and its other
    splits are taken whole: settings ask for no held-out tokens then.
    `teacher-valid.npy` and `teacher-test.npy` have the teacher's log p of each token, NaN where
    it was not drawn, and `teacher.json` says whose they are.

    Batches are drawn from generators of their own and kept one by one, so that the same call goes
    on after a stop, with the same bytes as never having stopped. `progress(tokens, of how many)`
    hears of each, and `notice` of what was there. Memory: the teacher, and a batch.
    """
    if teacher.max_length is not None and settings.length > teacher.max_length:
        raise InputError(
            f"length is {settings.length:,} but the teacher {teacher.name} reads at most "
            f"{teacher.max_length:,} tokens; draw shorter texts."
        )
    if not teacher.end_ids and (settings.valid or settings.test):
        raise InputError(
            f"Texts of {teacher.name} go on after their ends, and their log p is not that of "
            f"sentences; draw no held-out text (valid and test 0), or draw beside a corpus."
        )
    if beside is not None:
        check_vocabulary(beside, teacher.tokenizer)
        if settings.valid or settings.test:
            raise InputError(
                f"valid is {settings.valid:,} and test {settings.test:,}, but held-out text is "
                f"that of {beside.folder}; ask for none."
            )
    begun = _encode(prompts, teacher, settings.length)
    recipe = {
        "another version began it": [__version__, torch.__version__],
        "the teacher is another": [*teacher.signature, teacher.tokenizer.hash],
        "the options are others": [asdict(settings), _digest(prompts)],
        "the text beside is another": beside and beside.identity(),
    }
    with work_folder(out) as folder:
        work = _Work(folder, recipe, teacher, settings, begun)
        news = work.resume()
        if news and notice is not None:
            notice(news.format(out))
        if beside is not None:
            work.copy(beside)
        done, total = work.tokens(), sum(settings.sizes.values())
        if progress is not None:
            progress(done, total)
        for _ in work.draw():
            if progress is not None:
                progress(work.tokens(), total)
        result = work.finish()
        os.rename(work.corpus, out)
    return result


class _Work(Unfinished):
    """The batches that were drawn, the texts in them, and what is written of each split."""

    def __init__(
        self,
        folder: Path,
        recipe: dict[str, Any],
        teacher: TextSource,
        settings: SampleSettings,
        prompts: list[list[int]],
    ) -> None:
        super().__init__(folder, recipe, {"batches": 0, "texts": 0, "splits": {}})
        self.teacher, self.settings, self.prompts = teacher, settings, prompts

    def files(self, state: dict[str, Any]) -> list[KeptFile]:
        found = []
        for name, split in state["splits"].items():
            found += shard_files(split["written"], self.teacher.tokenizer)
            if "log_probs" in split:
                size = split["written"]["tokens"] * _NUMBER.itemsize
                found.append(KeptFile(f"{name}.log-probs", size, split["log_probs"]))
        return found

    def tokens(self) -> int:
        """How many there are, none counted beyond what was asked for."""
        sizes, splits = self.settings.sizes, self.state["splits"]
        return sum(min(_drawn(splits[name]), sizes[name]) for name in sizes if name in splits)

    def copy(self, beside: Corpus) -> None:
        """Writes the text of another corpus that is not there yet."""
        for name in beside.splits:
            if name in self.state["splits"]:
                continue
            text = beside.split(name)
            with ShardWriter(self.corpus, name, self.teacher.tokenizer) as shards:
                for start in range(0, len(text), _CHUNK):
                    shards.add(text[start : start + _CHUNK])
            copied = {"written": shards.written, "copied": len(text)}
            self.state["splits"][name] = {**_NOTHING, **copied}
            self.save()

    def draw(self) -> Iterator[None]:
        """Draws what is not there yet, and keeps it after every batch."""
        tokenizer = self.teacher.tokenizer
        for name, size in self.settings.sizes.items():
            split = self.state["splits"].setdefault(name, dict(_NOTHING))
            size += split["copied"]
            with ExitStack() as stack:
                shards = ShardWriter(self.corpus, name, tokenizer, written=split["written"])
                stack.enter_context(shards)
                split["written"] = written = shards.written
                numbers = None
                if name in HELD_OUT:
                    numbers = _Numbers(self.folder / f"{name}.log-probs", written["tokens"])
                    stack.enter_context(numbers)
                while written["tokens"] < size:
                    drawn = self._batch(size - written["tokens"])
                    texts = [_mark(text, tokenizer.eos_id) for text in drawn]
                    split["marks"] += sum(len(text.tokens) for text in texts)
                    split["marks"] -= sum(len(text.tokens) for text in drawn)
                    shards.add(np.concatenate([text.tokens for text in texts]))
                    log_probs = np.concatenate([text.log_probs for text in texts])
                    split["drawn"] += int((~np.isnan(log_probs)).sum())
                    if numbers is not None:
                        split["log_probs"] = numbers.add(log_probs)
                    self.save()
                    yield

    def _batch(self, left: int) -> list[DrawnText]:
        """The next texts: as many as are needed if they are as long as those before."""
        state, settings = self.state, self.settings
        written = sum(map(_drawn, state["splits"].values()))
        usual = written / state["texts"] if state["texts"] else settings.length + 1
        # A few more: another batch for a few tokens takes as long as any.
        number = min(settings.batch_size, math.ceil(MARGIN * left / usual))
        seeds = np.random.SeedSequence([settings.seed, state["batches"]])
        generator = torch.Generator(self.teacher.device)
        generator.manual_seed(int(seeds.generate_state(1, np.uint64)[0]))
        places = range(state["texts"], state["texts"] + number)
        prompts = [self.prompts[place % len(self.prompts)] for place in places]
        state["batches"], state["texts"] = state["batches"] + 1, places.stop
        drawn = self.teacher.draw(
            prompts,
            length=settings.length,
            temperature=settings.temperature,
            generator=generator,
        )
        pairs = zip(drawn, prompts, strict=True)
        return [_since_end(text, prompt, self.teacher.end_ids) for text, prompt in pairs]

    def finish(self) -> dict[str, Any]:
        """Writes all that a corpus has besides its shards."""
        tokenizer, splits = self.teacher.tokenizer, self.state["splits"]
        for name in splits:
            if "log_probs" in splits[name]:
                numbers = np.fromfile(self.folder / f"{name}.log-probs", dtype=_NUMBER)
                np.save(log_probs_file(self.corpus, name), numbers)
        counts = {
            what: {name: split[what] for name, split in splits.items()}
            for what in ("marks", "drawn", "copied")
        }
        about = {"teacher": self.teacher.name, "settings": asdict(self.settings), **counts}
        about["goes_on"] = not self.teacher.end_ids
        (self.corpus / "teacher.json").write_text(json.dumps(about, indent=1) + "\n")
        # Not `Tokenizer.save`: a full disk is no reason to remove what was drawn.
        (self.corpus / "tokenizer.json").write_text(tokenizer.as_json(), encoding="utf-8")
        written = {name: split["written"] for name, split in splits.items()}
        return {**write_index(self.corpus, tokenizer, written), **counts}


class _Numbers:
    """Appends to a file of numbers, of which the first `count` are kept."""

    def __init__(self, path: Path, count: int) -> None:
        path.touch()
        self._checksum = hash_file(path, count * _NUMBER.itemsize)
        self._file = path.open("r+b")
        self._file.truncate(count * _NUMBER.itemsize)
        self._file.seek(0, os.SEEK_END)

    def __enter__(self) -> "_Numbers":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, numbers: np.ndarray) -> str:
        """Writes the numbers, out of this process at once; returns the SHA-256 of all."""
        data = numbers.astype(_NUMBER).tobytes()
        self._file.write(data)
        self._file.flush()
        self._checksum.update(data)
        return self._checksum.hexdigest()


def log_probs_file(folder: Path, split: str) -> Path:
    """Where a corpus has the teacher's log p of each token of a split."""
    return folder / f"teacher-{split}.npy"


def read_log_probs(corpus: Corpus, split: str) -> Float[np.ndarray, " N"]:
    """The teacher's log p of each token of a split, NaN where it was not drawn."""
    tokens, path = corpus.split(split), log_probs_file(corpus.folder, split)
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise InputError(
            f"{corpus.folder} has no log-probabilities that a teacher gave its {split} text "
            f"({path.name}); hmmlm sample-corpus without --beside makes a corpus that has them."
        ) from None
    except (OSError, ValueError, EOFError):
        raise InputError(f"{path} is damaged; copy it again or make the corpus anew.") from None
    if found.shape != (len(tokens),) or found.dtype != _NUMBER:
        raise InputError(
            f"{path} has numbers of shape {found.shape} but the {split} text has {len(tokens):,} "
            f"tokens; copy it again or make the corpus anew."
        )
    return found


def _encode(prompts: Sequence[str], teacher: TextSource, length: int) -> list[list[int]]:
    """The ids of each prompt; without any, an empty one."""
    found = [teacher.tokenizer.encode(line) for line in prompts]
    for number, ids in enumerate(found, 1):
        if len(ids) >= length:
            raise InputError(
                f"Prompt {number:,} has {counted(len(ids), 'token')} but a text only {length:,}; "
                f"make the prompt shorter or the length larger."
            )
    return found or [[]]


def _drawn(split: dict[str, Any]) -> int:
    """Tokens of a split that come from the teacher, with the marks of texts that were cut."""
    return split["written"]["tokens"] - split["copied"]


def _since_end(text: DrawnText, prompt: Sequence[int], ends: Sequence[int]) -> DrawnText:
    """The text without what its prompt has up to its last end token: it was read, not written."""
    last = max((place for place, id in enumerate(prompt) if id in ends), default=-1)
    return DrawnText(text.tokens[last + 1 :], text.log_probs[last + 1 :])


def _mark(text: DrawnText, eos_id: int) -> DrawnText:
    """The text with `<eos>` at its end; a mark has no log p, for it was not drawn."""
    if len(text.tokens) and text.tokens[-1] == eos_id:
        return text
    return DrawnText(np.append(text.tokens, eos_id), np.append(text.log_probs, np.float32(np.nan)))


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
