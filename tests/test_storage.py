"""Files and folders appear whole or not at all."""

import errno
import os
import stat

import pytest

from hmmlm.errors import InputError
from hmmlm.storage import (
    check_space,
    json_line,
    new_file,
    new_folder,
    refuse_existing,
    work_folder,
)


def names(folder) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_folder_appears_when_its_block_ends(tmp_path):
    with new_folder(tmp_path / "a/b") as temporary:
        (temporary / "x").write_text("x")
        assert not (tmp_path / "a/b").exists() and temporary.parent == tmp_path / "a"
    assert names(tmp_path) == ["a", "a/b", "a/b/x"]


def test_a_folder_and_its_files_are_for_whom_the_user_says(tmp_path):
    old = os.umask(0o027)
    try:
        with new_folder(tmp_path / "a") as temporary:
            (temporary / "x").touch(0o600)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "a/x").stat().st_mode) == 0o640


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError, InputError])
def test_after_an_error_neither_the_folder_nor_its_parents_stay(tmp_path, error):
    (tmp_path / "a").mkdir()
    with pytest.raises(error), new_folder(tmp_path / "a/b/c/d") as temporary:
        (temporary / "x").write_text("x")
        raise error
    assert names(tmp_path) == ["a"]


def test_parents_that_others_use_stay(tmp_path):
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "a/b/c"):
        (tmp_path / "a/other").touch()
        raise ZeroDivisionError
    assert names(tmp_path) == ["a", "a/other"]


def test_a_work_folder_is_gone_when_its_block_ends(tmp_path):
    with work_folder(tmp_path / "a/b") as folder:
        (folder / "x").mkdir()
        os.rename(folder / "x", tmp_path / "a/b")
    assert names(tmp_path) == ["a", "a/b"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError, ChildProcessError])
def test_a_work_folder_stays_after_a_stop(tmp_path, error):
    with pytest.raises(error), work_folder(tmp_path / "a/b") as folder:
        (folder / "x").touch()
        raise error
    left = ["a", "a/.b.unfinished", "a/.b.unfinished/lock", "a/.b.unfinished/x"]
    assert names(tmp_path) == left
    with work_folder(tmp_path / "a/b") as folder:
        assert names(folder) == ["lock", "x"]


def test_a_work_folder_is_gone_after_a_mistake(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(InputError), work_folder(tmp_path / "a/b/c") as folder:
        (folder / "x").touch()
        raise InputError
    assert names(tmp_path) == ["a"]


def test_a_work_folder_stays_on_a_full_disk(tmp_path):
    said = (
        r"The disk is full while writing .*/new \(No space left on device\); what was done is "
        r"kept: free some space, and the same command goes on from there\.$"
    )
    with pytest.raises(InputError, match=said), work_folder(tmp_path / "new"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert names(tmp_path) == [".new.unfinished", ".new.unfinished/lock"]


def test_a_work_folder_for_what_was_made_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setattr("hmmlm.storage._lock", lambda *_: (tmp_path / "a").mkdir())
    with pytest.raises(InputError, match="a already exists"), work_folder(tmp_path / "a"):
        pass
    assert names(tmp_path) == ["a"]


def test_a_file_replaces_another_as_a_whole(tmp_path):
    path = tmp_path / "x"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), new_file(path) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old" and names(tmp_path) == ["x"]
    with new_file(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and names(tmp_path) == ["x"]


def test_a_file_in_a_folder_that_is_not_there(tmp_path):
    said = "no/x cannot be written: No such file or directory; choose another place or ask for perm"
    with pytest.raises(InputError, match=said), new_file(tmp_path / "no/x"):
        pass


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("maker", [new_folder, new_file])
def test_a_full_disk_is_a_sentence(tmp_path, maker, code):
    said = r"The disk is full while writing .*/new \(.+\), and nothing of it was kept; free some"
    with pytest.raises(InputError, match=said), maker(tmp_path / "new"):
        raise OSError(code, os.strerror(code))
    assert names(tmp_path) == []


def test_a_full_disk_told_only_in_words_is_the_same_sentence(tmp_path):
    with pytest.raises(InputError, match="The disk is full"), new_folder(tmp_path / "new"):
        raise RuntimeError("IoError: No space left on device (os error 28)")


def test_an_error_of_another_file_is_not_called_an_error_of_writing(tmp_path):
    with pytest.raises(FileNotFoundError), new_folder(tmp_path / "new"):
        (tmp_path / "input.txt").read_text()
    assert names(tmp_path) == []


def test_asking_leaves_nothing(tmp_path):
    assert refuse_existing(tmp_path / "a/b") == tmp_path / "a/b"
    assert names(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(InputError, match="a cannot be written: Permission denied; choose another"):
        refuse_existing(tmp_path / "a")


def test_space_is_asked_for(tmp_path):
    check_space(tmp_path / "a/b", 1)
    said = r"a/b needs about 1,152,921,504,606,846,976 bytes but its disk has [\d,]+ left; free som"
    with pytest.raises(InputError, match=said):
        check_space(tmp_path / "a/b", 1 << 60)


def test_numbers_that_json_does_not_have_become_null():
    value = {"a": [float("nan"), (1.5, float("-inf"))], "b": {"c": float("inf")}, "d": "é\n"}
    assert json_line(value) == '{"a": [null, [1.5, null]], "b": {"c": null}, "d": "é\\n"}\n'


def test_a_disk_without_locks_is_said(tmp_path, monkeypatch):
    def no(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", no)
    wanted = r"new cannot be written: its disk cannot lock files \(Function not implemented\), and"
    with pytest.raises(InputError, match=wanted), work_folder(tmp_path / "new"):
        raise AssertionError


def test_a_folder_within_a_new_one_can_be_entered(tmp_path) -> None:
    with new_folder(tmp_path / "new") as temporary:
        with new_folder(temporary / "inner"):
            pass
        mode = (temporary / "inner").stat().st_mode
    assert (tmp_path / "new/inner").stat().st_mode == mode
