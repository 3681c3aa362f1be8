"""Which recorded values are owed, by the words of the ranks, and which of several is shown."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.hardware import MissingFact
from fixtures.records.model import Void
from fixtures.verdict import recorded
from tests.selftests.verdict import made
from tests.selftests.verdict.made import criterion, measured, rank, record, resolved, row

pytestmark = pytest.mark.cpu

NONE = {"unsupported": {"rate": "no such port"}}
TWO = ("worker0", "worker1")


def why(*ranks: Any, nodes: tuple[str, ...] = ("worker0",), is_recorded: bool = True, **of: Any):
    case = made.case(criterion(**of), nodes, recorded=is_recorded)
    return recorded.why_there_is_none(case, record(*ranks))


def test_a_value_that_all_ranks_say_does_not_exist_is_not_owed():
    both = rank(0, **NONE), rank(1, **NONE)
    assert why(*both) == "not available here: no such port"
    assert why(*both, is_recorded=False) == "", "an order asks for it"
    assert why(both[0], rank(1)) == "", "the other rank says nothing"
    assert why(rank(0), rank(1)) == ""
    assert why(*both, nodes=TWO) == "", "of the second node there is nothing"
    other = rank(2, node="worker1")
    assert why(*both, other).startswith("not available"), "of another node than the subject's"
    assert why(*both, other, nodes=TWO) == ""
    # Of NICs only the first rank of a node speaks.
    nics = {"statistic": "value", "over": "nics"}
    assert why(both[0], rank(1), **nics) == "not available here: no such port"
    assert why(both[0], rank(2, node="worker1"), **nics, nodes=TWO) == ""


def test_a_node_may_lack_a_value_where_each_node_of_the_row_says_so():
    here, there = rank(0, **NONE), rank(1, node="worker1", unsupported={"rate": "only for root"})
    assert why(here, rank(1), may_lack=True, is_recorded=False) == "no such port"
    assert why(here, there, may_lack=True, nodes=TWO) == "no such port"
    assert why(there, here, may_lack=True, nodes=TWO[::-1]) == "only for root"
    assert why(here, rank(1, node="worker1"), may_lack=True, nodes=TWO) == ""
    assert why(rank(0), may_lack=True) == ""
    for unsupported in ({"other": "x"}, ["rate"]):
        assert why(rank(0, unsupported=unsupported), may_lack=True) == ""


def test_a_rank_says_it_of_a_metric_or_of_one_point_of_it():
    of = criterion(at={"counter": "rx_pause"})
    for unsupported, said in (
        ({"rate": "no port"}, "no port"), ({"rate rx_pause": "no counter"}, "no counter"),
        ({"rate": "no port", "rate rx_pause": "no counter"}, "no port"),
        ({"rate tx_pause": "x", "other": "y"}, ""), (["rate"], ""),
    ):  # fmt: skip
        assert recorded.why_unsupported(rank(0, unsupported=unsupported), of) == said
    for error, said in (("NotSupported", "NotSupported"), ("GpuIsLost", "")):
        assert recorded._reason_of(rank(0, not_measured={"rate": error}), of) == said
    assert recorded._reason_of(rank(0), of) == ""
    assert recorded._reason_of(rank(0, **NONE), of) == "no such port"


def test_devices_that_have_no_value_are_not_counted_and_noted():
    def reduced(*ranks: Any, devices: int = 2) -> tuple[int, list[str]]:
        case, notes = recorded.without_what_is_not_there(
            made.case(criterion(), devices=devices), record(*ranks)
        )
        return case.devices, notes

    silent = rank(1, **NONE)
    assert reduced(rank(0), silent) == (1, ["1 of 2 devices has none: no such port"])
    assert reduced(rank(0, **NONE), silent) == (0, ["2 of 2 devices have none: no such port"])
    assert reduced(rank(0), rank(1)) == (2, [])
    assert reduced(rank(0), silent, devices=3) == (3, []), "a rank is missing"
    found = record(rank(0), silent).without({"worker0": Void("torn")})
    assert recorded.without_what_is_not_there(made.case(criterion()), found)[1] == []


def test_medians_are_told_apart_by_what_the_criterion_leaves_open():
    small, large = (measured("rate", 1, at={"to": 1, "shape": s}) for s in ("8x8", "4x4"))
    points = [(rank(0), small), (rank(0), large), (rank(1), small)]
    found = recorded.by_shape(criterion(at={"to": 1}), points)
    assert {k: len(v) for k, v in found.items()} == {"shape 8x8": 2, "shape 4x4": 1}
    assert list(recorded.by_shape(criterion(), points)) == ["to 1, shape 8x8", "to 1, shape 4x4"]
    for given in ({"statistic": "spread"}, {"over": "links"}):
        assert recorded.by_shape(criterion(**given), points) == {"": points}


def test_what_is_not_judged_needs_no_bound():
    judged, shown = row(fail_below=1), row(recorded="no figure")
    of, cpu, gpu = criterion(ceiling=200.0), {"model": "cpu"}, {"model": "H200 SXM"}
    for limit, facts, expected in (
        (judged, gpu, 200), (shown, gpu, 200), (judged, cpu, 200), (shown, cpu, None),
    ):  # fmt: skip
        assert recorded.bound(of, limit, facts) == expected
    unknown = criterion(ceiling="alone")
    assert recorded.bound(unknown, shown, gpu) is None
    with pytest.raises(MissingFact, match="alone_gbps"):
        recorded.bound(unknown, judged, gpu)


def test_the_worst_is_the_longest_time_and_the_lowest_rate():
    for kind, unit, lower in (
        ("recorded", "us", False), ("recorded", "GB/s", True), ("above", "GB/s", False),
        ("below", "us", True), ("equals", "us", True),
    ):  # fmt: skip
        assert recorded.lower_is_worse(criterion(unit=unit), resolved(kind, 1)) is lower
