"""Perplexity of any language model, in one of three stated ways (docs/evaluation.md)."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm import inference
from hmmlm.data.token_array import TokenArray
from hmmlm.errors import InputError, check_count
from hmmlm.hmm import HMM
from hmmlm.lm import LanguageModel, Scores

ROW_TOLERANCE = 1e-4
"""A perplexity is published only if random rows of the model sum to one this closely."""

BATCH_TOKENS = 1 << 14
"""Tokens of a batch, padding included, by default."""

NEAR = 4
"""A batch's rows are read from the text at once where they span at most so many batches."""

CHECKED_ROWS = 256
"""Rows of transitions whose sums are checked."""

CHECKED_CELLS = 1 << 22
"""Cells of the emissions whose sums are checked at a time."""

_CHECK_SEED = 0
_CHUNK = 1 << 22


class Evaluation(NamedTuple):
    """What a text cost: its tokens, -log p(text) in nats, exp(nats / tokens), and how it was read.

    `max_row_error` is the largest |sum of probabilities - 1| over 256 random rows of the model.
    """

    tokens: int
    nats: float
    perplexity: float
    mode: str
    max_row_error: float


class HmmLM:
    """An HMM as a language model; what it carries between segments is its belief."""

    def __init__(self, hmm: HMM, implementation: str = "auto") -> None:
        self.hmm = hmm.detach()
        self.implementation = implementation

    @property
    def vocab_size(self) -> int:
        return self.hmm.vocab_size

    @property
    def precision(self) -> str:
        return str(self.hmm.dtype).removeprefix("torch.")

    @torch.no_grad()
    def score_tokens(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        lengths: Int[Tensor, " B"] | None = None,
        carry: Any = None,
        reset_id: int | None = None,
        ends: bool = False,
    ) -> Scores:
        """log p(x_t | x_<t) of each token; the carry is the belief after each row's last token."""
        run = inference.token_log_probs if ends else inference.log_prob
        scored = run(
            self.hmm,
            tokens.to(self.hmm.device),
            lengths=None if lengths is None else lengths.to(self.hmm.device),
            belief=carry,
            reset_id=reset_id,
            implementation=self.implementation,
        )
        if isinstance(scored, Tensor):
            return Scores(scored, None)
        return Scores(scored.token_log_probs, scored.belief)

    @torch.no_grad()
    def row_error(self, rows: int, seed: int) -> float:
        """Largest |sum - 1| of `rows` random transition rows, p(z1) and all emissions, in float64.

        O(rows Z + V K) time.
        """
        hmm, generator = self.hmm, torch.Generator().manual_seed(seed)
        sources = torch.randperm(hmm.transitions.num_sources, generator=generator)[:rows]
        totals = torch.cat([hmm.log_init.double().exp().sum()[None], _emission_sums(hmm)])
        others = (totals - 1).abs().max()
        moves = hmm.transitions.row_error(sources.to(hmm.device))
        return float(others.clamp(min=moves))  # NaN stays


def parse_mode(mode: str | tuple[str, int]) -> tuple[str, int | None]:
    """("sentence", None), ("streaming", None) or ("window", n) from "window 32" or "window:32"."""
    words = mode.replace(":", " ").split() if isinstance(mode, str) else [str(w) for w in mode]
    if words in (["sentence"], ["streaming"]):
        return words[0], None
    if len(words) == 2 and words[0] == "window" and words[1].isdecimal() and int(words[1]) > 0:
        return "window", int(words[1])
    raise InputError(
        f"The evaluation mode is {mode!r} but must be 'sentence', 'streaming' or 'window n' with "
        f"a positive number of tokens, as in 'window 32'."
    )


