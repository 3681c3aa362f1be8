"""good-nodes.txt, bad-nodes.txt and node-reasons.txt: which nodes are in which list, and why."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from fixtures.conclusion.node_lists import (
    NodeLists,
    RowNodes,
    is_between_nodes,
    node_lists,
    nodes_of_subject,
)
from fixtures.records.located import Search
from fixtures.records.model import Measurement
from fixtures.thresholds import loader
from fixtures.thresholds.loader import Criterion
from fixtures.verdict.causes import Cause
from fixtures.verdict.model import Verdict
from fixtures.verdict.samples import culprit, points_of
from tests.selftests import support
from tests.selftests.verdict.made import row_on as row

pytestmark = pytest.mark.cpu

NODES = ("n0", "n1", "n2")


def failed(subject: str, *, node: str | None = None, **more: Any) -> Verdict:
    return row(subject, "FAIL", worst={"node": node, "gpu": None}, **more)


def lost(subject: str, cause: Cause, *nodes: str, reason: str = "it is lost") -> Verdict:
    return row(subject, "NOT_MEASURED", cause=cause.value, cause_nodes=list(nodes), reason=reason)


def lists(
    *rows: Verdict, located: Collection[str] | None = None, places: Collection[str] = (),
    cleared: Collection[str] = (), explained: bool = True,
    smaller: Mapping[str, list[str]] | None = None, rails: Mapping[tuple[str, str], int] = {},
) -> NodeLists:  # fmt: skip
    """The lists; `located`: what a search found, which explains all failures unless it does not."""
    search = Search(
        tuple(located or ()), tuple(places), explained and located is not None, frozenset(cleared)
    )
    nodes = RowNodes(NODES, smaller or {})
    return node_lists(rows, nodes, search, lambda node, nic: rails.get((node, nic)))


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


COUNT = "allreduce.cluster.errors"
"""Counted exactly; gemm.bf16, of any subject here, is a rate."""


def test_a_count_of_several_nodes_is_of_the_one_that_it_names():
    passed = [row(node) for node in NODES]
    for verdict, located, expected in (
        (failed("n0--n1", node="n1", criterion=COUNT), None, (["n0", "n2"], ["n1"], [])),
        (failed("n0--n1", criterion=COUNT), None, (["n2"], [], ["n0", "n1"])),
        (failed("n0--n1", criterion=COUNT), ["n2"], (["n2"], [], ["n0", "n1"])),
        (failed("n0--n1", node="n1", criterion=COUNT), ["n2"], (["n0", "n2"], ["n1"], [])),
        (row("n0--n1", "FAIL", criterion=COUNT), None, (list(NODES), [], [])),
        (failed("n1", node="n0"), ["n2"], (["n0", "n2"], ["n1"], [])),
    ):  # fmt: skip
        assert conditions(lists(*passed, verdict, located=located)) == expected, verdict


def test_a_rate_between_nodes_is_of_those_that_a_search_found():
    passed = [row(node) for node in NODES]
    rate = failed("cluster", node="n1")
    for more, expected in (
        ({"located": ["n2"]}, (["n0", "n1"], ["n2"], [])),
        ({"located": []}, (list(NODES), [], [])),
        ({"located": ["n2"], "explained": False}, ([], ["n2"], ["n0", "n1"])),
        ({"located": ["n2"], "explained": False, "cleared": ["n0"]}, (["n0"], ["n2"], ["n1"])),
        ({"located": [], "explained": False, "cleared": ["n0", "n1"]}, (["n0", "n1"], [], ["n2"])),
        ({}, ([], [], list(NODES))),
    ):  # fmt: skip
        assert conditions(lists(*passed, rate, **more)) == expected, more
    assert lists(*passed, rate, located=["n2"]).reasons == ["n2 bad: gemm.bf16 failed"]


LIMITS = loader.load(support.SHIPPED)
BETWEEN = [c for c in LIMITS.criteria.values() if not c.span.of_one_node]


def worst_on(criterion: Criterion, node: str) -> dict[str, Any]:
    """What a row says that a rank of this node decided."""
    measured = Measurement(metric=criterion.metric, unit=criterion.unit, value=1, at=criterion.at)
    of_rank = support.record(support.rank(0, node, measured), workload=criterion.workload)
    ((rank, m),) = points_of(criterion, of_rank, NODES, "rail0")
    return culprit(criterion, rank, 1, m.at.get("part"))


@pytest.mark.parametrize(
    "criterion", [c for c in BETWEEN if not c.kind.together], ids=lambda c: str(c.key)
)
def test_an_exact_row_beside_a_located_nic_is_charged_to_the_node_that_it_names(
    criterion: Criterion,
) -> None:
    worst = worst_on(criterion, "n1")
    exact = row("cluster", "FAIL", criterion=criterion.key, unit=criterion.unit, worst=worst)
    rate = row("cluster", "FAIL", criterion="allreduce.cluster.1GiB", unit="GB/s",
               worst={"node": None, "gpu": None, "part": "all nodes"})  # fmt: skip
    found = lists(*map(row, NODES), exact, rate, located=["n2"])
    assert "n2" in found.bad
    assert [line for line in found.reasons if criterion.key in line and "n2" in line] == []
    if worst["node"] is None:
        assert conditions(found) == ([], ["n2"], ["n0", "n1"])
    else:
        assert conditions(found) == (["n0"], ["n1", "n2"], [])
        assert found.reasons == [
            f"n1 bad: {criterion.key} failed", "n2 bad: allreduce.cluster.1GiB failed",
        ]  # fmt: skip


@pytest.mark.parametrize(
    "criterion", [c for c in BETWEEN if c.kind.together], ids=lambda c: str(c.key)
)
def test_a_rate_beside_a_located_nic_is_charged_to_the_nic(criterion: Criterion) -> None:
    rate = row("cluster", "FAIL", criterion=criterion.key, unit=criterion.unit,
               worst=worst_on(criterion, "n1"))  # fmt: skip
    found = lists(*map(row, NODES), rate, located=["n2"])
    assert conditions(found) == (["n0", "n1"], ["n2"], [])


def test_of_criteria_that_are_not_shipped_the_unit_tells_rates_between_nodes():
    assert [is_between_nodes(row("cluster", criterion="ours", unit=unit))
            for unit in ("GB/s", "us", "elements", "")] == [True, True, False, False]  # fmt: skip


def test_a_nic_that_failed_by_itself_explains_its_rail_without_a_search():
    passed = [row(node) for node in NODES]
    down = failed("n1", node="n1", criterion="infiniband.state")
    down.worst["part"] = "mlx5_3"
    rail = failed("rail3", criterion="rails.sendrecv.1GiB")
    rails = {("n1", "mlx5_3"): 3}
    found = lists(*passed, rail, down, rails=rails)
    assert conditions(found) == (["n0", "n2"], ["n1"], [])
    assert found.reasons == ["n1 bad: rails.sendrecv.1GiB failed; infiniband.state failed"]
    other = failed("rail2", criterion="rails.sendrecv.1GiB")
    for rows, known in ((other, rails), (rail, {})):
        assert conditions(lists(*passed, rows, down, rails=known)) == ([], ["n1"], ["n0", "n2"])
    slow = failed("n1", node="n1")  # of a GPU, whatever it is called
    slow.worst["part"] = "mlx5_3"
    assert conditions(lists(*passed, rail, slow, rails=rails))[0] == []


def test_what_all_nodes_fail_is_charged_to_none_of_them():
    nodes = tuple(f"n{k}" for k in range(8))
    rows = [row(node, "FAIL", value=541.0 - k) for k, node in enumerate(nodes)]
    rows.append(row("n3", "FAIL", criterion="health.ecc_uncorrected"))
    found = node_lists(rows, RowNodes(nodes, {}))
    assert (found.good, found.bad) == ([], ["n3"])
    assert found.reasons[0] == "n0 neither: gemm.bf16 failed, as on all 8 nodes"
    assert found.reasons[3] == "n3 bad: health.ecc_uncorrected failed"
    assert found.shared == [
        "all 8 nodes fail gemm.bf16: before any single node, look at the limit and at what the "
        "nodes share"
    ]


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
