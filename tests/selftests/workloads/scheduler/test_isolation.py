"""What scheduler and isolation make of what they see: pure functions, no Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.cluster import slurm_survey
from fixtures.records.model import Measurement
from fixtures.slurm.client import SlurmNode, allocates_whole_nodes
from fixtures.workloads.devices import core_binding, numa
from fixtures.workloads.runtime.identity import Identity, first_node
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.scheduler import binding, isolation, job_steps, memory_limit, placement

pytestmark = pytest.mark.cpu


def task(k: int, node: str, tasks: int = 1, count: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "SLURM_PROCID": str(k), "SLURM_NODEID": str(k // tasks), "SLURM_LOCALID": str(k % tasks),
        "SLURM_NTASKS": str(count), "node": node, "host": f"{node}.example", **more,
    }  # fmt: skip


# --- placement


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
        return isolation._shared(a, b).value

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
        return isolation._let_in(ways, ["195:0"], neighbour).value

    assert let_in(step=kept, batch=kept) == 0
    assert let_in(step=kept, batch=open_) == 1
    assert let_in(step=kept, attached="srun failed") is None
    assert let_in(step=open_, attached="srun failed") == 1
    assert let_in(step=kept, batch=seen()) is None


# --- binding


@pytest.mark.parametrize(
    ("cores", "wrong"),
    [([[0, 1], [2, 3]], 0), ([[0, 1], [1, 2], [3]], 2), ([[0, 1], [0, 1]], 2), ([[0]], 0)],
)
def test_ranks_that_share_a_core_are_counted(cores, wrong):
    assert len(binding.ranks_sharing_cores(cores)) == wrong


def test_sets_of_cores_are_read_and_spelled():
    assert numa.parse_cpulist("0-3,8\n") == {0, 1, 2, 3, 8}
    assert binding.format_ranges({8, 0, 1, 2, 3}) == "0-3,8"
    assert binding.format_ranges(set()) == "none"


@pytest.mark.parametrize(
    ("numa_node", "nodes", "near"),
    [
        ("1", {"0": "0-3", "1": "4-7"}, {4, 5, 6, 7}),
        ("-1", {"0": "0-7"}, set(range(8))),
        ("-1", {"0": "0-3", "1": "4-7"}, None),
        (None, {"0": "0-3", "1": "4-7"}, None),
    ],
)
def test_the_cores_near_a_gpu_are_those_of_its_numa_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numa_node, nodes, near
):
    for number, cores in nodes.items():
        folder = tmp_path / "devices/system/node" / f"node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cores}\n")
    if numa_node is not None:
        gpu = tmp_path / "bus/pci/devices/0000:0a:00.0"
        gpu.mkdir(parents=True)
        (gpu / "numa_node").write_text(f"{numa_node}\n")
    monkeypatch.setattr(core_binding.devices, "pci_of_rank", lambda rank: "00000000:0A:00.0")
    found, _ = core_binding.near_cores(0, tmp_path)
    assert found == near


def host_of(folder: Path, numa_nodes: dict[int, str], gpus: list[int], threads: int = 1) -> Path:
    """A /sys with these NUMA nodes (number -> cores), and GPU k on node gpus[k]."""
    cores: set[int] = set()
    for number, cpulist in numa_nodes.items():
        node = folder / f"devices/system/node/node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(f"{cpulist}\n")
        cores |= numa.parse_cpulist(cpulist)
    (folder / "devices/system/cpu").mkdir(parents=True)
    (folder / "devices/system/cpu/online").write_text(f"0-{max(cores)}\n")
    half = len(cores) // threads
    for core in cores:
        topology = folder / f"devices/system/cpu/cpu{core}/topology"
        topology.mkdir(parents=True)
        twins = ",".join(str(c) for c in sorted(cores) if c % half == core % half)
        (topology / "thread_siblings_list").write_text(f"{twins}\n")
    for k, number in enumerate(gpus):
        gpu = folder / f"bus/pci/devices/0000:0{k}:00.0"
        gpu.mkdir(parents=True)
        (gpu / "numa_node").write_text(f"{number}\n")
    return folder


DGX_A100 = {n: f"{16 * n}-{16 * n + 15},{128 + 16 * n}-{143 + 16 * n}" for n in range(8)}
DGX_A100_GPUS = [3, 3, 1, 1, 7, 7, 5, 5]
"""As `nvidia-smi topo -m` shows them: two sockets of four NUMA nodes, two threads per core."""


class Kernel:
    """What the kernel lets a process bind itself to: at most the cpuset of its cgroup."""

    def __init__(self, cpuset: set[int], bound: set[int]) -> None:
        self.cpuset, self.bound = cpuset, bound

    def set(self, pid: int, cores: set[int]) -> None:
        if not cores & self.cpuset:
            raise OSError(22, "Invalid argument")
        self.bound = set(cores) & self.cpuset

    def get(self, pid: int) -> set[int]:
        return set(self.bound)


def binding_row(
    monkeypatch: pytest.MonkeyPatch, folder: Path, kernel: Kernel, local_rank: int, ranks: int
) -> tuple[core_binding.CoreBinding, Measurement]:
    """What a rank binds itself to, and the measurement of scheduler.numa for it."""
    monkeypatch.setattr(core_binding.devices, "pci_of_rank", lambda k: f"00000000:0{k}:00.0")
    monkeypatch.setattr(core_binding.os, "sched_setaffinity", kernel.set)
    monkeypatch.setattr(core_binding.os, "sched_getaffinity", kernel.get)
    bound = core_binding.bind_near_gpu(local_rank, ranks, folder)
    spec = {"nodes": ["n0"], "ranks_per_node": ranks, "directory": "/", "device": "cuda"}
    me = Identity(rank=local_rank, local_rank=local_rank, world_size=ranks, node="n0")
    this_rank = Ranks(spec, me)
    this_rank.core_binding = bound
    (measurement,) = binding.run(this_rank, ["numa"], system=folder).measurements
    return bound, measurement


def test_ranks_of_a_dgx_a100_run_near_their_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_of(tmp_path, DGX_A100, DGX_A100_GPUS, threads=2)
    taken: list[int] = []
    for k in range(8):
        # Slurm binds block:block: rank k to the k-th eighth, which is NUMA node k.
        kernel = Kernel(set(range(256)), numa.parse_cpulist(DGX_A100[k]))
        bound, measured = binding_row(monkeypatch, host, kernel, k, 8)
        assert bound.bound <= numa.parse_cpulist(DGX_A100[DGX_A100_GPUS[k]])
        assert len(bound.bound) == 16
        assert bound.given == frozenset(numa.parse_cpulist(DGX_A100[k])), "what Slurm gave is kept"
        assert measured.value == 0
        taken += bound.bound
    assert len(taken) == len(set(taken)) == 128, "no two ranks have a core in common"


def test_a_job_without_a_core_near_the_gpu_is_told_by_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_of(tmp_path, {0: "0-3", 1: "4-7"}, [1, 0])
    kernel = Kernel({0, 1, 2, 3}, {0, 1})
    bound, measured = binding_row(monkeypatch, host, kernel, 0, 2)
    assert bound.bound == {0, 1}
    assert measured.value == 1
    assert measured.notes == [
        "rank 0 is bound to cores 0-1, its GPU is near 4-7; of those the job has none"
    ]
    _, other = binding_row(monkeypatch, host, Kernel({0, 1, 2, 3}, {2, 3}), 1, 2)
    assert other.value == 0


def test_a_rank_keeps_its_cores_where_nobody_says_what_is_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_of(tmp_path, {0: "0-3", 1: "4-7"}, [-1, -1])
    monkeypatch.setattr(core_binding.devices, "pci_of_rank", lambda k: f"00000000:0{k}:00.0")
    kernel = Kernel(set(range(8)), {0, 1})
    monkeypatch.setattr(core_binding.os, "sched_setaffinity", kernel.set)
    monkeypatch.setattr(core_binding.os, "sched_getaffinity", kernel.get)
    assert core_binding.bind_near_gpu(0, 2, host).bound == {0, 1}


def test_a_host_without_numa_gives_every_rank_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = tmp_path / "devices/system/cpu"
    cpu.mkdir(parents=True)
    (cpu / "online").write_text("0-7\n")
    bound, measured = binding_row(monkeypatch, tmp_path, Kernel(set(range(8)), set(range(8))), 1, 2)
    assert bound.bound == {4, 5, 6, 7}
    assert measured.value == 0


def test_more_ranks_than_near_cores_keep_what_slurm_gave(tmp_path: Path) -> None:
    assert core_binding.shares([{0, 1}, {0, 1}, {0, 1}], tmp_path) == [set(), set(), set()]
    assert core_binding.shares([{0, 1, 2}, {0, 1, 2}, None], tmp_path) == [{0}, {1}, set()]


# --- where ranks meet


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("worker0", "worker0"), ("worker[0,2]", "worker0"), ("gpu[08-10]-ib,x", "gpu08-ib"),
        ("a,b[1-2]", "a"), ("", ""),
        ("rack[2-3]n[07-08],x", "rack2n07"), ("r[1,3]n[2]-ib", "r1n2-ib"),
    ],
)  # fmt: skip
def test_the_first_node_of_a_host_list(nodelist, first):
    assert first_node(nodelist) == first


# --- memory limit


@pytest.mark.parametrize(
    ("said", "fails", "value"),
    [
        ("begun\nsurvived\nended 0\n", False, "not enforced"),
        ("begun\nended 137\n", False, "enforced"),
        ("begun\nrefused\nended 0\n", False, "enforced"),
        ("srun: error: n0: task 0: Out Of Memory", True, "enforced"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=5.1", True, "enforced"),
        ("srun: error: Unable to create step: Requested nodes are busy", True, None),
        ("begun\nended 1\n", False, None),
    ],
)
def test_only_what_was_stopped_for_its_memory_is_enforced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said, fails, value
):
    def attach(*_: str, **__: Any) -> str:
        if not fails:
            return said
        error = job_steps.StepError("failed")
        error.output = said
        raise error

    monkeypatch.setattr(memory_limit.job_steps, "attach", attach)
    spec = {
        "nodes": ["n0"], "ranks_per_node": 1, "directory": str(tmp_path), "device": "cpu",
        "memory_mib": 256,
    }  # fmt: skip
    ranks = Ranks(spec, Identity(rank=0, local_rank=0, world_size=1, node="n0"))
    (found,) = memory_limit.run(ranks, ["limit"]).measurements
    assert found.value == value
    assert (found.notes == []) == (value == "enforced")


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
    assert slurm_survey.controllers("").value is None


@pytest.mark.parametrize(
    ("shown", "whole"), [("EXCLUSIVE", True), ("NO", False), ("FORCE:4", False), ("", False)]
)
def test_only_an_exclusive_partition_gives_out_whole_nodes(shown, whole):
    assert allocates_whole_nodes({"OverSubscribe": shown}) is whole
