"""How often something happens a minute, by a window of time."""

from __future__ import annotations

import math

import pytest

from fixtures.workloads.timing import rates

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("count", "seconds", "least", "most"),
    [(0, 2, 0, 0), (1, 2, 1, 1), (2, 60, 2, 2), (120, 3600, 2, 2), (3, 20, 1, 4),
     (1000, 20, 2800, 2900), (100, 59.9, 80, 100.2), (5, 0, 5, math.inf)],
)  # fmt: skip
def test_a_rate_is_what_a_window_shows_at_least(
    count: int, seconds: float, least: float, most: float
) -> None:
    """One error in 2 s is not thirty a minute, and a thousand in 20 s are not a thousand."""
    assert least <= rates.per_minute(count, seconds) <= most


def test_a_window_over_a_minute_is_never_above_its_mean_rate() -> None:
    for count in range(200):
        assert rates.per_minute(count, 30) <= max(count, 2 * count)
        assert rates.per_minute(count, 600) == count / 10


def test_a_rate_in_a_short_window_is_the_lowest_that_gives_this_count():
    assert rates.per_minute(30, 60) == 30
    # Just below a minute: the lower 95 % bound of a mean that gave 30 is 21.6, and the count is
    # more. 1,000 in 20 s are at least 948.7 in 20 s, thrice that in a minute.
    assert rates.per_minute(30, 59.999) == 30
    assert rates.per_minute(1000, 20) == pytest.approx(2845, abs=2)
    assert rates._lowest_mean(1) == 0
    # Exact bounds, by the quantiles of the chi-square distribution: 0.3554 and 5.4254.
    assert rates._lowest_mean(2) == pytest.approx(0.3554, rel=0.05)
    assert rates._lowest_mean(10) == pytest.approx(5.4254, rel=0.01)
