"""Rooms import downwards only (docs/architecture.md): every import is walked, lazy ones too."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hmmlm

PACKAGE = Path(hmmlm.__file__).parent

# From the ground up. A room may import what stands above it here, and its own line.
ROOMS = [
    ["errors"],
    ["storage"],
    ["devices"],
    ["machine_code"],
    ["hugging_face"],
    ["products"],
    ["transitions"],
    ["support"],
    ["results"],
    ["ops"],
    ["hmm"],
    ["mixture", "tempering"],
    ["inference"],
    ["data"],
    ["clusters"],
    ["induction"],
    ["params"],
    ["lm"],
    ["evaluate"],
    ["train"],
    ["topics"],
    ["distill"],
    ["baselines"],
    ["generate"],
    ["hmm_file"],
    ["text_model"],
    ["filling"],
    ["model"],
    ["topic_model"],
    ["neural_model"],
    ["fitting", "model_source"],
    ["calibration"],
    ["worlds", "interchange"],
    ["hf", "explore", "scikit"],
    ["cli"],
    ["__main__"],
]
# Rooms that stand aside: they may import these and nothing else.
ONLY = {
    "errors": set(),
    "storage": {"errors"},
    "devices": {"errors"},
    "machine_code": set(),
    "hugging_face": {"errors", "storage"},
    "products": set(),
    "ops": {"errors", "storage", "machine_code", "products", "transitions", "support", "results"},
    "data": {"errors", "storage"},
    "clusters": {"errors", "storage", "machine_code", "data"},
    "induction": {"errors", "machine_code", "data", "clusters"},
    "lm": {"errors"},
}
HEIGHT = {room: height for height, rooms in enumerate(ROOMS) for room in rooms}


def room_of(module: str) -> str:
    return module.split(".")[1]


def imports(source: str, module: str) -> set[str]:
    """Modules of hmmlm that a module imports anywhere but under TYPE_CHECKING."""
    found = set()
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} has a relative import; write its whole name."
            # `from hmmlm import inference` is a room, `from hmmlm import __version__` is not.
            whole = node.module == "hmmlm"
            names = [f"hmmlm.{name.name}" for name in node.names]
            found |= set(names) if whole else {node.module or ""}
        waiting.extend(ast.iter_child_nodes(node))
    found.discard("hmmlm.__version__")
    return {name for name in found if name.startswith("hmmlm.")}


def back_edges(package: Path) -> list[str]:
    wrong = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        module = ".".join(["hmmlm", *parts]).removesuffix(".__init__")
        if module == "hmmlm":  # the front door: its names are imported on first use
            continue
        room = room_of(module)
        if room not in HEIGHT:
            wrong.append(f"{module}: the room {room} is not in the table")
            continue
        for target in sorted(imports(path.read_text(), module)):
            other = room_of(target)
            below = other == room or HEIGHT.get(other, len(ROOMS)) < HEIGHT[room]
            if not below or other not in {room, *ONLY.get(room, HEIGHT)}:
                wrong.append(f"{module} imports {target}")
    return wrong


def test_no_room_imports_a_later_one():
    assert back_edges(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "line", "edge"),
    [
        ("data/batches.py", "import hmmlm.hmm\n", "hmmlm.data.batches imports hmmlm.hmm"),
        ("ops/links.py", "from hmmlm.hmm import HMM\n", "hmmlm.ops.links imports hmmlm.hmm"),
        ("hmm.py", "from hmmlm import inference\n", "hmmlm.hmm imports hmmlm.inference"),
        (
            "train/loop.py",
            "def f():\n    from hmmlm.model import Model\n",
            "hmmlm.train.loop imports hmmlm.model",
        ),
        ("lm.py", "import hmmlm.cli.output\n", "hmmlm.lm imports hmmlm.cli.output"),
        (
            "explore/curves.py",
            "from hmmlm.cli.output import say\n",
            "hmmlm.explore.curves imports hmmlm.cli.output",
        ),
        ("utils.py", "", "hmmlm.utils: the room utils is not in the table"),
    ],
)
def test_a_planted_back_edge_is_found(tmp_path, file, line, edge):
    planted = tmp_path / file
    planted.parent.mkdir(exist_ok=True)
    planted.write_text(line)
    assert back_edges(tmp_path) == [edge]


def test_an_import_for_the_type_checker_is_none():
    source = "if TYPE_CHECKING:\n    from hmmlm.model import Model\nelse:\n    import hmmlm.hmm\n"
    assert imports(source, "hmmlm.x") == {"hmmlm.hmm"}


def test_nothing_needs_triton_until_a_kernel_runs() -> None:
    """A machine without a GPU has none, and every module but the kernels is imported there."""
    names = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in sorted(PACKAGE.rglob("*.py"))
        if not path.stem.endswith(("kernel", "_kernels", "__main__", "__init__"))
    ]
    code = f"import sys; sys.modules['triton'] = None\nfor name in {names}: __import__(name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-1000:]
