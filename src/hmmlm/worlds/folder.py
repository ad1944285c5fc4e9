"""A world in a folder: its model, a corpus, and what the best reader makes of every token."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from hmmlm.data.corpus import SPLITS
from hmmlm.data.shards import ShardWriter, write_index
from hmmlm.distill.sampling import HELD_OUT, log_probs_file
from hmmlm.errors import check_least
from hmmlm.storage import json_line, new_folder
from hmmlm.worlds.prompts import accuracy, draw_prompts
from hmmlm.worlds.world import World, mean_nats

MODEL, CORPUS, ABOUT, PROMPTS = "model", "corpus", "world.json", "prompts.jsonl"


@dataclass(frozen=True)
class WorldSettings:
    """How many documents each split has, and what is written besides; 0 leaves a split out.

    `prompts` are so many for each number in `examples`, of `example_length` tokens each.
    """

    documents: int = 1000
    valid: int = 100
    test: int = 100
    seed: int = 0
    jsonl: bool = False
    prompts: int = 0
    examples: tuple[int, ...] = (0, 1, 2, 4, 8, 16, 32, 64)
    example_length: int = 5

    def __post_init__(self) -> None:
        check_least(self, documents=1, valid=0, test=0, seed=0, prompts=0, example_length=2)

    @property
    def sizes(self) -> dict[str, int]:
        """The documents of each split that is asked for."""
        asked = zip(SPLITS, (self.documents, self.valid, self.test), strict=True)
        return {name: size for name, size in asked if size}


def write_world(
    out: str | os.PathLike[str],
    world: World,
    settings: WorldSettings,
    *,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Writes a new folder, whole or not at all, and returns what its world.json says.

    `model` is the world as a model, `corpus` has documents drawn from it, with the model's log p of
    the held-out tokens where `hmmlm gap` looks for a teacher's. With `jsonl` each split has a file
    of documents: tokens, states, concept and log_probs. `prompts.jsonl` has the prompts.
    `progress` hears how many documents were done. Memory: a batch of documents.
    """
    with new_folder(out) as folder:
        world.model.save(folder / MODEL)
        (folder / CORPUS).mkdir()
        world.tokenizer.save(folder / CORPUS / "tokenizer.json")
        about: dict[str, Any] = {
            "world": {**world.settings, "concepts": world.num_concepts},
            "num_states": world.hmm.num_states,
            "optimum": {},
        }
        if settings.prompts:  # which not every world has
            about["prompts"] = _write_prompts(folder / PROMPTS, world, settings)
        splits, nats, sizes = {}, [], []
        for name, count in settings.sizes.items():
            split = _Split(folder, name, world, count, settings)
            for done in split.write():
                if progress is not None:
                    progress(done)
            splits[name] = split.written
            about["optimum"][name] = _optimum(split.nats, split.sizes)
            nats += split.nats
            sizes += split.sizes
        about |= write_index(folder / CORPUS, world.tokenizer, splits)
        if len(nats) > 1:
            about["entropy_rate"] = mean_nats(nats, sizes)._asdict()
        (folder / ABOUT).write_text(json.dumps(about, indent=1) + "\n")
    return about


class _Split:
    """Draws the documents of one split, each batch scored and written before the next."""

    def __init__(
        self, folder: Path, name: str, world: World, count: int, settings: WorldSettings
    ) -> None:
        self.folder, self.name, self.world, self.count = folder, name, world, count
        self.generator = _generator(settings.seed, SPLITS.index(name))
        self.jsonl = settings.jsonl
        self.nats: list[float] = []
        self.sizes: list[int] = []
        self.written: dict[str, Any] = {}

    def write(self) -> Iterator[int]:
        """Writes the split, and says after each batch how many documents it had."""
        world, numbers = self.world, []
        with ExitStack() as stack:
            shards = ShardWriter(self.folder / CORPUS, self.name, world.tokenizer)
            stack.enter_context(shards)
            lines: IO[str] | None = None
            if self.jsonl:
                path = self.folder / f"{self.name}.jsonl"
                lines = stack.enter_context(path.open("w", encoding="utf-8"))
            for batch in world.draw_batches(self.count, generator=self.generator):
                shards.add(np.concatenate([document.tokens for document in batch]))
                for document, log_probs in world.score(batch):
                    self.nats.append(-float(log_probs.sum()))
                    self.sizes.append(len(log_probs))
                    if self.name in HELD_OUT:
                        numbers.append(log_probs.astype("<f4"))
                    if lines is not None:
                        lines.write(
                            json_line(
                                {
                                    "tokens": document.tokens.tolist(),
                                    "states": document.states.tolist(),
                                    "concept": document.concept,
                                    "log_probs": log_probs.tolist(),
                                }
                            )
                        )
                yield len(batch)
            self.written = shards.written
        if numbers:
            np.save(log_probs_file(self.folder / CORPUS, self.name), np.concatenate(numbers))


def _optimum(nats: list[float], sizes: list[int]) -> dict[str, Any]:
    total, tokens = float(np.sum(nats)), int(np.sum(sizes))
    return {
        "documents": len(nats),
        "tokens": tokens,
        "nats": total,
        "perplexity": float(np.exp(total / tokens)),
    }


def _write_prompts(path: Path, world: World, settings: WorldSettings) -> list[dict[str, Any]]:
    """Writes the prompts, and says how often the best reader's answer is the label."""
    said, generator = [], _generator(settings.seed, len(SPLITS))
    with path.open("w", encoding="utf-8") as file:
        for examples in settings.examples:
            drawn = draw_prompts(
                world,
                settings.prompts,
                examples=examples,
                length=settings.example_length,
                generator=generator,
            )
            file.writelines(
                json_line({"examples": examples, **prompt._asdict()}) for prompt in drawn
            )
            impossible = sum(prompt.answer is None for prompt in drawn)
            said.append(
                {"examples": examples, "accuracy": accuracy(drawn), "impossible": impossible}
            )
    return said


def _generator(seed: int, part: int) -> torch.Generator:
    """One that shares nothing with those of other parts, nor with what made the world."""
    state = np.random.SeedSequence([seed, part]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))
