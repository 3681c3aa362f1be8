"""A failure on unchanged devices is not washed out by repetition; every attempt stays visible."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.records.run_directory import RunDirectory
from fixtures.run.judge_item import PASSES_AFTER_FAIL
from reports.pages import certificate
from tests.selftests.fleets import NODES, Data, FleetRun, as_attempt, fleet, whole_fleet

__all__ = ["fleet", "whole_fleet"]

pytestmark = pytest.mark.cpu

NODE = NODES[1]
KEY = ("gemm.bf16", NODE)


def attempts(fleet: FleetRun, *factors: float, uuid_of: dict[int, str] | None = None) -> None:
    """Write attempts of the node's GEMM whose rates are multiplied so; `uuid_of` by attempt."""
    first = fleet.read(f"gemm@{NODE}.json")
    for k, factor in enumerate(factors, 1):
        data: Data = as_attempt(first, k)
        for rank in data["ranks"]:
            for m in rank["measurements"]:
                m["samples"] = [factor * value for value in m.get("samples", [])]
        if uuid_of and k in uuid_of:
            data["ranks"][0]["device"]["uuid"] = uuid_of[k]
        suffix = "" if k == 1 else f".attempt{k}"
        fleet.write(f"gemm@{NODE}{suffix}.json", data)


@pytest.mark.parametrize(
    ("factors", "outcome", "passes"),
    [
        ((1.0,), "PASS", 0),
        ((1.0, 1.0), "PASS", 0),
        ((0.5,), "FAIL", 0),
        ((0.5, 1.0), "NOT_MEASURED", 1),
        ((0.5, 1.0, 1.0), "NOT_MEASURED", 2),
        ((0.5, 1.0, 1.0, 1.0), "PASS", 3),
        ((1.0, 1.0, 0.5, 1.0), "NOT_MEASURED", 1),
        ((0.5, 1.0, 1.0, 1.0, 0.5, 1.0), "NOT_MEASURED", 1),
        ((0.5, 1.0, 0.5, 1.0, 0.5, 1.0), "NOT_MEASURED", 1),
        ((0.5, 1.0, 1.0, 0.5), "FAIL", 0),
    ],
)
def test_a_failure_is_taken_back_by_passes_in_a_row_only(
    factors: tuple[float, ...], outcome: str, passes: int, fleet: FleetRun, tmp_path: Path
):
    attempts(fleet, *factors)
    verdict, rows = fleet.judged(tmp_path / "judged")
    row = rows[KEY]
    assert row["outcome"] == outcome
    if outcome == "NOT_MEASURED":
        assert row["cause"] == "repetition"
        assert f"passed {passes} of {PASSES_AFTER_FAIL} times in a row" in row["reason"]
        assert verdict["verdict"] == "INCOMPLETE"
        assert "--resume" in row["next_step"]
        assert (tmp_path / "judged" / "bad-nodes.txt").read_text() == ""
        assert NODE not in (tmp_path / "judged" / "good-nodes.txt").read_text().split()
    elif passes:
        assert any(note.startswith("attempt 1: FAIL") for note in row["notes"])


def test_a_failure_of_a_device_that_was_replaced_does_not_count(fleet, tmp_path):
    attempts(fleet, 0.5, 1.0, uuid_of={1: "GPU-that-was-sent-back"})
    _, rows = fleet.judged(tmp_path / "judged")
    assert rows[KEY]["outcome"] == "PASS"


def test_an_attempt_that_cannot_be_read_is_neither_pass_nor_failure(fleet, tmp_path):
    attempts(fleet, 0.5, 1.0, 1.0, 1.0)
    (fleet.root / "records" / f"gemm@{NODE}.attempt3.json").write_text("{")
    _, rows = fleet.judged(tmp_path / "judged")
    assert rows[KEY]["cause"] == "repetition"
    assert "passed 2 of 3" in rows[KEY]["reason"]


def test_a_count_that_failed_once_is_held_back_like_a_rate(fleet, tmp_path):
    first = fleet.read(f"allreduce@{NODE}.json")
    for k, wrong in ((1, 7), (2, 0)):
        data = as_attempt(first, k)
        for m in data["ranks"][0]["measurements"]:
            if m["metric"] == "errors":
                m["value"] = wrong
        fleet.write(f"allreduce@{NODE}{'' if k == 1 else '.attempt2'}.json", data)
    _, rows = fleet.judged(tmp_path / "judged")
    assert rows["allreduce.node.errors", NODE]["cause"] == "repetition"


def test_every_attempt_stands_on_the_certificate(fleet, tmp_path):
    attempts(fleet, 0.5, 1.0, 1.0, 1.0)
    verdict, _ = fleet.judged(tmp_path / "judged")
    page = certificate.page(RunDirectory(tmp_path / "judged"), verdict)
    row = page[page.index("Measured more than once") :]
    assert "attempt 1: FAIL" in row
    assert "attempt 3: PASS" in row
