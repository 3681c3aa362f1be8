"""What a failed job leaves on its nodes: processes, files, GPU memory, locks and checkpoints."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.model import Measurement
from training import failures

pytestmark = pytest.mark.cpu

AT = {"way": "kill"}
TRUTH = {"node": "worker0", "kind": "killed", "rank": 1}
SEEN: dict[str, Any] = {
    "job": "77", "notes": ["seen by Slurm"], "failure": None, "truth": TRUTH, "lost_s": 4.5,
    "end_s": {"worker0": 3.25},
}  # fmt: skip
METRICS = ["end", "named", "left", "kept", "lost", "curve"]


def rank(number: int = 0, node: str = "worker0") -> Any:
    return SimpleNamespace(rank=number, node=node, spec={"nonce": "n"})


def write_lines(folder: Path, *lines: dict[str, Any], nonce: str = "n") -> None:
    """What the victim's first rank wrote."""
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps({"nonce": nonce, **line}) + "\n" for line in lines)
    with (folder / "rank0.jsonl").open("a") as file:
        file.write(text)


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A node on which nothing is left, and a clock that only pauses move."""
    clock = SimpleNamespace(now=0.0)

    def pause(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(failures, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=pause))
    monkeypatch.setattr(failures, "job_processes", lambda job: [])
    monkeypatch.setattr(failures, "shared_memory", lambda: [])
    monkeypatch.setattr(failures, "_open_files", set)
    return clock


# --- the measurements


def test_every_metric_that_was_asked_for_is_measured_and_no_other(tmp_path, clean, monkeypatch):
    folder = tmp_path / "victim"
    curve = {"metric": "curve", "value": 0.5, "notes": ["resumed"]}
    write_lines(
        folder,
        {"event": "place", "node": "worker0", "shm": [], "gpus": {}},
        {"event": "saved", "step": 5},
        {"event": "result", "measurements": [curve, {"metric": "other", "value": 9}]},
    )
    write_lines(folder, {"event": "saved", "step": 900}, nonce="of another run")
    monkeypatch.setattr(
        failures.checkpoint_integrity, "awaited_intact", lambda *given: Path("step-000005")
    )

    def measured(number: int, metrics: list[str]) -> dict[str, Any]:
        result = failures.run(rank(number), metrics, way="kill", victim=str(folder), seen=SEEN)
        assert result.facts == {"seen": SEEN, "victim": "victim"}
        assert all(m.at == AT for m in result.measurements)
        return {m.metric: m.value for m in result.measurements}

    expected = {
        "end": 3.25, "named": "wrong", "left": 0, "kept": "intact", "lost": 4.5, "curve": 0.5,
    }  # fmt: skip
    assert measured(0, METRICS) == expected
    for name, value in expected.items():
        assert measured(0, [name]) == {name: value}
    assert measured(1, METRICS) == {k: expected[k] for k in ("end", "named", "left", "kept")}


def test_the_files_of_ranks_and_a_checkpoint_are_awaited_within_the_deadline(tmp_path, monkeypatch):
    awaited = []
    write_lines(tmp_path / "victim", {"event": "saved", "step": 1})
    monkeypatch.setattr(failures, "is_visible", lambda path, limit: awaited.append(limit) or True)
    monkeypatch.setattr(
        failures.checkpoint_integrity, "awaited_intact",
        lambda folder, step, limit: awaited.append(limit),
    )  # fmt: skip
    failures.run(rank(), ["kept"], way="kill", victim=str(tmp_path / "victim"), seen=SEEN)
    assert len(awaited) == 2
    # A job of two nodes may wait for the other one's file, a checkpoint and the leftovers.
    assert sum(awaited) + failures.LEFTOVER_GRACE_S < failures.WORKLOAD.deadline_s


@pytest.mark.parametrize(("node", "value"), [("worker0", 3.25), ("worker1", None)])
def test_the_end_is_that_of_this_node(node, value):
    seen = {**SEEN, "failure": {"reason": "killed by signal 9"}}
    found = failures._node_release_time(rank(node=node), seen, AT)
    assert (found.metric, found.unit, found.value) == ("end", "s", value)
    assert found.notes == ["seen by Slurm", "killed by signal 9"]
    assert failures._node_release_time(rank(), SEEN, AT).notes == ["seen by Slurm"]


RIGHT = {"node": "worker0", "kind": "killed", "rank": 1, "reason": "killed by signal 9"}


@pytest.mark.parametrize(
    ("truth", "failure", "value", "note"),
    [
        (TRUTH, RIGHT, "named", "killed by signal 9"),
        (TRUTH, {**RIGHT, "reason": ""}, "named", ""),
        (TRUTH, {**RIGHT, "rank": 0}, "wrong", "rank 0, expected 1: killed by signal 9"),
        (TRUTH, {**RIGHT, "kind": "hung"}, "wrong", "kind hung, expected killed"),
        (TRUTH, {**RIGHT, "node": "worker1"}, "wrong", "node worker1, expected worker0"),
        (TRUTH, None, "wrong", "kind None, expected killed"),
        # What is not known of the truth is not compared.
        ({**TRUTH, "rank": None, "node": None}, {**RIGHT, "rank": 7}, "named", "signal 9"),
        ({**TRUTH, "node": None}, {**RIGHT, "rank": 7}, "wrong", "rank 7, expected 1"),
        # The fault was on another node: this one must not be named.
        ({**TRUTH, "node": "worker1"}, {**RIGHT, "node": "worker1"}, "named", "signal 9"),
        ({**TRUTH, "node": "worker1"}, {**RIGHT, "kind": "hung"}, "wrong", "it was worker1"),
        ({**TRUTH, "node": "worker1"}, None, "named", ""),
    ],
)
def test_a_diagnosis_is_compared_with_the_truth(truth, failure, value, note):
    found = failures._diagnosis(rank(), {**SEEN, "truth": truth, "failure": failure}, AT)
    assert (found.metric, found.unit, found.value) == ("named", "state", value)
    assert len(found.notes) == (1 if note else 0)
    assert all(note in said for said in found.notes)


# --- leftovers


def leftovers(
    folder: Path, *lines: dict[str, Any], gpus: dict[str, int | None] | None = None
) -> Measurement:
    place = {"event": "place", "node": "worker0", "shm": ["old"], "gpus": gpus or {}}
    return failures._leftovers(rank(), folder, [place, *lines], "77", AT)


def test_without_the_state_before_nothing_is_counted(tmp_path, clean):
    lines = [
        {"event": "place", "node": "worker1", "shm": [], "gpus": {}},
        {"event": "result", "node": "worker0"},
    ]
    found = failures._leftovers(rank(), tmp_path, lines, "77", AT)
    assert (found.metric, found.unit, found.value) == ("left", "leftovers", None)
    assert "what was on worker0 before it" in found.notes[0]
    nothing = leftovers(tmp_path)
    assert (nothing.metric, nothing.unit, nothing.value, nothing.notes) == (
        "left", "leftovers", 0, [],
    )  # fmt: skip


@pytest.mark.parametrize(("gone_after_s", "value"), [(4.5, 0), (6.0, 1)])
def test_what_goes_away_within_five_seconds_is_no_leftover(
    gone_after_s, value, tmp_path, clean, monkeypatch
):
    monkeypatch.setattr(
        failures, "job_processes", lambda job: ["it lives"] if clean.now < gone_after_s else []
    )
    assert leftovers(tmp_path).value == value


def test_new_files_in_shared_memory_that_nobody_uses_are_left(tmp_path, clean, monkeypatch):
    monkeypatch.setattr(failures, "shared_memory", lambda: ["used", "old", "new"])
    monkeypatch.setattr(failures, "_open_files", lambda: {"/dev/shm/used"})
    found = leftovers(tmp_path)
    assert (found.value, found.notes) == (1, ["/dev/shm/new is there"])
    monkeypatch.setattr(failures, "shared_memory", lambda: ["old"])
    monkeypatch.setattr(failures, "_open_files", lambda: pytest.fail("nothing is new"))
    assert failures._leftover_files(["old"]) == []


def test_a_lock_that_is_held_is_left_unless_it_could_not_be_taken(tmp_path, clean):
    assert not failures._is_locked(tmp_path / "lock"), "there is no such file"
    handle = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    try:
        assert not failures._is_locked(tmp_path / "lock")
        assert leftovers(tmp_path).value == 0
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert failures._is_locked(tmp_path / "lock")
        found = leftovers(tmp_path)
        assert (found.value, "lock is still held" in found.notes[0]) == (1, True)
        assert leftovers(tmp_path, {"event": "unlocked"}).value == 0
    finally:
        os.close(handle)


MIB: dict[str, int | None] = {"GPU-a": 1064, "GPU-b": 1065, "GPU-c": None}


@pytest.mark.parametrize(
    ("before", "value", "notes"),
    [
        ({"GPU-a": 1000}, 0, []),  # 64 MiB more: it varies by that
        ({"GPU-b": 1000}, 1, ["GPU-b has 1065 MiB in use, 1000 before"]),
        ({"GPU-d": 1000}, None, ["GPU-d, a GPU of the victim, is not accessible"]),
        ({"GPU-c": 1000}, None, ["GPU-c, a GPU of the victim, is not accessible"]),
        ({"GPU-a": None}, None, ["GPU-a, a GPU of the victim, is not accessible"]),
        ({"GPU-b": 1000, "GPU-d": 5}, 1, ["GPU-b has", "GPU-d, a GPU of the victim"]),
    ],
)
def test_memory_in_use_is_compared_with_that_before(
    before, value, notes, tmp_path, clean, monkeypatch
):
    monkeypatch.setattr(failures.devices, "open_handles", lambda: list(MIB.items()))
    monkeypatch.setattr(failures, "gpu_memory", lambda handle: handle)
    found = leftovers(tmp_path, gpus=before)
    assert found.value == value
    assert len(found.notes) == len(notes)
    assert all(said.startswith(note) for said, note in zip(found.notes, notes, strict=True))
    held, unseen = failures._leftover_gpu_memory(before)
    assert held + unseen == found.notes


def test_a_node_without_gpus_asks_no_driver(monkeypatch):
    monkeypatch.setattr(failures.devices, "open_handles", lambda: pytest.fail("asked"))
    assert failures._leftover_gpu_memory({}) == ([], [])


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A /proc of a test's own."""
    monkeypatch.setattr(failures, "Path", lambda path: tmp_path if path == "/proc" else Path(path))

    def make(number: int, job: str, state: str) -> Path:
        entry = tmp_path / str(number)
        (entry / "fd").mkdir(parents=True)
        (entry / "environ").write_bytes(f"HOME=/\0SLURM_JOB_ID={job}\0".encode())
        (entry / "stat").write_text(f"{number} (a (b) c) {state} 1 1")
        (entry / "comm").write_text("python\n")
        (entry / "maps").write_text("")
        return entry

    return make


