"""Where launching PyTorch's call would set the rate, NCCL's own call is timed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.workloads.collectives import collective_sweep
from fixtures.workloads.nccl.collective_ops import OPERATIONS, Peers
from tests.selftests.rank_job import TORCH, Job

pytestmark = pytest.mark.cpu

OWN_CALLS = '''
"""A sweep whose communicator is of the process group, and whose own call counts itself."""
from collections import Counter
from dataclasses import replace
from fixtures.workloads.nccl import collective_ops
from fixtures.workloads.collectives import collective_sweep, operation_buffers
from fixtures.workloads.runtime.spec import module_of, program_of

healthy = program_of(module_of("{module}"))
WORKLOAD = healthy.WORKLOAD
honest = collective_ops.OPERATIONS["{operation}"]
calls, destroyed = Counter(), []

class Communicator:
    def destroy(self):
        destroyed.append(self)

def own_call(comm, peers, target, source):
    assert comm.__class__ is Communicator and not destroyed
    calls[source.numel() * 4] += 1
    honest.call(peers, target, source)
    if peers.rank == 1:
        target[0] += 1

def run(ranks, metrics, **sweep):
    collective_ops.OPERATIONS["{operation}"] = replace(honest, nccl_call=own_call)
    collective_sweep._communicator = lambda *of: Communicator()
    operation_buffers.LAUNCH_BOUND_MAX = 4 << 20
    result = healthy.run(ranks, metrics, **sweep)
    assert len(destroyed) == 1
    result.facts["own_calls"] = dict(calls)
    return result
'''


@pytest.mark.parametrize(
    ("module", "operation"), [("sendrecv", "send_recv"), ("alltoall", "all_to_all")]
)
def test_where_launching_sets_the_rate_nccls_own_call_is_timed_and_checked(
    module: str, operation: str, tmp_path: Path
) -> None:
    """Send-receive of 16 MiB, as PyTorch launches it, had the rate of the host in 3 of 7 starts."""
    (tmp_path / "own.py").write_text(OWN_CALLS.format(module=module, operation=operation))
    job = Job(tmp_path, per_node=2)
    job.add("own", ["busbw", "errors"], min_size=1 << 20, max_size=8 << 20, step=2)
    assert job.run(warm=TORCH) == [0, 0], job.output()
    expected = [None, "nccl", "nccl", None] if module == "sendrecv" else [None] * 4
    for rank in job.record("own").ranks:
        facts = rank.facts
        assert [line.get("call") for line in facts["table"]] == expected
        assert [str(1 << k + 20) in facts["own_calls"] for k in range(4)] == [
            call == "nccl" for call in expected
        ]
        wrong = [line["wrong"] > 0 for line in facts["table"]]
        assert wrong == [rank.rank == 1 and call == "nccl" for call in expected]


@pytest.mark.parametrize(
    ("operation", "metrics", "smallest", "gpus", "needed"),
    [
        ("all_reduce", ["graph_latency"], 8, 2, True),
        ("all_reduce", ["graph_latency"], 16 << 20, 2, False),
        ("all_reduce", ["busbw"], 8, 2, False),
        ("send_recv", ["busbw"], 8, 2, True),
        ("send_recv", ["busbw"], 16 << 20, 2, True),
        ("send_recv", ["busbw"], 256 << 20, 2, False),
        ("send_recv", ["errors"], 8, 2, False),
        ("send_recv", ["busbw"], 16 << 20, 1, False),
        ("send_recv", ["busbw"], 16 << 20, 0, False),
    ],
)
def test_a_sweep_makes_a_communicator_where_it_has_calls_for_it(
    operation: str,
    metrics: list[str],
    smallest: int,
    gpus: int,
    needed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        collective_sweep, "Communicator", lambda ranks, of: SimpleNamespace(members=of)
    )
    ranks: Any = SimpleNamespace(on_gpu=gpus > 0)
    peers = Peers(group=None, members=tuple(range(max(1, gpus))), rank=0)  # type: ignore[arg-type]
    op = OPERATIONS[operation]
    sizes = collective_sweep.Sweep(smallest=smallest, largest=4 << 30).sizes()
    made = collective_sweep._communicator(ranks, op, peers, metrics, sizes)
    assert (made and made.members) == (peers.members if needed else None)  # type: ignore[attr-defined]


def test_a_fall_is_measured_again_with_the_same_calls() -> None:
    seconds = {32: 1.0, 64: 3.0, 128: 6.0, 256: 12.0}  # the rate falls by a third at 64 MiB
    points: Any = [
        SimpleNamespace(nominal=mib << 20, size=mib << 20, batches=SimpleNamespace(median=s))
        for mib, s in seconds.items()
    ]
    ranks: Any = SimpleNamespace(agree=lambda item, choose: choose([item]))
    buffers: Any = SimpleNamespace(measure_size=lambda size, comm: (size >> 20, comm))
    comm: Any = object()
    again: Any = collective_sweep.remeasure_falls(buffers, points, ranks, comm)
    assert again == [(32, comm), (64, comm)]
