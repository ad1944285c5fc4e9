"""The loss of an HMM: nats per token, through expected counts, on the states that dropout keeps."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hmmlm.data.batches import Batch
from hmmlm.errors import InputError
from hmmlm.hmm import HMM
from hmmlm.inference import counts
from hmmlm.inference.gradients import with_gradient
from hmmlm.inference.joint import joint_log_prob
from hmmlm.inference.kernels import count
from hmmlm.ops.kernels import are_allowed
from hmmlm.params.dropout import FreeKeeper, Keeper, check_rate, keep_states, make_keeper
from hmmlm.products import full_products, tf32_products
from hmmlm.results import Belief, FoundBelief
from hmmlm.support import Support
from hmmlm.train.distributed import ONE, Ranks
from hmmlm.transitions import Factored

LEVELS = 8
"""Rates that a changing dropout goes through: for each of them some things are made once."""


@dataclass(frozen=True)
class Dropout:
    """The share of states, of each block where there are blocks, that a step leaves out.

    With a `last` it goes from `rate` to that over the whole of training, in `LEVELS` equal
    stretches. A step keeps at most `most` states, whatever the rate, but one of each block; where
    blocks differ in size, up to one more of each.
    """

    rate: float = 0.0
    last: float | None = None
    most: int | None = None

    def __post_init__(self) -> None:
        for rate in (self.rate, self.last):
            if rate is not None:
                check_rate(rate)
        if self.most is not None and self.most < 1:
            raise InputError(f"kept is {self.most:,} states but must be at least 1.")

    def at(self, done: float, states: int, blocks: int) -> float:
        """The rate when a share `done` of training is over, of so many states in blocks."""
        rate = self.rate
        if self.last is not None:
            level = min(LEVELS - 1, int(done * LEVELS))
            rate += (self.last - rate) * level / (LEVELS - 1)
        if self.most is None:
            return rate
        return max(rate, 1 - max(1, self.most // blocks) * blocks / states)


class Differentiated(NamedTuple):
    """What a loss made of a batch, on the device; the gradient is with the parameters.

    `value` are nats per token; where it `is_low` digits were lost. `carried` pairs tensors that are
    carried from batch to batch with what is to stand in them afterwards.
    """

    value: Float[Tensor, ""]
    is_low: Bool[Tensor, ""]
    carried: Sequence[tuple[Tensor, Tensor]] = ()


class HmmLoss:
    """-log p(batch) / tokens of a parameterisation, with state dropout.

    `model` maps a subset of states (None for all) to an HMM on a `support`. With `carry`, row b of
    a batch goes on where row b of the batch before ended (unless it says restart), from the belief
    over the states that were kept then; no gradient flows into that belief. After `reset_id`
    the chain starts afresh, without `reset_at_ends` only within a batch. With `joint`, labels of
    batches are states: where all of a batch are known the loss is -log p(batch, states) / tokens,
    over all states. All `ranks` keep the same states; `state` is that of all their rows.
    """

    can_widen = True

    def __init__(
        self,
        model: nn.Module,
        support: Support,
        *,
        dropout: Dropout | None = None,
        carry: bool = False,
        reset_id: int | None = None,
        reset_at_ends: bool = True,
        joint: bool = False,
        seed: int = 0,
        implementation: str = "auto",
        ranks: Ranks = ONE,
    ) -> None:
        self.ranks, self.joint = ranks, joint
        self.model, self.support, self.carry, self.reset_id = model, support, carry, reset_id
        self.reset_at_ends = reset_at_ends
        self.dropout = dropout or Dropout()
        # On the model's device, where a captured step draws from it.
        device = next(model.parameters()).device
        self.generator = torch.Generator(device).manual_seed(seed)
        self.keepers: dict[float, Keeper | FreeKeeper] = {}
        self.implementation = implementation
        self.belief: Belief | None = None
        self.held: dict[tuple[int, ...], Belief] = {}  # where captured steps carry it, by shape

    def __call__(self, batch: Batch, done: float) -> Float[Tensor, ""]:
        """The loss of a batch when a share `done` of training is over."""
        if self._is_known(batch):
            return self._joint(batch)
        device = next(self.model.parameters()).device
        rate, belief = self._rate(done), self._belief(batch)
        states = None
        if rate > 0 and self.support.is_partition:
            states = self.keeper(rate).draw(self.generator)
        elif rate > 0:
            states = keep_states(self.support, rate, self.generator, self._words(batch)).to(device)
        carried = None
        if belief is not None and states is not None:
            carried = belief.states[belief.states >= 0].unique()
        hmm = self.model(states, carried)
        with torch.autocast(device.type, enabled=False):  # the recursion keeps its digits
            value, self.belief = _loss(
                hmm,
                batch.tokens.to(device),
                lengths=batch.lengths.to(device),
                restart=batch.restart.to(device),
                reset_id=self.reset_id,
                belief=belief,
                implementation=self._implementation(),
            )
        return value

    def _is_known(self, batch: Batch) -> bool:
        """Whether all tokens of a batch come with their states."""
        if not self.joint or batch.labels is None or not batch.num_tokens:
            return False
        inside = torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None]
        return bool((batch.labels[inside] >= 0).all())

    def _joint(self, batch: Batch) -> Float[Tensor, ""]:
        assert batch.labels is not None
        device = next(self.model.parameters()).device
        hmm = self.model()
        with torch.autocast(device.type, enabled=False):
            found = joint_log_prob(
                hmm,
                batch.tokens.to(device),
                batch.labels.to(device),
                lengths=batch.lengths.to(device),
                restart=batch.restart.to(device),
                reset_id=self.reset_id,
            )
        return -found.sum() / batch.num_tokens

    def fit(self, batch: Batch, done: float) -> float | None:
        """The rate of dropout, if `differentiate` takes the batch; else None."""
        level = self._rate(done)
        if bool((batch.lengths < 1).any()) or self._is_known(batch):  # which are for the call
            return None
        if not self.carry:
            return level
        width = self.keeper(level).width if level > 0 else self.support.width
        shape, belief = (len(batch.tokens), width), self.belief
        if belief is None or bool(batch.restart[:, 0].all()):
            return None
        if len(belief.fresh) != shape[0] or belief.states.shape[1] > width:
            return None
        belief = _widen(belief, width)
        if shape not in self.held:
            self.held[shape] = FoundBelief(
                belief.states.clone(), belief.log_probs.float(), belief.fresh.clone()
            )
        held = self.held[shape]
        if belief is not held:
            for part, new in zip(held, belief, strict=True):
                part.copy_(new)
            self.belief = held
        return level

    @full_products()
    def differentiate(
        self,
        tokens: Int[Tensor, "B T"],
        restart: Bool[Tensor, "B T"],
        ends: Int[Tensor, " B"],
        level: float,
        precision: str,
        wide: bool = False,
    ) -> Differentiated:
        """As a call and its `backward`, by kernels, for batches that `fit`; see `Capturable`.

        `wide` messages are float64.
        """
        states = kept = extra = None
        belief = self.belief if self.carry else None
        if level > 0:
            keeper = self.keeper(level)
            states = keeper.draw(self.generator)
            kept = keeper.on(states)
            if belief is not None:
                extra = belief.states.flatten().clamp(min=0)
        with arithmetic(precision, tokens.device.type):
            hmm = self.model(states, extra, kept=kept)
        restart = restart.clone()
        if belief is None:
            restart[:, 0] = True
        if self.reset_id is not None:
            restart[:, 1:] |= tokens[:, :-1] == self.reset_id
        first, roots = None, hmm.fields()
        if belief is not None:
            if self.reset_at_ends:
                restart[:, 0] |= belief.fresh
            first = _entered(hmm, tokens[:, 0], belief, restart[:, 0])
            hmm = _without_extra(hmm)
            roots = (*hmm.fields(), first)
        with torch.no_grad():
            number = ends.sum()
            times = (-1.0 / number.to(torch.float32)).expand(len(ends))
            start = None if first is None else first.detach()
            counted = count(hmm.detach(), tokens, restart, ends, times, start, wide=wide)
            value = -counted.log_scales.sum(dtype=torch.float64) / number
            carried = ()
            if belief is not None:
                assert counted.log_last is not None
                after = self._after(hmm, tokens, ends, counted.log_last)
                carried = tuple(zip(belief, after, strict=True))
        torch.autograd.backward(roots, counted.fields)
        return Differentiated(value, counted.low.any(), carried)

    def _after(self, hmm: HMM, tokens: Tensor, ends: Tensor, log_probs: Tensor) -> Belief:
        """The belief at the end of each row."""
        last = tokens.gather(1, (ends - 1).clamp(min=0)[:, None])[:, 0]
        states = hmm.global_states(hmm.support.states_of(last))
        fresh = torch.zeros_like(last, dtype=torch.bool)
        if self.reset_id is not None:
            fresh = last == self.reset_id
        return FoundBelief(states, log_probs, fresh)

    def _implementation(self) -> str:
        """What was asked for, unless that may be kernels and they are not allowed."""
        may_be_kernels = self.implementation in ("auto", "kernel")
        return "scaled" if may_be_kernels and not are_allowed() else self.implementation

    def _rate(self, done: float) -> float:
        blocks = len(self.support.rows) if self.support.is_partition else 1
        return self.dropout.at(done, self.support.num_states, blocks)

    def keeper(self, rate: float) -> Keeper | FreeKeeper:
        """What draws the kept states at a rate."""
        if rate not in self.keepers:
            self.keepers[rate] = make_keeper(self.support.to(self.generator.device), rate)
        return self.keepers[rate]

    def state(self) -> dict[str, Tensor]:
        """The generator of the dropout and the belief that is carried."""
        held = {"generator": self.generator.get_state()}
        if self.carry and self.belief is not None:
            belief = FoundBelief(*(part.cpu() for part in self.belief))
            joined = _join_rows(self.ranks.gather(belief))
            held |= {f"belief.{key}": part for key, part in joined._asdict().items()}
        return held

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.generator.set_state(state["generator"].cpu())
        self.belief = None
        if "belief.states" in state:
            device = next(self.model.parameters()).device
            belief = FoundBelief(*(state[f"belief.{key}"].to(device) for key in Belief._fields))
            # Belief of a short batch, whose rows no rank could tell, is never carried: the next
            # batch is the first of an epoch.
            share = len(belief.fresh) // self.ranks.ranks
            self.belief = belief.select(
                torch.arange(share, device=device) + self.ranks.rank * share
            )

    def _words(self, batch: Batch) -> Int[Tensor, " N"]:
        """The words that must keep a state, those of all ranks."""
        inside = torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None]
        return torch.cat(self.ranks.gather(batch.tokens[inside].unique()))

    def _belief(self, batch: Batch) -> Belief | None:
        """What is carried into a batch: nothing where it starts anew; its last rows may be over."""
        if not self.carry or self.belief is None or bool(batch.restart[:, 0].all()):
            return None
        rows = torch.arange(batch.tokens.shape[0], device=self.belief.fresh.device)
        belief = self.belief.select(rows)
        if not self.reset_at_ends:
            belief = belief._replace(fresh=torch.zeros_like(belief.fresh))
        return belief


def _entered(
    hmm: HMM, words: Int[Tensor, " B"], belief: Belief, afresh: Bool[Tensor, " B"]
) -> Float[Tensor, "B K"]:
    """log p(z | words before) of the states of each row's first word, differentiable.

    Of an HMM on a subset the last sources are the belief's, one by one. Rows that start afresh are
    any numbers.
    """
    rows, width = belief.states.shape
    sources, log_probs = belief.states, belief.log_probs
    if hmm.state_ids is not None:
        places = torch.arange(rows * width, device=words.device).view(rows, width)
        sources = torch.where(belief.states < 0, -1, hmm.num_states + places)
    log_probs = torch.where(afresh[:, None], 0.0, log_probs)
    tile = hmm.transitions.tile(sources, hmm.support.states_of(words))
    return torch.logsumexp(tile + log_probs[:, :, None], 1)


def _without_extra(hmm: HMM) -> HMM:
    """The same whose sources are its states."""
    table, states = hmm.transitions, hmm.num_states
    if isinstance(table, Factored):
        left, right, log_norm = table.fields()
        table = table.with_fields(left[:states], right, log_norm[:states])
    else:
        table = table.with_fields(table.log_trans[:states])
    return replace(hmm, transitions=table, source_ids=hmm.state_ids)


def arithmetic(precision: str, place: str) -> AbstractContextManager[object]:
    """Within it a model makes its tables in a precision, on a type of device."""
    if precision == "tf32":
        return tf32_products()
    return torch.autocast(place, torch.bfloat16, enabled=precision == "bf16")


def _join_rows(beliefs: Sequence[Belief]) -> Belief:
    """The belief of all rows; those over fewer states are padded."""
    width = max(belief.states.shape[1] for belief in beliefs)
    parts = zip(*(_widen(belief, width) for belief in beliefs), strict=True)
    return FoundBelief(*(torch.cat(part) for part in parts))


def _widen(belief: Belief, width: int) -> Belief:
    """The same over so many slots; further ones are padding."""
    more = width - belief.states.shape[1]
    if more == 0:
        return belief
    return belief._replace(
        states=nn.functional.pad(belief.states, (0, more), value=-1),
        log_probs=nn.functional.pad(belief.log_probs, (0, more), value=-torch.inf),
    )


def loss(
    hmm: HMM,
    tokens: Int[Tensor, "B T"],
    *,
    lengths: Int[Tensor, " B"] | None = None,
    reset_id: int | None = None,
    restart: Bool[Tensor, "B T"] | None = None,
    belief: Belief | None = None,
    implementation: str = "auto",
) -> Float[Tensor, ""]:
    """-log p(tokens) / number of tokens, in nats; its gradient is minus the expected counts.

    Time and memory are those of `inference.counts`.
    """
    return _loss(
        hmm,
        tokens,
        lengths=lengths,
        reset_id=reset_id,
        restart=restart,
        belief=belief,
        implementation=implementation,
    )[0]


def _loss(
    hmm: HMM, tokens: Tensor, *, lengths: Tensor | None, **settings
) -> tuple[Float[Tensor, ""], Belief]:
    """The loss, and the belief at the end of each row."""
    counted = counts(hmm.detach(), tokens, lengths=lengths, **settings)
    number = tokens.numel() if lengths is None else int(lengths.sum())
    value = -counted.log_evidence.sum() / number

    def gradients(scale: Tensor) -> list[Tensor]:
        return [field * (-scale / number).to(field.dtype) for field in counted.fields()]

    return with_gradient(value, hmm, gradients), counted.belief
