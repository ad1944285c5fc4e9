"""What is prepared of a model once: tables at once, use of its states in the background."""

import contextlib
import os
import threading
import time
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hmmlm.errors import InputError
from hmmlm.explore.states import StateTable, state_table
from hmmlm.explore.texts import UseText, find_text
from hmmlm.explore.use import Use, UseReader
from hmmlm.inference.streaming import emission_log_probs
from hmmlm.model import Model

TABLE_WORDS, NAME_WORDS = 8, 3
PUBLISH_SECONDS = 3.0
"""How often shares of use are renewed while the text is being read."""


class Missing(InputError):
    """What was asked for is not there."""


class Prepared:
    """A model, the words and entropies of its states, and how much these are used in a text."""

    def __init__(self, model: Model, folder: Path, text: UseText) -> None:
        self.model, self.folder, self.text = model, folder, text
        self.table: StateTable = state_table(model.hmm, TABLE_WORDS)
        self.reader = UseReader(model.hmm, model.tokenizer.eos_id)
        self.use: Use | None = None  # while nothing has been read
        self.word_weights = self._weights(None)
        self._state, self._problem = "computing", ""
        self._check, self._unsound = "waiting", ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._prepare, name="use", daemon=True)

    @staticmethod
    def open(folder: Path, *, text: Path | None = None, device: str = "cpu") -> "Prepared":
        """That of a model's folder. Rows of factored transitions are checked later."""
        model = Model.load(folder, device=device, check_rows=False)
        return Prepared(model, folder, find_text(model, text))

    def start(self) -> None:
        """Begins to read the text that says how much states are used."""
        self._thread.start()

    def stop(self) -> None:
        """Ends that at the next group of lines; what takes longer ends with the process."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2.0)

    def wait(self) -> None:
        """Returns when the text has been read."""
        self._thread.join()

    def prepare(self) -> None:
        """Reads the text here and now, and checks the model; what is wrong is raised."""
        for group in self.reader.groups(self.text.lines()):
            self.reader.read(group)
        self._publish()
        self._state = "ready"
        self.model.hmm.validate()
        self._check = "passed"

    def _prepare(self) -> None:
        be_nice(19)
        try:
            self._read()
        except Exception as error:  # of any kind: nobody else sees what ends this thread
            self._state, self._problem = "failed", _reason(error)
        if self._stop.is_set():
            return
        try:
            self.model.hmm.validate()
            self._check = "passed"
        except Exception as error:
            self._check, self._unsound = "failed", _reason(error)

    def _read(self) -> None:
        published = time.monotonic()
        for group in self.reader.groups(self.text.lines()):
            self.reader.read(group)
            if self._stop.is_set():
                return
            if time.monotonic() - published > PUBLISH_SECONDS:
                self._publish()
                published = time.monotonic()
        self._publish()
        self._state = "ready"

    def _publish(self) -> None:
        use = self.reader.use()
        self.word_weights = self._weights(use.share)
        self.use = use

    def words(self, ids: np.ndarray, probs: np.ndarray) -> list[tuple[str, float]]:
        """Words with their probabilities, ids of -1 left out."""
        pairs = zip(ids.tolist(), probs.tolist(), strict=True)
        return [(self.model.tokenizer.token(id), prob) for id, prob in pairs if id >= 0]

    def name(self, state: int) -> list[str]:
        """The first few words of a state."""
        some = slice(0, NAME_WORDS)
        return [
            word
            for word, _ in self.words(self.table.words[state, some], self.table.probs[state, some])
        ]

    def use_state(self) -> dict[str, Any]:
        """Whether shares of use and examples are there yet."""
        read = self.reader.tokens
        done = 1.0 if self._state == "ready" else min(1.0, read / max(1, self.text.tokens))
        return {
            "state": self._state,
            "progress": done,
            "tokens": read,
            "problem": self._problem or None,
        }

    def check_state(self) -> dict[str, Any]:
        """Whether the model's tables are distributions, which is looked at after use is there."""
        return {"state": self._check, "problem": self._unsound or None}

    def _weights(self, share: np.ndarray | None) -> np.ndarray:
        """p(w) where states are as frequent as they are used; all alike while that is not known."""
        hmm = self.model.hmm
        if share is None:
            share = np.full(hmm.num_states, 1 / hmm.num_states)
        log_share = torch.from_numpy(share).log().to(hmm.device, hmm.dtype)[None]
        return emission_log_probs(hmm, log_share)[0].double().exp().cpu().numpy()

    def word_id(self, word: str) -> int | None:
        """The id of a word as people type it."""
        for name in (word, word.lower(), "▁" + word, "Ġ" + word):
            if name in self.ids:
                return self.ids[name]
        return None

    @cached_property
    def ids(self) -> dict[str, int]:
        tokenizer = self.model.tokenizer
        return {tokenizer.token(id): id for id in range(tokenizer.vocab_size)}

    @cached_property
    def block_words(self) -> list[np.ndarray]:
        """The words of each block."""
        return [words.cpu().numpy() for words in self.model.hmm.support.words_by_row]

    def block_shares(self) -> np.ndarray | None:
        if self.use is None or self.table.block is None:
            return None
        return np.bincount(self.table.block, self.use.share, len(self.block_words))

    @cached_property
    def word_ranks(self) -> np.ndarray:
        """Where the best word of each state stands in the dictionary."""
        tokenizer = self.model.tokenizer
        names = [tokenizer.token(id).lower() for id in range(tokenizer.vocab_size)]
        rank = np.empty(len(names), np.int64)
        rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
        return rank[self.table.words[:, 0]]


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def be_nice(amount: int) -> None:
    """Lets other threads go first, and this one's helpers that start from here."""
    with contextlib.suppress(AttributeError, OSError):  # where threads have no priority
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), amount)
