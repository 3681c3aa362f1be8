"""Two readings of a counter show how far it rose, or why that is not known."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.records.absence import Kind
from fixtures.workloads.devices.known import Missing
from fixtures.workloads.telemetry import gpu_counters

pytestmark = pytest.mark.cpu


def reading(silent: dict[str, Missing] | None = None, **totals: dict[str, int]) -> dict[str, Any]:
    return {"clock": 0.0, "totals": totals, "silent": silent or {}}


@pytest.mark.parametrize(
    ("before", "after", "total", "gap"),
    [
        ({"total": 5}, {"total": 7}, 2, None),
        ({"total": 5}, {"total": 2}, 0, "the counter was reset during the run"),
        ({"link 0": 9, "link 1": 0}, {"link 0": 0, "link 1": 9}, 9,
         "the counter was reset during the run"),
        ({"link 0": 9, "link 1": 0}, {"link 0": 9}, 0,
         "the driver counted link 1 before and nothing else after"),
        ({"DRAM": 0}, {"all memory": 20_000}, 0,
         "the driver counted DRAM before and all memory after"),
    ],
    ids=["rose", "reset", "one reset, one rose", "a part vanished", "another source"],
)  # fmt: skip
def test_counters_are_compared_part_by_part(
    before: dict[str, int], after: dict[str, int], total: int, gap: str | None
) -> None:
    found = gpu_counters.rise("x", reading(x=before), reading(x=after))
    assert (found.total, found.gap) == (total, None if gap is None else Missing(gap))


def test_a_counter_that_is_kept_in_two_places_is_known_where_each_of_them_is() -> None:
    refused = Missing("NotSupported", Kind.NOT_THERE)
    silent = {"y": refused}
    nowhere = gpu_counters.largest_rise(["y"], reading(silent), reading(silent))
    assert (nowhere.total, nowhere.gap) == (0, refused)
    two = ["x", "y"]
    x, more, less = {"total": 5}, {"total": 6}, {"total": 0}
    one_place = gpu_counters.largest_rise(two, reading(silent, x=x), reading(silent, x=more))
    assert (one_place.total, one_place.gap) == (1, None)
    went = gpu_counters.largest_rise(two, reading(x=x, y=x), reading(silent, x=more))
    assert (went.total, went.gap) == (1, Missing("after the work: NotSupported"))
    reset = gpu_counters.largest_rise(two, reading(x=x, y=x), reading(x=less, y=x))
    assert (reset.total, reset.gap) == (0, gpu_counters.WAS_RESET)


def test_a_place_that_could_not_be_read_for_a_fault_is_not_taken_for_none() -> None:
    lost = {"y": Missing("GpuIsLost")}
    x, more = {"total": 5}, {"total": 6}
    found = gpu_counters.largest_rise(["x", "y"], reading(lost, x=x), reading(lost, x=more))
    assert (found.total, found.gap) == (1, Missing("GpuIsLost"))


@pytest.mark.parametrize("first", [True, False])
def test_a_driver_that_gave_a_counter_once_offers_it(first: bool) -> None:
    """What it does not answer the other time is of the node, not of the driver."""
    silent = reading({"x": Missing("NotSupported", Kind.NOT_THERE)})
    given = reading(x={"total": 5})
    found = gpu_counters.rise("x", *((given, silent) if first else (silent, given)))
    when = "after" if first else "before"
    assert found.gap == Missing(f"{when} the work: NotSupported")
