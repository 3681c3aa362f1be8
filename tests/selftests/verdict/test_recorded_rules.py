"""Which of several recorded values is shown, and what bounds them."""

from __future__ import annotations

import pytest

from fixtures.hardware import MissingFact
from fixtures.verdict import recorded
from tests.selftests.verdict.made import criterion, measured, rank, resolved, row

pytestmark = pytest.mark.cpu


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
