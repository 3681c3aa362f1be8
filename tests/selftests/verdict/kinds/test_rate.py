"""Rates and times: which figure decides, and what is noted of the rounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.thresholds.spread import Spread
from fixtures.verdict.kinds import rate as rates
from fixtures.verdict.samples import Invalid
from tests.selftests.verdict import made
from tests.selftests.verdict.made import criterion, rank, record, resolved, row

pytestmark = pytest.mark.cpu

FACTS = {"model": "H200 SXM"}
BELOW = row(fail_below=80)
CLASS = Spread(delta=0.08, device_sigma=0.018, run_sigma=0.02, source="x")
LIMITS: Any = SimpleNamespace(spread={"gemm": CLASS})


def figure(limit: Any, *rounds: list[float], **given: Any) -> tuple[int, list[float]]:
    figures = [(rank(k), r) for k, r in enumerate(rounds)]
    sheet = made.sheet(made.case(criterion(BELOW, **given)), record(), limit)
    worst, values = rates._deciding(sheet, figures)
    return worst.rank, values


def test_the_worst_of_those_that_fail_in_every_round_decides():
    below, above = resolved("below", 80), resolved("above", 80)
    assert figure(below, [90], [85], [95]) == (1, [85])
    assert figure(below, [70, 75], [60, 90]) == (0, [70, 75]), "one fails in every round"
    assert figure(above, [70], [75]) == (1, [75])
    assert figure(above, [90, 90], [85, 95], [70, 99]) == (0, [90, 90])
    with pytest.raises(Invalid, match="on both sides of below 80"):
        figure(below, [90, 90], [70, 90])


def test_rounds_of_the_worst_and_of_uneven_devices_are_noted():
    devices = [(rank(0), [100.0, 104.0]), (rank(1), [100.0, 101.0]), (rank(2), [100.0])]

    def notes(worst: int, **given: Any) -> list[str]:
        sheet = made.sheet(
            made.case(criterion(BELOW, **given)), record(), facts=FACTS, thresholds=LIMITS
        )
        sheet.devices = devices
        return rates._round_notes(sheet, devices[worst][0])

    assert notes(2) == ["worker0 gpu0: rounds of 100, 104, 4% apart"]
    assert notes(1) == [
        "worker0 gpu0: rounds of 100, 104, 4% apart", "worker0 gpu1: rounds of 100, 101",
    ]  # fmt: skip
    # A class whose rounds differ by 2 % is noted from 6 % on.
    assert notes(2, spread="gemm") == []
    assert notes(0, spread="gemm") == ["worker0 gpu0: rounds of 100, 104"]
