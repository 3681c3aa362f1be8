"""Published limits beside what a fleet measured: taken, refused, or left as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fixtures.calibration.replacement import Beside, Replacement, text
from fixtures.thresholds.overlay import base_of

pytestmark = pytest.mark.cpu

ROW = {"model": "B200", "expect": 1450, "fail_below": 1400}


def compared(own: float, row: dict[str, object] | None = ROW) -> Beside:
    return Beside("gemm.bf16", "TFLOPS", "mamf", 1450, 1300, own, row, "gemm.bf16")


def test_both_stand_side_by_side():
    assert compared(1460).line == (
        "gemm.bf16: published in mamf: expect 1450, limit 1300; own 1460, limit 1400 TFLOPS"
    )
    assert compared(1460, None).line.endswith("own 1460 TFLOPS")


@pytest.mark.parametrize(
    ("own", "contradiction"),
    [(1299, "slower than"), (1301, ""), (1590, ""), (1600, "faster than")],
)
def test_what_the_margin_does_not_explain_is_a_contradiction(own, contradiction):
    found = compared(own).contradicts
    assert bool(found) is bool(contradiction)
    assert contradiction in found


def test_what_becomes_of_each_is_counted():
    made = Replacement([compared(1460), compared(1000), compared(1460, None)], ["Run a: x"], ["a"])
    assert (len(made.taken), len(made.refused), len(made.without)) == (1, 1, 1)
    assert made.summary == (
        "1 published limit replaced by own ones, 1 refused: they contradict what was measured, "
        "1 without an own limit"
    )
    assert Replacement([], [], []).summary == ""


def test_the_file_says_first_what_it_replaces_and_what_not(tmp_path: Path):
    made = Replacement([compared(1460), compared(1000)], ["Run a ended REJECTED"], ["a", "b"])
    written = text(made, tmp_path / "limits.yaml", tmp_path / "site", ["criteria: {}"])
    assert yaml.safe_load(written) == {"schema": 1, "base": "../limits.yaml", "criteria": {}}
    head = [line for line in written.splitlines() if line.startswith("#")]
    assert "Runs a, b." in head[1]
    assert "Run a ended REJECTED" in head[2]
    assert head[4].startswith("# REFUSED gemm.bf16: published in mamf")
    assert base_of(tmp_path / "x", tmp_path) == "x"


def test_a_fleet_that_scatters_does_not_loosen_the_published_limit(tmp_path: Path):
    """Half of the GPUs slow by 20 %: the median is as published, five sigma below it is not."""
    loose = compared(1440, {**ROW, "fail_below": 900})
    made = Replacement([loose], [], ["a"])
    assert (made.taken, made.without) == ([], [loose])
    assert "# no own limit: gemm.bf16" in text(made, tmp_path / "x.yaml", tmp_path, [])
    assert "own limit is below it" in text(made, tmp_path / "x.yaml", tmp_path, [])
