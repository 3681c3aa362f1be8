"""One collective at one size: what is timed, what is checked, and what a wrong result leaves."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fixtures.workloads.collectives import operation_buffers
from fixtures.workloads.collectives.operation_buffers import OperationBuffers
from fixtures.workloads.nccl.collective_ops import OPERATIONS, Operation, Peers
from fixtures.workloads.timing.timing import Batches

pytestmark = pytest.mark.cpu

MIB = 1 << 20


class Op:
    """An operation of one rank, with the errors that a test makes in its result."""

    def __init__(self, name: str) -> None:
        self.calls = 0
        self.wrong_in: set[int] = set()
        honest = OPERATIONS[name]

        def call(peers: Peers, target: Any, source: Any) -> None:
            target.copy_(source)
            if self.calls in self.wrong_in:
                target[0] += 1
            self.calls += 1

        self.op: Operation = replace(
            honest, call=call, nccl_call=lambda comm, peers, target, source: comm(target)
        )


def ranks(on_gpu: bool = False) -> Any:
    return SimpleNamespace(
        device=torch.device("cpu"), on_gpu=on_gpu, barrier=lambda: None,
        agree=lambda item, choose: choose([item]),
    )  # fmt: skip


PEERS = Peers(group=None, members=(0,), rank=0)  # type: ignore[arg-type]


def buffers(op: Op, size: int = 4096, on_gpu: bool = False) -> OperationBuffers:
    return OperationBuffers(ranks(on_gpu), op.op, PEERS, size)


def test_an_operation_that_is_not_in_place_has_two_buffers():
    apart, same = buffers(Op("send_recv")), buffers(Op("all_reduce"))
    assert apart.target is not apart.buffer
    assert same.target is same.buffer
    assert same.buffer.numel() == 1024
    same.close()
    assert same.buffer.numel() == same.target.numel() == 0


def test_launches_take_turns_at_64_places_as_far_as_they_fit():
    made = buffers(Op("all_reduce"))
    for count, places in ((1, 64), (16, 64), (17, 60), (512, 2), (600, 1), (1024, 1)):
        assert len(made._views(count)) == places, count
    starts = [target.data_ptr() for target, _ in made._views(512)]
    assert starts[1] - starts[0] == 2048


def test_a_launch_is_pytorch_s_call_or_nccl_s():
    op = Op("send_recv")
    made = buffers(op)
    made.launcher(512)()
    assert op.calls == 1
    seen: list[int] = []
    launch = made.launcher(512, lambda target: seen.append(target.data_ptr()))  # type: ignore[arg-type]
    launch()
    launch()
    assert (op.calls, len(set(seen))) == (1, 2)


def test_launching_can_set_the_rate_of_middle_sizes_only():
    slow, fast = OPERATIONS["send_recv"], OPERATIONS["all_reduce"]
    for size, bound in ((MIB, False), (MIB + 1, True), (128 * MIB, True), (128 * MIB + 1, False)):
        assert operation_buffers.is_launch_bound(slow, size) is bound
        assert not operation_buffers.is_launch_bound(fast, size)


def test_batches_are_long_where_they_are_judged():
    reduce, gather = OPERATIONS["all_reduce"], OPERATIONS["all_gather"]
    for op, size, seconds in (
        (reduce, 256 * MIB, 0.05), (reduce, 256 * MIB - 1, 0.01), (gather, 256 * MIB, 0.01),
        (gather, 1024 * MIB, 0.05), (gather, 1024 * MIB - 1, 0.01), (gather, MIB, 0.005),
        (gather, MIB + 1, 0.01),
    ):  # fmt: skip
        assert operation_buffers.batch_seconds(op, size) == seconds


def test_sizes_with_a_prescribed_number_of_checks_have_more_time_for_them():
    assert operation_buffers.least_checks_s(1024 * MIB) == 0.15
    assert operation_buffers.least_checks_s(1024 * MIB + 1) == 0.05


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was asked to be timed; three batches of one launch each are made of it."""
    asked: list[dict[str, Any]] = []

    def measure(_: Any, launch: Any, **given: Any) -> Batches:
        asked.append(given)
        for _ in range(3):
            launch()
        return Batches(
            seconds=[1.0] * 3, started=0.0, ended=[1.0] * 3, launches=1, wall_over_marks=1.0
        )

    monkeypatch.setattr(operation_buffers.timing, "measure_collective", measure)
    monkeypatch.setattr(operation_buffers.timing, "synchronize", lambda _: None)
    return asked


