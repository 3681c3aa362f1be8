"""What isolation makes of what jobs see of each other, and the login side: no Slurm."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.cluster import slurm_survey
from fixtures.records.absence import Absence, Kind
from fixtures.records.files import write_json
from fixtures.slurm.client import SlurmNode, allocates_whole_nodes
from fixtures.workloads.scheduler import isolation
from tests.selftests.support import whys

pytestmark = pytest.mark.cpu


# --- isolation


def seen(*gpus: tuple[str, bool], given: str | None = None) -> dict[str, Any]:
    return {
        "given": given,
        "gpus": [
            {"path": path, "device": f"195:{path[-1]}", "in": open_, "said": "opened"}
            for path, open_ in gpus
        ],
    }


def test_a_job_holds_what_slurm_gave_it_where_that_opens():
    both = [("/dev/nvidia0", True), ("/dev/nvidia1", True)]
    assert isolation.held_devices(seen(*both, given="1")) == ["195:1"]
    assert isolation.held_devices(seen(("/dev/nvidia0", False), both[1], given="1")) == ["195:1"]


def test_a_job_holds_what_opens_where_slurm_s_numbers_do_not():
    gpus = [("/dev/nvidia0", True), ("/dev/nvidia1", False)]
    assert isolation.held_devices(seen(*gpus, given="1")) == ["195:0"]
    assert isolation.held_devices(seen(*gpus)) == ["195:0"]
    assert isolation.held_devices(seen()) == []


def side(*held: str, uuids: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"job": "1", "held": list(held), "uuids": list(uuids)}


def test_gpus_in_common_are_counted_by_device_or_uuid():
    def shared(a: dict[str, Any], b: dict[str, Any]) -> Any:
        return getattr(isolation._shared(a, b), "value", None)

    assert shared(side("195:0"), side("195:1")) == 0
    assert shared(side("195:0"), side("195:0")) == 1
    one_board = side("195:0", uuids=("GPU-a",)), side("195:1", uuids=("GPU-a",))
    assert shared(*one_board) == 1
    # A job that sees the UUIDs of GPUs that it does not hold proves nothing by them.
    unfenced = side("195:0", uuids=("GPU-a", "GPU-b")), side("195:1", uuids=("GPU-a", "GPU-b"))
    assert shared(*unfenced) == 0
    assert shared(side(), side("195:1")) is None


def test_what_opens_beside_one_s_own_is_let_in_and_a_way_unseen_is_no_proof():
    kept = seen(("/dev/nvidia0", True), ("/dev/nvidia1", False))
    open_ = seen(("/dev/nvidia0", True), ("/dev/nvidia1", True))
    neighbour = side("195:1")

    def let_in(**ways: Any) -> Any:
        return getattr(isolation._let_in(ways, ["195:0"], neighbour), "value", None)

    assert let_in(step=kept, batch=kept) == 0
    assert let_in(step=kept, batch=open_) == 1
    assert let_in(step=kept, attached="srun failed") is None
    assert let_in(step=open_, attached="srun failed") == 1
    assert let_in(step=kept, batch=seen()) is None
    # An image without GPU devices: the job's own are not to count as foreign.
    assert let_in(step=seen(), batch=open_) is None


# --- the login side


def slurm_node(state: str, reason: str = "") -> SlurmNode:
    return SlurmNode(
        name="n0", state=state, reason=reason, address="n0", cpus=8, gpus=8, partitions=("main",)
    )


@pytest.mark.parametrize(
    "state", ["IDLE", "MIXED", "ALLOCATED+COMPLETING", "IDLE+PLANNED", "IDLE+MAINTENANCE+RESERVED"]
)
def test_a_node_that_takes_jobs_is_available(state):
    found, gres = slurm_survey.node_measurements(slurm_node(state))
    assert (found.value, found.notes, gres.value) == ("available", [], 8)


@pytest.mark.parametrize(
    "state",
    ["DOWN", "IDLE+DRAIN", "DOWN+NOT_RESPONDING", "IDLE*", "UNKNOWN", "FAIL", "?", "FUTURE",
     "ALLOCATED+DRAIN", "INVAL", ""],
)  # fmt: skip
def test_every_other_state_is_none_and_is_said_with_its_reason(state):
    found, _ = slurm_survey.node_measurements(slurm_node(state, "bad DIMM"))
    assert found.value == state.lower()
    assert "bad DIMM" in found.notes[0]


def test_controllers_that_do_not_answer_are_counted_and_none_at_all_is_not_measured():
    up, down = "Slurmctld(primary) at a is UP\n", "Slurmctld(backup) at b is DOWN\n"
    assert slurm_survey.controllers(up).value == 0
    assert slurm_survey.controllers(up + down).value == 1
    assert slurm_survey.controllers(up + down).notes == ["backup at b is DOWN"]
    assert isinstance(slurm_survey.controllers(""), Absence)


@pytest.mark.parametrize(
    ("shown", "whole"), [("EXCLUSIVE", True), ("NO", False), ("FORCE:4", False), ("", False)]
)
def test_only_an_exclusive_partition_gives_out_whole_nodes(shown, whole):
    assert allocates_whole_nodes({"OverSubscribe": shown}) is whole


# --- two jobs of a node


class Halves:
    """One of two jobs, whose process and steps see what a test says."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
        self.ranks = SimpleNamespace(
            rank=rank, node="n0", directory=folder,
            spec={"nonce": "a", "attempt": 1, "gpus_per_node": 1},
        )  # fmt: skip
        gpus = [(f"/dev/gpu{k}", k == rank) for k in range(2)]
        self.step = {
            **seen(*gpus, given=str(rank)), "job": str(rank), "visible": str(rank),
            "emulated": False,
        }  # fmt: skip
        monkeypatch.setattr(isolation.gpu_visibility, "observe", lambda: self.step)
        monkeypatch.setattr(isolation, "_observe_overridden", lambda: self.step)
        monkeypatch.setattr(isolation.job_steps, "observe_tasks", lambda *_: [self.step])
        monkeypatch.setattr(isolation.devices, "open_handles", lambda: ["a", "b"])
        monkeypatch.setattr(
            isolation.devices, "query_nvml", lambda _, handle: "GPU-a" if handle == "a" else None
        )
        write_json(folder / f"batch{rank}.json", self.step)

    def run(self, *metrics: str) -> Any:
        return isolation.run(self.ranks, list(metrics), patience_s=0)


