"""Neural tables from a pretrained language model that reads the states as if they were words."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hmmlm.errors import InputError, check_least
from hmmlm.hugging_face import is_causal, outline, read_config, read_model
from hmmlm.params.features import Features
from hmmlm.params.mlp import assemble
from hmmlm.support import Support


class Shape(NamedTuple):
    """Sizes of a language model without its words, as far as it is used.

    `positions` is how many states it can read, if there is a limit. `size` is its number of
    parameters, `largest` that of the largest, and `passed` the numbers that go into and come out
    of its matrices for one state.
    """

    width: int
    depth: int
    positions: int | None
    size: int
    largest: int
    passed: int


class Body(nn.Module):
    """The layers of a causal language model, without its words and without dropout."""

    whole = True

    def __init__(self, model: Any) -> None:
        super().__init__()
        model.set_input_embeddings(nn.Identity())
        self.model = model.eval()

    def train(self, mode: bool = True) -> "Body":
        return super().train(False)

    def forward(self, inputs: Float[Tensor, "Z H"]) -> Float[Tensor, "Z H"]:
        places = torch.arange(len(inputs), device=inputs.device)
        # Given in full, so that nothing is decided by looking at numbers on the device.
        seen = places[:, None] >= places  # (Z, Z)
        answer = self.model(
            inputs_embeds=inputs[None],
            attention_mask=seen[None, None],
            position_ids=places[None],
            use_cache=False,
        )
        return answer.last_hidden_state[0]


@dataclass(frozen=True)
class Settings:
    """Lee & Berg-Kirkpatrick 2025, figure 7: one language model gives all features of all states.

    `checkpoint` is a causal language model that Hugging Face's transformers reads, from a folder or
    by its name on the hub; `gguf_file` is a file in that folder. It reads the embeddings of the
    states in their order, each after those before it, and a linear head for each role reads what it
    makes of them. All of its weights are learnt. `random`: its architecture, with weights drawn
    anew. `depth`: its first so many layers, 0 for all. `scale` is the standard deviation of the
    embeddings at the start. O(Z^2 width depth + Z size) time for every step, whatever is dropped.
    """

    checkpoint: str = ""
    gguf_file: str = ""
    random: bool = False
    depth: int = 0
    bias: bool = True
    scale: float = 0.2

    # Not to be set: of the designs that `assemble` knows, it is always this one.
    monolithic, split, composed, destination, start = True, False, False, True, "network"

    def __post_init__(self) -> None:
        check_least(self, depth=0, scale=0)
        if not self.checkpoint:
            raise InputError(
                "kind pretrained needs model.checkpoint: a folder that Hugging Face's transformers "
                "reads, or a name on the hub."
            )

    @property
    def width(self) -> int:
        return self.shape.width

    @cached_property
    def shape(self) -> Shape:
        """The sizes of the checkpoint, read from its description alone."""
        config = self._config
        model = outline(self.checkpoint, config, what="checkpoint")
        width, words = config.hidden_size, model.get_input_embeddings().weight.shape[1]
        if not is_causal(model):
            raise InputError(
                f"The checkpoint {self.checkpoint} is a {config.model_type} model, which does not "
                f"read from left to right alone; give a causal language model."
            )
        if words != width:
            raise InputError(
                f"The checkpoint {self.checkpoint} has {words:,} numbers for a word but {width:,} "
                f"in its layers, which must be as many; give another."
            )
        body = Body(model)
        sizes = [parameter.numel() for parameter in body.parameters()]
        matrices = [
            parameter.shape
            for module in body.modules()
            if not isinstance(module, nn.Embedding)
            for parameter in module.parameters(recurse=False)
            if parameter.dim() == 2
        ]
        return Shape(
            width=width,
            depth=config.num_hidden_layers,
            positions=getattr(config, "max_position_embeddings", None),
            size=sum(sizes),
            largest=max(sizes),
            passed=sum(map(sum, matrices)),
        )

    def check_states(self, states: int) -> None:
        """Refuses more states than the checkpoint can read."""
        most = self.shape.positions
        if most is not None and states > most:
            raise InputError(
                f"There are {states:,} states but {self.checkpoint} reads {most:,} at most; use "
                f"fewer, or another checkpoint."
            )

    def build(
        self,
        support: Support,
        *,
        word_probs: Float[Tensor, " V"] | None = None,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> Features:
        self.check_states(support.num_states)

        def network() -> nn.Module:
            seed = int(torch.randint(1 << 62, (), generator=generator)) if self.random else None
            model = read_model(
                self.checkpoint,
                what="checkpoint",
                dtype=dtype,
                gguf_file=self.gguf_file,
                config=self._config,
                seed=seed,
                attn_implementation="sdpa",
            )
            return Body(model)

        return assemble(
            self, support, network, word_probs=word_probs, generator=generator, dtype=dtype
        )

    @cached_property
    def _config(self) -> Any:
        """The description of the checkpoint, with as many layers as are wanted."""
        config = read_config(self.checkpoint, what="checkpoint", gguf_file=self.gguf_file)
        if self.depth > config.num_hidden_layers:
            raise InputError(
                f"depth is {self.depth:,} but {self.checkpoint} has {config.num_hidden_layers:,} "
                f"layers; use at most so many, or 0 for all."
            )
        if self.depth:
            config.num_hidden_layers = self.depth
            if getattr(config, "layer_types", None):
                config.layer_types = config.layer_types[: self.depth]
        return config
