"""The parts of the report above its table: what is drawn, counted and shown, and how much of it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.errors import ConfigError
from fixtures.records.run_directory import RunDirectory
from fixtures.verdict.model import Outcome
from reports.facts.causes import Failure
from reports.pages import figures
from reports.plots.charts import Chart
from tests.selftests import support
from tests.selftests.plain_records import plain_record, reader_of
from tests.selftests.reports.pages.test_page import measured, planned

pytestmark = pytest.mark.cpu


def row(outcome: Outcome = Outcome.PASS, subject: str = "n0", key: str = "gemm.bf16", **more: Any):
    return {**measured(key, subject, outcome, 641.2).to_json(), **more}


# --- what the templates are given


@pytest.fixture
def shown(monkeypatch):
    """What each template is given for rows and nodes; the charts are made up."""
    given: dict[str, Any] = {}

    def render(name: str, **data: Any) -> str:
        given.update(data)
        return f"<{name}>"

    def of(criteria: list[Any], nodes: Any = (), drawn: Any = None, **run: Any) -> Any:
        given.clear()

        def draw(*_: Any) -> Any:
            if isinstance(drawn, Exception):
                raise drawn
            return drawn or figures._Drawn()

        monkeypatch.setattr(figures, "_draw", draw)
        scope = None if nodes is None else {"nodes": nodes}
        verdict = {"criteria": criteria, "scope": scope}
        made = figures.parts(RunDirectory(Path("nowhere")), verdict, run)
        assert (made.failures, made.body) == ("<failed_rows.jinja2>", "<figures.jinja2>")
        return SimpleNamespace(**given)

    monkeypatch.setattr(figures.banner, "render", render)
    monkeypatch.setattr(figures, "tail_chart", lambda *_: None)
    monkeypatch.setattr(figures, "_limits", lambda *_: None)
    return of


def test_both_parts_are_one_text(shown):
    shown([])
    verdict = {"criteria": [], "scope": None}
    text = figures.figures(RunDirectory(Path("nowhere")), verdict, {})
    assert text == "<failed_rows.jinja2><figures.jinja2>"


def test_the_first_200_failures_are_counted_and_40_shown_in_full(shown):
    rows = [row(), *(row(Outcome.FAIL, f"n{k}", f"x{k}.rate") for k in range(201))]
    found = shown(rows)
    assert [entry["subject"] for entry in found.failed] == [f"n{k}" for k in range(200)]
    assert found.max_shown == 40


def test_a_failure_leads_to_its_chart_and_its_page(shown):
    drawn = figures._Drawn(charts=[Chart("t", "d", "<svg>", key="gemm.bf16")])
    rows = [row(Outcome.FAIL), row(Outcome.FAIL, "n1", key="gemm.fp8")]
    first, second = shown(rows, drawn=drawn, path="/x/reports/runs/r").failed
    assert (bool(first["chart"]), second["chart"]) == (True, "")
    assert first["docs_url"] == f"../../../{first['docs']}"


def test_an_error_of_the_charts_is_a_line_in_their_place(shown):
    assert shown([row()], drawn=ConfigError("changed")).charts_error == "No charts: changed"
    assert shown([row()]).charts_error == ""


def test_of_a_large_matrix_160_rows_are_shown_and_what_did_not_pass_first(shown):
    names = [f"n{k:03}" for k in range(161)]
    rows = [row(Outcome.FAIL if name == "n160" else Outcome.PASS, name) for name in names]
    found = shown(rows, names)
    assert (len(found.shown), found.shown[0], found.not_shown) == (160, "n160", 1)
    assert found.not_shown_not_passed == 0
    all_red = [row(Outcome.FAIL, name) for name in names]
    assert shown(all_red, names).not_shown_not_passed == 1
    found = shown(rows[1:], names[1:])
    assert (found.shown[0], found.shown[-1], found.not_shown) == ("n001", "n160", 0)


def test_racks_are_shown_above_32_nodes(shown):
    names = [f"n{k}" for k in range(33)]
    assert shown([], names[:32]).racks == []
    assert len(shown([], names).racks) == 2
    assert shown([], None).racks == []


# --- what is drawn


def drawn_of(monkeypatch, nodes: list[str], criteria: list[Any]) -> tuple[Any, list[str]]:
    failed: list[str] = []

    def records(reader: Any, all_nodes: Any, of: list[str], rows: Any) -> list[Any]:
        failed.extend(of)
        return [support.record(support.rank(0, "n0"))]

    def charts(of: Any, *_: Any) -> list[Chart]:
        assert len(list(of)) == 1
        return [Chart("one", "", "", key="gemm.bf16")]

    monkeypatch.setattr(figures, "_records_to_draw", records)
    monkeypatch.setattr(figures.charts, "charts", charts)
    monkeypatch.setattr(figures.charts, "charts_of_verdicts", lambda *_: [Chart("all", "", "")])
    monkeypatch.setattr(
        figures.LimitSources, "of", lambda _: SimpleNamespace(of_limit=lambda key, limit: limit)
    )
    made = figures._draw(
        reader_of(RunDirectory(Path("nowhere"))), nodes, criteria, SimpleNamespace(criteria={})
    )
    return made, failed


def test_of_a_large_run_the_verdicts_are_drawn_too(monkeypatch):
    rows = [row(), row(Outcome.FAIL, "n1"), row(Outcome.FAIL, "n1", "gemm.fp8")]
    made, failed = drawn_of(monkeypatch, ["n"] * 32, rows)
    assert [(c.title, c.source) for c in made.charts] == [("one", ">= 605")]
    assert failed == ["n1"]
    made, _ = drawn_of(monkeypatch, ["n"] * 33, rows)
    assert [c.title for c in made.charts] == ["all", "one"]


def test_of_a_large_run_the_records_of_four_nodes_are_drawn(tmp_path):
    run = RunDirectory(tmp_path)
    run.records.mkdir()
    nodes = [f"n{k}" for k in range(33)]
    for name in (*nodes, "all"):
        support.save(plain_record(f"gemm@{name}.json", {"node": "n5" if name == "all" else name}),
                     run)  # fmt: skip
    for name, size in (("n0", 16_000_000), ("n1", 16_000_001)):
        with (run.records / f"gemm@{name}.json").open("a") as file:
            file.write(" " * (size - file.tell()))

    def drawn(count: int, *failed: str, rows: Any = ()) -> list[str]:
        found = figures._records_to_draw(reader_of(run), nodes[:count], failed, rows)
        return [record.placement for record in found]

    assert sorted(drawn(32)) == sorted([*nodes, "all"]), "every one"
    assert drawn(33, "n20", "cluster") == ["all", "n0", "n2", "n20"]  # n1 is too large
    assert drawn(33, *nodes[20:30]) == ["all", "n20", "n21", "n22", "n23"]
    lost = row(Outcome.NOT_MEASURED, "n20", record="gemm@n20.json")
    assert drawn(33, *nodes[20:30], rows=[lost]) == ["all", "n21", "n22", "n23"], "no measurement"
    other = row(Outcome.FAIL, "n20", "gemm.fp8", record="gemm@n20.json")
    assert "n20" in drawn(33, *nodes[20:30], rows=[lost, other]), "a row of it was measured"
    whole = row(Outcome.NOT_MEASURED, "all", record="gemm@all.json")
    assert drawn(33, "n20", rows=[whole]) == ["n0", "n2", "n20"], "none of its rows was"
    support.save(plain_record("gemm@n20.attempt2.json", {}, nonce="f" * 32), run)
    assert "n20" not in drawn(33, *nodes[20:30]), "its newest attempt is of another run"


# --- what is not judged


def test_what_is_recorded_has_its_worst_and_best_by_unit():
    def told(unit: str, *values: Any) -> tuple[str, str, str, int]:
        rows = [row(Outcome.RECORDED, f"n{k}", value=v, unit=unit) for k, v in enumerate(values)]
        (found,) = figures._recorded([row(), planned("x", "n", Outcome.RECORDED).to_json(), *rows])
        return found.worst, found.where, found.best, found.count

    assert told("GB/s", 2.0, 1.0, 3.0) == ("1 GB/s", "n1", "3 GB/s", 3)
    assert told("us", 2.0, 1.0, 3.0) == ("3 us", "n2", "1 us", 3)
    assert told("state", "up", 1) == ("up state", "n0", "1 state", 2)


def test_docs_are_linked_only_from_a_run_inside_of_a_checkout():
    url = figures._docs_url
    assert url({"path": "/x/reports/runs/r"}, "docs/a.md") == "../../../docs/a.md"
    assert url({"path": "/x/reports/runs/r"}, "") == ""
    assert url({"path": "/x/other/runs/r"}, "docs/a.md") == ""
    assert url({}, "docs/a.md") == ""


def test_the_limits_are_those_by_which_the_run_was_judged(tmp_path):
    own = support.load(tmp_path)
    path = tmp_path / "thresholds.yaml"
    moved = tmp_path / "moved.yaml"
    run = {"thresholds": {"path": str(path), "sha256": own.sha256}}
    assert figures._limits(run, None).sha256 == own.sha256
    path.rename(moved)
    assert figures._limits(run, moved).sha256 == own.sha256
    for bad in (run, {}, {"thresholds": {"sha256": "0"}}):
        with pytest.raises(ConfigError, match="is missing, or has changed since"):
            figures._limits(bad, None)


# --- a failure


def test_a_failure_names_part_and_device_record_and_workload(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "tail_chart", lambda _, v, criterion: criterion)
    limits = support.load(tmp_path)

    def entry(**more: Any) -> dict[str, Any]:
        failure = Failure([row(Outcome.FAIL, **more)])
        return figures._failure(reader_of(RunDirectory(tmp_path)), failure, limits)

    found = entry()
    assert (found["where"], found["uuid"]) == ("n0 gpu3", "GPU-8f1c2d-n0")
    assert (found["record_url"], found["workload"]) == ("gemm%40n0.json", "gemm")
    assert found["over_time"] is limits.criteria["gemm.bf16"]
    assert found["noun"] == "bf16 rate"
    assert json.loads(found["at"]) == ["gemm.bf16", "n0"]
    assert entry(worst={"part": "nic0", "gpu": 3})["where"] == "n0 nic0"
    assert entry(worst={"gpu": 0})["where"] == "n0 gpu0"
    assert entry(worst=None)["where"] == "n0"
    assert (entry(record=None)["record_url"], entry(record=None)["workload"]) == ("", "")
    bare = figures._failure(reader_of(RunDirectory(tmp_path)), Failure([row(Outcome.FAIL)]), None)
    assert bare["over_time"] is None


def test_a_gpu_s_telemetry_is_its_mean_and_its_highest():
    cells = figures.telemetry_cells({"util": {"mean": 90.0, "max": 99.0}, "power_w": 600.0})
    assert {k: v for k, v in cells.items() if v} == {"utilisation %": "90 (99)", "W": "600"}
    assert cells["C"] == ""


def a_record(root: Path, nodes: list[str]) -> RunDirectory:
    run = RunDirectory(root)
    run.records.mkdir()
    ranks = [
        {"node": node, "local_rank": k, "device": {"uuid": f"GPU-{node}{k}"},
         "facts": {"telemetry": {"gpus": {f"GPU-{node}0": {}, f"GPU-{node}9": {}}}} if k else {}}
        for node in nodes for k in (0, 1)
    ]  # fmt: skip
    support.save(plain_record("x@n0.json", *ranks), run)
    return run


def test_beside_a_failure_stands_the_telemetry_of_its_node_or_of_four(tmp_path):
    run = a_record(tmp_path, [f"n{k}" for k in range(5)])

    def rows(subject: str = "n1", worst: Any = None) -> list[tuple[str | None, str]]:
        found = figures._telemetry(
            reader_of(run), {"record": "x@n0.json", "subject": subject, "worst": worst}
        )
        return [(of.get("Node"), of["GPU"]) for of in found]

    assert rows() == [(None, "gpu0"), (None, "GPU-n19")]
    assert rows("cluster", {"node": "n2"}) == [(None, "gpu0"), (None, "GPU-n29")]
    assert [node for node, _ in rows("cluster")[::2]] == ["n0", "n1", "n2", "n3"]
    path = run.records / "x@n0.json"
    text = path.read_text()
    path.write_text(text + " " * (16_000_000 - len(text)))
    assert len(rows()) == 2
    with path.open("a") as file:
        file.write(" ")
    assert rows() == []
    path.unlink()
    assert rows() == []
