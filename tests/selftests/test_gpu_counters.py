"""Two readings of a counter show how far it rose, or why that is not known."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.workloads.runtime import gpu_counters

pytestmark = pytest.mark.cpu


def reading(silent: dict[str, str] | None = None, **totals: dict[str, int]) -> dict[str, Any]:
    return {"clock": 0.0, "totals": totals, "silent": silent or {}}


@pytest.mark.parametrize(
    ("before", "after", "total", "gap"),
    [
        ({"total": 5}, {"total": 7}, 2, ""),
        ({"total": 5}, {"total": 2}, 0, gpu_counters.WAS_RESET),
        ({"link 0": 9, "link 1": 0}, {"link 0": 0, "link 1": 9}, 9, gpu_counters.WAS_RESET),
        ({"link 0": 9, "link 1": 0}, {"link 0": 9}, 0,
         "the driver counted link 1 before and nothing else after"),
        ({"DRAM": 0}, {"all memory": 20_000}, 0,
         "the driver counted DRAM before and all memory after"),
    ],
    ids=["rose", "reset", "one reset, one rose", "a part vanished", "another source"],
)  # fmt: skip
def test_counters_are_compared_part_by_part(
    before: dict[str, int], after: dict[str, int], total: int, gap: str
) -> None:
    found = gpu_counters.rise("x", reading(x=before), reading(x=after))
    assert (found.total, found.gap, found.absent) == (total, gap, False)


def test_a_counter_that_is_kept_in_two_places_is_known_where_each_of_them_is() -> None:
    silent = {"y": "NotSupported"}
    nowhere = gpu_counters.largest_rise(["y"], reading(silent), reading(silent))
    assert (nowhere.total, nowhere.gap, nowhere.absent) == (0, "NotSupported", True)
    two = ["x", "y"]
    x, more, less = {"total": 5}, {"total": 6}, {"total": 0}
    one_place = gpu_counters.largest_rise(two, reading(silent, x=x), reading(silent, x=more))
    assert (one_place.total, one_place.gap) == (1, "")
    went = gpu_counters.largest_rise(two, reading(x=x, y=x), reading(silent, x=more))
    assert (went.total, went.gap) == (1, "NotSupported")
    reset = gpu_counters.largest_rise(two, reading(x=x, y=x), reading(x=less, y=x))
    assert (reset.total, reset.gap) == (0, gpu_counters.WAS_RESET)
