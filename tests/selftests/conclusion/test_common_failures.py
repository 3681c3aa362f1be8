"""Failures that nodes have in common: of all of them, or of nodes that are alike."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fixtures.conclusion.common_failures import LOOK, CommonFailures
from fixtures.verdict.model import Outcome, Verdict

pytestmark = pytest.mark.cpu


def row(k: int, value: float | str, failed: bool, criterion: str = "memory.copy") -> Verdict:
    outcome = Outcome.FAIL if failed else Outcome.PASS
    return Verdict(criterion=criterion, title="", subject=f"n{k}", outcome=outcome, value=value)


def charged(values: Sequence[float], wall: float, **more: str) -> tuple[set[str], list[str]]:
    """The nodes below the wall that are charged each by itself, and the sentences."""
    rows = [row(k, value, value < wall, **more) for k, value in enumerate(values)]
    common = CommonFailures()
    for v in rows:
        common.add(v)
    failed = [v for v in rows if v.outcome is Outcome.FAIL]
    alone = {v.subject for v in failed if not common.why(v).of_all_alike}
    return alone, common.sentences()


def spread(count: int, middle: float) -> list[float]:
    """Equal devices: half a percent from the slowest to the fastest."""
    return [middle * (1 + 0.005 * (k / (count - 1) - 0.5)) for k in range(count)]


def test_what_all_nodes_fail_is_charged_to_none():
    assert charged(spread(32, 96.0), 100.0) == (
        set(), [f"all 32 nodes fail memory.copy: {LOOK}"],
    )  # fmt: skip
    assert charged(spread(7, 96.0), 100.0)[0] == {f"n{k}" for k in range(7)}  # too few to tell
    for rows in ([5.0] * 8, [5.0] * 7):  # a count is of all nodes too
        alone, said = charged(rows, 6.0, criterion="health.ecc_uncorrected")
        assert (len(alone), len(said)) == ((0, 1) if len(rows) == 8 else (7, 0))


def test_a_limit_that_runs_through_nodes_that_are_alike_is_charged_to_none():
    slow, fast = spread(13, 96.0), spread(19, 100.0)
    alone, said = charged([*slow, *fast], slow[9] + 1e-9)
    assert (alone, said) == (
        set(), [f"10 of 13 nodes that are alike fail memory.copy: {LOOK}"],
    )  # fmt: skip
    for cut_off in (1, 2, 12):  # a group that is slower than the rest is slow as a group
        assert charged([*slow, *fast], slow[cut_off])[0] == set(), cut_off
    assert len(charged([*slow, *fast], 98.0)[0]) == 13
    whole = spread(32, 96.0)
    assert charged(whole, whole[17])[1] == [
        f"17 of 32 nodes that are alike fail memory.copy: {LOOK}"
    ]


def test_nodes_that_differ_from_those_that_pass_are_charged():
    fast = spread(16, 100.0)
    for count in (1, 3, 13, 15):
        slow = spread(count, 88.0) if count > 1 else [88.0]
        alone, said = charged([*slow, *fast], 95.0)
        assert (alone, said) == ({f"n{k}" for k in range(count)}, []), count


def test_the_last_of_equal_nodes_are_charged_while_they_are_few():
    fleet = spread(32, 100.0)
    for cut_off, common in ((1, False), (2, False), (7, False), (8, True)):
        alone, said = charged(fleet, fleet[cut_off])
        assert (bool(said), not alone) == (common, common), cut_off
    for count, common in ((7, False), (8, True)):
        assert bool(charged(spread(count, 96.0), spread(count, 96.0)[4])[1]) is common


def test_counts_and_states_are_not_alike():
    values = [1.0] * 4 + [1.0] * 12
    rows = [row(k, v, k < 4, "health.ecc_uncorrected") for k, v in enumerate(values)]
    common = CommonFailures()
    for v in rows:
        common.add(v)
    assert not common.why(rows[0]).of_all_alike


def test_how_many_fail_is_said_where_half_of_the_nodes_do():
    values = [*spread(19, 88.0), *spread(13, 100.0)]
    rows = [row(k, value, value < 95) for k, value in enumerate(values)]
    common = CommonFailures()
    for v in rows:
        common.add(v)
    assert common.why(rows[0]).text == "memory.copy failed, as on 19 of 32 nodes"
    assert common.why(row(40, 88.0, True)).text == ""
    few = CommonFailures()
    for v in [rows[0], *rows[19:]]:
        few.add(v)
    assert few.why(rows[0]).text == ""


def test_criteria_that_the_same_nodes_fail_are_one_sentence():
    common, last = CommonFailures(), []
    for criterion in ("memory.copy", "memory.read", "gemm.bf16", "gemm.fp16", "gemm.fp8"):
        last = [row(k, 90.0, True, criterion) for k in range(8)]
        for v in last:
            common.add(v)
        common.why(last[0])
    assert common.sentences() == [
        f"all 8 nodes fail memory.copy, memory.read, gemm.bf16 and 2 more criteria: {LOOK}"
    ]
