"""What devices are compared with: one value per device, slot by slot, and the walls of models."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.statistics.fleet_slots import NO_FLEET, Like
from fixtures.thresholds.spread import Spread
from fixtures.verdict import outliers
from fixtures.verdict.model import Outcome
from tests.selftests.verdict import made
from tests.selftests.verdict.made import criterion, measured, rank, record, row

pytestmark = pytest.mark.cpu

NODE = ("worker0",)
FACTS = {"model": "H200 SXM"}


def spread(**given: Any) -> Spread:
    return Spread(delta=0.08, device_sigma=0.003, run_sigma=0.003, source="x", **given)


def limits(of: Spread | None = None) -> Any:
    return SimpleNamespace(spread={"gemm": of or spread()}, compared_criteria=1)


def suspicion(fleet: Like, of: Spread) -> float:
    return outliers.highest_suspicion(criterion(spread="gemm"), fleet, limits(of))


def test_siblings_are_the_valid_devices_of_their_nodes():
    found = record(
        rank(0, measured("rate", 700, rounds=[[702]])),
        rank(1, measured("rate", math.nan)),
        rank(2, measured("rate", 690), node="worker1"),
    )
    of = criterion()
    rounds = outliers.sibling_rounds(of, found, NODE, "worker0")
    assert [(r.rank, values) for r, values in rounds] == [(0, [700, 702])]
    assert outliers.sibling_values(of, found, NODE, "worker0") == [(0, 701)]


def test_only_gpus_of_a_node_have_a_slot():
    devices = [(rank(1), [700.0])]
    for given, slot in (
        ({}, 1), ({"over": "links"}, None), ({"per": "rail"}, None),
        ({"per": "rail", "over": "links"}, None),
    ):  # fmt: skip
        assert outliers.independent(criterion(**given), devices) == [(slot, 700)], given


def test_devices_without_a_class_of_spread_have_no_fleet():
    values = [(slot, 0.9 * 700.0 if slot else 700.0) for _ in range(12) for slot in (0, 1)]
    assert outliers.of_fleet(criterion(), values, limits()) is NO_FLEET
    fleet = outliers.of_fleet(criterion(spread="gemm"), values, limits())
    assert len(fleet.values) == 24
    assert fleet.share(1) / fleet.share(0) == pytest.approx(0.9)


def test_above_suspicion_is_who_is_so_by_the_figures_of_every_model_and_slot():
    fleet = Like((700.0,) * 4)
    assert 0.92 * 700 < suspicion(fleet, spread()) < 700
    # By chance alone they differ so much that only delta counts.
    wide = spread().model_copy(update={"device_sigma": 0.5})
    assert suspicion(fleet, wide) == pytest.approx(0.92 * 700)
    strict = Spread.model_validate({**wide.model_dump(), "models": {"B200": {"delta": 0.01}}})
    assert suspicion(fleet, strict) == pytest.approx(0.99 * 700)
    for share, factor in ((1.1, 1.1), (0.9, 1.0)):
        slots = Like(fleet.values, slot_shares=((0, share),))
        found = suspicion(slots, wide)
        assert found == pytest.approx(factor * 0.92 * 700)


def ruled(outcome: Outcome, *rates: float, fleet: Like | None = None, **given: Any) -> Any:
    """The verdict on devices at these rates, after the outlier rule."""
    of = criterion(row(fail_below=1), **{"spread": "gemm"} | given)
    siblings = Like((700.0, 700.0, 700.0, 700.0)) if fleet is None else fleet
    case = made.case(of, facts=FACTS, siblings=siblings)
    found = record(*(rank(k, measured("rate", rate)) for k, rate in enumerate(rates)))
    before = made.verdict(outcome=outcome, reason="")
    sheet = made.sheet(case, found, facts=FACTS, thresholds=limits())
    return before, outliers.apply_outlier_rule(before, sheet)


def test_recorded_values_and_spreads_are_not_compared():
    for outcome, given in (
        (Outcome.RECORDED, {}), (Outcome.PASS, {"statistic": "spread"}),
        (Outcome.PASS, {"spread": None}), (Outcome.PASS, {"fleet": Like((700.0,) * 3)}),
    ):  # fmt: skip
        before, after = ruled(outcome, 700, 400, **given)
        assert after is before, given
    _, after = ruled(Outcome.PASS, 700, 400)
    assert (after.outcome, after.value) == (Outcome.FAIL, 400)
    assert after.margin == pytest.approx(400 / 640 - 1, abs=0.02)


def test_the_share_of_a_slot_is_told_as_less_or_as_more():
    for share, said in ((0.9, "10.0% less"), (1.1, "10.0% more")):
        fleet = Like((700.0,) * 4, slot_shares=((1, share),))
        _, after = ruled(Outcome.PASS, 700, 400, fleet=fleet)
        assert f"and {said} in this slot" in after.reason
    assert "slot" not in ruled(Outcome.PASS, 700, 400)[1].reason
