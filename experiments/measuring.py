"""What a trained model is worth: perplexity in both modes, and the time of a batch."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from experiments.rows import BOTH
from hmmlm.baselines.kneser_ney import KneserNey
from hmmlm.data.shards import Corpus
from hmmlm.evaluate import Evaluation, evaluate
from hmmlm.explore.curves import read_metrics
from hmmlm.lm import LanguageModel
from hmmlm.model import Model
from hmmlm.neural_model import load_model
from hmmlm.train.config import make_config
from hmmlm.train.estimate import count_parameters
from hmmlm.train.loop import Progress

ROWS, LENGTH = 16, 32
"""A batch of the paper's evaluation."""

BATCHES = 24
ORDER = 5
FIRST = 1_000_000
"""Tokens of a text of windows that are read to say how well training text is known."""


def measure_model(
    corpus: Corpus,
    watch: Callable[[int], None],
    folder: Path,
    device: str,
    modes: Sequence[str] = BOTH,
    bytes_of: Mapping[str, int] | None = None,
    tested: bool = True,
) -> dict:
    """A model that `hmmlm train` wrote: its weights that were best on validation.

    `bytes_of` are the bytes of the validation and the test text, which only a model that is
    `tested` reads.
    """
    model = load_model(folder, device=device)
    steps = read_metrics(folder)
    return {
        "parameters": _count(model),
        **_perplexities(model.lm, corpus, device, watch, modes, bytes_of or {}, tested),
        "ms_train_step": ms_of_step(steps),
        "tokens_trained": steps[-1].tokens,
        "epochs": steps[-1].epoch,
        "device": device_name(device),
    }


def measure_times(corpus: Corpus, _: Callable[[int], None], folder: Path, device: str) -> dict:
    """The times alone of a model that `hmmlm train` wrote."""
    lm = load_model(folder, device=device).lm
    return {
        "ms_train_step": ms_of_step(read_metrics(folder)),
        "ms_eval_batch": _ms_of_batch(lm, corpus.split("valid"), device),
        "device": device_name(device),
    }


def measure_kneser_ney(corpus: Corpus, watch: Callable[[int], None]) -> dict:
    """Modified Kneser-Ney 5-grams, whose contexts end at `<eos>`."""
    words, text = corpus.tokenizer, corpus.split("train")
    began = time.perf_counter()
    model = KneserNey(text, words.vocab_size, order=ORDER, eos_id=words.eos_id)
    seconds = time.perf_counter() - began
    return {
        "parameters": sum(model.num_grams),
        **_perplexities(model, corpus, "cpu", watch, BOTH, {}),
        "ms_train_step": None,
        "tokens_trained": len(text),
        "epochs": 1,
        "device": device_name("cpu"),
        "seconds": round(seconds, 3),
    }


def ms_of_step(steps: Sequence[Progress]) -> float | None:
    """The median of all but the first tenth, in which kernels are compiled; no validation."""
    ends = [1e3 * step.tokens / step.tokens_per_second for step in steps[len(steps) // 10 :]]
    times = [after - before for before, after in pairwise(ends)]
    return round(median(times), 4) if times else None


def device_name(device: str) -> str:
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    from benchmarks.machine import describe

    return describe()["device"]


def _perplexities(
    lm: LanguageModel,
    corpus: Corpus,
    device: str,
    watch: Callable[[int], None],
    modes: Sequence[str],
    bytes_of: Mapping[str, int],
    tested: bool = True,
) -> dict[str, Any]:
    def read(text: Any, mode: str) -> Evaluation:
        eos = corpus.tokenizer.eos_id
        return evaluate(lm, text, mode=mode, eos_id=eos, device=device, progress=watch)

    found, counts = {}, set()
    for mode in modes:
        val = read(corpus.split("valid"), mode)
        test = read(corpus.split("test"), mode) if tested else None
        counts.add((val.tokens, test and test.tokens))
        found[mode] = {"val": val.perplexity, "test": test and test.perplexity}
        if test is not None and "test" in bytes_of:
            bits = math.log2(test.perplexity) * test.tokens
            found[mode]["bits_per_byte"] = bits / bytes_of["test"]
    ((tokens_val, tokens_test),) = counts  # each mode scores every token once
    train, mode = corpus.split("train"), "sentence"
    if mode not in modes:
        train, mode = train.head(min(FIRST, len(train))), modes[0]
    return {
        "modes": found,
        "train": read(train, mode).perplexity,
        "train_mode": mode if mode == "sentence" else f"{mode} of {len(train):,} tokens",
        "tokens_val": tokens_val,
        "tokens_test": tokens_test,
        "ms_eval_batch": _ms_of_batch(lm, corpus.split("valid"), device),
    }


def _ms_of_batch(lm: LanguageModel, text: Any, device: str) -> float:
    """The median time of scoring 16 x 32 tokens, with the state of 16 streams carried on."""
    length = min(len(text) // ROWS, BATCHES * LENGTH)
    ids = np.asarray(text[0 : ROWS * length]).astype(np.int64).reshape(ROWS, length)
    parts = torch.from_numpy(ids).to(device).split(LENGTH, 1)
    parts = [part for part in parts if part.shape[1] == LENGTH] or list(parts[:1])
    carry, times = None, []
    for part in (parts[0], *parts):  # the first is for what is compiled and found at first use
        began = time.perf_counter()
        scored = lm.score_tokens(part, carry=carry)
        float(scored.token_log_probs.sum())  # waits for a device
        times.append(1e3 * (time.perf_counter() - began))
        carry = scored.carry
    return round(median(times[1:]), 4)


def _count(model: Any) -> int:
    if not isinstance(model, Model):
        return sum(parameter.numel() for parameter in model.network.parameters())
    tables = {name: model.config["training"][name] for name in ("data", "model", "train")}
    support = model.hmm.support
    sizes = (model.tokenizer.vocab_size, support.num_blocks, support.width)
    return count_parameters(make_config(tables), *sizes)
