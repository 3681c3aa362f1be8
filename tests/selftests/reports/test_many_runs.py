"""Many runs: the SQL of the docs over Parquet files, and the dashboard over Prometheus text."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest

from reports.exports import export
from tests.selftests.support import CHECKOUT, DATA, judged

pytestmark = pytest.mark.cpu

PAGE = (CHECKOUT / "docs" / "many-runs.md").read_text(encoding="utf-8")
DASHBOARD = json.loads((CHECKOUT / "deploy/grafana/acceptance.json").read_text(encoding="utf-8"))
COLUMNS = 24
"""Of Grafana's grid."""


@pytest.fixture(scope="module")
def verdict(tmp_path_factory) -> dict:
    return judged(DATA / "sandbox-2x2-cpu", tmp_path_factory.mktemp("many") / "run")[1]


def row_of(verdict: dict, criterion: str, subject: str) -> dict:
    return next(
        r for r in verdict["criteria"] if (r["criterion"], r["subject"]) == (criterion, subject)
    )


# --- DuckDB


def queries() -> list[str]:
    return re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def history(verdict, tmp_path, monkeypatch) -> Path:
    """Four runs, of which worker1 fails in two, and is slower in the last."""
    pytest.importorskip("pyarrow")
    (tmp_path / "history").mkdir()
    for k in range(4):
        changed = copy.deepcopy(verdict)
        row = row_of(changed, "gemm.bf16", "worker1")
        row["value"] = 8.0 if k < 3 else 6.0
        if k in (1, 3):
            row["outcome"] = "FAIL"
            row["worst"] = {"node": "worker1", "gpu": 1, "uuid": "GPU-1", "value": row["value"]}
        out = tmp_path / "history" / f"2026112{k}-120000-abcd.parquet"
        assert export.write(changed, "parquet", out) == 0
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_sql_of_the_docs_finds_what_failed_and_what_drifts(history):
    duckdb = pytest.importorskip("duckdb")
    failures, drift = (duckdb.sql(text).fetchall() for text in queries())
    assert failures == [("worker1", "gemm.bf16", 2, "20261123-120000-abcd")]
    criterion, subject, unit, before, now, percent = drift[0]
    assert (criterion, subject, unit) == ("gemm.bf16", "worker1", "TFLOPS")
    assert (before, now, percent) == (8.0, 6.0, -25.0)
    assert all(row[5] == 0 for row in drift[1:]), "nothing else has drifted"


# --- Grafana


def expressions() -> list[str]:
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return found + [
        variable["definition"]
        for variable in DASHBOARD["templating"]["list"]
        if variable["type"] == "query"
    ]


def series(text: str) -> dict[str, set[str]]:
    """Metric -> its labels, of the text that export writes."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if match := re.match(r"(\w+)\{(.*)\} \S+$", line):
            found.setdefault(match[1], set()).update(re.findall(r'(\w+)="', match[2]))
    return found


def test_the_dashboard_asks_for_what_export_writes_and_for_all_of_it(verdict):
    written = series(export.prometheus(verdict))
    asked = {name for text in expressions() for name in re.findall(r"gpu_acceptance_\w+", text)}
    assert asked == set(written)
    for text in expressions():
        for name, matchers in re.findall(r"(gpu_acceptance_\w+)\{([^}]*)\}", text):
            assert set(re.findall(r"(\w+)(?:=~|!~|!=|=)", matchers)) <= written[name], text
    labels = {v["name"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"}
    assert labels <= written["gpu_acceptance_pass"]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            name = re.search(r"gpu_acceptance_\w+", target["expr"])[0]
            assert shown <= written[name], target


def test_the_outcomes_of_the_dashboard_are_those_of_a_run(verdict):
    asked = {o for text in expressions() for o in re.findall(r'outcome="(\w+)"', text)}
    assert asked <= set(verdict["counts"])
    assert {"fail", "not_measured", "pass"} <= asked


def test_its_variables_are_declared_and_its_panels_do_not_overlap():
    declared = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(DASHBOARD["panels"])))
    assert used <= declared
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                 for y in range(at["y"], at["y"] + at["h"])}  # fmt: skip
        assert at["x"] + at["w"] <= COLUMNS
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["title"]
        assert panel["description"].endswith(".")
