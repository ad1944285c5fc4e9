"""An HMM as a causal language model of Hugging Face's transformers."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from hmmlm import inference
from hmmlm.errors import InputError
from hmmlm.hf.configuration import HmmConfig
from hmmlm.hmm import HMM, emission_table
from hmmlm.hugging_face import MODEL_TYPE
from hmmlm.inference.streaming import State, emission_log_probs, next_state_log_probs, start
from hmmlm.model import Model, sizes_of
from hmmlm.ops.normaliser import log_normaliser
from hmmlm.results import Belief
from hmmlm.support import Support
from hmmlm.transitions import Dense, Factored

NO_LABEL = -100
CELLS = 1 << 24
"""Numbers of all states, or of all words, that are held at once."""


class HmmCache:
    """What was read so far, of each row of a batch; its size does not grow with the text."""

    def __init__(self, belief: Belief, seen: int) -> None:
        self.belief, self.seen = belief, seen

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen

    def reorder_cache(self, beam_idx: Int[Tensor, " B"]) -> None:
        """Rows take the place of others, as beams do."""
        self.belief = self.belief.select(beam_idx.to(self.belief.fresh.device))


class _Rows(NamedTuple):
    """Rows without their padding, and where each token stood."""

    tokens: Int[Tensor, "B T"]
    lengths: Int[Tensor, " B"]
    places: Int[Tensor, "B T"]  # in `tokens`, of each column that was given; -1 of padding


class HmmForCausalLM(PreTrainedModel, GenerationMixin):
    """Next-token logits that are exact log-probabilities, and the belief over states as cache.

    Parameters are the tables of an HMM. While they are learnt they are logits, normalised in every
    step; they are normalised where they stand before a model is saved. In training with labels
    there are no logits, which would cost more than the loss.
    """

    config_class = HmmConfig
    main_input_name = "input_ids"
    _is_stateful = True
    support_rows: Tensor
    support_row_of_word: Tensor
    trans_log_norm: Tensor

    def __init__(self, config: HmmConfig) -> None:
        super().__init__(config)
        states, words = config.num_states, config.vocab_size
        self.log_init = _parameter(states)
        self.log_emit = _parameter(words, config.width)
        if config.factors:
            self.trans_left = _parameter(states, config.factors)
            self.trans_right = _parameter(states, config.factors)
            self.register_buffer("trans_log_norm", torch.zeros(states))
        else:
            self.log_trans = _parameter(states, states)
        shape = (config.support_rows, config.width)
        self.register_buffer("support_rows", torch.zeros(shape, dtype=torch.int32))
        self.register_buffer("support_row_of_word", torch.zeros(words, dtype=torch.int32))
        self._made: HMM | None = None
        self._is_learnt = False
        self.post_init()

    @staticmethod
    def from_model(model: Model, *, reset: bool = True) -> "HmmForCausalLM":
        """The HMM of a model of ours, and what its folder says of it."""
        sizes = sizes_of(model.hmm)
        told = {**model.config, **sizes, "reset": reset, "eos_token_id": model.tokenizer.eos_id}
        made = HmmForCausalLM(HmmConfig(**told))
        made.set_hmm(model.hmm)
        return made.eval()

    @classmethod
    def from_pretrained(cls, *given: Any, **how: Any) -> Any:
        """As of any model; a table that is missing, extra or of another shape is an error."""
        wants_info = how.pop("output_loading_info", False)
        how |= {"ignore_mismatched_sizes": True, "output_loading_info": True}  # told below
        loaded: Any = super().from_pretrained(*given, **how)
        model, info = loaded
        wrong = {
            "lacks": info["missing_keys"],
            "also has": info["unexpected_keys"],
            "has other shapes of": [key[0] for key in info["mismatched_keys"]],
        }
        for word, names in wrong.items():
            if names:
                raise InputError(
                    f"{given[0]} {word} {', '.join(sorted(names))}: not the tables of this "
                    f"configuration; copy or save the model again."
                )
        return (model, info) if wants_info else model

    @torch.no_grad()
    def set_hmm(self, hmm: HMM) -> None:
        """Takes the tables of an HMM of the same sizes."""
        if isinstance(hmm.transitions, Factored):
            names = ("trans_left", "trans_right", "trans_log_norm")
        else:
            names = ("log_trans",)
        tables = dict(zip(names, hmm.transitions.fields(), strict=True))
        tables |= {"log_init": hmm.log_init, "log_emit": hmm.log_emit}
        tables |= {"support_rows": hmm.support.rows}
        tables |= {"support_row_of_word": hmm.support.row_of_word}
        for name, table in tables.items():
            getattr(self, name).copy_(table)
        self._made, self._is_learnt = None, False

    @property
    def hmm(self) -> HMM:
        """The HMM of the tables as they are now; one to learn from while that is asked for."""
        if self.training and torch.is_grad_enabled():
            self._made, self._is_learnt = None, True
            return self._normalised()
        if self._made is None or self._made.device != self.log_init.device:
            self._support().validate()
            with torch.no_grad():
                self._made = (self._normalised() if self._is_learnt else self._stored()).detach()
        return self._made

    def forward(
        self,
        input_ids: Int[Tensor, "B T"],
        attention_mask: Int[Tensor, "B S"] | None = None,
        past_key_values: HmmCache | None = None,
        labels: Int[Tensor, "B T"] | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        num_items_in_batch: Any = None,
        return_dict: bool | None = None,
        **_: Any,
    ) -> CausalLMOutputWithPast | tuple:
        """logits[b, t] are log p(next token | tokens up to t); `labels` are the tokens themselves.

        The loss is the mean of -log p(token | those before it) over the tokens that have a label
        (-100: none), the first of a row left out. Columns that are masked do not count as read.
        """
        rows = _without_padding(input_ids, attention_mask)
        hmm, reset = self.hmm, self.config.eos_token_id if self.config.reset else None
        belief = None if past_key_values is None else past_key_values.belief
        loss = logits = cache = None
        if labels is not None:
            if belief is not None:
                raise InputError("Labels are of whole texts; leave out past_key_values.")
            loss = _loss(hmm, rows, labels, reset, num_items_in_batch)
        if labels is None or not self.training:
            read = inference.filter(
                hmm.detach(), rows.tokens, lengths=rows.lengths, belief=belief, reset_id=reset
            )
            logits = self._logits(hmm.detach(), rows, read, logits_to_keep, reset)
            if use_cache is not False and labels is None:
                seen = 0 if past_key_values is None else past_key_values.seen
                cache = HmmCache(read.belief, seen + input_ids.shape[1])
        made = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)  # type: ignore
        return made.to_tuple() if return_dict is False else made

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: HmmCache | None = None,
        attention_mask: Tensor | None = None,
        **given: Any,
    ) -> dict[str, Any]:
        """What has not been read yet."""
        seen = 0 if past_key_values is None else past_key_values.seen
        told = {"input_ids": input_ids[:, seen:], "past_key_values": past_key_values}
        told |= {"attention_mask": attention_mask, "use_cache": given.get("use_cache")}
        return told | {"logits_to_keep": given.get("logits_to_keep") or 1}

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def save_pretrained(self, *given: Any, **how: Any) -> None:
        """As of any model; tables that were learnt are normalised first."""
        if self._is_learnt:
            with torch.no_grad():
                self.set_hmm(self._normalised())
        super().save_pretrained(*given, **how)

    def _init_weights(self, module: nn.Module) -> None:
        """Random tables, and words dealt out to blocks; another map cannot be drawn (`hmm`)."""
        if module is not self:
            return
        config = self.config
        with torch.no_grad():
            if config.support_rows * config.width == config.num_states:
                rows = torch.arange(config.num_states).view(config.support_rows, config.width)
                words = torch.arange(config.vocab_size) % config.support_rows
                self.support_rows.copy_(rows)
                self.support_row_of_word.copy_(words)
            for parameter in self.parameters():
                parameter.normal_()
        self._made, self._is_learnt = None, True

    def _support(self) -> Support:
        rows, row_of_word = self.support_rows.long(), self.support_row_of_word.long()
        return Support(rows, row_of_word, self.config.num_states)

    def _stored(self) -> HMM:
        if self.config.factors:
            trans = Factored(self.trans_left, self.trans_right, self.trans_log_norm)
        else:
            trans = Dense(self.log_trans)
        return HMM(self.log_init, trans, self.log_emit, self._support())

    def _normalised(self) -> HMM:
        support = self._support()
        if self.config.factors:
            norm = log_normaliser(self.trans_left, self.trans_right)
            trans = Factored(self.trans_left, self.trans_right, norm)
        else:
            trans = Dense(self.log_trans.log_softmax(1))
        emit = self.log_emit.masked_fill(support.rows[support.row_of_word] < 0, 0.0)
        return HMM(self.log_init.log_softmax(0), trans, emission_table(emit, support), support)

    def _logits(
        self, hmm: HMM, rows: _Rows, read: Any, keep: int, reset: int | None
    ) -> Float[Tensor, "B N V"]:
        """Of the last columns, or all; zeros where a column is padding."""
        places = rows.places[:, -keep:] if keep else rows.places
        row, column = (places >= 0).nonzero(as_tuple=True)
        place = places[row, column]
        fresh = torch.zeros_like(place, dtype=torch.bool)
        if reset is not None:
            fresh = rows.tokens[row, place] == reset
        size = (*places.shape, hmm.vocab_size)
        logits = torch.zeros(size, dtype=hmm.dtype, device=hmm.device)
        state = start(hmm, reset_id=reset)
        step = max(1, CELLS // max(hmm.num_states, hmm.vocab_size))
        for some in torch.arange(len(row), device=row.device).split(step):
            at = row[some], place[some]
            belief = Belief(read.states[at], read.log_probs[at], fresh[some])
            following = _next(replace(state, belief=belief))
            if bool(torch.isneginf(following).all(1).any()):
                raise InputError(
                    "A text has a token that this HMM gives probability zero, so that nothing can "
                    "follow; leave it out, or use a model that has seen it."
                )
            logits[row[some], column[some]] = following
        return logits


def _next(state: State) -> Float[Tensor, "N V"]:
    """log p(next token) of a state's rows, which need no evidence."""
    return emission_log_probs(state.hmm, next_state_log_probs(state))


