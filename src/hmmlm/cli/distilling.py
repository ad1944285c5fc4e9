"""`hmmlm distill`: states of the first tokens from a teacher, and a training that begins there."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from hmmlm.cli.bars import progress_bar
from hmmlm.cli.building import digest, make_support
from hmmlm.cli.fitting import fit
from hmmlm.cli.output import Device, Json, number, pick_device, print_json, say
from hmmlm.cli.sampling import Prompts, Type, gap, is_ours, sample_corpus
from hmmlm.cli.texts import check_places, open_corpus
from hmmlm.errors import InputError, counted
from hmmlm.storage import refuse_existing

TAUGHT = 10_000_000
"""Of text that a large language model wrote, tokens that get a state at most."""


def distill(
    source: Annotated[
        Path | None, typer.Argument(help="A run.toml with one more table, distill.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The model folder to write; by default runs/NAME.")
    ] = None,
    llm: Annotated[
        str | None,
        typer.Option(help="Instead of a run: a large language model to learn, a folder or a name."),
    ] = None,
    states: Annotated[int, number("--states", "Of --llm: states of the HMM.")] = 4096,
    tokens: Annotated[int, number("--tokens", "Of --llm: tokens to draw from it.")] = 50_000_000,
    length: Annotated[int, number("--length", "Of --llm: most tokens of a text.")] = 64,
    gguf_file: Annotated[
        str | None, typer.Option(help="Of --llm: a GGUF file in its folder.", metavar="NAME")
    ] = None,
    prompts: Prompts = None,
    dtype: Type = "float32",
    set: Annotated[
        list[str] | None,
        typer.Option(help="A setting, such as distill.tokens=5000000.", metavar="K=V"),
    ] = None,
    only_states: Annotated[
        bool, typer.Option("--only-states", help="Make the states, and train nothing.")
    ] = False,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Train a model that begins with what a teacher makes of the text.

    With --llm the teacher also writes the text: a corpus is drawn from it into OUT.corpus, dense
    states learn it, beginning with those that the teacher sees, and the report says how far they
    are from it. Such a model guides it (hmmlm guide).

    The table says who the teacher is, and how what it makes of each token becomes a state. States
    are kept in the corpus' folder, so that they are made once. Training begins with the tokens that
    have one, and goes on with the others; hmmlm train --resume goes on after a stop.
    """
    from hmmlm.train.tables import override, read_config

    if (llm is None) == (source is None):
        raise InputError(
            "Say what to learn from: a run.toml with a table distill, or --llm FOLDER, one of them."
        )
    if source is not None:
        tables = override(read_config(source), set or [])
        check_places(tables, source)
        _distill(tables, str(source), out, only_states, device, json)
        return
    assert llm is not None
    if out is None:
        raise InputError("Say where the guide is to be written: --out FOLDER.")
    refuse_existing(out)
    if is_ours(Path(llm)):
        _network(Path(llm), "cpu")  # refused before any text is drawn
    corpus = out.with_name(f"{out.name}.corpus")
    if corpus.exists():
        say(f"text of {corpus}, drawn before")
    else:
        sample_corpus(
            llm, corpus, tokens, length=length, prompts=prompts, gguf_file=gguf_file, dtype=dtype,
            device=device,
        )  # fmt: skip
    taught = {"teacher": llm, "tokens": min(TAUGHT, tokens), "gguf_file": gguf_file or ""}
    taught |= {"dtype": dtype}
    # On a GPU the kernels of a step are for bf16.
    quick = {"precision": "bf16"} if pick_device(device).startswith("cuda") else {}
    tables = {
        "data": {"corpus": str(corpus), "length": length, "batch_size": 200},
        "model": {"kind": "lowrank", "states": states, "blocks": 0},
        "train": {"epochs": 1, "dropout": 0.0, **quick},
        "distill": taught | {"points": min(2_000_000, taught["tokens"])},
    }
    _distill(override(tables, set or []), "--llm", out, only_states, device, json)
    if not only_states:
        gap(out, corpus, device=device, json=json)


