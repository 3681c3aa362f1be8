"""Counters of a link's life: recorded, and beyond plain limits only where no healthy part gets."""

from __future__ import annotations

import pytest

from fixtures.ready.life import LIMITS, life_counters

pytestmark = pytest.mark.cpu

DAY = 1440.0


def test_the_link_of_the_incident_is_beyond_and_its_siblings_are_not():
    now = {"nvlink_errors": {f"link {k} recoveries": 505 * (k == 3) for k in range(18)}}
    certified = {"nvlink_errors": {f"link {k} recoveries": 0 for k in range(18)}}
    first, *others = life_counters(now, certified, 5 * DAY)
    assert (first.part, first.rise, first.beyond) == ("link 3 recoveries", 505, True)
    assert first.text() == (
        "link 3 recoveries: 505 more replays and recoveries since the certificate, 505 in all"
    )
    assert not any(rise.beyond for rise in others)


def test_a_part_is_beyond_above_its_limit_and_not_at_it():
    most = LIMITS["nvlink_errors"].rise
    for count, beyond in ((most, False), (most + 1, True)):
        (rise,) = life_counters({"nvlink_errors": {"total": 7 + count}},
                                {"nvlink_errors": {"total": 7}}, DAY)  # fmt: skip
        assert rise.beyond is beyond


def test_pcie_replays_may_rise_with_time():
    now, certified = {"pcie_replays": {"total": 31 * 60 + 31 * 10}}, {"pcie_replays": {"total": 0}}
    assert life_counters(now, certified, 9.9)[0].beyond
    assert not life_counters(now, certified, 10)[0].beyond
    assert life_counters(now, certified, -5)[0].beyond, "a clock that was set back adds nothing"


def test_a_counter_that_has_fallen_began_anew():
    (rise,) = life_counters({"nvlink_errors": {"total": 3}}, {"nvlink_errors": {"total": 90}}, DAY)
    assert (rise.rise, rise.beyond) == (3, False)


def test_parts_that_differ_are_compared_as_a_sum():
    now = {"nvlink_errors": {"link 0 replays": 60, "link 1 replays": 70}}
    (rise,) = life_counters(now, {"nvlink_errors": {"total": 10}}, DAY)
    assert (rise.part, rise.now, rise.rise, rise.beyond) == ("total", 130, 120, True)
    assert rise.text().startswith("120 more replays and recoveries")


def test_a_part_that_the_certificate_does_not_name_was_0():
    """It holds those that are not, as records do."""
    now = {"nvlink_errors": {"link 0 replays": 60, "link 1 replays": 70, "link 2 replays": 100}}
    rises = life_counters(now, {"nvlink_errors": {"link 1 replays": 69}}, DAY)
    assert [(r.part, r.rise, r.beyond) for r in rises] == [
        ("link 2 replays", 100, True), ("link 0 replays", 60, False), ("link 1 replays", 1, False),
    ]  # fmt: skip
    assert [r.rise for r in life_counters(now, {"nvlink_errors": {}}, DAY)] == [100, 70, 60]


def test_what_has_no_limit_is_recorded_and_what_is_not_certified_is_left_out():
    now = {"remapped_rows": {"corrected": 9000}, "new": {"total": 1}}
    (rise,) = life_counters(now, {"remapped_rows": {"corrected": 0}}, DAY)
    assert (rise.counter, rise.rise, rise.beyond) == ("remapped_rows", 9000, False)
    assert rise.text() == "corrected: 9000 more remapped_rows since the certificate, 9000 in all"
