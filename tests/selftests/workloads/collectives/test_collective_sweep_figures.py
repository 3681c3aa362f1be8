"""What a sweep measures, leaves out and reports, of made-up points."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fixtures.records.absence import Kind
from fixtures.workloads.collectives import collective_sweep
from fixtures.workloads.collectives.collective_sweep import Sweep, SweepBudget
from fixtures.workloads.collectives.operation_buffers import Point
from fixtures.workloads.nccl.collective_ops import OPERATIONS, Peers
from fixtures.workloads.timing.timing import Batches

pytestmark = pytest.mark.cpu

MIB = 1 << 20
REDUCE = OPERATIONS["all_reduce"]
TWO = Peers(group=None, members=(0, 1), rank=0)  # type: ignore[arg-type]
ONE = Peers(group=None, members=(0,), rank=0)  # type: ignore[arg-type]


def batches(*seconds: float, launching: float | None = None) -> Batches:
    return Batches(
        seconds=list(seconds), started=1.0, ended=[2.0] * len(seconds), launches=1,
        wall_over_marks=1.0, launching_s=launching,
    )  # fmt: skip


def point(size: int, *seconds: float, **more: Any) -> Point:
    given: dict[str, Any] = {
        "size": size, "nominal": size, "batches": batches(*(seconds or (1e-3,))), "graph": None,
        "calls": 3, "wrong_calls": 0, "wrong": 0,
    }  # fmt: skip
    return Point(**{**given, **more})


def ranks(**more: Any) -> Any:
    given = {
        "on_gpu": True, "demonstration": False, "nodes": ["n0", "n1"], "rank": 0, "world_size": 2,
        "agree": lambda item, choose: choose([item]),
    }  # fmt: skip
    return SimpleNamespace(**{**given, **more})


def test_sizes_go_up_to_the_largest():
    assert Sweep(largest=32).sizes() == [8, 16, 32]
    assert Sweep(largest=31, step=2).sizes() == [8, 16]
    assert Sweep(smallest=4096, largest=70_000, step=16).sizes() == [4096, 65536]


def test_a_network_is_virtual_on_cpus_and_between_nodes_of_a_demonstration():
    for more, virtual in (
        ({}, False), ({"on_gpu": False}, True), ({"demonstration": True}, True),
        ({"demonstration": True, "nodes": ["n0"]}, False),
    ):  # fmt: skip
        assert collective_sweep.is_virtual_network(ranks(**more)) is virtual


def test_the_largest_size_fits_into_the_memory_of_all_ranks(monkeypatch: pytest.MonkeyPatch):
    free = [64 << 30]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free[0], 0))

    def largest(copies: int, **more: Any) -> int:
        return collective_sweep.largest_size(ranks(**more), copies=copies, virtual_size=5)

    assert largest(1) == 8 << 30
    for bytes_free, copies, size in (
        (16 << 30, 1, 8 << 30), ((16 << 30) - 1, 1, 4 << 30), (16 << 30, 2, 4 << 30),
    ):  # fmt: skip
        free[0] = bytes_free
        assert largest(copies) == size
    assert largest(1, on_gpu=False) == 5
    assert largest(1, agree=lambda item, choose: choose([item, 4 << 30])) == 2 << 30


def budget(monkeypatch: pytest.MonkeyPatch, sizes: list[int], left_s: float, **more: Any) -> Any:
    now = [0.0]
    monkeypatch.setattr(collective_sweep.time, "monotonic", lambda: now[0])
    made = SweepBudget(ranks(**more), sizes, graphs=more.get("graphs", False))
    now[0] = 230 - left_s
    return made


def test_sizes_are_left_out_where_the_network_is_slow(monkeypatch: pytest.MonkeyPatch):
    curve, judged = [2 * MIB, 4 * MIB, 512 * MIB], [1024 * MIB, 2048 * MIB]
    # 28 operations of a slow size of 1 MiB take 4.2 s, and 4.2 s x 1024 at 1 GiB.
    slow = point(MIB, 0.15)
    for left_s, kept in (
        (100_000.0, curve + judged), (4400.0, judged[:1]), (4000.0, []), (13_100.0, judged),
    ):  # fmt: skip
        made = budget(monkeypatch, [*curve, *judged], left_s)
        found = [made.next_size([slow])]
        found += [made.next_size([]) for _ in range(5)]
        assert [size for size in found if size] == kept, left_s
        assert made.exceeded is (len(kept) < 5)
        assert made.left_out == [size for size in curve + judged if size not in kept]


def test_a_fast_size_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch):
    for seconds, exceeded in ((4 / 28 - 1e-4, False), (4 / 28 + 1e-4, True)):
        made = budget(monkeypatch, [2048 * MIB], 1.0)
        made.next_size([point(MIB, seconds)])
        assert made.exceeded is exceeded
    made = budget(monkeypatch, [2048 * MIB], 1.0, on_gpu=False)
    assert made.next_size([point(MIB, 9.0)]) == 2048 * MIB
    made = budget(monkeypatch, [2048 * MIB], 1.0)
    assert made.next_size([]) == 2048 * MIB
    assert made.next_size([point(8, 1e-6)]) is None


def test_latencies_in_graphs_take_their_time_too(monkeypatch: pytest.MonkeyPatch):
    # One operation of 0.2 s: 5.6 s of launches, and 440 more in graphs are 88 s.
    for graphs, left_s, exceeded in (
        (False, 7.0, False), (True, 90.0, True), (True, 95.0, False),
    ):  # fmt: skip
        made = budget(monkeypatch, [MIB], left_s, graphs=graphs)
        made.next_size([point(MIB, 0.2)])
        assert made.exceeded is exceeded
    above = budget(monkeypatch, [MIB + 4], 7.0, graphs=True)
    above.next_size([point(MIB, 0.2)])
    assert not above.exceeded


def test_all_ranks_go_by_the_slowest_and_the_least_time():
    assert collective_sweep._worst_of_each([[1.0, 9.0], [2.0, 8.0]]) == [2.0, 8.0]
    assert collective_sweep._longest_of_each([[1.0, 9.0], [2.0, 8.0]]) == [2.0, 9.0]


def test_what_was_left_out_is_told_with_the_last_rate(monkeypatch: pytest.MonkeyPatch):
    made = budget(monkeypatch, [], 1.0)
    assert made.absent(REDUCE, [], "NET/IB") == []
    made.left_out = [64]
    row = {"size": 8, "time_us": 2e6, "busbw": 0.25}
    (found,) = made.absent(REDUCE, [row], "NET/Socket")
    assert (found.kind, found.at) == (Kind.NO_TIME, {"size": 64})
    assert "of 8 bytes takes 2 s over NET/Socket (0.25 GB/s)" in found.why


def test_a_row_is_one_of_nccl_tests():
    found = collective_sweep.table_row(REDUCE, point(4 * MIB, 1e-3, wrong=2), 2)
    assert found == {
        "size": 4 * MIB, "count": MIB, "type": "float", "redop": "sum", "time_us": 1000.0,
        "algbw": 4.1943, "busbw": 4.1943, "wrong": 2, "checked": 3,
    }  # fmt: skip
    more = point(
        8, 1e-3, nccl_call=True, graph=batches(2e-6), batches=batches(1e-3, launching=5e-6)
    )
    found = collective_sweep.table_row(REDUCE, more, 2, ("RING", "LL"))
    assert (found["launch_us"], found["call"], found["graph_us"]) == (5.0, "nccl", 2.0)
    assert (found["algorithm"], found["protocol"]) == ("RING", "LL")


def test_a_latency_ends_and_a_bandwidth_begins_at_a_mebibyte():
    def metrics(size: int, peers: Peers = TWO, *wanted: str, **more: Any) -> list[str]:
        names = list(wanted) or ["busbw", "latency"]
        found = collective_sweep._size_measurements(
            REDUCE, peers, point(size, 1e-3, 2e-3, **more), names, {"a": 1}
        )
        assert all(m.at == {"size": size} and m.conditions == {"a": 1} for m in found)
        return [m.metric for m in found]

    assert metrics(MIB - 4) == ["latency"]
    assert metrics(MIB) == ["busbw", "latency"]
    assert metrics(MIB + 4) == ["busbw"]
    assert metrics(MIB, ONE) == ["latency"]
    assert metrics(MIB, TWO, "busbw") == ["busbw"]
    assert metrics(8, TWO, "latency", graph=batches(1e-6)) == ["latency", "graph_latency"]
    assert metrics(2 * MIB, TWO, graph=batches(1e-6)) == ["busbw"]


def test_rates_and_latencies_are_those_of_each_batch():
    (rate,) = collective_sweep._size_measurements(
        REDUCE, TWO, point(1024 * MIB, 0.5, 1.0), ["busbw"], {}
    )
    assert rate.samples == pytest.approx([2.147, 1.074], abs=1e-3)
    assert (rate.checks, rate.started) == ({"batches": 2}, 1.0)
    (small,) = collective_sweep._size_measurements(
        REDUCE, TWO, point(512 * MIB, 0.5), ["busbw"], {}
    )
    assert not small.ended, "batches of the curve have no time stamps"
    (latency,) = collective_sweep._size_measurements(REDUCE, TWO, point(8, 5e-6), ["latency"], {})
    assert latency.samples == [5.0]
    both = [rate, small, latency]
    collective_sweep.count_sizes(both)
    assert [m.checks["sizes"] for m in both] == [2, 2, 1]


def test_a_fall_of_more_than_three_percent_is_measured_again_from_32_mib_on():
    def again(*rates: tuple[int, float], **more: Any) -> list[int]:
        points = [point(size, size / rate) for size, rate in rates]
        measured: Any = SimpleNamespace(measure_size=lambda size, comm: size)
        return collective_sweep.remeasure_falls(measured, points, ranks(**more), None)  # type: ignore[return-value]

    a, b, c = 32 * MIB, 64 * MIB, 128 * MIB
    assert again((a, 1e9), (b, 0.98e9), (c, 1e9)) == []
    assert again((a, 1e9), (b, 0.96e9), (c, 0.96e9)) == [a, b]
    assert again((a, 1e9), (b, 0.9e9), (c, 0.8e9)) == [a, b, c]
    assert again((16 * MIB, 2e9), (a, 1e9)) == []
    # By the slowest rank: this one has no fall of its own.
    slower = again((a, 1e9), (b, 1e9), agree=lambda item, choose: choose([item, [0.0, 1.0]]))
    assert slower == [a, b]


def test_nccl_s_own_calls_are_made_where_something_asks_for_them(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(collective_sweep, "Communicator", lambda _, members: members)
    slow = OPERATIONS["send_recv"]
    for op, peers, metrics, sizes, on_gpu, made in (
        (REDUCE, TWO, ["graph_latency"], [8], True, True),
        (REDUCE, TWO, ["graph_latency"], [MIB], True, True),
        (REDUCE, TWO, ["graph_latency"], [2 * MIB], True, False),
        (REDUCE, TWO, ["busbw"], [16 * MIB], True, False),
        (slow, TWO, ["busbw"], [16 * MIB], True, True),
        (slow, TWO, ["busbw"], [8], True, False),
        (slow, TWO, ["latency"], [16 * MIB], True, False),
        (REDUCE, ONE, ["graph_latency"], [8], True, False),
        (REDUCE, TWO, ["graph_latency"], [8], False, False),
    ):
        found = collective_sweep._communicator(ranks(on_gpu=on_gpu), op, peers, metrics, sizes)
        assert found == ((0, 1) if made else None)


def test_an_algorithm_is_a_condition_where_the_log_proves_it():
    algorithms = {8: ("RING", "LL")}
    assert collective_sweep._algorithm_condition(algorithms, point(8)) == {"algorithm": "ring"}
    assert collective_sweep._algorithm_condition(algorithms, point(16)) == {}


def test_wrong_elements_are_told_with_where_they_were():
    found = collective_sweep._wrong_note(point(8, wrong=5, wrong_calls=2))
    assert found == "5 wrong at 8 bytes: in 2 of 3 calls"
    everywhere = point(8, wrong=5, wrong_calls=1, wrong_timed=1, wrong_graph=1)
    assert collective_sweep._wrong_note(everywhere).endswith(
        "in 1 of 3 calls, after the last timed call, in a CUDA graph"
    )


def states(points: list[Point], conditions: Any, log: Any) -> dict[str, Any]:
    wanted = ["errors", "transport", "nvls", "nics", "gdr"]
    found = collective_sweep._state_measurements(REDUCE, points, wanted, conditions, log)
    assert not collective_sweep._state_measurements(REDUCE, points, [], conditions, log)
    return {m.metric: (m.value, m.checks) for m in found}


def test_states_are_those_that_conditions_and_log_show():
    points = [point(8, wrong=2, calls=7), point(1024 * MIB, wrong=1), point(2048 * MIB, calls=1)]
    assert states(points, {}, {}) == {"errors": (3, {"compared": 3})}
    assert states(points[2:], {}, {}) == {"errors": (0, {})}
    for nvls, shown in ((True, "on"), (False, "off")):
        found = states(points, {"transport": "NET/IB", "nvls": nvls}, {})
        assert (found["transport"][0], found["nvls"][0]) == ("NET/IB", shown)
    assert states(points, {"transport": "NET/IB"}, {"transport": "P2P"})["transport"][0] == "P2P"
    for gdr, shown in ((None, "no NIC is used"), (True, "on"), (False, "off")):
        found = states(points, {}, {"nics": [0, 1], "gdr": gdr})
        assert (found["nics"][0], found["gdr"][0]) == (2, shown)


def test_all_ranks_of_the_job_are_peers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(collective_sweep.process_group, "of", lambda _: "group")
    found = collective_sweep.all_ranks(ranks(rank=1))
    assert (found.group, found.members, found.rank) == ("group", (0, 1), 1)


def swept(monkeypatch: pytest.MonkeyPatch, *metrics: str, **more: Any) -> tuple[Any, list[Any]]:
    """The result of a sweep whose sizes take a millisecond, and what was done for it."""
    done: list[Any] = []
    on_gpu = more.pop("on_gpu", True)

    class Buffers:
        def __init__(self, _: Any, op: Any, peers: Any, size: int) -> None:
            done.append(("largest", size))

        def measure_size(self, size: int, comm: Any, *, graph_latency: bool = False) -> Point:
            done.append((size, comm, graph_latency))
            rate = 1e9 if size < 64 * MIB else 0.5e9
            return point(size, size / rate, checks_s=0.5)

        def close(self) -> None:
            done.append("closed")

    comm = SimpleNamespace(destroy=lambda: done.append("destroyed"))
    monkeypatch.setattr(collective_sweep, "OperationBuffers", Buffers)
    monkeypatch.setattr(
        collective_sweep, "_communicator", lambda *_: comm if more.get("comm") else None
    )
    monkeypatch.setattr(collective_sweep.nccl_log, "conditions", lambda *_: (
        {"transport": "NET/IB"}, {"nccl": {}, "log": 1},
    ))  # fmt: skip
    monkeypatch.setattr(
        collective_sweep.nccl_algorithms, "chosen",
        lambda _, __, name, sizes, others: ({32 * MIB: ("RING", "LL")}, {"others": others}),
    )  # fmt: skip
    result = collective_sweep.run(
        ranks(on_gpu=on_gpu), list(metrics), more.get("name", "all_reduce"), peers=TWO,
        min_size=more.get("smallest", 32 * MIB), max_size=more.get("largest"),
        demonstration_max=64 * MIB,
    )  # fmt: skip
    return result, done


def test_a_sweep_measures_all_sizes_and_falls_once_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        collective_sweep, "largest_size", lambda *_, copies, **__: copies * 64 * MIB
    )
    result, done = swept(monkeypatch, "busbw", "transport", comm=True)
    assert [d[0] for d in done if d[0] != "largest" and len(d) == 3] == [
        32 * MIB, 64 * MIB, 32 * MIB, 64 * MIB,
    ]  # fmt: skip
    assert done[-2:] == ["destroyed", "closed"]
    assert [(m.metric, m.at.get("size")) for m in result.measurements] == [
        ("busbw", 32 * MIB), ("busbw", 64 * MIB), ("busbw_again", 32 * MIB),
        ("busbw_again", 64 * MIB), ("transport", None),
    ]  # fmt: skip
    assert result.measurements[0].conditions == {"transport": "NET/IB", "algorithm": "ring"}
    assert result.measurements[1].conditions == {"transport": "NET/IB"}
    facts = result.facts
    assert (facts["ranks"], facts["in_place"], facts["checks_s"]) == (2, True, 2.0)
    assert (facts["others"], facts["log"], len(facts["table"])) == (True, 1, 2)
    assert facts["group_s"] >= 0
    assert not any(d[2] for d in done if len(d) == 3 and d[0] != "largest")


def test_a_sweep_takes_what_it_is_given(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(collective_sweep, "largest_size", lambda *_, copies, **__: copies * 64)
    _, done = swept(monkeypatch, "latency", "graph_latency", comm=True, smallest=32)
    assert done[0] == ("largest", 64)
    assert all(d[2] for d in done if len(d) == 3)
    _, done = swept(monkeypatch, "graph_latency", smallest=32)
    assert not any(d[2] for d in done if len(d) == 3)
    assert "destroyed" not in done
    result, done = swept(monkeypatch, "latency", name="send_recv", smallest=None)
    assert done[0] == ("largest", 128)
    assert [d[0] for d in done if len(d) == 3] == [8, 16, 32, 64, 128]
    assert result.facts["in_place"] is False
    _, done = swept(monkeypatch, "latency", name="all_gather", smallest=4, largest=16)
    assert [d[0] for d in done if len(d) == 3] == [8, 16], "4 bytes have no element for each rank"
    cpu, done = swept(monkeypatch, "busbw", on_gpu=False, smallest=32 * MIB, largest=64 * MIB)
    assert len([d for d in done if len(d) == 3]) == 2
    assert "busbw_again" not in {m.metric for m in cpu.measurements}
