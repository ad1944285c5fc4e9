"""One small corpus and one small model, made by the commands themselves, for all tests of them."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from commands import Answer, Made, made_up_lines, run_command, tree


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A folder with text.txt, its corpus `corpus` with all splits, and the model `model`."""
    folder = tmp_path_factory.mktemp("made")
    for name, count in (("text", 200), ("valid", 30), ("test", 40)):
        lines = made_up_lines(count, seed=count)
        (folder / f"{name}.txt").write_text("".join(line + "\n" for line in lines))
    splits = ["--valid", "valid.txt", "--test", "test.txt"]
    prepared = run_command("prepare", "text.txt", *splits, "--out=corpus", "--json", cwd=folder)
    options = ["--kind=scalar", "--states=4", "--blocks=0", "--dropout=0", "--epochs=20"]
    options += ["--batch-size=4", "--length=128", "--json"]
    trained = run_command("train", "corpus", "--out=model", *options, cwd=folder)
    return Made(folder, prepared, trained)


@pytest.fixture
def place(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what was made, as the current folder; it may be damaged."""
    for path, data in tree(made.folder).items():
        if data is None:
            (tmp_path / path).mkdir()
        else:
            (tmp_path / path).write_bytes(data)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Answer]:
    """`hmmlm` in this process, for what does not need one of its own."""

    def run(*arguments: object) -> Answer:
        from hmmlm.cli import main

        monkeypatch.setattr(sys, "argv", ["hmmlm", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return Answer(int(end.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def refused(call: Callable[..., Answer], place: Path) -> Callable[..., str]:
    """The one sentence with which a command refuses; nothing may have been written."""

    def run(*arguments: object) -> str:
        before = tree(place)
        answer = call(*arguments)
        assert answer.status == 2, answer
        assert answer.err.startswith("hmmlm: ") and answer.err.endswith("\n"), answer.err
        assert answer.err.count("\n") == 1, answer.err
        assert tree(place) == before
        return answer.err.removeprefix("hmmlm: ").removesuffix("\n")

    return run
