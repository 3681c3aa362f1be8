"""The workload `rails` on all paths: who sends to whom, and which step is returned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.workloads.collectives import rails
from fixtures.workloads.nccl.collective_ops import Peers
from tests.selftests.rank_job import TORCH, Job

pytestmark = pytest.mark.cpu


def peers(size: int, rank: int) -> Peers:
    group: Any = None
    return Peers(group=group, members=tuple(10 + k for k in range(size)), rank=rank)


@pytest.mark.parametrize("size", [2, 3, 4, 6, 7])
def test_each_rank_sends_to_each_other_one(size: int) -> None:
    for step in range(1, size):
        targets = {}
        for rank in range(size):
            ring = rails.cycle(peers(size, rank), step)
            assert ring.members[ring.rank] == 10 + rank
            targets[10 + rank] = ring.members[(ring.rank + 1) % ring.size]
            # All ranks of the cycle know the same ring.
            other = rails.cycle(peers(size, ring.members[0] - 10), step)
            assert other.members == ring.members
        assert targets == {10 + k: 10 + (k + step) % size for k in range(size)}


def test_the_slowest_steps_are_those_of_the_slowest_rank() -> None:
    seconds = [[1.0, 1.0, 1.0, 9.0, 1.1], [1.0, 1.2, 5.0, 1.0, 1.0]]
    assert rails._slowest(seconds) == [3, 2, 1]
    assert rails._worst([[50.0, 30.0], [50.0, 60.0]]) == 1


@pytest.mark.parametrize("size", [2, 3, 16, 17, 1024])
def test_every_step_comes_once_and_those_that_load_the_uplinks_first(size: int) -> None:
    order = rails.steps_in_order(size)
    assert sorted(order) == list(range(1, size))
    for leaf in (2, 4, 8, 16, 36):
        # The first of them that takes all nodes of a leaf out of it comes among the powers of two.
        powers = (size - 1).bit_length()
        assert 2 * leaf > size or any(leaf <= s <= size - leaf for s in order[:powers])


def test_what_does_not_fit_into_its_time_is_left_out_by_all_ranks(tmp_path: Path) -> None:
    job = Job(tmp_path, nodes=["worker0", "worker1", "worker2", "worker3"])
    (tmp_path / "short.py").write_text(
        "from fixtures.workloads.collectives.rails import *\n"
        "from fixtures.workloads.collectives import rails\n"
        "from fixtures.workloads.collectives.rails import WORKLOAD\n"
        "rails.STEPS_BETWEEN, rails.CPU_LOOK_S = 1, 0.05\n"
        "_launch = rails._seconds\n"
        "import time\n"
        "rails._seconds = lambda *a: (time.sleep(0.05), _launch(*a))[1]\n",
        encoding="utf-8",
    )
    job.add("short", ["busbw"], every_path=True)
    assert job.run(slurm=True, warm=TORCH) == [0] * 4, job.output()
    said = [rank.facts["every_path"] for rank in job.record("short").ranks]
    assert said == [{"steps": 1, "of": 3, "slowest": 1}] * 4


def test_the_ring_goes_in_the_order_of_the_jobs_nodes_and_all_paths_are_looked_at(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path, nodes=["worker0", "worker1", "worker2"])
    job.add("rails", ["busbw", "errors"], every_path=True)
    assert job.run(slurm=True, warm=TORCH) == [0] * 3, job.output()
    record = job.record("rails")
    assert [rank.facts["ranks"] for rank in record.ranks] == [3] * 3
    said = [rank.facts["every_path"] for rank in record.ranks]
    assert said[0] == said[1] == said[2]
    assert said[0]["steps"] == said[0]["of"] == 2
    assert said[0]["slowest"] in (1, 2)
    assert len(record.points("busbw", {"size": 16 << 20})) == 3
    assert [m.value for _, m in record.points("errors", {})] == [0] * 3
