"""A line of the table of values: where its marks stand."""

from __future__ import annotations

import pytest

from reports.plots.bullets import bullet

pytestmark = pytest.mark.cpu


def test_the_highest_mark_is_the_end_of_the_bar():
    values = [("gpu0", 40.0), ("gpu1", 60.0), ("gpu2", 50.0)]
    lines = [(30.0, "limit"), (80.0, "ceiling")]
    made = bullet(
        values, values[0], lines, unit="GB/s", counted="GPUs", bad=False, farthest=300.0
    )  # fmt: skip
    assert (made.at, made.siblings) == (50.0, (75.0, 62.5))
    assert [(mark.name, mark.at) for mark in made.marks] == [("limit", 37.5), ("ceiling", 100.0)]
    assert (made.text_of("limit"), made.text_of("other")) == ("30", "")
    assert (made.where, made.value, made.others) == ("gpu0", "40 GB/s", "3 GPUs, median 50 GB/s")


def test_a_single_value_has_no_others_and_nothing_is_left_of_the_bar():
    made = bullet(
        [("n0", -2.0)], ("n0", -2.0), [(9.0, "limit")], unit="%", counted="nodes", bad=True,
        farthest=8.0,
    )  # fmt: skip
    assert (made.at, made.siblings, made.others) == (0.0, (), "")
    assert (made.marks[0].at, made.text_of("limit")) == (None, "9")