def evaluate(
    model: LanguageModel,
    tokens: Any,
    *,
    mode: str | tuple[str, int],
    eos_id: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    device: torch.device | str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Perplexity exp(-log p(text) / tokens) of a text, every token counted once.

    `tokens` is anything one-dimensional with a length and slices: a tensor, an array, a corpus on
    disk. `mode` says where the model starts cold: after every `eos_id` ("sentence"), only at the
    beginning ("streaming") or every n tokens ("window n"). A batch holds at most `batch_tokens`
    tokens with their padding; a longer row is read in segments, with the model's carry.
    `progress` is called with the number of tokens done since its last call. Memory: a batch.
    """
    kind, window = parse_mode(mode)
    tokens = _on_host(tokens)
    count = _check_text(model, tokens, kind, eos_id)
    check_count("batch_tokens", batch_tokens)
    error = _check_model(model)
    ends = _row_ends(tokens, kind, window, eos_id)
    nats = 0.0
    for rows in _batches(ends, batch_tokens):
        for segment in _score_rows(model, tokens, rows, batch_tokens, device):
            nats -= float(segment.log_probs.double().sum())
            if progress is not None:
                progress(int(segment.sizes.sum()))
    mean = nats / count
    perplexity = math.exp(mean) if mean < 700 else math.inf
    name = kind if window is None else f"{kind} {window}"
    return Evaluation(count, nats, perplexity, name, error)


def token_log_probs(
    model: LanguageModel,
    tokens: Any,
    *,
    eos_id: int,
    device: torch.device | str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Float[np.ndarray, " N"]:
    """log p of every token of a text that `evaluate` reads in mode "sentence", in its order.

    The text and the model are checked as there. Memory: four bytes a token, and a batch.
    """
    tokens = _on_host(tokens)
    found = np.empty(_check_text(model, tokens, "sentence", eos_id), dtype=np.float32)
    _check_model(model)
    for rows in _batches(_row_ends(tokens, "sentence", None, eos_id), BATCH_TOKENS):
        for starts, sizes, log_probs in _score_rows(model, tokens, rows, BATCH_TOKENS, device):
            scored = log_probs.float().cpu().numpy()
            for row, (start, size) in enumerate(zip(starts, sizes, strict=True)):
                found[start : start + size] = scored[row, :size]
            if progress is not None:
                progress(int(sizes.sum()))
    return found


def sentence_log_probs(
    model: LanguageModel,
    tokens: TokenArray,
    *,
    eos_id: int,
    device: torch.device | str | None = None,
) -> Float[np.ndarray, " S"]:
    """log p of every sentence of a text, each from a cold start, in float64."""
    scored = token_log_probs(model, tokens, eos_id=eos_id, device=device)
    return np.add.reduceat(scored.astype(np.float64), tokens.sentence_offsets())


class _Segment(NamedTuple):
    """Where a part of each row begins in the text, how long it is, and log p of its tokens."""

    starts: np.ndarray
    sizes: np.ndarray
    log_probs: Float[Tensor, "B T"]


def _on_host(tokens: Any) -> Any:
    """The text where numpy reads it: a tensor of a GPU comes over once."""
    return tokens.cpu() if isinstance(tokens, Tensor) else tokens


def _check_text(model: LanguageModel, tokens: Any, kind: str, eos_id: int | None) -> int:
    count = len(tokens)
    if count == 0:
        raise InputError("There are no tokens to evaluate; the text is empty.")
    if kind == "sentence" and eos_id is None:
        raise InputError(
            "Mode 'sentence' needs the id of the end-of-sentence token and this tokenizer has "
            "none; use 'streaming' or 'window n'."
        )
    last = model.vocab_size - 1
    for start in range(0, count, _CHUNK):
        part = np.asarray(tokens[start : start + _CHUNK])
        if part.min() < 0 or part.max() > last:
            bad = int(part.min()) if part.min() < 0 else int(part.max())
            raise InputError(
                f"tokens has id {bad:,} but this vocabulary runs from 0 to {last:,}; re-encode "
                f"the corpus with this vocabulary."
            )
    return count


def _check_model(model: LanguageModel) -> float:
    if model.precision not in ("float32", "float64"):
        raise InputError(
            f"The model is in {model.precision} but a perplexity is published only from float32 "
            f"or float64; convert it first, as in hmm.to(dtype=torch.float32), and normalise again."
        )
    error = model.row_error(CHECKED_ROWS, _CHECK_SEED)
    if not error < ROW_TOLERANCE:  # catches NaN too
        raise InputError(
            f"The model's probabilities sum to one only within {error:.3g}, and a perplexity is "
            f"published only under {ROW_TOLERANCE:g}; normalise its tables in float32 or float64, "
            f"or train with a lower learning rate: large logits leave few digits for the sum."
        )
    return error


def _row_ends(tokens: Any, kind: str, window: int | None, eos_id: int | None) -> np.ndarray:
    """0 and the end of each stretch that is read from a cold start."""
    count = len(tokens)
    if kind == "streaming":
        ends = np.array([count])
    elif window is not None:
        ends = np.arange(window, count + window, window).clip(max=count)
    else:
        parts = [
            start + 1 + np.flatnonzero(np.asarray(tokens[start : start + _CHUNK]) == eos_id)
            for start in range(0, count, _CHUNK)
        ]
        ends = np.concatenate(parts)
        if len(ends) == 0 or ends[-1] < count:
            ends = np.append(ends, count)
    return np.concatenate([[0], ends])


def _batches(ends: np.ndarray, batch_tokens: int) -> Iterator[np.ndarray]:
    """Rows (start, stop) of similar length, longest first, padded to at most `batch_tokens`."""
    lengths = np.diff(ends)
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        size = max(1, batch_tokens // int(lengths[order[start]]))
        rows = order[start : start + size]
        yield np.stack([ends[rows], ends[rows + 1]], 1)
        start += size


def _score_rows(
    model: LanguageModel,
    tokens: Any,
    rows: np.ndarray,
    batch_tokens: int,
    device: torch.device | str | None,
) -> Iterator[_Segment]:
    """These rows, the longest first, in segments of at most `batch_tokens`."""
    lengths = rows[:, 1] - rows[:, 0]
    begin, end = int(rows[:, 0].min()), int(rows[:, 1].max())
    near = end - begin <= NEAR * batch_tokens  # such as windows, side by side: read at once
    text, first = (np.asarray(tokens[begin:end]), begin) if near else (tokens, 0)
    carry = None
    for done in range(0, int(lengths[0]), batch_tokens):  # more than once for a single row only
        left = torch.from_numpy(lengths - done).clamp(max=batch_tokens)
        segment = np.zeros((len(rows), int(left[0])), dtype=np.int64)
        for row, (start, size) in enumerate(zip(rows[:, 0] - first, left.tolist(), strict=True)):
            segment[row, :size] = np.asarray(text[start + done : start + done + size])
        scored = model.score_tokens(
            torch.from_numpy(segment).to(device),
            lengths=left.to(device),
            carry=carry,
            ends=bool(done + batch_tokens >= lengths[0]),
        )
        carry = scored.carry
        if scored.token_log_probs.isnan().any():
            raise InputError(
                "The model gave a probability that is not a number; its tables are damaged."
            )
        yield _Segment(rows[:, 0] + done, left.numpy(), scored.token_log_probs)


def _emission_sums(hmm: HMM) -> Float[Tensor, " Z"]:
    """sum_x p(x | z) of every state in float64, a slab of words at a time."""
    sums = torch.zeros(hmm.num_states, dtype=torch.float64, device=hmm.device)
    step = max(1, CHECKED_CELLS // hmm.support.width)
    for start in range(0, hmm.vocab_size, step):
        ids = hmm.support.rows[hmm.support.row_of_word[start : start + step]]
        probs = hmm.log_emit[start : start + step].double().exp()
        sums.index_add_(0, ids.clamp(min=0).flatten(), probs.flatten())
    return sums
