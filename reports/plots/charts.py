"""Charts of the report as inline SVG (login side): measured values against limit and ceiling.

matplotlib leaves text as text, so that it can be read aloud, searched and copied. A chart shows
records; the verdicts decide whether a value is good, and the description repeats that in words.
"""

# Length: every kind of chart, with the drawing and the SVG output that they share.

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fixtures.records.model import Measurement, Record
from fixtures.thresholds.kinds import Of, Span
from fixtures.thresholds.loader import Criterion, Thresholds
from fixtures.verdict.samples import is_synchronous
from fixtures.wording import counted, digits, format_size, quantity, read_number
from reports.facts.rows import low_is_bad
from reports.plots.bullets import Bullet, bullet
from reports.plots.drawing import BLUE, DARK, GREY, PALE_BLUE, RED, new_figure, svg_of

SIZE = 3.6, 2.3
"""Of every chart, in inches."""
MAX_BARS = 16
"""Most values that are one line of a table; more are drawn as points or a line, by value."""
MAX_MARKERS = 64
"""Most values drawn as a point each; more are a line, with points only beyond the limit."""
MAX_HEAT_MAPS = 4
"""Most nodes with a heat map of their copies; nodes with a failure come first."""
MAX_PAIR_MAP_NODES = 64
"""Most nodes in a heat map of pairs of nodes."""
MAX_CURVES = 8
"""Most placements with a curve each in one chart."""
_LIMIT = re.compile(r"([<>]=) (-?[0-9.]+(?:(?:e| x 10\^)[+-]?[0-9]+)?)")


@dataclass(frozen=True)
class Chart:
    """One figure of the report."""

    title: str
    description: str
    """The content in words, for readers who cannot see the chart."""
    svg: str
    key: str = ""
    """The criterion that it shows, or the workload and metric; "" where it shows neither."""
    source: str = ""
    """Where the limit is from."""
    bullet: Bullet | None = None
    """Few values are a line of a table in place of a drawing."""


IMPORTANCE = (
    "gemm.bf16", "gemm.fp8", "allreduce.cluster", "allreduce", "memory.copy", "rails", "p2p",
    "training_ddp", "training_fsdp", "training", "finetune", "gemm", "filesystem", "allgather",
    "reducescatter", "hostcopy", "memory", "alltoall", "broadcast", "sendrecv", "allreduce_ring",
)  # fmt: skip
"""Beginnings of keys, in the order in which readers ask for them; all others come after these."""


def importance(key: str) -> int:
    """Return the rank of a chart: what everyone asks for comes first."""
    exact = [k for k, name in enumerate(IMPORTANCE) if key == name or key.startswith(f"{name} ")]
    found = exact or [k for k, name in enumerate(IMPORTANCE) if key.startswith((name + ".", name))]
    return found[0] if found else len(IMPORTANCE)


def limit_value(verdict: Mapping[str, Any]) -> float | None:
    """Return the number in a verdict's limit: 605 for ">= 605 (0.6 of ceiling 1008)"."""
    match = _LIMIT.match(str(verdict["limit"]))
    return read_number(match[2]) if match else None


def charts(
    records: Iterable[Record],
    criteria: Sequence[Mapping[str, Any]],
    limits: Thresholds,
    device_values: DeviceValues | None = None,
) -> list[Chart]:
    """Return all charts for which the records have data, the most important first.

    `device_values` is filled with the values of each GPU.
    """
    verdicts = values_by_criterion(criteria)
    device_values = device_values or DeviceValues(limits, verdicts)
    curves: dict[tuple[str, str, Span], list[tuple[str, dict[int, float]]]] = {}
    maps: list[tuple[str, str, dict[tuple[int, int], float]]] = []
    for record in records:
        device_values.add(record)
        for metric, unit, curve in _size_curves(record):
            key = (metric, unit, _span_of_record(record))
            curves.setdefault(key, []).append((record.placement, curve))
        maps += _copy_matrices(record)
    failed = {str(v["subject"]) for v in criteria if v["outcome"] == "FAIL"}
    maps.sort(key=lambda arguments: arguments[0] not in failed)
    drawn = list(device_values.charts())
    drawn += [_curve_chart(k, c, verdicts, limits) for k, c in curves.items()]
    drawn += [_heat_map(*arguments) for arguments in maps[:MAX_HEAT_MAPS]]
    drawn += _pair_maps(verdicts, limits)
    return sorted(drawn, key=lambda chart: importance(chart.key))


