"""Spreads in thresholds.yaml are those of recorded healthy devices."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from functools import cache

import pytest

from fixtures.records.model import Record
from fixtures.thresholds import loader
from fixtures.verdict.samples import points_of
from tests.selftests import planted
from tests.selftests.support import SHIPPED

pytestmark = pytest.mark.cpu

RECORDED = ("h200-1x4", "h200-2x2")
"""Runs of healthy GPUs of one model."""
CLASSES = ("collective", "gemm", "gemm_per_clock", "hbm", "hostcopy", "hostcopy_all", "p2p")
MOST, LEAST = 1.25, 0.02
"""Recorded over stated: a stated spread that is far too large would hide defects."""


@cache
def recorded_spread() -> dict[str, float]:
    """Return the relative deviation of a class's devices from their node's median, all criteria."""
    squares: dict[str, list[float]] = defaultdict(list)
    for name in RECORDED:
        run = planted._run(name)
        assert run is not None, name
        limits, _, items, evidence = run
        for key, criterion in limits.criteria.items():
            if not criterion.spread or criterion.per != "node" or criterion.statistic != "median":
                continue
            for item in items.get(key, []):
                found = evidence.get(item.workload, item.placement)
                if not isinstance(found, Record):
                    continue
                points = points_of(criterion, found, item.nodes, item.subject)
                values = [statistics.median(m.samples) for _, m in points if m.samples]
                if len(values) < 2:
                    continue
                center = statistics.fmean(values)
                # One degree of freedom is the mean's.
                variance = sum((v / center - 1) ** 2 for v in values) / (len(values) - 1)
                squares[criterion.spread] += [variance] * (len(values) - 1)
    return {name: math.sqrt(statistics.fmean(found)) for name, found in squares.items()}


def test_every_class_that_was_recorded_is_held():
    assert set(recorded_spread()) == set(CLASSES)


TOO_NARROW = {
    "gemm_per_clock": "recorded 1.1 %, stated 0.4 %",
    "hbm": "recorded 0.2 %, stated 0.08 %: reading differs by 0.5 %",
}
"""Stated spreads that the recordings contradict; a wider one changes what the fleet rule finds, and
so the tables of docs/scale.md."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(c, marks=[pytest.mark.xfail(strict=True, reason=TOO_NARROW[c])])
        if c in TOO_NARROW
        else c
        for c in CLASSES
    ],
)
def test_a_stated_spread_is_that_of_the_recordings(name: str):
    stated = loader.load(SHIPPED).spread[name].for_model("H200 SXM")
    together = math.hypot(stated.device_sigma, stated.run_sigma)
    assert recorded_spread()[name] <= MOST * together
    assert recorded_spread()[name] >= LEAST * together
    assert together < stated.delta, "what is normal is not a defect"
