"""The built wheel in an empty environment, away from the checkout."""

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: object, cwd: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    return folder


def test_the_wheel_has_the_package_and_nothing_else(built):
    (wheel,) = built.glob("hmmlm-*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
    assert "hmmlm/py.typed" in names and "hmmlm/cli/tour.py" in names
    first = {name.split("/")[0] for name in names}
    assert {name for name in first if not name.endswith(".dist-info")} == {"hmmlm"}
    assert not [name for name in names if "__pycache__" in name or name.endswith((".nbi", ".nbc"))]
    assert any(name.endswith("licenses/LICENSE") for name in names)
    source = {path.relative_to(ROOT / "src").as_posix() for path in ROOT.glob("src/**/*.py")}
    assert source <= set(names)


def test_the_sdist_has_the_tests(built):
    (sdist,) = built.glob("hmmlm-*.tar.gz")
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {"src/hmmlm/py.typed", "tests/test_model.py", "README.md", "CITATION.cff"} <= names
    assert {"LICENSE", "CHANGELOG.md", "pyproject.toml"} <= names
    assert not any(name.endswith((".pyc", ".nbi", ".nbc")) for name in names)


def test_the_wheel_runs_the_demo_in_an_empty_environment(built, tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env/bin/python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["-c", ROOT / "constraints.txt"]
    # torch first and on its own, as the Makefile does: together with others, another build of it
    # may be chosen.
    run(*pip, "torch", cwd=tmp_path)
    (wheel,) = built.glob("hmmlm-*.whl")
    run(*pip, wheel, cwd=tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    options = ["--epochs", "1", "--states", "65", "--out", "x", "--json"]
    out = run(tmp_path / "env/bin/hmmlm", "demo", *options, cwd=work)
    result = json.loads(out.splitlines()[-1])
    assert result["folder"] == "x" and result["hmm"] > 1
    assert {path.name for path in (work / "x").iterdir()} == {
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "metrics.jsonl",
    }
    where = run(python, "-c", "import hmmlm; print(hmmlm.__file__)", cwd=work)
    assert where.startswith(str(tmp_path / "env"))
