"""The README's quick tour runs as it stands."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_quick_tour_runs() -> None:
    tour, with_a_model = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    names: dict = {}
    exec(compile(tour, "README.md", "exec"), names)
    for line in tour.splitlines():
        found = re.match(r"(inference\.\S.*?|scores\.\S+)\s+#.*?\((\d[\d, ]*)\)$", line)
        if found:
            value = eval(found[1], names)
            assert list(value.shape) == [int(n) for n in found[2].replace(" ", "").split(",") if n]
    assert "Model.load" in with_a_model
