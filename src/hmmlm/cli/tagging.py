"""The command that gives tokens their states, and says how those agree with tags."""

import sys
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hmmlm.cli.asking import Folder, Text, load_hmm, text_lines
from hmmlm.cli.bars import progress_bar
from hmmlm.cli.output import (
    Device,
    EmptyLines,
    Json,
    number,
    print_json,
    say,
    warn,
)
from hmmlm.cli.unknown import UnknownWords
from hmmlm.errors import InputError, counted

if TYPE_CHECKING:
    import numpy as np

    from hmmlm.data.gold import TaggedSentence
    from hmmlm.model import Model, TaggedLine

SHOWN = 20
"""Pairs that are shown; --json has all."""


def tag(
    model: Folder,
    text: Text = None,
    posterior: Annotated[
        bool, typer.Option("--posterior", help="Each token's best state on its own.")
    ] = False,
    gold: Annotated[
        Path | None,
        typer.Option(help="Compare with tags: a file of token, tab, tags (docs/induction.md)."),
    ] = None,
    column: Annotated[int | None, number("--column", "Of --gold, where tags are (2).", 2)] = None,
    against: Annotated[
        Path | None, typer.Option(help="Compare with the states of another model.")
    ] = None,
    merge: Annotated[
        int | None, number("--merge", "Merge states that neighbour alike to so many groups.")
    ] = None,
    empty_lines: EmptyLines = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """The hidden state of every token, written token/state: the best path, or token by token.

    A model that was trained with labels gives the label that owns the state; --json has both. With
    --gold or --against it is how well states agree with tags or with another model's states.
    """
    if gold is not None and against is not None:
        raise InputError("--gold and --against are two comparisons; ask for one at a time.")
    if column is not None and gold is None:
        raise InputError("--column is of a file of tags; give it with --gold.")
    sentences = [] if gold is None else _read_gold(gold, column or 2, text, empty_lines)
    loaded = load_hmm(model, device)
    if gold is not None:
        _check_words(loaded, model, gold)
        tagged = list(_follow(loaded, (" ".join(one.words) for one in sentences), posterior))
        tags, names = _tags_of(sentences, tagged, gold)
        unknown = _count_unknown(loaded, tagged)
        facts = {"posterior": posterior, "merge": merge, "column": column or 2, "unknown": unknown}
        _tell(_states_of(tagged, merge), tags, names, "tag", facts, json)
        return
    lines = text_lines(text, empty_lines, f"hmmlm tag {quote(str(model))}")
    if against is not None:
        _compare_models(loaded, load_hmm(against, device), list(lines), posterior, merge, json)
        return
    states: list[list[int]] = []
    owners: list[list[str]] = []
    groups: list[list[int]] = []
    tokens = 0
    unknown = UnknownWords(loaded.tokenizer)
    lines = unknown.watch(lines)
    tagged = _follow(loaded, lines, posterior, prints=not json and merge is None)
    if merge is not None:
        tagged = list(tagged)
        groups = merged([line.states for line in tagged], merge)
    for place, line in enumerate(tagged):
        tokens += len(line.tokens)
        if json:
            states.append(line.states)
            owners += [] if line.tags is None else [line.tags]
        else:
            shown = groups[place] if merge is not None else line.tags or line.states
            pairs = zip(line.tokens, shown, strict=True)
            sys.stdout.write(" ".join(f"{word}/{tag}" for word, tag in pairs) + "\n")
    unknown.tell()
    if json:
        more = {"tags": owners} if owners else {}
        more |= {"groups": groups} if merge is not None else {}
        print_json({"tokens": tokens, "states": states, **more})


def _follow(
    model: "Model", lines: Iterable[str], posterior: bool, *, prints: bool = False
) -> Iterator["TaggedLine"]:
    """Tagged lines, with a bar."""
    tokens = 0
    with progress_bar("Tagging", None, prints=prints) as bar:
        for line in model.tag_lines(lines, posterior=posterior):
            tokens += len(line.tokens)
            bar.update(bar.task_ids[0], details=counted(tokens, "token"))
            yield line


def merged(lines: list[list[int]], number: int) -> list[list[int]]:
    """The groups of states; -1 where a line has none, or `<eos>` a state that no word has."""
    import numpy as np

    from hmmlm.induction import merge_states

    words = [np.array(line[:-1], np.int64) for line in lines if len(line) > 1 and min(line) >= 0]
    if not words:
        raise InputError(
            f"--merge {number:,}: No line has a word and can be written by this model, so that "
            f"there are no states to merge; leave it out."
        )
    try:
        found = merge_states(words, number)
    except InputError as error:
        raise InputError(f"--merge {number:,}: {error}") from None
    group_of = dict(enumerate(found.tolist()))
    return [[group_of.get(state, -1) for state in line] for line in lines]


def _read_gold(
    gold: Path, column: int, text: Path | None, empty_lines: str | None
) -> list["TaggedSentence"]:
    """The sentences of a file of tags; a text that is given too must have the same words."""
    from hmmlm.data.gold import read_gold

    sentences = read_gold(gold, column=column)
    if text is not None:
        pairs = zip_longest(text_lines(text, empty_lines, "hmmlm tag MODEL"), sentences)
        for place, (line, one) in enumerate(pairs, 1):
            if line is None or one is None or line.split() != one.words:
                at = f" at line {one.number:,}" if one is not None else ""
                raise InputError(
                    f"{text}, line {place:,} does not have the words of sentence {place:,}{at} of "
                    f"{gold}; leave the text out, for the file of tags has it."
                )
    return sentences


def _check_words(model: "Model", folder: Path, gold: Path) -> None:
    if not model.tokenizer.splits_by_words:
        raise InputError(
            f"{gold} has tags for words, but the tokens of {folder} are pieces of words; give a "
            "model that was trained on words."
        )


def _tags_of(
    sentences: list["TaggedSentence"], tagged: list["TaggedLine"], gold: Path
) -> tuple["np.ndarray", list[str]]:
    """The number of each word's tag, and the tags."""
    import numpy as np

    for one, line in zip(sentences, tagged, strict=True):
        if len(line.tokens) != len(one.words) + 1:
            raise InputError(
                f"{gold}, line {one.number:,} begins a sentence of "
                f"{counted(len(one.words), 'word')} that the model reads as "
                f"{counted(len(line.tokens) - 1, 'token')}; write words as the model splits them."
            )
    names, tags = np.unique([tag for one in sentences for tag in one.tags], return_inverse=True)
    return tags, names.tolist()


def _count_unknown(model: "Model", tagged: list["TaggedLine"]) -> int:
    """How many words the model does not know; a line on stderr where they are most of them."""
    if model.tokenizer.unk_id is None:
        return 0
    name = model.tokenizer.token(model.tokenizer.unk_id)
    tokens = [token for line in tagged for token in line.tokens[:-1]]
    unknown = tokens.count(name)
    if 2 * unknown > len(tokens):
        warn(f"{unknown:,} of {counted(len(tokens), 'word')} are not in the model's vocabulary.")
    return unknown


def _compare_models(
    model: "Model",
    other: "Model",
    lines: list[str],
    posterior: bool,
    merge: int | None,
    json: bool,
) -> None:
    import numpy as np

    ours, theirs = (list(_follow(one, lines, posterior)) for one in (model, other))
    by_words = model.tokenizer.splits_by_words and other.tokenizer.splits_by_words
    for place, (a, b) in enumerate(zip(ours, theirs, strict=True), 1):
        is_alike = by_words or model.tokenizer.hash == other.tokenizer.hash
        if not is_alike or len(a.tokens) != len(b.tokens):
            raise InputError(
                f"The two models split line {place:,} into other tokens, "
                f"{len(a.tokens) - 1:,} and {len(b.tokens) - 1:,}; give models of one tokenizer."
            )
    states = _states_of(theirs, merge)
    names, tags = np.unique(states, return_inverse=True)
    facts = {"posterior": posterior, "merge": merge}
    _tell(_states_of(ours, merge), tags, names.tolist(), "state of the other", facts, json)


def _states_of(tagged: list["TaggedLine"], merge: int | None) -> "np.ndarray":
    """The states, or groups, of all words; -1 where a line is impossible."""
    import numpy as np

    lines = [line.states for line in tagged]
    lines = lines if merge is None else merged(lines, merge)
    return np.concatenate([np.array(line[:-1], np.int64) for line in lines])


def _tell(
    states: "np.ndarray",
    tags: "np.ndarray",
    names: list[Any],
    what: str,
    facts: dict[str, Any],
    json: bool,
) -> None:
    """Says how states agree with tags, whose names these are."""
    import numpy as np

    from hmmlm.induction import agreement, count_together, match

    if not len(states):
        raise InputError("The text has no word, only <eos>; give at least one.")
    used, rows = np.unique(states, return_inverse=True)
    impossible = int((states < 0).sum())
    counts = count_together(rows, tags)
    pairs = match(counts)
    found = agreement(counts, pairs)
    matched = [
        [int(used[row]), names[column], int(size)] for row, column, size in zip(*pairs, strict=True)
    ]
    facts |= {"impossible": impossible, "states": int((used >= 0).sum()), "tags": len(names)}
    best = {str(state): names[column] for state, column in zip(used, counts.argmax(1), strict=True)}
    say(
        f"many-to-one {found.many_to_one:.4f}, one-to-one {found.one_to_one:.4f}, V-measure "
        f"{found.v_measure:.4f} (homogeneity {found.homogeneity:.4f}, completeness "
        f"{found.completeness:.4f}), variation of information "
        f"{found.variation_of_information:.4f} nats"
    )
    kind = "state" if facts["merge"] is None else "group"
    say(
        f"{counted(found.tokens, 'token')}, {counted(facts['states'], kind)}, "
        f"{counted(len(names), what.split()[0])}"
        + (f", {counted(facts['unknown'], 'unknown word')}" if facts.get("unknown") else "")
        + (f", {counted(impossible, 'token')} in impossible lines" if impossible else "")
    )
    say(f"{kind}, {what}, tokens of both:")
    for state, name, size in sorted(matched, key=lambda pair: -pair[2])[:SHOWN]:
        say(f"{state:>8}  {name!s:>8}  {size:,}")
    if json:
        print_json({**found._asdict(), **facts, "tag_of_state": best, "pairs": matched})
