"""Certificate, exports and comparison: what they say, and that foreign text stays text."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fixtures.conclusion.run_verdict import conclude
from fixtures.paths import THRESHOLDS
from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds import loader, overview
from fixtures.verdict.model import Outcome
from reports import __main__ as command
from reports import areas, certificate, compare, figures
from tests.selftests import derive_runs, support
from tests.selftests.reports.test_page import HOSTILE, PLAN, measured

pytestmark = pytest.mark.cpu


def written(root: Path, plan=PLAN, **more) -> RunDirectory:
    """A run directory with a verdict, and nothing measured."""
    last = conclude(
        plan, planned=len(plan), whole_scope=True, ordered=True, origin="cluster",
        demonstration=False, interrupted=more.get("interrupted", ""),
    )  # fmt: skip
    verdict = {
        **vars(last), "schema": 1, "run_id": "20261120-141500-3fa2",
        "scope": {"tier": "standard", "whole": True, "origin": "cluster", "gpus_per_node": 8,
                  "gpu_model": "H200 SXM", "nodes": ["worker0", "worker1", "worker2"]},
        "criteria": [v.to_json() for v in plan],
    }  # fmt: skip
    run = {
        "schema": 2, "id": verdict["run_id"], "nonce": "n", "commands": [f"pytest {HOSTILE}"],
        "contract": {"nodes": 3, "gpus_per_node": 8, "gpu_model": HOSTILE},
        "thresholds": {"sha256": "ab" * 32, "path": "none"}, "versions": {"python": HOSTILE},
    }  # fmt: skip
    (root / "records").mkdir(parents=True)
    (root / "run.json").write_text(json.dumps(run))
    (root / "verdict.json").write_text(json.dumps(verdict))
    directory = RunDirectory(root)
    directory.write_manifest()
    return directory


class Page(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(html.replace("<wbr>", ""))  # where a key may be broken, without a letter

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += f" {data}"


def test_a_rejected_run_gets_no_certificate_but_a_page_that_says_so(tmp_path):
    page = Page(certificate.page(written(tmp_path / "run")))
    assert "NOT ACCEPTED: REJECTED" in page.text
    assert "Certificate of acceptance" not in page.text
    assert "signature" not in page.text.partition("Evidence")[2].partition("Criteria")[0]
    assert "Kim" in page.text
    assert "2027-01-31" in page.text
    assert "-10.6 %" in page.text
    assert "GPU-8f1c2d-worker1" in page.text


def test_what_passed_whole_is_a_certificate_to_sign(tmp_path):
    passed = [v for v in PLAN if v.outcome in (Outcome.PASS, Outcome.NOT_APPLICABLE)]
    page = Page(certificate.page(written(tmp_path / "run", passed)))
    assert "Certificate of acceptance" in page.text
    assert "NOT ACCEPTED" not in page.text
    assert "For the customer: name, date, signature" in page.text
    for name in ("manifest.sha256", "verdict.json"):
        assert certificate.hashes(RunDirectory(tmp_path / "run"))[name] in page.text


def test_a_second_try_is_no_secret(tmp_path):
    first = measured("gemm.bf16", "worker1", Outcome.FAIL, 541.0)
    second = replace(first, outcome=Outcome.PASS, value=655.5, attempt=2)
    directory = written(tmp_path / "run", [second])
    lines = [{"event": "verdict", **v.to_json()} for v in (first, first, second)]
    directory.ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = Page(certificate.page(directory))
    said = " ".join(page.text.rpartition("Measured more than once")[2].split())
    assert said.startswith(
        "Criterion Where Before At last gemm.bf16 worker1 attempt 1: FAIL 541 TFLOPS "
        "PASS 655.5 TFLOPS"
    )


def test_what_was_measured_once_has_no_list_of_tries(tmp_path):
    page = Page(certificate.page(written(tmp_path / "run")))
    assert "Measured more than once" not in page.text


def test_every_session_of_a_run_is_named(tmp_path):
    directory = written(tmp_path / "run")
    run = json.loads(directory.run_json.read_text())
    run["commands"] = ["pytest A", "pytest --resume B"]
    directory.run_json.write_text(json.dumps(run))
    assert "pytest A; then by pytest --resume B" in Page(certificate.page(directory)).text


def test_an_interrupted_run_says_how_much_of_it_was_judged(tmp_path):
    plan = [v for v in PLAN if v.outcome is not Outcome.FAIL]
    page = Page(certificate.page(written(tmp_path / "run", plan, interrupted="it was killed")))
    assert "NOT ACCEPTED: INCOMPLETE" in page.text
    assert "3 of 5 verdicts were reached" in page.text


def test_the_certificate_s_annex_has_the_limits_that_held(tmp_path):
    directory = written(tmp_path / "run")
    assert "the limits that held" not in Page(certificate.page(directory)).text, "before 0.2.0"
    held = overview.limit_rows(
        loader.load(THRESHOLDS),
        overview.OrderedSite(gpu_model="H200 SXM", nodes=("n",)),
        sized=True,
    )
    directory.limits.write_text(overview.csv_text(held), encoding="utf-8")
    text = Page(certificate.page(directory)).text
    assert "Annex 5: the limits that held" in text
    assert [row.criterion for row in held if row.criterion not in text] == []
    assert [row.source for row in held if row.limit and row.source not in text] == []
    assert directory.limits in directory.evidence()


@pytest.mark.parametrize("make", [certificate.page, lambda d: figures.figures(d, *both(d))])
def test_foreign_text_stays_text(make, tmp_path):
    page = Page(make(written(tmp_path / "run")))
    assert HOSTILE in page.text
    assert not [tag for tag, _ in page.tags if tag in ("img", "iframe", "object", "link")]
    assert not [a for _, a in page.tags for name in a if name.startswith("on") or name == "src"]


def both(directory: RunDirectory) -> tuple[dict, dict]:
    return json.loads(directory.verdict.read_text()), json.loads(directory.run_json.read_text())


def test_the_certificate_lists_gpus_by_uuid_and_serial(tmp_path):
    derive_runs.derive(support.DATA / "h200-2x2", tmp_path / "run", "unchanged")
    path = tmp_path / "run" / "records" / "inventory@worker0.json"
    data = json.loads(path.read_text())
    data["ranks"][0]["device"]["serial"] = "1652023004711"
    path.write_text(json.dumps(data))
    made = written(tmp_path / "other")
    verdict, _ = both(made)
    page = Page(certificate.page(RunDirectory(tmp_path / "run"), {
        **verdict, "scope": {**verdict["scope"], "nodes": ["worker0", "worker1"]}}))  # fmt: skip
    for rank in data["ranks"]:
        assert rank["device"]["uuid"] in page.text
    assert "serial 1652023004711" in page.text
    assert "4 x NVIDIA H200" in page.text


# --- coverage


def test_every_subject_and_area_has_its_cell():
    criteria = [v.to_json() for v in PLAN]
    found = areas.coverage(criteria, ["worker0", "worker1", "worker2"])
    assert found.columns == ["Compute", "Collectives"]
    assert found.rows["worker1"]["Compute"].text == "1 failed"
    assert found.rows["worker2"]["Compute"].text == "1 not measured"
    assert found.rows[areas.WHOLE_CLUSTER]["Collectives"].worst == "NOT_MEASURED"
    assert found.not_passed == ["worker1", "worker2", areas.WHOLE_CLUSTER]


def test_a_criterion_that_is_not_the_suite_s_own_stands_under_other():
    known = areas.areas([{"criterion": "filesystem.append"}, {"criterion": "gemm.bf16"},
                         {"criterion": "alone"}])  # fmt: skip
    assert known == {"filesystem.append": "Filesystem", "gemm.bf16": "Compute", "alone": "Other"}
    assert areas.ordered(known.values()) == ["Filesystem", "Compute", "Other"]


# --- comparison


@pytest.fixture(scope="module")
def limits():
    return loader.load(support.SHIPPED)


def test_the_gpu_that_became_slower_comes_first(tmp_path, limits, capsys):
    source = support.DATA / "h200-2x2"
    device = derive_runs.derive(source, tmp_path / "after", "slow-gpu").device
    found = compare.changes(RunDirectory(source), RunDirectory(tmp_path / "after"), limits)
    first, *others = found
    assert (first.criterion, first.device) == ("gemm.fp32", f"{device[0]} gpu{device[1]}")
    assert first.drift == pytest.approx(-0.9)
    assert first.significant
    assert first.worse
    assert others
    assert not any(change.significant for change in others)


def test_what_differs_on_shared_cores_is_no_drift(limits):
    sigma, _ = compare._sigma_and_direction("gemm.bf16", limits, "cpu")
    assert sigma == limits.spread["gemm"].for_model("cpu").run_sigma > 0.1
    assert compare._sigma_and_direction("gemm.bf16", limits, "H200 SXM")[0] < 0.02


def test_a_lower_latency_is_better(limits):
    made = compare._sigma_and_direction("allreduce.node.latency", limits, "H200 SXM")
    faster = compare.Change("allreduce.node.latency", "w gpu0", "us", 50.0, 25.0, *made)
    assert faster.significant
    assert not faster.worse


def test_twice_the_gpus_are_held_against_twice_the_tokens():
    def of(nodes: int, tokens: float) -> dict:
        row = {"criterion": "training.tokens", "subject": "cluster", "unit": "tokens/s",
               "value": tokens, "margin": None}  # fmt: skip
        return {"scope": {"nodes": list(range(nodes)), "gpus_per_node": 8}, "criteria": [row]}

    (row,) = compare.side_by_side(of(1, 10_000.0), of(2, 18_400.0))
    assert row["efficiency"] == pytest.approx(0.92)


def test_compare_prints_both_and_says_by_its_status_what_became_of_it(tmp_path, capsys):
    roots = []
    for variant in ("unchanged", "slow-gpu"):
        root = tmp_path / variant
        derive_runs.derive(support.DATA / "h200-2x2", root, variant)
        verdict, _ = both(written(tmp_path / f"of-{variant}"))
        (root / "verdict.json").write_text(json.dumps(verdict))
        roots.append(str(root))
    assert command.main(["compare", roots[0], roots[0]]) == 0
    assert "0 changed significantly" in capsys.readouterr().out
    assert command.main(["compare", *roots]) == 1
    out = capsys.readouterr().out
    assert "gemm.fp32" in out
    assert "-90.00 %" in out
    assert "worse" in out
