"""One measurement of a recorded run changed, and what the suite must then say of the run.

A change must not pass unnoticed: whatever reads the measurement is no longer green, or the changed
value satisfies its limit and its physical bound, or it is declared here that nobody judges it.
"""

from __future__ import annotations

import copy
import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fixtures import hardware
from fixtures.backends import choose as backends
from fixtures.errors import ConfigError
from fixtures.plan.items import Item, facts_of
from fixtures.records.absence import Absence, Kind
from fixtures.records.model import Measurement, RankResult, Record
from fixtures.run.batch_judging import BatchJudge, judge_many
from fixtures.run.evidence import Evidence
from fixtures.run.options import RunOptions
from fixtures.run.run import Run
from fixtures.thresholds.loader import Criterion
from fixtures.verdict import recorded
from fixtures.verdict.model import Case, Outcome
from fixtures.verdict.samples import OVER_CEILING, compare
from fixtures.verdict.sheet import collect_facts
from tests.selftests.support import SHIPPED

GREEN = (Outcome.PASS, Outcome.RECORDED)
Json = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """A measurement: record, index of the rank's entry, index of the measurement."""

    record: str
    rank: int
    measurement: int


def _numbers(m: Json, change: Callable[[float], Any]) -> bool:
    """Change every number that was measured; False if there is none."""
    if m.get("samples"):
        m["samples"] = [change(x) for x in m["samples"]]
        m["rounds"] = [[change(x) for x in samples] for samples in m.get("rounds", ())]
        return True
    if isinstance(m.get("value"), bool) or not isinstance(m.get("value"), (int, float)):
        return False
    m["value"] = change(m["value"])
    return True


def _drop(ranks: list[Json], target: Target) -> bool:
    del ranks[target.rank]["measurements"][target.measurement]
    return True


def _other_unit(ranks: list[Json], target: Target) -> bool:
    m = ranks[target.rank]["measurements"][target.measurement]
    m["unit"] = "Gbit/s" if m["unit"] == "GB/s" else f"k{m['unit']}"
    return True


def _other_type(ranks: list[Json], target: Target) -> bool:
    m = ranks[target.rank]["measurements"][target.measurement]
    if m.get("samples"):
        m["samples"] = [str(x) for x in m["samples"]]
    elif isinstance(m.get("value"), str):
        m["value"] = 1
    else:
        m["value"] = str(m.get("value"))
    return True


def _other_rank(ranks: list[Json], target: Target) -> bool:
    """Let another rank say it, in place of its own."""
    moved = ranks[target.rank]["measurements"].pop(target.measurement)
    other = ranks[(target.rank + 1) % len(ranks)]
    other["measurements"].append(moved)
    return len(ranks) > 1


def _other_device(ranks: list[Json], target: Target) -> bool:
    device = ranks[target.rank]["device"]
    if not str(device.get("uuid", "")).startswith("GPU-"):
        return False
    device["uuid"] = "GPU-00000000-0000-0000-0000-000000000000"
    return True


CLAIMS = ("batches", "rounds", "steps", "clock_samples")


def _fewer_samples(ranks: list[Json], target: Target) -> bool:
    m = ranks[target.rank]["measurements"][target.measurement]
    if len(m.get("samples", ())) < 2 or not any(name in m.get("checks", {}) for name in CLAIMS):
        return False
    m["samples"] = m["samples"][:1]
    return True


def _no_value(ranks: list[Json], target: Target) -> bool:
    """Let the rank say why it has no value."""
    m = ranks[target.rank]["measurements"][target.measurement]
    for name in ("samples", "value", "rounds", "ended", "started", "checks"):
        m.pop(name, None)
    m["notes"] = ["it could not be measured"]
    return True


def known_in_part(ranks: list[Json], target: Target) -> bool:
    """Let the rank say that its value is only a lower bound."""
    metric = ranks[target.rank]["measurements"][target.measurement]["metric"]
    gap = Absence(metric=metric, kind=Kind.LOWER_BOUND, why="reset")
    ranks[target.rank].setdefault("absent", []).append(gap.to_json())
    return True


