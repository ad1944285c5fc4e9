"""A corpus out of text, on all cores; what was stopped goes on where it was."""

import heapq
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from hmmlm import __version__
from hmmlm.data.corpus import Block, TextFile, TextSplits, read_blocks, read_lines, refuse_empty
from hmmlm.data.hub import HubText, Rows
from hmmlm.data.processes import Processes, num_processors
from hmmlm.data.shards import ShardWriter, hash_file, token_type, write_index
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.data.unfinished import KeptFile, Unfinished, shard_files
from hmmlm.storage import signature, work_folder

_BLOCK = 1 << 23  # bytes of text that a process takes at a time
_SMALL = 1 << 25  # bytes of text that are done sooner than other processes have started
_RUN_BLOCKS, _RUN_WORDS = 64, 1 << 21  # after so many, counts of words go to disk


def prepare_corpus(
    out: str | os.PathLike[str],
    text: TextSplits,
    *,
    tokenizer: Tokenizer | None = None,
    min_count: int = 1,
    max_size: int | None = None,
    workers: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    notice: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Encode text into the corpus that `write_corpus` makes of their lines.

    Without a `tokenizer` the tokens are the words of the training text. `workers` processes share
    the work, by default one for each processor, or this one alone where the text is small; the
    corpus is the same, byte for byte. What is done is kept beside `out` in `.NAME.unfinished`:
    after a stop the same call goes on from there, or starts afresh where the files, the arguments
    or the version have changed, and `notice` hears which. `progress(work, bytes read, of how many)`
    hears of every block. A script that calls this with several processes does so under
    `if __name__ == "__main__"`.

    Memory: some tens of megabytes a process, the counts of two million words, and the vocabulary.
    """
    paths = [path for files in text.files.values() for path in files]
    for path in paths:
        if not isinstance(path, HubText):
            read_lines(path, empty_lines=text.empty_lines)  # refuses what cannot be read
    if workers is None:
        workers = 1 if sum(map(_size, paths)) < _SMALL else num_processors()
    options = [text.empty_lines, tokenizer and tokenizer.hash, min_count, max_size]
    recipe = {
        "another version began it": [__version__, tokenizers.__version__],
        "the text has changed": {
            name: [*map(_signature, files)] for name, files in text.files.items()
        },
        "the options are others": options,
    }
    with work_folder(out) as folder, Processes(workers) as processes:
        work = _Work(folder, text, recipe, processes, progress)
        news = work.resume()
        if news and notice is not None:
            notice(news.format(out))
        if tokenizer is None:
            tokenizer = work.count_words(min_count, max_size)
        result = write_index(work.corpus, tokenizer, work.encode(tokenizer))
        os.rename(work.corpus, out)
    return result


class _Work(Unfinished):
    """The words that were counted, and the shards that were written.

    A place is {"file", "stop", "number", "lines"}: which file, the bytes done of its text, the
    number of its next line, and how many lines of it were kept.
    """

    def __init__(
        self,
        folder: Path,
        text: TextSplits,
        recipe: dict[str, Any],
        processes: Processes,
        progress: Callable[[str, int, int], None] | None,
    ) -> None:
        state = {"counted": _start(), "runs": [], "vocabulary": None, "splits": {}}
        super().__init__(folder, recipe, state)
        self.text, self.processes, self.progress = text, processes, progress

    def files(self, state: dict[str, Any]) -> list[KeptFile]:
        files = [KeptFile(run["file"], run["bytes"], run["sha256"]) for run in state["runs"]]
        if state["vocabulary"] is not None:
            tokenizer = Tokenizer.load(self.corpus / "tokenizer.json")
            if tokenizer.hash != state["vocabulary"]:
                raise ValueError("another vocabulary")
            for split in state["splits"].values():
                files += shard_files(split["written"], tokenizer)
        return files

    def count_words(self, min_count: int, max_size: int | None) -> Tokenizer:
        """The vocabulary of the training text, from counts in sorted runs on disk."""
        if self.state["vocabulary"] is not None:
            return Tokenizer.load(self.corpus / "tokenizer.json")
        files, place, runs = self.text.files["train"], self.state["counted"], self.state["runs"]
        counts, blocks = Counter[str](), 0
        count = partial(_count, self.text.empty_lines)
        report = partial(self._report, "Counting words", 0, sum(map(_size, files)))
        for found in self._results(count, files, place, report):
            counts.update(found)
            blocks += 1
            if blocks == _RUN_BLOCKS or len(counts) >= _RUN_WORDS:
                runs.append(_write_run(self.folder, f"run-{len(runs)}", counts))
                self.save()
                counts, blocks = Counter[str](), 0
        sorted_runs = [_read_run(self.folder / run["file"]) for run in runs]
        merged = heapq.merge(*sorted_runs, sorted(counts.items()))
        groups = groupby(merged, itemgetter(0))
        sums = ((word, sum(number for _, number in group)) for word, group in groups)
        kept = ((word, number) for word, number in sums if number >= min_count)
        if max_size is not None:
            kept = heapq.nsmallest(max_size, kept, key=lambda pair: (-pair[1], pair[0]))
        return Tokenizer.words(dict(kept), min_count=min_count, max_size=max_size)

    def encode(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """Writes the shards of every split, and returns what is in them."""
        path = self.corpus / "tokenizer.json"
        if self.state["vocabulary"] is None:
            # Not `Tokenizer.save`: a full disk is no reason to remove the counts.
            path.write_text(tokenizer.as_json(), encoding="utf-8")
            self.state["vocabulary"] = tokenizer.hash
            self.save()
        encode = partial(_encode, tokenizer, self.text.empty_lines)
        if self.processes.number > 1:
            encode = partial(_encode_in_worker, path, tokenizer.hash, self.text.empty_lines)
        total, before = sum(_size(path) for files in self.text.files.values() for path in files), 0
        for name, files in self.text.files.items():
            split = self.state["splits"].setdefault(name, {"place": _start(), "written": None})
            report = partial(self._report, "Encoding", before, total)
            with ShardWriter(self.corpus, name, tokenizer, written=split["written"]) as shards:
                split["written"] = shards.written
                for ids in self._results(encode, files, split["place"], report):
                    shards.add(ids)
                    self.save()
            before += sum(map(_size, files))
        return {name: split["written"] for name, split in self.state["splits"].items()}

    def _results(
        self,
        function: Callable[[Block | Rows], tuple[int, Any]],
        files: Sequence[TextFile],
        place: dict[str, int],
        report: Callable[[int], None],
    ) -> Iterator[Any]:
        """What the function makes of each block from a place on; the place moves along."""
        for path in files[place["file"] :]:
            before = sum(map(_size, files[: place["file"]]))
            blocks = _blocks(path, start=place["stop"], number=place["number"])
            for block, (lines, result) in self.processes.map(function, blocks):
                place["stop"], place["number"] = block.stop, block.next_number
                place["lines"] += lines
                yield result
                report(before + block.read)
            if not place["lines"]:
                refuse_empty(path)
            place.update(_start(), file=place["file"] + 1)

    def _report(self, work: str, before: int, total: int, read: int) -> None:
        if self.progress is not None:
            self.progress(work, before + read, total)


def _start() -> dict[str, int]:
    return {"file": 0, "stop": 0, "number": 1, "lines": 0}


def _blocks(path: TextFile, *, start: int, number: int) -> Iterator[Block | Rows]:
    if isinstance(path, HubText):
        return path.blocks(_BLOCK, start=start, number=number)
    return read_blocks(path, _BLOCK, start=start, number=number)


def _signature(path: TextFile) -> list[Any]:
    return path.signature if isinstance(path, HubText) else signature(path)


def _size(path: TextFile) -> int:
    """Bytes of a file; 0 of what has no size, such as a pipe."""
    if isinstance(path, HubText):
        return path.size
    return path.stat().st_size if path.is_file() else 0


def _count(empty_lines: str, block: Block | Rows) -> tuple[int, dict[str, int]]:
    lines, counts = block.lines(empty_lines), Counter[str]()
    for line in lines:
        counts.update(line.split())
    return len(lines), dict(counts)


def _encode(tokenizer: Tokenizer, empty_lines: str, block: Block | Rows) -> tuple[int, np.ndarray]:
    lines = block.lines(empty_lines)
    stretches = [np.empty(0, np.int64), *tokenizer.encode_stretches(lines)]
    return len(lines), np.concatenate(stretches).astype(token_type(tokenizer))


def _encode_in_worker(
    path: Path, hash: str, empty_lines: str, block: Block | Rows
) -> tuple[int, np.ndarray]:
    return _encode(_load(path, hash), empty_lines, block)


@lru_cache(maxsize=1)
def _load(path: Path, hash: str) -> Tokenizer:
    return Tokenizer.load(path)  # once a process; the hash tells one file from the next


def _write_run(folder: Path, name: str, counts: dict[str, int]) -> dict[str, Any]:
    with (folder / name).open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{word} {number}\n" for word, number in sorted(counts.items()))
    size = (folder / name).stat().st_size
    return {"file": name, "bytes": size, "sha256": hash_file(folder / name, size).hexdigest()}


def _read_run(path: Path) -> Iterator[tuple[str, int]]:
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            word, _, number = line.partition(" ")
            yield word, int(number)
