"""Exact rows over several nodes: each node whose own value fails is bad, however many there are.

Generated over all such criteria that are shipped: records are judged, and the lists are made of
the verdicts.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pytest

from fixtures.conclusion.node_lists import NodeLists, RowNodes, node_lists
from fixtures.records.located import Search
from fixtures.records.model import LOGIN_WORKLOAD, Measurement, Record
from fixtures.thresholds import loader
from fixtures.thresholds.loader import Criterion
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Outcome, Verdict
from tests.selftests import support

pytestmark = pytest.mark.cpu

GPUS = 2
NODES = tuple(f"n{k}" for k in range(8))
LOCATED = "n5"
CONTRACT = {
    "nodes": len(NODES), "gpus_per_node": 8, "gpu_model": "H200 SXM", "nics_per_node": 8,
    "nic_gbps": 400,
}  # fmt: skip
LIMITS = loader.load_with_contract(support.SHIPPED, CONTRACT)
EXACT = [
    c for c in LIMITS.criteria.values()
    if not c.span.of_one_node and not c.kind.together and c.workload != LOGIN_WORKLOAD
    and c.over != "half"  # of all nodes, whoever reports it
]  # fmt: skip
VALUES = (0, 1, 2, 8, 100, 200, 10**6, "on", "NET/IB", "another state")
OTHERS = (
    Verdict(criterion="allreduce.cluster.1GiB", title="t", subject="cluster", unit="GB/s",
            outcome=Outcome.FAIL, worst={"node": None, "gpu": None, "part": "all nodes"}),
    *(Verdict(criterion="gemm.bf16", title="t", subject=n, outcome=Outcome.PASS) for n in NODES),
)  # fmt: skip


def measured(criterion: Criterion, k: int, value: Any) -> list[Measurement]:
    """What rank k reports: of its GPU, or the first of a node for it or its two NICs."""
    over = criterion.over
    if k % GPUS and over != "devices":
        return []
    checks = {name: next(b for b in (*bounds, 0.0) if b is not None)
              for name, bounds in criterion.valid.items()}  # fmt: skip
    points: list[dict[str, Any]] = [dict(criterion.at)]
    if criterion.statistic == "alike":
        parts = ["mlx5_0", "mlx5_1"] if over == "nics" else [None]
        points = [{"fact": "a fact"} | ({"part": part} if part else {}) for part in parts]
    unit = criterion.measured_unit or criterion.unit
    return [
        Measurement(metric=criterion.metric, unit=unit, value=value, at=at, checks=checks)
        for at in points
    ]


def judged(criterion: Criterion, value: Any, other: Any, planted: Collection[str] = ()) -> Verdict:
    """The verdict where all nodes have a value, and the planted ones another."""
    nodes = [NODES[k // GPUS] for k in range(GPUS * len(NODES))]
    ranks = [
        support.rank(k, node, *measured(criterion, k, other if node in planted else value))
        for k, node in enumerate(nodes)
    ]
    found: Record = support.record(*ranks, workload=criterion.workload, placement="all")
    case = support.case(LIMITS, criterion.key, found, nodes=NODES, gpus=GPUS,
                        facts={"nics_per_node": 8, "nic_gbps": 400})  # fmt: skip
    return judge(case, LIMITS)


@dataclass(frozen=True)
class Row:
    """A criterion with a value that passes and one that fails."""

    criterion: Criterion
    good: Any
    bad: Any

    @staticmethod
    def of(criterion: Criterion) -> Row:
        if criterion.statistic == "alike":
            return Row(criterion, 500_000, 100_000)
        states = [str(limit.equals) for limit in criterion.limits if limit.equals]
        of_all = {v: judged(criterion, v, v).outcome for v in (*VALUES, *states)}
        good = [v for v, outcome in of_all.items() if outcome is Outcome.PASS]
        bad = [v for v, outcome in of_all.items() if outcome is Outcome.FAIL]
        assert good, (criterion.key, of_all)
        assert bad, (criterion.key, of_all)
        return Row(criterion, good[0], bad[-1])

    def lists(self, planted: Collection[str], search: Search) -> NodeLists:
        row = judged(self.criterion, self.good, self.bad, planted)
        assert row.outcome is Outcome.FAIL, row
        others = OTHERS if search.at_fault else OTHERS[1:]
        return node_lists((*others, row), RowNodes(NODES, {}), search)


def search_of(*at_fault: str) -> Search:
    return Search(at_fault, (), bool(at_fault), frozenset())


@pytest.mark.parametrize("criterion", EXACT, ids=lambda c: str(c.key))
def test_all_nodes_whose_own_values_fail_are_bad_and_no_other(criterion: Criterion) -> None:
    row = Row.of(criterion)
    failed = f"{criterion.key} failed"
    for planted in (["n1"], ["n1", "n2"], ["n1", "n2", "n3"]):
        for located in ([], [LOCATED]):
            found = row.lists(planted, search_of(*located))
            assert found.bad == [*planted, *located], found.reasons
            assert found.good == [n for n in NODES if n not in found.bad], found.reasons
            why = {line.partition(" ")[0]: line for line in found.reasons}
            assert [n for n in NODES if failed in why.get(n, "")] == planted


@pytest.mark.parametrize("criterion", EXACT, ids=lambda c: str(c.key))
def test_where_nothing_tells_the_nodes_apart_all_are_neither(criterion: Criterion) -> None:
    row = Row.of(criterion)
    alike = criterion.statistic == "alike"
    found = row.lists(NODES[::2] if alike else NODES, search_of(LOCATED))
    why = "no majority for a fact" if alike else "nodes that report a value fail"
    assert (found.good, found.bad) == ([], [LOCATED])
    assert [n for n in found.doubtful if n != LOCATED] == [n for n in NODES if n != LOCATED]
    assert all(why in line for line in found.reasons if not line.startswith(LOCATED))
