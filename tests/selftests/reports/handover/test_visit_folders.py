"""What the folder of a visit says beside its line: the log alone makes no GPU well and none ill."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.files import append_line
from reports.handover import visit_folders, visit_history
from tests.selftests import support
from tests.selftests.support import result_line

pytestmark = pytest.mark.cpu

Lines = list[dict[str, Any]]
METRICS = ("gemm.bf16_per_ghz", "memory.triad")


class Patrol:
    """The state of a patrol of one node with two GPUs; its last visit was an hour ago."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.first = round(time.time() - 5 * 3600)
        for hour in range(4):
            self.visit(hour)

    @property
    def log(self) -> Path:
        return self.state / "visits.jsonl"

    def folder(self, hour: int) -> Path:
        return self.state / "visits" / f"{self.first + 3600 * hour}-n0"

    def visit(self, hour: int, outcome: str = "done", *, line: bool = True) -> None:
        head = {"node": "n0", "job": str(hour), "start": float(self.first + 3600 * hour)}
        append_line(self.log, {**head, "outcome": "begun"})
        values = [{"uuid": f"GPU-{k}", "gpu": k, "metric": metric, "value": 100.0 + hour}
                  for k in range(2) for metric in METRICS]  # fmt: skip
        for v in values:
            workload, _, metric = v["metric"].partition(".")
            path = self.folder(hour) / "run" / "jobs" / "j" / f"rank{v['gpu']}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            measured = [{"metric": metric, "unit": "x", "samples": [v["value"]]}]
            append_line(path, support.line("started", v["gpu"]))
            own = {"workload": workload, "device": {"uuid": v["uuid"]}, "measurements": measured}
            append_line(path, {**result_line(v["gpu"]), **own})
        done = {**head, "end": head["start"] + 30, "outcome": outcome,
                "values": values if outcome == "done" else []}  # fmt: skip
        if line:
            append_line(self.log, done)

    def change(self, change: Callable[[Lines], Any]) -> None:
        lines = [json.loads(text) for text in self.log.read_text().splitlines()]
        change(lines)
        self.log.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def read(self) -> tuple[list[float], list[str]]:
        """Return the values of GPU 0's memory, and what is said to differ."""
        history = self.state / "history"
        visit_history.take_in(self.log, history)
        visit_history.take_in(self.log, history)
        rows = visit_history.read(history)
        values = [r["value"] for r in rows if (r["uuid"], r["metric"]) == ("GPU-0", METRICS[1])]
        return values, list(visit_history.differing(history, rows))


@pytest.fixture
def patrol(tmp_path) -> Patrol:
    return Patrol(tmp_path)


def value_of(lines: Lines, line: int, value: float) -> None:
    for entry in lines[line]["values"]:
        entry["value"] = value


def dropped(*numbers: int) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        lines[:] = [line for k, line in enumerate(lines) if k not in numbers]

    return change


@pytest.mark.parametrize(
    ("change", "values", "says"),
    [
        (lambda x: value_of(x, 3, 200), [100, 101, 102, 103], "the lower counts"),
        (lambda x: value_of(x, 3, 50), [100, 50, 102, 103], "the lower counts"),
        (lambda x: x[3]["values"].pop(), [100, 101, 102, 103], "the lower counts"),
        (lambda x: x[3]["values"][0].update(uuid="GPU-9"), [100, 101, 102, 103], "its folder says"),
        (dropped(2, 3), [100, 101, 102, 103], "is not in visits.jsonl"),
        (dropped(2), [100, 102, 103], "was never begun"),
        (lambda x: x[3].update(outcome="failed", values=[]), [100, 101, 102, 103], "the log says"),
        (lambda x: x[3].update(node="n1"), [100, 101, 102, 103], "n1: the visit"),
        (
            lambda x: x[3].update(start=x[3]["start"] + 60, end=x[3]["end"] + 60),
            [100, 101, 102, 103],
            "has no folder",
        ),
        (lambda x: x.append(x[3]), [100, 101, 102, 103], "is there twice"),
        (lambda x: x[3].update(end=x[3]["end"] + 1e6), [100, 101, 102, 103], "cannot have ended"),
        (lambda x: x[3].pop("start"), [100, 101, 102, 103], "a line of no visit"),
        (lambda x: x[3].update(values=5), [100, 101, 102, 103], "a line of no visit"),
    ],
    ids=map(str, range(13)),
)
def test_a_line_that_is_not_as_its_visit_left_it_is_said(patrol, change, values, says):
    if says == "was never begun":
        shutil.rmtree(patrol.folder(0).parent)
    patrol.change(change)
    found, differs = patrol.read()
    assert found == values
    assert any(says in line for line in differs), differs
    patrol.visit(20)
    assert patrol.read()[1] == [] or says == "n1: the visit" or "no visit" in says


def test_visits_as_they_were_left_differ_in_nothing(patrol):
    assert patrol.read() == ([100, 101, 102, 103], [])
    patrol.visit(4)
    assert patrol.read() == ([100, 101, 102, 103, 104], [])


def test_a_visit_that_was_over_when_it_gave_way_counts_and_one_that_was_not_does_not(patrol):
    patrol.visit(4, "gave way")
    assert patrol.read() == ([100, 101, 102, 103, 104], [])
    patrol.visit(5, "stopped")
    (rank,) = patrol.folder(5).rglob("rank0.jsonl")
    rank.write_text("".join(rank.read_text().splitlines(keepends=True)[:2]))
    assert patrol.read() == ([100, 101, 102, 103, 104], [])


def test_the_folder_of_a_round_that_was_killed_counts_once_no_round_can_write_its_line(
    patrol, monkeypatch
):
    patrol.visit(4, line=False)
    monkeypatch.setattr(visit_folders.time, "time", lambda: patrol.first + 4 * 3600.0 + 60)
    assert patrol.read() == ([100, 101, 102, 103], [])
    monkeypatch.setattr(visit_folders.time, "time", lambda: patrol.first + 5 * 3600.0)
    assert patrol.read() == ([100, 101, 102, 103, 104], [])


@pytest.mark.parametrize("cleared", [[0], [0, 1, 2], [0, 1, 2, 3]])
def test_folders_that_were_cleared_away_the_oldest_first_are_not_missed(patrol, cleared):
    for hour in cleared:
        shutil.rmtree(patrol.folder(hour))
    assert patrol.read() == ([100, 101, 102, 103], [])


def test_folders_of_other_names_are_none_of_visits(patrol):
    (patrol.state / "visits" / "notes").mkdir()
    (patrol.state / "visits" / "5-n0").mkdir()
    assert patrol.read()[0] == [100, 101, 102, 103]