def values_by_criterion(
    criteria: Iterable[Mapping[str, Any]],
) -> dict[str, list[Mapping[str, Any]]]:
    """Return the verdicts that have a value, by criterion."""
    verdicts: dict[str, list[Mapping[str, Any]]] = {}
    for v in criteria:
        if v["value"] is not None:
            verdicts.setdefault(str(v["criterion"]), []).append(v)
    return verdicts


def charts_of_verdicts(criteria: Sequence[Mapping[str, Any]], limits: Thresholds) -> list[Chart]:
    """Return charts of the worst GPU of each node, from the verdicts of a large cluster."""
    verdicts_by_key: dict[str, list[Mapping[str, Any]]] = {}
    for v in criteria:
        criterion = limits.criteria.get(str(v["criterion"]))
        if criterion is None or not (criterion.span.of_one_node and criterion.kind.rate):
            continue
        if criterion.spread and isinstance(v["value"], float):
            verdicts_by_key.setdefault(criterion.key, []).append(v)
    drawn = []
    for key, verdicts in verdicts_by_key.items():
        known = {limit for v in verdicts if (limit := limit_value(v)) is not None}
        lines = [(min(known), "limit", RED)] if known else []
        values = [(str(v["subject"]), float(v["value"])) for v in verdicts]
        title = str(verdicts[0]["title"])
        chart = _bars(key, str(verdicts[0]["unit"]), values, lines, counted="nodes")
        drawn.append(replace(chart, title=title, key=key))
    return sorted(drawn, key=lambda chart: importance(chart.key))


# --- per GPU


MAX_LINE_RATIO = 5.0
"""Highest ratio of a drawn line to the highest value: above it no value could be told apart.

Such a line is only mentioned in the description.
"""


class DeviceValues:
    """One value per device, for each criterion that judges devices by their medians.

    One value per node for synchronous work, where the rate of a GPU includes its wait for others.
    """

    def __init__(self, limits: Thresholds, verdicts: Mapping[str, list[Mapping[str, Any]]]) -> None:
        self._verdicts = verdicts
        self._values: dict[str, list[tuple[str, float]]] = {}
        self._criteria = limits.criteria
        self._by_workload: dict[str, list[Criterion]] = {}
        for criterion in limits.criteria.values():
            kind = criterion.kind
            of_gpus = kind.rate and kind.of is Of.GPU and not kind.over_ranks
            if of_gpus and criterion.span.of_one_node and criterion.key in verdicts:
                self._by_workload.setdefault(criterion.workload, []).append(criterion)

    def add(self, record: Record) -> None:
        """Add the values of a record of one node."""
        if len(record.nodes) != 1:
            return
        for criterion in self._by_workload.get(record.workload, ()):
            values = [
                (f"{rank.node} gpu{rank.local_rank}", _median_of_rounds(m))
                for rank, m in record.points(criterion.metric, criterion.at)
                if len(m.samples) > 1
            ]
            if values and is_synchronous(criterion):
                values = [(record.nodes[0], _worst_value(criterion.unit, values)[1])]
            if values:
                self._values.setdefault(criterion.key, []).extend(values)

    @property
    def by_criterion(self) -> Mapping[str, list[tuple[str, float]]]:
        """(node and GPU, value) of each device, by criterion."""
        return self._values

    def charts(self) -> Iterator[Chart]:
        """Yield one chart for each criterion, but for what is far from a limit on it.

        A value that is so far on the good side that its limit could not be drawn says nothing.
        """
        for key, values in self._values.items():
            limits = {limit for v in self._verdicts[key] if (limit := limit_value(v)) is not None}
            ceilings = {v["ceiling"] for v in self._verdicts[key] if v["ceiling"]}
            lines = [(min(limits), "limit", RED)] if limits else []
            lines += [(min(ceilings), "ceiling", GREY)] if ceilings else []
            criterion = self._criteria[key]
            highest = max(value for _, value in values)
            if limits and not low_is_bad(criterion.unit) and min(limits) > MAX_LINE_RATIO * highest:
                continue
            counted = "nodes" if is_synchronous(criterion) else "GPUs"
            chart = _bars(key, criterion.unit, values, lines, counted)
            yield replace(chart, title=str(self._verdicts[key][0].get("title") or key), key=key)


