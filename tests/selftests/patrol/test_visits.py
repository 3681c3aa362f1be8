"""A round of visits by a Slurm of our making: it gives way, ends what is late, and writes down."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.errors import ConfigError, RunError
from fixtures.patrol import queue, visits
from fixtures.patrol.share import Taken
from fixtures.patrol.visits import Patrol
from fixtures.records.files import append_line, read_lines
from tests.selftests import support
from tests.selftests.support import result_line

pytestmark = pytest.mark.cpu

START = 1000.0


@dataclass
class FakeSlurm:
    """What it answers at each look; the clock goes on by a second with each sleep of patrol."""

    idle: list[str] = field(default_factory=lambda: ["n0", "n1"])
    looks: list[dict[str, Any]] = field(default_factory=list)
    """For each look: states of jobs, and `waiting`, `preempted`, `away`; the last one stays."""
    refused: str = ""
    now: float = START
    step: float = 1.0
    slept: list[float] = field(default_factory=list)
    cancelled: list[list[str]] = field(default_factory=list)
    submitted: int = 0

    @property
    def look(self) -> dict[str, Any]:
        return self.looks[min(len(self.slept), len(self.looks)) - 1] if self.slept else {}

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += self.step

    def own_jobs(self) -> dict[str, str]:
        if self.look.get("away"):
            raise RunError("slurmctld is away")
        return {k: v for k, v in self.look.items() if k.isdigit()}

    def waiting_jobs(self) -> list[str]:
        return self.look.get("waiting", [])

    def preempted_jobs(self) -> set[str]:
        return set(self.look.get("preempted", ()))

    def cancel(self, jobs: Iterable[str]) -> None:
        self.cancelled.append(list(jobs))

    def submit(self, node: str, directory: Path, command: Any, options: Any) -> str:
        if node == self.refused:
            raise RunError(f"{node} is gone")
        directory.mkdir(parents=True, exist_ok=True)
        self.submitted += 1
        return str(self.submitted)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm()
    for name in ("own_jobs", "waiting_jobs", "preempted_jobs", "cancel", "submit"):
        monkeypatch.setattr(queue, name, getattr(fake, name))
    monkeypatch.setattr(queue, "refuse_hidden", lambda partition: None)
    monkeypatch.setattr(queue, "idle_nodes", lambda partition: (fake.idle, len(fake.idle)))
    clock = SimpleNamespace(time=lambda: fake.now, sleep=fake.sleep)
    monkeypatch.setattr(visits, "time", clock)
    return fake


def patrol_of(state: Path, said: list[str] | None = None, **more: Any) -> Patrol:
    given = {"share": 1.0, "options": queue.Options(), "command_of": lambda directory: ["true"],
             "print_line": [].append if said is None else said.append, **more}  # fmt: skip
    return Patrol(state=state, **given)


def outcomes(found: list[dict[str, Any]]) -> dict[str, str]:
    return {visit["node"]: visit["outcome"] for visit in found}


def measured(state: Path, node: str) -> None:
    """What a visit leaves that began at START."""
    job = state / "visits" / f"{START:.0f}-{node}" / "run" / "jobs" / "gemm"
    job.mkdir(parents=True)
    own = result_line(0)
    measured = [{"metric": "bf16", "unit": "TFLOPS", "samples": [1.0, 3.0]}]
    append_line(job / "rank0.jsonl", {**own, "device": {"uuid": "A"}, "measurements": measured})


# --- a round


def test_a_visit_that_measured_is_done_and_one_that_did_not_has_failed(slurm, tmp_path):
    said: list[str] = []
    slurm.looks = [{"1": "RUNNING", "2": "RUNNING"}, {"2": "RUNNING"}, {}]
    patrol = patrol_of(tmp_path, said)

    def command_of(directory: Path) -> list[str]:
        if directory.name.endswith("n0"):
            measured(tmp_path, "n0")
        return ["true"]

    patrol.command_of = command_of
    found = patrol.round()
    assert outcomes(found) == {"n0": visits.DONE, "n1": visits.FAILED}
    assert [line["values"] for line in found] == [
        [{"uuid": "A", "gpu": 0, "metric": "gemm.bf16", "value": 2.0}], []
    ]  # fmt: skip
    assert "reason" not in found[0]
    assert found[1]["reason"].startswith("no output: ")
    assert [(line["start"], line["end"]) for line in found] == [(START, 1002.0), (START, 1003.0)]
    assert set(slurm.slept) == {0.5}
    log = list(read_lines(patrol.log))
    assert [line["outcome"] for line in log] == ["begun", "begun", "done", "failed"]
    assert log[2:] == found
    assert said[0] == "n0: done"
    assert said[1].startswith("n1: failed no output")


def test_visits_give_way_as_soon_as_another_job_waits(slurm, tmp_path):
    running = {"1": "RUNNING", "2": "RUNNING"}
    slurm.looks = [running, {**running, "waiting": ["7"]}, {**running, "waiting": ["7"]},
                   {"waiting": ["7"]}]  # fmt: skip
    measured(tmp_path, "n0")
    found = patrol_of(tmp_path).round()
    assert outcomes(found) == dict.fromkeys(("n0", "n1"), visits.GAVE_WAY)
    assert [line["values"] for line in found] == [[], []], "a part of a visit is not measured"
    assert not [line for line in found if "reason" in line]
    assert slurm.cancelled == [[], [], ["1", "2"], ["1", "2"], [], []]


def test_a_stop_ends_visits_and_preempted_ones_gave_way(slurm, tmp_path):
    running = {"1": "RUNNING", "2": "RUNNING"}
    slurm.looks = [running, {"2": "RUNNING", "preempted": ["1", "9"]}, {"2": "RUNNING"}, {}]
    sleep = slurm.sleep

    def stop_at_the_third(seconds: float) -> None:
        sleep(seconds)
        if len(slurm.slept) == 3:
            (tmp_path / "stop").touch()

    visits.time.sleep = stop_at_the_third
    found = patrol_of(tmp_path).round()
    assert outcomes(found) == {"n0": visits.GAVE_WAY, "n1": visits.STOPPED}


def test_a_job_that_has_not_started_after_fifteen_seconds_is_ended(slurm, tmp_path):
    slurm.step = 5.0
    pending = {"1": "PENDING", "2": "RUNNING"}
    slurm.looks = [pending, {**pending, "2": "PENDING"}, pending, pending, {"2": "RUNNING"}, {}]
    found = patrol_of(tmp_path).round()
    assert outcomes(found) == {"n0": visits.NOT_STARTED, "n1": visits.FAILED}
    assert slurm.cancelled[1:5] == [[], [], [], ["1"]], "15 s are not more than 15 s"


def test_a_slurm_that_is_away_is_waited_for_three_minutes(slurm, tmp_path):
    slurm.step = 60.0
    slurm.looks = [{"1": "RUNNING", "2": "RUNNING"}, {"away": True}]
    found = patrol_of(tmp_path).round()
    assert outcomes(found) == {"n0": visits.FAILED, "n1": visits.FAILED}
    assert [line["end"] - START for line in found] == [180.0, 180.0]


def test_a_node_that_slurm_refuses_is_named_and_the_others_are_visited(slurm, tmp_path):
    said: list[str] = []
    slurm.refused, slurm.looks = "n0", [{}]
    assert outcomes(patrol_of(tmp_path, said).round()) == {"n1": visits.FAILED}
    assert said[0] == "n0: n0 is gone"


def test_no_visit_begins_while_jobs_wait_slurm_is_away_or_patrol_is_stopped(
    slurm, tmp_path, monkeypatch
):
    said: list[str] = []
    patrol = patrol_of(tmp_path, said)
    monkeypatch.setattr(queue, "waiting_jobs", lambda: ["7"])
    assert patrol.round() == []

    def away(partition: str | None) -> None:
        raise RunError("Unable to contact slurm controller")

    monkeypatch.setattr(queue, "refuse_hidden", away)
    assert patrol.round() == []
    assert visits.stop(tmp_path) == 0
    assert patrol.stopped is True
    assert patrol.round() == []
    visits.start(tmp_path)
    assert patrol.stopped is False
    lock = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert patrol.round() == []
    os.close(lock)
    assert [line.split(":")[0] for line in said] == [
        "1 waiting job", "no visit", "patrol is stopped", "another round is running"
    ]  # fmt: skip
    assert slurm.submitted == 0
    with pytest.raises(ConfigError, match="not the state directory of a patrol"):
        visits.start(tmp_path / "nowhere")


def test_a_stop_ends_the_visits_of_a_round_and_says_how_many(slurm, tmp_path, monkeypatch):
    monkeypatch.setattr(queue, "own_jobs", lambda: {"1": "RUNNING", "2": "PENDING"})
    assert visits.stop(tmp_path / "state") == 2
    assert slurm.cancelled == [["1", "2"]]


# --- what is written down


def test_a_visit_whose_round_was_killed_still_counts(tmp_path):
    patrol = patrol_of(tmp_path)
    for line in (
        {"node": "a", "start": 100.0, "outcome": "begun"},
        {"node": "b", "start": 100.0, "outcome": "begun"},
        {"node": "b", "start": 100.0, "end": 110.0, "outcome": "done"},
    ):
        append_line(patrol.log, line)
    assert patrol.taken() == [
        Taken(node="a", start=100.0, end=160.0), Taken(node="b", start=100.0, end=110.0)
    ]  # fmt: skip
    assert patrol.log == tmp_path / "visits.jsonl"


def test_a_visit_leaves_the_mean_of_every_gpu_and_metric(tmp_path):
    job = tmp_path / "run" / "jobs" / "gemm-memory"
    job.mkdir(parents=True)
    for k in range(2):
        measured = [
            {"metric": "bf16_per_ghz", "unit": "TFLOPS", "samples": [400.0, 500.0 + k]},
            {"metric": "note", "unit": "", "value": 1},
        ]
        own = {"device": {"uuid": f"GPU-{k}"}, "measurements": measured}
        append_line(job / f"rank{k}.jsonl", support.line("started", k))
        append_line(job / f"rank{k}.jsonl", {**result_line(k), **own})
    of_host = {**result_line(2), "device": {}, "workload": "memory"}
    samples = [{"metric": "triad", "unit": "GB/s", "samples": [1.0]}]
    append_line(job / "rank2.jsonl", {**of_host, "measurements": []})
    append_line(job / "rank2.jsonl", {**of_host, "measurements": samples})
    assert visits.values_of(tmp_path / "run") == [
        {"uuid": "GPU-0", "gpu": 0, "metric": "gemm.bf16_per_ghz", "value": 450.0},
        {"uuid": "GPU-1", "gpu": 1, "metric": "gemm.bf16_per_ghz", "value": 450.5},
        {"uuid": "None", "gpu": 2, "metric": "memory.triad", "value": 1.0},
    ]
    append_line(job / "rank1.jsonl", {**support.line("note", 1), "time": "soon"})
    assert visits.values_of(tmp_path / "run") == [], "a malformed line: the visit has failed"


@pytest.mark.parametrize(
    ("after", "life", "found"),
    [
        ({"nvlink_errors": 7, "pcie_replays": 0, "ecc_new": 3}, {},
         {"nvlink_errors": 7, "pcie_replays": 0}),
        ({"nvlink_errors": 7}, {"nvlink_errors": {"counts": {"link 3": 4, "link 5": 3}}},
         {"nvlink_errors": 7, "nvlink_errors/link 3": 4, "nvlink_errors/link 5": 3}),
        ({"nvlink_errors": 7}, {"ecc_new": {"counts": {"bank 0": 4}}}, {"nvlink_errors": 7}),
        ({"nvlink_errors": 7}, {"nvlink_errors": {"counts": [4]}}, {"nvlink_errors": 7}),
        ({"nvlink_errors": 7}, {"nvlink_errors": 4}, {"nvlink_errors": 7}),
        ({"nvlink_errors": 7}, "torn", {"nvlink_errors": 7}),
        ({"nvlink_errors": -1, "pcie_replays": 2**53}, {}, {}),
        ({"nvlink_errors": 1.5, "pcie_replays": True}, {}, {}),
        ({"nvlink_errors": 2**53 - 1}, {}, {"nvlink_errors": 2**53 - 1}),
        ("torn", {"nvlink_errors": {"counts": {"link 3": 4}}}, {}),
    ],
)  # fmt: skip
def test_a_visit_leaves_what_the_counters_of_a_gpu_and_of_its_parts_stand_at(after, life, found):
    device = {"uuid": "GPU-1"}
    line = {**result_line(1), "device": device, "facts": {"after": after, "life": life}}
    values = [*visits._life_of(line)]
    assert {v["metric"].removeprefix(visits.LIFE): v["value"] for v in values} == found
    assert {(v["uuid"], v["gpu"]) for v in values} <= {("GPU-1", 1)}


def test_a_gpu_of_which_too_many_parts_are_told_has_none_of_them():
    for many in (visits.MOST_PARTS, visits.MOST_PARTS + 1):
        life = {"nvlink_errors": {"counts": dict.fromkeys(map(str, range(many)), 1)}}
        line = {**result_line(0), "facts": {"after": {"nvlink_errors": 1}, "life": life}}
        told = many if many == visits.MOST_PARTS else 0
        assert len([*visits._life_of(line)]) == 1 + told


def test_the_last_line_of_a_visit_s_output_says_why_it_failed(tmp_path):
    output = tmp_path / "output.txt"
    assert visits._last_line(output).startswith("no output: ")
    for text, line in (("a\n  b  \n\n", "b"), (" \n", "no output"), ("", "no output")):
        output.write_text(text)
        assert visits._last_line(output) == line


def test_a_visit_runs_products_and_memory_for_less_than_its_minute(tmp_path):
    for gpus, launched in ((1, False), (2, True), (8, True)):
        command = visits.visit_command(tmp_path, gpus, cpu=False)
        assert ("torch.distributed.run" in command) is launched
        assert (f"--nproc-per-node={gpus}" in command) is launched
    text = " ".join(visits.visit_command(tmp_path, 8, cpu=False))
    assert f"fixtures.workloads gemm memory under_load --out {tmp_path}/run" in text
    metrics = "bf16_per_ghz,triad,nvlink_errors,pcie_replays"
    assert f"--metrics {metrics} --param gemm.soak_s=5 --deadline 25" in text
    assert "--cpu" not in text
    on_cpu = visits.visit_command(tmp_path, 1, cpu=True)
    assert on_cpu[-1] == "--cpu"
    assert "fp32,triad" in on_cpu
