"""Faults planted in records: for criteria under which nothing can be broken here.

A record in which all is well is judged, then the same one with the figure of one node made bad. It
proves that the judge would find it, not that the workload would: such rows are marked `planted`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fixtures import hardware
from fixtures.cluster.population import Population
from fixtures.errors import AcceptanceError
from fixtures.plan.items import Item, facts_of, planned_list
from fixtures.records.fields import Scalar
from fixtures.records.files import read_json
from fixtures.records.model import LOGIN_WORKLOAD, Measurement, Record
from fixtures.records.run_directory import RunDirectory
from fixtures.run.evidence import Evidence
from fixtures.run.judge_item import judge_item
from fixtures.thresholds import loader
from fixtures.thresholds.conditions import RECORD_ONLY
from fixtures.thresholds.contract import Contract
from fixtures.thresholds.kinds import Of
from fixtures.thresholds.limits import Limit
from fixtures.thresholds.loader import Criterion, Thresholds
from fixtures.verdict.model import Outcome, Verdict
from fixtures.verdict.samples import is_synchronous, points_of
from tests.selftests.support import DATA, H200, SHIPPED, rank, record

WHERE = "in a record"
RUNS = ("sandbox-2x2-cpu", "h200-1x4", "h200-2x2", "sandbox-2x2-cpu-failures")
"""Recorded runs, in which a figure is made bad."""
MADE_OF = (2, 4, 8)
"""GPUs per node of the clusters that records are made up for, where no recorded run has any."""


@dataclass(frozen=True)
class Planted:
    """What became of a fault that was planted."""

    criterion: str
    where: str
    culprit: str
    healthy: Outcome
    verdict: Verdict

    @property
    def named(self) -> str:
        worst = self.verdict.worst or {}
        return str(worst.get("node") or self.verdict.subject)

    @property
    def right(self) -> bool:
        found = self.verdict.outcome is Outcome.FAIL and self.healthy is Outcome.PASS
        return found and self.named == self.culprit


def never_judged(criterion: Criterion) -> bool:
    """What is only ever recorded can not be red."""
    return all(row.recorded is not None for row in criterion.limits)


def plant(key: str) -> Planted:
    """Judge a criterion on a record that is well and on one that is not; LookupError for none."""
    for limits, people, item, found in (*_recorded(key), *_made_up(key)):
        healthy = judge_item(item, found, thresholds=limits, population=people)
        if healthy.outcome is not Outcome.PASS:
            continue
        bad, node = spoil(found, limits.criteria[key], item, healthy)
        verdict = judge_item(item, bad, thresholds=limits, population=people)
        if verdict.outcome is Outcome.FAIL:
            criterion = limits.criteria[key]
            of_all = criterion.kind.of is Of.ROW and criterion.workload != LOGIN_WORKLOAD
            if (is_synchronous(criterion) or of_all) and not criterion.span.of_one_node:
                node = item.subject  # none of its nodes can be singled out
            return Planted(key, f"{WHERE} {found.run_id}", node, healthy.outcome, verdict)
    raise LookupError(f"no record of {key} can be made bad")


Case = tuple[Thresholds, Population, Item, Record]


@functools.cache
def shipped() -> Thresholds:
    return loader.load(SHIPPED)


@functools.cache
def _run(name: str) -> tuple[Thresholds, Population, dict[str, list[Item]], Evidence] | None:
    root = DATA / name
    if not (root / "run.json").exists():
        return None
    about = read_json(root / "run.json")
    model = about["population"]["gpu_model"]
    known = {"origin": about.get("origin"), **about["population"]}
    people = Population.from_json({**known, "gpu_model": hardware.model_of(str(model))})
    limits = shipped()
    if about.get("contract"):
        limits = replace(limits, cluster=Contract.model_validate(about["contract"]))
    items: dict[str, list[Item]] = {}
    for item in planned_list(limits, people, tier="burnin", destructive=True):
        if not item.not_applicable:
            items.setdefault(item.criterion, []).append(item)
    return limits, people, items, Evidence(RunDirectory(root), about["nonce"])


def _recorded(key: str) -> Iterator[Case]:
    for name in RUNS:
        if (run := _run(name)) is None:
            continue
        limits, people, items, evidence = run
        for item in reversed(items.get(key, [])):
            found = evidence.get(item.workload, item.placement)
            if isinstance(found, Record):
                yield limits, people, item, found


# --- records that are made up


def _made_up(key: str) -> Iterator[Case]:
    criterion = shipped().criteria[key]
    if criterion.statistic not in ("median", "value"):
        return
    for gpus in MADE_OF:
        for model in (*_models(criterion), "H200 SXM"):
            contract = Contract(
                nodes=2, gpus_per_node=gpus, gpu_model=model, nics_per_node=gpus, nic_gbps=400,
                shared_directory="/shared", shared_tb=10,
            )  # fmt: skip
            limits = replace(calibrated(shipped(), key), cluster=contract)
            criterion = limits.criteria[key]
            people = Population(
                origin="cluster", nodes=("worker0", "worker1"), gpus_per_node=gpus,
                gpu_model=model, nics_per_node=gpus, nic_gbps=400, ordered=True,
                shared_directory=True, shared_tb=10,
            )  # fmt: skip
            nodes = people.nodes if criterion.per != "node" else ("worker1",)
            subject = {"node": "worker1", "pair": "worker0--worker1", "rail": "rail0"}
            item = Item(
                criterion=key, subject=subject.get(criterion.per, "cluster"), nodes=nodes,
                workload=criterion.workload, placement="--".join(nodes),
            )  # fmt: skip
            for row in criterion.limits:
                if (made := _healthy(criterion, row, item, people, limits)) is not None:
                    yield limits, people, item, made


def calibrated(limits: Thresholds, key: str) -> Thresholds:
    """Give a criterion that is shipped without any number one, as calibrating on a site does."""
    criterion = limits.written[key]
    if not all(row.calibrate or row.recorded for row in criterion.limits):
        return limits
    source = "the devices of a site"
    rows = tuple(
        Limit.model_validate(
            {
                "fail_below": "0.8 of ceiling",
                "source": source,
                "model": list(row.model),
                "when": row.when.given(),
            }
        )
        if row.calibrate
        else row
        for row in criterion.limits
    )
    judged = replace(criterion, limits=rows)
    return replace(limits, written={**limits.written, key: judged})


def _models(criterion: Criterion) -> list[str]:
    return [m for row in criterion.limits for m in row.model if m != "cpu"]


def _healthy(
    criterion: Criterion, row: Limit, item: Item, people: Population, limits: Thresholds
) -> Record | None:
    conditions: dict[str, Scalar] = {
        name: value for name in RECORD_ONLY if (value := row.when.given().get(name)) is not None
    }
    if len(item.nodes) > 1:
        each = 1 if criterion.per == "rail" else people.gpus_per_node
        conditions |= {"domains": len(item.nodes), "gpus_per_domain": each}
    facts = {**H200, **facts_of(criterion, item.nodes, people), **conditions}
    try:
        limit = criterion.limit_for(facts)
        resolved = limit.resolve(criterion.bound({**facts, "metric": criterion.metric}),
                                 limits.cluster, criterion.model_for(limit, facts))  # fmt: skip
    except (AcceptanceError, hardware.MissingFact):
        return None
    if resolved.kind in ("calibrate", "recorded") or resolved.value is None:
        return None
    good: Scalar = resolved.value
    if resolved.kind == "below":
        good = resolved.expect or float(resolved.value) * 1.02
    elif resolved.kind == "above":
        good = resolved.expect or 0
    bounds = criterion.valid_for(limit, facts)
    checks = {k: float(low if low is not None else high or 0) for k, (low, high) in bounds.items()}
    same: dict[str, Any] = {
        "metric": criterion.metric, "unit": criterion.unit, "at": dict(criterion.at),
        "checks": checks, "conditions": conditions,
    }  # fmt: skip
    if criterion.statistic == "value":
        measured = Measurement(value=good, **same)
    else:
        count = round(checks.get("batches", checks.get("steps", 30)))
        measured = Measurement(samples=[float(good)] * count, **same)
    each = people.gpus_per_node
    by_one = criterion.kind.of is Of.ROW and criterion.per == "cluster"
    ranks = [
        rank(k, node, *([] if by_one and k else [replace(measured)]), gpus=each)
        for place, node in enumerate(item.nodes)
        for k in range(place * each, (place + 1) * each)
    ]
    made = record(*ranks, workload=criterion.workload, placement=item.placement)
    return replace(made, run_id="that is made up")


# --- making them bad


def spoil(found: Record, criterion: Criterion, item: Item, healthy: Verdict) -> tuple[Record, str]:
    """The record with the figures of one node far on the wrong side of the limit, and the node."""
    points = points_of(criterion, found, item.nodes, item.subject)
    mine = [(r, m) for r, m in points if r.node in item.nodes] or points
    node = mine[-1][0].node
    mine = [(r, m) for r, m in mine if r.node == node]
    if criterion.statistic == "dip":
        low, high = criterion.sweep
        sizes = sorted({int(m.at["size"]) for _, m in mine})
        sizes = [s for s in sizes if (low or 0) <= s <= (high or sizes[-1])]
        mine = [(r, m) for r, m in mine if m.at["size"] == sizes[len(sizes) // 2]]
    elif criterion.statistic == "spread":
        mine = mine[-1:]
    changed = {id(m): _bad(m, criterion, healthy) for _, m in mine}
    ranks = [
        replace(r, measurements=[changed.get(id(m), m) for m in r.measurements])
        for r in found.ranks
    ]
    fields = {name: getattr(found, name) for name in Record.__dataclass_fields__}
    return Record(**{**fields, "ranks": ranks}), node


def _bad(m: Measurement, criterion: Criterion, healthy: Verdict) -> Measurement:
    lower_is_worse = not healthy.limit.startswith("<=") or criterion.statistic in ("dip", "spread")
    if m.samples:
        factor = 0.02 if lower_is_worse else 50
        rounds = [_times(samples, factor) for samples in m.rounds]
        return replace(m, samples=_times(m.samples, factor), rounds=rounds)
    value = m.value
    if isinstance(value, str):
        return replace(m, value=f"not {value}")
    if value is None or isinstance(value, bool):
        return m
    if healthy.limit.startswith(">="):
        return replace(m, value=value * 0.02)
    most = criterion.ceiling if isinstance(criterion.ceiling, float) else float("inf")
    return replace(m, value=min(most, value * 50 + 100_000))


def _times(samples: Sequence[float], factor: float) -> list[float]:
    return [factor * s for s in samples]
