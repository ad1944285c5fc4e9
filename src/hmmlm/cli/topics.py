"""`hmmlm topics`: an HMM whose lines have topics that follow each other."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hmmlm.cli.bars import progress_bar
from hmmlm.cli.output import Device, Json, pick_device, positive, print_json, say, warn, whole
from hmmlm.errors import counted
from hmmlm.storage import refuse_existing

if TYPE_CHECKING:
    from torch import Tensor

    from hmmlm.data.shards import Corpus
    from hmmlm.lm import LanguageModel

KEPT = ("training", "blocks", "labels")
"""What is kept of how the HMM was made."""

SHOWN = 8
"""Words that are told of a topic."""


def topics(
    model: Annotated[Path, typer.Argument(help="The folder of an HMM.")],
    on: Annotated[Path, typer.Option(help="The corpus it was trained on.", metavar="CORPUS")],
    out: Annotated[Path, typer.Option(help="The model folder to write.")],
    topics: Annotated[
        int, typer.Option(help="How many topics.", parser=whole(1), metavar="N")
    ] = 64,
    epochs: Annotated[
        int, typer.Option(help="Passes over the text.", parser=whole(1), metavar="N")
    ] = 10,
    penalty: Annotated[
        float,
        typer.Option(
            help="Nats for a tilt of 1: the larger, the more alike topics are.",
            parser=positive,
            metavar="NUMBER",
        ),
    ] = 0.5,
    seed: Annotated[
        int, typer.Option(help="Seed of the start and the order.", parser=whole(0), metavar="N")
    ] = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Give an HMM topics: each line has one, which tilts words and states, and moves after it.

    The HMM stays as it is; its topics are learnt from lines that follow each other. It is then an
    HMM of topics x states, and far better on text whose lines follow each other, too.
    """
    refuse_existing(out)
    from hmmlm.data.shards import Corpus, check_vocabulary
    from hmmlm.model import Model
    from hmmlm.topic_model import TopicModel
    from hmmlm.topics import TopicSettings, learn_topics
    from hmmlm.train.config import mode_of_training

    settings = TopicSettings(topics=topics, epochs=epochs, penalty=penalty, seed=seed)
    loaded = Model.load(model, device=pick_device(device))
    trained = mode_of_training(loaded.config)
    if trained not in (None, "sentence"):
        warn(
            f"{model} was trained to be read in mode {trained}, which topics have no use for: they "
            f"read each line from p(first state); one trained by sentence gains more."
        )
    corpus = Corpus.open(on)
    check_vocabulary(corpus, loaded.tokenizer)
    tokens = corpus.split("train")
    with progress_bar("Learning topics", epochs * len(tokens)) as bar:

        def show(number: int, gain: float) -> None:
            bar.advance(bar.task_ids[0], number)
            bar.update(bar.task_ids[0], details=f"{gain:.3f} nats a token gained")

        learnt = learn_topics(loaded.hmm, tokens, settings, progress=show)
    words = _words_of_topics(learnt.word_counts, corpus)
    about = {key: loaded.config[key] for key in KEPT if key in loaded.config}
    asked = {"of": model.name, "epochs": epochs, "penalty": penalty, "seed": seed}
    made = TopicModel(
        learnt.topics.to("cpu"), loaded.tokenizer, {**about, "learnt": asked, "topics": words}
    )
    for number, topic in enumerate(words):
        say(f"{number:3}  {topic['share']:5.1%}  {' '.join(topic['words'])}")
    found = {}
    if "valid" in corpus.splits:
        after = TopicModel(learnt.topics, loaded.tokenizer).lm
        found = _compare(loaded.lm, after, corpus, str(loaded.device))
    made.save(out)
    say(f"wrote {out}, {counted(topics, 'topic')} x {counted(loaded.hmm.num_states, 'state')}")
    if json:
        print_json({"folder": str(out), "topics": words, "valid": found})


def _words_of_topics(counts: "Tensor", corpus: "Corpus") -> list[dict[str, Any]]:
    """Of each topic its share of the text, and the words that tell it from the others.

    A word tells by p(word | topic) log(p(word | topic) / p(word)).
    """
    shares = counts.sum(1) / counts.sum()
    probs = counts / counts.sum(1, keepdim=True).clamp(min=1e-30)
    usual = counts.sum(0) / counts.sum()
    tells = probs.xlogy(probs / usual.clamp(min=1e-30))
    best = tells.topk(min(SHOWN, tells.shape[1])).indices.tolist()
    names = corpus.tokenizer
    return [
        {"share": round(share, 4), "words": [names.token(word) for word in row]}
        for share, row in zip(shares.tolist(), best, strict=True)
    ]


def _compare(
    before: "LanguageModel", after: "LanguageModel", corpus: "Corpus", device: str
) -> dict[str, float]:
    """Perplexities of the validation text, without topics and with them."""
    from hmmlm.evaluate import evaluate

    tokens, eos = corpus.split("valid"), corpus.tokenizer.eos_id

    def read(lm: "LanguageModel", mode: str) -> float:
        return evaluate(lm, tokens, mode=mode, eos_id=eos, device=device).perplexity

    found = {"sentence_without": read(before, "sentence")}
    found |= {mode: read(after, mode) for mode in ("sentence", "streaming")}
    say(
        f"validation perplexity {found['sentence_without']:.2f} by sentence; with topics "
        f"{found['sentence']:.2f}, and {found['streaming']:.2f} streaming, where topics are "
        f"followed from line to line"
    )
    return found