def test_living_processes_of_the_job_are_found_by_their_environment(processes):
    processes(11, "77", "S")
    processes(12, "77", "Z")  # dead already
    processes(13, "77", "X")
    processes(14, "770", "S")
    (processes(15, "77", "S") / "environ").unlink()  # another user's
    (found,) = failures.job_processes("77")
    assert "process 11 (python) of job 77" in found
    assert found.endswith("state S")


def test_files_in_use_are_those_that_are_open_or_mapped(processes):
    entry = processes(11, "77", "S")
    (entry / "fd" / "3").symlink_to("/dev/shm/open")
    (entry / "maps").write_text("7f00-7f01 rw-s 00000000 00:19 5    /dev/shm/mapped\n")
    (processes(12, "77", "S") / "maps").unlink()
    assert {"/dev/shm/open", "/dev/shm/mapped"} <= failures._open_files()


# --- the checkpoint and the curve


@pytest.mark.parametrize(
    ("newest", "value", "note"),
    [
        ("step-000010", "intact", "step 10 is taken now"),
        ("step-000011", "intact", "step 11"),  # completed before the line on it was written
        ("step-000005", "lost", "step 10 was complete, step 5 is taken now"),
        (None, "lost", "none is taken now"),
    ],
)
def test_a_checkpoint_is_kept_if_it_is_as_new_as_the_last_one(
    newest, value, note, tmp_path, monkeypatch
):
    asked = []

    def awaited(folder: Path, step: int, limit: float) -> Path | None:
        asked.append((folder, step))
        return Path(newest) if newest else None

    monkeypatch.setattr(failures.checkpoint_integrity, "awaited_intact", awaited)
    lines = [{"event": "saved", "step": 5}, {"event": "saved", "step": 10}, {"event": "x"}]
    found = failures._checkpoint_state(tmp_path, lines, AT)
    assert (found.metric, found.unit, found.value) == ("kept", "state", value)
    assert note in found.notes[0]
    assert asked == [(tmp_path / "checkpoints", 10)]


def test_without_a_complete_checkpoint_nothing_can_be_kept(tmp_path):
    found = failures._checkpoint_state(tmp_path, [{"event": "place"}], AT)
    assert (found.metric, found.value) == ("kept", None)
    assert "no checkpoint was complete" in found.notes[0]


def test_the_resumed_curve_is_the_worst_of_the_ranks():
    def result(value: float, *notes: str, metric: str = "curve", event: str = "result") -> Any:
        measured = {"metric": metric, "value": value, "notes": list(notes)}
        return {"event": event, "measurements": [measured]}

    lines = [
        result(0.25, "resumed"), result(0.5, "resumed"), result(9, metric="pace"),
        result(8, event="error"), {"event": "result"},
    ]  # fmt: skip
    found = failures._resumed_curve(lines, AT, ["as seen"])
    assert (found.metric, found.unit, found.value) == ("curve", "%", 0.5)
    assert found.notes == ["resumed", "as seen"]
    never = failures._resumed_curve([], AT, [])
    assert (never.value, never.notes) == (None, ["it was never resumed"])
