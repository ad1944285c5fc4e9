"""The documentation: what pages show is run, and the site needs nothing from elsewhere."""

import dataclasses
import importlib
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from hmmlm.cli import app
from hmmlm.train.checkpoint import Saving
from hmmlm.train.loop import TrainSettings
from hmmlm.train.settings import DataSettings, LearnerSettings, ModelSettings
from pages import check, check_command, find_blocks, run_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
JOBS = (
    "training",
    "evaluation",
    "exploring",
    "constraints",
    "steering",
    "distilling",
    "scale-out",
    "extending",
)
MORE = (
    "conditioning",
    "induction",
    "worlds",
    "clusters",
    "topics",
    "baselines",
    "hugging-face",
    "scikit",
    "interchange",
    "faq",
)
NOT_RUN = {
    "faq": 1,
    "tour": 1,
    "training": 2,
    "exploring": 2,
    "distilling": 2,
    "scale-out": 3,
    "induction": 1,
    "hugging-face": 2,
    "interchange": 1,
    "worlds": 1,
}
"""How many blocks of a page are not run; each says why."""
SETTINGS = {
    "data": (DataSettings,),
    "model": (ModelSettings,),
    "train": (TrainSettings, LearnerSettings, Saving),
}


@pytest.fixture(scope="session")
def one_thread() -> Iterator[None]:
    """Threads that wait for each other beside other work take far longer than one alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def left_by_the_tour(one_thread, tmp_path_factory) -> Path:
    """The folder in which the tour has run."""
    folder = tmp_path_factory.mktemp("tour")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_page(DOCS / "tour.md")
    return folder


def test_the_tour(left_by_the_tour) -> None:
    assert (left_by_the_tour / "runs/demo/config.json").exists()
    assert (left_by_the_tour / "topics.model/config.json").exists()


@pytest.mark.filterwarnings("default")  # of libraries that pages import, for users see them too
@pytest.mark.parametrize("name", [*JOBS, *MORE])
def test_a_page_does_what_it_shows(name, left_by_the_tour, tmp_path, monkeypatch) -> None:
    shutil.copytree(left_by_the_tour, tmp_path, dirs_exist_ok=True)
    if name == "conditioning":  # a quarter of the states: gaps cost time in their square
        shutil.rmtree(tmp_path / "runs/demo")
        (tmp_path / "topics.model").rename(tmp_path / "runs/demo")
    monkeypatch.chdir(tmp_path)
    run_page(DOCS / f"{name}.md")


def test_blocks_that_are_not_run_are_few() -> None:
    found = {name: find_blocks(DOCS / f"{name}.md") for name in ("tour", *JOBS, *MORE)}
    counts = Counter(name for name, blocks in found.items() for one in blocks if not one.is_run)
    assert counts == NOT_RUN
    assert sum(len(blocks) for blocks in found.values()) > 100


@pytest.mark.parametrize("name", ["index", "settings", "commands"])
def test_commands_of_other_pages_exist(name) -> None:
    for block in find_blocks(DOCS / f"{name}.md"):
        check(block, name)


def test_commands_of_the_readme_exist() -> None:
    lines = re.findall(r"^    ((?:\w+ .* \| )?hmmlm .*)$", (ROOT / "README.md").read_text(), re.M)
    assert len(lines) > 9
    for line in lines:
        check_command(line)


def test_the_page_of_commands_has_all_of_them() -> None:
    shown = " ".join(block.code for block in find_blocks(DOCS / "commands.md"))
    command: Any = typer.main.get_command(app)
    assert not [
        name for name in command.commands if not re.search(rf"\bhmmlm {name}\b(?!-)", shown)
    ]


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """The site, built as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_asks_nobody_else(site) -> None:
    """Links may lead elsewhere; nothing that a browser fetches by itself may."""
    fetched = re.compile(
        r'<(?:script|img|iframe|source)[^>]*\ssrc="(?:https?:)?//[^"]*'
        r'|<link[^>]*rel="(?:stylesheet|preconnect|preload|icon)"[^>]*href="(?:https?:)?//[^"]*'
    )
    pages = list(site.rglob("*.html"))
    assert len(pages) > 35
    for page in pages:
        assert not fetched.search(page.read_text()), page
    for sheet in site.rglob("*.css"):
        found = re.findall(r"(?:@import|url\()[^;)]*//[^;)]*", sheet.read_text())
        assert not [one for one in found if "w3.org" not in one and "data:" not in one], sheet


