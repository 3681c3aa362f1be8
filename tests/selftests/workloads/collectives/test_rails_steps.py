"""The workload `rails` on one rank: its ring, its sizes, and the steps that it looks at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from fixtures.records.model import Measurement, Result
from fixtures.workloads.collectives import rails
from fixtures.workloads.nccl.collective_ops import Peers

pytestmark = pytest.mark.cpu

MIB = 1 << 20


def peers(size: int) -> Peers:
    group: Any = "group"
    return Peers(group=group, members=tuple(range(size)), rank=0)


@pytest.mark.parametrize(
    ("virtual", "every_path", "size", "sizes"),
    [(True, False, 4, (16, 16)), (False, False, 4, (256, 1024)), (False, True, 2, (256, 256)),
     (False, True, 1, (256, 256))],
)  # fmt: skip
def test_sizes_fit_the_network_and_a_ring_of_one_has_no_paths(
    monkeypatch, virtual, every_path, size, sizes
):
    seen: list[Any] = []
    ended: list[Any] = []
    monkeypatch.setattr(rails, "own_rail", lambda ranks: peers(size))
    sweep = rails.collective_sweep
    monkeypatch.setattr(sweep, "is_virtual_network", lambda ranks: virtual)
    monkeypatch.setattr(
        sweep, "run",
        lambda ranks, metrics, op, peers, step, min_size, max_size: (
            seen.append((min_size, max_size, step)) or "ring"),
    )  # fmt: skip
    monkeypatch.setattr(
        rails, "_slowest_step",
        lambda ranks, metrics, peers, given: (
            seen.append((given["min_size"], given["max_size"], None)) or "paths"),
    )  # fmt: skip
    monkeypatch.setattr(dist, "destroy_process_group", ended.append)
    ranks: Any = None
    found = rails.run(ranks, ["busbw"], every_path=every_path)
    paths = every_path and size > 1
    assert found == ("paths" if paths else "ring")
    assert seen == [(sizes[0] * MIB, sizes[1] * MIB, None if paths else 4)]
    assert ended == ["group"]


def test_a_rail_is_the_ranks_of_one_index_in_the_order_of_the_nodes(monkeypatch):
    made: list[Any] = []
    monkeypatch.setattr(rails.process_group, "of", lambda ranks: None)
    monkeypatch.setattr(dist, "new_group", lambda members: made.append(list(members)) or len(made))
    # Ranks 0 and 1 are on the second node of the job, 2 and 3 on the first.
    ranks: Any = SimpleNamespace(
        rank=1, local_rank=1, node="b", nodes=["a", "b"],
        gather=lambda own: [[0, 1], own, [0, 0], [1, 0]],
    )  # fmt: skip
    found = rails.own_rail(ranks)
    assert made == [[2, 0], [3, 1]], "every rank makes every group"
    assert (found.group, found.members, found.rank) == (2, (3, 1), 1)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Looks at all paths of some nodes; returns the result and what was measured in full."""
    seen = SimpleNamespace(now=0.0, asked=[], full=[], closed=0, launched=0)

    class Buffers:
        def __init__(self, ranks: Any, op: Any, peers: Any, size: int) -> None:
            self.peers = peers

        def launcher(self, count: int) -> Any:
            ring = self.peers
            step = ring.members[1 % ring.size]
            seen.asked.append(step)

            def launch() -> None:
                seen.launched += 1

            launch.step = step  # type: ignore[attr-defined]
            return launch

        def close(self) -> None:
            seen.closed += 1

    def start(size: int, slow: dict[int, float], *, took: float = 0.0, on_gpu: bool = False) -> Any:
        monkeypatch.setattr(rails, "OperationBuffers", Buffers)
        monkeypatch.setattr(rails.time, "monotonic", lambda: seen.now)

        def seconds(ranks: Any, launch: Any) -> float:
            seen.now += took / 3
            return slow.get(launch.step, 1.0)

        def full(ranks: Any, metrics: Any, op: str, peers: Any, **sizes: Any) -> Result:
            step = peers.members[1]
            seen.full.append(step)
            return Result(
                measurements=[
                    Measurement(
                        metric="busbw", unit="GB/s", samples=[100.0 / slow.get(step, 1.0)] * 3
                    ),
                    Measurement(metric="other", unit="GB/s", samples=[1.0]),
                ],
                facts={},
            )

        monkeypatch.setattr(rails, "_seconds", seconds)
        monkeypatch.setattr(rails.collective_sweep, "run", full)
        ranks: Any = SimpleNamespace(on_gpu=on_gpu, agree=lambda item, choose: choose([item]))
        result = rails._slowest_step(ranks, ["busbw"], peers(size), {"min_size": 1024})
        return result, seen

    return start


def test_the_slowest_three_steps_are_measured_in_full_and_the_worst_returned(looked):
    result, seen = looked(6, {2: 2.0, 5: 4.0, 4: 3.0})
    # From rank 0 a step of 4 of 6 goes first to 4, a step of 5 to 5.
    assert seen.asked == [1, 2, 4, 3, 5]
    assert (seen.full, seen.closed, seen.launched) == ([5, 4, 2], 1, 5)
    assert result.facts == {"ranks": 6, "every_path": {"steps": 5, "of": 5, "slowest": 5}}
    assert rails._rates(result) == [25.0] * 3


@pytest.mark.parametrize(
    ("took", "on_gpu", "steps"),
    [(0.9, False, 32), (1.0, False, 16), (0.4, False, 39), (9.3, True, 32), (9.5, True, 16)],
)
def test_steps_end_after_15_seconds_on_a_cpu_and_150_on_gpus(looked, took, on_gpu, steps):
    """The ranks look at the clock before every sixteenth step: 16 steps of 0.9 s take 14.4 s."""
    result, _ = looked(40, {}, took=took, on_gpu=on_gpu)
    assert result.facts["every_path"]["steps"] == steps
    assert result.facts["every_path"]["of"] == 39
