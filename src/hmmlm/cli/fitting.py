"""A training in its folder: what is built, followed step by step, and written at the end."""

import math
import os
import signal
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from hmmlm.cli.bars import progress_bar
from hmmlm.cli.building import Built, build_hmm, build_other
from hmmlm.cli.output import note, say, warn
from hmmlm.cli.telling import Teller
from hmmlm.cli.texts import check_validation, is_path
from hmmlm.errors import InputError
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

    from hmmlm.train.loop import Diverged
    from hmmlm.train.run import Interrupts, open_run

    check_validation(corpus, config)
    if config.is_hmm:
        built = build_hmm(corpus, config, ranks, indent, out if resume else None)
    else:
        built = build_other(corpus, config, ranks, indent)
    config, device = built.config, ranks.device
    ranks.once(check_space, out, built.file_bytes)
    training = _make_training(corpus, built, ranks, indent)
    about, source = _describe(corpus, config, built.known)
    described = {"training": {**config.as_tables(), "device": device}, **built.facts}
    began, trouble, stopped = time.perf_counter(), None, False
    with ExitStack() as stack:
        run: Any = None
        if ranks.rank == 0:
            opened = open_run(out, about, config.saving, source=source, resume=resume)
            run = stack.enter_context(opened)
            if run.unlocked:
                warn(f"{out} cannot be locked ({run.unlocked}); let no other process train there.")
            if built.start is not None and not resume:
                built.start(run)
        interrupts = stack.enter_context(Interrupts(_promise))
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
        made = built.keep(described)
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
    on_gpu = torch.device(device).type == "cuda"
    return {
        "folder": str(out),
        "steps": training.step,
        "seconds": round(seconds, 3),
        "val": best,
        "peak_bytes": torch.cuda.max_memory_allocated(device) if on_gpu else None,
    }


def _make_training(corpus: Any, built: Built, ranks: Any, indent: int) -> Any:
    """The batches, what learns from them and how it is validated, put together."""
    import torch

    from hmmlm.evaluate import evaluate
    from hmmlm.train.config import make_batches, validation_mode
    from hmmlm.train.learner import make_learner
    from hmmlm.train.loop import Training
    from hmmlm.train.sgd import Sgd

    tokens, words, device = corpus.split("train"), corpus.tokenizer, ranks.device
    config = built.config
    marks, first = None if built.labels is None else built.labels.ids, 0
    if built.shown is not None:
        marks, first = built.shown.parallel(tokens), len(built.shown.states)
    batches = make_batches(config, tokens, marks, ranks, first=first)
    learner = make_learner(
        config,
        built.model,
        built.support,
        eos_id=words.eos_id,
        label_of_state=built.label_of_state,
        given=built.given,
        ranks=ranks,
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
            built.face(model),
            held_out,
            mode=validation_mode(config.data),
            eos_id=words.eos_id,
            device=device,
        )
        return found.perplexity

    return Training(
        learner,
        batches,
        settings=config.train,
        evaluate=partial(ranks.once, validate) if "valid" in corpus.splits else None,
    )


def _describe(
    corpus: Any, config: Any, known: dict[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """What must be the same when a run goes on; and where its files are, which may be elsewhere.

    `known` are other files, by their content.
    """
    from hmmlm.train.config import FILES

    tables = config.as_tables()
    source = {}
    for name in FILES:
        table, _, key = name.partition(".")
        if key in tables[table] and is_path(name, tables[table][key]):
            source[key] = str(Path(tables[table].pop(key)).absolute())
    about = {"config": tables, "corpus": corpus.identity()}
    return about | known, source


def _promise() -> None:
    """Says at once, within a signal's handler, that Ctrl-C was heard."""
    text = "stopping after this step; Ctrl-C again leaves now"
    try:
        note(text)
    except RuntimeError:  # the signal came while stderr was being written
        os.write(2, f"\n{text}\n".encode())


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
        bar = progress_bar("Training", training.steps, completed=training.step)
        folder = Path() if run is None else run.folder
        teller = Teller(stack.enter_context(bar), folder, has_checks=training.evaluate is not None)
        log = None
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
            teller.tell(step, training.best.val)
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
