"""What is made of the speed of cores, memory and disk that a child process measures."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.absence import Kind
from fixtures.records.model import Measurement
from fixtures.workloads.host import host_speed
from tests.selftests.support import whys
from tests.selftests.workloads.numa_hosts import host_of

pytestmark = pytest.mark.cpu


def rank(**more: Any) -> Any:
    given = {"leads_node": True, "spec": {}, "demonstration": False, "core_binding": None}
    return SimpleNamespace(**{**given, **more})


class Child:
    """A child process that answers as a test says; what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []
        monkeypatch.setattr(host_speed, "_ask", self.ask)

    def ask(self, **asked: Any) -> Any:
        self.asked.append(asked)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def value(found: Any) -> Any:
    assert isinstance(found, Measurement)
    return found.value


# --- cores


def test_the_slowest_core_is_held_against_the_median(monkeypatch: pytest.MonkeyPatch):
    child = Child(monkeypatch, [1e-3, 1e-3, 1.1e-3, 0.9e-3])
    facts: dict[str, Any] = {}
    row = host_speed._cores(rank(), [0, 2, 4, 6], facts)["cores"]
    assert isinstance(row, Measurement)
    assert (row.value, row.at) == (90.9, {"part": "cpu4"})
    assert row.notes == ["cpu4: 1100 us for what takes 1000 us on most of 4 cores"]
    assert facts == {"cores": 4, "core_us": {"median": 1000, "slowest": 1100}}
    assert child.asked == [{"what": "cores", "cores": [0, 2, 4, 6], "seconds": 0.7}]
    child.answers = [[1e-3, 1e-3]]
    assert value(host_speed._cores(rank(demonstration=True), [0, 1], {})["cores"]) == 100
    assert child.asked[-1]["seconds"] == 0.5
    assert isinstance(host_speed._cores(rank(), [0], {})["cores"], str)


def test_a_core_that_was_slow_once_is_measured_again(monkeypatch: pytest.MonkeyPatch):
    slow, fast = [1e-3, 1e-3, 2e-3], [1e-3, 1e-3, 1e-3]
    child = Child(monkeypatch, slow, fast)
    facts: dict[str, Any] = {}
    row = host_speed._cores(rank(), [0, 1, 2], facts)["cores"]
    assert (value(row), len(child.asked)) == (100, 2)
    assert facts["core_rounds"] == [50, 100]
    child.answers = [slow] * 9
    row = host_speed._cores(rank(), [0, 1, 2], facts)["cores"]
    assert isinstance(row, Measurement)
    assert (row.value, row.at, len(child.answers)) == (50, {"part": "cpu2"}, 4)
    assert row.notes[0].endswith("; 50, 50, 50, 50, 50 % in 5 rounds")
    for share, rounds in ((90.0, 1), (89.9, 5)):
        child.answers = [[1.0, 1.0, 100 / share]] * 9
        host_speed._cores(rank(), [0, 1, 2], {})
        assert len(child.answers) == 9 - rounds


def test_a_core_whose_process_ended_is_named(monkeypatch: pytest.MonkeyPatch):
    Child(monkeypatch, [1e-3, None])
    with pytest.raises(RuntimeError, match="core 7: its process ended"):
        host_speed._cores(rank(), [3, 7], {})
    assert host_speed._percent([2.0, 1.0, 4.0]) == [100, 100, 50]


# --- memory


def test_memory_is_copied_by_the_cores_of_each_numa_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    system = host_of(tmp_path, {0: "0-1", 1: "2-3", 2: "4-5"}, [])
    rates = [[10e9] * 5, [10e9] * 5, [4e9] * 5, [4e9] * 5, [8e9, 8e9, 9e9, 9e9, 9e9]]
    child = Child(monkeypatch, rates)
    facts: dict[str, Any] = {}
    found = host_speed._memory(rank(), [0, 1, 2, 3, 4], system, facts)
    whole, numa = found["memory"], found["memory_numa"]
    assert isinstance(whole, Measurement)
    assert isinstance(numa, Measurement)
    assert (whole.samples, whole.checks) == ([36, 36, 37, 37, 37], {"batches": 5})
    assert (numa.value, numa.at) == (88.9, {"part": "NUMA node 1"})
    assert numa.notes == whole.notes
    assert facts["memory_gbs"] == {"node0": 20, "node1": 8, "node2": 9}
    asked = {"what": "memory", "cores": [0, 1, 2, 3, 4], "rounds": 5}
    assert child.asked == [{**asked, "seconds": 1.0, "bytes": 64 << 20}]
    child.answers = [rates]
    host_speed._memory(rank(demonstration=True), [0, 1, 2, 3, 4], system, {})
    assert child.asked[-1] == {**asked, "seconds": 0.5, "bytes": 8 << 20}