def _factor(change: Callable[[float], Any]) -> Callable[[list[Json], Target], bool]:
    def apply(ranks: list[Json], target: Target) -> bool:
        return _numbers(ranks[target.rank]["measurements"][target.measurement], change)

    return apply


CHANGES: Mapping[str, Callable[[list[Json], Target], bool]] = {
    "drop": _drop,
    "NaN": _factor(lambda x: float("nan")),
    "zero": _factor(lambda x: 0),
    "sign": _factor(lambda x: -x),
    "x8": _factor(lambda x: 8 * x),
    "x1000": _factor(lambda x: 1000 * x),
    "unit": _other_unit,
    "type": _other_type,
    "rank": _other_rank,
    "device": _other_device,
    "fewer samples": _fewer_samples,
    "in part": known_in_part,
    "no value": _no_value,
}
"""Name -> what it does to the ranks' entries of a record; False where it changes nothing."""
OF_THE_VALUE = ("zero", "sign", "x8", "x1000")
"""Changes after which the value may be a good one: no faulty wrong elements, eight times."""


class Mutated:
    """A recorded run whose records can be changed, one measurement at a time, in memory."""

    def __init__(self, source: Path, into: Path, thresholds: Path = SHIPPED) -> None:
        options = RunOptions(cluster="replay", from_run=source, run_dir=into, thresholds=thresholds)
        backend = backends.choose(options)
        self.run: Run = backend.open_run()
        self.run.select(item.key for item in self.run.items if self.run.admits(item))
        backend.prepare(self.run)
        self.run.open(command=["mutated", str(source)])
        backend.start(self.run)
        self.evidence: Evidence = self.run.evidence()
        self.evidence.cache_bytes = 10**12
        self.data: dict[str, Json] = {}
        self.items: dict[str, list[Item]] = {}
        for item in self.run.scope:
            found = self.evidence.get(item.workload, item.placement)
            if item.not_applicable or not isinstance(found, Record) or found.void:
                continue
            self.items.setdefault(found.name, []).append(item)
            path = self.run.directory.records / found.name
            self.data.setdefault(found.name, json.loads(path.read_text(encoding="utf-8")))
        self.before = self.judge(self.run.scope)

    def targets(self) -> Iterator[Target]:
        """All measurements of all records that somebody reads."""
        for name, data in self.data.items():
            for k, rank in enumerate(data["ranks"]):
                for j in range(len(rank["measurements"])):
                    yield Target(name, k, j)

    def judge(self, items: list[Item]) -> dict[tuple[str, str], Any]:
        """Judge items by the records as they are now."""
        judge = BatchJudge(self.evidence, self.run.thresholds, self.run.population)
        return judge_many(judge, self.run.items, [item.key for item in items]).verdicts

    def measurement(self, target: Target) -> Json:
        entry: Json = self.data[target.record]["ranks"][target.rank]["measurements"]
        return entry[target.measurement]

    def readers(self, target: Target) -> list[Item]:
        """The items whose criterion reads the measurement, and that are green."""
        rank = self.data[target.record]["ranks"][target.rank]
        found = []
        for item in self.items[target.record]:
            c = self.run.thresholds.criteria[item.criterion]
            own = c.per != "node" or rank["node"] in item.nodes
            if c.per == "rail":
                own = item.subject == f"rail{rank['local_rank']}"
            if own and self._reads(c, target):
                found.append(item)
        return [item for item in found if self.before[item.key].outcome in GREEN]

    def is_read(self, target: Target) -> bool:
        """Whether any criterion is about the measurement, also one without a limit for it."""
        return any(self._reads(c, target) for c in self.run.thresholds.criteria.values())

    def _reads(self, c: Criterion, target: Target) -> bool:
        m = self.measurement(target)
        at_point = all(m.get("at", {}).get(k) == v for k, v in c.at.items())
        of_it = (c.workload, c.metric) == (target.record.partition("@")[0], m["metric"])
        return of_it and at_point and self._is_on_curve(c, m)

    @staticmethod
    def _is_on_curve(criterion: Criterion, m: Json) -> bool:
        if criterion.statistic != "dip":
            return True
        low, high = criterion.sweep
        size = m["at"]["size"]
        return (low is None or size >= low) and (high is None or size <= high)

    def change(self, target: Target, kind: str) -> bool:
        """Make a change; False where it changes nothing. `restore` takes it back."""
        return self.apply(target, CHANGES[kind])

    def apply(self, target: Target, apply: Callable[[list[Json], Target], bool]) -> bool:
        """Make a change of one's own to the ranks' entries of the target's record."""
        data = copy.deepcopy(self.data[target.record])
        if not apply(data["ranks"], target):
            return False
        path = self.run.directory.records / target.record
        self._original = path, path.read_bytes(), dict(self.evidence._records)
        self.changed_key = data["workload"], data["placement"], data["attempt"]
        path.write_text(json.dumps(data), encoding="utf-8")
        if target.record.startswith("inventory@"):  # it says which devices there are
            self._forget()
        else:
            del self.evidence._records[self.changed_key]
        return True

    def restore(self) -> None:
        path, before, records = self._original
        path.write_bytes(before)
        self._forget()
        self.evidence._records.update(records)

    def _forget(self) -> None:
        assert self.evidence.devices is not None
        self.evidence.devices._devices.clear()
        self.evidence.devices._claims = None
        self.evidence._records.clear()

    def survives(self, target: Target, kind: str) -> list[str]:
        """Make one change, and return the criteria that are still green and should not be."""
        readers = self.readers(target)
        if not readers or not self.change(target, kind):
            return []
        try:
            # Whatever rests on a device falls with it: the inventory says which there are.
            asked = self.run.scope if self._redefines_devices(target, kind) else readers
            after = self.judge(asked)
            # One row that is not green is enough: the run is not.
            if any(v.outcome is not self.before[key].outcome for key, v in after.items()):
                return []
            changed = self.evidence._records[self.changed_key]
            if kind in OF_THE_VALUE and self.is_possible(changed, target, readers):
                return []
            if kind == "rank" and all(self._may_be_said_by_any_rank(item) for item in readers):
                return []
            return [item.criterion for item in readers]
        finally:
            self.restore()

    def _redefines_devices(self, target: Target, kind: str) -> bool:
        return kind == "device" and target.record.startswith("inventory@")

    def _may_be_said_by_any_rank(self, item: Item) -> bool:
        """Whether it is a state of the node, or of all: who says it does not matter."""
        c = self.run.thresholds.criteria[item.criterion]
        of_node = c.statistic == "value" and c.over in ("slowest", "nics")
        return of_node or c.statistic == "alike"

    def is_possible(self, record: Record, target: Target, readers: list[Item]) -> bool:
        """Whether the changed value satisfies limit and physical bound of all who read it."""
        rank = record.ranks[target.rank]
        m = rank.measurements[target.measurement]
        value = m.value if m.value is not None else statistics.median(m.samples)
        return all(self._allows(record, item, rank, m, value) for item in readers)

    def _allows(
        self, record: Record, item: Item, rank: RankResult, m: Measurement, value: Any
    ) -> bool:
        c = self.run.thresholds.criteria[item.criterion]
        if c.statistic in ("spread", "dip", "alike"):  # relative to others: judged, and green
            return value > 0 or c.statistic == "alike"
        facts = facts_of(c, item.nodes, self.run.population)
        case = Case(
            criterion=c, subject=item.subject, nodes=item.nodes, record_nodes=item.nodes,
            devices=1, facts=facts, record=record,
        )  # fmt: skip
        facts = collect_facts(case, record, [(rank, m)])
        try:
            limit = c.limit_for(facts)
            bound = recorded.bound(c, limit, facts)
            model = c.model_for(limit, facts)
            resolved = limit.resolve(bound, self.run.thresholds.cluster, model)
        except (ConfigError, hardware.MissingFact):
            return False
        if resolved.kind == "equals":
            return bool(value == resolved.value)
        if c.over == "ranks" and resolved.kind == "above":
            return True  # the mean of all ranks is judged, and satisfies the limit
        if not compare(resolved, value)[0] or value < 0:
            return False
        if c.ceiling in hardware.FLOORS:
            return bound is None or value * OVER_CEILING >= bound
        if resolved.kind == "above" or (resolved.kind == "recorded" and bound is None):
            return True
        return bound is not None and value <= OVER_CEILING * bound