def _parameter(*size: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(*size))


def _without_padding(input_ids: Tensor, mask: Tensor | None) -> _Rows:
    size = input_ids.shape[1]
    if mask is None:
        mask = torch.ones_like(input_ids)
    mask = mask[:, -size:] != 0
    lengths = mask.sum(1)
    if not bool((lengths > 0).all()):
        row = int((lengths == 0).nonzero()[0])
        raise InputError(f"Row {row:,} is all padding; give it at least one token.")
    order = torch.argsort((~mask).int(), dim=1, stable=True)
    places = torch.where(mask, mask.cumsum(1) - 1, -1)
    return _Rows(input_ids.gather(1, order), lengths, places)


def _loss(hmm: HMM, rows: _Rows, labels: Tensor, reset: int | None, number: Any) -> Tensor:
    """log p of the labelled tokens: of the text up to the last of them, less that before them."""
    is_there = rows.places >= 0
    labels = labels.masked_fill(~is_there, NO_LABEL)
    is_scored = (labels != NO_LABEL) & (rows.places > 0)
    own = rows.tokens.gather(1, rows.places.clamp(min=0))
    if bool(((labels != own) & is_scored).any()):
        raise InputError(
            "labels differ from input_ids; the loss of an HMM is that of the text it reads, so "
            "give the tokens, or -100 where none is to be scored."
        )
    count = is_scored.sum(1)
    some = count > 0
    end = torch.where(is_scored, rows.places, -1).amax(1) + 1
    begin = torch.where(is_scored, rows.places, rows.tokens.shape[1]).amin(1)
    if bool(((end - begin != count) & some).any()):
        raise InputError(
            "Labels have gaps (-100 between two that are scored); label one run of tokens a row."
        )
    if not bool(some.any()):
        return hmm.log_init.sum() * 0.0
    tokens, end, begin = rows.tokens[some], end[some], begin[some]
    whole = inference.log_prob(hmm, tokens, lengths=end, reset_id=reset).log_evidence
    before = tokens[:, : int(begin.max())]
    whole = whole - inference.log_prob(hmm, before, lengths=begin, reset_id=reset).log_evidence
    total = -whole.sum() / (count.sum() if number is None else number)
    return total.to(hmm.dtype)


AutoConfig.register(MODEL_TYPE, HmmConfig)
AutoModelForCausalLM.register(HmmConfig, HmmForCausalLM)
