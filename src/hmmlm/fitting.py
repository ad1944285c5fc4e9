"""From text to a model in one call: what `hmmlm train` does, without a folder of the run."""

import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from hmmlm.baselines.ngram import Unigram
from hmmlm.clusters.blocks import block_facts, corpus_blocks
from hmmlm.clusters.counts import count_words
from hmmlm.data.shards import Corpus, write_corpus
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.devices import find_device
from hmmlm.errors import InputError
from hmmlm.evaluate import HmmLM, evaluate
from hmmlm.model import Model
from hmmlm.support import Support
from hmmlm.train.config import (
    FILES,
    Config,
    asks_validation,
    check_known_states,
    make_batches,
    make_config,
    validation_mode,
)
from hmmlm.train.estimate import estimate
from hmmlm.train.learner import make_learner
from hmmlm.train.loop import Diverged, Progress, Training
from hmmlm.train.memory import check_tables, check_training
from hmmlm.train.sizes import plain_support, support_of_blocks, with_sizes

MANY_LINES = 1000
"""From so many lines on, words that occur once are taken for unknown ones."""


class Stopped(Diverged):
    """A training that cannot go on; `model` has the weights that the message names."""

    def __init__(self, message: str, model: Model) -> None:
        super().__init__(f"{message} The error's `model` has the weights.")
        self.model = model


def fit(
    text: Corpus | Iterable[str],
    *,
    valid: Iterable[str] | None = None,
    tokenizer: Tokenizer | None = None,
    data: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    train: Mapping[str, Any] | None = None,
    device: str | torch.device = "cpu",
    follow: Callable[[Progress], object] | None = None,
) -> Model:
    """Trains a model on lines of text, or on the training text of a corpus.

    `data`, `model` and `train` are the tables of a run's file (docs/training.md); sizes that are
    not given are chosen for the text. With `valid` lines (a corpus has its own) the weights are
    those of the best check. Without a tokenizer, words that occur twice are in the vocabulary; in
    a short text, all words.
    `device` may be "auto": a GPU if there is one. `follow` is called after every step. Nothing is
    written to disk: `Model.save` does that. A training that cannot go on raises `Stopped`, which
    has the model so far.
    """
    given = {"data": data, "model": model, "train": train}
    config = make_config({name: table or {} for name, table in given.items()})
    for name in FILES:
        table, _, key = name.partition(".")
        if config.as_tables()[table].get(key):
            raise InputError(f"{name} names a file, which fit does not read; use hmmlm train.")
    check_known_states(config)
    place = find_device(device)
    if isinstance(text, Corpus):
        if valid is not None or tokenizer is not None:
            raise InputError("A corpus has its own valid text and tokenizer; leave them out.")
        return _fit(text, config, place, follow)
    for name, told in (("text", text), ("valid", valid)):
        if isinstance(told, str):
            raise InputError(f"{name} is one string but must be lines; give {name}.splitlines().")
    lines = list(text)
    splits: dict[str, Iterable[str]] = {"train": lines} | (
        {} if valid is None else {"valid": valid}
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "corpus"
        write_corpus(folder, words_of(lines) if tokenizer is None else tokenizer, splits)
        return _fit(Corpus.open(folder), config, place, follow)


def words_of(lines: list[str]) -> Tokenizer:
    """The words of a text: those that occur twice, of a short one all."""
    return Tokenizer.words(lines, min_count=2 if drops_rare_words(lines) else 1)


def drops_rare_words(lines: list[str]) -> bool:
    """Whether words that occur once become `<unk>`, as there is enough text without them."""
    return len(lines) >= MANY_LINES


def _fit(
    corpus: Corpus,
    config: Config,
    device: torch.device,
    follow: Callable[[Progress], object] | None,
) -> Model:
    train, words, is_checked = config.train, corpus.tokenizer, "valid" in corpus.splits
    asked = asks_validation(train)
    if asked is not None and not is_checked:
        raise InputError(f"{asked} needs validation text, and there is none; give valid lines.")
    corpus = corpus.head(config.data.tokens) if config.data.tokens else corpus
    tokens = corpus.split("train")
    config, _ = with_sizes(config, len(tokens), words.vocab_size)
    check_training(estimate(config, words.vocab_size, validation=is_checked).memory, device)
    support, facts = _support(corpus, config)
    if not config.learner.is_descent:
        check_tables(support, device)
    tables = config.params.build(
        support,
        word_probs=Unigram(tokens, words.vocab_size).log_probs.exp().float(),
        generator=torch.Generator().manual_seed(config.seed),
    ).to(device)

    def check(tables: Any) -> float:
        mode, held_out = validation_mode(config.data), corpus.split("valid")
        lm = HmmLM(tables())
        return evaluate(lm, held_out, mode=mode, eos_id=words.eos_id, device=device).perplexity

    training = Training(
        make_learner(config, tables, support, eos_id=words.eos_id),
        make_batches(config, tokens),
        settings=train,
        evaluate=check if is_checked else None,
    )
    described = {"training": {**config.as_tables(), "device": str(device)}, **facts}

    def made(**more: str) -> Model:
        with torch.no_grad():
            return Model(tables().detach().to("cpu"), words, {**described, **more})

    try:
        for step in training:
            if follow is not None:
                follow(step)
    except Diverged as error:
        if training.step == 0:
            raise
        raise Stopped(str(error), made(stopped=str(error))) from error
    return made()


def _support(corpus: Corpus, config: Config) -> tuple[Support, dict[str, Any]]:
    """Which states may emit which word, and facts about it for the model's config."""
    model, size = config.model, corpus.tokenizer.vocab_size
    plain = plain_support(config, size)
    if plain is not None:
        return plain, {}
    assert model.states and model.blocks
    blocks, _ = corpus_blocks(
        corpus, model.blocks, method=model.cluster_by, like_hmm_lm=model.like_hmm_lm
    )
    counts = count_words(corpus.split("train"), size)
    facts = {"blocks": block_facts(blocks, counts, model.cluster_by)}
    return support_of_blocks(blocks, counts, model.states, model.uneven), facts
