"""An HMM as a causal language model of Hugging Face's transformers."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from hmmlm import inference
from hmmlm.errors import InputError
from hmmlm.hf.configuration import HmmConfig
from hmmlm.hf.rows import IMPOSSIBLE, Rows, check_positions, loss_of, without_padding
from hmmlm.hf.sources import check_folder, check_sizes, check_tables
from hmmlm.hmm import HMM, emission_table
from hmmlm.hugging_face import MODEL_TYPE
from hmmlm.inference.streaming import State, emission_log_probs, next_state_log_probs, start
from hmmlm.model import Model, sizes_of
from hmmlm.ops.normaliser import log_normaliser
from hmmlm.results import Belief, FoundBelief
from hmmlm.support import Support
from hmmlm.transitions import FAR, Dense, Factored, count_marks

CELLS = 1 << 24
"""Numbers of all states, or of all words, that are held at once."""


class HmmCache:
    """What was read so far, of each row of a batch; its size does not grow with the text."""

    def __init__(self, belief: Belief, seen: int) -> None:
        self.belief, self.seen = belief, seen

    is_compileable = False  # which transformers asks

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen

    def reorder_cache(self, beam_idx: Int[Tensor, " B"]) -> None:
        """Rows take the place of others, as beams do."""
        self.belief = self.belief.select(beam_idx.to(self.belief.fresh.device))


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
        check_sizes(config)
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
        self._made_of: Any = None
        self._marks: int | None = None  # of factors, as they were loaded
        self._whole_at: Any = None  # the versions of the tables when last they were normalised
        self.post_init()

    @staticmethod
    def from_model(model: Model, *, reset: bool = True) -> "HmmForCausalLM":
        """The HMM of a model of ours, and what its folder says of it."""
        sizes = sizes_of(model.hmm)
        told = {**model.config, **sizes, "reset": reset, "eos_token_id": model.tokenizer.eos_id}
        made = HmmForCausalLM(HmmConfig(**told))
        made.to(device=model.hmm.device, dtype=model.hmm.dtype)  # type: ignore
        made.set_hmm(model.hmm)
        return made.eval()

    @classmethod
    def from_pretrained(cls, *given: Any, **how: Any) -> Any:
        """As of any model; a table that is missing, extra or of another shape is an error.

        No pickle is read.
        """
        source = given[0] if given else how.get("pretrained_model_name_or_path")
        check_folder(source)
        wants_info = how.pop("output_loading_info", False)
        how |= {"ignore_mismatched_sizes": True, "output_loading_info": True}  # told below
        how["use_safetensors"] = True
        try:
            loaded: Any = super().from_pretrained(*given, **how)
        except SafetensorError as error:
            raise InputError(
                f"{source} has no whole safetensors ({error}); copy or save the model again."
            ) from error
        model, info = loaded
        wrong = {
            "lacks": info["missing_keys"],
            "also has": info["unexpected_keys"],
            "has other shapes of": [key[0] for key in info["mismatched_keys"]],
        }
        for word, names in wrong.items():
            if names:
                raise InputError(
                    f"{source} {word} {', '.join(sorted(names))}: not the tables of this "
                    f"configuration; copy or save the model again."
                )
        if not model._is_short:
            check_tables(source, model._stored())
        model._whole_at = model._versions()
        return (model, info) if wants_info else model

    @torch.no_grad()
    def set_hmm(self, hmm: HMM) -> None:
        """Takes the tables of an HMM of the same sizes."""
        for name, size in sizes_of(hmm).items():
            own = self.config.width if name == "states_per_word" else getattr(self.config, name)
            if size != own:
                raise InputError(
                    f"The HMM's {name} is {size:,} but this model's is {own:,}; make one with "
                    f"HmmForCausalLM.from_model."
                )
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
        self._made, self._whole_at = None, self._versions()
        self._marks = None

    @property
    def hmm(self) -> HMM:
        """The HMM of the tables as they are now; one to learn from while that is asked for."""
        if self.training and torch.is_grad_enabled():
            self._made = self._whole_at = None  # fused optimisers change tables in silence
            return self._normalised()
        now = (self._versions(), self.log_init.dtype, self.log_init.device)
        if self._made is None or self._made_of != now:
            self._support().validate()
            with torch.no_grad():
                made = self._stored() if self._is_whole else self._normalised()
            self._made, self._made_of = made.detach(), now
        return self._made

    def _apply(self, *given: Any, **how: Any) -> Any:
        """As of any module; where digits are lost, tables have to be normalised again."""
        before = self.log_init.dtype
        applied = super()._apply(*given, **how)
        if torch.finfo(self.log_init.dtype).eps > torch.finfo(before).eps:
            self._made = self._whole_at = None
        return applied

    def _versions(self) -> tuple[tuple[int, int], ...]:
        """Others as soon as a table has changed, but for what optimisers do."""
        return tuple((id(table), table._version) for table in self.parameters())

    @property
    def _is_short(self) -> bool:
        """Whether numbers have too few digits to be computed with, or to sum to one."""
        return self.log_init.dtype in (torch.float16, torch.bfloat16)

    @property
    def _is_whole(self) -> bool:
        """Whether the tables are normalised as they stand."""
        return not self._is_short and self._whole_at == self._versions()

    def forward(
        self,
        input_ids: Int[Tensor, "B T"],
        attention_mask: Int[Tensor, "B S"] | None = None,
        past_key_values: HmmCache | None = None,
        position_ids: Int[Tensor, "#B T"] | None = None,
        labels: Int[Tensor, "B T"] | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        num_items_in_batch: Any = None,
        return_dict: bool | None = None,
        may_have_ended: bool = False,
        **_: Any,
    ) -> CausalLMOutputWithPast | tuple:
        """logits[b, t] are log p(next token | tokens up to t); `labels` are the tokens themselves.

        The loss is the mean of -log p(token | those before it) over the tokens that have a label
        (-100: none), the first of a row left out. Columns that are masked do not count as read.
        Positions change nothing; those that start again, for texts packed into a row, are refused.
        All is computed with the digits of float32 at least, whatever autocast says.

        After a token that cannot come there nothing can follow, which is an error. Where rows
        `may_have_ended`, and are filled up, `<eos>` follows: nobody chose that token.
        """
        if not isinstance(past_key_values, HmmCache | None):
            raise InputError(
                f"past_key_values is a {type(past_key_values).__name__} but must be what an "
                f"earlier call of this model gave; leave it out."
            )
        seen = 0 if past_key_values is None else past_key_values.seen
        rows = without_padding(input_ids, attention_mask, seen)
        if position_ids is not None:
            check_positions(position_ids, rows)
        reset = self.config.eos_token_id if self.config.reset else None
        belief = None if past_key_values is None else past_key_values.belief
        if labels is not None and belief is not None:
            raise InputError("Labels are of whole texts; leave out past_key_values.")
        if labels is not None and self.training and self._num_marks:
            raise InputError(
                "This model is a mixture, whose parts nothing keeps apart in training; fine-tune "
                "the parts, then mix them."
            )
        loss = logits = cache = None
        learns = labels is not None and torch.is_grad_enabled() and not self.training
        learns = learns and not self._num_marks
        hmm = self._normalised() if learns else self.hmm  # which in training learns anyway
        if labels is not None:
            loss = loss_of(hmm, rows, labels, reset, num_items_in_batch)
        if labels is None or not self.training:
            hmm = hmm.detach()
            read = inference.filter(
                hmm, rows.tokens, lengths=rows.lengths, belief=belief, reset_id=reset
            )
            logits = self._logits(hmm, rows, read, logits_to_keep, reset, may_have_ended)
            if use_cache is not False and labels is None:
                cache = HmmCache(read.belief, seen + input_ids.shape[1])
        made = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)  # type: ignore
        return made.to_tuple() if return_dict is False else made

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: HmmCache | None = None,
        attention_mask: Tensor | None = None,
        is_first_iteration: bool | None = False,
        **given: Any,
    ) -> dict[str, Any]:
        """What has not been read yet.

        In its later steps `generate` fills up rows that have ended: see `forward`.
        """
        seen = 0 if past_key_values is None else past_key_values.seen
        if seen and seen >= input_ids.shape[1]:
            raise InputError(
                f"past_key_values has read {seen:,} tokens but input_ids has "
                f"{input_ids.shape[1]:,}; give all of the text, with tokens that are new at its "
                f"end."
            )
        new = input_ids[:, seen:]
        if not is_first_iteration:  # what is no token fills up rows that have ended
            new = new.masked_fill(new >= self.config.vocab_size, 0)
        told = {"input_ids": new, "past_key_values": past_key_values}
        told["may_have_ended"] = not is_first_iteration
        told |= {"attention_mask": attention_mask, "use_cache": given.get("use_cache")}
        return told | {"logits_to_keep": given.get("logits_to_keep") or 1}

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def resize_token_embeddings(self, *given: Any, **how: Any) -> Any:
        raise InputError(
            "An HMM has no embeddings of words to add more to; train one with the tokenizer that "
            "has them."
        )

    def save_pretrained(self, *given: Any, **how: Any) -> None:
        """As of any model; tables that were learnt are normalised first."""
        if not self._is_whole:
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
        self._made = self._whole_at = self._marks = None

    def load_state_dict(self, *given: Any, **how: Any) -> Any:
        self._marks = None
        return super().load_state_dict(*given, **how)

    def _support(self) -> Support:
        rows, row_of_word = self.support_rows.long(), self.support_row_of_word.long()
        return Support(rows, row_of_word, self.config.num_states)

    @property
    def _num_marks(self) -> int:
        """Columns of factors that keep the parts of a mixture apart; looked for once."""
        if self._marks is None:
            self._marks = count_marks(_wide(self.trans_left)) if self.config.factors else 0
        return self._marks

    def _stored(self) -> HMM:
        support, log_init, log_emit = self._support(), _wide(self.log_init), _wide(self.log_emit)
        if self.config.factors:
            left, right = _wide(self.trans_left), _wide(self.trans_right)
            if self._num_marks:
                left = left.clamp(min=-FAR)  # which is -inf in float16
            norms = _wide(self.trans_log_norm)
            factored = Factored(left, right, norms, marks=self._num_marks)
            return HMM(log_init, factored, log_emit, support)
        return HMM(log_init, Dense(_wide(self.log_trans)), log_emit, support)

    def _normalised(self) -> HMM:
        tables = self._stored()
        if isinstance(tables.transitions, Factored):
            left, right, _ = tables.transitions.fields()
            trans = tables.transitions.with_fields(left, right, log_normaliser(left, right))
        else:
            trans = Dense(tables.transitions.log_trans.log_softmax(1))
        support = tables.support
        emit = tables.log_emit.masked_fill(support.rows[support.row_of_word] < 0, 0.0)
        return HMM(tables.log_init.log_softmax(0), trans, emission_table(emit, support), support)

    def _logits(
        self, hmm: HMM, rows: Rows, read: Any, keep: int, reset: int | None, may_have_ended: bool
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
            belief = FoundBelief(read.states[at], read.log_probs[at], fresh[some])
            following = _next(replace(state, belief=belief))
            is_over = torch.isneginf(following).all(1)
            if bool(is_over.any()):
                if not may_have_ended or self.config.eos_token_id is None:
                    raise InputError(IMPOSSIBLE)
                following[is_over, self.config.eos_token_id] = 0.0
            logits[row[some], column[some]] = following
        return logits


def _next(state: State) -> Float[Tensor, "N V"]:
    """log p(next token) of a state's rows, which need no evidence."""
    return emission_log_probs(state.hmm, next_state_log_probs(state))


def _wide(table: Tensor) -> Tensor:
    """A table with digits enough; float64 stays."""
    return table if table.dtype == torch.float64 else table.float()


def _parameter(*size: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(*size))


AutoConfig.register(MODEL_TYPE, HmmConfig)
AutoModelForCausalLM.register(HmmConfig, HmmForCausalLM)
