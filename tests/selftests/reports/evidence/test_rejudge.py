"""The second judge beside the first: limits as plain data, and what is said of the two."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.cluster.population import contract_json
from fixtures.thresholds import loader
from fixtures.thresholds.limits import Limit
from reports import __main__ as command
from reports.evidence import rejudge
from reports.evidence.run_files import CommandError
from reports.second_judge import plan
from reports.second_judge.physics import Unknown
from tests.selftests import support

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def judged(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("rejudge") / "run"
    support.judged(support.DATA / "sandbox-2x2-cpu", root)
    return root


@pytest.fixture
def run(judged, tmp_path) -> Path:
    return Path(shutil.copytree(judged, tmp_path / "run"))


def test_the_command_says_that_both_agree(run, capsys):
    assert command.main(["rejudge", str(run)]) == 0
    out = capsys.readouterr().out
    assert "second judge: DEMONSTRATION; 437 of 437 rows judged again" in out
    assert "BOTH JUDGES AGREE" in out


def _edit(root: Path, change) -> None:
    with support.edited(root / "verdict.json") as verdict:
        change(verdict)


def _row(verdict, criterion: str):
    return next(row for row in verdict["criteria"] if row["criterion"] == criterion)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v: v.update(verdict="ACCEPTED"), "the run is ACCEPTED, second judge DEMONSTRATION"),
        (lambda v: v["criteria"].pop(0), "in the plan of the run, but not in verdict.json"),
        (lambda v: v["criteria"].append(v["criteria"][0]), "verdict.json has a row twice"),
        (lambda v: v["criteria"][0].update(outcome="FAIL"), ": FAIL, second judge PASS"),
        (lambda v: v["counts"].update({"pass": 1}), "1 row pass, second judge 285"),
        (
            lambda v: _row(v, "gemm.bf16").update(value=9.0),
            "gemm.bf16 worker0: 9.0, second judge",
        ),
    ],
    ids=["verdict", "row left out", "row twice", "outcome", "count", "value"],
)  # fmt: skip
def test_what_does_not_follow_from_the_records_is_named(run, capsys, change, said):
    _edit(run, change)
    assert command.main(["rejudge", str(run)]) == 1
    out = capsys.readouterr().out
    assert said in out
    assert "THE JUDGES DISAGREE" in out


def test_a_row_that_needs_an_unknown_rule_is_named_as_not_covered(run, monkeypatch):
    monkeypatch.delitem(plan.FACTS, "slurm")
    compared = rejudge.compare(run, support.limits_of(run))
    assert compared.wrong == []
    assert compared.uncovered
    assert all(line.endswith(": slurm of its definition") for line in compared.uncovered)


# --- limits as plain data

EXEMPTION = """
not_applicable:
  - {criteria: [gemm.bf16], when: {model: L40S, nodes: 2}, reason: no such link here}
  - {criteria: [gemm.bf16], when: {gpus: {min: 2}}, reason: one GPU is enough}
