"""A world: an HMM that is known, the concept of each state, and what the best reader says."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import tee
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm import inference
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError, check_count
from hmmlm.hmm import HMM, renormalise
from hmmlm.inference.streaming import emission_probs
from hmmlm.model import Model
from hmmlm.products import full_products
from hmmlm.results import Estimate
from hmmlm.text_model import groups, pad
from hmmlm.worlds.drawing import Document, Drawing

ENUMERATED = 1 << 20
"""Most beginnings of documents that are enumerated."""

TINY = 1e-15
"""Documents that last longer have this probability, and are left out of exact sums."""

_BATCH_TOKENS = 1 << 19
_BATCH_DOCUMENTS = 1024


class EntropyBounds(NamedTuple):
    """What the entropy rate lies between, in nats per token, `<eos>` counted."""

    lower: float
    upper: float


@dataclass(frozen=True)
class World:
    """An HMM over documents, each of which has one concept and ends in `<eos>`.

    States lie concept by concept, as many in each, and the last of a concept emits `<eos>`, after
    which the next document begins from p(z1). So to read a text document by document (mode
    "sentence") or in one go ("streaming") is the same.
    """

    hmm: HMM
    tokenizer: Tokenizer
    num_concepts: int = 1
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def concepts(self) -> Int[Tensor, " Z"]:
        """The concept of each state."""
        per_concept = self.hmm.num_states // self.num_concepts
        return torch.arange(self.hmm.num_states, device=self.hmm.device) // per_concept

    @property
    def ends(self) -> Int[Tensor, " C"]:
        """The states that emit `<eos>`, one for each concept."""
        per_concept = self.hmm.num_states // self.num_concepts
        return torch.arange(per_concept - 1, self.hmm.num_states, per_concept)

    @property
    def model(self) -> Model:
        """The world as a model like any other."""
        about = {**self.settings, "concepts": self.num_concepts}
        return Model(self.hmm, self.tokenizer, {"world": about})

    @staticmethod
    def load(folder: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> "World":
        """The world whose model was saved in a folder: `world.model.save`, or `hmmlm world`."""
        model = Model.load(folder, device=device)
        about = model.config.get("world")
        if not isinstance(about, dict) or not isinstance(about.get("concepts"), int):
            raise InputError(
                f"{folder} is a model but not a world: its config.json has no concepts; give the "
                f"folder model of what hmmlm world wrote."
            )
        concepts = about["concepts"]
        if concepts < 1 or model.hmm.num_states % concepts:
            raise InputError(
                f"{folder} says that it has {concepts:,} concepts, which cannot share "
                f"{model.hmm.num_states:,} states equally; copy the folder again as a whole."
            )
        settings = {name: value for name, value in about.items() if name != "concepts"}
        return World(model.hmm, model.tokenizer, concepts, settings)

    @cached_property
    def parts(self) -> list[HMM]:
        """The HMM of each concept, on its own states.

        Apart they keep their digits: in one recursion a concept that a long text has ruled out
        falls below what a float can hold.
        """
        if self.num_concepts == 1:
            return [self.hmm]
        everything = torch.arange(self.hmm.num_states, device=self.hmm.device)
        return [self.hmm.restrict(some) for some in everything.chunk(self.num_concepts)]

    @property
    def log_prior(self) -> Float[Tensor, " C"]:
        """log p(concept)."""
        return torch.logsumexp(self.hmm.log_init.view(self.num_concepts, -1), 1)

    def draw(self, count: int, *, generator: torch.Generator) -> list[Document]:
        """Documents with the states behind them. Memory: the documents."""
        found: list[Document] = []
        for batch in self.draw_batches(count, generator=generator):
            found += batch
        return found

    def draw_batches(self, count: int, *, generator: torch.Generator) -> Iterator[list[Document]]:
        """The same documents, some at a time."""
        check_count("count", count)
        usual = int(self.settings.get("length", 1)) + 1
        size = max(1, min(_BATCH_DOCUMENTS, _BATCH_TOKENS // usual))
        per_concept = self.hmm.num_states // self.num_concepts
        for start in range(0, count, size):
            drawn = self._drawing.documents(min(size, count - start), generator)
            yield [Document(*both, int(both[1][0]) // per_concept) for both in drawn]

    @cached_property
    def _drawing(self) -> Drawing:
        return Drawing(self.hmm, eos_id=self.tokenizer.eos_id)

    def optimum(
        self, tokens: Int[Tensor, "B T"], *, lengths: Int[Tensor, " B"] | None = None
    ) -> Float[Tensor, "B T"]:
        """log p(x_t | x_<t) of every token of documents, 0 past the end; the concept summed over.

        No reader can expect to do better.
        """
        total = torch.logsumexp(self._joint(tokens, lengths), 2)
        steps = total[:, 1:] - total[:, :-1]
        return torch.where(torch.isneginf(total[:, 1:]), -torch.inf, steps)

    def next_log_probs(
        self, tokens: Int[Tensor, "B T"], *, lengths: Int[Tensor, " B"] | None = None
    ) -> Float[Tensor, "B V"]:
        """log p(x_t+1 = w | x_1..t) for every word w, the concept summed over.

        After an `<eos>` it is that of the first word of a document.
        """
        joint = self._joint(tokens, lengths)[:, -1]
        weights = renormalise(joint)
        found = []
        for part, weight in zip(self.parts, weights.unbind(1), strict=True):
            following = inference.next_log_probs(part, tokens, lengths=lengths) + weight[:, None]
            found.append(torch.where(torch.isneginf(weight[:, None]), -torch.inf, following))
        last = tokens[:, -1] if lengths is None else tokens.gather(1, lengths[:, None] - 1)[:, 0]
        first = inference.next_log_probs(inference.start(self.hmm))
        ended = (last == self.tokenizer.eos_id) & torch.isfinite(weights).any(1)
        return torch.where(ended[:, None], first, torch.logsumexp(torch.stack(found), 0))

    def concept_posterior(
        self, tokens: Int[Tensor, "B T"], *, lengths: Int[Tensor, " B"] | None = None
    ) -> Float[Tensor, "B T C"]:
        """log p(concept | x_1..t) after every token of documents; past the end it stays.

        It is -inf throughout after what is impossible.
        """
        return renormalise(self._joint(tokens, lengths)[:, 1:])

    def _joint(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"] | None
    ) -> Float[Tensor, "B T+1 C"]:
        """log p(concept, x_1..t) for every t from 0, as each concept's HMM on its own says."""
        is_end = tokens[:, :-1] == self.tokenizer.eos_id
        if lengths is not None:
            places = torch.arange(tokens.shape[1] - 1, device=tokens.device)
            is_end = is_end & (places < lengths[:, None] - 1)
        if is_end.any():
            row = int(is_end.any(1).nonzero()[0])
            raise InputError(
                f"Row {row:,} of tokens goes on after its <eos>, but each row must be one "
                f"document; give documents as rows of their own."
            )
        found = [inference.log_prob(part, tokens, lengths=lengths) for part in self.parts]
        steps = torch.stack([each.token_log_probs for each in found], 2).double()  # (B, T, C)
        prior = self.log_prior.double().expand(len(tokens), 1, -1)
        return torch.cat([prior, steps], 1).cumsum(1)

    def score(
        self, documents: Iterable[Document]
    ) -> Iterator[tuple[Document, Float[np.ndarray, " T"]]]:
        """Each document with the best reader's log p of every token. Memory: a group of them."""
        waiting, ids = tee(documents)
        for group in groups(document.tokens for document in ids):
            tokens, lengths = pad(group)
            device = self.hmm.device
            found = self.optimum(tokens.to(device), lengths=lengths.to(device)).cpu().numpy()
            for row, part in zip(found, group, strict=True):
                yield next(waiting), row[: len(part)]

    def entropy_rate(self, num_documents: int, *, generator: torch.Generator) -> Estimate:
        """The mean of -log p(x_t | x_<t) over documents that are drawn, and its standard error.

        exp of it is the perplexity that the best reader comes to in the long run.
        """
        if num_documents < 2:
            raise InputError(f"num_documents is {num_documents:,} but must be at least 2.")
        nats, sizes = [], []
        for batch in self.draw_batches(num_documents, generator=generator):
            for document, log_probs in self.score(batch):
                nats.append(-float(log_probs.sum()))
                sizes.append(len(document.tokens))
        return mean_nats(nats, sizes)

    @full_products()
    def entropy_bounds(self, depth: int = 1) -> EntropyBounds:
        """Bounds of the entropy rate without any drawing.

        H(x_t | x_<t) is exact for the first `depth` tokens of a document, by enumerating all their
        beginnings; the others lie between H(x_t | z_t-1) and H(x_t). O(words^(depth - 1)), and
        O(Z^2) for each step until nearly no document lasts that long.
        """
        hmm, eos = self.hmm.to("cpu", torch.float64), self.tokenizer.eos_id
        vocab = torch.arange(hmm.vocab_size)
        check_count("depth", depth)
        sums = emission_probs(hmm, torch.ones(1, hmm.num_states, dtype=torch.float64))[0]
        words = vocab[(sums > 0) & (vocab != eos)]
        if len(words) ** (depth - 1) > ENUMERATED:
            raise InputError(
                f"depth is {depth:,} but {len(words):,} words have {len(words) ** (depth - 1):,} "
                f"such beginnings, more than {ENUMERATED:,}; give a smaller depth."
            )
        moves = hmm.transitions.rows(0, hmm.num_states).exp()
        of_state = _entropy(emission_probs(hmm, moves))
        exact = float(_entropy(emission_probs(hmm, hmm.log_init.exp()[None])))
        lower = upper = reached = 0.0
        for length in range(1, depth):
            exact += _enumerated(hmm, words, length)
        here, step = hmm.log_init.exp(), 1  # of documents whose first tokens are all words
        reached = 1.0
        while (mass := float(here.sum())) > TINY:
            after, step = here @ moves, step + 1
            reached += mass
            if step > depth:
                lower += float(here @ of_state)
                marginal = emission_probs(hmm, (after / mass)[None])
                upper += mass * float(_entropy(marginal))
            here = after.index_fill(0, self.ends, 0.0)
        return EntropyBounds((exact + lower) / reached, (exact + upper) / reached)


def mean_nats(nats: Sequence[float], sizes: Sequence[int]) -> Estimate:
    """Nats per token over documents, and the standard error of that ratio of two sums."""
    cost, length = np.asarray(nats, dtype=np.float64), np.asarray(sizes, dtype=np.float64)
    count, mean = len(cost), float(cost.sum() / length.sum())
    rest = cost - mean * length
    error = np.sqrt(count / max(1, count - 1) * (rest**2).sum()) / length.sum()
    return Estimate(mean, float(error), count)


def _entropy(probs: Float[Tensor, "N V"]) -> Float[Tensor, " N"]:
    return -torch.special.xlogy(probs, probs).sum(1)


def _enumerated(hmm: HMM, words: Int[Tensor, " W"], length: int) -> float:
    """H(the next token | the first ones), for documents whose first tokens are so many words."""
    total = 0.0
    grid = torch.cartesian_prod(*[words] * length).reshape(-1, length)
    for part in grid.split(1 << 12):
        log_evidence = inference.log_prob(hmm, part).log_evidence
        possible = torch.isfinite(log_evidence)
        if possible.any():
            following = inference.next_log_probs(hmm, part[possible]).exp()
            total += float(log_evidence[possible].exp() @ _entropy(following))
    return total
