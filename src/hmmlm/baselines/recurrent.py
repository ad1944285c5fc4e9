"""One layer of an LSTM, by PyTorch's own code for it (cuDNN's on a GPU)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from hmmlm.baselines.network import Making, drop

State = tuple[Float[Tensor, "B H"], Float[Tensor, "B H"]]


class LstmLayer(nn.Module):
    """h_t, c_t = LSTM(x_t, h_t-1, c_t-1), with dropout of the weights from h_t-1 (weight-drop).

    Dropped weights are drawn once a call (Merity et al. 2017): they are the same at every step, and
    so all steps are one call of a fused kernel. It works in the type of its weights, whatever
    autocast says. O(T (I + H) H).
    """

    def __init__(self, inputs: int, width: int, making: Making) -> None:
        super().__init__()
        self.width, gates, bound = width, 4 * width, width**-0.5
        self.from_input = making.uniform(gates, inputs, bound=bound)
        self.from_hidden = making.uniform(gates, width, bound=bound)
        self.input_bias = making.uniform(gates, bound=bound)
        self.hidden_bias = making.uniform(gates, bound=bound)

    def forward(
        self,
        inputs: Float[Tensor, "B T I"],
        state: State,
        lengths: Int[Tensor, " B"] | None = None,
        *,
        weight_drop: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> tuple[Float[Tensor, "B T H"], State]:
        """h at every step, 0 past the end of a row, and the state at the end of each."""
        hidden = drop(self.from_hidden, weight_drop, generator)
        weights = [self.from_input, hidden, self.input_bias, self.hidden_bias]
        if hidden.is_cuda:
            weights = _one_block(weights)
        with torch.autocast(inputs.device.type, enabled=False):
            return self._run(inputs.to(hidden.dtype), state, lengths, weights)

    def _run(
        self, inputs: Tensor, state: State, lengths: Tensor | None, weights: list[Tensor]
    ) -> tuple[Tensor, State]:
        h, c = state[0][None], state[1][None]
        keeps = torch.is_grad_enabled()  # what a gradient needs
        if lengths is None:
            out, h, c = torch._VF.lstm(inputs, (h, c), weights, True, 1, 0.0, keeps, False, True)
            return out, (h[0], c[0])
        packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
        order, back = packed.sorted_indices, packed.unsorted_indices
        start = (h[:, order], c[:, order])
        data, h, c = torch._VF.lstm(
            packed.data, packed.batch_sizes, start, weights, True, 1, 0.0, keeps, False
        )
        packed = PackedSequence(data, packed.batch_sizes, order, back)
        out, _ = pad_packed_sequence(packed, batch_first=True, total_length=inputs.shape[1])
        return out, (h[0, back], c[0, back])


def _one_block(weights: list[Tensor]) -> list[Tensor]:
    """The same in one piece of memory, as cuDNN wants them; it would copy them with a warning."""
    block = torch.cat([weight.flatten() for weight in weights])
    parts = block.split([weight.numel() for weight in weights])
    return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]
