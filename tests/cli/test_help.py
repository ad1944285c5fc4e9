"""The help of commands, and the version."""

import re

import pytest

from hmmlm import __version__
from hmmlm.cli import PANELS
from hmmlm.cli.help import reflowed


@pytest.fixture
def narrow(monkeypatch, call):
    """What a command says in a terminal of 80 columns, without boxes and colours."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")

    def say(*arguments):
        answer = call(*arguments)
        assert answer.status == 0, answer.err
        return re.sub(r"\x1b\[[0-9;]*m", "", answer.out)

    return say


def test_the_version(narrow):
    assert narrow("--version") == f"hmmlm {__version__}\n"


def test_help_has_the_commands_by_what_they_are_for(narrow):
    said = narrow("-h")
    assert said == narrow("--help")
    places = [said.index(f"─ {panel} ─") for panel in PANELS]
    assert places == sorted(places)
    assert said.index("─ Text ─") < said.index(" world ") < said.index("─ Train ─")
    assert said.index("─ Ask ─") < said.index(" next ") < said.index("─ See ─")
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize("command", [["train"], ["world", "ginc"], ["estimate"], ["world"], []])
def test_flags_have_no_type(narrow, command):
    assert "<bool>" not in narrow(*command, "-h")


def test_paragraphs_are_as_wide_as_the_terminal(narrow):
    said = narrow("train", "--help")
    assert " clustered into blocks first; the clusters are kept in the corpus' folder." in said
    assert re.search(r"--cluster-by +METHOD +How to make the blocks: exchange", said)


def test_reflowing():
    assert reflowed("One\n    line.\n\n    Two\n    lines.") == "One line.\n\nTwo lines."
    assert reflowed("One.\n\n    Such as\n        this\n    stays.") == (
        "One.\n\nSuch as\n    this\nstays."
    )
    assert reflowed(None) is None


def test_ways_to_cluster_are_named(call):
    answer = call("train", "corpus", "--cluster-by=none")
    assert answer.status == 2 and "'none' is not one of brown, exchange" in answer.err