def test_formulas_are_drawn(site) -> None:
    text = (site / "mathematics/index.html").read_text()
    assert text.count("<math") > 60 and "arithmatex" not in text
    body = re.sub(r"<(code|pre).*?</\1>", "", text, flags=re.S)
    assert "\\frac" not in body and "merror" not in body and not re.search(r"\$\$|\\\(", body)


@pytest.mark.parametrize(
    "name", ["inference", "generate", "hf", "scikit", "interchange", "worlds", "induction"]
)
def test_the_reference_has_all_public_names(site, name) -> None:
    text = (site / f"api/{name}/index.html").read_text()
    for public in importlib.import_module(f"hmmlm.{name}").__all__:
        assert re.search(rf'id="hmmlm\.[\w.]*\b{public}"', text), public


def test_the_reference_has_what_docs_name(site) -> None:
    """A class or function that is spelt out with its module on a page is in the reference."""
    text = "".join(page.read_text() for page in (site / "api").rglob("*.html"))
    for name in ("model.Model", "hmm.HMM", "support.Support", "params.scalar.Settings"):
        assert f'id="hmmlm.{name}"' in text, name
    for name in ("train.sgd.train", "distill.gap.measure_gap", "data.shards.Corpus"):
        assert f'id="hmmlm.{name}"' in text, name


def test_all_settings_are_listed_with_their_defaults() -> None:
    text = (DOCS / "settings.md").read_text()
    for part, kinds in SETTINGS.items():
        table = text.split(f"## [{part}]\n")[1].split("\n## ")[0]
        listed = dict(re.findall(r"^\| `(\w+)` \| (.*?)\s*\| ", table, re.M))
        fields = [field for kind in kinds for field in dataclasses.fields(kind)]
        assert {field.name for field in fields} <= set(listed), part
        for field in fields:
            value = "" if field.default in ("", None) else str(field.default)
            value = value.lower() if isinstance(field.default, bool) else value
            assert listed[field.name] in (value, "of the kind"), field.name


@pytest.mark.parametrize(
    "text",
    [
        "```bash\nhmmlm info nothing-here\n```\n",
        '```bash title="not run: a reason"\nhmmlm train --no-such-option\n```\n',
        '```bash title="not run: a reason"\nhmmlm trian my.corpus\n```\n',
        "```toml\n[train]\nepoch = 3\n```\n",
        '```toml\n[distill]\nteacher = "x"\ntoken = 3\n```\n',
        "```python\nprint(1)\n```\n\n```text\n2\n```\n",
        '```python\nprint("one 1")\n```\n\n```text title="such as"\ntwo 1\n```\n',
        '```python\nx = 1\n```\n\n```text title="for example"\nx\n```\n',
        "```python\nraise ValueError\n```\n",
        '```python title="not run: a reason"\nprint(\n```\n',
        "```\nhmmlm info\n```\n",
        "    hmmlm info\n",
        '```bash title="skipped"\nhmmlm info\n```\n',
    ],
)
def test_a_page_that_is_wrong_fails(text, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.md").write_text(text)
    with pytest.raises(BaseException) as failed:
        run_page(tmp_path / "page.md")
    assert not isinstance(failed.value, KeyboardInterrupt)


def test_a_page_that_is_right_passes(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.md").write_text(
        '```python\nprint("one 1")\n```\n\n```text title="such as"\none 2\n```\n\n'
        "```bash\necho 'a  b' | cat > made.txt\ncat made.txt\n```\n\n```text\na  b\n```\n\n"
        "```bash\nhmmlm info nothing-here    # exit status 2\n```\n"
    )
    run_page(tmp_path / "page.md")
