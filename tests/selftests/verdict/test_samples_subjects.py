"""Who is named by a row that fails: over all criteria, with a limit that must fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fixtures.records.model import Record
from fixtures.thresholds import loader
from fixtures.thresholds.criteria import Criterion
from fixtures.thresholds.kinds import Of
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Outcome, Verdict
from fixtures.verdict.samples import ALL_NODES, is_synchronous
from tests.selftests.support import SHIPPED
from tests.selftests.verdict import made
from tests.selftests.verdict.made import measured, rank, record, row, state

pytestmark = pytest.mark.cpu

LIMITS = replace(loader.load(SHIPPED), waivers=(), tails={}, spread={})
GPUS = 2


def nodes_of(criterion: Criterion) -> tuple[str, ...]:
    if criterion.span.of_one_node:
        return ("worker0",)
    return ("worker0", "worker1") + (("worker2",) if criterion.statistic == "alike" else ())


def failing(criterion: Criterion) -> Criterion:
    """The criterion with a limit that what values() makes does not satisfy."""
    limit = row(fail_above=1) if criterion.kind.state else row(fail_below=1e9)
    if criterion.kind.unit is not None:
        limit = row(fail_above=0)
    return replace(
        criterion, limits=(limit,), ceiling=None, valid={}, valid_where=(), spread=None, tail=None,
        measured_unit="GB/s", sweep=(None, None), within=None,
    )  # fmt: skip


def values(criterion: Criterion, gpu: int, node: int) -> Iterator[Any]:
    """What a rank reports: the second GPU of each node is the worst, of a state only that of the
    first node fails, and of values that are compared the second node has another."""
    kind, at = criterion.kind, dict(criterion.at)
    bad = float(gpu == GPUS - 1 and not (kind.state and node))
    node %= 2
    if kind.of is Of.LINK:
        links = {"to": 1 - gpu, "part": f"gpu{gpu}->gpu{1 - gpu}"}
        yield measured(criterion.metric, 2 - bad, at={**at, **links})
    elif kind.rate or (kind.by_round and kind.of is Of.GPU):
        if kind.of is Of.GPU or gpu == 0:
            yield measured(criterion.metric, 2 - bad, at=at)
    elif kind.together:
        for size, rate in ((1, 2.0), (2, 3.0), (4, 2.0 - bad)):
            yield measured(criterion.metric, rate, at={**at, "size": size})
    elif kind.of is Of.GPU:
        yield state(1 + bad, criterion.metric, at=at)
    elif gpu == 0 or kind.ranks_owe == 1:
        if kind.of is Of.NIC:
            for nic in ("mlx5_0", "mlx5_1"):
                more = node + (kind.unit is None) if nic == "mlx5_1" else 0
                yield state(1 + more, criterion.metric, at={**at, "part": nic})
        elif kind.of is not Of.ROW or node == 0:
            yield state(2 + node, criterion.metric, at=at)


def judged(criterion: Criterion) -> tuple[Verdict, Record]:
    nodes = nodes_of(criterion)
    found = record(
        *(
            rank(GPUS * n + k, *values(criterion, k, n), node=node, gpus=GPUS)
            for n, node in enumerate(nodes) for k in range(GPUS)
        ),
        workload=criterion.workload, nodes=[*nodes],
    )  # fmt: skip
    of_gpus = criterion.kind.of in (Of.GPU, Of.LINK, Of.NIC)
    each = 1 if criterion.span.rail or not of_gpus else GPUS
    subject = "rail1" if criterion.span.rail else "--".join(nodes)
    case = made.case(
        failing(criterion), nodes, each * len(nodes), subject=subject, record=found,
        facts={"model": "H200 SXM"},
    )  # fmt: skip
    return judge(case, LIMITS), found


def expected(criterion: Criterion) -> tuple[str | None, int | None, str | None]:
    """Node, GPU and part that the row may name."""
    kind, one = criterion.kind, criterion.span.of_one_node
    of_gpu = "worker0" if kind.state or one or criterion.of_one_rank or kind.by_round else None
    if criterion.workload == "slurm" and not one:
        return "worker0", None, "the node"  # of the login side's record: its own entry
    if is_synchronous(criterion):
        return ("worker0", None, "all GPUs") if one else (None, None, ALL_NODES)
    if kind.of is Of.GPU:
        return of_gpu, GPUS - 1, None
    if kind.of is Of.LINK:
        return "worker0", None, "gpu1->gpu0"
    if kind.of is Of.NIC:
        return ("worker0" if one else "worker1"), None, "mlx5_1"
    if kind.of is Of.ROW and not one:
        return None, None, ALL_NODES
    return ("worker0" if one else "worker1"), None, "the node"


def test_a_row_names_whose_figure_decided_it_and_never_who_reported_it():
    wrong = []
    for criterion in LIMITS.criteria.values():
        verdict, found = judged(criterion)
        worst = verdict.worst or {}
        names = worst.get("node"), worst.get("gpu"), worst.get("part")
        if criterion.kind.unit == "":
            names = (names[0], names[1], expected(criterion)[2])  # a part is a fact there
        if verdict.outcome is not Outcome.FAIL or names != expected(criterion):
            wrong.append(f"{criterion.key}: {names}, not {expected(criterion)}: {verdict.line}")
        if (uuid := worst.get("uuid")) is not None:
            mine = {r.rank: r.device["uuid"] for r in found.ranks if r.node == worst["node"]}
            assert uuid == [*mine.values()][-1], criterion.key
        elif criterion.kind.of not in (Of.GPU, Of.LINK):
            text = f"{verdict.line} {verdict.notes}"
            if "gpu0" in text or any(r.device["uuid"] in text for r in found.ranks):
                wrong.append(f"{criterion.key} names a GPU: {text}")
    assert wrong == []


def test_nor_does_a_row_of_a_node_that_could_not_be_judged():
    wrong = []
    for criterion in LIMITS.criteria.values():
        if criterion.kind.of in (Of.GPU, Of.LINK) or not criterion.kind.state:
            continue
        nodes = nodes_of(criterion)
        for bad in (state(-1, criterion.metric), state("x", criterion.metric)):
            bad.at.update(criterion.at)
            silent = [rank(k, node=n) for k, n in enumerate(nodes[1:], GPUS)]
            found = record(rank(0, bad), rank(1), *silent, workload=criterion.workload)
            case = made.case(failing(criterion), nodes, record=found, facts={"model": "H200 SXM"})
            verdict = judge(case, LIMITS)
            if verdict.outcome is not Outcome.NOT_MEASURED or "gpu" in verdict.reason:
                wrong.append(f"{criterion.key}: {verdict.reason}")
    assert wrong == []
