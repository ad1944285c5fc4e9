"""Texts drawn from a model in a folder, of any kind, as `distill.sampling` wants them."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hmmlm import inference
from hmmlm.data.shards import hash_file
from hmmlm.distill.drawing import DrawnText, check_prompts, rows_that_fit
from hmmlm.errors import InputError
from hmmlm.model import Model
from hmmlm.neural_model import load_model
from hmmlm.text_model import CONFIG, WEIGHTS, pad
from hmmlm.topic_model import TopicModel

COPIES = 8
"""Numbers that drawing a token makes of each state of an HMM, and of each word."""


class ModelSource:
    """An HMM or a network in a folder, to draw from: a `TextSource`.

    Texts start cold and are over at `<eos>`; or one `goes_on`, as a stream of sentences, each drawn
    given those before it.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        goes_on: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        model = load_model(folder, device=device)
        if isinstance(model, TopicModel):
            raise InputError(
                f"{folder} has topics, and texts are drawn side by side from models without; give "
                f"the HMM that they were learnt for, or draw a few with hmmlm sample."
            )
        self.model = model
        if goes_on and self.model.config.get("training", {}).get("data", {}).get("reset"):
            raise InputError(
                f"{folder} was trained to start afresh after <eos> (data.reset), so it does not "
                f"know what comes next; draw single texts, or train one with data.reset=false."
            )
        self.tokenizer = self.model.tokenizer
        self.name, self.goes_on = str(folder), goes_on
        self.end_ids = [] if goes_on else [self.tokenizer.eos_id]
        files = [Path(folder) / name for name in (CONFIG, WEIGHTS)]
        sums = [hash_file(path, path.stat().st_size).hexdigest() for path in files]
        self.signature = [self.device.type, *sums, goes_on]

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def max_length(self) -> None:
        """Texts may be of any length."""

    def rows_together(self, length: int) -> int:
        """How many texts to draw side by side, as far as memory goes."""
        model, numbers = self.model, COPIES * self.tokenizer.vocab_size
        if isinstance(model, Model):
            numbers += COPIES * model.hmm.num_states
        else:
            numbers += 2 * sum(part.numel() for part in model.network.cold(1).values())
        return rows_that_fit(self.device, 4 * numbers)

    def draw(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        length: int,
        temperature: float = 1.0,
        generator: torch.Generator,
    ) -> list[DrawnText]:
        """A text of at most `length` tokens after each prompt, prompt included; it may be empty.

        Each token is drawn from p(. | those before)^(1 / temperature), normalised, and its log p
        is that of this distribution.
        """
        model = self.model
        if not isinstance(model, Model):
            how: dict[str, Any] = {"goes_on": self.goes_on, "generator": generator}
            return model.draw(prompts, length=length, temperature=temperature, **how)
        if temperature != 1:
            raise InputError(
                f"temperature is {temperature:g}, but {self.name} is an HMM, whose texts are drawn "
                f"as it is; hmmlm temper makes a flatter one, to draw from."
            )
        check_prompts(prompts, length)
        found: dict[int, DrawnText] = {}
        for is_begun in (False, True):
            rows = [row for row, ids in enumerate(prompts) if bool(ids) == is_begun]
            if rows:
                begun = [np.array(prompts[row], dtype=np.int64) for row in rows]
                texts = self._draw(model, begun, length, generator)
                found |= dict(zip(rows, texts, strict=True))
        return [found[row] for row in range(len(prompts))]

    def _draw(
        self, model: Model, prompts: list[np.ndarray], length: int, generator: torch.Generator
    ) -> list[DrawnText]:
        """Texts of an HMM after prompts all of which are empty, or none."""
        eos, first = self.tokenizer.eos_id, min(map(len, prompts))
        given: dict[str, Any] = {"num_samples": len(prompts)}
        if first:
            tokens, lengths = (part.to(model.device) for part in pad(prompts))
            given = {"tokens": tokens, "lengths": lengths}
        if not self.goes_on:
            given |= {"stop_id": eos, "reset_id": eos}
        drawn = inference.sample(model.hmm, length=length - first, generator=generator, **given)
        rows = zip(prompts, drawn.tokens.cpu().numpy(), drawn.lengths.tolist(), strict=True)
        texts = [np.concatenate([ids, row[:size]])[:length] for ids, row, size in rows]
        scored = model.score_ids(texts, goes_on=self.goes_on)
        scores = [log_probs.astype(np.float32) for _, log_probs in scored]
        for ids, row in zip(prompts, scores, strict=True):
            row[: len(ids)] = np.nan
        return [DrawnText(*text) for text in zip(texts, scores, strict=True)]
