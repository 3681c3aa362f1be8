"""Many verdicts at once: the same as one by one, in one process and in several."""

from __future__ import annotations

import json
import weakref
from collections import Counter
from dataclasses import replace

import pytest

from fixtures.cluster.population import Population
from fixtures.plan.items import planned_list
from fixtures.records.fast_reader import JUDGED_FACTS
from fixtures.records.files import read_json, read_lines
from fixtures.records.model import Record
from fixtures.records.run_directory import RunDirectory
from fixtures.run import batch_judging
from fixtures.run import evidence as evidence_module
from fixtures.run.evidence import Evidence
from fixtures.run.judge_item import judge_item, siblings_of
from fixtures.thresholds import loader
from fixtures.thresholds.contract import Contract
from fixtures.verdict import outliers, sheet
from fixtures.verdict.model import Outcome, Verdict
from reports.exports import junit
from tests.selftests import derive_runs, support

pytestmark = pytest.mark.cpu


def bench(root):
    run = read_json(root / "run.json")
    limits = replace(loader.load(support.SHIPPED), cluster=Contract(**run["contract"]))
    evidence = Evidence(RunDirectory(root), run["nonce"]).for_batch()
    people = Population.from_json(run["population"])
    return batch_judging.BatchJudge(evidence, limits, people), planned_list(limits, people)


def one_by_one(bench, items):
    whole = Evidence(bench.evidence.directory, bench.evidence.nonce)
    found = {}
    for item in items:
        record = None
        if not item.not_applicable:
            record = whole.get(item.workload, item.placement) or batch_judging.NOT_RUN
        siblings = siblings_of(item, items, whole.get, bench.thresholds)
        found[item.key] = judge_item(
            item, record, thresholds=bench.thresholds, population=bench.population,
            siblings=siblings,
        )  # fmt: skip
    return found


@pytest.mark.parametrize("variant", ["unchanged", "slow-gpu-spread", "missing-node", "lost-record"])
def test_all_at_once_gives_what_one_by_one_gives(variant, tmp_path, monkeypatch):
    derive_runs.derive(support.DATA / "h200-2x2", tmp_path / "run", variant)
    made, items = bench(tmp_path / "run")
    at_once = batch_judging.judge_many(made, items, [i.key for i in items])
    monkeypatch.setattr(sheet, "_TERMS", Forgetful())
    assert at_once.verdicts == one_by_one(made, items)
    figures = batch_judging.figures_of(made, items)
    assert at_once.figures == {key: figures[key] for key in at_once.figures}


def test_a_record_is_let_go_before_the_next_is_read(tmp_path, monkeypatch):
    """One over ten thousand ranks takes hundreds of MB."""
    alive: weakref.WeakSet[Record] = weakref.WeakSet()
    at_each_reading: list[int] = []

    def reading(*given, **options):
        at_each_reading.append(len(alive))
        found = original(*given, **options)
        alive.add(found)
        return found

    original = evidence_module.read_record
    derive_runs.derive(support.DATA / "h200-2x2", tmp_path / "run", "unchanged")
    made, items = bench(tmp_path / "run")
    monkeypatch.setattr(evidence_module, "read_record", reading)
    monkeypatch.setattr(Record, "__hash__", object.__hash__)
    made.judge(items, {i.key for i in items}, {})
    assert len(at_each_reading) > 20
    assert set(at_each_reading) == {0}


class Forgetful(dict):
    """A memory that knows nothing."""

    def __contains__(self, key):
        return False


def test_the_measurements_of_a_row_are_looked_up_once(tmp_path, monkeypatch):
    """For its verdict, its power, and the values that its fleet is compared by."""
    looked_up: Counter[str] = Counter()
    original = sheet.points_of

    def counted(criterion, record, nodes, subject):
        looked_up[f"{criterion.key} {subject}"] += 1
        return original(criterion, record, nodes, subject)

    derive_runs.derive(support.DATA / "h200-2x2", tmp_path / "run", "unchanged")
    made, items = bench(tmp_path / "run")
    for module in (sheet, outliers):
        monkeypatch.setattr(module, "points_of", counted)
    result = made.judge(items, {i.key for i in items}, {})
    assert {"gemm.bf16 worker0", "memory.copy worker1"} <= looked_up.keys()
    assert set(looked_up.values()) == {1}
    assert result.siblings
    assert any(result.figures.values())


@pytest.mark.parametrize("large", [0, 20_000, 8_000_000])
def test_several_processes_give_what_one_gives(tmp_path, monkeypatch, large):
    derive_runs.derive(support.DATA / "h200-2x2", tmp_path / "run", "slow-gpu")
    made, items = bench(tmp_path / "run")
    alone = batch_judging.judge_many(made, items, [i.key for i in items])
    monkeypatch.setattr(batch_judging, "SINGLE_PROCESS_ITEMS", 0)
    monkeypatch.setattr(batch_judging, "LARGE_RECORD_BYTES", large)
    monkeypatch.setattr(batch_judging.os, "sched_getaffinity", lambda _: {0, 1})
    together = batch_judging.judge_many(made, items, [i.key for i in items])
    assert together == alone
    assert [v.criterion for v in alone.verdicts.values() if v.outcome is Outcome.FAIL] == [
        "gemm.fp32"
    ]


