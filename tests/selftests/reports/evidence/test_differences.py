"""Differences between verdict.json and what the records of its run give: each is named."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.conclusion.next_steps import RunCommand
from fixtures.paths import version
from fixtures.records import located
from fixtures.records.files import append_line
from fixtures.records.run_directory import RunDirectory
from fixtures.records.verdict_file import write_verdict
from fixtures.thresholds.limits import RECORDED_TEXT
from fixtures.verdict.causes import NEXT_STEP, Cause
from fixtures.verdict.model import Verdict
from reports.evidence import differences as module
from reports.evidence.differences import Differences, differences
from tests.selftests.judged_runs import concluded
from tests.selftests.verdict.made import row_on

pytestmark = pytest.mark.cpu

Json = dict[str, Any]
INTERRUPTED = "interrupted by SIGTERM"


def row(subject: str, outcome: str = "PASS", criterion: str = "gemm.bf16", **more: Any) -> Json:
    verdict = row_on(subject, outcome, criterion=criterion, unit="TFLOPS", limit=">= 605")
    value = None if outcome == "NOT_MEASURED" else 641.5
    return {**verdict.to_json(), "value": value, **more}


def verdict_of(*rows: Json, interrupted: str = "", **more: Any) -> Json:
    last = concluded([Verdict.from_json(v) for v in rows], interrupted=interrupted)
    return {
        **vars(last), "schema": 2, "run_id": "r", "scope": {"nodes": ["n0", "n1"]},
        "criteria": [dict(v) for v in rows], "power": [], "fleet": [], **more,
    }  # fmt: skip


def run_of(**more: Any) -> Json:
    return {"id": "r", "nonce": "n", "suite_version": version(), "path": "/runs/r",
            "ended": "2026-11-20T14:41:00+00:00", **more}  # fmt: skip


def compared(
    tmp_path: Path, stated: Json, rejudged: Json, run: Json | None = None, *, write: bool = True
) -> Differences:
    """What differs of a run whose verdict.json is written as the suite writes it."""
    directory = RunDirectory(tmp_path)
    if write:
        write_verdict(directory, stated)
    return differences(directory, run or run_of(), stated, rejudged)


SOUND = verdict_of(row("n0"), row("n1"))


def changed(verdict: Json, /, **more: Any) -> Json:
    return {**copy.deepcopy(verdict), **more}


# --- its form


def test_what_is_no_verdict_is_said():
    assert module.malformed(SOUND) == ""
    assert module.malformed([]) == "it is a list, not an object"
    assert module.malformed({k: v for k, v in SOUND.items() if k != "counts"}) == (
        "counts is missing"
    )
    assert module.malformed(changed(SOUND, exit_status="0")) == "exit_status is of another type"
    lacking = [row("n0"), {k: v for k, v in row("n1").items() if k != "margin"}]
    unknown = changed(SOUND, criteria=[{**row("n0"), "stranger": 1}])
    assert module.malformed(unknown) == "criteria[0] has the unknown field stranger"
    for rows, place in ((lacking, 1), (["text"], 0)):
        found = module.malformed(changed(SOUND, criteria=rows))
        assert found == f"criteria[{place}] is not a row of a verdict"
    more = [{**row("n0"), "id": "G1"}]
    assert module.malformed(changed(SOUND, criteria=more)) == ""


def test_a_run_is_of_this_version_only_where_it_says_so():
    assert module.is_of_this_version(run_of()) is True
    assert module.is_of_this_version(run_of(suite_version="0.0.1")) is False
    assert module.suite_version({}) == "(not stated)"
    assert module.suite_version({"suite_version": "1.2"}) == "1.2"


def test_a_sound_verdict_has_no_difference(tmp_path):
    assert compared(tmp_path, SOUND, SOUND) == Differences()


def test_another_format_is_a_difference_of_this_version_only(tmp_path):
    RunDirectory(tmp_path).verdict.write_text(json.dumps(SOUND))
    found = compared(tmp_path, SOUND, SOUND, write=False)
    assert found.wrong == ["verdict.json: is not in the format that the suite writes"]
    assert compared(tmp_path, SOUND, SOUND, run_of(suite_version="0.0.1"), write=False).wrong == []


# --- rows


def test_each_row_that_differs_is_named_with_both_values(tmp_path):
    stated = verdict_of(row("n0", value=700.0), row("n1"))
    assert compared(tmp_path, stated, SOUND).wrong == [
        "verdict.json: gemm.bf16 n0: value is 700.0, from the records 641.5"
    ]
    added, missing = verdict_of(row("n0"), row("n1"), row("n2")), verdict_of(row("n0"))
    assert compared(tmp_path, added, SOUND).wrong == ["verdict.json: gemm.bf16 n2: added"]
    assert compared(tmp_path, missing, SOUND).wrong == ["verdict.json: gemm.bf16 n1: missing"]
    twice = verdict_of(row("n0"), row("n0"), row("n1"))
    assert compared(tmp_path, twice, SOUND).wrong == [
        "verdict.json: names a criterion twice for one subject"
    ]


def test_the_text_of_a_row_counts_for_this_version_only(tmp_path):
    stated = verdict_of(row("n0", title="Faster"), row("n1"))
    assert len(compared(tmp_path, stated, SOUND).wrong) == 1
    assert compared(tmp_path, stated, SOUND, run_of(suite_version="0.0.1")).wrong == []


def test_twenty_rows_are_named_and_the_others_counted(tmp_path):
    for count, more in ((20, []), (21, ["verdict.json: 1 more rows differ"])):
        rows = [row(f"n{k}") for k in range(count)]
        stated = verdict_of(*({**r, "value": 1.0} for r in rows))
        wrong = compared(tmp_path, stated, verdict_of(*rows)).wrong
        assert (len(wrong), wrong[20:]) == (20 + len(more), more)


# --- rows that the run did not judge


OPTIONS = ("--partition=gpu",)


def left(subject: str, reason: str = module.NEVER_JUDGED, **more: Any) -> Json:
    """The row that a run leaves which ended before it was judged."""
    step = RunCommand("/runs/r", more.pop("options", ())).completed(NEXT_STEP[Cause.INTERRUPTED])
    return row(
        subject, "NOT_MEASURED", reason=reason, cause=Cause.INTERRUPTED.value, limit="",
        next_step=step, **more,
    )  # fmt: skip


def test_what_an_interrupted_run_did_not_judge_is_unchecked(tmp_path):
    rejudged = verdict_of(row("n0"), row("n1"))
    reasons = (module.NEVER_JUDGED, INTERRUPTED, f"{module.SUITE_FAILED[0]}KeyError")
    for reason in reasons:
        stated = verdict_of(row("n0"), left("n1", reason, options=OPTIONS), interrupted=INTERRUPTED)
        found = compared(tmp_path, stated, rejudged, run_of(options=list(OPTIONS)))
        assert found.wrong == [], reason
        rows, why = found.unchecked
        assert "1 row not judged by the run" in rows
        assert f"--resume={tmp_path} --partition=gpu" in rows
        assert why.endswith(f"that the run was interrupted: {INTERRUPTED}")


def test_a_row_is_not_excused_by_another_reason_or_where_its_records_fail(tmp_path):
    for stated_row, now in (
        (left("n1", "somebody was tired"), row("n1")),
        (left("n1"), row("n1", "FAIL")),
        (left("n1", margin=0.5), row("n1")),
    ):
        stated = verdict_of(row("n0"), stated_row)
        found = compared(tmp_path, stated, verdict_of(row("n0"), now))
        assert [line.partition(" is ")[0] for line in found.wrong] == [
            "verdict.json: gemm.bf16 n1: outcome"
        ]
        assert found.unchecked == []


def test_nothing_is_excused_for_another_version(tmp_path):
    stated = verdict_of(row("n0"), left("n1"))
    found = compared(tmp_path, stated, SOUND, run_of(suite_version="0.0.1"))
    assert len(found.wrong) == 1
    interrupted = verdict_of(row("n0"), row("n1"), interrupted=INTERRUPTED)
    assert compared(tmp_path, interrupted, interrupted, run_of()).unchecked == []
    assert compared(tmp_path, interrupted, interrupted, run_of(suite_version="0")).unchecked == []


def test_an_unjudged_row_without_a_limit_keeps_the_words_that_it_is_recorded(tmp_path):
    now = row("n1", "RECORDED", limit=RECORDED_TEXT)
    stated = verdict_of(row("n0"), {**left("n1"), "limit": RECORDED_TEXT})
    assert compared(tmp_path, stated, verdict_of(row("n0"), now)).wrong == []


def test_a_row_that_the_ledger_judged_is_not_unjudged(tmp_path):
    directory = RunDirectory(tmp_path)
    stated = verdict_of(row("n0"), left("n1"))
    key = {"criterion": "gemm.bf16", "subject": "n1"}
    for line in ({**key, "event": "test", "outcome": "failed"},
                 {**key, "subject": "n0", "event": "verdict", "outcome": "PASS"},
                 {**key, "event": "verdict", "outcome": "FAIL"}):  # fmt: skip
        append_line(directory.ledger, line)
    assert compared(tmp_path, stated, SOUND).wrong == [
        "verdict.json: gemm.bf16 n1: outcome is 'NOT_MEASURED', ledger.jsonl has 'FAIL'"
    ]
    append_line(directory.ledger, {**key, "event": "verdict", "outcome": "NOT_MEASURED"})
    assert compared(tmp_path, stated, SOUND).wrong == []


# --- waivers


WAIVER = "A. Name, until 2026-11-20: RMA 4711"


def waived(**more: Any) -> tuple[Json, Json]:
    """A row that a waiver covered, and the same row after it has expired."""
    before = row("n1", "WAIVED", reason=f"slow; waived by {WAIVER}")
    return before, row("n1", "FAIL", reason=f"slow; waiver expired ({WAIVER})", **more)


def test_a_waiver_that_held_on_the_day_of_the_run_is_unchecked(tmp_path):
    before, now = waived()
    stated, rejudged = verdict_of(row("n0"), before), verdict_of(row("n0"), now)
    for run in (run_of(), run_of(suite_version="0.0.1"),
                run_of(ended=None, created="2026-11-20T01:00:00+00:00")):  # fmt: skip
        found = compared(tmp_path, stated, rejudged, run)
        assert "verdict.json: 1 waivers that have expired since" in found.unchecked
        assert not [line for line in found.wrong if "gemm.bf16" in line]


def test_a_waiver_excuses_no_other_difference_and_no_later_day(tmp_path):
    before, now = waived()
    later = run_of(ended="2026-11-21T00:00:00+00:00")
    other_value = {**now, "value": 1.0}
    not_expired = {**now, "reason": "slow"}
    passed = {**now, "outcome": "PASS"}
    for run, after in ((later, now), (run_of(), other_value), (run_of(), not_expired),
                       (run_of(), passed)):  # fmt: skip
        stated, rejudged = verdict_of(row("n0"), before), verdict_of(row("n0"), after)
        found = compared(tmp_path, stated, rejudged, run)
        assert len([line for line in found.wrong if "gemm.bf16 n1" in line]) == 1
        assert found.unchecked == []


# --- the run


def heads(
    tmp_path: Path, stated: Json, rejudged: Json = SOUND, run: Json | None = None
) -> list[str]:
    found = compared(tmp_path, stated, rejudged, run)
    return [line.removeprefix("verdict.json: ").partition(" is ")[0] for line in found.wrong]


def test_every_fact_on_the_run_must_follow(tmp_path):
    for name, value in (
        ("run_id", "other"), ("verdict", "REJECTED"), ("exit_status", 1),
        ("counts", {**SOUND["counts"], "pass": 3}), ("reasons", ["why"]), ("scope", {}),
        ("replay", {"run": "other"}), ("schema", 1),
    ):  # fmt: skip
        assert heads(tmp_path, changed(SOUND, **{name: value})) == [name]
    assert heads(tmp_path, changed(SOUND, praise="good")) == ["praise: added"]
    basis = {**SOUND["basis"], "ordered": False}
    assert "ordered" in heads(tmp_path, changed(SOUND, basis=basis))
    assert "whole_scope" in heads(tmp_path, changed(SOUND, basis=None))
    replay = {"run": "r0"}
    assert heads(tmp_path, changed(SOUND, replay=replay), run=run_of(replay_of=replay)) == []


def test_both_values_are_told_and_long_ones_cut(tmp_path):
    found = compared(tmp_path, changed(SOUND, run_id="other"), SOUND)
    assert found.wrong == ["verdict.json: run_id is 'other', from the records 'r'"]
    for length, cut in ((198, False), (199, True)):
        text = module._short("x" * length)
        assert (len(text), text.endswith("...")) == (200, cut)


def test_an_interruption_that_only_the_run_knows_gives_its_verdict(tmp_path):
    stated = verdict_of(row("n0"), row("n1"), interrupted=INTERRUPTED)
    found = compared(tmp_path, stated, SOUND)
    assert found.wrong == []
    assert found.unchecked == [f"verdict.json: that the run was interrupted: {INTERRUPTED}"]
    assert heads(tmp_path, SOUND, stated) == ["verdict", "exit_status", "reasons"]


def test_a_search_and_a_budget_give_reasons(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.jobs.mkdir()
    located.write(
        directory, "n", because=[], culprits=[{"line": "n1", "kind": "node", "nodes": ["n1"]}],
        explained=True, rounds=[[]], why="",
    )  # fmt: skip
    (line,) = located.lines(directory, "n")
    assert heads(tmp_path, changed(SOUND, reasons=[line])) == []
    directory.located.unlink()
    budget = {"left_out": ["gemm.fp8"], "line": "1 criterion left out"}
    run = run_of(budget=budget)
    assert heads(tmp_path, changed(SOUND, reasons=["1 criterion left out"]), run=run) == []
    assert heads(tmp_path, SOUND, run=run) == ["reasons"]
    assert heads(tmp_path, SOUND, run=run_of(budget={**budget, "left_out": []})) == []
    replay = {"run": "r0"}
    run = {**run, "replay_of": replay}
    assert heads(tmp_path, changed(SOUND, replay=replay), run=run) == []


def test_the_schema_is_today_s_or_that_of_the_rows(tmp_path):
    assert heads(tmp_path, SOUND, changed(SOUND, schema=3)) == []
    directory = RunDirectory(tmp_path)
    assert module._expected_schema({"schema": 2}, {"schema": 3}) == 2
    assert module._expected_schema({"schema": 3}, {"schema": 3}) == 3
    assert module._expected_schema({"schema": 1}, {"schema": 3}) == 3
    assert directory.verdict.exists()


def rows_of(**values: int) -> list[Json]:
    return [{"criterion": name, "power": value} for name, value in values.items()]


def test_what_is_said_of_a_load_on_the_fabric_follows_from_the_records(tmp_path):
    found = {"hours": 1.0, "cells": 6, "covered": 4}
    now = verdict_of(row("n0"), row("n1"), fabric_load=found)
    assert not compared(tmp_path, now, now).wrong
    better = {**now, "fabric_load": {**found, "covered": 6}}
    (line,) = compared(tmp_path, better, now).wrong
    assert "fabric_load is " in line
    without = {k: v for k, v in now.items() if k != "fabric_load"}
    (line,) = compared(tmp_path, without, now).wrong
    assert line.startswith("verdict.json: fabric_load is None")
    (line,) = compared(tmp_path, now, without).wrong
    assert line.endswith("from the records None")


def test_power_and_fleet_of_a_criterion_not_judged_as_stated_are_those_stated(tmp_path):
    """Of c an outcome differs: what the run says holds. Of a, b and d the records say it."""
    stated = {
        "criteria": [row("n0", criterion=c) for c in "abcd"],
        "power": rows_of(c=1, a=2, e=7), "fleet": rows_of(c=1, a=2, e=7),
    }  # fmt: skip
    rejudged = {
        "criteria": [row("n0", "FAIL" if c == "c" else "PASS", criterion=c) for c in "abcd"],
        "power": rows_of(a=3, b=4, c=5), "fleet": rows_of(a=3, b=4, c=5),
    }  # fmt: skip
    assert module._expected_power(stated, rejudged) == rows_of(c=1, a=3, b=4)
    assert module._expected_fleet(stated, rejudged) == rows_of(c=1, a=3, b=4)
    for function in (module._expected_power, module._expected_fleet):
        bare = {"criteria": stated["criteria"]}
        assert function(bare, bare) == []
        assert function(bare, {**bare, "power": rows_of(a=3), "fleet": rows_of(a=3)}) == (
            rows_of(a=3)
        )
    gone = {**rejudged, "power": [], "fleet": []}
    assert module._expected_power({**stated, "power": []}, gone) == []
    assert heads(tmp_path, changed(SOUND, power=rows_of(a=1)), changed(SOUND, power=[])) == [
        "power"
    ]
    assert heads(tmp_path, changed(SOUND, fleet=rows_of(a=1)), changed(SOUND, fleet=[])) == [
        "fleet"
    ]


def test_of_another_version_verdict_counts_and_status_are_compared(tmp_path):
    run = run_of(suite_version="0.0.1")
    for name, value in (("verdict", "REJECTED"), ("exit_status", 1), ("run_id", "other")):
        expected = [] if name == "run_id" else [name]
        assert heads(tmp_path, changed(SOUND, **{name: value}), run=run) == expected
    counts = {**SOUND["counts"], "pass": 1}
    assert heads(tmp_path, changed(SOUND, counts=counts), run=run) == ["counts"]


def test_of_another_version_a_waiver_that_expired_may_change_the_verdict(tmp_path):
    run = run_of(suite_version="0.0.1")
    before, now = waived()
    stated, rejudged = verdict_of(row("n0"), before), verdict_of(row("n0"), now)
    assert (stated["verdict"], rejudged["verdict"]) == ("ACCEPTED", "REJECTED")
    assert heads(tmp_path, stated, rejudged, run) == []
    counts = {**rejudged["counts"], "fail": 2}
    assert heads(tmp_path, stated, changed(rejudged, counts=counts), run) == [
        "verdict", "counts", "exit_status"
    ]  # fmt: skip


def test_what_the_fabric_did_under_load_has_to_follow_from_the_records(tmp_path):
    load = {"cells": 2, "covered": 1}
    for before, now in ((load, None), (None, load), ({**load, "covered": 2}, load)):
        stated, rejudged = (
            SOUND if said is None else changed(SOUND, fabric_load=said) for said in (before, now)
        )
        assert heads(tmp_path, stated, rejudged) == ["fabric_load"]
    assert heads(tmp_path, changed(SOUND, fabric_load=load), changed(SOUND, fabric_load=load)) == []