def test_both_jobs_report_what_they_hold_and_open(tmp_path, monkeypatch):
    other = side("195:1", uuids=("GPU-b",))
    signed = {**other, "nonce": "a", "attempt": 1}
    for name in ("here1", "seen1"):
        write_json(tmp_path / f"{name}.json", signed)
    job = Halves(tmp_path, monkeypatch, 0)
    found = job.run("shared", "count", "visible", "let_in", "unknown")
    assert [(m.metric, m.value, m.notes) for m in found.measurements] == [
        ("shared", 0, []), ("count", 0, []), ("visible", 0, []), ("let_in", 0, []),
    ]  # fmt: skip
    assert found.facts["mine"] == {"job": "0", "held": ["195:0"], "uuids": ["GPU-a"]}
    assert (found.facts["asked"], set(found.facts["ways"])) == (
        1, {"step", "overridden", "batch", "attached"},
    )  # fmt: skip
    assert "emulated" not in found.facts
    job.step["emulated"] = True
    monkeypatch.setattr(isolation.job_steps, "observe_tasks", lambda *_: [])
    (tmp_path / "batch0.json").unlink()
    broken = job.run("let_in")
    assert broken.facts["emulated"] is True
    why = whys(broken, Kind.UNKNOWN)["let_in"]
    assert [text.partition(":")[0] for text in why.split("; ")] == ["batch", "attached"]
    assert "the batch script left no line" in broken.facts["ways"]["batch"]


def test_a_job_waits_for_the_other_of_this_attempt(tmp_path, monkeypatch):
    now = [0.0]

    def passes(seconds: float) -> None:
        now[0] += 10

    monkeypatch.setattr(isolation.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(isolation.time, "sleep", passes)
    write_json(tmp_path / "here1.json", {"nonce": "a", "attempt": 2})
    job = Halves(tmp_path, monkeypatch, 0)
    with pytest.raises(RuntimeError, match="no second job on n0 within 30 s"):
        isolation._exchange(job.ranks, "here", {}, isolation.PATIENCE_S)
    assert now[0] == 40


def test_a_process_with_all_gpus_in_its_variable_is_observed(monkeypatch):
    asked: list[str] = []
    answers: list[Any] = ['{"gpus": []}', "no json", OSError("no memory")]

    def run(*_: Any, env: dict[str, str], **__: Any) -> Any:
        asked.append(env["CUDA_VISIBLE_DEVICES"])
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(stdout=answer)

    monkeypatch.setattr(isolation.subprocess, "run", run)
    files = [Path("/dev/a"), Path("/dev/b")]
    monkeypatch.setattr(isolation.gpu_visibility, "gpu_files", lambda: (files, True))
    assert isolation._observe_overridden() == {"gpus": []}
    assert isinstance(isolation._observe_overridden(), str)
    files.clear()
    assert isolation._observe_overridden() == "no memory"
    assert asked == ["0,1", "0,1", "0"]


def test_gpus_too_many_or_too_few_are_counted_with_who_has_them():
    for count, value in ((2, 0), (1, 1), (4, 2)):
        row = isolation._count("count", 2, count, "job 7 holds")
        assert (row.metric, row.value) == ("count", value)
        assert row.notes == ([] if value == 0 else [row.notes[0]])
        assert not value or row.notes[0].startswith(f"job 7 holds {count} GPU")
    assert isolation._visible({"visible": "0,1,1,", "job": "7"})[0] == 2
    assert isolation._visible({"visible": None, "job": "7"})[0] == 0


def test_a_gpu_that_is_let_in_is_named_with_its_owner():
    open_ = seen(("/dev/nvidia0", True), ("/dev/nvidia1", True), ("/dev/nvidia2", True))
    neighbour = {**side("195:1"), "job": "9"}
    row = isolation._let_in({"step": open_}, ["195:0"], neighbour)
    assert row.value == 2
    assert [("of job 9" in n, "of none" in n) for n in row.notes] == [(True, False), (False, True)]
    both = isolation._shared({**side("195:0"), "job": "8"}, side("195:0", uuids=("GPU-a",)))
    assert both.notes == ["jobs 8 and 1 both hold 195:0"]
