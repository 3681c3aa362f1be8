"""Two runs side by side: before against after, or one size against another (login side).

Two values of one device differ significantly if their difference is at least SIGMAS standard
deviations of the difference of two runs: sqrt(2) x the run sigma that thresholds.yaml gives for
that class of metric (a two-sided test at about 0.3 %). For a criterion without
such a sigma DEFAULT_SIGMA is taken.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fixtures.records.files import read_json
from fixtures.records.model import Record
from fixtures.records.run_directory import RunDirectory
from fixtures.records.verdict_file import read_verdict
from fixtures.thresholds import loader
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.samples import device_value
from fixtures.wording import counted, digits
from reports.exports.tables import records_of
from reports.facts.rows import low_is_bad

SIGMAS = 3.0
DEFAULT_SIGMA = 0.01
"""Relative run sigma where thresholds.yaml names no spread for a criterion."""


@dataclass(frozen=True)
class Change:
    """The value of one criterion on one device in both runs."""

    criterion: str
    device: str
    unit: str
    before: float
    after: float
    sigma: float
    """Relative standard deviation of one run."""
    worse_if: str
    """"lower" or "higher": the direction in which the criterion fails; "" where it is not
    judged."""

    @property
    def drift(self) -> float:
        """Relative difference of the two values."""
        return self.after / self.before - 1 if self.before else math.inf

    @property
    def z(self) -> float:
        """The drift in standard deviations of the difference of two runs."""
        return abs(self.drift) / (math.sqrt(2) * self.sigma)

    @property
    def significant(self) -> bool:
        return self.z >= SIGMAS

    @property
    def worse(self) -> bool:
        return bool(self.worse_if) and (self.drift < 0) == (self.worse_if == "lower")


def changes(before: RunDirectory, after: RunDirectory, limits: Thresholds) -> list[Change]:
    """Return the values of every device that both runs have, the most significant change first."""
    then, now = (_device_values(run, limits) for run in (before, after))
    unjudged = _unjudged(before) | _unjudged(after)
    population = read_json(after.run_json).get("population") or {}
    model = str(population.get("gpu_model"))
    result = [
        Change(
            key[0],
            key[1],
            now[key][1],
            then[key][0],
            now[key][0],
            *_sigma_and_direction(key[0], limits, model),
        )
        for key in then.keys() & now.keys()
    ]
    result = [replace(c, worse_if="") if c.criterion in unjudged else c for c in result]
    return sorted(result, key=lambda c: (not c.significant, -c.z, c.criterion, c.device))


def side_by_side(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every rate and latency of the worst subject of each run, side by side."""
    gpus = [len(run["scope"]["nodes"]) * run["scope"]["gpus_per_node"] for run in (before, after)]
    first, second = (_worst_by_criterion(run["criteria"]) for run in (before, after))
    rows = []
    for key in (key for key in first if key in second):
        a, b = float(first[key]["value"]), float(second[key]["value"])
        # Scaling efficiency of a rate of the whole cluster: 100 % is the same rate per GPU.
        scales = first[key]["unit"] == "tokens/s" and first[key]["subject"] == "cluster"
        rows.append(
            {
                "criterion": key, "unit": first[key]["unit"], "a": a, "b": b,
                "where": " / ".join(dict.fromkeys((first[key]["subject"], second[key]["subject"]))),
                "ratio": b / a if a else None,
                "efficiency": b / a * gpus[0] / gpus[1] if a and scales else None,
                "recorded": RECORDED in (first[key].get("outcome"), second[key].get("outcome")),
            }
        )  # fmt: skip
    return sorted(rows, key=lambda row: -_change(row))


def _change(row: Mapping[str, Any]) -> float:
    """Return how much a row changed, whichever way: twice as much is as far as half."""
    ratio = row["ratio"]
    return abs(math.log(ratio)) if ratio and ratio > 0 else math.inf


RECORDED = "RECORDED"
"""The outcome of values that are not judged."""


def _unjudged(run: RunDirectory) -> set[str]:
    """Return the criteria that are not judged in a run: a change of them is not a regression."""
    if not run.verdict.exists():
        return set()
    outcomes: dict[str, set[str]] = {}
    for v in read_verdict(run)["criteria"]:
        outcomes.setdefault(str(v["criterion"]), set()).add(str(v["outcome"]))
    return {key for key, found in outcomes.items() if found <= {RECORDED, "NOT_APPLICABLE"}}


RATES = ("TFLOPS", "GB/s", "us", "tokens/s", "ops/s")
"""Units of rates and latencies, which are compared between runs; others are states and counts."""


