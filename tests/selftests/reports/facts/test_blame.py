"""Who is to blame for a run, in a sentence: nodes by name, with the rows that they cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.conclusion.node_lists import NodeLists
from fixtures.records import located
from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds.loader import Thresholds
from reports.facts import blame as module
from reports.facts.blame import Blame, blame
from tests.selftests import support
from tests.selftests.verdict.made import row_on

pytestmark = pytest.mark.cpu


def row(subject: str, outcome: str = "PASS", **more: Any) -> dict[str, Any]:
    return {**row_on(subject, outcome).to_json(), **more}


def lost(subject: str, *nodes: str, cause: str = "node") -> dict[str, Any]:
    return row(subject, "NOT_MEASURED", cause=cause, cause_nodes=list(nodes))


def blamed(*rows: dict[str, Any], bad: list[str], doubtful: list[str] | None = None) -> Blame:
    lists = NodeLists(good=[], bad=bad, doubtful=doubtful or [])
    return blame({"criteria": list(rows)}, lists)


# --- who


def test_a_node_without_any_measurement_is_dead():
    found = blamed(lost("n0", "n0"), lost("n0--n1", "n0"), row("n1"), bad=["n0"])
    assert found == Blame(dead={"n0": 2}, bad={}, doubtful=[], failed=0, unmeasured=2)
    assert found.sentence == "1 node dead (2 rows): n0"


def test_a_node_that_slurm_says_is_drained_is_not_dead():
    for value, said in (("idle+drain", "drained"), ("drained*", "drained"), ("down*", "dead")):
        state = row("n0", "FAIL", criterion="scheduler.node_state", value=value,
                    record="slurm@login.json")  # fmt: skip
        found = blamed(lost("n0", "n0"), state, bad=["n0"])
        assert found.sentence == f"1 node {said} (1 row): n0"
        assert ({**found.dead, **found.drained}, found.bad) == ({"n0": 1}, {})
    busy = blamed(state, row("n0"), bad=["n0"])  # something was measured on it
    assert busy.sentence == "1 node at fault (1 row): n0"


def test_a_row_counts_for_each_node_at_fault():
    two = row("cluster", "FAIL", worst={"node": "n0"}, cause_nodes=["n0", "n1"])
    found = blamed(two, row("n0", "FAIL"), row("n1"), bad=["n0", "n1"])
    assert (found.bad, found.failed) == ({"n0": 2, "n1": 1}, 2)


def test_what_nodes_fail_together_stands_before_any_node():
    lists = NodeLists(good=[], bad=["n1"], doubtful=["n0"], shared=["all n fail x"])
    found = blame({"criteria": [row("n1", "FAIL")]}, lists)
    assert found.sentence == "all n fail x; 1 node at fault (1 row): n1; 1 node to look at: n0"


def test_a_node_that_has_a_value_is_not_dead():
    for outcome in ("PASS", "FAIL", "WAIVED", "RECORDED"):
        found = blamed(lost("n0", "n0"), row("n0", outcome), bad=["n0"])
        failed = int(outcome == "FAIL")
        assert (found.dead, found.bad) == ({}, {"n0": 1 + failed}), outcome
    for outcome in ("NOT_APPLICABLE", "NOT_MEASURED"):
        assert blamed(lost("n0", "n0"), row("n0", outcome), bad=["n0"]).dead == {"n0": 1}, outcome


def test_what_slurm_says_of_a_node_is_no_measurement_on_it():
    for record, dead in (("slurm@login.json", True), ("scheduler@all.json", True),
                         ("gemm@n0.json", False), (None, False)):  # fmt: skip
        found = blamed(lost("n0", "n0"), row("n0", record=record), bad=["n0"])
        assert ("n0" in found.dead) is dead, record


def test_a_node_that_slurm_drains_is_drained_and_not_dead():
    rows = [lost("n0", "n0"), lost("n1", "n1"), row("n2")]
    for state, drained in (
        ("drained", True), ("idle+drain", True), ("drained*", True), ("down*", False),
        ("down*+drain", False), ("idle+drain+not_responding", False), ("available", False),
        ("maint", False),
    ):  # fmt: skip
        says = row("n0", "FAIL", criterion="scheduler.node_state", value=state, record="slurm@x")
        found = blamed(says, *rows, bad=["n0", "n1"])
        assert ("n0" in found.drained, "n0" in found.dead) == (drained, not drained), state
        assert found.dead["n1"] == 1
        if drained:
            assert found.sentence == "1 node dead (1 row): n1; 1 node drained (1 row): n0"
    measured = row("n2", "FAIL", criterion="scheduler.node_state", value="drained")
    found = blamed(measured, row("n2"), bad=["n2"])
    assert (found.drained, found.bad) == ({}, {"n2": 1}), "it was measured before"


def test_a_failed_row_counts_for_the_node_that_it_names():
    found = blamed(
        row("n0--n1", "FAIL", worst={"node": "n0"}), row("n0", "FAIL"),
        row("n1", "FAIL", worst={"node": None}), row("cluster", "FAIL"), bad=["n0", "n1"],
    )  # fmt: skip
    assert (found.bad, found.failed) == ({"n0": 2, "n1": 1}, 4)
    assert found.sentence == "2 nodes at fault (3 rows): n0, n1"


def test_only_causes_in_a_node_cost_it_rows():
    found = blamed(
        lost("n0", "n0", cause="limit"), lost("n0", cause="node"),
        row("n1", "NOT_MEASURED", cause="node", cause_nodes=None),
        lost("n0", "n0", "n0", cause="record"), row("n0", "FAIL"), bad=["n0"],
    )  # fmt: skip
    assert (found.bad, found.dead, found.unmeasured, found.failed) == ({"n0": 2}, {}, 4, 1)


def test_a_node_that_is_not_bad_is_not_named():
    found = blamed(row("n0", "FAIL"), lost("n1", "n1"), bad=[])
    assert (found.bad, found.dead) == ({}, {})
    assert found.sentence == "No node is to blame according to the measurements"


def test_the_sentence_has_a_part_for_each_kind_of_node():
    found = Blame({"n0": 1}, {"n1": 2, "n2": 1}, ["n3"], failed=1, unmeasured=1)
    assert found.sentence == (
        "1 node dead (1 row): n0; 2 nodes at fault (3 rows): n1, n2; 1 node to look at: n3"
    )
    assert Blame({}, {}, ["n3"], failed=0, unmeasured=0).sentence == ""
    for failed, unmeasured in ((1, 0), (0, 1)):
        assert Blame({}, {}, ["n3"], failed, unmeasured).sentence == "1 node to look at: n3"


def test_more_than_six_names_are_a_host_list_as_long_as_it_is_short():
    names = [f"n{k}" for k in range(7)]
    assert module._names(names[:6]) == "n0, n1, n2, n3, n4, n5"
    assert module._names(names) == "n[0-6]"
    for length, short in ((120, True), (121, False)):
        others = [f"{letter}node" for letter in "abcdef"]
        rest = length - len(",".join(others)) - 1
        text = module._names([*others, "g" * rest])
        assert (text == ",".join([*others, "g" * rest])) is short
        assert text.endswith(" and others") is not short


# --- the lists of a run


def test_the_lists_follow_from_verdict_run_and_search(tmp_path: Path):
    directory = RunDirectory(tmp_path)
    directory.jobs.mkdir()
    worst = {"node": None, "gpu": None, "part": "all nodes"}
    rows = [row(f"n{k}") for k in range(4)]
    rows += [
        row("cluster", "FAIL", worst=worst),
        row("half", "FAIL", worst=worst, criterion="part"),
    ]
    verdict = {"criteria": rows, "scope": {"nodes": ["n0", "n1", "n2", "n3"]}}
    run = {"nonce": "n", "smaller_subjects": {"part": ["n0"]}}

    def lists(**more: Any) -> tuple[list[str], list[str]]:
        found = module.lists_of(directory, json.loads(json.dumps(verdict)), {**run, **more})
        return found.good, found.bad

    assert lists() == ([], ["n0"])
    assert lists(smaller_subjects=None) == ([], [])
    culprits = [{"line": "n1", "kind": "node", "nodes": ["n1"]}]
    located.write(directory, "n", because=[], culprits=culprits, explained=True, rounds=[], why="")
    assert lists() == (["n2", "n3"], ["n0", "n1"])
    culprits = [{"line": "leaf", "kind": "leaf", "nodes": ["n2"]}, *culprits]
    located.write(directory, "n", because=[], culprits=culprits, explained=True, rounds=[], why="")
    assert lists() == (["n3"], ["n0", "n1"])
    assert lists(nonce="other") == ([], ["n0"])
    nowhere = {**verdict, "scope": None}
    assert module.lists_of(directory, nowhere, run).reasons == []
    assert module.lists_of(directory, {**verdict, "scope": {"nodes": None}}, run).good == []


# --- what to do


@pytest.fixture
def limits(tmp_path: Path) -> Thresholds:
    text = support.LIMITS.replace(
        "    title: Fast\n", "    title: Fast\n    red: clean the fans\n", 1
    )
    return support.load(tmp_path, text)


def test_what_a_red_row_means_is_in_the_limits_or_in_the_suite(limits):
    assert module.red_of("gemm.bf16", limits) == "clean the fans"
    shipped = module.red_of("gemm.bf16")
    assert "heat" in shipped
    assert module.red_of("gemm.bf16", None) == shipped
    assert module.red_of("allreduce.errors", limits) == module.red_of("allreduce.errors")
    assert module.red_of("not.known", limits) == ""


def test_a_red_row_is_named_by_the_noun_of_its_criterion(tmp_path, limits):
    assert module.noun_of("gemm.bf16", limits) == module.noun_of("gemm.bf16") == "bf16 rate"
    own = support.LIMITS.replace("    title: Fast\n", "    title: Fast\n    noun: Own rate\n", 1)
    assert module.noun_of("gemm.bf16", support.load(tmp_path, own)) == "Own rate"
    assert module.noun_of("not.known") == "not.known"
    for text, criterion, shown in (
        ("n0 gpu1 health.xid: 1 Xid", "health.xid", "Xid errors: n0 gpu1: 1 Xid (health.xid)"),
        ("n[0-1]: 2 checks failed; worst n0 health.xid: 3 Xids", "health.xid",
         "Xid errors: n[0-1]: 2 checks failed; worst n0: 3 Xids (health.xid)"),
        ("n0 own.rate: 1 GB/s", "own.rate", "n0 own.rate: 1 GB/s"),
    ):  # fmt: skip
        assert module.named(text, criterion) == shown


def test_the_step_after_a_run_depends_on_its_verdict():
    assert "reports sign RUN" in module.what_to_do("ACCEPTED")
    for verdict in ("PARTIAL", "DEMONSTRATION"):
        assert "`pytest -m multinode`" in module.what_to_do(verdict)
    assert module.what_to_do("REJECTED") == ""
