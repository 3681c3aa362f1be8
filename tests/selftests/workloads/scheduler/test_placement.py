"""Whether tasks run where the job was placed: pure functions, no Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.records.absence import Kind
from fixtures.records.files import write_json
from fixtures.workloads.scheduler import placement
from tests.selftests.rank_job import rank_of

pytestmark = pytest.mark.cpu


def task(k: int, node: str, tasks: int = 1, count: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "SLURM_PROCID": str(k), "SLURM_NODEID": str(k // tasks), "SLURM_LOCALID": str(k % tasks),
        "SLURM_NTASKS": str(count), "node": node, "host": f"{node}.example", **more,
    }  # fmt: skip


def test_tasks_where_they_belong_are_not_misplaced():
    seen = [task(k, f"n{k // 2}", 2, 4) for k in range(4)]
    assert placement.misplaced(seen, ["n0", "n1"], 2) == []


@pytest.mark.parametrize(
    ("change", "node", "says"),
    [
        ({"node": "n0", "host": "n0.example"}, "n1", "it is on n0, not on n1"),
        ({"SLURM_PROCID": "5"}, "n1", "SLURM_PROCID is 5, not 1"),
        ({"SLURM_LOCALID": "1"}, "n1", "SLURM_LOCALID is 1, not 0"),
        ({"SLURM_NTASKS": None}, "n1", "SLURM_NTASKS is None, not 2"),
        ({"host": "n0.example"}, "n0", "the same host"),
    ],
)
def test_a_task_that_is_misplaced_names_its_node(change, node, says):
    seen = [task(0, "n0"), task(1, "n1") | change]
    ((blamed, text),) = placement.misplaced(seen, ["n0", "n1"], 1)
    assert blamed == node
    assert says in text


@pytest.mark.parametrize("count", [0, 1, 3])
def test_too_few_and_too_many_tasks_are_misplaced(count):
    seen = [task(k, "n0", 2) for k in range(count)]
    assert placement.misplaced(seen, ["n0"], 2)


def test_a_node_that_is_two_hosts_is_named():
    seen = [task(0, "n0", 2), task(1, "n0", 2) | {"host": "other"}]
    ((node, text),) = placement.misplaced(seen, ["n0"], 2)
    assert node == "n0"
    assert "n0 is n0.example and other" in text


class Job:
    """A rank of a job of two nodes, whose steps see what a test says."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, rank: int = 0) -> None:
        self.node = f"n{rank}"
        self.ranks = rank_of(folder, rank, ["n1", "n0"], node=self.node, gpus_per_node=4)
        self.folder, self.emulated = folder, False
        self.steps: dict[str, Any] = {}
        self.asked: list[tuple[str, ...]] = []
        for k in range(2):
            self.note(f"seen{k}", **task(k, f"n{k}"))
        (folder / "batch0.json").write_text('{"node": "n0"}')
        monkeypatch.setattr(placement.gpu_visibility, "observe", self.observe)
        monkeypatch.setattr(placement.job_steps, "observe_tasks", self.step)
        monkeypatch.setattr(placement.job_steps, "query", lambda *_: "n0\nn1\n")

    def note(self, name: str, **data: Any) -> None:
        write_json(self.folder / f"{name}.json", {**data, "nonce": "a", "attempt": 1})

    def observe(self) -> dict[str, Any]:
        return {**task(self.ranks.rank, self.node), "emulated": self.emulated}

    def step(self, *options: str) -> list[dict[str, Any]]:
        self.asked.append(options)
        nodes = options[-1].removeprefix("--nodelist=").split(",")
        tasks = int(options[2].removeprefix("--ntasks-per-node="))
        name = f"{tasks} on {','.join(nodes)}"
        count = tasks * len(nodes)
        seen = [task(k, nodes[k // tasks], tasks, count) for k in range(count)]
        found = self.steps.get(name, seen)
        if isinstance(found, Exception):
            raise found
        return list(found)

    def tasks(self) -> Any:
        return placement.run(self.ranks, ["tasks"])


def test_tasks_of_every_step_where_they_belong_are_none_misplaced(tmp_path, monkeypatch):
    job = Job(tmp_path, monkeypatch)
    found = job.tasks()
    assert [(m.metric, m.value, m.notes) for m in found.measurements] == [("tasks", 0, [])]
    assert set(found.facts) == {"steps"}
    assert set(found.facts["steps"]) == {
        "attached 1 on 1", "attached 2 on 1", "attached 1 on each", "sbatch",
    }  # fmt: skip
    assert {o[1] for o in job.asked} == {"--ntasks=1", "--ntasks=2"}
    job.emulated = True
    assert job.tasks().facts["emulated"] is True
    assert placement.run(job.ranks, []).measurements == []


def test_misplaced_tasks_are_noted_with_their_step_on_their_own_node(tmp_path, monkeypatch):
    job = Job(tmp_path, monkeypatch)
    job.steps = {
        "1 on n1": placement.job_steps.StepError("srun is busy"),
        "1 on n0,n1": [task(0, "n0"), task(1, "n0")],
    }
    job.note("seen1", **task(0, "n1"))
    (tmp_path / "batch0.json").write_text('{"node": "n1"}')
    (row,) = job.tasks().measurements
    assert row.notes == ["sbatch: the script ran on n1, not on n0"]
    other = Job(tmp_path, monkeypatch, rank=1)
    (row,) = other.tasks().measurements
    assert [note.partition(": ")[0] for note in row.notes] == [
        "attached 1 on 1", "attached 1 on each", "srun in sbatch",
    ]  # fmt: skip
    assert "srun is busy" in row.notes[0]
    assert row.value == 3
    job = Job(tmp_path, monkeypatch)
    (tmp_path / "batch0.json").unlink()
    (row,) = job.tasks().measurements
    assert row.notes == ["sbatch: the script left no line of its own"]


def test_an_image_without_srun_misplaces_nothing_and_accuses_no_node(tmp_path, monkeypatch):
    job = Job(tmp_path, monkeypatch)
    job.steps = {"1 on n0,n1": placement.job_steps.NoClientError("srun is not on the PATH")}
    for rank in (0, 1):
        job = job if rank == 0 else Job(tmp_path, monkeypatch, rank=1)
        found = job.tasks()
        assert found.measurements == []
        (absence,) = found.absent
        assert (absence.metric, absence.kind) == ("tasks", Kind.UNKNOWN)
        assert absence.why == "srun is not on the PATH"


def test_a_note_of_another_attempt_is_waited_for(tmp_path, monkeypatch):
    job = Job(tmp_path, monkeypatch)
    now = [0.0]

    def passes(seconds: float) -> None:
        now[0] += 10

    monkeypatch.setattr(placement.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(placement.time, "sleep", passes)
    write_json(tmp_path / "wrong.json", {"nonce": "a", "attempt": 0, "wrong": {}})
    with pytest.raises(RuntimeError, match=r"wrong\.json was not written in 30 s"):
        placement._read_note(job.ranks, "wrong")
    assert now[0] == 40, "it waits for 30 s, to the end of the last pause"


def test_nodes_are_in_slurm_s_order_or_sorted_where_it_does_not_say(monkeypatch):
    for said, order in (("n2\nn1\n", ["n2", "n1"]), ("", ["n1", "n2"]), ("n2\n", ["n1", "n2"])):
        monkeypatch.setattr(placement.job_steps, "query", lambda *_, said=said: said)
        assert placement.in_slurm_order(["n2", "n1"]) == order


def gpus(*opened: str) -> list[dict[str, Any]]:
    names = ("gpu0", "gpu1")
    return [{"path": f"/dev/{n}", "device": n, "in": n in opened} for n in names]


def test_each_task_with_a_gpu_of_its_own_is_counted_right(tmp_path, monkeypatch):
    job = Job(tmp_path, monkeypatch, rank=1)
    job.ranks.ranks_per_node = 2
    seen: list[Any] = []
    asked: list[tuple[str, ...]] = []

    def observe(*options: str) -> Any:
        asked.append(options)
        if isinstance(seen[0], Exception):
            raise seen[0]
        return seen

    monkeypatch.setattr(placement.job_steps, "observe_tasks", observe)

    def own_gpu(*tasks: Any) -> Any:
        seen[:] = tasks
        found = placement.run(job.ranks, ["own_gpu"])
        (row,) = [*found.measurements, *found.absent]
        assert row.metric == "own_gpu"
        return row

    good = {"visible": "0", "gpus": gpus("gpu0")}, {"visible": "0", "gpus": gpus("gpu1")}
    assert (own_gpu(*good).value, own_gpu(*good).notes) == (0, [])
    assert asked[0][1:3] == ("--ntasks=2", "--nodelist=n1")
    for second, says in (
        ({"visible": "0", "gpus": gpus("gpu0")}, "tasks 0 and 1 both hold /dev/gpu0"),
        ({"visible": "0", "gpus": gpus("gpu0", "gpu1")}, "task 1 can open /dev/gpu0, /dev/gpu1"),
        ({"visible": "0", "gpus": gpus()}, "task 1 can open none"),
        ({"visible": "0,1", "gpus": gpus("gpu1")}, "task 1 has CUDA_VISIBLE_DEVICES=0,1"),
        ({"visible": None, "gpus": gpus("gpu1")}, "task 1 has CUDA_VISIBLE_DEVICES=None"),
    ):
        row = own_gpu(good[0], second)
        assert row.value == 1, says
        assert says in row.notes[0]
    for failed, says in (
        ((good[0],), "1 of 2 tasks answered"), ((placement.job_steps.StepError("busy"),), "busy"),
    ):  # fmt: skip
        row = own_gpu(*failed)
        assert (row.kind, row.why) == (Kind.UNKNOWN, says)


def test_a_job_without_gpus_of_slurm_s_shows_who_shares_them(tmp_path, monkeypatch):
    """No task can ask for one: it is measured what each of them has."""
    job = Job(tmp_path, monkeypatch)
    job.ranks.ranks_per_node = 2
    refused = "`srun --gpus-per-task=1` failed: srun: error: Invalid generic resource (gres)"

    def observe(*options: str) -> Any:
        if "--gpus-per-task=1" in options:
            raise placement.job_steps.StepError(refused)
        return [{"visible": None, "gpus": gpus("gpu0", "gpu1")}] * 2

    monkeypatch.setattr(placement.job_steps, "observe_tasks", observe)
    (row,) = placement.run(job.ranks, ["own_gpu"]).measurements
    assert row.notes[0] == refused
    assert "task 1 can open /dev/gpu0, /dev/gpu1; it asked for one GPU" in row.notes
    assert row.value == len(row.notes)


def test_other_ranks_of_a_node_only_say_what_they_see(tmp_path, monkeypatch):
    job = Job(tmp_path, monkeypatch)
    job.ranks.rank, job.ranks.local_rank = 1, 1
    assert placement.run(job.ranks, ["tasks", "own_gpu"]).measurements == []
    assert job.asked == []