def test_a_part_in_which_no_record_was_read_is_kept():
    """What is not applicable is judged without one, and may be a part by itself."""
    parts = []
    for key, records in ((("a", "n1"), {}), (("b", "n1"), {("gemm", "n1"): False})):
        verdict = Verdict(criterion=key[0], title="", subject=key[1], outcome=Outcome.PASS)
        parts.append(batch_judging.BatchResult(verdicts={key: verdict}, records=records))
    whole = batch_judging.BatchResult()
    for part in parts:
        whole.add(part)
    assert list(whole.verdicts) == [("a", "n1"), ("b", "n1")]


def test_siblings_of_a_part_are_those_of_the_whole_fleet(tmp_path):
    derive_runs.derive(support.DATA / "h200-2x2", tmp_path / "run", "slow-gpu")
    made, items = bench(tmp_path / "run")
    every = one_by_one(made, items)
    (bad,) = [key for key, v in every.items() if v.outcome is Outcome.FAIL]
    judged = batch_judging.judge_many(made, items, [bad]).verdicts
    assert judged == {bad: every[bad]}
    assert "outlier" in judged[bad].reason


def test_what_is_not_judged_of_a_record_is_not_kept(tmp_path):
    made, _ = bench(support.DATA / "sandbox-2x2-cpu")
    record = made.evidence.get("gemm", "worker0")
    assert {name for rank in record.ranks for name in rank.facts} <= {*JUDGED_FACTS, "telemetry"}
    assert "dtypes" not in record.ranks[0].facts


@pytest.mark.parametrize("number", ["1e999", "NaN", "-Infinity", "1" + 400 * "0"])
def test_a_number_that_is_none_is_refused_however_fast_it_is_read(number, tmp_path):
    derive_runs.derive(support.DATA / "sandbox-2x2-cpu", tmp_path / "run", "unchanged")
    path = tmp_path / "run" / "records" / "gemm@worker0.json"
    data = json.loads(path.read_text())
    data["ranks"][0]["measurements"][0]["samples"][0] = "@"
    path.write_text(json.dumps(data).replace('"@"', number, 1))
    made, _ = bench(tmp_path / "run")
    found = made.evidence.get("gemm", "worker0")
    assert found["kind"] == "unusable record"


def test_records_do_not_pile_up_in_memory():
    made, _ = bench(support.DATA / "sandbox-2x2-cpu")
    for node in ("worker0", "worker1"):
        made.evidence.get("gemm", node)
    assert list(made.evidence._records) == [("gemm", "worker1", 1)]


# --- a large fleet's tests


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The same run judged by a test for each verdict, and by a test for each node and area."""
    root = tmp_path_factory.mktemp("areas")
    derive_runs.derive(support.DATA / "h200-2x2", root / "source", "slow-gpu")
    plain = support.replay(root / "source", root / "plain", "-m", "multinode")
    many = support.replay(root / "source", root / "many", "-m", "multinode",
                          "-p", "tests.selftests.many",
                          f"--junitxml={root / 'many.xml'}")  # fmt: skip
    return root, plain, many


def test_a_test_for_a_node_and_area_gives_every_verdict(both):
    root, (status, plain), (same_status, many) = both
    assert (status, plain["verdict"]) == (same_status, many["verdict"]) == (1, "REJECTED")
    assert many["criteria"] == plain["criteria"]
    assert many["counts"] == plain["counts"]
    lines = [n for n in read_lines(root / "many" / "ledger.jsonl") if n["event"] == "verdict"]
    assert len(lines) == plain["counts"]["planned"]
    names = ("results.csv", "good-nodes.txt", "bad-nodes.txt")
    assert all((root / "plain" / n).read_bytes() == (root / "many" / n).read_bytes() for n in names)


def test_the_test_of_the_bad_area_is_the_one_that_fails(both):
    root, *_ = both
    own = (root / "many.xml").read_text()
    assert own.count("<failure") == 1
    failure = own[: own.index("<failure")].rpartition("<testcase")[2]
    assert "test_compute" in failure
    assert "worker1" in failure
    assert "gemm.fp32: 5.1" in own
    # The run's own file says what the verdicts say, whatever the tests were.
    plain, many = ((root / name / "junit.xml").read_text() for name in ("plain", "many"))
    assert plain.count("<failure") == 1
    assert plain.partition("<testcase")[2] == many.partition("<testcase")[2]


def test_of_many_verdicts_a_test_case_stands_for_a_node_and_an_area(both, monkeypatch):
    _, (_, plain), _ = both
    monkeypatch.setattr(junit, "MAX_CASES", 300)
    text = junit.text(plain, [])
    assert text.count("<testcase") < len(plain["criteria"]) / 10
    failure = text[: text.index("<failure")].rpartition("<testcase")[2]
    assert 'classname="acceptance.Compute" name="area[worker1]"' in failure
    assert text.count("<failure") == 1
    assert "gemm.fp32: 5.1" in text


def test_k_chooses_among_them_by_criterion_and_node(both, tmp_path):
    root, *_ = both
    _, verdict = support.replay(root / "source", tmp_path / "part", "-p", "tests.selftests.many",
                                "-k", "memory.copy and worker0")  # fmt: skip
    judged = [v for v in verdict["criteria"] if v["reason"] != "never judged"]
    assert {v["subject"] for v in judged if v["outcome"] == "PASS"} == {"worker0"}
    assert "memory.copy" in {v["criterion"] for v in judged}