def _distill(
    tables: dict[str, Any],
    source: str,
    out: Path | None,
    only_states: bool,
    device: str,
    json: bool,
) -> None:
    """What a run says, of `source` in messages."""
    from hmmlm.baselines.kinds import NEURAL
    from hmmlm.distill.labels import LabelSettings
    from hmmlm.distill.teachers import TeacherSettings
    from hmmlm.train.config import make_config
    from hmmlm.train.distributed import join
    from hmmlm.train.sizes import with_sizes
    from hmmlm.train.tables import take

    asked = tables.pop("distill", {})
    if not asked.get("teacher"):
        raise InputError(
            f"{source} does not say who the teacher is; add a table [distill] with teacher = "
            f'"FOLDER", a model of Hugging Face\'s or one that hmmlm train --model decoder made.'
        )
    config = make_config(tables, NEURAL)
    if not config.is_hmm or config.data.states or not config.data.corpus:
        raise InputError(
            f"distill makes the states for an HMM of a corpus; in {source} kind must be that of an "
            f"HMM, data.corpus be given, and data.states not."
        )
    known = [TeacherSettings, LabelSettings]
    mind = take(TeacherSettings, asked, "distill", known)
    how = take(LabelSettings, {"length": config.data.length, **asked}, "distill", known)
    with ExitStack() as stack:
        ranks = stack.enter_context(join(pick_device(device)))
        if ranks.ranks > 1:
            raise InputError("distill is one process's work; start it without torchrun.")
        corpus, name = open_corpus(config, stack)
        folder = None if only_states else refuse_existing(out or Path("runs") / name)
        size = corpus.tokenizer.vocab_size
        sized, _ = with_sizes(config, len(corpus.split("train")), size)
        support, _ = make_support(corpus, sized, 0)
        teacher = _teacher(mind, how.seed, corpus, ranks.device)
        _check_beginning(config, teacher, how)
        states = _make_states(teacher, corpus, support, how, ranks.device)
        if folder is None:
            if json:
                print_json({"states": str(states)})
            return
        tables.setdefault("data", {})["states"] = str(states)
        result = fit(corpus, folder, make_config(tables, NEURAL), ranks=ranks)
    say(f"{counted(result['steps'], 'step')} in {result['seconds']:.1f} s; wrote {folder}")
    if json:
        print_json({**result, "states": str(states)})


def _check_beginning(config: Any, teacher: Any, how: Any) -> None:
    """Refuses what could not begin with the teacher's numbers, before it reads the text."""
    import torch

    from hmmlm.distill.beginnings import check_beginning
    from hmmlm.distill.teachers import head_of

    what = config.learner.begin_with
    if what == "none":
        return
    found = how.dim or teacher.hidden(torch.zeros(1, 1, dtype=torch.long)).shape[2]
    has_head = what == "centres" or head_of(teacher) is not None
    check_beginning(what, config.params.width, found, has_head, teacher.name)


def _make_states(teacher: Any, corpus: Any, support: Any, how: Any, device: str) -> Path:
    """The folder of the states, which are made unless they are there."""
    from hmmlm.distill.labels import find_states, identity, write_states

    how = replace(how, tokens=min(how.tokens, len(corpus.split("train"))))
    rows = digest(support.rows, support.row_of_word)
    name = identity(teacher, corpus.identity(), rows, how)
    folder = corpus.folder / f"states-{name}"
    if folder.exists():
        say(f"states of {folder}, made before")
        return folder
    with progress_bar(f"Asking {teacher.name}", None):
        found = find_states(teacher, corpus.split("train"), support, how, device=device)
        found.about["corpus"] = corpus.identity()
        write_states(folder, found, name)
    say(f"{teacher.name}: states of {len(found.states):,} tokens, in {folder}")
    return folder


class _Ours:
    """A network of ours as a teacher."""

    def __init__(self, network: Any, name: str) -> None:
        self.network, self.name = network, name

    @property
    def vocab_size(self) -> int:
        return self.network.vocab_size

    def hidden(self, tokens: Any) -> Any:
        import torch

        with torch.no_grad():
            return self.network.hidden(tokens.to(self.network.device)).float()

    def head(self) -> Any:
        return self.network.words.detach().float()


def _teacher(mind: Any, seed: int, corpus: Any, device: str) -> Any:
    """The teacher that is asked for; one that cannot be had is an error."""
    from hmmlm.distill.teachers import HuggingFaceTeacher

    folder = Path(mind.teacher)
    if not is_ours(folder):
        return HuggingFaceTeacher(
            mind.teacher,
            layer=mind.layer,
            dtype=mind.dtype,
            device=device,
            random=mind.random,
            seed=seed,
            begins=mind.begins,
            gguf_file=mind.gguf_file,
        )
    import torch

    from hmmlm.data.shards import check_vocabulary

    model = _network(folder, device)
    check_vocabulary(corpus, model.tokenizer)
    network, drawn = model.network, ""
    if mind.random:
        network = model.settings.build(
            network.vocab_size,
            start_id=network.start_id,
            generator=torch.Generator().manual_seed(seed),
        ).to(device)
        drawn = f", random {seed}"
    weights = digest(*network.state_dict().values())
    return _Ours(network, f"{model.kind} {weights}{drawn}")


def _network(folder: Path, device: str) -> Any:
    """A network of ours that has hidden states."""
    from hmmlm.neural_model import NeuralModel, load_model

    model = load_model(folder, device=device)
    if not isinstance(model, NeuralModel) or not hasattr(model.network, "hidden"):
        raise InputError(
            f"{folder} has no hidden states to learn from; train a teacher with hmmlm train "
            f"--model decoder, or give a model of Hugging Face's."
        )
    return model
