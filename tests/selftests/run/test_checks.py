"""Whether a run directory can be used: writable, shared with the nodes, linked as the latest."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fixtures.errors import ConfigError
from fixtures.run import checks
from fixtures.run.checks import AGAIN, link_latest, refuse_unshared, unwritable_reason

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
