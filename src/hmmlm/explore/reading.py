"""A line of text as a model reads it: surprisal, states, the best path, and what comes next."""

import math
import threading
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from hmmlm import inference
from hmmlm.errors import InputError
from hmmlm.filling import GappedLine, read_gaps
from hmmlm.inference.chain import MISSING
from hmmlm.inference.conditioning import read_pattern as with_evidence
from hmmlm.model import Model

Words = list[tuple[str, float]]


def read_line(model: Model, text: str) -> GappedLine:
    """The ids of a line that may have gaps (`?`), `<eos>` last."""
    line = read_gaps(model.tokenizer, text, (0, 0))
    if line.has_star:
        raise InputError(
            "A text is read with gaps of one word each, but this one has a *; write ? for each "
            "word of the gap, or ask for what fills it."
        )
    return line


def read_text(model: Model, line: GappedLine, *, states: int) -> dict[str, Any]:
    """Every token with its surprisal, its most probable states and that of the best path.

    A gap is any word but `<eos>`; its surprisal is that the line goes on. O(T K^2) per line,
    O(K Z) around a gap.
    """
    eos = model.tokenizer.eos_id
    pattern = with_evidence(model.hmm, line.ids, None, None, eos)
    found = inference.smooth(pattern.softened, pattern.tokens, reset_id=eos)
    log_evidence = float(found.log_evidence)
    if not math.isfinite(log_evidence):
        raise InputError("This text has probability zero under this model; give another.")
    best = inference.viterbi(pattern.softened, pattern.tokens, reset_id=eos)
    tokens, missing = [], 0
    ids = line.ids[0].tolist()
    for at, id in enumerate(ids):
        if bool(found.missing[0, at]):
            log_probs, names = found.missing_log_probs[missing], found.missing_states
            missing += 1
        else:
            log_probs, names = found.log_probs[0, at], found.states[0, at]
        shown = top_states(log_probs, names, states)
        nats = max(0.0, -float(found.token_log_probs[0, at]))
        tokens.append(
            {
                "text": "?" if id == MISSING else model.tokenizer.token(id),
                "nats": nats,
                "bits": nats / math.log(2),
                "gap": id == MISSING,
                "span": line.spans[at],
                "states": shown,
                "rest": max(0.0, 1.0 - sum(prob for _, prob in shown)),
                "path": int(best.states[0, at]),
            }
        )
    counted = sum(id != MISSING for id in ids)
    return {
        "tokens": tokens,
        "nats": -log_evidence,
        "perplexity": _perplexity(-log_evidence / counted),
        "path_probability": min(1.0, math.exp(float(best.log_prob) - log_evidence)),
    }


def _perplexity(nats: float) -> float | None:
    """None where it is larger than any float."""
    return math.exp(nats) if nats < 709 else None


def top_states(log_probs: Tensor, states: Tensor, k: int) -> list[tuple[int, float]]:
    """The k most probable states and p of each; none of probability zero."""
    best = log_probs.topk(min(k, len(log_probs)))
    pairs = zip(states[best.indices].tolist(), best.values.double().exp().tolist(), strict=True)
    return [(state, prob) for state, prob in pairs if prob > 0]


class NextWords:
    """The most probable next words after a text; the states of the last texts are kept.

    A text that goes on from one of them is read on from there. Bounded: `kept` texts.
    """

    def __init__(self, model: Model, *, words: int, kept: int = 256) -> None:
        self.model, self.words, self.kept = model, words, kept
        self._start = inference.start(model.hmm, reset_id=model.tokenizer.eos_id)
        self._states: OrderedDict[tuple[int, ...], inference.State] = OrderedDict()
        self._answers: OrderedDict[tuple[int, ...], Words] = OrderedDict()
        self._lock = threading.Lock()

    def after(self, ids: tuple[int, ...]) -> tuple[Words, float]:
        """The next words after the ids of a text without `<eos>`, and the nats of these."""
        state = self._state(ids)
        nats = -float(state.log_evidence)
        if not math.isfinite(nats):
            raise InputError(
                "This text has probability zero under this model, so nothing can follow it; give "
                "another."
            )
        with self._lock:
            if ids in self._answers:
                self._answers.move_to_end(ids)
                return self._answers[ids], max(0.0, nats)
        log_probs = inference.next_log_probs(state)[0]
        best = log_probs.topk(min(self.words, len(log_probs)))
        pairs = zip(best.indices.tolist(), best.values.double().exp().tolist(), strict=True)
        words = [(self.model.tokenizer.token(word), prob) for word, prob in pairs if prob > 0]
        self._keep(self._answers, ids, words)
        return words, max(0.0, nats)

    def _state(self, ids: tuple[int, ...]) -> inference.State:
        with self._lock:
            size = next((n for n in range(len(ids), 0, -1) if ids[:n] in self._states), 0)
            state = self._states[ids[:size]] if size else self._start
            if size:
                self._states.move_to_end(ids[:size])
        if size < len(ids):
            rest = torch.tensor([ids[size:]], device=self.model.device)
            state = inference.advance(state, rest)
            self._keep(self._states, ids, state)
        return state

    def _keep(self, kept: OrderedDict[tuple[int, ...], Any], ids: tuple[int, ...], one: Any):
        with self._lock:
            kept[ids] = one
            if len(kept) > self.kept:
                kept.popitem(last=False)
