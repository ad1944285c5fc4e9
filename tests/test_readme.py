"""The README's quick tour runs as it stands; pages of the docs: tests/more/test_docs.py."""

import re
from pathlib import Path

import torch

from hmmlm import HMM, Model
from hmmlm.data.tokenizer import Tokenizer

README = Path(__file__).parent.parent / "README.md"


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


def save_a_model() -> None:
    """A small model, where the tours look for one."""
    known = "the value of expression one . is"
    words = Tokenizer.words({word: 9 for word in known.split()})
    table = torch.log_softmax(torch.randn(4, words.vocab_size), -1)
    hmm = HMM.from_tables(torch.full((4,), 0.25).log(), torch.full((4, 4), 0.25).log(), table)
    Model(hmm, words).save("runs/demo")
