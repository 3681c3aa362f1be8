"""fixtures.records.files: what is written stays below the run directory, whatever was planted."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.records import files
from fixtures.records.files import append_line, make_folder, replace_file, write_json, write_text

pytestmark = pytest.mark.cpu

WRITERS: dict[str, Callable[[Path, Path | None], None]] = {
    "replace_file": lambda path, root: replace_file(path, (b"new",), root=root),
    "write_text": lambda path, root: write_text(path, ("new",), root=root),
    "write_json": lambda path, root: write_json(path, "new", root=root),
    "append_line": lambda path, root: append_line(path, {"new": 1}, root=root),
}
ways = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text("as it was")
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def unchanged(outside: Path) -> bool:
    return [p.name for p in outside.iterdir()] == ["secret"] and (
        (outside / "secret").read_text() == "as it was"
    )


REPLACING = {name: write for name, write in WRITERS.items() if name != "append_line"}


@pytest.mark.parametrize("target", ["secret", "made"])
@pytest.mark.parametrize("write", REPLACING.values(), ids=REPLACING)
def test_a_link_with_the_name_of_a_file_is_replaced(write, run, outside, target):
    path = run / "file"
    path.symlink_to(outside / target)
    write(path, None)
    assert "new" in path.read_text()
    assert not path.is_symlink()
    assert unchanged(outside)


@pytest.mark.parametrize("target", ["secret", "made"])
def test_nothing_is_appended_to_through_a_link(run, outside, target):
    path = run / "file"
    path.symlink_to(outside / target)
    with pytest.raises(OSError, match=r"is a link: .* remove it") as refused:
        append_line(path, {})
    assert (refused.value.errno, refused.value.filename) == (errno.ELOOP, str(path))
    assert unchanged(outside)


@ways
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_link_in_the_place_of_a_folder_is_refused_and_named(write, run, outside, depth):
    folders = [run / "jobs", run / "jobs" / "a", run / "jobs" / "a" / "b"]
    folders[-1].mkdir(parents=True)
    at = folders[depth]
    at.rename(run / "aside")
    (outside / "a" / "b").mkdir(parents=True)
    (outside / "b").mkdir()
    at.symlink_to(outside)
    path = folders[-1] / "file"
    with pytest.raises(OSError, match="is a link or no folder") as refused:
        write(path, run)
    assert refused.value.filename == str(at)
    assert files.is_storage_error(refused.value), "the run ends with one line"
    assert [p for p in outside.rglob("*") if p.is_file()] == [outside / "secret"]


@ways
def test_a_run_directory_that_is_a_link_is_refused(write, run, outside):
    linked = run / "linked"
    linked.symlink_to(outside)
    for root in (None, linked):
        with pytest.raises(OSError, match="is a link or no folder"):
            write(linked / "file", root)
    assert unchanged(outside)


@ways
def test_folders_are_made_below_the_run_directory(write, run):
    path = run / "jobs" / "a" / "file"
    write(path, run)
    assert "new" in path.read_text()
    (run / "b").write_text("")
    with pytest.raises(OSError, match="is a link or no folder"):
        write(run / "b" / "file", run)


def test_no_folder_is_made_behind_a_link(run, outside):
    (run / "jobs").symlink_to(outside)
    with pytest.raises(OSError, match="is a link or no folder"):
        make_folder(run / "jobs" / "a", run)
    assert unchanged(outside)


def test_a_log_is_a_regular_file_and_no_reader_of_a_pipe_is_waited_for(run):
    os.mkfifo(run / "pipe")
    (run / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(OSError) as refused:
            append_line(run / name, {})
        assert refused.value.filename == str(run / name)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError):
        append_line(run / "pipe", {})
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_the_temporary_file_is_new_and_gone_after_an_error(run):
    def parts():
        (made,) = [p for p in run.iterdir() if p.name != "file"]
        assert made.stat().st_mode & 0o777 == 0o600
        yield b"half"
        raise RuntimeError("no more")

    (run / "file").write_text("old")
    with pytest.raises(RuntimeError, match="no more"):
        replace_file(run / "file", parts())
    assert [(p.name, p.read_text()) for p in run.iterdir()] == [("file", "old")]
    replace_file(run / "file", (b"new",))
    assert (run / "file").stat().st_mode & 0o777 == 0o644


def test_a_folder_that_may_be_written_and_not_read_is_enough(run, monkeypatch):
    flags = []
    opened = os.open
    monkeypatch.setattr(os, "open", lambda p, f, *a, **k: flags.append(f) or opened(p, f, *a, **k))
    write_text(run / "jobs" / "file", ("new",), root=run)
    folders = [flag for flag in flags if flag & os.O_DIRECTORY]
    assert len(folders) == 3, "the run directory, its folder before and after it was made"
    assert all(flag & os.O_PATH and flag & os.O_NOFOLLOW for flag in folders)
