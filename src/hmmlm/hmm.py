"""The HMM: normalised log tables and the map from words to states, frozen."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.ops.kernels import why_not
from hmmlm.ops.links import finite
from hmmlm.products import full_products
from hmmlm.support import Support
from hmmlm.transitions import GROUP, Dense, Factored, Transitions

TOLERANCE = 1e-3
"""How far from one the probabilities of a row may sum before the table is refused."""

CHECKED = 1 << 30
"""A transition table of up to this many cells (32,768 states) is checked whole."""

SAMPLED = 1 << 28
"""Of a larger table this many cells are checked: 256 rows of a million states."""

SQUARED = 512
"""Up to this many states `long_run` squares the transition table; above, it takes steps."""


@dataclass(frozen=True)
class HMM:
    """p(z_1), p(z' | z) and p(x | z), as natural logarithms.

    `log_emit[w, k]` is log p(w | z) for the k-th state z of word w in `support`, -inf in padding.
    An HMM on a subset of a larger model's states says which: `state_ids` are the global ids of its
    states, and `source_ids` those of its transition rows: the states first, then states that only
    carry belief in. None means that global and local ids are the same.

    `log_soft[n, z]` is how well state z fits piece n of soft evidence (`inference.soften`). Token
    V + n stands for it; it is kept apart from the words because any state may emit it.

    The constructor checks nothing, so that a training step does not pay for it; `from_tables` and
    `validate` check everything.
    """

    log_init: Float[Tensor, " Z"]
    transitions: Transitions
    log_emit: Float[Tensor, "V K"]
    support: Support
    state_ids: Int[Tensor, " Z"] | None = None
    source_ids: Int[Tensor, " S"] | None = None
    log_soft: Float[Tensor, "N Z"] | None = None

    def __repr__(self) -> str:
        return f"HMM({self.num_states:,} states, {self.vocab_size:,} words)"

    @property
    def num_states(self) -> int:
        return self.log_init.shape[0]

    @property
    def vocab_size(self) -> int:
        return self.log_emit.shape[0]

    @property
    def num_soft(self) -> int:
        """How many pieces of soft evidence there are beside the words."""
        return 0 if self.log_soft is None else self.log_soft.shape[0]

    @cached_property
    def with_soft_words(self) -> "HMM":
        """The same with its soft evidence as words of ids V and up; for a dense support."""
        assert self.log_soft is not None  # else it would hold itself, and never be freed
        support = self.support
        rows = support.row_of_word.new_zeros(self.vocab_size + self.num_soft)
        return replace(
            self,
            log_emit=torch.cat([self.log_emit, self.log_soft]),
            support=Support(support.rows, rows, support.num_states),
            log_soft=None,
        )

    @property
    def dtype(self) -> torch.dtype:
        return self.log_init.dtype

    @property
    def device(self) -> torch.device:
        return self.log_init.device

    def fields(self) -> tuple[Tensor, ...]:
        """The tables: start, transitions (one, or three factors), emissions."""
        return (self.log_init, *self.transitions.fields(), self.log_emit)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> "HMM":
        """The same on a device, in a dtype; what is None stays as it is."""
        device = self.device if device is None else device
        state_ids, source_ids = (
            None if ids is None else ids.to(device) for ids in (self.state_ids, self.source_ids)
        )
        return HMM(
            self.log_init.to(device, dtype),
            self.transitions.with_fields(*(f.to(device, dtype) for f in self.transitions.fields())),
            self.log_emit.to(device, dtype),
            self.support.to(device),
            state_ids,
            source_ids,
            None if self.log_soft is None else self.log_soft.to(device, dtype),
        )

    def detach(self) -> "HMM":
        """The same values outside any gradient graph."""
        transitions = self.transitions.with_fields(*(f.detach() for f in self.transitions.fields()))
        return HMM(
            self.log_init.detach(),
            transitions,
            self.log_emit.detach(),
            self.support,
            self.state_ids,
            self.source_ids,
            None if self.log_soft is None else self.log_soft.detach(),
        )

    @staticmethod
    def from_tables(
        log_init: Float[Tensor, " Z"],
        log_trans: Float[Tensor, "Z Z"] | Transitions,
        log_emit: Float[Tensor, "Z V"],
        *,
        support: Support | None = None,
    ) -> "HMM":
        """A checked HMM from p(z1), p(z'|z) and p(x|z) as logarithms; log_emit[z, x] is (Z, V).

        Without a support every word may come from every state; with one, emissions outside it
        must be -inf.
        """
        log_init, log_emit = torch.as_tensor(log_init), torch.as_tensor(log_emit)
        if not isinstance(log_trans, Dense | Factored):
            log_trans = Dense(torch.as_tensor(log_trans))
        states = log_init.shape[0] if log_init.ndim == 1 else -1
        sizes = (log_trans.num_sources, log_trans.num_states)
        if log_emit.ndim != 2 or log_emit.shape[0] != states or sizes != (states, states):
            raise InputError(
                f"Tables do not fit together: log_init {tuple(log_init.shape)}, log_trans {sizes}, "
                f"log_emit {tuple(log_emit.shape)}; they must be (Z,), (Z, Z) and (Z, V)."
            )
        if support is None:
            support = Support.dense(log_emit.shape[1], states).to(log_init.device)
        by_word = log_emit.T  # (V, Z)
        if support.vocab_size != by_word.shape[0] or support.num_states != states:
            raise InputError(
                f"The support is for {support.vocab_size:,} words and {support.num_states:,} "
                f"states, log_emit for {by_word.shape[0]:,} and {states:,}."
            )
        if support.is_dense:
            slots = by_word.contiguous()
        else:
            ids = support.rows[support.row_of_word]  # (V, K)
            slots = by_word.gather(1, ids.clamp(min=0)).masked_fill(ids < 0, -torch.inf)
            outside = torch.isfinite(by_word).sum() - torch.isfinite(slots).sum()
            if outside:
                raise InputError(
                    f"log_emit gives {int(outside):,} words to states that the support does not "
                    f"allow; they must be -inf."
                )
        return HMM(log_init, log_trans, slots, support).validate()

    def validate(self, *, rows: bool = True) -> "HMM":
        """This HMM, after checking shapes, NaN, and that every distribution sums to one.

        Of a transition table of more than `CHECKED` cells some rows all over it are checked. The
        rows of factored transitions take O(Z^2 H) and are left out without `rows`.
        """
        self.support.validate()
        kinds = {field.dtype for field in self.fields()}
        if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
            names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
            raise InputError(
                f"The tables are {names} but must all be float32 or all float64; convert them."
            )
        states, words = self.support.num_states, self.support.vocab_size
        shapes = (self.log_init.shape, self.log_emit.shape)
        if shapes != ((states,), (words, self.support.width)):
            raise InputError(
                f"log_init {tuple(shapes[0])} and log_emit {tuple(shapes[1])} do not fit a support "
                f"of {states:,} states and {words:,} words with up to {self.support.width:,} each."
            )
        if self.transitions.num_states != states or self.transitions.num_sources < states:
            raise InputError(
                f"The transition table is {self.transitions.num_sources:,} x "
                f"{self.transitions.num_states:,} but there are {states:,} states."
            )
        _check_rows("log_init", self.log_init[None])
        sources, step = self.transitions.num_sources, max(1, GROUP // states)
        spans = 1 if sources * states <= CHECKED else -(-sources * states // SAMPLED)
        left_out = isinstance(self.transitions, Factored) and not rows
        if left_out and not all(field.isfinite().all() for field in self.transitions.fields()):
            raise InputError("A factor of log_trans has a NaN or infinite cell; train it again.")
        for start in range(0, 0 if left_out else sources, step * spans):
            stop = min(start + step, sources)
            _check_rows("log_trans", self.transitions.rows(start, stop), first=start)
        _check_values("log_emit", self.log_emit)
        ids = self.support.rows[self.support.row_of_word]
        if not torch.isneginf(self.log_emit[ids < 0]).all():
            raise InputError("log_emit must be -inf in the padding of its support.")
        total = torch.zeros(states, dtype=torch.float64, device=self.device)
        total.index_add_(0, ids.clamp(min=0).flatten(), self.log_emit.double().exp().flatten())
        _check_totals("log_emit", total, 0)
        return self

    def local_sources(self, states: Int[Tensor, "B W"]) -> Int[Tensor, "B W"]:
        """The transition rows of global state ids; -1 stays -1."""
        if self.source_ids is None:
            if states.numel() and int(states.max()) >= self.transitions.num_sources:
                raise InputError(
                    f"The belief names state {int(states.max()):,} but this HMM has "
                    f"{self.transitions.num_sources:,}; it was made by another model."
                )
            return states
        ordered, order = self.source_ids.sort()
        place = torch.searchsorted(ordered, states.clamp(min=0)).clamp(max=len(ordered) - 1)
        unknown = (ordered[place] != states) & (states >= 0)
        if unknown.any():
            raise InputError(
                f"The belief names state {int(states[unknown][0]):,}, which is not among the "
                f"{len(ordered):,} sources of this HMM; pass it in `carried` when restricting."
            )
        return torch.where(states >= 0, order[place], -1)

    def global_states(self, states: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """The global ids of local state ids; -1 stays -1."""
        if self.state_ids is None:
            return states
        return torch.where(states >= 0, self.state_ids[states.clamp(min=0)], -1)

    @full_products()
    def long_run(self, *, rounds: int = 200) -> Float[Tensor, " Z"]:
        """p(z_t) far from the start: the stationary distribution, reached from p(z1).

        Exact up to 512 states, in O(Z^3) time. Above, at most `rounds` half-steps are taken, in
        O(rounds Z^2): a chain that rarely leaves some of its states may not have settled by then.
        """
        if self.num_states <= SQUARED:
            return self._settled()
        use = self.log_init.detach().exp()
        step = max(1, (1 << 22) // self.num_states)
        for _ in range(rounds):
            after = torch.zeros_like(use)
            for start in range(0, self.num_states, step):
                stop = min(start + step, self.num_states)
                after += use[start:stop] @ self.transitions.rows(start, stop).detach().exp()
            # Half a step: a chain that goes round in circles would never settle.
            after = (use + after) / 2
            if float((after - use).abs().sum()) < 1e-7:
                break
            use = after
        return use

    def _settled(self) -> Float[Tensor, " Z"]:
        """p(z_t) after 2^60 half-steps, by squaring."""
        table = self.transitions.rows(0, self.num_states).detach().double().exp()
        table = (table + torch.eye(self.num_states, dtype=table.dtype, device=table.device)) / 2
        for _ in range(60):
            before, table = table, table @ table
            table /= table.sum(1, keepdim=True)
            if torch.equal(before, table):
                break
        return (self.log_init.detach().double().exp() @ table).to(self.dtype)

    def restrict(
        self,
        states: Int[Tensor, " S"],
        carried: Int[Tensor, " C"] | None = None,
        *,
        kept: Support | None = None,
    ) -> "HMM":
        """The HMM on a subset of the states, each distribution renormalised over what is left.

        `states` and `carried` are ids of this HMM (local). `carried` are further states from which
        belief may come in: they get a transition row but can no longer be entered. A distribution
        of which nothing is left is -inf throughout. A caller that has the support on the subset
        gives it as `kept`; then ids are not checked, and `carried` gets one row per id, in that
        order, even for ids of the subset. O(S Z) time for dense transitions, O(S^2 H) for factored.
        """
        states = states.to(self.device)
        if kept is None:
            self._check_subset(states)
        sources = states
        if carried is not None:
            extra = carried.to(self.device)
            if kept is None:
                extra = extra[~torch.isin(extra, states)]
            sources = torch.cat([states, extra])
        if isinstance(self.transitions, Dense):
            # The gradient of `table[sources][:, states]` would sort every cell it came from.
            table = self.transitions.log_trans.index_select(0, sources).index_select(1, states)
            transitions = Dense(renormalise(table))
        else:
            left, right = self.transitions.left[sources], self.transitions.right[states]
            transitions = Factored.normalise(left, right, self.transitions.marks)
        support = self.support.restrict(states) if kept is None else kept
        return HMM(
            renormalise(self.log_init[states]),
            transitions,
            self._kept_emissions(states, support),
            support,
            self.global_states(states),
            sources if self.source_ids is None else self.source_ids[sources],
            None if self.log_soft is None else self.log_soft[:, states],
        )

    def _check_subset(self, states: Int[Tensor, " S"]) -> None:
        if states.numel() == 0 or states.min() < 0 or states.max() >= self.num_states:
            raise InputError(
                f"A subset needs states between 0 and {self.num_states - 1:,}, at least one; got "
                f"{states.tolist()[:10]}."
            )
        if states.unique().numel() != states.numel():
            raise InputError("A subset names a state twice; name each of its states once.")

    def _kept_emissions(self, states: Int[Tensor, " S"], kept: Support) -> Float[Tensor, "V L"]:
        """The emissions of the states on their restricted support, renormalised."""
        if self.support.is_dense and kept.is_dense:
            return emission_table(self.log_emit.index_select(1, states), kept)
        order = self.support.moves(states)[:, : kept.width]
        return emission_table(self.log_emit.gather(1, order[self.support.row_of_word]), kept)


def emission_table(logits: Float[Tensor, "V K"], support: Support) -> Float[Tensor, "V K"]:
    """log p(x | z) by word, from logits: normalised over each state's words, -inf in padding.

    A state's largest logit is subtracted first, so that no digits are lost. O(V K).
    """
    if support.is_dense:
        logits = logits - logits.detach().amax(0)
        return logits - torch.logsumexp(logits, 0)
    ids = support.rows[support.row_of_word]  # (V, K)
    if why_not(logits.device) is None:
        from hmmlm.ops.emission.cells_kernel import LogSoftmax

        return LogSoftmax.apply(logits, ids, *support.cells_by_state)
    # Padding goes into no state's sum; its logits stay finite until the end, for the gradient.
    logits = logits.masked_fill(ids < 0, 0.0)
    most, norm = log_sums_by_state(logits, ids, support.num_states)
    ids, is_padding = ids.clamp(min=0), ids < 0
    return (logits - most[ids] - norm[ids]).masked_fill(is_padding, -torch.inf)


def emission_rows(hmm: HMM) -> Float[Tensor, "Z V"]:
    """log p(x | z) of every state and word, -inf where a state may not emit it; a new table."""
    if hmm.support.is_dense:
        return hmm.log_emit.T.clone(memory_format=torch.contiguous_format)
    table = hmm.log_emit.new_full((hmm.num_states, hmm.vocab_size), -torch.inf)
    cells = hmm.support.state_words
    table[cells.states, cells.words] = hmm.log_emit[cells.words, cells.slots]
    return table


def log_sums_by_state(
    values: Float[Tensor, "V K"], ids: Int[Tensor, "V K"], num_states: int
) -> tuple[Float[Tensor, " Z"], Float[Tensor, " Z"]]:
    """The largest value of each state's cells, and the logsumexp of its values less that."""
    index = ids.masked_fill(ids < 0, num_states).flatten()
    values = values.flatten()
    most = values.new_full((num_states + 1,), -torch.inf)
    most = most.scatter_reduce(0, index, values.detach(), "amax")
    most = finite(most)
    sums = torch.zeros_like(most).index_add(0, index, (values - most[index]).exp())
    return most[:-1], sums[:-1].log()  # the spare cell's log(0) would spoil the gradient


def renormalise(log_probs: Float[Tensor, "*rows Z"]) -> Float[Tensor, "*rows Z"]:
    """Distributions over what is left of them; -inf throughout where that is nothing."""
    return log_probs - finite(torch.logsumexp(log_probs, -1, keepdim=True))


def _check_values(name: str, table: Tensor) -> None:
    bad = torch.isnan(table) | (table == torch.inf)
    if bad.any():
        where = tuple(bad.nonzero()[0].tolist())
        raise InputError(
            f"{name} has {float(table[where])} at {where} ({int(bad.sum()):,} such cells); "
            f"log-probabilities are numbers of at most 0, or -inf."
        )


def _check_rows(name: str, rows: Tensor, first: int = 0) -> None:
    _check_values(name, rows)
    _check_totals(name, rows.double().exp().sum(-1), first)


def _check_totals(name: str, totals: Tensor, first: int) -> None:
    error = (totals - 1).abs()
    if (error > TOLERANCE).any():
        worst = int(error.argmax())
        which = "its probabilities" if name == "log_init" else f"those of state {first + worst:,}"
        raise InputError(
            f"{name} is not normalised: {which} sum to {float(totals[worst]):.6g}, not 1; apply "
            f"log_softmax to your logits first."
        )
