"""Passes over chains that use all states at every step, by Triton kernels."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.inference.chain import Chain
from hmmlm.inference.recursion import Backward, DenseScaled, Forward, OnGpu
from hmmlm.ops.dense_chain import counts_kernel, kernel
from hmmlm.ops.links import CountSums
from hmmlm.ops.messages import scaled
from hmmlm.ops.trace import kernel as trace_kernel

KEPT = 1 << 27
"""Cells of the messages of a stretch."""


class DenseKernel(OnGpu):
    """Chains on a GPU that use all states at every step, in float32: a launch for each step."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        probs = chain.table.probs
        self.matrix = kernel.Matrix(probs.contiguous(), probs.sum(1))
        self.initial = chain.hmm.log_init.exp()
        self.exact_zeros = DenseScaled(chain).exact_zeros

    @property
    def stretch(self) -> int:
        return max(1, KEPT // (self.chain.batch * self.chain.hmm.num_states))

    def forward(
        self, start: int, stop: int, message: Tensor | None, *, keep: bool, best: bool = False
    ) -> Forward:
        """As of all passes; with `best`, messages are of best paths, and so are log_probs."""
        chain, done = self.chain, 0
        low = torch.zeros(chain.batch, dtype=torch.bool, device=self.initial.device)
        log_probs = self.initial.new_zeros(chain.batch, stop - start)
        if message is None and chain.belief is not None:
            joint = scaled.enter(chain.first) * chain.emission(0).exp()
            possible = torch.isfinite(chain.first) & torch.isfinite(chain.emission(0))
            low = ((joint < scaled.lowest(joint.dtype)) & possible).any(1)
            total = joint.amax(1) if best else joint.sum(1)
            message = joint / torch.where(total > 0, total, 1.0)[:, None]
            log_probs[:, 0], done = total.log(), 1
        ends = self._ends(start, stop)
        if done < stop - start:
            run = kernel.run_best if best else kernel.run
            how = {} if best else {"back": False}
            passed = run(
                self.matrix,
                self.initial,
                chain.hmm.log_emit,
                chain.tokens[:, start + done : stop],
                chain.restart[:, start + done : stop],
                (ends - done).clamp(min=0),
                exact_zeros=self.exact_zeros,
                message=message,
                **how,
            )
            joints = passed.joints
            totals = joints.amax(2) if best else joints.sum(2)  # (B, C + 1)
            active = chain.active[:, start + done : stop]
            log_probs[:, done:] = torch.where(active, totals[:, 1:].log(), 0.0)
            low |= passed.low[0] > 0
            joints.div_(torch.where(totals > 0, totals, 1.0)[:, :, None])
        else:
            assert message is not None
            joints = message[:, None]
        if message is not None:
            joints[:, 0] = message
        rows = torch.arange(chain.batch, device=ends.device)
        last = joints[rows, (ends - done).clamp(min=0)]
        return Forward(joints[:, 1 - done :] if keep else (), last, log_probs, low)

    def backward(
        self,
        start: int,
        stop: int,
        before: Tensor | None,
        forward: Forward,
        back: Tensor | None,
        sums: CountSums | None = None,
        times: Float[Tensor, " B"] | None = None,
    ) -> Backward:
        chain, messages = self.chain, forward.messages
        assert isinstance(messages, Tensor)
        ends, active = self._ends(start, stop), chain.active[:, start:stop]
        previous = torch.zeros_like(messages[:, 0]) if before is None else before
        # Messages as the forward pass made them: over the sum of the step before alone.
        scales = forward.log_probs.exp()[:, :, None]
        joints = torch.cat([previous[:, None], messages * scales], 1)
        tokens, log_emit = chain.tokens[:, start:stop], chain.hmm.log_emit
        restart = chain.restart[:, start:stop].clone()
        if before is None:
            restart[:, 0] = True  # what a carried belief says of step 0 is worked out apart
        passed = kernel.run_back(
            self.matrix,
            log_emit,
            tokens,
            restart,
            ends,
            joints,
            back,
            exact_zeros=self.exact_zeros,
        )
        low = passed.low[1] > 0
        returned = passed.backs[:, 0].clone()
        if sums is None or times is None:
            backs = passed.backs[:, 1:]
            meet = (messages * backs).sum(2, keepdim=True)
            low |= ((meet[:, :, 0] < scaled.lowest(meet.dtype)) & active).any(1)
            return Backward(messages.log() + backs.log() - meet.log(), returned, low)
        weight = passed.backs[:, 1] * chain.emission(start).exp()
        ones = torch.ones_like(times)
        met = counts_kernel.meet(passed, log_emit, tokens, restart, ends, ones)
        low |= met.low > 0
        used = torch.where(low, 0.0, times)
        # What was lost may be no number, which times nothing is not nothing: it is left out.
        unused = (used == 0)[:, None, None]
        met.messages.masked_fill_(unused, 0.0)
        met.pairs.mul_(used[:, None, None]).masked_fill_(unused, 0.0)
        sums.add_rows(slice(0, len(self.matrix.sums)), counts_kernel.pair_counts(self.matrix, met))
        if before is None and chain.belief is not None:
            message, link = chain.entry()
            entering = torch.where(chain.restart[:, 0], 0.0, used)
            low |= scaled.add_pairs(link, sums, scaled.enter(message), weight, entering)
        return Backward(met.posteriors, returned, low)

    def trace(
        self, messages: Float[Tensor, "B T Z"], num_paths: int, uniform: Tensor | None
    ) -> Int[Tensor, "B N T"]:
        """The way back through messages of all steps: the best, or drawn with `uniform` numbers."""
        chain = self.chain
        tile = torch.where(chain.active & ~chain.restart, 0, -1)
        tile[:, 0] = -1
        nothing = torch.zeros_like(messages[:, :1])
        if uniform is not None:
            uniform = torch.cat([torch.zeros_like(uniform[:, :, :1]), uniform], 2)
        places = trace_kernel.trace(
            torch.cat([nothing, messages], 1),
            self.matrix.probs.T.contiguous()[None],
            None,
            tile,
            chain.lengths,
            num_paths=num_paths,
            uniform=uniform,
            turned=True,
        )
        return places[:, :, 1:]
