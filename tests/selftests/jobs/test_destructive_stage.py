"""The destructive stage: which jobs are made to fail in which order, and what is said of them."""

# Length: every step of the stage is tested with the same builders of jobs and victims.

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from fixtures.cluster.population import Population
from fixtures.errors import RunError
from fixtures.jobs import destructive_stage
from fixtures.jobs.destructive_stage import DestructiveStage, SkippedJob
from fixtures.jobs.failure import Failure
from fixtures.jobs.fault_injector import CommandFaultInjector
from fixtures.jobs.submission import Submission
from fixtures.jobs.watcher import JobState
from fixtures.plan.items import planned_list
from fixtures.plan.jobs import Job, jobs_for
from fixtures.records.absence import JobKind
from fixtures.thresholds import loader
from fixtures.workloads.runtime.watchdog import flight_summary
from tests.selftests import planted
from tests.selftests.support import SHIPPED
from training import checkpoint_integrity
from training import failures as remains

pytestmark = pytest.mark.cpu

LIMITS = loader.load(SHIPPED)


def people(nodes: int = 2, gpus: int = 2, model: str = "cpu", **more: Any) -> Population:
    more = {"origin": "sandbox", "ordered": True, **more}
    names = tuple(f"worker{k}" for k in range(nodes))
    return Population(nodes=names, gpus_per_node=gpus, gpu_model=model, **more)


def jobs(found: Population) -> list[Job]:
    items = planned_list(LIMITS, found, destructive=True)
    chosen = [i for i in items if LIMITS.criteria[i.criterion].tier == "destructive"]
    return jobs_for(chosen, LIMITS, found)


def victim(way: str, found: Population | None = None, hands: Any = None) -> tuple[Any, Submission]:
    """A victim on its way, and who looks after it."""
    found = found or people()
    destruction = DestructiveStage(found, hands or CommandFaultInjector(None))
    job = next(j for j in jobs(found) if j.way == way)
    s = Submission(
        job=destruction.victim_of(job), name=f"victim-{way}", directory=Path("/nowhere"), number=1,
        parts={"7": JobState("RUNNING")},
    )  # fmt: skip
    destruction.register(s)
    return (destruction, job), s


def fault(rank: int = 1, node: str = "worker1") -> dict[str, Any]:
    return {"event": "fault", "rank": rank, "node": node, "time": time.time()}


# --- what is planned


def test_without_leave_nothing_is_planned_that_destroys():
    for tier in ("probe", "standard", "burnin"):
        items = planned_list(LIMITS, people(), tier=tier)
        assert not [i for i in items if i.criterion.startswith("failures.")]
    assert not [
        i for i in planned_list(LIMITS, people(), tier="probe", destructive=True)
        if i.criterion.startswith("failures.")
    ]  # fmt: skip


def test_every_way_to_fail_is_planned_once_a_pair_and_a_node_is_lost_once():
    made = jobs(people(nodes=4, gpus=2))
    ways: dict[str, int] = {}
    for job in made:
        assert job.stage == "destructive"
        assert job.small is not None
        ways[job.way] = ways.get(job.way, 0) + 1
    assert ways.pop("node") == 1
    assert set(ways) == set(destructive_stage.EXPECTED_KINDS) - {"node", "gpu_memory"}
    assert set(ways.values()) == {2}


def test_on_one_gpu_nothing_can_hang_on_another_and_without_slurm_nothing_is_done():
    one = {j.way for j in jobs(people(nodes=1, gpus=1, origin="cluster", model="H200 SXM"))}
    assert one == {"exit", "raise", "kill", "segfault", "host_memory", "gpu_memory", "cancel",
                   "time_limit"}  # fmt: skip
    assert not jobs(people(nodes=1, gpus=2, origin="local"))


@pytest.mark.parametrize(
    ("nodes", "gpus", "each"), [(2, 2, 1), (2, 8, 4), (2, 16, 4), (2, 1, 1), (1, 1, 1), (1, 8, 2)]
)
def test_a_victim_leaves_room_for_others(nodes, gpus, each):
    found = people(nodes=nodes, gpus=gpus)
    (destruction, job), s = victim("kill", found)
    assert (s.job.ranks_per_node, s.job.gpus_per_node) == (each, each)
    assert destruction.victim_of(job).world_size == nodes * each


def test_only_the_victim_of_the_lost_node_may_be_started_again():
    destruction = DestructiveStage(people(nodes=4), CommandFaultInjector(None))
    for job in jobs(people(nodes=4)):
        about = destruction.victim_of(job).victim
        assert about is not None
        assert about.requeue == (job.way == "node")
        assert about.exclude == (("worker2", "worker3") if job.way == "node" else ())


