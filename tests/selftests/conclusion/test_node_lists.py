"""good-nodes.txt, bad-nodes.txt and node-reasons.txt: which nodes are in which list, and why."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from fixtures.conclusion.node_lists import NodeLists, RowNodes, node_lists, nodes_of_subject
from fixtures.verdict.causes import Cause
from fixtures.verdict.model import Outcome, Verdict

pytestmark = pytest.mark.cpu

NODES = ("n0", "n1", "n2")


def row(subject: str, outcome: str = "PASS", **more: Any) -> Verdict:
    return Verdict(
        **{"criterion": "gemm.bf16", "title": "t", "subject": subject, "outcome": Outcome(outcome),
           **more}
    )  # fmt: skip


def failed(subject: str, *, node: str | None = None, **more: Any) -> Verdict:
    return row(subject, "FAIL", worst={"node": node, "gpu": None}, **more)


def lost(subject: str, cause: Cause, *nodes: str, reason: str = "it is lost") -> Verdict:
    return row(subject, "NOT_MEASURED", cause=cause.value, cause_nodes=list(nodes), reason=reason)


def lists(
    *rows: Verdict, located: Collection[str] | None = None, places: Collection[str] = (),
    smaller: Mapping[str, list[str]] | None = None,
) -> NodeLists:  # fmt: skip
    return node_lists(rows, RowNodes(NODES, smaller or {}), located, places)


def conditions(found: NodeLists) -> tuple[list[str], list[str], list[str]]:
    return found.good, found.bad, found.doubtful


# --- which nodes a row is about


def test_a_subject_is_a_node_a_pair_or_all_nodes():
    known = frozenset(NODES)
    for subject, nodes in (
        ("n1", ("n1",)), ("n0--n2", ("n0", "n2")), ("cluster", NODES), ("rail0", NODES),
        ("n0--gone", NODES), ("n0--n1--n2", NODES),
    ):  # fmt: skip
        assert nodes_of_subject(subject, NODES, known) == nodes, subject


def test_a_criterion_on_a_part_of_the_cluster_is_about_its_nodes():
    nodes = RowNodes(NODES, {"part": ["n0", "n2"], "empty": []})
    assert nodes.of(row("cluster", criterion="part")) == ("n0", "n2")
    assert nodes.of(row("n1", criterion="empty")) == ("n1",)
    assert nodes.of(row("n1")) == ("n1",)


# --- which list


def test_what_passed_or_is_waived_is_good_and_what_is_not_known_is_not():
    found = lists(row("n0"), row("n1", "WAIVED"), row("n2", "RECORDED"))
    assert conditions(found) == (["n0", "n1"], [], [])
    assert found.reasons == ["n2 neither: nothing was measured on it"]
    assert conditions(lists(row("cluster"))) == (list(NODES), [], [])


def test_a_failure_of_one_node_makes_it_bad():
    found = lists(row("n0"), row("n1"), row("n1", "FAIL"), row("n2"))
    assert conditions(found) == (["n0", "n2"], ["n1"], [])
    assert found.reasons == ["n1 bad: gemm.bf16 failed"]


def test_a_failure_of_several_nodes_is_of_the_one_that_it_names():
    passed = [row(node) for node in NODES]
    for verdict, located, expected in (
        (failed("n0--n1", node="n1"), None, (["n0", "n2"], ["n1"], [])),
        (failed("n0--n1"), None, (["n2"], [], ["n0", "n1"])),
        (failed("n0--n1", node="n1"), ["n2"], (["n0", "n1"], ["n2"], [])),
        (failed("n0--n1", node="n1"), [], (list(NODES), [], [])),
        (row("n0--n1", "FAIL"), None, (list(NODES), [], [])),
        (failed("n1", node="n0"), ["n2"], (["n0", "n2"], ["n1"], [])),
    ):
        assert conditions(lists(*passed, verdict, located=located)) == expected


def test_a_row_that_was_not_measured_counts_against_the_node_of_its_cause():
    passed = [row(node) for node in NODES]
    for verdict, expected in (
        (lost("n1", Cause.NODE, "n1"), (["n0", "n2"], ["n1"], [])),
        (lost("n0--n1", Cause.RECORD, "n1"), (["n0", "n2"], ["n1"], [])),
        (lost("n1", Cause.NODE), (["n0", "n2"], [], ["n1"])),
        (lost("n1", Cause.MEASUREMENT, "n1"), (["n0", "n2"], [], ["n1"])),
        (lost("n1", Cause.LIMIT, "n1"), (["n0", "n2"], [], [])),
        (lost("n1", Cause.OTHER_NODE, "n0"), (list(NODES), [], [])),
        (lost("n0--n1", Cause.MEASUREMENT), (list(NODES), [], [])),
        (lost("cluster", Cause.NODE), (list(NODES), [], [])),
    ):
        assert conditions(lists(*passed, verdict)) == expected, verdict


def test_nodes_of_an_accused_place_are_in_doubt_unless_they_are_bad():
    passed = [row(node) for node in NODES]
    found = lists(*passed, row("n0", "FAIL"), places=["n0", "n1"])
    assert conditions(found) == (["n2"], ["n0"], ["n1"])
    assert found.reasons[1] == ("n1 neither: the search accuses what it shares with its neighbours")


# --- the text


def test_a_bad_node_has_the_reasons_of_its_faults_alone():
    found = lists(
        row("n0", "FAIL"), row("n0", "FAIL"), lost("n0", Cause.MEASUREMENT, reason="unstable"),
        lost("n0", Cause.NODE, "n0", reason="went down"), row("n1"), row("n2"),
    )  # fmt: skip
    assert found.reasons == ["n0 bad: gemm.bf16 failed (2 rows); went down"]


def test_five_reasons_are_written_out():
    for count, more in ((5, ""), (6, "; and 1 more reasons")):
        rows = [row("n0", "FAIL", criterion=f"c{k}") for k in range(count)]
        (line,) = lists(*rows, row("n1"), row("n2")).reasons
        assert line == f"n0 bad: {'; '.join(f'c{k} failed' for k in range(5))}{more}"


def test_a_file_has_a_line_for_each_node():
    found = lists(row("n0"), row("n1"), row("n2", "FAIL"))
    assert found.text("good") == "n0\nn1\n"
    assert found.text("bad") == "n2\n"
    assert found.text("reasons") == "n2 bad: gemm.bf16 failed\n"
