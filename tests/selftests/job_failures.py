"""Lines of the ranks of a job of two nodes, and what is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fixtures.jobs.diagnosis import diagnose
from fixtures.jobs.failure import Failure
from fixtures.jobs.job_evidence import Evidence
from fixtures.jobs.log_events import Event
from tests.selftests.support import line, result_line

PEER_LOST = {"kind": "peer_lost", "error": "DistNetworkError: connection closed by peer"}
NODES = ("worker0", "worker1")
SRUN = "srun: error: worker1: task 1: Killed\nsrun: error: worker0: task 0: Terminated"


def started(k: int, workload: str = "gemm", **more: Any) -> Any:
    return line("started", k, workload=workload, node=NODES[k], **more)


def error(k: int, workload: str = "gemm", **more: Any) -> Any:
    more = {"kind": "raised", "error": "ValueError: no", "stack": "", **more}
    return line("error", k, workload=workload, node=NODES[k], **more)


def done(k: int, workload: str = "gemm", **more: Any) -> list[Any]:
    return [
        started(k, workload, **more), result_line(k, workload=workload, node=NODES[k], **more)
    ]  # fmt: skip


def diagnosed(*lines: Any, state: str = "FAILED", **more: Any) -> Failure:
    return diagnose(lines, state=state, job="42", world_size=2, **more)


def evidence_of(events: Sequence[Event] = (), *, state: str = "FAILED") -> Evidence:
    """All that is known of a job of which no rank wrote a line."""
    return Evidence([], events, state, "job 42", 2, NODES, "jobs/x", "")


def culprit(failure: Failure) -> tuple[Any, ...]:
    return failure.kind, failure.workload, failure.node, failure.rank


def hung(k: int, begun: int | None = None, stack: str = "", **more: Any) -> Any:
    flight = {} if begun is None else {"flight": {"begun": begun, "ended": begun - 1}}
    return error(k, kind="hung", error="deadline", stack=stack, **flight, **more)


def alive(k: int, when: float) -> Any:
    return line("alive", k, node=NODES[k], time=when)
