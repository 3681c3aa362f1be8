"""The child that touches the directory, and that its parent never waits for it without end."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.workloads.filesystem import filesystem_probe
from fixtures.workloads.filesystem.filesystem_child import SLOT_BYTES, SLOTS
from fixtures.workloads.filesystem.filesystem_probe import Probe, ProbeError

pytestmark = pytest.mark.cpu


@pytest.fixture
def probe():
    probe = Probe(hang_s=0.3, limit_s=20)
    yield probe
    probe.abandon()


def test_call_that_never_returns_is_named(probe: Probe, tmp_path: Path):
    # Opening a pipe that nobody reads blocks as a dead server does.
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ProbeError, match=r"^hung for 0.3 s in open\(\)$") as caught:
        probe.ask("put", path=str(tmp_path / "pipe"), text="")
    assert caught.value.kind == "hung"


def test_failed_call_is_named_and_the_probe_goes_on(probe: Probe, tmp_path: Path):
    with pytest.raises(ProbeError, match=r"^No such file or directory in unlink\(\)$") as caught:
        probe.ask("unlink", path=str(tmp_path / "missing"))
    assert caught.value.kind == "failed"
    assert probe.ask("see", wanted=[{"path": str(tmp_path / "x"), "gone": True}], timeout_s=0)


def test_broken_probe_is_no_verdict_on_the_directory(probe: Probe):
    with pytest.raises(ProbeError, match="TypeError") as caught:
        probe.ask("put", wrong=1)
    assert caught.value.kind == "lost"
    probe.abandon()
    with pytest.raises(ProbeError) as caught:
        probe.ask("remove", work="/nowhere")
    assert caught.value.kind == "lost"


def test_an_error_of_the_probe_is_json():
    assert ProbeError("failed", "why", 5).to_json() == {"kind": "failed", "text": "why", "errno": 5}
    assert ProbeError("lost", "why").to_json()["errno"] == 0


class Pipe:
    """The pipe of a child, whose answers and waits a test gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *chunks: bytes | None) -> None:
        self.chunks = list(chunks)
        self.now = 100.0
        self.waits: list[float] = []
        self.memory = bytearray(SLOT_BYTES * SLOTS)
        monkeypatch.setattr(filesystem_probe.select, "select", self.select)
        monkeypatch.setattr(filesystem_probe.os, "read", lambda *_: self.chunks.pop(0))
        monkeypatch.setattr(filesystem_probe.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(Probe, "__init__", lambda *_: None)
        self.abandoned = 0
        monkeypatch.setattr(Probe, "abandon", self.abandon)
        self.probe = Probe()  # type: ignore[call-arg]
        self.probe._hang_s, self.probe._limit_s = 0.5, 2.0
        self.probe._memory = self.memory  # type: ignore[assignment]
        pipe: Any = SimpleNamespace(fileno=lambda: 0)
        self.probe._child = SimpleNamespace(stdout=pipe)  # type: ignore[assignment]

    def abandon(self, *_: Any) -> None:
        self.abandoned += 1

    def select(self, *given: Any) -> tuple[list[int], ...]:
        self.waits.append(given[-1])
        if self.chunks and self.chunks[0] is not None:
            return [0], [], []
        if self.chunks:
            self.chunks.pop(0)
        self.now += 0.25
        return [], [], []

    def call(self, slot: int, name: bytes, count: int = 1) -> None:
        text = count.to_bytes(8, "little") + name.ljust(SLOT_BYTES - 8)
        self.memory[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES] = text


def test_an_answer_may_come_in_pieces(monkeypatch: pytest.MonkeyPatch):
    pipe = Pipe(monkeypatch, b"{", None, b"}\n")
    assert pipe.probe._answer("put") == b"{}\n"
    assert set(pipe.waits) == {0.1}
    pipe.chunks = [b""]
    with pytest.raises(ProbeError, match="the probe ended in put"):
        pipe.probe._answer("put")


def test_a_call_hangs_once_it_has_stood_still_for_longer_than_it_may(
    monkeypatch: pytest.MonkeyPatch,
):
    pipe = Pipe(monkeypatch)
    pipe.call(3, b"open")
    with pytest.raises(ProbeError, match=r"hung for 0\.5 s in open\(\)") as hung:
        pipe.probe._answer("put")
    assert (hung.value.kind, pipe.abandoned) == ("hung", 1)
    # First seen after a quarter; half a second later it is not yet over the limit.
    assert pipe.now == 101.0


def test_calls_that_go_on_do_not_hang_and_an_answer_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
):
    pipe = Pipe(monkeypatch)
    honest = pipe.select

    def goes_on(*given: Any) -> Any:
        pipe.call(0, b"write", int(pipe.now * 100))
        return honest(*given)

    monkeypatch.setattr(filesystem_probe.select, "select", goes_on)
    with pytest.raises(ProbeError, match="no answer in 2 s") as lost:
        pipe.probe._answer("put")
    assert (lost.value.kind, pipe.abandoned, pipe.now) == ("lost", 1, 102.25)
    idle = Pipe(monkeypatch)
    with pytest.raises(ProbeError, match="no answer"):
        idle.probe._answer("put")


def test_a_killed_child_is_reaped_for_half_a_second(monkeypatch: pytest.MonkeyPatch):
    waited: list[float] = []

    def wait(timeout: float) -> None:
        waited.append(timeout)
        raise filesystem_probe.subprocess.TimeoutExpired("child", timeout)

    closed: list[int] = []
    pipe = SimpleNamespace(close=lambda: closed.append(1))
    pipes = Pipe(monkeypatch)
    monkeypatch.undo()
    pipes.probe._child = SimpleNamespace(  # type: ignore[assignment]
        kill=lambda: None, wait=wait, stdin=pipe, stdout=None
    )
    pipes.probe.abandon()
    assert (waited, closed) == ([0.5], [1])
