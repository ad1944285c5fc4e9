"""What is trained: an HMM of a parameterisation, or another language model."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hmmlm.cli.clustering import blocks_support
from hmmlm.cli.output import say
from hmmlm.cli.texts import not_there, open_labels
from hmmlm.errors import InputError, counted, rounded


class Built(NamedTuple):
    """A model to train, and what training and its folder need to know of it.

    `face` gives the model as it is evaluated, `keep` as it is kept, with facts for its config.
    `known` is what must be the same when a run goes on; `start` begins a new run in a folder.
    `shown` are the states of the first tokens, `given` the parameters that begin with what their
    teacher knows.
    """

    config: Any
    model: Any
    support: Any
    face: Callable[[Any], Any]
    keep: Callable[[dict[str, Any]], Any]
    file_bytes: int
    known: dict[str, str]
    facts: dict[str, Any]
    labels: Any = None
    label_of_state: Any = None
    shown: Any = None
    given: Any = ()
    start: Callable[[Any], None] | None = None


def build_other(corpus: Any, config: Any, ranks: Any, indent: int) -> Built:
    """A model that reads text word by word, with weights as its settings draw them."""
    import torch

    from hmmlm.baselines.ngram import Unigram
    from hmmlm.neural_model import NeuralModel
    from hmmlm.train.estimate import network_memory
    from hmmlm.train.memory import check_training

    kind, words = config.model.kind, corpus.tokenizer
    if ranks.ranks > 1:
        raise InputError(
            f"kind {kind} is trained by one process and there are {ranks.ranks:,}; start it "
            f"without torchrun."
        )
    frequency = Unigram(corpus.split("train"), words.vocab_size).log_probs.exp().float()
    given = {"start_id": words.eos_id, "word_probs": frequency}
    seeded = torch.Generator().manual_seed(config.seed)
    with torch.device("meta"):  # sizes without numbers
        shapes = config.params.build(
            words.vocab_size, **given, generator=torch.Generator("cpu").manual_seed(0)
        )
    size = sum(parameter.numel() for parameter in shapes.parameters())
    smaller = "use a smaller model, such as by model.width, or smaller batches"
    check_training(network_memory(config, size, words.vocab_size), ranks.device, advice=smaller)
    model = config.params.build(words.vocab_size, **given, generator=seeded).to(ranks.device)
    say(f"{kind}; {size:,} parameters", indent=indent)

    def keep(described: dict[str, Any]) -> NeuralModel:
        return NeuralModel(kind, config.params, model.to("cpu"), words, described)

    return Built(config, model, None, lambda model: model, keep, 4 * size, {}, {})


def build_hmm(corpus: Any, config: Any, ranks: Any, indent: int, begun: Path | None) -> Built:
    """A parameterisation of an HMM on its support; `begun` is the folder of a run that goes on."""
    import torch

    from hmmlm.distill.labels import read_states
    from hmmlm.evaluate import HmmLM
    from hmmlm.model import Model
    from hmmlm.train.config import check_known_states
    from hmmlm.train.estimate import estimate as cost_of
    from hmmlm.train.labels import check_labels, check_states, share_states
    from hmmlm.train.memory import check_tables, check_training
    from hmmlm.train.sizes import with_sizes

    check_known_states(config)
    tokens, words, device = corpus.split("train"), corpus.tokenizer, ranks.device
    config, start = _start(corpus, config, ranks, begun)
    labels, label_of_state = open_labels(corpus, config), None
    tags = () if labels is None else labels.tags
    known = {} if labels is None else {"labels": labels.identity()}
    known |= {} if start is None else {"start": start.identity}
    ranks.agree({f"the content of {name}": found for name, found in known.items()})
    config, reason = with_sizes(config, len(tokens), words.vocab_size, len(tags))
    is_checked = "valid" in corpus.splits
    if start is None:
        if not config.model.clusters:  # else the blocks, and with them the cost, are in a file
            before = cost_of(config, words.vocab_size, validation=is_checked)
            check_training(before.memory, device)
        support, facts = ranks.once(make_support, corpus, config, indent)
    else:
        support, facts = start.support, {}
    if labels is not None:
        label_of_state = share_states(config.model.states, len(tags))
        check_labels(support, label_of_state, labels, tokens, words)
        facts["labels"] = {"tags": tags, "states_per_tag": config.model.states // len(tags)}
    shown = None
    if config.data.states:
        shown, known["states"] = read_states(Path(config.data.states))
        shown = _first_states(shown, config.data, support, corpus.identity())
        check_states(support, shown.states, tokens, words)
        facts["states"] = shown.about
    if not config.learner.is_descent and (start is None or start.hmm is None):
        check_tables(support, device)
    cost = cost_of(
        config,
        words.vocab_size,
        blocks=support.num_blocks,
        each=support.width,
        validation=is_checked,
    )
    check_training(cost.memory, device)
    say(
        f"{config.model.kind}, {counted(support.num_states, 'state')}{reason}; {cost.parameters:,} "
        f"parameters, about {rounded(cost.total_memory, 'B')} and "
        f"{rounded(cost.total_flops, 'FLOP')} a {cost.unit}",
        indent=indent,
    )
    if ranks.ranks > 1:
        rows = config.data.batch_size // ranks.ranks
        say(f"{ranks.ranks:,} ranks, each {counted(rows, 'row')} of a batch", indent=indent)
    if start is None:
        model, given = _first_weights(corpus, config, support, shown, ranks, begun, known)
    else:
        model, given = _weights_of(start, device), []

    def keep(described: dict[str, Any]) -> Model:
        with torch.no_grad():
            return Model(model().to("cpu"), words, described)

    def begin(run: Any) -> None:
        run.keep_support(support, model.init_logits.dtype)

    known["support"] = digest(support.rows, support.row_of_word)
    return Built(
        config=config,
        model=model,
        support=support,
        face=lambda model: HmmLM(model()),
        keep=keep,
        file_bytes=cost.file_bytes,
        known=known,
        facts=facts,
        labels=labels,
        label_of_state=label_of_state,
        shown=shown,
        given=given,
        start=None if start is None else begin,
    )


def _first_weights(
    corpus: Any,
    config: Any,
    support: Any,
    shown: Any,
    ranks: Any,
    begun: Path | None,
    known: dict[str, str],
) -> tuple[Any, Any]:
    """A parameterisation as its settings draw it, and those of its weights that are a teacher's.

    What tells the files that weights were taken from goes into `known`.
    """
    import torch

    from hmmlm.baselines.ngram import Unigram
    from hmmlm.distill.beginnings import begin as begin_with

    tokens, size = corpus.split("train"), corpus.tokenizer.vocab_size
    generator = torch.Generator().manual_seed(config.seed)
    frequency = ranks.once(lambda: Unigram(tokens, size).log_probs).exp().float()
    model = config.params.build(support, word_probs=frequency, generator=generator)
    model = model.to(ranks.device)
    if config.learner.start:
        known["start"] = _take_layers(model, config, begun)
    if config.model.kind == "pretrained":
        known["checkpoint"] = digest(*model.networks.state_dict().values())
        ranks.agree({"the content of checkpoint": known["checkpoint"]})
    what = config.learner.begin_with
    return model, [] if shown is None or what == "none" else begin_with(model, shown, what)


def _first_states(labels: Any, data: Any, support: Any, corpus: dict[str, Any]) -> Any:
    """Those of the tokens that are shown, and that are read at all."""
    known, states = len(labels.states), len(labels.centres)
    if states != support.num_states:
        raise InputError(
            f"{data.states} tells {counted(states, 'state')} apart but the model has "
            f"{support.num_states:,}; make states for this model."
        )
    if labels.about.get("corpus", corpus) != corpus:
        raise InputError(f"{data.states} has the states of another text; make them for this one.")
    if data.shown > known:
        raise InputError(
            f"data.shown is {data.shown:,} but {data.states} has states for {known:,} tokens; make "
            f"more of them (distill.tokens), or show fewer."
        )
    number = data.shown or known
    return labels._replace(states=labels.states[: min(number, data.tokens or number)])


def make_support(corpus: Any, config: Any, indent: int) -> tuple[Any, dict[str, Any]]:
    """Which states may emit which word, and facts about it for the model's config."""
    from hmmlm.train.sizes import plain_support

    model = config.model
    plain = plain_support(config, corpus.tokenizer.vocab_size)
    if plain is not None:
        return plain, {}
    support, blocks = blocks_support(
        corpus,
        model.states,
        blocks=model.blocks or None,
        clusters=Path(model.clusters) if model.clusters else None,
        method=model.cluster_by,
        like_hmm_lm=model.like_hmm_lm,
        uneven=model.uneven,
        indent=indent,
    )
    return support, {"blocks": blocks}