def _worst_value(unit: str, values: list[tuple[str, float]]) -> tuple[str, float]:
    return (min if low_is_bad(unit) else max)(values, key=lambda pair: pair[1])


def _bars(
    key: str,
    unit: str,
    values: list[tuple[str, float]],
    lines: list[tuple[float, str, str]],
    counted: str = "GPUs",
) -> Chart:
    few = len(values) <= MAX_BARS
    limit = next((at for at, name, _ in lines if name == "limit"), None)
    below = low_is_bad(unit)
    bad = [limit is not None and (v < limit) == below and v != limit for _, v in values]
    highest = max(value for _, value in values)
    farthest = MAX_LINE_RATIO * highest if highest else math.inf
    within_scale = [at for at, _, _ in lines if at <= farthest]
    svg = "" if few else _distribution(unit, values, bad, within_scale, lines, counted)
    name, value = _worst_value(unit, values)
    description = f"{name} {digits(value) if len(values) > 1 else quantity(value, unit)}"
    if len(values) > 1:
        median = statistics.median(v for _, v in values)
        summary = f"{len(values)} {counted}, median {quantity(median, unit)}"
        description = f"{summary}, worst {description}"
    description += "".join(
        f", {name} {digits(at)}{'' if at in within_scale else ' (far off)'}"
        for at, name, _ in lines
    )
    description += f"; {sum(bad)} beyond the limit" if limit is not None else ""
    line = None
    if few:
        line = bullet(
            sorted(values), (name, value), [(at, which) for at, which, _ in lines], unit=unit,
            counted=counted, bad=any(bad), farthest=farthest,
        )  # fmt: skip
    return Chart(key, description, svg, bullet=line)


def _distribution(
    unit: str,
    values: list[tuple[str, float]],
    bad: list[bool],
    within_scale: list[float],
    lines: list[tuple[float, str, str]],
    counted: str,
) -> str:
    """Return many values in their order, with points for those beyond the limit."""
    figure, axes = new_figure(*SIZE)
    ranked = sorted(zip((v for _, v in values), bad, strict=True))
    # A marker for each of 1000 nodes would make the page five times as large.
    mark = "." if len(ranked) <= MAX_MARKERS else ""
    axes.plot([v for v, _ in ranked], color=BLUE, linewidth=0 if mark else 1.4, marker=mark)
    reds = [k for k, (_, b) in enumerate(ranked) if b][:MAX_MARKERS]
    axes.plot(reds, [ranked[k][0] for k in reds], color=RED, linewidth=0, marker=".")
    axes.set_ylabel(unit, fontsize=7)
    axes.set_xlabel(f"{counted}, by value", fontsize=7)
    for at, name, colour in lines:
        if at in within_scale:
            axes.axhline(at, color=colour, linewidth=1.2, linestyle="-" if name == "limit" else ":")
    return svg_of(figure)


# --- curves by size


def _size_curves(record: Record) -> Iterator[tuple[str, str, dict[int, float]]]:
    """Yield (name, unit, size in bytes -> mean over ranks) of bandwidth and latencies."""
    for metric in ("busbw", "latency", "graph_latency"):
        by_size: dict[int, list[float]] = {}
        unit = ""
        for _, m in record.points(metric, {}):
            if m.samples and "size" in m.at:
                by_size.setdefault(int(m.at["size"]), []).append(_median_of_rounds(m))
                unit = m.unit
        if len(by_size) > 1:
            curve = {size: statistics.fmean(values) for size, values in sorted(by_size.items())}
            yield f"{record.workload} {metric}", unit, curve


