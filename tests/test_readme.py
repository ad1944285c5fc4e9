"""The README's quick tour, and the tour of docs/conditioning.md, run as they stand."""

import re
from pathlib import Path

import torch

from hmmlm import HMM, Model
from hmmlm.data.tokenizer import Tokenizer

README = Path(__file__).parent.parent / "README.md"
CONDITIONING = README.parent / "docs/conditioning.md"


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
    for line in with_a_model.splitlines()[1:]:
        assert eval(line, names)


def test_the_tour_of_conditioning_runs(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_a_model()
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", CONDITIONING.read_text(), re.S):
        exec(compile(block, "conditioning.md", "exec"), names)
        for line in block.splitlines():
            if re.match(r"(inference|model|found|sizes|alone)\.", line):
                assert eval(line, names) is not None


def save_a_model() -> None:
    """A small model, where the tours look for one."""
    known = "the value of expression one . is returned raised except exception"
    words = Tokenizer.words({word: 9 for word in known.split()})
    table = torch.log_softmax(torch.randn(4, words.vocab_size), -1)
    hmm = HMM.from_tables(torch.full((4,), 0.25).log(), torch.full((4, 4), 0.25).log(), table)
    Model(hmm, words).save("runs/demo")
