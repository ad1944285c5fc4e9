"""A training in its folder: what is built, followed step by step, and written at the end."""

import hashlib
import math
import signal
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from hmmlm.cli.clustering import blocks_support
from hmmlm.cli.output import progress_bar, say, warn
from hmmlm.cli.texts import check_validation, not_there, open_labels
from hmmlm.errors import InputError, counted
from hmmlm.storage import check_space


def fit(
    corpus: Any,
    out: Path,
    config: Any,
    *,
    ranks: Any,
    indent: int = 0,
    resume: bool = False,
) -> dict[str, Any]:
    """Trains on an opened corpus with a progress bar, and writes the model.

    Of several ranks the first one makes the blocks, validates and writes.
    """
    import torch

    from hmmlm.baselines.ngram import Unigram
    from hmmlm.evaluate import HmmLM, evaluate
    from hmmlm.model import Model
    from hmmlm.params.scalar import Scalar
    from hmmlm.train.config import make_batches, validation_mode, with_sizes
    from hmmlm.train.estimate import estimate as cost_of
    from hmmlm.train.labels import check_labels, share_states
    from hmmlm.train.learner import make_learner
    from hmmlm.train.loop import Diverged, Training
    from hmmlm.train.memory import check_tables
    from hmmlm.train.run import Interrupts, open_run
    from hmmlm.train.sgd import Sgd

    check_validation(corpus, config)
    tokens, words, device = corpus.split("train"), corpus.tokenizer, ranks.device
    config, start = _start(corpus, config, ranks, out if resume else None)
    labels, label_of_state = open_labels(corpus, config), None
    tags = () if labels is None else labels.tags
    known = {} if labels is None else {"labels": labels.identity()}
    known |= {} if start is None else {"start": start.identity}
    ranks.agree({f"the content of {name}": found for name, found in known.items()})
    config, reason = with_sizes(config, len(tokens), words.vocab_size, len(tags))
    if start is None:
        support, facts = ranks.once(_make_support, corpus, config, indent)
    else:
        support, facts = start.support, {}
    if labels is not None:
        label_of_state = share_states(config.model.states, len(tags))
        check_labels(support, label_of_state, labels, tokens, words)
        facts["labels"] = {"tags": tags, "states_per_tag": config.model.states // len(tags)}
    if config.learner.optimiser != "adamw" and (start is None or start.hmm is None):
        check_tables(support, device)
    cost = cost_of(
        config,
        words.vocab_size,
        blocks=max(1, support.num_states // support.width),
        validation="valid" in corpus.splits,
    )
    say(
        f"{config.model.kind}, {counted(support.num_states, 'state')}{reason}; {cost.parameters:,} "
        f"parameters, about {cost.total_memory / 1e6:,.0f} MB and "
        f"{cost.total_flops / 1e9:,.1f} GFLOP a {cost.unit}",
        indent=indent,
    )
    if ranks.ranks > 1:
        rows = config.data.batch_size // ranks.ranks
        say(f"{ranks.ranks:,} ranks, each {counted(rows, 'row')} of a batch", indent=indent)
    ranks.once(check_space, out, cost.file_bytes)
    if start is not None and start.hmm is not None:
        model = Scalar.from_hmm(start.hmm).to(device)
    elif start is not None:  # the checkpoint has the weights
        model = Scalar(support, generator=torch.Generator(), dtype=start.dtype).to(device)
    else:
        generator = torch.Generator().manual_seed(config.seed)
        frequency = ranks.once(lambda: Unigram(tokens, words.vocab_size).log_probs).exp().float()
        model = config.params.build(support, word_probs=frequency, generator=generator).to(device)
    batches = make_batches(config, tokens, None if labels is None else labels.ids, ranks)
    learner = make_learner(
        config, model, support, eos_id=words.eos_id, label_of_state=label_of_state, ranks=ranks
    )

    if isinstance(learner, Sgd):
        learner.notice = warn
        if torch.device(device).type == "cuda":
            reason = learner.why_no_graph
            how = "replays one CUDA graph" if reason is None else f"has no CUDA graph: {reason}"
            say(f"a step {how}", indent=indent)

    def validate(model: Any) -> float:
        held_out = corpus.split("valid")
        found = evaluate(
            HmmLM(model()),
            held_out,
            mode=validation_mode(config.data),
            eos_id=words.eos_id,
            device=device,
        )
        return found.perplexity

    training = Training(
        learner,
        batches,
        settings=config.train,
        evaluate=partial(ranks.once, validate) if "valid" in corpus.splits else None,
    )
    about, source = _describe(corpus, config, support, known)
    described = {"training": {**config.as_tables(), "device": device}, **facts}
    began, trouble, stopped = time.perf_counter(), None, False
    with ExitStack() as stack:
        run: Any = None
        if ranks.rank == 0:
            opened = open_run(out, about, config.saving, source=source, resume=resume)
            run = stack.enter_context(opened)
            if run.unlocked:
                warn(f"{out} cannot be locked ({run.unlocked}); let no other process train there.")
            if start is not None and not resume:
                run.keep_support(support, model.init_logits.dtype)
        interrupts = stack.enter_context(Interrupts())
        state = ranks.once(lambda: run.checkpoints.read())
        if state is not None:
            training.restore(state)
        if resume:
            say(f"going on after step {training.step:,} of {training.steps:,}", indent=indent)
        try:
            stopped = _follow(training, run, interrupts, ranks)
        except Diverged as error:
            if training.step == 0:
                raise
            trouble = error
            described["stopped"] = str(error)
        if stopped:
            _leave(ranks.once(lambda: run.checkpoints.newest()), out, interrupts.asked)
        with torch.no_grad():
            made = Model(model().to("cpu"), words, described)
        ranks.once(lambda: _finish(run, made))
    seconds = time.perf_counter() - began
    if trouble is not None:
        raise InputError(f"{trouble} The model was written to {out}.") from trouble
    best = training.best.val if training.evaluate is not None else None
    if best is not None and math.isinf(best):
        warn(
            f"Validation gave no number, at no step: the model gives probability zero to some of "
            f"its text. The weights are those of the last check, step {training.best.kept:,}."
        )
    return {"folder": str(out), "steps": training.step, "seconds": round(seconds, 3), "val": best}


def _make_support(corpus: Any, config: Any, indent: int) -> tuple[Any, dict[str, Any]]:
    """Which states may emit which word, and facts about it for the model's config."""
    from hmmlm.support import Support

    model = config.model
    if not model.blocks and not model.clusters:
        return Support.dense(corpus.tokenizer.vocab_size, model.states), {}
    support, blocks = blocks_support(
        corpus,
        model.states,
        blocks=model.blocks or None,
        clusters=Path(model.clusters) if model.clusters else None,
        method=model.cluster_by,
        like_hmm_lm=model.like_hmm_lm,
        indent=indent,
    )
    return support, {"blocks": blocks}


def _describe(
    corpus: Any, config: Any, support: Any, known: dict[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """What must be the same when a run goes on; and where its files are, which may be elsewhere.

    `known` are other files, by their content.
    """
    from hmmlm.train.config import FILES

    tables = config.as_tables()
    source = {}
    for name in FILES:
        table, _, key = name.partition(".")
        if key in tables[table]:
            source[key] = str(Path(tables[table].pop(key)).absolute())
    about = {"config": tables, "corpus": corpus.identity()}
    about["support"] = _digest(support.rows, support.row_of_word)
    return about | known, source


def _digest(*tensors: Any) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.cpu().contiguous().numpy())
    return found.hexdigest()[:16]


def _follow(training: Any, run: Any, interrupts: Any, ranks: Any) -> bool:
    """Trains with a progress bar, metrics and checkpoints, until the end or a signal to any rank.

    `run` is None on ranks that write nothing. True if it was a signal. A learner that sums over
    many batches is left between two of them; the checkpoint is then that before the step.
    """
    from hmmlm.train.loop import Left
    from hmmlm.train.tensorboard import open_log

    def between() -> bool:
        if run is not None and run.checkpoints.is_late:
            _save(run, training.state())
        return ranks.total(interrupts.asked is not None)[0] > 0

    training.between = between
    with ExitStack() as stack:
        bar, log = stack.enter_context(progress_bar("Training", training.steps)), None
        if run is not None:
            run.cut_metrics(training.step)
            log = stack.enter_context(open_log(run.folder / "tensorboard"))
        steps = iter(training)
        while True:
            try:
                step = next(steps)
            except StopIteration:
                return False
            except Left:
                if run is not None:
                    _save(run, training.state())
                return True
            late = run is not None and run.checkpoints.due(step.step)
            asked = interrupts.asked is not None  # read once: a signal may come at any line
            due, stop = ranks.total(late, asked)
            state = training.state() if due or stop else None
            if run is not None:
                _record(run, log, step, state)
            best = training.best.val
            details = f"perplexity {step.perplexity:.1f}, {step.tokens_per_second:,.0f} tokens/s"
            details += "" if math.isinf(best) else f", best on validation {best:.1f}"
            bar.update(bar.task_ids[0], completed=step.step, details=details)
            if stop and not training.is_over:
                steps.close()
                return True


def _record(run: Any, log: Any, step: Any, state: Any) -> None:
    """Writes down a step, and a checkpoint if there is one; a full disk ends no training."""
    try:
        run.add_metrics(step)
    except OSError as error:
        if not run.has_lost_metrics:
            reason = error.strerror or error
            warn(
                f"The metrics of step {step.step:,} are lost, and those of others may be, without "
                f"another word ({reason}). Training goes on."
            )
        run.has_lost_metrics = True
    with suppress(InputError, OSError):  # the same numbers for TensorBoard
        log.write(step)
    if state is not None:
        _save(run, state)


def _save(run: Any, state: Any) -> None:
    """Writes a checkpoint, or says that there is none."""
    try:
        run.checkpoints.write(state)
    except (InputError, OSError) as error:
        last = run.checkpoints.newest()
        kept = "there is none" if last is None else f"the last is that of step {last:,}"
        warn(f"No checkpoint of step {state.numbers['step']:,}, {kept}. {error}")


def _finish(run: Any, model: Any) -> None:
    """Writes the model into the folder of its run, and removes what only a run needs."""
    try:
        model.write_into(run.folder)
    except (InputError, OSError) as error:
        last = run.checkpoints.newest() or 0
        raise InputError(
            f"Training is over but the model is not written: {error} Then run hmmlm train "
            f"--resume {quote(str(run.folder))}, which goes on after step {last:,}."
        ) from error
    run.finish()


def _leave(last: int | None, folder: Path, number: int | None) -> None:
    """Ends the program as a signal asked, and says how to go on."""
    warn(f"Stopped; hmmlm train --resume {quote(str(folder))} goes on after step {last or 0:,}.")
    raise SystemExit(128 + (number or signal.SIGTERM))


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
    from hmmlm.train.config import with_start
    from hmmlm.train.memory import check_tables

    place = config.learner.start
    if not place:
        return config, None
    if begun is not None and not all(ranks.gather(Path(place).exists())):
        return config, ranks.once(_lost_start, begun, place)
    model = Model.load(place)
    check_vocabulary(corpus, model.tokenizer)
    check_tables(model.hmm.support, ranks.device)
    hmm = model.hmm
    start = _Start(hmm.support, hmm.dtype, _digest(*hmm.fields()), hmm)
    return with_start(config, hmm), start


def _lost_start(run: Path, place: str) -> _Start:
    """What a run has kept of the model that it started from."""
    from hmmlm.train.run import read_run, read_support

    kept = read_support(run)
    if kept is None:
        raise not_there("train.start", place, run)
    return _Start(*kept, read_run(run)[0].get("start", ""))
