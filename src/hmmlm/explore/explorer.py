"""What the explorer's page asks of a model, as plain values that JSON can write."""

import contextlib
import math
from functools import cached_property
from typing import Any

import numpy as np

from hmmlm.errors import InputError, counted
from hmmlm.explore.constraining import make_constraint, marks, told
from hmmlm.explore.curves import FAR, best_check, read_metrics, smooth, thin
from hmmlm.explore.preparing import Missing, Prepared
from hmmlm.explore.projection import Projection, project
from hmmlm.explore.reading import NextWords, read_line, read_text
from hmmlm.filling import GappedLine, read_pattern
from hmmlm.generate import Constraint, Lookahead
from hmmlm.text_model import METRICS
from hmmlm.transitions import Factored

TEXT_STATES, NEXT_WORDS, GAP_WORDS = 8, 20, 20
TEXT_CHARACTERS, TEXT_TOKENS, PAGE_SIZE = 2000, 400, 200
GAP_LENGTHS = (0, 5)
WHOLE_TABLE = 1 << 32
"""Products in one pass over all transitions that a request may ask for, again and again."""

PHRASE_CHARACTERS = 500
"""Letters that all phrases of a constraint may have: the time for its automaton grows faster."""

CONSTRAINED_STATES = 1 << 14
"""States of a model under a constraint: up to so many the table of transitions is kept."""

LOOKING_BYTES = 1 << 30
"""Memory that looking ahead for one request may take."""