def test_one_numa_node_has_none_to_compare_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    system = host_of(tmp_path, {0: "0-39"}, [])
    child = Child(monkeypatch, [[1e9] * 5] * 32)
    found = host_speed._memory(rank(), list(range(40)), system, {})
    assert isinstance(found["memory"], Measurement)
    assert found["memory"].notes == []
    assert isinstance(found["memory_numa"], str)
    assert len(child.asked[0]["cores"]) == 32
    found = host_speed._memory(rank(), [77], system, {})
    assert {type(row) for row in found.values()} == {str}
    child.answers = [[[1e9] * 5, None]]
    with pytest.raises(RuntimeError, match="core 1: its process ended"):
        host_speed._memory(rank(), [0, 1], system, {})


# --- scratch


DISK = {
    "size": 2e12, "free": 1e12, "write": 3e9, "read": 4.5e9, "bytes": 4e9, "direct": True,
}  # fmt: skip


def test_the_ordered_disk_has_its_size_and_rates(monkeypatch: pytest.MonkeyPatch):
    child = Child(monkeypatch, DISK, {**DISK, "direct": False}, RuntimeError("it hangs"))
    ordered = rank(spec={"host_order": {"scratch": {"path": "/s"}}})
    facts: dict[str, Any] = {}
    found: Any = host_speed._scratch(ordered, facts)
    assert {name: (m.value, m.unit) for name, m in found.items()} == {
        "scratch_size": (2000, "GB"), "scratch_write": (3, "GB/s"), "scratch_read": (4.5, "GB/s"),
    }  # fmt: skip
    assert found["scratch_size"].notes == ["/s: 1000 GB free"]
    assert found["scratch_read"].notes == ["/s: 4.00 GB, direct"]
    assert facts["scratch"] == DISK
    assert child.asked[0] == {
        "what": "disk", "path": "/s", "seconds": 0.7, "most_bytes": 4 << 30,
    }  # fmt: skip
    assert "no O_DIRECT" in host_speed._scratch(ordered, {})["scratch_read"].notes[0]  # type: ignore[union-attr]
    broken: Any = host_speed._scratch(ordered, {})
    assert [(m.value, m.notes) for m in broken.values()] == [(0, ["/s: it hangs"])] * 3
    for spec in ({}, {"host_order": None}, {"host_order": {"scratch": None}}):
        unordered = host_speed._scratch(rank(spec=spec), {})
        assert set(unordered.values()) == {"the order names no scratch directory"}


# --- the child, and all together


class Process:
    """A process that ends so, or does not."""

    pid = 77

    def __init__(
        self, out: str = "[1]", err: str = "", status: int = 0, hangs: bool = False
    ) -> None:
        self.out, self.err, self.returncode, self.hangs = "[1]", err, status, hangs

    def communicate(self, timeout: float) -> tuple[str, str]:
        assert timeout == 25
        if self.hangs:
            raise subprocess.TimeoutExpired("child", timeout)
        return self.out, self.err


def test_a_child_that_fails_or_hangs_is_an_error(monkeypatch: pytest.MonkeyPatch):
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(host_speed.os, "killpg", lambda *given: killed.append(given))
    for process, says in (
        (Process(err="Traceback\nOSError: full\n", status=1), "disk: OSError: full"),
        (Process(status=3), "disk: exit status 3"),
        (Process(hangs=True), "disk: no answer within 25 s"),
    ):

        def start(*_: Any, process: Process = process, **__: Any) -> Process:
            return process

        monkeypatch.setattr(host_speed.subprocess, "Popen", start)
        with pytest.raises(RuntimeError, match=says):
            host_speed._ask(what="disk")
    assert killed == [(77, 9)]
    monkeypatch.setattr(host_speed.subprocess, "Popen", lambda *_, **__: Process())
    assert host_speed._ask(what="cores") == [1]


def test_a_job_s_own_cores_are_those_it_may_run_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(host_speed.os, "sched_getaffinity", lambda _: {3, 1})
    monkeypatch.setattr(host_speed, "cores_of_job", lambda given, _: {*given, 9})
    assert host_speed._own_cores(rank(), Path("/sys")) == [1, 3, 9]
    bound = rank(core_binding=SimpleNamespace(of_job=frozenset({5, 4})))
    assert host_speed._own_cores(bound, Path("/sys")) == [4, 5]


def test_an_error_costs_its_own_rows_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(host_speed, "_own_cores", lambda *_: [0, 1])
    system = host_of(tmp_path / "sys", {0: "0-1"}, [])
    child = Child(monkeypatch, [1e-3, 1e-3], RuntimeError("no answer"))
    wanted = ["cores", "memory", "scratch_size"]
    found = host_speed.run(rank(), wanted, root=str(system.parent))
    assert [(m.metric, m.value) for m in found.measurements] == [("cores", 100)]
    assert whys(found, Kind.FAULT) == {"memory": "no answer"}
    assert set(whys(found, Kind.NOT_THERE)) == {"scratch_size"}
    child.answers = [[[1e9] * 5] * 2]
    found = host_speed.run(rank(), ["memory"], root=str(system.parent))
    assert [m.metric for m in found.measurements] == ["memory"]
    assert found.absent == []
    assert len(child.asked) == 3
    assert host_speed.run(rank(leads_node=False), ["cores"], root=str(tmp_path)).facts == {}
