"""The table of collectives: factors, shares, and the exact result of each."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fixtures.workloads.nccl import collective_ops
from fixtures.workloads.nccl.collective_ops import OPERATIONS, Peers

pytestmark = pytest.mark.cpu


def peers(n: int, rank: int = 0, first: int = 0) -> Peers:
    return Peers(group="group", members=tuple(range(first, first + n)), rank=rank)  # type: ignore[arg-type]


def test_factors_are_those_of_nccl_tests():
    for name, factor in (
        ("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("all_to_all", 0.75),
        ("broadcast", 1.0), ("send_recv", 1.0),
    ):  # fmt: skip
        assert OPERATIONS[name].factor(4) == factor
        assert OPERATIONS[name].factor(1) == 0


def test_a_size_is_split_into_equal_shares_where_it_has_to_be():
    assert OPERATIONS["all_gather"].count(44, 4) == 8
    assert OPERATIONS["all_gather"].count(12, 4) == 0
    assert OPERATIONS["all_reduce"].count(44, 4) == 11


def test_views_are_in_place_where_nccl_tests_measures_in_place():
    buffer = torch.arange(8)
    gather, scatter = OPERATIONS["all_gather"], OPERATIONS["reduce_scatter"]
    assert gather.source(peers(4, 1), buffer).tolist() == [2, 3]
    assert gather.target(peers(4, 1), buffer) is buffer
    assert scatter.target(peers(4, 3), buffer).tolist() == [6, 7]
    assert OPERATIONS["all_reduce"].source(peers(4, 1), buffer) is buffer


@pytest.mark.parametrize("n", [1, 2, 5, 64])
def test_what_is_expected_is_what_the_shares_of_all_ranks_come_to(n: int):
    """Each rank's own share of a buffer is pattern + addend; the result is computed by hand."""
    for pattern in (0, 7):
        for name in ("all_reduce", "reduce_scatter"):
            op = OPERATIONS[name]
            for rank in {0, n - 1}:
                share = rank if name == "reduce_scatter" else 0
                m, b = op.expected(rank, share if name == "all_reduce" else 0, n)
                whole = sum(pattern + op.addend(r, share, n) for r in range(n))
                assert m * pattern + b == whole, name
        for rank in {0, n - 1}:
            for j in {0, n - 1}:
                m, b = OPERATIONS["all_gather"].expected(rank, j, n)
                assert m * pattern + b == pattern + OPERATIONS["all_gather"].addend(j, j, n)
                m, b = OPERATIONS["all_to_all"].expected(rank, j, n)
                assert m * pattern + b == pattern + OPERATIONS["all_to_all"].addend(j, rank, n)
            m, b = OPERATIONS["broadcast"].expected(rank, 0, n)
            assert m * pattern + b == pattern + OPERATIONS["broadcast"].addend(0, 0, n)
            m, b = OPERATIONS["send_recv"].expected(rank, 0, n)
            assert m * pattern + b == pattern + OPERATIONS["send_recv"].addend((rank - 1) % n, 0, n)


def test_sums_stay_exact_for_any_number_of_ranks():
    assert collective_ops.largest_pattern(8) == collective_ops.PATTERN == 509
    assert collective_ops.EXACT == 2**24, "float32 has 24 bits of mantissa"
    for n in (2, 1000, 20_000, 60_000):
        pattern = collective_ops.largest_pattern(n)
        most = max(collective_ops._put(r, n) for r in range(n))
        assert 0 < pattern <= 509
        assert n * (pattern - 1 + most) <= 2**24
    assert collective_ops.largest_pattern(1 << 24) == 0
    assert collective_ops._put(3, 8) == 3


def test_calls_of_torch_have_source_target_and_group(monkeypatch: pytest.MonkeyPatch):
    called: list[tuple[Any, ...]] = []

    def note(name: str) -> Any:
        return lambda *given, **more: called.append((name, *given, *more.values()))

    for name in (
        "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single",
        "broadcast",
    ):  # fmt: skip
        monkeypatch.setattr(dist, name, note(name))
    for name in ("all_gather_single", "reduce_scatter_single"):
        monkeypatch.delattr(dist, name, raising=False)
    collective_ops._torch_function.cache_clear()
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"):
        OPERATIONS[name].call(peers(2, first=4), "target", "source")
    assert called == [
        ("all_reduce", "target", "group"), ("all_gather_into_tensor", "target", "source", "group"),
        ("reduce_scatter_tensor", "target", "source", "group"),
        ("all_to_all_single", "target", "source", "group"), ("broadcast", "target", 4, "group"),
    ]  # fmt: skip
    # From torch 2.13 on some have another name.
    collective_ops._torch_function.cache_clear()
    monkeypatch.setattr(dist, "all_gather_single", note("new"), raising=False)
    OPERATIONS["all_gather"].call(peers(2), "target", "source")
    assert called[-1][0] == "new"
    collective_ops._torch_function.cache_clear()


def test_messages_go_to_the_next_rank_and_come_from_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
):
    waited: list[Any] = []

    def batch(operations: list[Any]) -> list[Any]:
        return [SimpleNamespace(wait=lambda o=o: waited.append(o)) for o in operations]

    monkeypatch.setattr(dist, "P2POp", lambda way, tensor, peer, group: (way, tensor, peer))
    monkeypatch.setattr(dist, "batch_isend_irecv", batch)
    OPERATIONS["send_recv"].call(peers(3, 0, first=4), "target", "source")
    assert waited == [(dist.isend, "source", 5), (dist.irecv, "target", 6)]
    target = torch.zeros(2)
    OPERATIONS["send_recv"].call(peers(1), target, torch.ones(2))
    assert target.tolist() == [1, 1]


class Comm:
    """Notes what is asked of a communicator."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    @contextmanager
    def grouped(self) -> Any:
        self.calls.append("begin")
        yield
        self.calls.append("end")

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.calls.append(
            (name, *(g.tolist() if isinstance(g, torch.Tensor) else g for g in given))
        )


def test_calls_of_nccl_are_the_same_operations():
    comm: Any = Comm()
    source, target = torch.tensor([1, 2]), torch.tensor([3, 4])
    for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"):
        OPERATIONS[name].nccl_call(comm, peers(2), target, source)
    OPERATIONS["send_recv"].nccl_call(comm, peers(3, 0), target, source)
    assert comm.calls == [
        ("all_reduce", [3, 4]), ("all_gather", [3, 4], [1, 2]),
        ("reduce_scatter", [3, 4], [1, 2]), ("broadcast", [3, 4], 0),
        "begin", ("send", [1], 0), ("recv", [3], 0), ("send", [2], 1), ("recv", [4], 1), "end",
        "begin", ("send", [1, 2], 1), ("recv", [3, 4], 2), "end",
    ]  # fmt: skip