def _worst_by_criterion(criteria: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    worst: dict[str, Mapping[str, Any]] = {}
    for v in criteria:
        is_rate = v["unit"] in RATES and isinstance(v["value"], float)
        is_recorded = v.get("outcome") == RECORDED and isinstance(v["value"], (int, float))
        if not (is_rate or is_recorded):
            continue
        current = worst.get(v["criterion"])
        if current is None or _distance(v) < _distance(current):
            worst[str(v["criterion"])] = v
    return worst


def _distance(v: Mapping[str, Any]) -> float:
    """Return the margin; of what has none, the value, so that the worst is the least."""
    if v.get("outcome") != RECORDED:
        return float(v["margin"] or 0.0)
    return float(v["value"]) if low_is_bad(str(v["unit"])) else -float(v["value"])


def show(first: Path, second: Path, limits: Path, *, include_unchanged: bool) -> int:
    """Print both comparisons.

    The exit status is 1 where something became significantly worse, 2 where the runs have no value
    in common, else 0.
    """
    loaded = loader.load(limits)
    runs = [RunDirectory(path) for path in (first, second)]
    verdicts = [read_verdict(run) for run in runs]
    console = Console(width=None if sys.stdout.isatty() else 140)
    headings = [
        f"{v['run_id']}: {v['verdict']}, {counted(len(v['scope']['nodes']), 'node')} x "
        f"{v['scope']['gpus_per_node']} {v['scope'].get('gpu_model') or 'GPUs'}"
        for v in verdicts
    ]
    console.print(Text(f"A  {headings[0]}\nB  {headings[1]}"))
    rows = side_by_side(*verdicts)
    shown = Table(title="Side by side", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("criterion", "where", "A", "B", "unit", "B / A", "efficiency", ""):
        shown.add_column(
            name, justify="left" if name in ("criterion", "where", "unit", "") else "right"
        )
    for row in rows:
        efficiency = "" if row["efficiency"] is None else f"{100 * row['efficiency']:.1f} %"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.3f}"
        cells = (row["criterion"], row["where"], digits(row["a"]), digits(row["b"]), row["unit"])
        style = _style(row, loaded)
        texts = [*map(Text, cells), Text(ratio, style), Text(efficiency)]
        shown.add_row(*texts, Text("recorded" * row["recorded"]))
    if rows:
        console.print(shown)
    compared = changes(runs[0], runs[1], loaded)
    significant = [change for change in compared if change.significant]
    console.print(
        Text(
            f"{counted(len(compared), 'figure')} of one device in both runs; "
            f"{len(significant)} changed significantly: "
            f"|drift| >= {SIGMAS:g} x sqrt(2) x the run sigma of thresholds.yaml"
        )
    )
    drift = Table(title="Drift", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("criterion", "device", "A", "B", "unit", "drift", "sigmas", ""):
        left = name in ("criterion", "device", "unit", "")
        drift.add_column(name, justify="left" if left else "right")
    for c in compared if include_unchanged else significant:
        word = ("worse" if c.worse else "better") if c.worse_if else "recorded"
        direction = word if c.significant else ""
        numbers = (
            digits(c.before),
            digits(c.after),
            c.unit,
            f"{100 * c.drift:+.2f} %",
            f"{c.z:.1f}",
        )
        drift.add_row(*map(Text, (c.criterion, c.device, *numbers, direction)))
    if drift.row_count:
        console.print(drift)
    if not rows and not compared:
        console.print("the two runs have no figure in common")
        return 2
    return 1 if any(c.worse for c in significant) else 0


def _style(row: Mapping[str, Any], limits: Thresholds) -> str:
    """Return the colour of a change: red for the worse, green for the better, from 1 % on."""
    criterion = limits.criteria.get(str(row["criterion"]))
    if criterion is None or row["recorded"] or _change(row) < DEFAULT_SIGMA:
        return ""
    better = (row["b"] < row["a"]) == criterion.higher_is_worse
    return "green" if better else "red"


def _sigma_and_direction(key: str, limits: Thresholds, model: str) -> tuple[float, str]:
    criterion = limits.criteria[key]
    spread = limits.spread.get(criterion.spread or "")
    sigma = spread.for_model(model).run_sigma if spread else DEFAULT_SIGMA
    return sigma, "higher" if criterion.higher_is_worse else "lower"


def _device_values(
    run: RunDirectory, limits: Thresholds
) -> dict[tuple[str, str], tuple[float, str]]:
    """Return (criterion, device) -> (value, unit) from the newest records."""
    values = {}
    by_workload: dict[str, list[Any]] = {}
    for criterion in limits.criteria.values():
        if criterion.kind.rate:
            by_workload.setdefault(criterion.workload, []).append(criterion)
    for record in records_of(run):
        for criterion in by_workload.get(record.workload, []):
            if criterion.span.of_one_node != (len(record.nodes) == 1):
                continue
            for rank, m in record.points(criterion.metric, criterion.at):
                if m.samples and m.unit == criterion.unit:
                    device = _device_name(record, rank, m)
                    values[criterion.key, device] = (device_value(rank, m), m.unit)
    return values


def _device_name(record: Record, rank: Any, m: Any) -> str:
    part = m.at.get("part") or f"gpu{rank.local_rank}"
    return f"{rank.node} {part}"
