"""Repeated checks of collectives: how many, what they find, and that nothing wrong passes."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.workloads.collectives import operation_buffers
from fixtures.workloads.collectives.collective_sweep import Sweep
from fixtures.workloads.nccl import checked_calls
from fixtures.workloads.nccl.checked_calls import Patterns
from fixtures.workloads.nccl.collective_ops import EXACT, OPERATIONS, Peers
from tests.tools import soak_collectives

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("share", "probability", "calls"), [(0.10, 0.99, 44), (0.01, 0.95, 299), (0.30, 0.95, 9)]
)
def test_so_many_calls_find_a_fault_of_some_of_them(
    share: float, probability: float, calls: int
) -> None:
    missed = 1 - Fraction(str(share))
    assert 1 - missed**calls >= probability > 1 - missed ** (calls - 1)
    assert checked_calls.found_share(calls, probability) <= share
    assert checked_calls.found_share(calls - 1, probability) > share


def test_small_sizes_get_299_calls_and_those_up_to_a_gibibyte_44() -> None:
    sizes = Sweep(largest=8 << 30).sizes()
    calls = {size: checked_calls.wanted(size) for size in sizes}
    assert {n for size, n in calls.items() if size <= 16 << 20} == {299}
    assert {n for size, n in calls.items() if 16 << 20 < size <= 1 << 30} == {44}


@pytest.mark.parametrize(
    ("size", "call_s", "more"),
    [
        (8, 60e-6, 298),
        (1 << 30, 0.007, 43),
        pytest.param(1 << 20, 0.022, 6, id="slow network"),
        pytest.param(1 << 30, 1.5, 0, id="very slow network"),
        (8 << 30, 0.04, 3),
        pytest.param(8 << 30, 0.0001, 43, id="never more than at 1 GiB"),
    ],
)
def test_calls_that_do_not_all_fit_are_checked_as_long_as_there_is_time(
    size: int, call_s: float, more: int
) -> None:
    assert checked_calls.next_round(size, 1, call_s=call_s, all_s=2.0, some_s=0.15) == more


@pytest.mark.parametrize(
    ("first_s", "others_s", "checked"),
    [
        pytest.param(0.01, 0.0002, 299, id="one call took long"),
        pytest.param(0.9, 0.0002, 299, id="one call took very long"),
        pytest.param(0.01, 0.01, 16, id="slow network"),
        pytest.param(0.9, 0.9, 2, id="very slow network"),
        pytest.param(1.5, 0.0002, 1, id="too long to try another"),
    ],
)
def test_a_first_call_that_took_long_by_chance_leaves_no_size_with_few_calls(
    monkeypatch: pytest.MonkeyPatch, first_s: float, others_s: float, checked: int
) -> None:
    assert calls_checked(monkeypatch, 2 << 20, first_s, others_s) == checked


def test_the_sizes_above_a_gibibyte_take_a_twentieth_of_a_second_beside_their_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pace = 0.007 / (1 << 30)  # seconds per byte: an all-reduce of two H200, with its data
    sizes = [1 << 30, 2 << 30, 4 << 30, 8 << 30, 16 << 30]
    calls = [calls_checked(monkeypatch, size, pace * size, pace * size) for size in sizes]
    assert calls == [44, 4, 2, 1, 1]


def calls_checked(
    monkeypatch: pytest.MonkeyPatch, size: int, first_s: float, others_s: float
) -> int:
    """Return how many calls of a size are checked where they take so long on a GPU."""
    now = 0.0

    def check(self: Any, count: int, first: int, calls: int) -> list[int]:
        nonlocal now
        now += sum(others_s if first + k else first_s for k in range(calls))
        return [0] * calls

    monkeypatch.setattr(operation_buffers.time, "perf_counter", lambda: now)
    monkeypatch.setattr(operation_buffers.OperationBuffers, "_checked", check)
    buffers = operation_buffers.OperationBuffers.__new__(operation_buffers.OperationBuffers)
    buffers.ranks = SimpleNamespace(on_gpu=True, agree=lambda item, choose: choose([item]))  # type: ignore[assignment]
    buffers.peers = SimpleNamespace(size=2)  # type: ignore[assignment]
    calls, wrong = buffers.check_calls(size, 1)
    assert not wrong
    return calls


def test_a_row_says_how_many_calls_were_checked_and_what_they_find() -> None:
    said = checked_calls.said([(8, 299), (16, 299), (32 << 20, 44), (8 << 30, 1)])
    assert said == (
        "checked 299 calls at 8 B to 16 B (95 %: 1 % of the calls), 44 calls at 32 MiB (95 %: "
        "6.6 % of the calls), 1 call at 8 GiB (95 %: 95 % of the calls)"
    )


@pytest.mark.parametrize("elements", [12, 3 * checked_calls.TILE + 6])
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_data_of_a_call_are_those_of_no_other_rank_call_or_element(
    name: str, elements: int
) -> None:
    torch = pytest.importorskip("torch")
    op, n = OPERATIONS[name], 3
    cpu = torch.device("cpu")
    patterns = [Patterns(op, Peers(group=None, members=(0, 1, 2), rank=r), cpu) for r in range(n)]  # type: ignore[arg-type]

    def filled(rank: int, call: int) -> Any:
        buffers = torch.empty(2, elements)  # of two calls, written together
        patterns[rank].fill(buffers, torch.tensor([call, call + 3]))
        return buffers[0]

    def counted(rank: int, results: list[Any], share: int, calls: list[int]) -> list[int]:
        together = torch.stack([result.reshape(-1) for result in results])
        return list(patterns[rank].count_wrong(together, share, torch.tensor(calls)).tolist())

    assert not torch.equal(filled(0, 1), filled(1, 1)) or name == "send_recv"
    assert not torch.equal(filled(0, 1), filled(0, 2))
    assert filled(0, 1).unique().numel() > min(elements, 100) // 4
    assert float(filled(2, 7).max()) * (n if op.redop == "sum" else 1) <= EXACT
    # What the three put in gives what each expects, and nothing else does.
    share = elements // patterns[0].shares
    for rank in range(n):
        result = torch.stack([filled(r, 5) for r in range(n)]).view(n, -1, share)
        result = _by_hand(name, result, rank)
        right, of_another_call = counted(rank, [result, result], share, [5, 6])
        assert right == 0 < of_another_call, rank
        another = result.clone()
        another.view(-1)[-1] += 1
        assert counted(rank, [result, another, result], share, [5, 5, 5]) == [0, 1, 0]


def _by_hand(name: str, put: Any, rank: int) -> Any:
    """Return the result on a rank from what all ranks put in: (ranks, shares, elements)."""
    n = put.shape[0]
    return {
        "all_reduce": lambda: put.sum(0),
        "all_gather": lambda: put[range(n), range(n)] if put.shape[1] == n else None,
        "reduce_scatter": lambda: put.sum(0)[rank],
        "all_to_all": lambda: put[:, rank] if put.shape[1] == n else None,
        "broadcast": lambda: put[0],
        "send_recv": lambda: put[(rank - 1) % n],
    }[name]()


@pytest.mark.parametrize(("share", "calls"), [(0.10, 44), (0.01, 299)])
def test_an_all_reduce_that_is_wrong_now_and_then_is_found(share: float, calls: int) -> None:
    """The small twin of `make soak`: as many runs as a second holds."""
    found = soak_collectives.found_in(share, calls, runs=8)
    assert found.accused == 0, "the rank that is well"
    # With 8 runs the chance that a right program finds fewer is below one in a million.
    assert found.found >= (5 if share == 0.10 else 3)


def test_a_slow_size_that_had_its_calls_gets_no_more() -> None:
    assert checked_calls.next_round(1 << 20, 7, call_s=0.1, all_s=2.0, some_s=0.15) == 0
    assert checked_calls.next_round(8 << 30, 2, call_s=1e-6, all_s=2.0, some_s=0.15) == 0


def test_sums_of_many_ranks_stay_exact_and_each_call_is_shifted_by_101_elements() -> None:
    torch = pytest.importorskip("torch")
    cpu, many = torch.device("cpu"), Peers(group=None, members=tuple(range(1 << 15)), rank=5)  # type: ignore[arg-type]
    summed = Patterns(OPERATIONS["all_reduce"], many, cpu)
    copied = Patterns(OPERATIONS["broadcast"], many, cpu)
    assert summed._values.unique().numel() == 256, "2^24 over twice the ranks"
    assert copied._values.unique().numel() == 509, "nothing is added up: the whole pattern"
    rows = copied._rows(torch.tensor([0, 1, 6]), 3)
    assert rows.tolist() == [[0, 1, 2], [101, 102, 103], [97, 98, 99]]


def test_what_a_comparison_holds_at_once_is_bounded() -> None:
    """float32 elements: a row of half a MiB, of which 512 are compared and 128 expected at once."""
    assert 4 * checked_calls.TILE < 3 << 18
    assert 4 * checked_calls.EXPECTED_MAX < 64 << 20 < 4 * checked_calls.CHUNK < 256 << 20
