"""What the neural models share: reading with resets, scores, dropout, probabilities of words."""

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from hmmlm.baselines.ngram import check_tokens
from hmmlm.lm import Scores
from hmmlm.products import full_products
from hmmlm.train.next_token import Read

CELLS = 1 << 24
"""Numbers of a table of words by tokens that is made at a time."""

CHECKED_WORDS = 5
"""Words that are read before distributions are checked."""

Carry = dict[str, Tensor]


@dataclass(frozen=True)
class Making:
    """What a network is made for, and what its first weights are drawn from.

    `start_id` is the word that ends sentences; `word_probs` are the frequencies of words, if known.
    """

    vocab_size: int
    _: KW_ONLY
    start_id: int
    word_probs: Float[Tensor, " V"] | None = None
    generator: torch.Generator
    dtype: torch.dtype = torch.float32

    def uniform(self, *shape: int, bound: float) -> nn.Parameter:
        """Numbers between -bound and bound."""
        drawn = torch.rand(shape, generator=self.generator, dtype=self.dtype)
        return nn.Parameter((drawn * 2 - 1) * bound)

    def word_bias(self) -> nn.Parameter:
        """A number for each word: its log frequency if that is known, or else 0."""
        probs = self.word_probs
        start = torch.zeros(self.vocab_size) if probs is None else probs.log()
        return nn.Parameter(start.to(self.dtype, copy=True))


class Piece(NamedTuple):
    """What a network makes of rows without resets."""

    token_log_probs: Float[Tensor, "B T"]
    carry: Carry
    penalty: Float[Tensor, ""] | float = 0.0


