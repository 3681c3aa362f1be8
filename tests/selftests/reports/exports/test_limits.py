"""`python -m reports limits`, and the annex of the certificate: what a customer signs."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.hardware import GPUS
from fixtures.paths import THRESHOLDS
from fixtures.thresholds import definitions, overview
from fixtures.thresholds.loader import Thresholds
from reports.__main__ import main
from reports.exports import limits
from tests.selftests import support

pytestmark = pytest.mark.cpu

ORDER = """\
schema: 1
base: {base}
cluster:
  nodes: 4
  gpus_per_node: 8
  gpu_model: H100 SXM
  nics_per_node: 8
  nic_gbps: 400
  shared_tb: 100
{more}
"""


def order(folder: Path, more: str = "", name: str = "order.yaml") -> Path:
    file = folder / name
    file.write_text(ORDER.format(base=THRESHOLDS, more=more), encoding="utf-8")
    return file


PAGE_LINES = 81
"""Of A4 in 8 point Courier with margins of 10 mm."""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(["limits", *arguments])
    return status, capsys.readouterr().out


def test_the_limits_of_a_model_fit_on_seven_printed_pages(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, text = run(capsys, "--model", "H100 SXM")
    assert status == 0
    lines = text.splitlines()
    assert len(lines) <= 7 * PAGE_LINES
    assert max(map(len, lines)) <= limits.WIDTH


@pytest.mark.parametrize("model", [*GPUS, "cpu"])
def test_every_criterion_has_a_limit_with_its_source_or_a_reason(
    model: str, shipped: Thresholds
) -> None:
    rows = limits.rows_of(shipped, model)
    keys = {
        c.key if "size" not in c.at else overview.file_key(c) for c in shipped.criteria.values()
    }
    assert {row.criterion for row in rows} == keys
    for row in rows:
        assert bool(row.limit) != bool(row.not_judged), row
        assert row.unit
        assert row.title
        assert not row.limit or row.source, row


def test_the_text_names_unit_value_source_and_what_is_not_judged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, text = run(capsys, "--model", "H200 SXM")
    assert "gemm.bf16                         >= 605 TFLOPS" in text
    assert "expect 660; power_limit=default" in text
    assert "measured for this suite on 4x H200 SXM at 700 W, 2026-11" in " ".join(text.split())
    head, _, rest = text.partition("\nNot judged\n")
    assert "filesystem.write (alone, together)" in " ".join(rest.split())
    assert "filesystem.write.alone" not in head


def test_an_order_selects_among_the_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = run(capsys, "--csv", "--thresholds", str(order(tmp_path)))
    assert status == 0
    rows = list(csv.DictReader(io.StringIO(text)))
    shown = {r["limit"] for r in rows if r["criterion"] == "allreduce.cluster"}
    assert ">= 334.3 (0.9 of model 371.4)" in shown, "4 nodes with 8 NICs of 400 Gbit/s"
    assert not shown & {">= 400", ">= 345", ">= 335", ">= 315"}, "limits for other numbers of nodes"
    (nodes,) = (r for r in rows if r["criterion"] == "inventory.nodes")
    assert nodes["limit"] == "= 4"
    (copy,) = (r for r in rows if r["criterion"] == "memory.copy")
    assert copy["limit"].startswith(">= 27")


def test_what_changed_is_said_with_both_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = (
        "{model: H100 SXM, when: {power_limit: default}, expect: 640, fail_below: 620, "
        "source: deal}"
    )
    changed = f"criteria:\n  gemm.bf16:\n    limits:\n      - {row}"
    new, old = order(tmp_path, changed, "new.yaml"), order(tmp_path)
    status, text = run(capsys, "--thresholds", str(new), "--diff", str(old))
    assert status == 1
    assert text.splitlines()[0] == "gemm.bf16 (power_limit=default)"
    assert "- >= 600 TFLOPS, expect 680" in text
    assert "+ >= 620 TFLOPS, expect 640; deal" in text
    assert len([line for line in text.splitlines() if not line.startswith(" ")]) == 1
    status, text = run(capsys, "--thresholds", str(old), "--diff", str(old))
    assert (status, text) == (0, "no limit differs\n")


def test_a_customer_s_file_is_short_and_narrow() -> None:
    """At most 4 lines per criterion, and one per limit and group of models; 120 columns."""
    lines = THRESHOLDS.read_text(encoding="utf-8").splitlines()
    assert max(map(len, lines)) <= 120
    start, end = lines.index("criteria:"), lines.index("not_applicable:")
    body = [line for line in lines[start + 1 : end] if line.strip() and "# " not in line[:8]]
    keys = [line for line in body if line.startswith("  ") and line[2] != " "]
    rows = [line for line in body if line.startswith("      - ")]
    assert len(body) == 4 * len(keys) + len(rows)
    assert set(definitions.shipped().criteria) == {key.strip(" :") for key in keys}


def test_what_defines_a_measurement_is_not_in_the_customer_s_file() -> None:
    text = THRESHOLDS.read_text(encoding="utf-8")
    for name in ("measure:", "statistic:", "valid:", "over:", "tier:", "per:", "demonstration"):
        found = [line for line in text.splitlines() if line.strip().startswith(name)]
        assert found == [], name
    assert "model: cpu" not in text


# --- of a small file of limits


def limits_of(folder: Path, *arguments: str) -> int:
    support.load(folder)
    return main(["limits", "--thresholds", str(folder / "thresholds.yaml"), *arguments])


def test_the_limits_are_of_the_order_of_the_file_or_of_a_model(tmp_path, capsys):
    assert limits_of(tmp_path) == 0
    out = capsys.readouterr().out
    assert out.startswith("Limits for 2 nodes of 2 H200 SXM; thresholds.yaml, SHA-256 ")
    assert max(map(len, out.splitlines())) <= 112
    assert limits_of(tmp_path, "--model", "B200") == 0
    out = capsys.readouterr().out
    assert out.startswith("Limits for B200, any order; ")
    assert "calibrat" in out


def test_a_difference_is_the_exit_status(tmp_path, capsys):
    same, other = tmp_path / "same.yaml", tmp_path / "other.yaml"
    same.write_text(support.LIMITS)
    other.write_text(support.LIMITS.replace("fail_below: 605", "fail_below: 600"))
    assert limits_of(tmp_path, "--diff", str(same)) == 0
    assert "no limit differs" in capsys.readouterr().out
    assert limits_of(tmp_path, "--diff", str(other)) == 1
    out = capsys.readouterr().out
    assert "gemm.bf16" in out
    assert "- >= 600 TFLOPS" in out
    assert "+ >= 605 TFLOPS" in out


def test_a_long_line_is_broken_at_112_characters():
    (first, second) = limits._wrapped("word " * 23, indent=4)
    assert (len(first) <= 112, second) == (True, "    word")


def test_a_limit_that_is_no_longer_judged_is_a_difference_with_its_reason():
    judged = overview.LimitRow(
        criterion="own.rate", title="Rate", unit="GB/s", when="", limit=">= 5", expect="",
        source="deal", not_judged="",
    )  # fmt: skip
    recorded = replace(judged, limit="", source="", not_judged="to be calibrated")
    assert list(limits.differences([recorded], [judged])) == [
        "own.rate", "  - >= 5 GB/s; deal", "  + not judged: to be calibrated",
    ]  # fmt: skip
