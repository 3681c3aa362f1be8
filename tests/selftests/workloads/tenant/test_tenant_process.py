"""The process that stays behind waits for the end of its run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fixtures.workloads.tenant import tenant_process

pytestmark = pytest.mark.cpu


class Stays(Exception):
    """The parent's end, which this test does not share."""


def stays(monkeypatch: pytest.MonkeyPatch, changes: list[float], *forks: int) -> dict[str, Any]:
    """What the process does where the run is renewed at these times, and fork() returns these."""
    now, done = [100.0], {"ignored": [], "written": b"", "dup": []}
    numbers = list(forks)

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def exit_(status: int) -> None:
        raise Stays

    monkeypatch.setattr(tenant_process.time, "sleep", sleep)
    monkeypatch.setattr(tenant_process.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(
        tenant_process, "_changed", lambda _: sum(now[0] >= change for change in changes)
    )
    monkeypatch.setattr(tenant_process.os, "fork", lambda: numbers.pop(0))
    monkeypatch.setattr(tenant_process.os, "_exit", exit_)
    monkeypatch.setattr(tenant_process.os, "setsid", lambda: done.update(session=True))
    monkeypatch.setattr(tenant_process.os, "write", lambda _, text: done.update(written=text))
    monkeypatch.setattr(tenant_process.os, "dup2", lambda a, b: done["dup"].append(b))
    monkeypatch.setattr(tenant_process.os, "chdir", lambda _: None)
    monkeypatch.setattr(
        tenant_process.signal, "signal", lambda number, _: done["ignored"].append(int(number))
    )
    try:
        tenant_process.main(Path("/run.json"))
    finally:
        monkeypatch.undo()
    return {**done, "seconds": now[0] - 100}


def test_it_ends_fifteen_minutes_after_the_last_change(monkeypatch: pytest.MonkeyPatch):
    found = stays(monkeypatch, [], 0, 0)
    assert found["seconds"] == 900
    assert stays(monkeypatch, [130.0, 1000.0], 0, 0)["seconds"] == 1800
    assert stays(monkeypatch, [1001.0], 0, 0)["seconds"] == 900, "too late"
    assert found["ignored"] == [15, 1]
    assert found["written"] == f"{os.getpid()}\n".encode()
    assert found["dup"] == [0, 1, 2]
    for forks in ((1,), (0, 1)):
        with pytest.raises(Stays):
            stays(monkeypatch, [], *forks)


def test_a_run_that_is_not_there_does_not_change(tmp_path: Path):
    file = tmp_path / "run.json"
    assert tenant_process._changed(file) == 0
    file.touch()
    assert tenant_process._changed(file) == file.stat().st_mtime_ns
