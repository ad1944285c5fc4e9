"""A model with topics you can keep: its HMM, its topics and its tokenizer, in one folder."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor

from hmmlm import __version__, inference
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.devices import find_device
from hmmlm.errors import InputError, check_count
from hmmlm.hmm_file import FORMAT, read_hmm, read_tensors, write_hmm
from hmmlm.model import Model, sizes_of
from hmmlm.text_model import (
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    TextModel,
    check_prompt,
    read_model_config,
    read_tokenizer,
)
from hmmlm.topics import TopicHMM, TopicLM, line_topics

KIND, TOPICS = "topics", "topics.safetensors"
NAMES = ("word_tilts", "state_tilts", "log_norms", "log_start", "log_moves")


@dataclass(frozen=True)
class TopicModel(TextModel):
    """An HMM with topics over the tokens of a tokenizer.

    Every line is read from a cold start, its topic unknown; `evaluate` in mode "streaming" follows
    topics from line to line.
    """

    topics: TopicHMM
    tokenizer: Tokenizer
    config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.topics.hmm.vocab_size != self.tokenizer.vocab_size:
            raise InputError(
                f"The HMM emits {self.topics.hmm.vocab_size:,} words but the tokenizer has "
                f"{self.tokenizer.vocab_size:,}; use the tokenizer that the model was trained with."
            )

    def __repr__(self) -> str:
        hmm = self.topics.hmm
        return (
            f"TopicModel({self.topics.num_topics:,} topics, {hmm.num_states:,} states, "
            f"{hmm.vocab_size:,} words)"
        )

    @property
    def lm(self) -> TopicLM:
        return TopicLM(self.topics, self.tokenizer.eos_id)

    @property
    def device(self) -> torch.device:
        return self.topics.hmm.device

    def _parts(self) -> dict[str, Callable[[Path], object]]:
        facts = {
            "format": FORMAT,
            "hmmlm_version": __version__,
            "kind": KIND,
            "num_topics": self.topics.num_topics,
            **sizes_of(self.topics.hmm),
            "vocabulary_hash": self.tokenizer.hash,
        }
        config = json.dumps({**facts, **self.config, **facts}, indent=1) + "\n"
        tables = zip(NAMES, self.topics.topics(), strict=True)
        tensors = {name: part.detach().cpu().contiguous() for name, part in tables}
        return {
            WEIGHTS: lambda path: write_hmm(path, self.topics.hmm),
            TOPICS: lambda path: save_file(tensors, path, metadata={"format": FORMAT}),
            TOKENIZER: lambda path: path.write_text(self.tokenizer.as_json(), encoding="utf-8"),
            CONFIG: lambda path: path.write_text(config, encoding="utf-8"),
        }

    @staticmethod
    def load(folder: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> "TopicModel":
        """Reads a folder written by `save` and checks all of it. No pickle is ever loaded."""
        folder, place = Path(folder), find_device(device)
        config = read_model_config(folder)
        if config.get("kind") != KIND:
            raise InputError(f"{folder} has no topics; hmmlm topics gives an HMM some.")
        tokenizer = read_tokenizer(folder, config)
        hmm, tensors = read_hmm(folder / WEIGHTS), read_tensors(folder / TOPICS)
        if set(tensors) != set(NAMES):
            raise InputError(
                f"{folder / TOPICS} holds {', '.join(sorted(tensors)) or 'nothing'}, but topics "
                f"have {', '.join(NAMES)}; copy the folder again as a whole."
            )
        try:
            topics = TopicHMM(hmm, *(tensors[name] for name in NAMES)).validate()
        except InputError as error:
            raise InputError(f"{folder / TOPICS}: {error}") from error
        return TopicModel(topics.to(place), tokenizer, config)

    def part(self, topic: int) -> Model:
        """The model of lines whose topic is known: an HMM, to be asked whatever HMMs are asked."""
        kept = {key: self.config[key] for key in ("labels", "blocks") if key in self.config}
        return Model(self.topics.part(topic), self.tokenizer, {**kept, "topic": topic})

    def topic_probs(self, line: str) -> list[float]:
        """p(topic | a line), of a line that stands alone."""
        ids = torch.from_numpy(self._ids(line))[None]
        before, last = self._since_eos(ids[:, :-1]), ids[:, -1:]
        return self._topics_of(torch.cat([before, last], 1), line)[0].exp().tolist()

    def sample(
        self, count: int = 1, *, prompt: str = "", length: int = 100, seed: int | None = None
    ) -> list[str]:
        """Lines drawn from the model, each after the prompt, up to `<eos>` or `length` tokens.

        Each has a topic, drawn from p(topic | prompt).
        """
        generator = self._generator(count, length, seed)
        weights = self._topics_of(self._since_eos(self._start(prompt)), prompt)[0].exp()
        drawn = torch.multinomial(weights, count, replacement=True, generator=generator).tolist()
        lines: dict[int, list[str]] = {}
        for topic in sorted(set(drawn)):
            own = int(torch.randint(1 << 62, (), generator=generator, device=self.device))
            how: dict[str, Any] = {"prompt": prompt, "length": length, "seed": own}
            lines[topic] = self.part(topic).sample(drawn.count(topic), **how)
        return [lines[topic].pop() for topic in drawn]

    def next(self, prompt: str = "", *, k: int = 10) -> list[tuple[str, float]]:
        """The k most probable tokens after a prompt (all, if there are fewer), and p of each."""
        check_count("k", k)
        ids, found = self._start(prompt), []
        for hmm in self.topics.parts():
            state = inference.start(hmm, reset_id=self.tokenizer.eos_id)
            if ids.shape[1]:
                state = inference.advance(state, ids.to(self.device))
            found.append(inference.next_log_probs(state)[0])
        weights = self._topics_of(self._since_eos(ids), prompt)[0]
        weighted = torch.stack(found).double() + weights[:, None]
        best = torch.logsumexp(weighted, 0).topk(min(k, weighted.shape[1]))
        pairs = zip(best.indices.tolist(), best.values.exp().tolist(), strict=True)
        return [(self.tokenizer.token(word), prob) for word, prob in pairs]

    def _start(self, prompt: str) -> Tensor:
        """The ids of a prompt, (1, T)."""
        ids = self._ids(prompt)[:-1] if check_prompt(prompt).strip() else self._ids("")[:0]
        return torch.from_numpy(ids)[None]

    def _since_eos(self, ids: Tensor) -> Tensor:
        """What follows the last `<eos>`, after which a line starts cold, (1, T)."""
        ends = (ids[0] == self.tokenizer.eos_id).nonzero()
        return ids[:, int(ends[-1]) + 1 if len(ends) else 0 :]

    def _topics_of(self, ids: Tensor, text: str) -> Float[Tensor, "1 G"]:
        """log p(topic | these tokens of a text)."""
        found = line_topics(self.topics, ids)
        if bool(found.isneginf().all()):
            raise InputError(
                f"The text {text!r} has probability zero under this model, whatever its topic; "
                f"give another."
            )
        return found