def digest(*tensors: Any) -> str:
    """What tells tensors from others."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.cpu().contiguous().numpy())
    return found.hexdigest()[:16]


class _Start(NamedTuple):
    """A model to start from; where it is gone and a checkpoint has its weights, what is known."""

    support: Any
    dtype: Any
    identity: str
    hmm: Any = None


def _start(corpus: Any, config: Any, ranks: Any, begun: Path | None) -> tuple[Any, _Start | None]:
    """The configuration with the sizes of the model to start from, and that model.

    `begun` is the folder of the run that goes on, if one does.
    """
    from hmmlm.data.shards import check_vocabulary
    from hmmlm.model import Model
    from hmmlm.train.memory import check_tables
    from hmmlm.train.sizes import with_start

    place = config.learner.start
    if not place or config.model.kind != "scalar":
        return config, None
    if begun is not None and not all(ranks.gather(Path(place).exists())):
        return config, ranks.once(_lost_start, begun, place)
    model = Model.load(place)
    check_vocabulary(corpus, model.tokenizer)
    check_tables(model.hmm.support, ranks.device)
    hmm = model.hmm
    start = _Start(hmm.support, hmm.dtype, digest(*hmm.fields()), hmm)
    return with_start(config, hmm), start


def _weights_of(start: _Start, device: str) -> Any:
    """The tables of a model to start from, as free numbers."""
    import torch

    from hmmlm.params.scalar import Scalar

    if start.hmm is not None:
        return Scalar.from_hmm(start.hmm).to(device)
    # The checkpoint has the weights.
    return Scalar(start.support, generator=torch.Generator(), dtype=start.dtype).to(device)


def _lost_start(run: Path, place: str) -> _Start:
    """What a run has kept of the model that it started from."""
    from hmmlm.train.run import read_run, read_support

    kept = read_support(run)
    if kept is None:
        raise not_there("train.start", place, run)
    return _Start(*kept, read_run(run)[0].get("start", ""))


def _take_layers(model: Any, config: Any, begun: Path | None) -> str:
    """Gives a transformer of states the layers of one of words; what tells them from others.

    Where they are gone and a run goes on, its checkpoint has its own.
    """
    from hmmlm.baselines.decoder import DecoderLM
    from hmmlm.neural_model import NeuralModel, load_model
    from hmmlm.train.run import read_run

    place, mine = config.learner.start, config.params
    if begun is not None and not Path(place).exists():
        return read_run(begun)[0].get("start", "")
    found = load_model(place)
    network = found.network if isinstance(found, NeuralModel) else None
    if not isinstance(found, NeuralModel) or not isinstance(network, DecoderLM):
        raise InputError(
            f"{place} is no decoder, whose layers kind transformer could begin with; train one "
            f"with hmmlm train --model decoder."
        )
    sizes = [(mine.width, mine.depth, mine.heads)]
    sizes.append((found.settings.width, found.settings.depth, found.settings.heads))
    if sizes[0] != sizes[1]:
        named = ["width {:,}, depth {:,}, heads {:,}".format(*size) for size in sizes]
        raise InputError(f"The model has {named[0]} but {place} has {named[1]}; set them so.")
    weights = network.body.state_dict()
    model.networks["all"].load_state_dict(weights)
    return digest(*weights.values())
