"""Where a limit is from: looked up in limits.csv, by criterion, limit and size."""

from __future__ import annotations

import csv

import pytest

from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds.overview import LimitRow
from reports.facts.limit_sources import LimitSources

pytestmark = pytest.mark.cpu


def row(criterion: str, limit: str, source: str, when: str = "") -> LimitRow:
    return LimitRow(
        criterion=criterion, title="t", unit="GB/s", when=when, limit=limit, expect="",
        source=source, not_judged="",
    )  # fmt: skip


def test_the_source_is_that_of_the_limit_that_held():
    sources = LimitSources([
        row("x", ">= 605", "measured"), row("x", ">= 400", "published"),
        row("x", ">= 0.6 of ceiling", "a share"),
    ])  # fmt: skip
    assert sources.of_limit("x", ">= 605") == "measured"
    assert sources.of_limit("x", ">= 400 (loose: a reason)") == "published"
    assert sources.of_limit("x", ">= 593 (0.6 of ceiling 989)") == "a share"
    assert sources.of_limit("y", ">= 605") == ""


def test_of_a_sweep_the_row_of_the_size_counts():
    sources = LimitSources([
        row("sweep", ">= 5", "small", "1MiB, 2MiB"), row("sweep", ">= 5", "large", "1GiB"),
        row("sweep", ">= 7", "larger", "1GiB"),
    ])  # fmt: skip
    assert sources.of_limit("sweep.2MiB", ">= 5") == "small"
    assert sources.of_limit("sweep.1GiB", ">= 5") == "large"
    assert sources.of_limit("sweep.4GiB", ">= 5") == ""
    assert sources.of_limit("sweep.4GiB", ">= 7") == "larger"


def test_what_is_not_known_for_certain_has_no_source():
    one = LimitSources([row("x", ">= 605", "measured")])
    assert one.of_limit("x", ">= 999") == "measured"
    several = LimitSources([row("x", ">= 605", "measured"), row("x", ">= 605", "published")])
    assert several.of_limit("x", ">= 605") == ""
    three = LimitSources([row("x", ">= 1", name) for name in "abc"])
    assert three.of_limit("x", ">= 1") == ""
    not_judged = LimitSources([row("x", "", "measured")])
    assert not_judged.of_limit("x", ">= 605") == ""


def test_they_are_read_from_the_run_if_it_has_them(tmp_path):
    directory = RunDirectory(tmp_path)
    assert LimitSources.of(directory).of_limit("x", ">= 1") == ""
    made = vars(row("x", ">= 1", "measured"))
    with directory.limits.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(made))
        writer.writeheader()
        writer.writerow(made)
    assert LimitSources.of(directory).of_limit("x", ">= 1") == "measured"