def ran(lanes: list[Any]) -> list[list[str]]:
    """Each lane's victims, all lanes going on in turn."""
    found: list[list[str]] = [[] for _ in lanes]
    going = dict(enumerate(lanes))
    while going:
        for k, lane in list(going.items()):
            step = next(lane, None)
            if step is None:
                del going[k]
            elif isinstance(step, Job) and step.victim:
                found[k].append(step.way)
    return found


def test_two_victims_share_a_node_where_there_is_room_and_the_lost_node_comes_last():
    made = jobs(people(nodes=2))
    rounds = list(DestructiveStage(people(nodes=2), CommandFaultInjector(None)).rounds(made))
    first, last = ran(rounds[0]), ran(rounds[1])
    assert first[0][0] == "time_limit"
    assert all(first)
    assert sorted(way for lane in first for way in lane) == sorted(
        j.way for j in made if j.way != "node"
    )
    assert last == [["node"]]


@pytest.mark.parametrize("more", [{"model": "H200 SXM"}, {"whole_nodes": True}, {"gpus": 1}])
def test_elsewhere_they_come_one_after_the_other(more):
    found = people(**more)
    rounds = list(DestructiveStage(found, CommandFaultInjector(None)).rounds(jobs(found)))
    assert [len(lanes) for lanes in rounds] == [1, 1]


def test_no_node_is_in_two_lanes_of_different_pairs():
    """With three nodes the last one is paired with the first."""
    found = people(nodes=3, gpus=1)
    rounds = list(DestructiveStage(found, CommandFaultInjector(None)).rounds(jobs(found)))
    assert [len(lanes) for lanes in rounds] == [1, 1, 1]


# --- what is seen of a victim


def test_what_failed_too_soon_has_shown_nothing():
    (destruction, job), s = victim("kill")
    s.failure = Failure(JobKind.IMPORT_FAILURE, "no torch")
    found = destruction._inspection_job(job)
    assert isinstance(found, SkippedJob)
    assert found.failure.kind is JobKind.IMPORT_FAILURE
    assert "too soon: no torch" in found.failure.reason


def test_a_node_is_timed_until_slurm_has_it_back(tmp_path):
    (destruction, job), s = victim("kill")
    s.directory = tmp_path
    s.receive([fault()])
    s.marks["fault"] = 100.0
    s.parts["7"] = JobState("COMPLETING", nodes="worker1", queried_at=103.0)
    destruction.observe(s)
    s.parts["7"] = JobState("FAILED", nodes="worker[0-1]", queried_at=140.0)
    destruction.observe(s)
    s.failure = Failure(JobKind.RANK_DIED, "killed", "training_victim", "worker1", 1)
    after = destruction._inspection_job(job)
    assert isinstance(after, Job)
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen == after.params["seen"]
    assert seen["end_s"] == {"worker0": 3.0, "worker1": 40.0}
    assert seen["truth"] == {"kind": "rank died", "node": "worker1", "rank": 1}
    assert seen["failure"]["rank"] == 1


def completing(way: str, seconds: float, folder: Path) -> tuple[Submission, dict[str, Any]]:
    """A victim that Slurm has not cleared off worker1 so long after its fault, and what is seen."""
    (destruction, job), s = victim(way)
    s.directory = folder
    s.receive([fault()])
    s.marks["fault"] = time.monotonic() - seconds
    s.parts["7"] = JobState("COMPLETING", nodes="worker1")
    destruction.observe(s)
    return s, destruction._inspection_job(job).params["seen"]


def test_a_node_that_never_comes_back_has_taken_all_of_the_time(tmp_path):
    _, seen = completing("kill", 95, tmp_path)
    assert seen["end_s"]["worker1"] >= 95
    assert seen["notes"] == ["worker1 not given back by the end of the wait"]


def test_a_node_that_was_not_waited_for_long_enough_has_no_time(tmp_path):
    """Seen in a drill: 76 s without the node, which passed as 76 s until it was back."""
    s, seen = completing("time_limit", 76, tmp_path)
    assert "worker1" not in seen["end_s"]
    assert s.nodes_awaited_until(20) >= s.marks["fault"] + destructive_stage.TIME_LIMIT_TIMEOUT_S


def test_what_is_not_back_within_the_patience_is_beyond_every_limit():
    limits = loader.load(SHIPPED)
    ends = {k: c for k, c in limits.criteria.items() if c.measure == "training_failures.end"}
    assert len(ends) >= 9
    for key, criterion in ends.items():
        slow = criterion.at.get("way") == "time_limit"
        timeout_s = (
            destructive_stage.TIME_LIMIT_TIMEOUT_S if slow else destructive_stage.FAULT_TIMEOUT_S
        )
        bounds = [row.fail_above.number for row in criterion.limits if row.fail_above]
        assert bounds
        assert max(bounds) < timeout_s, key


