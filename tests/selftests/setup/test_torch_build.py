"""Which torch the set-up takes, from indexes of stub wheels on this host."""

from __future__ import annotations

import contextlib
import functools
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from fixtures.setup import system, torch_build
from fixtures.setup.environment import Asked
from tests.selftests import setup_stubs
from tests.selftests.fake_commands import command
from tests.selftests.setup_stubs import TORCH, small

__all__ = ["command", "small"]

pytestmark = pytest.mark.cpu

PIP = (sys.executable, "-m", "pip")
CPU = f"{TORCH}+cpu"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def index_of(folder: Path, *versions: str) -> Iterator[str]:
    """Serve an index with these versions of torch; its pages are listings of folders."""
    (folder / "torch").mkdir(parents=True)
    for version in versions:
        setup_stubs.wheel(folder / "torch", "torch", version)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def silent_index() -> Iterator[str]:
    """Accept connections, and never answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def choose(torch: str = "", index: str = "", wheelhouse: str = "") -> torch_build.Torch:
    asked = Asked(python=False, torch=torch, torch_index=index)
    return torch_build.choose(asked, pip=PIP, wheelhouse=wheelhouse, borrows=False)


def test_the_version_is_the_one_of_constraints(tmp_path):
    (tmp_path / "constraints.txt").write_text("torchvision==1\ntorch==2.1.0\nnumpy==2\n")
    assert torch_build.pinned_version(tmp_path) == "2.1.0"
    (tmp_path / "constraints.txt").write_text("torchvision==1\n")
    with pytest.raises(system.SetupError, match="has no line torch==VERSION"):
        torch_build.pinned_version(tmp_path)


def test_the_torch_of_an_interpreter_is_the_one_that_it_imports(monkeypatch):
    for status, said, found in (
        (0, "a warning\n/p/site-packages/torch/__init__.py\n", Path("/p/site-packages")),
        (1, "/p/site-packages/torch/__init__.py\n", None), (0, "", None), (1, "", None),
    ):  # fmt: skip
        run = SimpleNamespace(returncode=status, stdout=said)
        monkeypatch.setattr(torch_build.subprocess, "run", lambda *_, run=run, **__: run)
        assert torch_build.torch_of_interpreter() == found


@pytest.fixture
def indexes(monkeypatch) -> list[set[str]]:
    """The versions that pip's own index and PyTorch's have; this host has no GPU."""
    found: list[set[str]] = [set(), set()]
    monkeypatch.setattr(torch_build, "pinned_version", lambda *_: "2.1")
    monkeypatch.setattr(torch_build, "versions_of_torch", lambda pip, sources: found)
    monkeypatch.setattr(system, "has_nvidia", lambda: False)
    monkeypatch.setattr(system, "in_cluster", lambda: False)
    return found


def test_the_cpu_build_is_taken_from_where_it_is(indexes, capsys):
    public = ("--index-url", torch_build.CPU_INDEX)
    for own, other, kind, options in (
        ({"2.1+cpu"}, {"2.1+cpu"}, "cpu", ()), (set(), {"2.1+cpu"}, "cpu", public),
        ({"2.1"}, {"2.2+cpu"}, "default", ()),
    ):  # fmt: skip
        indexes[:] = [own, other]
        chosen = choose()
        assert (chosen.kind, chosen.options) == (kind, options)
        assert chosen.requirement == ("torch==2.1+cpu" if kind == "cpu" else "torch==2.1")
        assert chosen.disk_gb == (0.9 if kind == "cpu" else 5.0)
        assert ("CUDA" in chosen.why) is (kind == "default")
    assert "looking for the CPU build of torch (10 s at most)" in capsys.readouterr().out


def test_every_wish_goes_before_what_the_host_is(indexes, monkeypatch):
    def of(torch: str = "", index: str = "", wheels: str = "", *, borrows: bool = False):
        asked = Asked(python=False, torch=torch, torch_index=index)
        return torch_build.choose(asked, pip=PIP, wheelhouse=wheels, borrows=borrows)

    assert of("none", "I", "/w", borrows=True).kind == "none"
    assert of(index="I", wheels="/w", borrows=True).kind == "borrowed"
    assert of("own", index="I", wheels="/w", borrows=True).kind == "wheelhouse"
    assert (of(index="I").kind, of(index="I").options) == ("index", ("--index-url", "I"))
    assert of("own", borrows=True).kind == "default"
    for name in ("has_nvidia", "in_cluster"):
        with monkeypatch.context() as patch:
            patch.setattr(system, name, lambda: True)
            indexes[:] = [{"2.1+cpu"}, set()]
            chosen = of()
            assert (chosen.kind, chosen.requirement) == ("default", "torch==2.1")
            assert "for GPUs" in chosen.why


def test_indexes_are_asked_at_once_and_the_late_ones_left(monkeypatch):
    late = []

    class Pip:
        def __init__(self, argv, **_) -> None:
            assert "--timeout=10" in argv
            self.said = {"a": "x\nAvailable versions: 2.1, 2.0+cpu\n", "b": "", "c": None}.get(
                argv[-1]
            )
            self.late = argv[-1] == "late"

        def communicate(self, timeout: float | None = None):
            if self.late and timeout is not None:
                assert 0 <= timeout <= 10
                raise torch_build.subprocess.TimeoutExpired("pip", timeout)
            return self.said, None

        def kill(self) -> None:
            late.append(self)

    monkeypatch.setattr(torch_build.subprocess, "Popen", Pip)
    found = torch_build.versions_of_torch(["pip"], [["a"], ["b"], ["c"], ["late"]])
    assert found == [{"2.1", "2.0+cpu"}, set(), set(), set()]
    assert len(late) == 1


@pytest.mark.parametrize(
    ("own", "public", "requirement", "from_public"),
    [
        ([TORCH, CPU], [], f"torch=={CPU}", False),
        ([TORCH], [CPU, "2.12.0+cpu"], f"torch=={CPU}", True),
        ([TORCH, "2.12.0+cpu"], ["2.14.0+cpu"], f"torch=={TORCH}", False),
    ],
)
def test_a_host_without_gpu_and_cluster_gets_the_cpu_build_where_an_index_has_it(
    small, tmp_path, monkeypatch, own, public, requirement, from_public
):
    monkeypatch.delenv("PIP_NO_INDEX")
    with index_of(tmp_path / "a", *own) as own_url, index_of(tmp_path / "b", *public) as public_url:
        monkeypatch.setenv("PIP_INDEX_URL", own_url)
        monkeypatch.setattr(torch_build, "CPU_INDEX", public_url)
        # The interpreter and pip start slowly on a busy host.
        monkeypatch.setattr(torch_build, "INDEX_DEADLINE_S", 120.0)
        chosen = choose()
    assert chosen.requirement == requirement
    assert chosen.options == (("--index-url", public_url) if from_public else ())
    assert chosen.kind == ("cpu" if "+" in requirement else "default")
    assert ("CUDA" in chosen.why) is (chosen.kind == "default")


def test_an_index_that_does_not_answer_costs_one_line_and_the_deadline(small, monkeypatch, capsys):
    monkeypatch.delenv("PIP_NO_INDEX")
    with silent_index() as url:
        monkeypatch.setenv("PIP_INDEX_URL", url)
        monkeypatch.setattr(torch_build, "CPU_INDEX", url)
        monkeypatch.setattr(torch_build, "INDEX_DEADLINE_S", 1.0)
        began = time.monotonic()
        chosen = choose()
    assert time.monotonic() - began < 60, "pip would repeat for minutes"
    assert chosen.kind == "default"
    assert chosen.requirement == f"torch=={TORCH}"
    assert url in chosen.why
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"torch": "none"}, "none"), ({"torch": "own"}, "default"),
        ({"index": "https://i.example/cu130"}, "index"), ({"wheelhouse": "/wheels"}, "wheelhouse"),
    ],
)  # fmt: skip
def test_what_was_asked_for_is_taken_and_no_index_is_asked(small, monkeypatch, options, kind):
    monkeypatch.setattr(torch_build, "versions_of_torch", lambda *_: pytest.fail("asked"))
    assert choose(**options).kind == kind


def test_a_gpu_or_a_cluster_gets_the_default_build_and_no_index_is_asked(small, monkeypatch):
    monkeypatch.setattr(torch_build, "versions_of_torch", lambda *_: pytest.fail("asked"))
    for name in ("has_nvidia", "in_cluster"):
        with monkeypatch.context() as patch:
            patch.setattr(system, name, lambda: True)
            assert choose().kind == "default"


@pytest.mark.parametrize(
    ("said", "status", "expected"),
    [
        ("gpu*\n", 0, True),
        ("sinfo: error: Unable to contact slurm controller\n", 1, True),
        ("sinfo: fatal: Could not establish a configuration source\n", 1, False),
    ],
)
def test_a_cluster_that_does_not_answer_is_one(command, said, status, expected):
    command("sinfo", said if not status else "", err=said if status else "", status=status)
    assert system.in_cluster() is expected