def _curve_chart(
    key: tuple[str, str, Span],
    curves: list[tuple[str, dict[int, float]]],
    verdicts: Mapping[str, list[Mapping[str, Any]]],
    limits: Thresholds,
) -> Chart:
    name, unit, span = key
    workload, _, metric = name.partition(" ")
    figure, axes = new_figure(*SIZE)
    # Of many placements only the lowest, the median and the highest curve.
    ordered = sorted(curves, key=lambda labelled: statistics.median(labelled[1].values()))
    several = len(ordered) > MAX_CURVES
    shown = [ordered[0], ordered[len(ordered) // 2], ordered[-1]] if several else curves
    for k, (label, curve) in enumerate(shown):
        axes.plot(
            list(curve), list(curve.values()), linewidth=1.1, marker="o", markersize=2,
            color=(BLUE, "#8a5300", "#1d6b3a", "#6b3a7d", GREY, "#1c6f7d", PALE_BLUE, DARK)[k % 8],
            label=label,
        )  # fmt: skip
    reference: dict[int, float] = {}
    for criterion in limits.criteria.values():
        if (criterion.workload, criterion.metric, criterion.span) == (workload, metric, span):
            if "size" not in criterion.at:
                continue
            for v in verdicts.get(criterion.key, []):
                if (limit := limit_value(v)) is not None:
                    reference[int(criterion.at["size"])] = limit
    if reference:
        sizes = sorted(reference)
        values = [reference[s] for s in sizes]
        axes.plot(sizes, values, color=RED, marker="_", markersize=9, linestyle="--",
                  linewidth=1.1, label="limit")  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    sizes = sorted({size for _, curve in shown for size in curve})
    ticks = sizes[:: max(1, len(sizes) // 5)]
    axes.set_xticks(ticks, [format_size(size) for size in ticks], fontsize=7)
    axes.minorticks_off()
    axes.set_ylabel(unit, fontsize=7)
    axes.legend(fontsize=6, frameon=False)
    best = {label: max(curve.values()) for label, curve in shown}
    many = f"{len(curves)} {PLURAL[span.nodes]}, " if len(curves) > 1 else ""
    description = f"{many}{format_size(sizes[0])} to {format_size(sizes[-1])}; highest "
    description += ", ".join(f"{label} {quantity(v, unit)}" for label, v in best.items())
    if reference:
        description += "; limits " + ", ".join(
            f"{digits(reference[s])} at {format_size(s)}" for s in sorted(reference)
        )
    operation = OPERATIONS.get(workload, workload)
    title = f"{operation} {PLACE[span.nodes]}: {CURVES.get(metric, metric)} by size"
    return Chart(title, description, svg_of(figure), key=name)


OPERATIONS = {
    "allreduce": "All-reduce", "allgather": "All-gather", "reducescatter": "Reduce-scatter",
    "alltoall": "All-to-all", "broadcast": "Broadcast", "sendrecv": "Send and receive",
    "allreduce_ring": "All-reduce by a forced ring", "rails": "Rails",
}  # fmt: skip
CURVES = {
    "busbw": "bus bandwidth", "latency": "time of a call", "graph_latency": "time in a CUDA graph",
}  # fmt: skip
"""Workloads and metrics in words."""
PLURAL = {1: "nodes", 2: "pairs of nodes", None: "jobs over all nodes"}
PLACE = {1: "in a node", 2: "between two nodes", None: "over all nodes"}
"""By Span.nodes."""


def _span_of_record(record: Record) -> Span:
    return Span(nodes=None if record.placement == "all" else min(2, len(record.nodes)))


# --- heat maps


def _copy_matrices(record: Record) -> Iterator[tuple[str, str, dict[tuple[int, int], float]]]:
    """Yield (node, metric, (from, to) -> GB/s) of the copies between the GPUs of a node."""
    if len(record.nodes) != 1:
        return
    for metric in ("write", "both"):
        cells = {
            (rank.local_rank, int(m.at["to"])): _median_of_rounds(m)
            for rank, m in record.points(metric, {})
            if "to" in m.at and m.samples
        }
        if cells:
            yield record.nodes[0], f"{record.workload}.{metric}", cells


def _heat_map(node: str, name: str, cells: Mapping[tuple[int, int], float]) -> Chart:
    gpus = sorted({k for pair in cells for k in pair})
    figure, axes = new_figure(*SIZE)
    values = [[cells.get((a, b), float("nan")) for b in gpus] for a in gpus]
    axes.imshow(values, cmap="Blues", vmin=0, vmax=2 * max(cells.values()))
    for i, a in enumerate(gpus):
        for j, b in enumerate(gpus):
            text = f"{cells[a, b]:.0f}" if (a, b) in cells else ""
            axes.text(j, i, text, ha="center", va="center", fontsize=7, color=DARK)
    axes.set_xticks(range(len(gpus)), [f"{k}" for k in gpus], fontsize=7)
    axes.set_yticks(range(len(gpus)), [f"{k}" for k in gpus], fontsize=7)
    axes.set_xlabel("to GPU", fontsize=7)
    axes.set_ylabel("from GPU", fontsize=7)
    slowest = min(cells, key=lambda pair: cells[pair])
    description = f"GB/s from GPU (row) to GPU (column); slowest {slowest[0]} to {slowest[1]}: "
    ways = "both ways at once" if name.endswith("both") else "one way"
    title = f"Copies between the GPUs of {node}, {ways}"
    return Chart(title, f"{description}{digits(cells[slowest])}", svg_of(figure), key=name)


def _pair_maps(
    verdicts: Mapping[str, list[Mapping[str, Any]]], limits: Thresholds
) -> Iterator[Chart]:
    """Yield heat maps of the bandwidth between the nodes of each pair, from the verdicts."""
    for key, rows in verdicts.items():
        criterion = limits.criteria.get(key)
        pairs = {tuple(str(v["subject"]).split("--")): v["value"] for v in rows}
        nodes = sorted({node for pair in pairs for node in pair})
        is_bandwidth = (
            criterion is not None and criterion.span.nodes == 2 and criterion.unit == "GB/s"
        )
        if not is_bandwidth or not 2 < len(nodes) <= MAX_PAIR_MAP_NODES:
            continue
        figure, axes = new_figure(*SIZE)
        indices = {node: k for k, node in enumerate(nodes)}
        values = [[float("nan")] * len(nodes) for _ in nodes]
        for (a, b), value in pairs.items():
            values[indices[a]][indices[b]] = values[indices[b]][indices[a]] = float(value)
        axes.imshow(values, cmap="Blues", vmin=0, vmax=2 * max(pairs.values()))
        if len(nodes) <= MAX_BARS:
            for i, row in enumerate(values):
                for j, value in enumerate(row):
                    text = "" if math.isnan(value) else f"{value:.0f}"
                    axes.text(j, i, text, ha="center", va="center", fontsize=6, color=DARK)
            axes.set_xticks(range(len(nodes)), nodes, fontsize=6, rotation=90)
            axes.set_yticks(range(len(nodes)), nodes, fontsize=6)
        worst = min(pairs, key=lambda pair: pairs[pair])
        slowest = f"slowest {' and '.join(worst)}: {digits(pairs[worst])} GB/s"
        description = f"{counted(len(pairs), 'pair')}; {slowest}"
        title = f"{rows[0].get('title') or key}: pairs of nodes"
        yield Chart(title, description, svg_of(figure), key=key)


def _median_of_rounds(m: Measurement) -> float:
    return statistics.median(statistics.median(samples) for samples in (m.samples, *m.rounds))