def test_a_training_that_never_went_on_has_lost_all_of_the_time(tmp_path, monkeypatch):
    monkeypatch.setattr(destructive_stage, "slurm_query", lambda *command: None)
    (destruction, job), s = victim("node")
    s.directory = tmp_path
    s.receive([fault(0)])
    destruction.observe(s)
    s.failure = Failure(JobKind.RANK_DIED, "no checkpoint")
    seen = destruction._inspection_job(job).params["seen"]
    assert seen["lost_s"] >= s.job.victim.fault_timeout_s
    assert "never restored: no checkpoint" in seen["notes"]


def test_without_a_command_of_the_operator_a_requeue_stands_in_and_says_so(tmp_path, monkeypatch):
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(destructive_stage, "slurm_query", lambda *command: asked.append(command))
    (destruction, job), s = victim("node")
    s.directory = tmp_path
    s.receive([fault(0)])
    destruction.observe(s)
    destruction.observe(s)
    assert asked == [("scontrol", "requeue", "7")]
    s.receive([{"event": "regained", "rank": 0, "node": "worker0", "time": time.time()}])
    seen = destruction._inspection_job(job).params["seen"]
    assert seen["notes"] == ["stand-in: `scontrol requeue` of our own job; no node was lost"]
    assert seen["lost_s"] is not None


class Counting(CommandFaultInjector):
    """Counts the nodes that it was told to take away."""

    def __init__(self) -> None:
        super().__init__("true {node}")
        self.lost: list[str] = []

    def take_down(self, node: str) -> None:
        self.lost.append(node)


@pytest.mark.parametrize(("others", "lost"), [("", ["worker1"]), ("1 other jobs (9)", [])])
def test_a_node_with_jobs_of_others_is_never_taken_away(others, lost, tmp_path, monkeypatch):
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(destructive_stage, "slurm_query", lambda *command: asked.append(command))
    monkeypatch.setattr(destructive_stage, "_other_jobs_on", lambda node, victim: others)
    hands = Counting()
    (destruction, job), s = victim("node", hands=hands)
    s.directory = tmp_path
    s.receive([fault(0)])
    destruction.observe(s)
    assert hands.lost == lost
    assert bool(asked) == bool(others)
    assert (others in " ".join(destruction._inspection_job(job).params["seen"]["notes"])) or lost


def test_what_could_not_be_done_to_a_victim_is_no_fault_and_said():
    (_, _), s = victim("storage_full")
    destruction = DestructiveStage(people(), CommandFaultInjector(None))
    s.receive([fault()])
    destruction.observe(s)
    assert "fault" not in s.marks
    assert "only root" in s.injection_error


@pytest.mark.parametrize("command", ["false {node}", "/no/such/command {node}"])
def test_a_command_of_the_operator_that_fails_is_one_clear_line(command):
    with pytest.raises(RunError, match=r"--node-loss-command `.* worker1`"):
        CommandFaultInjector(command).take_down("worker1")


# --- what the next job finds


def seen(**more: Any) -> dict[str, Any]:
    truth = {"kind": "rank hung", "node": "worker1", "rank": 3}
    said = {**truth, "reason": "rank 3 hung"}
    return {"truth": truth, "failure": {**said, **more.pop("said", {})}, **more}


def named(place: str, **said: Any) -> Any:
    ranks: Any = type("Ranks", (), {"node": place})()
    return remains._diagnosis(ranks, seen(said=said), {"way": "collective"})


def test_what_is_said_must_be_right_in_kind_node_and_rank():
    assert named("worker1").value == "named"
    for wrong in ({"kind": "storage"}, {"rank": 2}, {"node": "worker0"}, {"node": None}):
        found = named("worker1", **wrong)
        assert found.value == "wrong", wrong
        assert "expected" in found.notes[0]


def test_a_node_that_was_accused_for_another_is_wrong_too():
    assert named("worker0").value == "named"
    assert named("worker0", node="worker0").value == "wrong"
    assert "named this node" in named("worker0", node="worker0").notes[0]


def test_a_process_is_known_by_the_job_in_its_environment(tmp_path):
    import os
    import subprocess
    import sys

    ready = tmp_path / "ready"
    program = f"open({str(ready)!r}, 'w').close(); input()"
    env = {**os.environ, "SLURM_JOB_ID": "424242"}
    with subprocess.Popen([sys.executable, "-c", program], env=env, stdin=subprocess.PIPE) as child:
        while not ready.exists():
            assert child.poll() is None
        found = remains.job_processes("424242")
        assert len(found) == 1
        assert f"process {child.pid} " in found[0]
        assert remains.job_processes("42424") == []
        child.communicate(b"\n")
    assert remains.job_processes("424242") == []