class Network(nn.Module, ABC):
    """A neural language model over word ids: a `LanguageModel`, and a `Reader` for training.

    It starts cold as if it had read nothing but `start_id`, the word that ends sentences. Nothing
    of it depends on whether it is in training mode: there is dropout where a generator is given.
    """

    def __init__(self, making: Making) -> None:
        super().__init__()
        self.vocab_size, self.start_id = making.vocab_size, making.start_id

    @abstractmethod
    def cold(self, rows: int) -> Carry:
        """What rows that start cold carry."""

    @abstractmethod
    def _read(
        self,
        tokens: Int[Tensor, "B T"],
        lengths: Int[Tensor, " B"] | None,
        carry: Carry,
        generator: torch.Generator | None,
    ) -> Piece:
        """log p(x_t | x_<t) of rows without resets; `lengths`, on the CPU, if they differ.

        Past the end anything may stand.
        """

    @abstractmethod
    def next_log_probs(self, carry: Carry) -> Float[Tensor, "B V"]:
        """log p(. | what was read)."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def precision(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def read(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        lengths: Int[Tensor, " B"] | None = None,
        restart: Bool[Tensor, "B T"] | None = None,
        carry: Carry | None = None,
        reset_id: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Read:
        """As `train.next_token.Reader` says. Rows are cut at resets and their pieces read at once:

        time is that of the longest piece. Tokens and lengths are best on the CPU.
        """
        words, (rows, length) = tokens.cpu(), tokens.shape
        ends = torch.full((rows,), length) if lengths is None else lengths.cpu()
        begins = torch.zeros(rows, length, dtype=torch.bool)
        if restart is not None:
            begins |= restart.cpu()
        if reset_id is not None:
            begins[:, 1:] |= words[:, :-1] == reset_id
        inside = torch.arange(length) < ends[:, None]
        begins &= inside
        before = self.cold(rows) if carry is None else carry
        before = self._chill(before, begins[:, 0])
        if bool(begins[:, 1:].any()) or int(ends.min()) == 0:
            found = self._read_pieces(words, ends, begins, before, generator)
        else:
            same = None if int(ends.min()) == length else ends
            found = self._read(words.to(self.device), same, before, generator)
        log_probs, after = found.token_log_probs, found.carry
        if not bool(inside.all()):
            log_probs = torch.where(inside.to(self.device), log_probs, 0.0)
        if reset_id is not None:
            last = words.gather(1, (ends - 1).clamp(min=0)[:, None])[:, 0]
            after = self._chill(after, (last == reset_id) & (ends > 0))
        return Read(log_probs, after, torch.as_tensor(found.penalty, device=self.device))

    def read_on(
        self,
        tokens: Int[Tensor, "B T"],
        carry: Carry,
        generator: torch.Generator | None = None,
    ) -> Read:
        """As `train.next_token.Reader` says."""
        found = self._read(tokens, None, carry, generator)
        penalty = found.penalty
        if not isinstance(penalty, Tensor):
            penalty = torch.full((), float(penalty), device=tokens.device)
        return Read(found.token_log_probs, found.carry, penalty)

    def _chill(self, carry: Carry, rows: Bool[Tensor, " B"]) -> Carry:
        """The carry, cold in some rows."""
        if not bool(rows.any()):
            return carry
        cold, rows = self.cold(len(rows)), rows.to(self.device)
        return {
            name: torch.where(rows.view(-1, *[1] * (part.ndim - 1)), cold[name], part)
            for name, part in carry.items()
        }

    def _read_pieces(
        self,
        words: Int[Tensor, "B T"],
        ends: Int[Tensor, " B"],
        begins: Bool[Tensor, "B T"],
        before: Carry,
        generator: torch.Generator | None,
    ) -> Piece:
        """Rows as pieces from one restart to the next, each a row of its own."""
        (rows, length), device = words.shape, self.device
        begins[:, 0] = ends > 0
        row, first = begins.nonzero(as_tuple=True)
        is_last = torch.cat([row[1:] != row[:-1], torch.tensor([True])])
        sizes = torch.where(is_last, ends[row], first.roll(-1)) - first
        places = first[:, None] + torch.arange(int(sizes.max()))
        filled = places < (first + sizes)[:, None]
        places = row[:, None] * length + places.clamp(max=length - 1)  # in all of the words
        goes_on = (first == 0).to(device)
        carry = {name: part[row.to(device)] for name, part in before.items()}
        carry = self._chill(carry, ~goes_on.cpu())
        found = self._read(words.flatten()[places].to(device), sizes, carry, generator)
        used = filled.flatten().nonzero()[:, 0].to(device)
        where = places.to(device).flatten()[used]
        values = found.token_log_probs.flatten()[used]
        log_probs = values.new_zeros(rows * length).scatter(0, where, values)
        owner, place = row[is_last].to(device), is_last.nonzero()[:, 0].to(device)
        after = {
            name: part.index_copy(0, owner, found.carry[name][place])
            for name, part in before.items()
        }
        return Piece(log_probs.view(rows, length), after, found.penalty)

    @torch.no_grad()
    def score_tokens(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        lengths: Int[Tensor, " B"] | None = None,
        carry: Carry | None = None,
        reset_id: int | None = None,
        ends: bool = False,
    ) -> Scores:
        """log p(x_t | x_<t) of each token."""
        check_tokens(tokens, self.vocab_size)
        with full_products():
            read = self.read(tokens, lengths=lengths, carry=carry, reset_id=reset_id)
        return Scores(read.token_log_probs.to(tokens.device), read.carry)

    @torch.no_grad()
    def row_error(self, rows: int, seed: int) -> float:
        """Largest |sum of p(. | words) - 1|, in float64, over the start and random words."""
        generator = torch.Generator().manual_seed(seed)
        words = torch.randint(self.vocab_size, (rows, CHECKED_WORDS), generator=generator)
        worst = []
        with full_products():
            for carry in [self.cold(1), *(self.read(part).carry for part in words.split(16))]:
                sums = self.next_log_probs(carry).double().exp().sum(1)
                worst.append((sums - 1).abs().max())
        return float(torch.stack(worst).max())


def drop(
    values: Tensor,
    rate: float,
    generator: torch.Generator | None,
    shape: tuple[int, ...] | None = None,
) -> Tensor:
    """Values of which a share `rate`, drawn now, is zero and the others scaled up.

    Without a generator they stay as they are. With a `shape` that broadcasts, one draw holds for
    several of them.
    """
    if generator is None or rate == 0:
        return values
    kept = torch.empty(shape or values.shape, dtype=values.dtype, device=values.device)
    kept.bernoulli_(1 - rate, generator=generator).div_(1 - rate)
    return values * kept


def word_log_probs(
    features: Float[Tensor, "N H"],
    weight: Float[Tensor, "V H"],
    bias: Float[Tensor, " V"] | None,
    words: Int[Tensor, " N"],
) -> Float[Tensor, " N"]:
    """log softmax(weight features + bias) of one word each. O(N V H); memory `CELLS` at a time."""
    step = max(1, CELLS // len(weight))
    parts = zip(features.split(step), words.split(step), strict=True)
    return torch.cat(
        [-F.cross_entropy(_logits(f, weight, bias), w, reduction="none") for f, w in parts]
    )


def all_log_probs(
    features: Float[Tensor, "N H"], weight: Float[Tensor, "V H"], bias: Float[Tensor, " V"] | None
) -> Float[Tensor, "N V"]:
    """log softmax(weight features + bias)."""
    return F.log_softmax(_logits(features, weight, bias), -1)


def _logits(features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(features, weight, bias).to(weight.dtype)  # whatever autocast makes of it


def last_words(tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"] | None) -> Int[Tensor, " B"]:
    """The last token of each row."""
    if lengths is None:
        return tokens[:, -1]
    return tokens.gather(1, lengths.to(tokens.device)[:, None] - 1)[:, 0]
