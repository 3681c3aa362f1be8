"""Whether tasks run where the job was placed: pure functions, no Slurm."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.workloads.scheduler import placement

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
