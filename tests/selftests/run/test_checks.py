"""Whether a run directory can be used: writable, shared with the nodes, linked as the latest."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.errors import ConfigError
from fixtures.records.run_directory import RunDirectory
from fixtures.run import checks
from fixtures.run.checks import (
    AGAIN,
    link_latest,
    refuse_foreign,
    refuse_unshared,
    unwritable_reason,
)

pytestmark = pytest.mark.cpu


def test_what_cannot_be_written_is_named_with_the_reason_and_what_to_do():
    said = unwritable_reason(OSError(28, "No space left on device", "/run/ledger"), AGAIN)
    assert "cannot be written: /run/ledger: No space left on device; " in said
    assert said.endswith(f"then {AGAIN}")
    assert "--resume" in unwritable_reason(OSError("torn"))
    assert "cannot be written: torn;" in unwritable_reason(OSError("torn"))


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch):
    """Let every directory be on this filesystem, and writable or not."""

    def make(filesystem: str, *, writable: bool = True) -> None:
        run = lambda *a, **k: subprocess.CompletedProcess(a, 0, f"{filesystem}\n", "")  # noqa: E731
        monkeypatch.setattr(checks.subprocess, "run", run)
        monkeypatch.setattr(checks.os, "access", lambda path, mode: writable)

    return make


def is_refused(root: Path, origin: str) -> bool:
    try:
        refuse_unshared(root, origin)
    except ConfigError:
        return True
    return False


def test_a_directory_in_the_memory_of_this_host_is_of_no_use_to_others(on, tmp_path):
    new = tmp_path / "not" / "there" / "yet"
    on("tmpfs")
    assert is_refused(new, "cluster")
    assert not is_refused(new, "local")
    on("nfs")
    assert not is_refused(new, "cluster")
    for name in ("ramfs", "devtmpfs"):
        on(name)
        assert is_refused(new, "cluster")


def test_virtual_nodes_see_all_of_their_host_but_shared_memory(on, tmp_path):
    on("tmpfs")
    assert not is_refused(tmp_path, "sandbox")
    assert is_refused(Path("/dev/shm"), "sandbox")
    assert is_refused(Path("/dev/shm/nowhere/run"), "sandbox")
    assert not is_refused(Path("/dev/shm/nowhere/run"), "local")


def test_a_directory_of_somebody_else_is_refused_at_once(on, tmp_path):
    on("nfs", writable=False)
    with pytest.raises(ConfigError, match="not writable for this user"):
        refuse_unshared(tmp_path / "run", "local")


def test_latest_is_a_link_to_the_newest_run(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        link_latest(tmp_path / name)
        assert (tmp_path / "latest").readlink() == Path(name)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "one", "two"]


def test_a_run_directory_that_is_not_there_or_empty_and_ones_own_is_taken(tmp_path):
    for mode in (0o700, 0o755, 0o2750):
        folder = tmp_path / f"{mode:o}"
        folder.mkdir()
        folder.chmod(mode)
        refuse_foreign(folder)
        RunDirectory(folder).make()
        assert folder.stat().st_mode & 0o7777 == mode, "its mode is its owner's"
    refuse_foreign(tmp_path / "new" / "run")
    before = os.umask(0o002)
    try:
        RunDirectory(tmp_path / "new" / "run").make()
    finally:
        os.umask(before)
    assert (tmp_path / "new" / "run").stat().st_mode & 0o777 == 0o700


def linked(path: Path) -> None:
    path.rmdir()
    path.symlink_to(path.parent)


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a link": (linked, r"is a link: give the directory itself, as /\S+"),
    "a file": (lambda p: (p.rmdir(), p.touch()), "is not a directory: give another"),
    "a run": (lambda p: (p / "run.json").touch(), "holds a run already; use --resume, or give"),
    "records": (lambda p: (p / "records").mkdir(), "holds a run already; use --resume, or give"),
    "a file in it": (lambda p: (p / "a\x1b").touch(), r"is not empty \(a\\x1b\): give another"),
    "a link in it": (lambda p: (p / "jobs").symlink_to("/"), r"is not empty \(jobs\)"),
    "a group": (lambda p: p.chmod(0o2775), r"can be written by others \(mode 2775\): run `chmod"),
    "all users": (lambda p: p.chmod(0o1777), r"can be written by others \(mode 1777\)"),
}


@pytest.mark.parametrize(("change", "why"), REFUSED.values(), ids=REFUSED)
def test_another_one_is_refused_and_left_as_it_is(tmp_path, change, why):
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    change(folder)
    mode = folder.lstat().st_mode
    with pytest.raises(ConfigError, match=f"^--run-dir {folder} {why}") as refused:
        refuse_foreign(folder, "use --resume, or ")
    assert "\n" not in str(refused.value)
    assert folder.lstat().st_mode == mode


def test_the_directory_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigError, match=r"belongs to the user with id \d+: give one of your own"):
        refuse_foreign(tmp_path)
