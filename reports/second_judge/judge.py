"""The second judge: outcome of every planned row of a run, and its verdict, found once more.

Standard library and PyYAML, nothing of the suite. It plans from limits and order, judges each row's
newest record, climbs the ladder; unknown rules, and failures only in the ledger, are not covered.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from reports.second_judge import samples as sm
from reports.second_judge.absences import NONE, SILENT, gaps, lacks
from reports.second_judge.physics import TABLES, Cannot, Json, Unknown, ceiling, model_of
from reports.second_judge.plan import choose, planned, unresolved
from reports.second_judge.samples import Point, Rounds, SlotValue

Limit = tuple[str, Any]  # kind and number: below, above, equals, recorded, calibrate
Answer = tuple[str, Any]
"""Outcome, and the figure that decides."""


def has_none(row: Any, record: Json) -> bool:
    """Whether it is not judged and every rank reports no value; or each node lacks it."""
    if row.c["may_lack"]:
        saying = {r["node"] for r in sm.ranks_of(row, record) if lacks(r, row.c)}
        return set(row.nodes) <= saying
    possible = [r for r in row.c["rows"] if unresolved(r["when"], row.facts) is not None]
    ranks = sm.ranks_of(row, record)
    only_recorded = possible and all(r["kind"] == "recorded" for r in possible)
    complete = set(row.nodes) <= record["left"]
    owed = len({r["node"] for r in ranks} if row.c["over"] == "nics" else ranks)  # first ranks
    return bool(only_recorded and complete and sum(lacks(r, row.c) for r in ranks) == owed)


def facts_of_record(row: Any, record: Json, points: list[Point]) -> Json:
    c, facts, count = row.c, dict(row.facts), len(record["nodes"])
    if count < len(row.nodes):
        facts |= {"nodes": count, "gpus": count if c["per"] == "rail" else record["world_size"]}
    seen: dict[str, set[tuple[bool, Any]]] = {}
    for rank, m in points:
        for name, value in {**rank["device"], **m.get("conditions", {})}.items():
            if isinstance(value, (str, int, float)) and name not in TABLES["identity"]:
                seen.setdefault(name, set()).add((isinstance(value, bool), value))
    asked = {name for r in c["rows"] for name in r["when"]}
    for name in seen.keys() - facts.keys():
        if len(seen[name]) == 1:
            facts[name] = next(iter(seen[name]))[1]
        elif name in asked & {"nvls", "algorithm", "power_limit"}:
            raise Cannot(f"{name} differs")
    by_model = c["ceiling"] is not None or c["statistic"] in ("median", "spread")
    if "model" not in facts and (by_model or "model" in asked):
        facts["model"] = model_of(points[0][0]["device"].get("name"))
        if facts["model"] not in TABLES["gpus"]:
            raise Cannot("a GPU without a data sheet")
    if "bandwidth_bound" in asked and facts.get("model") != "cpu":
        raise Unknown("NCCL's model of latency and bandwidth")
    facts["bandwidth_bound"] = True
    return facts


class SecondJudge:
    """Judges one run: `outcome` of a planned row, `conclude` from the outcomes of all."""

    def __init__(self, run: Json, limits: Json, records: Any) -> None:
        """`limits` as rejudge.plain() gives them, `records` is a Records."""
        self.run, self.limits, self.records, self.p = run, limits, records, records.population
        self.plan = {(row.c["key"], row.subject): row for row in planned(run, limits, self.p)}
        self.siblings: dict[str, list[SlotValue]] = {}
        self.have: dict[str, bool] = {}
        self.by_figure: dict[tuple[str, str], bool] = {}  # row: is its limit a published figure

    def forget(self, workload: str = "", place: str = "") -> None:
        """Judge by what the records are now: all of them, or one that was changed."""
        self.records.forget(workload, place)
        self.siblings, self.have = {}, {}

    def outcome(self, key: tuple[str, str]) -> Answer:
        """Return the outcome of a row and its value; Unknown where a rule is not known."""
        row = self.plan.get(key)
        if row is None or not row.applies:
            return "NOT_MEASURED" if row is None else "NOT_APPLICABLE", None
        if row.unknown or row.c["workload"] == "guests":
            raise Unknown(f"{', '.join(row.unknown) or 'whose a file is'} of its definition")
        newest, *earlier = self.records.attempts(row.c["workload"], row.place)
        outcome, value = self._judge(row, newest)
        if outcome == "NOT_APPLICABLE" and row.c["may_lack"] and self._like_have(row.c):
            return "NOT_MEASURED", None
        told = {k for k, values in self.records.failed.get(key, {}).items() if values}
        if told and outcome not in ("FAIL", "WAIVED"):
            shown = (r for r in (newest, *earlier) if self._judge(row, r)[0] in ("FAIL", "WAIVED"))
            if told - {record["attempt"] for record in shown}:
                raise Unknown("a failed attempt that no usable record shows")
        passes = 1
        for record in earlier if outcome == "PASS" else ():
            before = self._judge(row, record)[0]
            passes += before == "PASS"
            if before in ("FAIL", "WAIVED"):
                return (outcome, value) if passes >= 3 else ("NOT_MEASURED", value)
        return outcome, value

    def _like_have(self, c: Json) -> bool:
        """Whether half of the nodes have what one says that it lacks, or one fails by it."""
        if c["key"] not in self.have:
            rows = [r for r in self.plan.values() if r.c is c and r.applies and c["by_word"]]
            found = [self._judge(r, self.records.newest(c["workload"], r.place)) for r in rows]
            had = [o for o, v in found if v is not None and o != "RECORDED"]
            enough = {"FAIL", "WAIVED"} & {*had} or 2 * len(had) >= len(rows)
            self.have[c["key"]] = bool(had and enough)
        return self.have[c["key"]]

    def _judge(self, row: Any, record: Json | None) -> Answer:
        if record is None or not set(row.nodes) & record["left"]:
            return "NOT_MEASURED", None
        points = sm.points_of(row, record)
        if not points and (has_none(row, record)):
            return "NOT_APPLICABLE", None
        try:
            outcome, value = self._measured(row, record, points)
        except (Cannot, ValueError, TypeError, KeyError, ArithmeticError):  # a broken record
            return "NOT_MEASURED", None
        planned = self.p.nodes if row.place == "all" else row.nodes
        alone = row.c["per"] == "node" and len(record["nodes"]) > 1
        if outcome in ("PASS", "RECORDED") and not alone and set(planned) - record["left"]:
            return "NOT_MEASURED", value
        waivers = [w for w in self.limits["waivers"] if w["criterion"] == row.c["key"]]
        if outcome != "FAIL" or not waivers:
            return outcome, value
        day = max(str(self.run.get("ended") or "")[:10], str(datetime.now(UTC))[:10])
        if any(w["node"] == row.subject and day <= w["expires"] for w in waivers):
            return "WAIVED", value
        if any(w["node"] in row.nodes for w in waivers):
            raise Unknown("a waiver of one of several nodes")
        return outcome, value

    def _measured(self, row: Any, record: Json, points: list[Point]) -> Answer:
        c = row.c
        if not points:
            raise Cannot("no value")
        facts = facts_of_record(row, record, points)
        limit, statistic = choose(c["rows"], facts), c["statistic"]
        recorded = limit["kind"] == "recorded"
        self.by_figure[c["key"], row.subject] = limit.get("published", False)
        one = statistic in ("value", "alike") and c["over"] != "devices"
        one |= c["per"] == "rail" or c["over"] == "nodes"
        each = 1 if one else max(1, self.p.gpus_per_node)
        row.owed = each * len([n for n in row.nodes if n in record["left"]])
        ignored = {SILENT}
        if recorded:
            if each * len(row.nodes) == len(ranks := sm.ranks_of(row, record)):
                row.owed -= sum(lacks(r, c) for r in ranks)
                ignored.add(NONE)
            shapes: dict[str, list[Point]] = {}
            for rank, m in points if statistic == "median" and c["over"] != "links" else ():
                open_ = {k: v for k, v in m.get("at", {}).items() if k not in c["at"]}
                shapes.setdefault(str(open_), []).append((rank, m))
            if len(shapes) > 1:
                answers = [self._measured(row, record, of) for of in shapes.values()]
                return answers[0]
        told = any({*gaps(r, c["metric"], c["at"])} - ignored for r in sm.reporters(row, record))
        if {m["unit"] for _, m in points} != {c["measured_unit"] or points[0][1]["unit"]}:
            raise Cannot("another unit")
        bounds = dict(c["valid"])
        for entry in c["valid_where"]:
            bounds |= entry["bounds"] if unresolved(entry["when"], facts) is not None else {}
        for m in (m for _, m in points if sm.has_value(m)):
            sm.check(m, {**bounds, **limit["valid"]})
        bound, unbounded = None, statistic in ("spread", "alike", "dip")
        if not unbounded and not (recorded and facts.get("model") == "cpu"):
            try:
                bound = ceiling(c["ceiling"], facts)
            except Cannot:
                if not recorded:
                    raise
        number = limit["value"]
        if limit["of_model"]:
            raise Unknown("NCCL's model of latency and bandwidth")
        if limit["of_ceiling"]:
            if bound is None:
                raise Cannot("a share of no ceiling")
            number *= bound
        if number is None and limit["kind"] in ("below", "above", "equals"):
            raise Cannot("the order does not say")
        asked = limit["kind"], number
        if statistic == "value":
            return self._value(row, record, points, asked, bound, told)
        if told:
            raise Cannot("a value is missing")
        if statistic == "alike":
            return self._alike(row, record, points, asked)
        if statistic == "dip":
            return self._dip(row, record, points, asked)
        self._check_owed(row, record, points, row.owed)
        return self._rate(row, points, asked, bound, facts)

    def _check_owed(self, row: Any, record: Json, points: list[Point], owed: int) -> None:
        """Cannot unless all who owe a value gave one."""
        over, ranks = row.c["over"], Counter(r["rank"] for r, _ in points)
        of_nodes = [r["rank"] for r in sm.ranks_of(row, record)]
        count = {"tasks": len(of_nodes), "half": len(of_nodes) // 2}.get(over, 0)
        if over == "links":
            each = range(max(1, self.p.gpus_per_node))
            nodes = [n for n in row.nodes if n in record["left"]]
            all_ = sorted((n, a, b) for n in nodes for a in each for b in each if a != b)
            found = sorted((r["node"], r["local_rank"], m["at"]["to"]) for r, m in points)
            if not all_ or found != all_:
                raise Cannot("links are missing")
        elif over == "nics":
            parts = {(r["node"], m.get("at", {}).get("part")) for r, m in points}
            seen = Counter(node for node, _ in parts)
            owed = max(1, self.p.nics_per_node)
            if any(seen[n] < owed for n in row.nodes if n in record["left"]):
                raise Cannot("not every NIC")
        elif row.c["statistic"] != "value" or over == "devices":
            if len(ranks) < max(1, owed) or max(ranks.values()) > 1:
                raise Cannot("not every device, or one twice")
            if over == "nodes" and len(ranks) > owed:
                raise Cannot("several for a node")
        spoke = {r["node"] for r, _ in points}
        silent = {n for n in row.nodes if n in record["left"]} - spoke
        stated = row.c["statistic"] == "value" and over != "devices"
        if not set(of_nodes[:count]) <= ranks.keys() or (stated and silent and len(spoke) > 1):
            raise Cannot("not everybody reported")

    def _value(
        self, row: Any, record: Json, points: list[Point], limit: Limit, bound: Any, told: bool
    ) -> Answer:
        kind, number = limit
        known = sm.certain([p for p in points if p[1].get("value") is not None], *limit)[0]
        values: list[Any] = [m["value"] for _, m in known]
        any_state = kind == "recorded" and row.c["unit"] in ("state", "model")
        for v in values:
            wrong = isinstance(v, bool) != isinstance(number, bool)
            if isinstance(v, str):
                wrong = kind != "equals" or not isinstance(number, str)
            elif not wrong:
                wrong = v < 0 or (bound is not None and v > bound)
            if wrong and not any_state:
                raise Cannot("no number, or an impossible one")
        worst = min(values) if kind == "below" else max(values) if kind == "above" else None
        if not all(sm.satisfies(kind, number, v) for v in values):
            return "FAIL", worst
        if told or len(known) < len(points):
            raise Cannot("a value is not known, or in part")
        self._check_owed(row, record, points, row.owed)
        return ("RECORDED" if kind == "recorded" else "PASS"), worst

    def _alike(self, row: Any, record: Json, points: list[Point], limit: Limit) -> Answer:
        by_fact: dict[str, list[Point]] = {}
        for rank, m in points:
            by_fact.setdefault(m.get("at", {}).get("fact", m["metric"]), []).append((rank, m))
        others = 0
        for of in by_fact.values():
            values = [m.get("value") for _, m in of]
            missing = set(row.nodes) & record["left"] - {r["node"] for r, _ in of}
            if None in values or (missing and "part" not in of[0][1].get("at", {})):
                raise Cannot("a value is missing")
            others += len(values) - sm.most_alike(values, row.c["within"])
        if sm.satisfies(*limit, others) and row.c["over"] == "nics":
            self._check_owed(row, record, points, 0)
        return ("PASS" if sm.satisfies(*limit, others) else "FAIL"), others

    def _dip(self, row: Any, record: Json, points: list[Point], limit: Limit) -> Answer:
        """Judge the largest fall of a curve; of two looks at both ends the smaller counts."""
        again = sm.points_of(row, record, f"{row.c['metric']}_again")
        for _, m in again:
            sm.check(m, {})
        low, high = row.c["sweep"]
        curves: list[dict[int, float]] = [{}, {}]
        for curve, of in zip(curves, (points, again), strict=True):
            for size in sorted({m["at"]["size"] for _, m in of}):
                if (low or 0) <= size <= (high or math.inf):
                    at_size = [(r, m) for r, m in of if m["at"]["size"] == size]
                    self._check_owed(row, record, at_size, row.owed)
                    values = [statistics.median(sm.medians(m)) for _, m in at_size]
                    curve[size] = sm.mean_over_ranks(values, at_size[0][1]["unit"])
        sizes = {m["at"]["size"] for _, m in points}
        whole = len(sizes) >= max(m.get("checks", {}).get("sizes", 0) for _, m in points)
        higher = max(curves[1].values(), default=0) > 1.1 * max((first := curves[0]).values())
        if not whole or len(first) < 3 or higher:
            raise Cannot("no curve")
        if len({m["unit"] for _, m in (*points, *again)}) > 1:
            raise Cannot("another unit")
        falls = (min(1 - c[b] / c[a] for c in curves if {a, b} <= {*c}) for a, b in pairwise(first))
        fall = 100 * max(0.0, *falls)
        return ("PASS" if sm.satisfies(*limit, fall) else "FAIL"), fall

    def _rate(self, row: Any, points: list[Point], limit: Limit, bound: Any, facts: Json) -> Answer:
        c, (kind, number), time = row.c, limit, row.c["unit"] in TABLES["times"]
        devices = [sm.medians(m) for _, m in points]
        figures, typical = devices, [statistics.median(d) for d in devices]
        series = [s for _, m in points for s in sm.each_and_all(sm.rounds_of(m))]
        if c["statistic"] == "spread":
            figures = [[100 * (max(typical) - min(typical)) / statistics.median(typical)]]
        elif c["over"] == "ranks":
            if len({len(sm.rounds_of(m)) for _, m in points}) > 1:
                raise Cannot("ranks measured different numbers of rounds")
            by_round = list(zip(*(sm.rounds_of(m) for _, m in points), strict=True))
            if any(len(set(map(len, ranks))) > 1 for ranks in by_round):
                raise Cannot("ranks measured different numbers of batches")
            means = [[sm.mean_over_ranks(b, c["unit"]) for b in zip(*r)] for r in by_round]  # noqa: B905
            figures = [[statistics.median(batches) for batches in means]]
            series = sm.each_and_all(means)
        typical_values = [x for rounds in (*devices, *figures) for x in rounds]
        single_values = [x for _, m in points for s in sm.rounds_of(m) for x in s]
        if bound and sm.beyond(typical_values, single_values, bound, c["ceiling"] == "latency"):
            raise Cannot("beyond what physics allows")
        if kind == "recorded":
            return "RECORDED", None
        failed, mixed = sm.split(figures, lambda x: sm.satisfies(kind, number, x))
        model = str(facts.get("model"))
        found: tuple[Rounds, Rounds] = [], []
        if c["spread"] and c["statistic"] != "spread" and c["per"] in ("node", "rail"):
            alike = [(sm.slot_of(c, rank), d) for (rank, _), d in zip(points, devices, strict=True)]
            spreads = c["spread"][""], c["spread"].get(model, c["spread"][""])
            found = sm.far_below(alike, self._siblings(c), spreads, self.limits["compared"])
        outliers, unsteady = found
        if outliers:
            return "FAIL", min(statistics.median(d) for d in outliers)
        pick = max if kind == "above" or c["statistic"] == "spread" else min
        if failed:
            return "FAIL", pick(statistics.median(f) for f in failed)
        if mixed or unsteady:
            raise Cannot("rounds on both sides")
        has_tail = c["tail"] and c["statistic"] == "median" and model != "cpu"
        if has_tail and not all(sm.is_steady(s, c["tail"], time) for s in series):
            return "FAIL", None
        return "PASS", pick(statistics.median(f) for f in figures)

    def _siblings(self, c: Json) -> list[SlotValue]:
        """Return one value per device of the fleet, of those whose samples can be used."""
        if c["key"] not in self.siblings:
            values = self.siblings[c["key"]] = []
            for row in self.plan.values():
                record = self.records.newest(c["workload"], row.place) if row.c is c else None
                of_record: list[SlotValue] = []
                for rank, m in sm.points_of(row, record) if record and row.applies else ():
                    with suppress(Cannot):
                        of_record.append((sm.slot_of(c, rank), statistics.median(sm.medians(m))))
                if c["over"] == "ranks" and of_record:  # a figure that all of them share
                    of_record = [(None, statistics.median(value for _, value in of_record))]
                values += of_record
        return self.siblings[c["key"]]

    def conclude(self, outcomes: Mapping[tuple[str, str], str], interrupted: bool) -> str:
        """Return the verdict on the run from the outcomes of its scope."""
        p, order, count = self.p, self.limits["order"], Counter(outcomes.values())
        if count["FAIL"]:
            return "REJECTED"
        unordered = p.origin == "cluster" and not p.ordered
        if count["NOT_MEASURED"] or interrupted or unordered or not count["PASS"] + count["WAIVED"]:
            return "INCOMPLETE"
        used = {(r.c["workload"], r.place) for k, r in self.plan.items() if k in outcomes}
        if p.virtual or p.on_cpu or any(self.records.is_demonstration(*key) for key in used):
            return "DEMONSTRATION"
        whole = all(key in outcomes or not row.applies for key, row in self.plan.items())
        if p.ordered and order:
            whole &= len(p.nodes) >= order["count"] and set(order["names"] or ()) <= set(p.nodes)
        whole &= self.run.get("tier") != "probe" and p.origin != "by-hand" and bool(p.ordered)
        return "ACCEPTED" if whole else "PARTIAL"
