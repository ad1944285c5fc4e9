"""A neural language model you can keep: its weights, settings and tokenizer, in one folder."""

import dataclasses
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from hmmlm import __version__
from hmmlm.baselines.kinds import NEURAL
from hmmlm.baselines.network import Carry, Network
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError
from hmmlm.hmm_file import FORMAT, read_tensors
from hmmlm.model import Model
from hmmlm.products import full_products
from hmmlm.text_model import (
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    TextModel,
    check_k,
    read_model_config,
    read_tokenizer,
)


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
        folder = Path(folder)
        config = read_model_config(folder)
        if "kind" not in config:
            raise InputError(f"{folder} is an HMM, not a neural model; read it with Model.load.")
        kind = config["kind"]
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
        return NeuralModel(kind, settings, network.to(device), tokenizer, config)

    @torch.no_grad()
    @full_products()
    def sample(
        self, count: int = 1, *, prompt: str = "", length: int = 100, seed: int | None = None
    ) -> list[str]:
        """Lines drawn from the model, each after the prompt, up to `<eos>` or `length` tokens."""
        generator, eos = self._generator(count, length, seed), self.tokenizer.eos_id
        start, carry = self._after(prompt)
        carry = {name: part.expand(count, *part.shape[1:]) for name, part in carry.items()}
        drawn: list[Tensor] = []
        is_over = torch.zeros(count, dtype=torch.bool, device=self.device)
        while len(drawn) < length and not bool(is_over.all()):
            probs = self.network.next_log_probs(carry).exp()
            words = torch.multinomial(probs, 1, generator=generator)
            words = words.masked_fill(is_over[:, None], eos)
            carry = self._read(words, carry)
            drawn.append(words[:, 0])
            is_over |= words[:, 0] == eos
        rows = torch.stack(drawn, 1).tolist()
        ends = [row.index(eos) + 1 if eos in row else len(row) for row in rows]
        pairs = zip(rows, ends, strict=True)
        return [self.tokenizer.decode([*start, *row[:end]]) for row, end in pairs]

    @torch.no_grad()
    @full_products()
    def next(self, prompt: str = "", *, k: int = 10) -> list[tuple[str, float]]:
        """The k most probable tokens after a prompt (all, if there are fewer), and p of each."""
        check_k(k)
        _, carry = self._after(prompt)
        found = self.network.next_log_probs(carry)[0].topk(min(k, self.network.vocab_size))
        pairs = zip(found.indices.tolist(), found.values.exp().tolist(), strict=True)
        return [(self.tokenizer.token(word), prob) for word, prob in pairs]

    def _after(self, prompt: str) -> tuple[list[int], Carry]:
        """The ids of a prompt, and what is carried after it."""
        if not prompt.strip():
            return [], self.network.cold(1)
        ids = torch.from_numpy(self._ids(prompt)[:-1])[None]
        return ids[0].tolist(), self._read(ids, None)

    def _read(self, words: Tensor, carry: Carry | None) -> Carry:
        eos = self.tokenizer.eos_id
        return self.network.score_tokens(words, carry=carry, reset_id=eos).carry


def load_model(
    folder: str | os.PathLike[str], *, device: str | torch.device = "cpu"
) -> Model | NeuralModel:
    """The model in a folder, of whatever kind."""
    kind = NeuralModel if "kind" in read_model_config(Path(folder)) else Model
    return kind.load(folder, device=device)