def test_a_lock_that_is_held_is_seen(tmp_path):
    import fcntl

    path = tmp_path / "lock"
    assert not remains._is_locked(path)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert remains._is_locked(path)
    assert not remains._is_locked(path)


def test_files_in_shared_memory_count_where_nobody_uses_them(monkeypatch):
    monkeypatch.setattr(remains, "shared_memory", lambda: ["old", "used", "new"])
    monkeypatch.setattr(remains, "_open_files", lambda: {"/dev/shm/used"})
    assert remains._leftover_files(["old"]) == ["/dev/shm/new is there"]


def test_a_gpu_that_cannot_be_seen_is_not_taken_for_free(monkeypatch):
    monkeypatch.setattr(remains.devices, "open_handles", lambda: ["a"])
    monkeypatch.setattr(remains, "gpu_memory", lambda handle: ("GPU-a", 5000))
    held, unseen = remains._leftover_gpu_memory({"GPU-a": 500, "GPU-b": 500})
    assert held == ["GPU-a has 5000 MiB in use, 500 before"]
    assert unseen == ["GPU-b, a GPU of the victim, is not accessible from this job"]
    assert remains._leftover_gpu_memory({"GPU-a": 4990}) == ([], [])


def checkpoint(folder: Path, step: int) -> None:
    path = folder / "checkpoints" / f"step-{step:06}"
    path.mkdir(parents=True)
    (path / "a").write_bytes(b"x" * step)
    files = {"a": [step, checkpoint_integrity.sha256_of(path / "a")]}
    (path / checkpoint_integrity.MANIFEST).write_text(json.dumps({"step": step, "files": files}))


def test_the_last_checkpoint_must_be_there_and_the_one_that_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(remains, "VISIBLE_S", 0.0)
    lines = [{"event": "saved", "step": n} for n in (5, 10)]
    assert remains._checkpoint_state(tmp_path, [], {"way": "x"}).value is None
    checkpoint(tmp_path, 5)
    assert remains._checkpoint_state(tmp_path, lines, {"way": "x"}).value == "lost"
    checkpoint(tmp_path, 10)
    assert remains._checkpoint_state(tmp_path, lines, {"way": "x"}).value == "intact"
    (tmp_path / "checkpoints" / "step-000010" / "a").write_bytes(b"x" * 9)
    assert remains._checkpoint_state(tmp_path, lines, {"way": "x"}).value == "lost"


# --- the flight recorder


def test_the_flight_recorder_counts_what_was_begun_in_every_group():
    def entry(group: str, number: int, state: str, created: int, **more: Any) -> dict[str, Any]:
        return {
            "process_group": [group, ""], "collective_seq_id": number, "state": state,
            "time_created_ns": created, "profiling_name": f"nccl:all_reduce {number}", **more,
        }  # fmt: skip

    found = flight_summary(
        {
            "entries": [
                entry("0", 7, "completed", 1), entry("1", 3, "completed", 2),
                entry("0", 8, "scheduled", 3), entry("0", 99, "scheduled", 4, is_p2p=True),
            ]
        }
    )  # fmt: skip
    assert found == {"begun": 11, "ended": 10, "last": "nccl:all_reduce 8", "state": "scheduled"}
    assert flight_summary({"entries": []}) == {}


# --- the table of faults


def test_every_criterion_that_is_judged_has_a_fault():
    from tests.tools import drills

    where = drills.fault_locations()
    judged = {k for k, c in LIMITS.criteria.items() if not planted.never_judged(c)}
    by_order = {f"host.scratch_{what}" for what in ("size", "write", "read")}
    by_order |= {"tenant.scratch", "tenant.shared_memory"}
    assert set(where) == judged | by_order
    unjudged = set(LIMITS.criteria) - judged
    assert {key for key in unjudged if not key.startswith("infiniband.")} == by_order | {
        "gemm.bf16_best", "gemm.fp8_best",
    }  # fmt: skip
    congested = {key.rpartition(".")[0] for key in unjudged if key.startswith("infiniband.")}
    assert congested == {"infiniband", "infiniband.congestion", "infiniband.efa_congestion"}


def in_records() -> list[str]:
    from tests.tools import drills

    return [key for key, where in drills.fault_locations().items() if where == planted.WHERE]


@pytest.mark.parametrize("key", in_records())
def test_a_fault_planted_in_a_record_is_found(key):
    found = planted.plant(key)
    assert found.right, (found.culprit, found.named, found.verdict.line)
