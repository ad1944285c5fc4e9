"""Associative scan over time: the belief at every C-th step in O(log T) products of matrices.

A text is cut into pieces of C steps. Each piece is one K x K matrix, the product of its steps;
the products of all prefixes follow in log2(T / C) rounds of batched products, and give the belief
at the start of every piece. Then all pieces run side by side, as rows of one batch.
"""

from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.inference.chain import Chain, all_states
from hmmlm.inference.recursion import Stepwise
from hmmlm.ops.links import finite
from hmmlm.ops.messages import scaled
from hmmlm.results import Belief, FoundBelief, StateProbs

SCAN = "scan"
LIMIT = 1 << 28
"""Cells of the piece matrices, B x T/C x K x K, above which a scan is refused."""


class Scan:
    """A chain cut into pieces of about sqrt(T) steps. O(T K^3) time, O(B T/C K^2) memory."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        if any(chain.wide):
            raise InputError(
                "scan takes missing tokens only where every word may come from every state; "
                "use implementation='scaled'."
            )
        self.size = max(1, int(chain.steps**0.5))
        self.count = -(-chain.steps // self.size)
        width = chain.hmm.support.width
        cells = chain.batch * self.count * width**2
        if cells > LIMIT:
            raise InputError(
                f"scan needs {chain.batch:,} x {self.count:,} matrices of {width:,} x {width:,}, "
                f"{cells:,} cells, and takes at most {LIMIT:,}; use implementation='scaled'."
            )
        starts = torch.arange(self.count, device=chain.hmm.device) * self.size
        self.exists = starts < chain.lengths[:, None]  # (B, N): the piece has a token
        self.rows, self.pieces = self.exists.nonzero(as_tuple=True)  # (R,) each

    def forward(self) -> tuple[Chain, Bool[Tensor, " B"]]:
        """The chain of all pieces, each with the belief at its start; and rows to be redone."""
        chain = self.chain
        first = Stepwise(chain, scaled).forward(0, min(self.size, chain.steps), None, keep=False)
        low = first.low
        before = [first.last[:, None], first.last[:, None]]  # piece 0 takes no belief from here
        if self.count > 2:
            products, lost = self.products
            prefixes, more = _prefix_products(
                products[:, 1:-1], lost[:, 1:-1], self.possible[:, 1:-1], self.exists[:, 1:-1]
            )
            reach = first.last[:, None, None] @ prefixes
            total = reach.sum(-1, keepdim=True)
            tiny = total[..., 0, 0] < scaled.lowest(total.dtype)
            low = low | ((tiny | more) & self.exists[:, 2:]).any(1)
            before.append((reach / torch.where(total > 0, total, 1.0))[:, :, 0])
        beliefs = torch.cat(before, 1)[:, : self.count]  # (B, N, K)
        return self._rebatch(beliefs), low

    def backward(self) -> tuple[Float[Tensor, "R K"], Bool[Tensor, " B"]]:
        """The backward message at the last step of every piece, its largest entry 1.

        Also the rows to be redone.
        """
        products, lost = self.products
        backs = torch.ones_like(products[:, :, :, 0])
        low = torch.zeros_like(self.exists[:, 0])
        if self.count > 1:
            suffix, more = _prefix_products(
                products[:, 1:].flip(1).transpose(2, 3),
                lost[:, 1:].flip(1),
                self.possible[:, 1:].flip(1).transpose(2, 3),
                self.exists[:, 1:].flip(1),
            )
            reach = suffix.transpose(2, 3).flip(1).sum(-1)
            most = reach.amax(-1, keepdim=True)
            backs[:, :-1] = reach / torch.where(most > 0, most, 1.0)
            low = (more.flip(1) & self.exists[:, 1:]).any(1)
        return backs[self.rows, self.pieces], low

    def join(self, values: Shaped[Tensor, "R C *rest"]) -> Shaped[Tensor, "B T *rest"]:
        """Values of the steps of all pieces, put back into rows of text."""
        whole = values.new_zeros(self.chain.batch, self.count, self.size, *values.shape[2:])
        whole[self.rows, self.pieces] = values
        return whole.flatten(1, 2)[:, : self.chain.steps]

    def join_states(self, pieces: StateProbs, record: StateProbs) -> None:
        """Distributions of the steps of all pieces, put back into rows of text."""
        record.log_probs.copy_(self.join(pieces.log_probs))
        record.log_probs.masked_fill_(~self.chain.active[:, :, None], -torch.inf)
        if not self.chain.dense:
            record.states.copy_(self.join(pieces.states))
            record.states.masked_fill_(~self.chain.active[:, :, None], -1)

    def last(self, belief: Belief) -> Belief:
        """The belief at the end of each row, from those at the end of each piece."""
        ends = self.exists.sum(1).cumsum(0) - 1  # pieces of a row are neighbours
        return belief.select(ends)

    @cached_property
    def products(self) -> tuple[Float[Tensor, "B N K K"], Bool[Tensor, "B N"]]:
        """The product of the steps of every piece, and which of them lost digits.

        Entry (i, j) leads from the state before the piece to that at its end, up to a factor.
        Steps past a row's end change nothing.
        """
        chain, size = self.chain, self.size
        width = chain.hmm.support.width
        shape = (chain.batch * self.count, width, width)
        product = torch.eye(width, dtype=chain.hmm.dtype, device=chain.hmm.device).expand(shape)
        starts = torch.arange(self.count, device=product.device) * size
        lost = torch.zeros(shape[0], dtype=torch.bool, device=product.device)
        before = self._real(starts - 1)
        for offset in range(size):
            steps = (starts + offset).clamp(max=chain.steps - 1)
            active = (chain.active[:, steps] & (starts + offset < chain.steps)).flatten()
            after = _scale(product @ self._matrices(steps))
            possible = before[:, :, None] & self._real(steps)[:, None, :]
            lost |= _lost(after, possible) & active
            product = torch.where(active[:, None, None], after, product)
        whole = (chain.batch, self.count)
        return product.reshape(*whole, width, width), lost.reshape(whole)

    def _real(self, steps: Int[Tensor, " N"]) -> Bool[Tensor, "R K"]:
        """Which slots of some steps are states and not padding."""
        chain = self.chain
        if chain.dense:
            shape = (chain.batch * len(steps), chain.hmm.num_states)
            return torch.ones(shape, dtype=torch.bool, device=steps.device)
        tokens = chain.tokens[:, steps.clamp(min=0)].flatten()
        return chain.hmm.support.states_of(tokens) >= 0

    @cached_property
    def possible(self) -> Bool[Tensor, "B N K K"]:
        """Which entries of the products stand between two states and not in padding."""
        chain = self.chain
        edges = torch.arange(self.count + 1, device=self.exists.device) * self.size - 1
        steps = edges.clamp(min=0).minimum(chain.lengths[:, None] - 1)  # (B, N + 1)
        if chain.dense:
            real = torch.ones(*steps.shape, chain.hmm.num_states, dtype=torch.bool).to(steps.device)
        else:
            states = chain.hmm.support.states_of(chain.tokens.gather(1, steps).flatten())
            real = (states >= 0).view(*steps.shape, -1)
        return real[:, :-1, :, None] & real[:, 1:, None, :]

    def _matrices(self, steps: Int[Tensor, " N"]) -> Float[Tensor, "R K K"]:
        """p(z_t | z_t-1) p(x_t | z_t), up to a factor, at some steps of every row."""
        chain = self.chain
        tokens = chain.tokens[:, steps].flatten()
        previous = chain.tokens[:, (steps - 1).clamp(min=0)].flatten()
        emission = chain.hmm.log_emit[tokens.clamp(min=0)]
        emission = emission.masked_fill((tokens < 0)[:, None], 0.0)
        restart = chain.restart[:, steps].flatten()
        if chain.dense:
            log_step = chain.table.log_rows[None] + emission[:, None, :]
            initial = chain.hmm.log_init.expand_as(emission)
        else:
            sources = chain.hmm.support.states_of(previous)
            states = chain.hmm.support.states_of(tokens)
            log_step = chain.tiles(sources, states).log_tile + emission[:, None, :]
            initial = chain.hmm.log_init[states.clamp(min=0)]
        log_step = torch.where(restart[:, None, None], (initial + emission)[:, None, :], log_step)
        most = log_step.amax((1, 2), keepdim=True)
        return (log_step - finite(most)).exp()

    def _rebatch(self, beliefs: Float[Tensor, "B N K"]) -> Chain:
        chain, size = self.chain, self.size
        tokens = self._cut(chain.tokens)
        lengths = (chain.lengths[self.rows] - self.pieces * size).clamp(max=size)
        starts = self.pieces * size
        fresh = chain.restart[self.rows, starts]
        if chain.dense:
            states = all_states(chain)[:1].expand(len(self.rows), -1)
        else:
            states = chain.hmm.support.states_of(chain.tokens[self.rows, (starts - 1).clamp(min=0)])
        states, log_probs = chain.hmm.global_states(states), beliefs[self.rows, self.pieces].log()
        heads = (
            (self.pieces == 0).nonzero().flatten()
        )  # in order of rows: they enter as the row does
        if chain.belief is not None:
            width = max(states.shape[1], chain.belief.states.shape[1])
            states = _pad(states, width, -1)
            log_probs = _pad(log_probs, width, -torch.inf)
            states[heads] = _pad(chain.belief.states, width, -1)
            entering = chain.belief.log_probs.to(log_probs)
            log_probs[heads] = _pad(entering, width, -torch.inf)
        return Chain(
            chain.hmm,
            tokens,
            lengths=lengths,
            belief=FoundBelief(states, log_probs, fresh),
            reset_id=chain.reset_id,
            restart=self._cut(chain.restart),
            table=chain.table,
        )

    def _cut(self, values: Shaped[Tensor, "B T"]) -> Shaped[Tensor, "R C"]:
        """Values of the steps of a text as those of its pieces, zero past the end."""
        padded = torch.nn.functional.pad(values, (0, self.count * self.size - self.chain.steps))
        return padded.view(self.chain.batch, self.count, self.size)[self.rows, self.pieces]


def _prefix_products(
    matrices: Float[Tensor, "B N K K"],
    lost: Bool[Tensor, "B N"],
    possible: Bool[Tensor, "B N K K"],
    exists: Bool[Tensor, "B N"],
) -> tuple[Float[Tensor, "B N K K"], Bool[Tensor, "B N"]]:
    """Products of all prefixes, each up to a factor, in log2(N) rounds (Hillis and Steele).

    Also which of them lost digits, or were made from what had. A matrix that does not exist is
    the identity.
    """
    reach = 1
    while reach < matrices.shape[1]:
        joined = _scale(matrices[:, :-reach] @ matrices[:, reach:])
        entries = possible[:, :-reach].any(3)[..., None] & possible[:, reach:].any(2)[:, :, None]
        small = _lost(joined.flatten(0, 1), entries.flatten(0, 1)).view(joined.shape[:2])
        either = exists[:, :-reach] | exists[:, reach:]
        small = (small & either) | lost[:, :-reach] | lost[:, reach:]
        matrices = torch.cat([matrices[:, :reach], joined], 1)
        exists = torch.cat([exists[:, :reach], either], 1)
        possible = torch.cat([possible[:, :reach], entries], 1)
        lost = torch.cat([lost[:, :reach], small], 1)
        reach *= 2
    return matrices, lost


def _pad(values: Tensor, width: int, value: float | int) -> Tensor:
    return torch.nn.functional.pad(values, (0, width - values.shape[1]), value=value)


def _scale(matrices: Float[Tensor, "*shape K L"]) -> Float[Tensor, "*shape K L"]:
    """Matrices with a largest entry of 1."""
    most = matrices.amax((-2, -1), keepdim=True)
    return matrices / torch.where(most > 0, most, 1.0)


def _lost(values: Float[Tensor, "R K L"], possible: Bool[Tensor, "R K L"]) -> Bool[Tensor, " R"]:
    """Matrices where a possible entry is too small to have kept its digits."""
    return ((values < scaled.lowest(values.dtype)) & possible).any(2).any(1)
