"""What a job that is made to fail asks for, and what is known of its end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.cluster.population import Population
from fixtures.entry import SmallJob
from fixtures.errors import RunError
from fixtures.jobs import destructive_stage as module
from fixtures.jobs.destructive_stage import DestructiveStage, SkippedJob
from fixtures.jobs.failure import Failure
from fixtures.jobs.fault_injector import CommandFaultInjector
from fixtures.jobs.submission import Submission
from fixtures.jobs.watcher import JobState
from fixtures.plan.jobs import Job
from fixtures.records.absence import JobKind
from fixtures.records.files import read_json

pytestmark = pytest.mark.cpu

NOW = 10_000.0


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: NOW, time=lambda: NOW))


def stage(nodes: int = 3, gpus: int = 8, model: str = "cpu", **more: Any) -> DestructiveStage:
    people = Population(
        origin="sandbox", nodes=tuple(f"n{k}" for k in range(nodes)), gpus_per_node=gpus,
        gpu_model=model, **more,
    )  # fmt: skip
    return DestructiveStage(people, CommandFaultInjector(None))


def job(way: str, *nodes: str) -> Job:
    nodes = nodes or ("n0", "n1")
    placement = "--".join((way, *nodes))
    return Job(
        name=f"training_failures-{placement}", stage="destructive", placement=placement, way=way,
        nodes=nodes, ranks_per_node=1, gpus_per_node=4, small=SmallJob(pair=True),
        workloads=(("training_failures", ("left",)),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("way", "model", "timeout_s", "limit_min", "requeue", "exclude"),
    [
        # Criteria allow 60 s; slurmctld looks at limits twice a minute; SlurmdTimeout is 300 s.
        ("kill", "cpu", 90, None, False, ()), ("kill", "H200 SXM", 90, None, False, ()),
        ("time_limit", "cpu", 240, 1, False, ()), ("node", "cpu", 240, None, True, ("n2",)),
        ("node", "H200 SXM", 1200, None, True, ("n2",)),
    ],
)  # fmt: skip
def test_a_victim_has_as_long_to_end_as_slurm_takes_for_its_fault(
    way, model, timeout_s, limit_min, requeue, exclude
):
    made = stage(model=model).victim_of(job(way))
    assert made.victim is not None
    assert (made.victim.fault_timeout_s, made.victim.time_limit_min) == (timeout_s, limit_min)
    assert (made.victim.requeue, made.victim.exclude) == (requeue, exclude)
    assert (made.name, made.way, made.params) == (f"victim-{way}--n0--n1", way, {"way": way})


@pytest.mark.parametrize(("model", "mib"), [("cpu", 4 * 1024), ("H200 SXM", 4 * 8192)])
def test_a_victim_asks_for_the_memory_that_torch_takes_in_each_rank(model, mib):
    made = stage(model=model).victim_of(job("kill"))
    assert made.small is not None
    assert (made.ranks_per_node, made.gpus_per_node, made.small.tasks) == (4, 4, 4)
    assert made.small.memory_mib == mib


@pytest.mark.parametrize(
    ("more", "lanes"),
    [({}, 2), ({"model": "H200 SXM"}, 1), ({"gpus": 1}, 1), ({"gpus": 2}, 2), ({"nodes": 1}, 1),
     ({"nodes": 2}, 2), ({"whole_nodes": True}, 1)],
)  # fmt: skip
def test_two_victims_share_nodes_that_have_room_for_them(more, lanes):
    (first,) = stage(**more).rounds([job("kill"), job("exit")])
    assert len(first) == lanes


def test_the_time_limit_begins_first_and_the_lost_node_comes_last():
    rounds = stage(gpus=1).rounds([job("node"), job("kill"), job("time_limit")])
    names = [[next(lane).way for lane in lanes] for lanes in rounds]
    assert names == [["time_limit"], ["node"]]
    both = stage(nodes=3).rounds([job("kill", "n0", "n1"), job("kill", "n2", "n0")])
    assert [len(lanes) for lanes in both] == [2, 2]


def submitted(of: DestructiveStage, way: str, folder: Path, **marks: float) -> Submission:
    s = Submission(
        job=of.victim_of(job(way)), name="v", directory=folder, number=1, marks=dict(marks),
        parts={"7": JobState("RUNNING")}, culprit=(3, "n1"),
    )  # fmt: skip
    of.register(s)
    return s


def test_without_a_fault_the_inspection_is_left_out_with_the_reason(tmp_path):
    of = stage()
    found = of._inspection_job(job("kill"))
    assert isinstance(found, SkippedJob)
    assert found.failure.kind is JobKind.NOT_RUN
    assert "never injected" in found.failure.reason
    s = submitted(of, "kill", tmp_path)
    assert "never injected" in of._inspection_job(job("kill")).failure.reason
    s.failure = Failure(JobKind.NEVER_STARTED, "no node")
    found = of._inspection_job(job("kill"))
    assert (found.failure.kind, "too soon: no node" in found.failure.reason) == (
        JobKind.NEVER_STARTED, True,
    )  # fmt: skip
    of.register(Submission(job=job("kill"), name="x", directory=tmp_path, number=1))
    assert of._submissions[s.job.placement] is s  # only victims are remembered


def test_the_inspection_is_told_what_was_seen_and_asks_for_little(tmp_path):
    of = stage()
    s = submitted(of, "kill", tmp_path, fault=NOW - 5)
    found = of._inspection_job(job("kill"))
    assert isinstance(found, Job)
    assert found.small is not None
    assert (found.small.memory_mib, found.small.pair) == (512, True)  # it imports no torch
    assert found.params["victim"] == str(s.directory)
    assert read_json(tmp_path / "seen.json") == found.params["seen"]


def seen(of: DestructiveStage, s: Submission) -> dict[str, Any]:
    return of._observations(job(s.job.way), s)


def test_times_are_those_from_the_fault_until_slurm_had_each_node_back(tmp_path):
    of = stage()
    s = submitted(of, "kill", tmp_path, fault=NOW - 50, regained=NOW - 20)
    s.parts["7"] = JobState("COMPLETING", nodes="n1", queried_at=NOW - 10)
    found = seen(of, s)
    assert (found["end_s"], found["lost_s"]) == ({"n0": 40.0}, 30.0)
    assert "n1 not given back" in found["notes"][-1]
    s.parts["7"] = JobState("COMPLETED", queried_at=NOW - 4)
    found = seen(of, s)
    assert (found["end_s"], found["notes"]) == ({"n0": 40.0, "n1": 46.0}, [])
    s.freed = {"n0": NOW - 60, "elsewhere": NOW}
    assert seen(of, s)["end_s"] == {"n0": 0.0, "n1": 46.0}


@pytest.mark.parametrize(
    ("since", "end_s", "lost_s"), [(89.0, {}, 90.0), (90.0, {"n0": 90.0, "n1": 90.0}, 90.0)]
)
def test_a_node_that_is_not_back_is_beyond_every_limit_after_the_time(
    tmp_path, since, end_s, lost_s
):
    of = stage()
    s = submitted(of, "kill", tmp_path, fault=NOW - since)
    s.parts["7"] = JobState("COMPLETING")  # without the nodes that it holds
    found = seen(of, s)
    assert (found["end_s"], found["lost_s"]) == (end_s, lost_s)


@pytest.mark.parametrize(
    ("way", "rank", "node"),
    [("kill", 3, "n1"), ("cancel", None, None), ("storage_full", None, "n1")],
)
def test_who_was_made_to_fail_is_known_as_far_as_the_way_has_one(tmp_path, way, rank, node):
    of = stage()
    s = submitted(of, way, tmp_path, fault=NOW - 1)
    truth = seen(of, s)["truth"]
    assert (truth["rank"], truth["node"]) == (rank, node)
    assert truth["kind"] == str(module.EXPECTED_KINDS[way])
    s.culprit = None
    assert seen(of, s)["truth"]["node"] is None


def test_a_node_that_never_came_back_and_a_failure_are_told(tmp_path):
    of = stage()
    s = submitted(of, "node", tmp_path, fault=NOW - 1)
    of._notes[s.job.placement] = ["taken down"]
    assert seen(of, s)["failure"] is None
    assert seen(of, s)["notes"][:2] == [
        "taken down",
        "never restored: it ended without reporting a reason",
    ]
    s.failure = Failure(JobKind.RUN_TIMEOUT, "too long", None, "n1", 2)
    found = seen(of, s)
    assert found["notes"][-1] == "never restored: too long"
    assert (found["failure"]["kind"], found["failure"]["node"]) == ("timed out running", "n1")
    s.marks["regained"] = NOW
    count = len(seen(of, s)["notes"])
    assert len(seen(of, s)["notes"]) == count


def test_jobs_of_others_on_a_node_are_counted_and_unknown_ones_count(monkeypatch):
    monkeypatch.setattr(module, "slurm_query", lambda *_: "7\n8\n9\n10\n11\n")
    assert module._other_jobs_on("n1", "7") == "4 other jobs (8, 9, 10)"
    monkeypatch.setattr(module, "slurm_query", lambda *_: "7\n")
    assert module._other_jobs_on("n1", "7") == ""

    def refuses(*_: str) -> str:
        raise RunError("no answer")

    monkeypatch.setattr(module, "slurm_query", refuses)
    assert "could not be listed (no answer)" in module._other_jobs_on("n1", "7")
