"""What GitHub Actions shows of a run, within its limits, with nothing hostile in it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from reports.exports import github
from tests.selftests.support import CHECKOUT, DATA, replay

pytestmark = pytest.mark.cpu


def verdict(*outcomes: str, reason: str = "", subject: str = "worker0") -> dict:
    criteria = [
        {"criterion": f"gemm.c{k}", "subject": subject, "outcome": o, "value": 541.2,
         "unit": "TFLOPS", "limit": ">= 605", "reason": reason, "next_step": "check it"}
        for k, o in enumerate(outcomes)
    ]  # fmt: skip
    fails = outcomes.count("FAIL")
    return {
        "verdict": "REJECTED" if fails else "PARTIAL", "exit_status": 1 if fails else 0,
        "reasons": [reason] if reason else [], "counts": {"planned": len(outcomes), "fail": fails},
        "criteria": criteria,
    }  # fmt: skip


def test_failures_come_first_and_passes_are_not_listed():
    text = github.markdown(verdict("PASS", "NOT_MEASURED", "FAIL"))
    rows = [line for line in text.splitlines() if line.startswith("| ") and "outcome" not in line]
    assert [row.split(" | ")[0] for row in rows] == ["| FAIL", "| NOT MEASURED"]
    assert "541.2 TFLOPS" in rows[0]
    assert "gemm.c0" not in text


def test_the_summary_stays_below_githubs_limit_and_says_how_many_are_left_out():
    text = github.markdown(verdict(*["FAIL"] * 12_000, reason="long " * 40))
    assert len(text.encode()) <= 1 << 20
    shown = text.count("| FAIL |")
    assert f"and {12_000 - shown} more" in text


@pytest.mark.parametrize(("failures", "lines"), [(1, 1), (10, 10), (11, 10), (500, 10)])
def test_there_are_ten_annotations_at_most_and_none_is_lost_silently(failures, lines):
    said = github.annotate(verdict(*["FAIL"] * failures))
    assert len(said) == lines
    assert all(line.startswith("::error title=") for line in said)
    assert ("more: see the job summary" in said[-1]) == (failures > 10)


def test_hostile_text_is_no_html_no_markdown_and_no_second_command():
    bad = "<script>x</script> | [a](http://b)\n::error::forged %0A"
    text = github.markdown(verdict("FAIL", reason=bad, subject="a|b"))
    assert "<script>" not in text
    assert "](" not in text
    (row,) = [line for line in text.splitlines() if line.startswith("| FAIL")]
    assert row.count("|") == 7
    (said,) = github.annotate(verdict("FAIL", reason=bad))
    assert "\n" not in said
    assert "%250A" in said


def test_a_recorded_run_is_summed_up_into_the_file_of_the_step(tmp_path):
    replay(DATA / "sandbox-2x2-cpu", tmp_path / "run")
    into = tmp_path / "summary.md"
    run = subprocess.run(
        [sys.executable, "-m", "reports", "summary", "--github", str(tmp_path / "run")],
        cwd=CHECKOUT, capture_output=True, text=True,
        env={"GITHUB_STEP_SUMMARY": str(into), "PATH": "/usr/bin"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    said = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert into.read_text().startswith(f"## {said['verdict']}\n")
    assert run.stdout.startswith("::notice title=DEMONSTRATION::")


def test_a_run_without_a_verdict_is_an_error(tmp_path):
    command = [sys.executable, "-m", "reports", "summary", "--github", str(tmp_path)]
    run = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stdout.startswith("::error title=INCOMPLETE::")


# --- parts of it


def test_rows_fit_up_to_200_bytes_below_the_limit():
    assert github._with_rows("head", ["row", "row"], 210) == "headrowrow"
    assert github._with_rows("head", ["row", "row"], 209).startswith("headrow\nand 1 more")
    assert github._with_rows("head", [], 0) == "head"


def test_what_is_recorded_has_a_table_where_there_is_room():
    said = verdict("RECORDED", "PASS")
    text = github.markdown(said)
    assert "### 1 recorded, not judged" in text
    assert "| worker0 | gemm.c0 | 541.2 TFLOPS |" in text
    assert "not judged" not in github.markdown(said, limit=60)
    assert "not judged" not in github.markdown(verdict("PASS"))
    assert "| outcome |" not in text


def test_a_value_has_its_unit_and_no_value_has_none():
    for value, cell, start in (
        (541.2, "541.2 TFLOPS", "541.2 TFLOPS, limit"), (None, "", "limit >= 605"),
        ("up", "up TFLOPS", "up TFLOPS, limit"),
    ):  # fmt: skip
        (row,) = verdict("FAIL", reason="slow")["criteria"]
        assert github._measured({**row, "value": value}) == cell
        text = github._annotation_text({**row, "value": value})
        assert text.startswith(start)
        assert text.endswith("; slow; check it")
    (row,) = verdict("FAIL")["criteria"]
    assert github._row({**row, "limit": None}).count("|") == 7


def test_a_run_without_failures_is_one_annotation_of_its_exit_status():
    for status, level in ((0, "notice"), (2, "warning"), (3, "error")):
        said = github.annotate({**verdict("PASS"), "exit_status": status})
        assert said == [f"::{level} title=PARTIAL::all of it"]
    assert github.annotate(verdict("PASS", reason="why")) == ["::notice title=PARTIAL::why"]


def test_the_summary_goes_to_the_file_of_github_else_to_the_screen(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert github.show(verdict("PASS")) == 0
    assert capsys.readouterr().out.startswith("## PARTIAL")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    assert github.show(verdict("PASS")) == 0
    assert capsys.readouterr().out == "::notice title=PARTIAL::all of it\n"
    assert (tmp_path / "summary").read_text().startswith("## PARTIAL")
    assert github.print_error("no, run", "a:b\n", 4) == 4
    assert capsys.readouterr().out == "::error title=no%2C run::a:b%0A\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ask @org/team now", "ask `@org/team` now"),
        ("see https://a.example/x_y?z=1 or www.b.example.", "see `https://a.example/x_y?z=1` or "
         "`www.b.example.`"),
        ("mail root@a.example", "mail `root@a.example`"),
        ("gemm@worker0 is slow", "gemm@worker0 is slow"),
        ("http://a.example|b`c`", "`http://a.example`&#124;b&#96;c&#96;"),
    ],
)  # fmt: skip
def test_nobody_is_mentioned_and_nothing_is_linked(text, shown):
    assert github._escape_markdown(text) == shown
