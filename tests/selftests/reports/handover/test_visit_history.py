"""The log of visits is only ever appended to: one that was rotated or cut is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.records.files import append_line, write_text
from reports.handover import visit_history

pytestmark = pytest.mark.cpu

EXPECTED = {("GPU-0", "memory.triad"): ("n0", 0)}


def visits(log: Path, *hours: int) -> None:
    for hour in hours:
        head = {"node": "n0", "job": "1", "start": 3600.0 * hour}
        append_line(log, {**head, "outcome": "begun"})
        value = {"uuid": "GPU-0", "gpu": 0, "metric": "memory.triad", "value": 4000.0 + hour}
        done = {**head, "end": 3600.0 * hour + 30, "outcome": "done", "values": [value]}
        append_line(log, done)


def rows(folder: Path) -> list[Any]:
    return [row["value"] - 4000 for row in visit_history.read(folder / "history")]


def said(folder: Path) -> list[str]:
    found = visit_history.read(folder / "history")
    return list(visit_history.replaced(folder / "history", found, EXPECTED))


def took(folder: Path) -> int:
    return visit_history.take_in(folder / "visits.jsonl", folder / "history")


def rotated(log: Path) -> None:
    log.unlink()
    visits(log, 3)


def emptied(log: Path) -> None:
    write_text(log, [])


def cut_behind(log: Path) -> None:
    write_text(log, log.read_text().splitlines(keepends=True)[:2])


def cut_in_front(log: Path) -> None:
    write_text(log, log.read_text().splitlines(keepends=True)[2:])


def changed(log: Path) -> None:
    write_text(log, [log.read_text().replace("4001.0", "4001.5")])


@pytest.mark.parametrize(
    "change", [Path.unlink, rotated, emptied, cut_behind, cut_in_front, changed],
    ids=lambda change: change.__name__,
)  # fmt: skip
def test_a_log_that_is_not_the_one_taken_in_is_said_and_taken_in_once(tmp_path, change):
    log = tmp_path / "visits.jsonl"
    visits(log, 0, 1, 2)
    assert took(tmp_path) == 6
    assert said(tmp_path) == []
    change(log)
    new = [3] if change is rotated else []
    assert took(tmp_path) == len(new), "of a log that is new only what has ended"
    assert rows(tmp_path) == [0, 1, 2, *new]
    assert "visits.jsonl was rotated or cut before" in said(tmp_path)[0]
    assert "1 GPU of the certificate" in said(tmp_path)[0]
    visits(log, 4)
    took(tmp_path)
    took(tmp_path)
    assert rows(tmp_path) == [0, 1, 2, *new, 4]
    assert said(tmp_path), "what is not of a later time does not show that it is there"
    late = 3_000_000
    visits(log, late)
    took(tmp_path)
    assert rows(tmp_path)[-1] == late
    assert said(tmp_path) == []


def test_a_log_that_grows_is_the_same(tmp_path):
    log = tmp_path / "visits.jsonl"
    for hour in range(4):
        visits(log, hour)
        assert took(tmp_path) == 2
        assert took(tmp_path) == 0
        assert said(tmp_path) == []
    assert rows(tmp_path) == [0, 1, 2, 3]