def clock(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    """Time that passes by a step whenever it is asked for."""
    now = [0.0]

    def ask() -> float:
        now[0] += step
        return now[0]

    monkeypatch.setattr(operation_buffers.time, "perf_counter", ask)


def test_a_size_is_timed_and_its_calls_are_checked(timed: list[Any]):
    op = Op("send_recv")
    point = buffers(op).measure_size(64, None)
    assert (point.size, point.nominal, point.graph, point.nccl_call) == (64, 64, None, False)
    assert (point.calls, point.wrong_calls, point.wrong) == (1, 0, 0)
    assert point.checks_s > 0
    given = timed[0]
    assert (given["minimum"], given["least"], given["batch_s"]) == (20, 3, 0.005)
    assert given["budget_s"] == 0.3


def test_wrong_elements_of_timed_and_of_checked_calls_are_counted(
    timed: list[Any], monkeypatch: pytest.MonkeyPatch
):
    clock(monkeypatch, 1e-9)
    op = Op("send_recv")
    # One estimate, three more of the warm-up, three batches, and one call that is checked.
    op.wrong_in = {1, 7}
    made = buffers(op)
    point = made.measure_size(64, None)
    assert op.calls == 1 + 3 + 3 + 1
    assert (point.wrong_timed, point.wrong_calls, point.wrong) == (1, 1, 2)
    in_place = Op("all_reduce")
    in_place.wrong_in = {5}
    assert buffers(in_place).measure_size(64, None).wrong_timed == 0


def test_timed_calls_are_checked_up_to_16_mib_on_a_cpu(
    timed: list[Any], monkeypatch: pytest.MonkeyPatch
):
    for largest, on_gpu, wrong in ((4096, False, 1), (4095, False, 0), (4095, True, 1)):
        monkeypatch.setattr(operation_buffers, "CPU_CHECKED_MAX", largest)
        op = Op("send_recv")
        op.wrong_in = {0}
        made = buffers(op, on_gpu=on_gpu)
        count = 64
        launch = made.launcher(count)
        monkeypatch.setattr(operation_buffers, "_seconds_per_launch", lambda *_: 1e-6)
        assert made._time_calls(count, launch)[1] == wrong
    assert timed[-1]["least"] == 5
    assert timed[-1]["budget_s"] == 150
    monkeypatch.undo()
    assert operation_buffers.CPU_CHECKED_MAX == 16 * MIB


def test_a_slow_call_is_not_warmed_up_for_long(timed: list[Any], monkeypatch: pytest.MonkeyPatch):
    for seconds, on_gpu, launched in (
        (0.06, False, [1]), (0.049, False, [1, 1]), (0.03, False, [1, 3]), (1e-9, False, [1, 3]),
        (9.0, True, [1, 3]),
    ):  # fmt: skip
        warmed: list[int] = []

        def estimate(_: Any, __: Any, count: int, seconds: float = seconds) -> float:
            warmed.append(count)  # noqa: B023
            return seconds

        monkeypatch.setattr(operation_buffers, "_seconds_per_launch", estimate)
        made = buffers(Op("all_reduce"), on_gpu=on_gpu)
        made._time_calls(64, made.launcher(64))
        assert warmed == launched, seconds
        assert timed[-1]["estimate"] == seconds


def test_seconds_per_launch_are_the_mean_of_some(monkeypatch: pytest.MonkeyPatch):
    clock(monkeypatch, 1.0)
    monkeypatch.setattr(operation_buffers.timing, "synchronize", lambda _: None)
    launched: list[int] = []
    found = operation_buffers._seconds_per_launch(ranks(), lambda: launched.append(1), 4)
    assert (found, len(launched)) == (0.25, 4)


def test_of_one_rank_a_single_call_is_checked_and_of_more_as_many_as_there_is_time_for(
    monkeypatch: pytest.MonkeyPatch,
):
    asked: list[tuple[int, dict[str, Any]]] = []
    rounds = iter([5, 0])

    def more(size: int, done: int, **given: float) -> int:
        asked.append((done, given))
        return next(rounds)

    monkeypatch.setattr(operation_buffers.checked_calls, "next_round", more)
    op = Op("send_recv")
    op.wrong_in = {0, 3}
    assert buffers(op).check_calls(64, 16) == (1, [1])
    assert asked == []
    two = Peers(group=None, members=(0, 1), rank=0)  # type: ignore[arg-type]
    pair = OperationBuffers(ranks(), replace(op.op, expected=lambda r, j, n: (1, 0)), two, 4096)
    op.calls = 0
    assert pair.check_calls(64, 16) == (6, [1, 1])
    assert [done for done, _ in asked] == [1, 6]
    assert (asked[0][1]["all_s"], asked[0][1]["some_s"]) == (0.05, 0.05)
    rounds = iter([0])
    gpu = OperationBuffers(ranks(True), pair.op, two, 4096)
    gpu.check_calls(64, 16)
    assert (asked[-1][1]["all_s"], asked[-1][1]["some_s"]) == (2, 0.15)


def test_more_calls_than_places_are_checked_in_turns():
    op = Op("all_reduce")
    op.wrong_in = {0, 4}
    made = buffers(op)
    assert made._checked(512, 0, 5) == [1, 0, 0, 0, 1]
    assert made._checked(512, 7, 1) == [0]


def test_a_latency_is_timed_in_a_graph_too_and_its_result_checked(
    timed: list[Any], monkeypatch: pytest.MonkeyPatch
):
    replays: list[int] = []
    captured: list[Any] = []

    class Graph:
        """Of the calls that were captured: a replay makes them again."""

        def replay(self) -> None:
            replays.append(1)
            for target in captured:
                if len(replays) in wrong:
                    target[0] += 1

        def reset(self) -> None: ...

    class Capture:
        def __init__(self, graph: Graph, capture_error_mode: str) -> None: ...

        def __enter__(self) -> None:
            captured.clear()

        def __exit__(self, *_: object) -> None: ...

    def batches(_: Any, launch: Any, **given: Any) -> str:
        assert given == {"launches": 20, "count": 20, "operations": 20}
        return "batches"

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", Capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(operation_buffers.timing, "measure_batches", batches)
    comm: Any = captured.append
    wrong = {3}  # two of the warm-up, then the one that is checked
    made = buffers(Op("all_reduce"))
    point = made.measure_size(64, comm, graph_latency=True)
    assert (point.graph, point.wrong_graph, point.wrong) == ("batches", 20, 20)
    assert len(replays) == 3
    assert made.measure_size(64, comm).graph is None
    assert made.measure_size(64, None, graph_latency=True).graph is None
    replays.clear()
    # With no more than 20 places a call of the graph has overwritten another one's.
    assert made._time_nccl_graph(51, comm)[1] == 0
    assert len(replays) == 2
    replays.clear()
    assert made._time_nccl_graph(48, comm)[1] == 20
    monkeypatch.setattr(operation_buffers, "LATENCY_MAX", 63)
    assert made.measure_size(64, comm, graph_latency=True).graph is None


def test_nccl_s_call_is_timed_where_launching_would_set_the_rate(
    timed: list[Any], monkeypatch: pytest.MonkeyPatch
):
    seen: list[Any] = []
    monkeypatch.setattr(operation_buffers, "is_launch_bound", lambda op, size: size > 64)
    op = Op("all_reduce")
    made = buffers(op)
    comm: Any = seen.append
    assert not made.measure_size(64, comm).nccl_call
    assert seen == []
    assert made.measure_size(128, comm).nccl_call
    assert seen
    assert not made.measure_size(128, None).nccl_call
