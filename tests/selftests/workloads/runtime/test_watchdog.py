"""The thread that shows that a rank lives, and ends it at its deadline."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fixtures.workloads.runtime import watchdog
from fixtures.workloads.runtime.watchdog import Watchdog

pytestmark = pytest.mark.cpu


def test_watchdog_shows_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "HEARTBEAT_S", 0.05)
    lines: list[dict[str, Any]] = []
    watchdog.Watchdog(lines.append, tmp_path / "stacks").start()
    end = time.monotonic() + 20
    while len(lines) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    assert lines[:2] == [{"event": "alive"}] * 2


class End(BaseException):
    """The end of the process, or of the test's patience."""


class Condition:
    """A condition whose wait is the passing of time, up to the end of the test."""

    def __init__(self, clock: list[float], until: float) -> None:
        self.clock, self.until = clock, until
        self.waits: list[float] = []

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def notify(self) -> None: ...

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.clock[0] += seconds
        if self.clock[0] > self.until:
            raise End


@pytest.fixture
def dog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A watchdog whose time passes while it waits; what it did."""
    clock = [100.0]
    done: dict[str, Any] = {"lines": [], "forced": [], "clock": clock}

    def append(line: dict[str, Any]) -> None:
        done["lines"].append((clock[0], line["event"], line))

    def exit_(status: int) -> None:
        done["status"] = status
        raise End

    monkeypatch.setattr(watchdog.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(watchdog.time, "sleep", lambda s: done.setdefault("slept", s))
    monkeypatch.setattr(watchdog.os, "_exit", exit_)
    monkeypatch.setattr(
        watchdog.faulthandler, "dump_traceback_later",
        lambda seconds, exit, file: done["forced"].append((seconds, exit)),
    )  # fmt: skip
    monkeypatch.setattr(
        watchdog.faulthandler, "cancel_dump_traceback_later",
        lambda: done["forced"].append("cancelled"),
    )  # fmt: skip
    one = Watchdog(append, tmp_path / "stacks")
    done["condition"] = one._changed = Condition(clock, 117)  # type: ignore[assignment]
    yield one, done
    one._stacks.close()


def test_a_rank_without_a_deadline_shows_every_five_seconds_that_it_lives(dog: Any):
    one, done = dog
    with pytest.raises(End):
        one._watch()
    assert [(t, event) for t, event, _ in done["lines"]] == [
        (105, "alive"), (110, "alive"), (115, "alive"),
    ]  # fmt: skip
    assert "status" not in done


def test_a_rank_is_ended_at_its_deadline_and_not_before(dog: Any):
    one, done = dog
    one.watch({"workload": "gemm", "placement": "n0"}, 7.0)
    with pytest.raises(End):
        one._watch()
    assert done["forced"] == [(7 + 15, True)], "what keeps the GIL is ended 15 s later"
    assert [(t, event) for t, event, _ in done["lines"]] == [(105, "alive"), (107, "error")]
    error = done["lines"][-1][2]
    assert (error["kind"], error["workload"], error["placement"]) == ("hung", "gemm", "n0")
    assert "flight" not in error
    assert (done["status"], done["slept"]) == (70, 2)


def test_a_pause_ends_the_deadline_and_a_new_one_replaces_it(dog: Any):
    one, done = dog
    one.watch({}, 3.0)
    one.pause()
    assert done["forced"][-1] == "cancelled"
    with pytest.raises(End):
        one._watch()
    assert {event for _, event, _ in done["lines"]} == {"alive"}
    done["clock"][0] = 100.0
    one.watch({}, 3.0)
    one.watch({}, 30.0)
    with pytest.raises(End):
        one._watch()
    assert {event for _, event, _ in done["lines"]} == {"alive"}


def test_a_full_disk_does_not_end_the_watchdog(dog: Any):
    one, done = dog
    calls: list[int] = []

    def full(_: Any) -> None:
        calls.append(1)
        raise OSError(28, "No space left on device")

    one._append = full
    with pytest.raises(End):
        one._watch()
    assert len(calls) == 3
    one.watch({}, 1.0)
    with pytest.raises(End):
        one._end_rank({})
    assert done["status"] == 70, "the rank ends without its line"


def recorder(monkeypatch: pytest.MonkeyPatch, **dumps: Any) -> None:
    c10d = ModuleType("torch._C._distributed_c10d")
    for name, found in dumps.items():
        setattr(c10d, f"_dump_{name}_trace_json", lambda found=found: found)
    monkeypatch.setitem(sys.modules, "torch.distributed", ModuleType("torch.distributed"))
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", c10d)


ENTRIES = [
    {"process_group": "a", "collective_seq_id": 1, "state": "completed", "time_created_ns": 9,
     "profiling_name": "nccl:all_reduce"},
    {"process_group": "a", "collective_seq_id": 2, "state": "started", "time_created_ns": 20,
     "profiling_name": "nccl:broadcast"},
    {"process_group": "b", "collective_seq_id": 4, "state": "completed", "time_created_ns": 10,
     "profiling_name": "nccl:all_gather"},
    {"process_group": "b", "collective_seq_id": 9, "state": "started", "time_created_ns": 99,
     "profiling_name": "send", "is_p2p": True},
]  # fmt: skip


def test_the_flight_recorder_is_read_where_torch_has_one_with_entries(
    monkeypatch: pytest.MonkeyPatch,
):
    some, none = json.dumps({"entries": ENTRIES}), '{"entries": []}'
    for dumps, found in (
        ({"nccl": some.encode()}, some), ({"nccl": none, "fr": some}, some), ({"fr": some}, some),
        ({"nccl": none}, ""), ({}, ""),
    ):  # fmt: skip
        recorder(monkeypatch, **dumps)
        assert watchdog.flight_recorder() == found
    monkeypatch.delitem(sys.modules, "torch.distributed")
    recorder_less = watchdog.flight_recorder()
    assert recorder_less == ""


def test_progress_is_counted_over_all_groups_and_the_last_begun_is_named():
    assert watchdog.flight_summary({"entries": ENTRIES}) == {
        "begun": 6, "ended": 5, "last": "nccl:broadcast", "state": "started",
    }  # fmt: skip
    assert watchdog.flight_summary({"entries": ENTRIES[-1:]}) == {}
    assert watchdog.flight_summary({}) == {}


def test_a_hung_rank_tells_the_progress_of_its_collectives(
    dog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one, done = dog
    recorder(monkeypatch, nccl=json.dumps({"entries": ENTRIES}))
    with pytest.raises(End):
        one._end_rank({})
    assert done["lines"][-1][2]["flight"]["begun"] == 6
    assert json.loads((tmp_path / "stacks.flight.json").read_text())["entries"] == ENTRIES
    recorder(monkeypatch, nccl="no json")
    assert one._flight_summary() == {}


def test_stacks_are_those_of_the_other_threads():
    ready, end = threading.Event(), threading.Event()

    def a_function_of_the_other_thread() -> None:
        ready.set()
        end.wait(60)

    other = threading.Thread(target=a_function_of_the_other_thread, name="other")
    other.start()
    ready.wait(60)
    text = watchdog.all_stacks()
    end.set()
    other.join()
    assert "thread other:" in text
    assert "a_function_of_the_other_thread" in text
    assert "test_stacks_are_those" not in text