class Explorer:
    """Answers about a model: what it is, texts as it reads them, its map, its training."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared, self.model, self.folder = prepared, prepared.model, prepared.folder
        self.next_words = NextWords(prepared.model, words=NEXT_WORDS)

    def about(self) -> dict[str, Any]:
        hmm, config = self.model.hmm, self.model.config
        support = hmm.support
        kind = "dense" if support.is_dense else "blocks" if support.is_partition else "ragged"
        training = config.get("training")
        training = training if isinstance(training, dict) else {}
        return {
            "name": self.folder.absolute().name,
            "kind": training.get("model", {}).get("kind", "tables"),
            "states": hmm.num_states,
            "blocks": len(support.rows) if kind == "blocks" else None,
            "words": hmm.vocab_size,
            "pieces": not self.model.tokenizer.splits_by_words,
            "parameters": sum(field.numel() for field in hmm.fields()),
            "support": kind,
            "states_per_word": support.width,
            "transitions": "factored" if isinstance(hmm.transitions, Factored) else "dense",
            "made_by": f"hmmlm {config.get('hmmlm_version', 'unknown')}",
            "tags": self.model.config.get("labels", {}).get("tags"),
            "use_from": self.prepared.text.name,
            "use": self.prepared.use_state(),
            "check": self.prepared.check_state(),
            "has_training": self._has_log,
            "limits": {
                "text_characters": TEXT_CHARACTERS,
                "text_tokens": TEXT_TOKENS,
                "words_per_gap": GAP_LENGTHS[1],
                "gaps_side_by_side": self.wide_gaps,
                "constraints": hmm.num_states <= CONSTRAINED_STATES,
                "page_size": PAGE_SIZE,
            },
        }

    def warm_up(self) -> None:
        """Reads one word, so that the first that is typed finds loops compiled and tables made."""
        word = int(self.prepared.word_weights.argmax())
        with contextlib.suppress(InputError):  # of a word that cannot stand alone
            self.next_words.after((word,))
            self.read(self.model.tokenizer.token(word))

    def read(self, text: str) -> dict[str, Any]:
        """A text as the model reads it."""
        text = self._line(text)
        line = read_line(self.model, text)
        self._check_size(line)
        answer = read_text(self.model, line, states=TEXT_STATES)
        named = {token["path"] for token in answer["tokens"]}
        named |= {state for token in answer["tokens"] for state, _ in token["states"]}
        answer["words"] = {str(state): self.prepared.name(state) for state in sorted(named)}
        ids = tuple(line.ids[0].tolist()[:-1])
        answer["next"] = None if line.singles else self.next_words.after(ids)[0]
        return answer

    def next(self, text: str) -> dict[str, Any]:
        """What comes after a text."""
        line = read_line(self.model, self._line(text))
        if line.singles:
            raise InputError(
                "What comes next is told after words, but this text has a ? for a gap; fill it, or "
                "write \\? for a question mark."
            )
        _check_tokens(line.ids.shape[1])
        words, nats = self.next_words.after(tuple(line.ids[0].tolist()[:-1]))
        return {"next": words, "nats": nats}

    def fill(self, text: str, *, n: int, seed: int | None) -> dict[str, Any]:
        """What stands in the gaps of a text."""
        text = self._line(text)
        line = read_pattern(self.model.tokenizer, text, GAP_LENGTHS)
        self._check_size(line)
        gaps = []
        if line.singles:
            words = self.model.gap_words(text, GAP_WORDS, length=GAP_LENGTHS)
            pairs = zip(line.singles, words, strict=True)
            gaps = [
                {"position": place, "words": [one for one in found if one[1] > 0]}
                for place, found in pairs
            ]
        drawn = self.model.fill(text, n, length=GAP_LENGTHS, seed=seed)
        samples = [{"text": one.text, "words": one.words, "p": one.prob} for one in drawn]
        return {"gaps": gaps, "samples": samples}

    def _line(self, text: str) -> str:
        if len(text) > TEXT_CHARACTERS:
            raise InputError(
                f"The text has {len(text):,} characters but may have {TEXT_CHARACTERS:,}; give a "
                f"shorter one."
            )
        return text.replace("\r", " ").replace("\n", " ")

    def _check_size(self, line: GappedLine) -> None:
        """Refuses what would take too long: a pass over all transitions for each pair of gaps."""
        _check_tokens(line.ids.shape[1])
        pairs = zip(line.singles, line.singles[1:], strict=False)
        together = line.has_star or any(second == first + 1 for first, second in pairs)
        if together and not self.wide_gaps:
            raise InputError(
                f"This model has {self.model.hmm.num_states:,} states, too many here for * and for "
                f"gaps side by side; leave a word between two gaps, or run hmmlm fill."
            )

    @cached_property
    def wide_gaps(self) -> bool:
        """Whether gaps may stand side by side, which takes products with the whole table."""
        hmm = self.model.hmm
        table = hmm.transitions
        width = table.left.shape[1] if isinstance(table, Factored) else 1
        return hmm.support.is_dense or hmm.num_states**2 * width <= WHOLE_TABLE

    @cached_property
    def _projection(self) -> Projection:
        return project(self.model.hmm)

    def map(self) -> dict[str, Any]:
        """The states in the plane."""
        found, use = self._projection, self.prepared.use
        points = np.round(found.points / max(1e-300, float(np.abs(found.points).max())), 5)
        return {
            "how": found.how,
            "explained": found.explained,
            "x": points[:, 0].tolist(),
            "y": points[:, 1].tolist(),
            "block": None
            if self.prepared.table.block is None
            else self.prepared.table.block.tolist(),
            "use": None if use is None else use.share.tolist(),
            "use_state": self.prepared.use_state(),
        }

    @property
    def _has_log(self) -> bool:
        log = self.folder / METRICS
        return log.is_file() and log.stat().st_size > 0

    def training(self) -> dict[str, Any]:
        """The curves of the training that made the model."""
        if not self._has_log:
            raise Missing(f"{self.folder.name} has no {METRICS}: it keeps no log of a training.")
        steps = read_metrics(self.folder)
        tokens = np.array([step.tokens for step in steps])
        numbers = np.array([step.step for step in steps])
        losses = np.clip([step.loss for step in steps], 0.0, FAR)
        best = best_check(steps)

        def line(values: np.ndarray) -> dict[str, list[Any]]:
            kept = thin(values)
            return {
                "tokens": tokens[kept].tolist(),
                "steps": numbers[kept].tolist(),
                "values": values[kept].tolist(),
            }

        checks = [step for step in steps if step.val is not None]
        return {
            "curves": {
                "training": line(np.exp(smooth(losses))),
                "each_step": line(np.exp(losses)),
                "validation": {
                    "tokens": [step.tokens for step in checks],
                    "steps": [step.step for step in checks],
                    "values": [step.val for step in checks],
                },
                "learning_rate": line(np.array([step.learning_rate for step in steps])),
            },
            "best": None
            if best is None
            else {"step": best.step, "tokens": best.tokens, "perplexity": best.val},
            "steps": steps[-1].step,
            "tokens": steps[-1].tokens,
            "settings": self.model.config.get("training"),
        }

    def _look_ahead(self, wanted: Constraint, length: int) -> Lookahead:
        hmm, automaton = self.model.hmm, wanted.compile(self.model.spelling)
        size = length * automaton.num_states * hmm.num_states * hmm.log_init.element_size()
        if size > LOOKING_BYTES:
            raise InputError(
                f"Looking {counted(length, 'token')} ahead through {automaton.num_states:,} x "
                f"{hmm.num_states:,} states takes {size / 2**30:.1f} GiB, over the "
                f"{LOOKING_BYTES / 2**30:.1f} that a page may take; ask for less at once, allow "
                f"fewer tokens, or run hmmlm constraint."
            )
        return Lookahead.build(hmm, automaton, eos_id=self.model.tokenizer.eos_id, budget=length)

    def constrain(
        self,
        *,
        contains: list[str],
        without: list[str],
        regex: str,
        words: str,
        length: int,
        n: int,
        seed: int | None,
    ) -> dict[str, Any]:
        """How probable a constraint is, and texts that meet it."""
        letters = sum(map(len, (*contains, *without)))
        if letters > PHRASE_CHARACTERS:
            raise InputError(
                f"The phrases have {letters:,} characters but may have {PHRASE_CHARACTERS:,} "
                f"together; give fewer or shorter ones."
            )
        wanted = make_constraint(contains, without, regex, words)
        states = self.model.hmm.num_states
        if states > CONSTRAINED_STATES:
            raise InputError(
                f"This model has {states:,} states; constraints are looked ahead here for up to "
                f"{CONSTRAINED_STATES:,}; run hmmlm constraint, which may take minutes."
            )
        look = self._look_ahead(wanted, length)
        log_prob = self.model.log_probability(look, length=length)
        texts: list[str] = []
        if n and math.isfinite(log_prob):
            texts = self.model.sample(n, length=length, seed=seed, constraint=look)
        return {
            "constraint": str(wanted),
            "probability": math.exp(log_prob),
            "log10": log_prob / math.log(10) if math.isfinite(log_prob) else None,
            "sentence": told(log_prob, length),
            "samples": [{"text": text, "marks": marks(text, contains)} for text in texts],
        }


def _check_tokens(tokens: int) -> None:
    if tokens > TEXT_TOKENS:
        raise InputError(
            f"The text has {counted(tokens, 'token')} but may have {TEXT_TOKENS:,}; give a shorter "
            f"one."
        )
