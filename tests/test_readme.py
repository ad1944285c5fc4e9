"""The README's quick tour, and those of some pages of the docs, run as they stand."""

import re
from pathlib import Path

import pytest
import torch

from hmmlm import HMM, Model
from hmmlm.data.tokenizer import Tokenizer

README = Path(__file__).parent.parent / "README.md"
DOCS = README.parent / "docs"


def test_quick_tour_runs(tmp_path, monkeypatch) -> None:
    tour, with_a_model = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    names: dict = {}
    exec(compile(tour, "README.md", "exec"), names)
    for line in tour.splitlines():
        found = re.match(r"(inference\.\S.*?|scores\.\S+)\s+#.*?\((\d[\d, ]*)\)$", line)
        if found:
            value = eval(found[1], names)
            assert list(value.shape) == [int(n) for n in found[2].replace(" ", "").split(",") if n]
    monkeypatch.chdir(tmp_path)
    save_a_model()
    exec(compile(with_a_model, "README.md", "exec"), names)
    for line in with_a_model.splitlines()[3:]:
        assert eval(line, names)


@pytest.mark.parametrize(
    "name", ["conditioning.md", "constraints.md", "interchange.md", "worlds.md"]
)
def test_a_tour_runs(name, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_a_model()
    names: dict = {"model": Model.load("runs/demo")}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), re.S):
        exec(compile(block, name, "exec"), names)
        for line in block.splitlines():
            if re.match(r"(inference|model|found|sizes|alone|wanted|world)\.", line):
                assert eval(line, names) is not None


def test_the_page_for_scikit_learn_prints_what_it_shows(capsys) -> None:
    page = (DOCS / "scikit.md").read_text()
    names: dict = {}
    for block, shown in re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", page, re.S):
        exec(compile(block, "scikit.md", "exec"), names)
        assert capsys.readouterr().out == shown
    assert "hmm" in names


def save_a_model() -> None:
    """A small model, where the tours look for one."""
    known = "the value of expression one . is returned raised except exception string list tuple"
    words = Tokenizer.words({word: 9 for word in known.split()})
    table = torch.log_softmax(torch.randn(4, words.vocab_size), -1)
    hmm = HMM.from_tables(torch.full((4,), 0.25).log(), torch.full((4, 4), 0.25).log(), table)
    Model(hmm, words).save("runs/demo")