"""


def plain_of(folder: Path, text: str = support.LIMITS + EXEMPTION) -> dict[str, Any]:
    return rejudge.plain(support.load(folder, text))


def _criterion(limits: dict[str, Any], key: str) -> dict[str, Any]:
    return next(c for c in limits["criteria"] if c["key"] == key)


def test_the_order_exemptions_and_waivers_are_plain_data(tmp_path):
    found = plain_of(tmp_path)
    assert found["order"] == {"names": None, "count": 2}
    assert found["waivers"] == [
        {"criterion": "gemm.bf16", "node": "waived", "expires": "2026-12-31"}
    ]
    first, second = found["not_applicable"][:2]
    assert first == {"criteria": ["gemm.bf16"], "when": {"model": ["L40S"], "nodes": 2}}
    assert second["when"] == {"gpus": {"min": 2, "max": None}}
    json.dumps(found)
    without = support.LIMITS.replace(
        "cluster: {nodes: 2, gpus_per_node: 2, gpu_model: H200 SXM}", "cluster:"
    )
    assert plain_of(tmp_path, without)["order"] is None


def test_a_limit_is_a_kind_a_number_and_its_conditions(tmp_path):
    found = plain_of(tmp_path)

    def told(key: str) -> list[tuple[Any, ...]]:
        rows = _criterion(found, key)["rows"]
        return [(r["kind"], r["value"], r["of_ceiling"], r["of_model"]) for r in rows]

    assert told("gemm.bf16") == [
        ("below", 605, False, False), ("calibrate", None, False, False),
        ("recorded", None, False, False),
    ]  # fmt: skip
    assert told("gemm.spread") == [("above", 10, False, False)]
    assert told("inventory.gpus") == [("equals", 2, False, False)]
    assert told("inventory.gpu_model") == [("equals", "H200 SXM", False, False)]
    when = [r["when"] for r in _criterion(found, "allreduce.nvls")["rows"]]
    assert when == [{"nvls": True}, {"nvls": False}]
    assert _criterion(found, "gemm.bf16")["rows"][0]["when"] == {"model": ["H200 SXM"]}


@pytest.mark.parametrize(
    ("limit", "kind", "value", "of_ceiling", "of_model"),
    [
        ("fail_below: 0.6 of ceiling", "below", 0.6, True, False),
        ("fail_above: 0.9 of model", "above", 0.9, False, True),
        ("fail_below: 0.5 of cluster.gpus_per_node", "below", 1.0, False, False),
        ("equals: up", "equals", "up", False, False),
        ("equals: 3", "equals", 3, False, False),
        ("equals: cluster.nics_per_node", "equals", None, False, False),
        ("fail_below: 0.95 of cluster.shared_tb", "below", None, False, False),
    ],
)
def test_a_share_is_of_the_ceiling_of_the_model_or_of_the_order(
    tmp_path, limit, kind, value, of_ceiling, of_model
):
    row = _row_of(tmp_path, limit)
    assert (row["kind"], row["of_ceiling"], row["of_model"]) == (kind, of_ceiling, of_model)
    assert row["value"] == value


def _row_of(folder: Path, limit: str) -> dict[str, Any]:
    kind, _, value = limit.partition(": ")
    order = support.load(folder).cluster
    made = Limit.model_validate({kind: value if not value.isdigit() else int(value),
                                 "source": "a test"})  # fmt: skip
    return rejudge._row(made, SimpleNamespace(cluster=order))


def test_without_an_order_a_share_of_it_is_not_known(tmp_path):
    made = Limit.model_validate({"fail_below": "0.5 of cluster.nodes", "source": "a test"})
    assert rejudge._row(made, SimpleNamespace(cluster=None))["value"] is None


def test_a_definition_has_its_spread_by_model_and_its_bounds(tmp_path):
    found = plain_of(tmp_path)
    gemm, latency = _criterion(found, "gemm.bf16"), _criterion(found, "allreduce.latency")
    assert gemm["spread"][""]["delta"] == 0.08
    assert latency["spread"] is None
    assert gemm["valid"] == {"overlap": (0.8, None)}
    entry = SimpleNamespace(
        bounds={"clock": (None, 1.05)}, model=("H200 SXM",),
        when=SimpleNamespace(given=lambda: {"power_limit": "default"}),
    )  # fmt: skip
    assert rejudge._bounds(entry) == {
        "bounds": {"clock": (None, 1.05)},
        "when": {"model": ["H200 SXM"], "power_limit": "default"},
    }
    entry.model = ()
    assert rejudge._bounds(entry)["when"] == {"power_limit": "default"}


# --- both judges


ROWS = {("x", "a"): ("PASS", 1.0), ("y", "a"): ("FAIL", 2.0)}


@pytest.fixture
def compared(monkeypatch, tmp_path):
    """Compares a verdict with a second judge that answers as it is told."""

    def of(
        stated: Any = None, answers: Any = None, *, ended: str = "now", basis: Any = None,
        by_figure: Any = None, contract: Any = None,
    ) -> Any:  # fmt: skip
        answers = answers or ROWS
        interruptions: list[bool] = []

        def outcome(key: Any) -> Any:
            if isinstance(answers[key], Exception):
                raise answers[key]
            return answers[key]

        judge = SimpleNamespace(
            run={"scope": [list(key) for key in ROWS], "ended": ended, "contract": contract},
            outcome=outcome, by_figure={**dict.fromkeys(ROWS, False), **(by_figure or {})},
            conclude=lambda outcomes, interrupted: interruptions.append(interrupted) or "REJECTED",
            p=SimpleNamespace(differing=[]),
        )  # fmt: skip
        verdict = {
            "criteria": [{"criterion": c, "subject": s, "outcome": o, "value": v}
                         for (c, s), (o, v) in ROWS.items()],
            "verdict": "REJECTED", "counts": {"planned": 9, "pass": 1, "fail": 1}, "basis": basis,
            **(stated or {}),
        }  # fmt: skip
        monkeypatch.setattr(rejudge, "judges_of", lambda *_: judge)
        monkeypatch.setattr(rejudge, "read_verdict", lambda _: verdict)
        found = rejudge.compare(tmp_path, support.load(tmp_path))
        return found, interruptions[0]

    return of


def test_two_judges_that_say_the_same_agree(compared):
    found, interrupted = compared()
    assert found == rejudge.Compared([], [], 2, "REJECTED")
    assert interrupted is False


def test_a_run_without_an_end_or_that_was_interrupted_is_interrupted(compared):
    assert compared(ended="")[1] is True
    assert compared(basis={"interrupted": "Ctrl-C"})[1] is True
    assert compared(basis={"interrupted": ""})[1] is False


def test_rows_numbers_and_counts_that_differ_are_named(compared):
    a = {"criterion": "x", "subject": "a", "outcome": "PASS", "value": 1.0}
    b = {"criterion": "y", "subject": "a", "outcome": "FAIL", "value": 2.0}
    for stated, answers, said in (
        ({"criteria": [a, b, {**a, "criterion": "z"}]}, None, ["z a: not in the plan of the run"]),
        ({"criteria": [a, b, b]}, None, ["verdict.json has a row twice"]),
        ({"counts": {"pass": 2}}, None, ["2 rows pass, second judge 1"]),
        ({"verdict": "ACCEPTED"}, None, ["the run is ACCEPTED, second judge REJECTED"]),
        ({}, {**ROWS, ("x", "a"): ("PASS", 1.1)}, ["x a: 1.0, second judge 1.1"]),
        ({"counts": {}}, {**ROWS, ("x", "a"): ("FAIL", 1.0)}, ["x a: PASS, second judge FAIL"]),
        ({"criteria": [a], "counts": {}}, {**ROWS, ("y", "a"): ("NOT_MEASURED", None)},
         ["y a: in the plan of the run, but not in verdict.json"]),
    ):  # fmt: skip
        assert compared(stated, answers)[0].wrong == said


def test_a_published_figure_that_reads_as_another_limit_is_named(compared):
    a = {"criterion": "x", "subject": "a", "outcome": "PASS", "value": 1.0}
    b = {"criterion": "y", "subject": "a", "outcome": "FAIL", "value": 2.0}
    figure = {**a, "limit": ">= 1 (published figure)"}
    by_figure = {("x", "a"): True}
    said = ["x a: >= 1, second judge: of another source"]
    assert compared({"criteria": [{**a, "limit": ">= 1"}, b]}, by_figure=by_figure)[0].wrong == said
    assert compared({"criteria": [figure, b]}, by_figure=by_figure)[0].wrong == []
    assert "second judge: of another" in compared({"criteria": [figure, b]})[0].wrong[0]
    refusing = compared(
        {"criteria": [figure, b]}, by_figure=by_figure, contract={"limits": "measured"}
    )
    assert "the order takes measured limits" in refusing[0].wrong[0]


def test_what_needs_another_rule_is_not_covered_and_counts_as_stated(compared):
    found, _ = compared(answers={**ROWS, ("x", "a"): Unknown("a rule")})
    assert (found.wrong, found.uncovered) == ([], ["x a: a rule"])


def test_a_decision_on_the_mtbf_is_not_covered(compared):
    for decision, wrong in (("reject", False), ("go on", False), ("accept", True)):
        basis = {"mtbf": {"decision": decision, "sentence": "too many failures"}}
        found, _ = compared({"verdict": "INCOMPLETE"}, basis=basis)
        assert bool(found.wrong) is wrong
        assert bool(found.uncovered) is not wrong


def test_only_numbers_differ_and_only_beyond_rounding():
    for value, stated, expected in (
        (1.0, 1.1, True), (1.0, 1.0 + 1e-12, False), (1, 1.0, False), (None, 1.0, False),
        (True, 2.0, False), ("a", "b", False), (1.0, None, False), (2.0, True, False),
    ):  # fmt: skip
        assert rejudge.is_other_number(value, stated) is expected, (value, stated)


def test_the_status_says_whether_the_judges_agree(tmp_path, capsys):
    assert rejudge.show(rejudge.Compared([], ["x a: a rule"], 3, "PARTIAL"), tmp_path) == 0
    out = capsys.readouterr().out
    assert "not covered: x a: a rule" in out
    assert "PARTIAL; 2 of 3 rows judged again" in out
    assert rejudge.show(rejudge.Compared(["x a"], [], 3, "PARTIAL"), tmp_path) == 1
    assert "THE JUDGES DISAGREE" in capsys.readouterr().out


def test_the_limits_are_those_of_a_file_that_is_given_else_the_shipped_ones(tmp_path, monkeypatch):
    used: list[Any] = []

    def compare(root: Path, thresholds: Any) -> Any:
        used.append(thresholds.sha256)
        return rejudge.Compared([], [], 0, "PARTIAL")

    monkeypatch.setattr(rejudge, "compare", compare)
    own = support.load(tmp_path)
    run = {"id": "r", "contract": contract_json(own.cluster)}
    assert rejudge.main(tmp_path, run, tmp_path / "thresholds.yaml") == 0
    with pytest.raises(CommandError, match="states another order than thresholds"):
        rejudge.main(tmp_path, {"id": "r"}, tmp_path / "thresholds.yaml")
    assert rejudge.main(tmp_path, {"id": "r"}, None) == 0
    assert used == [own.sha256, loader.load(support.SHIPPED).sha256]


def test_reasons_nested_without_end_are_answered_in_a_line(run, capsys):
    with (run / "jobs" / "missing.jsonl").open("a") as file:
        file.write("[" * 200_000 + "\n")
    assert command.main(["rejudge", str(run)]) == command.USAGE
    assert capsys.readouterr().err.startswith(f"reports: {run}: the run cannot be judged again")
