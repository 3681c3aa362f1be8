"""Criteria, cases and limits made up for tests that call the functions of the judge directly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fixtures.plan.items import Item
from fixtures.records.absence import Absence
from fixtures.records.model import Measurement, RankResult, Record
from fixtures.statistics.fleet_slots import NO_FLEET
from fixtures.thresholds.criteria import Criterion
from fixtures.thresholds.limits import Limit, ResolvedLimit
from fixtures.verdict.model import Case, Outcome, Verdict
from fixtures.verdict.sheet import Reading, Sheet, Terms
from tests.selftests import support

Points = list[tuple[RankResult, Measurement]]


def criterion(*rows: Limit, **given: Any) -> Criterion:
    """A criterion of nodes on the metric `own.rate`, unless told otherwise."""
    fields: dict[str, Any] = {
        "key": "own.rate", "title": "x", "per": "node", "unit": "GB/s", "measured_unit": "GB/s",
        "workload": "own", "metric": "rate", "at": {}, "statistic": "median", "over": "slowest",
        "tier": "standard", "gate": False, "when": (), "ceiling": None, "valid": {},
        "valid_where": (), "spread": None, "tail": None, "synchronous": False,
        "sweep": (None, None), "limits": rows,
    }  # fmt: skip
    return Criterion(**fields | given)


def row(**given: Any) -> Limit:
    """A row of a criterion's limits, with a source."""
    return Limit.model_validate({"source": "x", **given})


def item(criterion: str = "a", node: str = "n0", workload: str = "w", **more: Any) -> Item:
    """The planned item of a criterion on a node."""
    return Item(criterion=criterion, subject=node, nodes=(node,), workload=workload,
                placement=node, **more)  # fmt: skip


def case(
    of: Criterion, nodes: Sequence[str] = ("worker0",), devices: int = 2, **given: Any
) -> Case:
    """A case over these nodes, with `devices` in all."""
    fields: dict[str, Any] = {
        "subject": "--".join(nodes), "nodes": tuple(nodes), "record_nodes": tuple(nodes),
        "facts": {}, "siblings": NO_FLEET,
    }  # fmt: skip
    return Case(criterion=of, devices=devices, **fields | given)


def resolved(kind: str, value: Any = None, **given: Any) -> ResolvedLimit:
    """A limit whose fractions are computed."""
    fields: dict[str, Any] = {
        "expect": None, "text": f"{kind} {value}", "loose": None, "source": "x",
    }  # fmt: skip
    return ResolvedLimit(kind=kind, value=value, **fields | given)  # type: ignore[arg-type]


def sheet(of: Case, found: Record, limit: ResolvedLimit | None = None, **given: Any) -> Sheet:
    """A sheet with all measurements of a record, without a ceiling unless told otherwise."""
    asked = {name: given.pop(name, None) for name in ("facts", "thresholds", "ceiling")}
    terms = Terms(of.criterion, asked["facts"] or {}, asked["thresholds"])
    terms.ceiling, terms.limit = asked["ceiling"], limit or resolved("below", 1)
    reading = Reading(replace(of, record=found), given.pop("points", points(found)))
    base = verdict(devices={"planned": of.devices, "measured": 0})
    return Sheet(case=of, reading=reading, terms=terms, **{"base": base, **given})


def verdict(**given: Any) -> Verdict:
    """A verdict on two planned devices of worker0."""
    fields: dict[str, Any] = {
        "criterion": "own.rate", "title": "x", "subject": "worker0", "unit": "GB/s",
        "outcome": Outcome.NOT_MEASURED, "devices": {"planned": 2, "measured": 0},
    }  # fmt: skip
    return Verdict(**fields | given)


def row_on(subject: str = "n0", outcome: str = "PASS", **given: Any) -> Verdict:
    """A row of a run's verdict."""
    fields = {"criterion": "gemm.bf16", "title": "Fast", **given}
    return Verdict(subject=subject, outcome=Outcome(outcome), **fields)


def measured(metric: str = "rate", *samples: float, **given: Any) -> Measurement:
    """Samples of a metric in GB/s."""
    return Measurement(metric=metric, samples=list(samples), **{"unit": "GB/s", **given})


def state(value: Any, metric: str = "rate", **given: Any) -> Measurement:
    """A value of a metric."""
    return Measurement(metric=metric, value=value, **{"unit": "GB/s", **given})


def rank(
    k: int, *found: Measurement | Absence, node: str = "worker0", gpus: int = 2, **facts: Any
) -> Any:
    """Rank k, with these measurements, absences and facts."""
    made = support.rank(k, node, *found, gpus=gpus)
    made.facts.update(facts)
    return made


def record(*ranks: RankResult, **given: Any) -> Record:
    """A record of these ranks of the workload `own`."""
    return support.record(*ranks, **{"workload": "own", **given})


def points(found: Record, metric: str = "rate") -> Points:
    """All measurements of a metric."""
    return found.points(metric, {})
