"""What a planned item is judged as: its devices, its attempts, and with whom it is compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.run.attempts import Attempts
from fixtures.run.judge_item import (
    case_of,
    judge_item,
    not_measured,
    siblings_of,
    unplanned_verdict,
)
from fixtures.run.run import Run
from fixtures.verdict.causes import Cause
from fixtures.verdict.model import Outcome, Verdict
from tests.selftests.run.small_run import PEOPLE, small_run
from tests.selftests.support import node_record

pytestmark = pytest.mark.cpu


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return small_run(tmp_path)


def case(run: Run, key: str, *, nics: int = 0, **criterion: Any) -> Any:
    item = next(i for i in run.items if i.criterion == key)
    run.thresholds.criteria[key] = replace(run.thresholds.criteria[key], **criterion)
    people = replace(PEOPLE, nics_per_node=nics)
    return case_of(item, None, thresholds=run.thresholds, population=people)


@pytest.mark.parametrize(
    ("key", "criterion", "devices"),
    [
        ("gemm.bf16", {}, 2), ("gemm.spread", {}, 2), ("allreduce.pair", {}, 4),
        ("gemm.bf16", {"statistic": "dip"}, 2), ("allreduce.errors", {}, 1),
        ("allreduce.errors", {"over": "devices"}, 2), ("gemm.bf16", {"per": "rail"}, 1),
        ("gemm.bf16", {"over": "nodes"}, 1), ("allreduce.pair", {"over": "nodes"}, 2),
        ("allreduce.errors", {"over": "nics", "nics": 3}, 3),
        ("allreduce.errors", {"over": "nics"}, 1), ("gemm.bf16", {"over": "links"}, 2),
    ],
)  # fmt: skip
def test_a_criterion_is_judged_on_its_gpus_nics_or_nodes(run, key, criterion, devices):
    assert case(run, key, **criterion).devices == devices


def test_a_record_of_all_nodes_is_read_as_one(run):
    assert case(run, "allreduce.pair").record_nodes == PEOPLE.nodes
    alone = case(run, "gemm.bf16")
    assert (alone.record_nodes, alone.subject) == (("worker0",), "worker0")


# --- attempts


def judged(run: Run, *rates: float | None) -> Verdict:
    """By attempts with these rates, the newest first; None is half of a record."""
    item = next(i for i in run.items if i.criterion == "gemm.bf16")
    records = []
    for k, rate in enumerate(rates):
        ranks = [650.0] if rate is None else [rate, rate]
        records.append(node_record(*ranks, attempt=len(rates) - k))
    return judge_item(
        item, records[0], thresholds=run.thresholds, population=PEOPLE,
        attempts=Attempts(newest=len(rates), earlier=records[1:]),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rates", "outcome", "passes"),
    [
        ((650, 500), Outcome.NOT_MEASURED, 1), ((650, 650, 500), Outcome.NOT_MEASURED, 2),
        ((650, None, 650, 500), Outcome.NOT_MEASURED, 2), ((650, 650, 650, 500), Outcome.PASS, 0),
        ((650, 650), Outcome.PASS, 0), ((650, None), Outcome.PASS, 0),
        ((500, 650), Outcome.FAIL, 0),
    ],
)  # fmt: skip
def test_a_failure_is_taken_back_by_three_passes_in_a_row(run, rates, outcome, passes):
    found = judged(run, *rates)
    assert found.outcome is outcome
    if passes:
        assert f"passed {passes} of 3 times in a row since attempt 1 failed" in found.reason
        assert found.cause == Cause.REPETITION


def test_where_attempts_count_together_no_passes_are_promised_to_take_a_failure_back(run):
    """The slices of a load: each pass is of all of them, the one that failed among them."""
    item = next(i for i in run.items if i.criterion == "gemm.bf16")
    line = {"outcome": "FAIL", "record": "gemm@worker0.json", "value": 500.0}
    failed = {("gemm.bf16", item.subject): {1: line}}
    found = judge_item(
        item, node_record(650, 650, attempt=7), thresholds=run.thresholds, population=PEOPLE,
        attempts=Attempts(newest=7, failed=failed, together=True),
    )  # fmt: skip
    assert (found.outcome, found.cause) == (Outcome.NOT_MEASURED, Cause.REPETITION)
    assert "failed at attempt 1" in found.reason
    assert "times in a row" not in found.reason
    assert "begin a new run" in found.next_step
    assert "--resume" not in found.next_step


def test_attempts_are_listed_where_one_of_them_did_not_pass(run):
    assert judged(run, 650, 650).notes == []
    notes = judged(run, 500, 650, None, 500).notes
    assert [note.partition(" TFLOPS")[0] for note in notes[-3:]] == [
        "attempt 1: FAIL 500", notes[-2], "attempt 3: PASS 650",
    ]  # fmt: skip
    assert notes[-2].startswith("attempt 2: NOT MEASURED")


# --- without a record


def test_what_is_not_applicable_or_was_not_measured_says_so(run):
    away = next(i for i in run.items if i.criterion == "allreduce.latency")
    found = judge_item(away, None, thresholds=run.thresholds, population=PEOPLE)
    assert (found.outcome, found.reason) == (Outcome.NOT_APPLICABLE, "too few")
    found = not_measured(away, run.thresholds, "Ctrl-C")
    assert (found.outcome, found.reason) == (Outcome.NOT_MEASURED, "Ctrl-C")
    assert (found.cause, found.title) == (Cause.INTERRUPTED, "Quick")


@pytest.mark.parametrize(
    ("key", "title", "reason"),
    [
        (("gemm.bf16", "far"), "Fast", "gemm.bf16 on far is not in the plan"),
        (("gemm.old", "far"), "gemm.old", "there is no criterion gemm.old"),
        (("guests.dcgm", "far"), "guests.dcgm", "not a node of this run"),
    ],
)
def test_what_only_an_earlier_run_planned_was_not_measured(run, key, title, reason):
    found = unplanned_verdict(key, run.thresholds)
    assert ((found.criterion, found.subject), found.title) == (key, title)
    assert found.outcome is Outcome.NOT_MEASURED
    assert reason in found.reason


# --- the fleet


def test_siblings_are_the_devices_of_all_nodes_by_their_records(run):
    asked: list[str] = []

    def get(workload: str, placement: str) -> Any:
        asked.append(f"{workload}@{placement}")
        return node_record(650, 651, node=placement) if placement == "worker1" else {"reason": "x"}

    one, two = (i for i in run.items if i.criterion == "gemm.bf16")
    found = siblings_of(one, run.items, get, run.thresholds)
    assert asked == ["gemm@worker0", "gemm@worker1"]
    assert found.values == (650, 651)
    asked.clear()
    away = replace(two, not_applicable="no")
    assert siblings_of(one, [one, away], get, run.thresholds).values == ()
    assert asked == ["gemm@worker0"]
    errors = next(i for i in run.items if i.criterion == "allreduce.errors")
    assert siblings_of(errors, run.items, get, run.thresholds).values == ()
    assert asked == ["gemm@worker0"]
