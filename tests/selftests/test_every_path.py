"""The workload `rails` on all paths: who sends to whom, and which step is returned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.workloads import rails
from fixtures.workloads.runtime.collective_ops import Peers
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
    assert rails._slowest_steps(seconds) == [4, 3, 2]
    assert rails._worst([[50.0, 30.0], [50.0, 60.0]]) == 1


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
    assert said[0]["steps"] == 2
    assert said[0]["slowest"] in (1, 2)
    assert len(record.points("busbw", {"size": 16 << 20})) == 3
    assert [m.value for _, m in record.points("errors", {})] == [0] * 3
