"""The program that measures cores, memory and a disk, on small sizes and a made-up clock."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.workloads.host import host_speed_child as child

pytestmark = pytest.mark.cpu


def clock(monkeypatch: pytest.MonkeyPatch, step: float = 1.0) -> list[float]:
    """Time that passes by a step whenever it is asked for."""
    now = [0.0]

    def ask() -> float:
        now[0] += step
        return now[0]

    monkeypatch.setattr(child.time, "perf_counter", ask)
    return now


def test_a_piece_of_work_takes_the_time_between_its_ends(monkeypatch: pytest.MonkeyPatch):
    clock(monkeypatch, 0.25)
    assert child.work() == 0.25
    assert child.LOOP == 10_000, "about a millisecond: below the time slice of a busy core"


def test_a_core_is_as_fast_as_the_tenth_of_its_pieces(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    pieces = iter([99.0, *(float(k) for k in range(20, 0, -1)), *[50.0] * 99])
    monkeypatch.setattr(child.time, "perf_counter", lambda: now[0])

    def work() -> float:
        now[0] += 1
        return next(pieces)

    ready: list[float] = []
    monkeypatch.setattr(child, "work", work)
    assert child.core_speed(lambda: ready.append(now[0]), 20.0) == 3.0
    assert ready == [1.0], "one piece before all begin, which does not count"
    assert now[0] == 21


def test_bytes_of_a_copy_are_read_and_written(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    copied: list[int] = []
    monkeypatch.setattr(child.time, "perf_counter", lambda: now[0])

    def move(*arguments: Any) -> None:
        copied.append(arguments[-1])
        now[0] += 0.5

    monkeypatch.setattr(child.ctypes, "memmove", move)
    ready: list[int] = []
    rates = child.copies(4096, 3)(lambda: ready.append(len(copied)), 3.0)
    # Each round is one second: two copies of half a second.
    assert rates == [16384.0] * 3
    assert (copied, ready) == ([4096] * 6, [0])
    slow = child.copies(4096, 1)(lambda: None, 0.0)
    assert slow == [16384.0], "one copy at least"


def test_processes_on_all_cores_measure_at_the_same_time():
    core = min(os.sched_getaffinity(0))

    def measure(wait: child.Wait, seconds: float) -> list[Any]:
        wait()
        return [sorted(os.sched_getaffinity(0)), seconds]

    assert child.on_each([core, core], measure, 0.5) == [[[core], 0.5]] * 2

    def dies(wait: child.Wait, seconds: float) -> None:
        wait()
        os._exit(1)

    assert child.on_each([core], dies, 0.5) == [None]


def disk(
    monkeypatch: pytest.MonkeyPatch, folder: Path, seconds: float, most: int, free: int = 1 << 40
) -> tuple[dict[str, Any], list[str]]:
    """What the disk is said to do, each of whose calls takes a second."""
    now = [0.0]
    calls: list[str] = []

    def second(name: str, honest: Any) -> Any:
        def call(*arguments: Any) -> Any:
            calls.append(name)
            now[0] += 1
            return honest(*arguments)

        return call

    monkeypatch.setattr(child.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(child, "BLOCK", 1 << 16)
    space = SimpleNamespace(f_bavail=free, f_frsize=1, f_blocks=2 * free)
    monkeypatch.setattr(child.os, "statvfs", lambda _: space)
    for name in ("pwrite", "fsync", "preadv", "posix_fadvise"):
        monkeypatch.setattr(child.os, name, second(name, getattr(os, name)))
    with monkeypatch.context():
        found = child.disk(str(folder), seconds, most)
    monkeypatch.undo()
    return found, calls


def test_a_disk_is_written_and_read_once_up_to_the_most_or_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    block = 1 << 16
    monkeypatch.setattr(child.os, "O_DIRECT", 0)
    found, calls = disk(monkeypatch, tmp_path, 9.0, 3 * block + 7)
    assert calls == ["pwrite"] * 3 + ["fsync"] + ["preadv"] * 3
    assert found == {
        "write": 3 * block / 4, "read": block, "bytes": 3 * block, "direct": True,
        "size": 2 << 40, "free": 1 << 40,
    }  # fmt: skip
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(child.os, "O_DIRECT", 0)
    found, calls = disk(monkeypatch, tmp_path, 2.0, 9 * block)
    assert calls == ["pwrite"] * 2 + ["fsync"] + ["preadv"] * 2
    monkeypatch.setattr(child.os, "O_DIRECT", 0)
    found, _ = disk(monkeypatch, tmp_path, 99.0, 9 * block, free=2 * block * 20)
    assert found["bytes"] == 2 * block, "a twentieth of the free space"
    monkeypatch.setattr(child.os, "O_DIRECT", 0)
    found, _ = disk(monkeypatch, tmp_path, 99.0, 9 * block, free=7)
    assert found["bytes"] == block, "one block at least"


def test_a_file_system_without_direct_access_is_read_past_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    honest, direct = os.open, os.O_DIRECT

    def refuses(path: Any, flags: int, *mode: int) -> int:
        if flags & direct:
            raise OSError(22, "Invalid argument")
        return honest(path, flags, *mode)

    monkeypatch.setattr(child.os, "open", refuses)
    found, calls = disk(monkeypatch, tmp_path, 9.0, 1 << 16)
    assert (found["direct"], calls) == (False, ["pwrite", "fsync", "posix_fadvise", "preadv"])
    assert child.BLOCK == 4 << 20


def test_what_is_asked_for_is_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(child, "disk", lambda *given: ("disk", *given))
    monkeypatch.setattr(child, "copies", lambda *given: ("copies", *given))
    monkeypatch.setattr(child, "on_each", lambda *given: given)
    asked: dict[str, Any] = {"path": "/d", "seconds": 2, "most_bytes": 3, "cores": [1]}
    assert child.answer({**asked, "what": "disk"}) == ("disk", "/d", 2, 3)
    memory = {**asked, "what": "memory", "bytes": 4, "rounds": 5}
    assert child.answer(memory) == ([1], ("copies", 4, 5), 2)
    assert child.answer({**asked, "what": "cores"}) == ([1], child.core_speed, 2)
