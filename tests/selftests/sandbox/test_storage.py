"""Faults of a shared directory on one node: what is mounted over it, and that it is undone."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from fixtures.sandbox import storage
from fixtures.sandbox.errors import SandboxError
from tests.selftests.sandbox.parts import Calls

pytestmark = pytest.mark.cpu

SHARED = Path("/shared")


@pytest.fixture
def sandbox():
    return SimpleNamespace(inside=lambda name, *argv: [f"on {name}", *argv])


@pytest.fixture
def server(monkeypatch) -> SimpleNamespace:
    """The process that serves the filesystem."""
    seen = SimpleNamespace(argv=[], says="ready\n", ends=Calls())

    class Process:
        def __init__(self, argv, **more) -> None:
            seen.argv.append(argv)
            assert str(storage.CHECKOUT) == more["env"]["PYTHONPATH"]
            self.stdout = StringIO(seen.says)
            self.communicate = seen.ends

        def __enter__(self):
            return self

        def __exit__(self, *_) -> None:
            pass

    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr(storage, "refusal", lambda: None)
    return seen


def test_a_directory_is_faulty_while_the_context_lasts(sandbox, server):
    assert (storage.CHECKOUT / "pyproject.toml").exists()  # what is started is imported from there
    with storage.faulty_directory(sandbox, "worker1", SHARED, "stale"):
        (argv,) = server.argv
        assert argv[:3] == ["on worker1", sys.executable, "-m"]
        assert argv[3:] == ["fixtures.sandbox.faulty_filesystem", "/shared", "stale"]
        assert server.ends == []
    # Far above what an unmount takes; the test that waits would not end otherwise.
    assert server.ends == [({"timeout": 10},)]


def test_what_cannot_be_mounted_is_said(sandbox, server, monkeypatch):
    server.says = "Traceback\n"
    for fault, said in (("stale", "worker1: nothing could be mounted over /shared"),
                        ("stail", "no fault 'stail'; there are none, stale")):  # fmt: skip
        with (
            pytest.raises(SandboxError, match=said),
            storage.faulty_directory(sandbox, "worker1", SHARED, fault),
        ):
            pass
    monkeypatch.setattr(storage, "refusal", lambda: "no /dev/fuse here")
    with (
        pytest.raises(SandboxError, match="no /dev/fuse here"),
        storage.faulty_directory(sandbox, "worker1", SHARED, "stale"),
    ):
        pass
    assert len(server.argv) == 1


def test_a_host_without_fuse_says_what_it_lacks(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "Path", lambda path: tmp_path / "fuse")
    assert "no /dev/fuse here" in str(storage.refusal())
    (tmp_path / "fuse").touch()
    assert storage.refusal() is None


def test_a_mount_is_undone_even_where_the_context_fails(sandbox, monkeypatch):
    ran = Calls("")
    monkeypatch.setattr(storage, "run", ran)
    with pytest.raises(ZeroDivisionError), storage.read_only(sandbox, "worker1", SHARED):
        raise ZeroDivisionError
    assert [" ".join(call[0]) for call in ran] == [
        "on worker1 mount --bind /shared /shared",
        "on worker1 mount -o remount,bind,ro /shared",
        "on worker1 umount --lazy /shared",
    ]
