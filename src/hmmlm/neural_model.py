"""A neural language model you can keep: its weights, settings and tokenizer, in one folder."""

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor

from hmmlm import __version__
from hmmlm.baselines.kinds import NEURAL
from hmmlm.baselines.network import Network
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.devices import find_device
from hmmlm.distill.drawing import DrawnText, draw_texts
from hmmlm.errors import InputError, check_count
from hmmlm.hmm_file import FORMAT, read_tensors
from hmmlm.model import Model
from hmmlm.products import full_products
from hmmlm.text_model import (
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    TextModel,
    check_prompt,
    read_model_config,
    read_tokenizer,
)
from hmmlm.topic_model import KIND, TopicModel


@dataclass(frozen=True)
class NeuralModel(TextModel):
    """A network of a `kind`, as its `settings` build it, over the tokens of a tokenizer."""

    kind: str
    settings: Any
    network: Network
    tokenizer: Tokenizer
    config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.network.vocab_size != self.tokenizer.vocab_size:
            raise InputError(
                f"The network has {self.network.vocab_size:,} words but the tokenizer has "
                f"{self.tokenizer.vocab_size:,}; use the tokenizer that the model was trained with."
            )

    def __repr__(self) -> str:
        return f"NeuralModel({self.kind}, {self.network.vocab_size:,} words)"

    @property
    def lm(self) -> Network:
        return self.network

    @property
    def device(self) -> torch.device:
        return self.network.device

    def _parts(self) -> dict[str, Callable[[Path], object]]:
        facts = {
            "format": FORMAT,
            "hmmlm_version": __version__,
            "kind": self.kind,
            "settings": dataclasses.asdict(self.settings),
            "vocab_size": self.network.vocab_size,
            "vocabulary_hash": self.tokenizer.hash,
        }
        config = json.dumps({**facts, **self.config, **facts}, indent=1) + "\n"
        weights = {key: part.cpu().contiguous() for key, part in self.network.state_dict().items()}
        return {
            WEIGHTS: lambda path: save_file(weights, path, metadata={"format": FORMAT}),
            TOKENIZER: lambda path: path.write_text(self.tokenizer.as_json(), encoding="utf-8"),
            CONFIG: lambda path: path.write_text(config, encoding="utf-8"),
        }

    @staticmethod
    def load(
        folder: str | os.PathLike[str], *, device: str | torch.device = "cpu"
    ) -> "NeuralModel":
        """Reads a folder written by `save` and checks all of it. No pickle is ever loaded."""
        folder, place = Path(folder), find_device(device)
        config = read_model_config(folder)
        if "kind" not in config:
            raise InputError(f"{folder} is an HMM, not a neural model; read it with Model.load.")
        kind = config["kind"]
        if kind == KIND:
            raise InputError(
                f"{folder} is an HMM with topics, not a neural model; read it with TopicModel.load."
            )
        if kind not in NEURAL:
            raise InputError(
                f"{folder / CONFIG} has the kind {kind!r} but this version knows "
                f"{', '.join(NEURAL)}; use the version of hmmlm that wrote it."
            )
        tokenizer = read_tokenizer(folder, config)
        weights = read_tensors(folder / WEIGHTS)
        dtype = next((part.dtype for part in weights.values()), torch.float32)
        try:
            settings = NEURAL[kind].Settings(**config["settings"])
            network = settings.build(
                tokenizer.vocab_size,
                start_id=tokenizer.eos_id,
                generator=torch.Generator(),
                dtype=dtype,
            )
            network.load_state_dict(weights)
        except (KeyError, TypeError, RuntimeError) as error:
            why = str(error).replace("\n", " ")
            raise InputError(
                f"{folder / WEIGHTS} does not fit the settings in {CONFIG} ({why}); copy the "
                f"folder again as a whole."
            ) from error
        return NeuralModel(kind, settings, network.to(place), tokenizer, config)

    def sample(
        self, count: int = 1, *, prompt: str = "", length: int = 100, seed: int | None = None
    ) -> list[str]:
        """Lines drawn from the model, each after the prompt, up to `<eos>` or `length` tokens."""
        generator = self._generator(count, length, seed)
        start = self._start(prompt)
        texts = self.draw([start] * count, length=len(start) + length, generator=generator)
        return [self.tokenizer.decode(text.tokens.tolist()) for text in texts]

    @full_products()
    def draw(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        length: int,
        temperature: float = 1.0,
        goes_on: bool = False,
        generator: torch.Generator,
    ) -> list[DrawnText]:
        """A text of at most `length` ids after each prompt of ids, prompt included, up to `<eos>`.

        One that `goes_on` after `<eos>` has `length` ids, and the network forgets nothing there.
        Each token is drawn from p(. | those before)^(1 / temperature), normalised, and its log p
        is that of this distribution.
        """
        reader = _Reader(self.network, len(prompts), temperature, starts_cold=not goes_on)
        ends = [] if goes_on else [self.tokenizer.eos_id]
        found = draw_texts(reader, prompts, length=length, end_ids=ends, generator=generator)
        if found is None:
            raise InputError(
                "The network gave a probability that is not a number; train it again, with a lower "
                "learning rate."
            )
        return found

    @torch.no_grad()
    @full_products()
    def next(self, prompt: str = "", *, k: int = 10) -> list[tuple[str, float]]:
        """The k most probable tokens after a prompt (all, if there are fewer), and p of each."""
        check_count("k", k)
        after = _Reader(self.network, 1).read(torch.tensor([self._start(prompt)], dtype=torch.long))
        found = after[0].topk(min(k, self.network.vocab_size))
        pairs = zip(found.indices.tolist(), found.values.exp().tolist(), strict=True)
        return [(self.tokenizer.token(word), prob) for word, prob in pairs]

    def _start(self, prompt: str) -> list[int]:
        """The ids of a prompt."""
        return self._ids(prompt)[:-1].tolist() if check_prompt(prompt).strip() else []


class _Reader:
    """What a network has read, as it carries it; if it `starts_cold` after `<eos>`, since then."""

    def __init__(
        self, network: Network, rows: int, temperature: float = 1.0, *, starts_cold: bool = True
    ) -> None:
        self._network, self._temperature = network, temperature
        self._reset_id = network.start_id if starts_cold else None
        self._carry = network.cold(rows)

    def read(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        if tokens.shape[1]:
            how: dict[str, Any] = {"carry": self._carry, "reset_id": self._reset_id}
            self._carry = self._network.score_tokens(tokens, **how).carry
        found = self._network.next_log_probs(self._carry)
        return found if self._temperature == 1 else (found / self._temperature).log_softmax(1)

    def keep(self, rows: Int[Tensor, " N"]) -> None:
        self._carry = {name: part[rows] for name, part in self._carry.items()}


def load_model(
    folder: str | os.PathLike[str], *, device: str | torch.device = "cpu"
) -> Model | NeuralModel | TopicModel:
    """The model in a folder, of whatever kind."""
    kind = read_model_config(Path(folder)).get("kind")
    if kind is None:
        return Model.load(folder, device=device)
    return (TopicModel if kind == KIND else NeuralModel).load(folder, device=device)
