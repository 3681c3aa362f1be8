"""Charts of a report as inline SVG (login side): what was measured, against limit and ceiling.

Drawn by matplotlib with its text left as text: it can be read aloud, searched and copied. A chart
shows records; whether a value is good is said by the verdicts, and repeated here in words.
"""

from __future__ import annotations

import io
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fixtures.records.model import Measurement, Record
from fixtures.thresholds.conditions import digits, format_size
from fixtures.thresholds.loader import Criterion, Thresholds
from fixtures.verdict.samples import together

INK, SOFT, RED, BLUE = "#1c2127", "#535d68", "#a8201a", "#2d4f83"
PALE = "#9fb3d1"

BARS = 16
"""Up to so many GPUs have a bar each; more are in order of their value."""
MARKS = 64
"""Up to so many of these have a point each; more are a line, with points for what is too slow."""
MAPS = 4
"""Heat maps of so many nodes: those with a failure first."""
ALL_PAIRS = 64
"""Nodes in a heat map of pairs."""
CURVES = 8
"""Curves of so many placements in one chart."""
_LIMIT = re.compile(r"([<>]=) ([0-9.e+-]+)")


@dataclass(frozen=True)
class Chart:
    title: str
    said: str
    """The same in words, for who cannot see it."""
    svg: str


def limit_of(verdict: Mapping[str, Any]) -> float | None:
    """The number that a verdict's limit begins with: ">= 605 (0.6 of ceiling 1008)"."""
    match = _LIMIT.match(str(verdict["limit"]))
    return float(match[2]) if match else None


def charts(
    records: Iterable[Record], criteria: Sequence[Mapping[str, Any]], limits: Thresholds
) -> list[Chart]:
    """All charts that these records have something for, in the order of a reader's interest."""
    verdicts: dict[str, list[Mapping[str, Any]]] = {}
    for v in criteria:
        if v["value"] is not None:
            verdicts.setdefault(str(v["criterion"]), []).append(v)
    points = Points(limits, verdicts)
    curves: dict[tuple[str, str, str], list[tuple[str, dict[int, float]]]] = {}
    maps: list[tuple[str, str, dict[tuple[int, int], float]]] = []
    losses: list[tuple[str, dict[int, float]]] = []
    for record in records:
        points.take(record)
        for metric, unit, curve in _curves(record):
            key = (metric, unit, _per(record))
            curves.setdefault(key, []).append((record.placement, curve))
        maps += _matrices(record)
        losses += _losses(record)
    failed = {str(v["subject"]) for v in criteria if v["outcome"] == "FAIL"}
    maps.sort(key=lambda found: found[0] not in failed)
    found = list(points.charts())
    found += [_curve_chart(k, c, verdicts, limits) for k, c in curves.items()]
    found += [_heat(*one) for one in maps[:MAPS]]
    found += _pairs(verdicts, limits)
    found += [_loss_chart(losses)] if losses else []
    return found


def of_verdicts(criteria: Sequence[Mapping[str, Any]], limits: Thresholds) -> list[Chart]:
    """The worst GPU of each node of a large fleet, as the verdicts have it."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for v in criteria:
        criterion = limits.criteria.get(str(v["criterion"]))
        if criterion is None or criterion.per != "node" or criterion.statistic != "median":
            continue
        if criterion.spread and isinstance(v["value"], float):
            found.setdefault(criterion.key, []).append(v)
    made = []
    for key, verdicts in found.items():
        known = {limit for v in verdicts if (limit := limit_of(v)) is not None}
        lines = [(min(known), "limit", RED)] if known else []
        values = [(str(v["subject"]), float(v["value"])) for v in verdicts]
        made.append(_bars(key, str(verdicts[0]["unit"]), values, lines, each="nodes"))
    return made


# --- per GPU


FAR = 5.0
"""A line so many times as high as all values is said and not drawn: no value could be seen."""


class Points:
    """One value a device, for each criterion that judges devices by their medians.

    One a node where its GPUs have a rate together: no bar stands for a GPU that waits for others.
    """

    def __init__(self, limits: Thresholds, verdicts: Mapping[str, list[Mapping[str, Any]]]) -> None:
        self._verdicts = verdicts
        self._found: dict[str, list[tuple[str, float]]] = {}
        self._criteria = limits.criteria
        self._by_workload: dict[str, list[Criterion]] = {}
        for criterion in limits.criteria.values():
            judged = criterion.key in verdicts and criterion.per == "node"
            if judged and criterion.statistic == "median" and criterion.over == "slowest":
                self._by_workload.setdefault(criterion.workload, []).append(criterion)

    def take(self, record: Record) -> None:
        if len(record.nodes) != 1:
            return
        for criterion in self._by_workload.get(record.workload, ()):
            found = [
                (f"{rank.node} gpu{rank.local_rank}", _value(m))
                for rank, m in record.points(criterion.metric, criterion.at)
                if len(m.samples) > 1
            ]
            if found and together(criterion):
                found = [(record.nodes[0], _worst(criterion.unit, found)[1])]
            if found:
                self._found.setdefault(criterion.key, []).extend(found)

    def charts(self) -> Iterator[Chart]:
        for key, found in self._found.items():
            limits = {limit for v in self._verdicts[key] if (limit := limit_of(v)) is not None}
            ceilings = {v["ceiling"] for v in self._verdicts[key] if v["ceiling"]}
            lines = [(min(limits), "limit", RED)] if limits else []
            lines += [(min(ceilings), "ceiling", SOFT)] if ceilings else []
            criterion = self._criteria[key]
            each = "nodes" if together(criterion) else "GPUs"
            yield _bars(key, criterion.unit, found, lines, each)


def _low_is_bad(unit: str) -> bool:
    return unit != "us"


def _worst(unit: str, found: list[tuple[str, float]]) -> tuple[str, float]:
    return (min if _low_is_bad(unit) else max)(found, key=lambda one: one[1])


def _bars(
    key: str,
    unit: str,
    found: list[tuple[str, float]],
    lines: list[tuple[float, str, str]],
    each: str = "GPUs",
) -> Chart:
    few = len(found) <= BARS
    found = sorted(found) if few else found
    figure, axes = _figure(3.6, 0.55 + 0.16 * len(found) if few else 2.1)
    limit = next((at for at, name, _ in lines if name == "limit"), None)
    low_is_bad = _low_is_bad(unit)
    bad = [limit is not None and (v < limit) == low_is_bad and v != limit for _, v in found]
    if few:
        order = range(len(found))
        colours = [RED if b else PALE for b in bad]
        axes.barh(order, [v for _, v in found], color=colours, height=0.7)
        axes.set_yticks(order, [f"{name}  {digits(value)}" for name, value in found], fontsize=7)
        axes.invert_yaxis()
        axes.locator_params(axis="x", nbins=5)  # more of six digits run into each other
        draw = axes.axvline
        axes.set_xlabel(unit, fontsize=7)
    else:
        ranked = sorted(zip((v for _, v in found), bad, strict=True))
        # A mark for each of a thousand nodes would make the page five times as large.
        mark = "." if len(ranked) <= MARKS else ""
        axes.plot([v for v, _ in ranked], color=BLUE, linewidth=0 if mark else 1.4, marker=mark)
        reds = [k for k, (_, b) in enumerate(ranked) if b][:MARKS]
        axes.plot(reds, [ranked[k][0] for k in reds], color=RED, linewidth=0, marker=".")
        draw = axes.axhline
        axes.set_ylabel(unit, fontsize=7)
        axes.set_xlabel(f"{each}, by value", fontsize=7)
    highest = max(value for _, value in found)
    near = [at for at, _, _ in lines if not highest or at <= FAR * highest]
    for at, name, colour in lines:
        if at in near:
            draw(at, color=colour, linewidth=1.2, linestyle="-" if name == "limit" else ":")
    name, value = _worst(unit, found)
    said = f"{name} {digits(value)}"
    if len(found) > 1:
        middle = statistics.median(v for _, v in found)
        said = f"{len(found)} {each}, median {digits(middle)} {unit}, worst {said}"
    else:
        said += f" {unit}"
    said += "".join(
        f", {name} {digits(at)}{'' if at in near else ' (far off)'}" for at, name, _ in lines
    )
    said += f"; {sum(bad)} beyond the limit" if limit is not None else ""
    return Chart(key, said, _svg(figure))


# --- curves by size


def _curves(record: Record) -> Iterator[tuple[str, str, dict[int, float]]]:
    """(name, unit, size -> mean over ranks) of a collective's bandwidth and latencies."""
    for metric in ("busbw", "latency", "graph_latency"):
        by_size: dict[int, list[float]] = {}
        unit = ""
        for _, m in record.points(metric, {}):
            if m.samples and "size" in m.at:
                by_size.setdefault(int(m.at["size"]), []).append(_value(m))
                unit = m.unit
        if len(by_size) > 1:
            curve = {size: statistics.fmean(values) for size, values in sorted(by_size.items())}
            yield f"{record.workload} {metric}", unit, curve


def _curve_chart(
    key: tuple[str, str, str],
    found: list[tuple[str, dict[int, float]]],
    verdicts: Mapping[str, list[Mapping[str, Any]]],
    limits: Thresholds,
) -> Chart:
    name, unit, per = key
    workload, _, metric = name.partition(" ")
    figure, axes = _figure(3.6, 2.3)
    # Of many nodes the lowest, the middle and the highest; all of a small run.
    ordered = sorted(found, key=lambda one: statistics.median(one[1].values()))
    several = len(ordered) > CURVES
    shown = [ordered[0], ordered[len(ordered) // 2], ordered[-1]] if several else found
    for k, (label, curve) in enumerate(shown):
        axes.plot(
            list(curve), list(curve.values()), linewidth=1.1, marker="o", markersize=2,
            color=(BLUE, "#8a5300", "#1d6b3a", "#6b3a7d", SOFT, "#1c6f7d", PALE, INK)[k % 8],
            label=label,
        )  # fmt: skip
    reference: dict[int, float] = {}
    for criterion in limits.criteria.values():
        if (criterion.workload, criterion.metric, criterion.per) == (workload, metric, per):
            if "size" not in criterion.at:
                continue
            for v in verdicts.get(criterion.key, []):
                if (limit := limit_of(v)) is not None:
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
    many = f"{len(found)} {PER[per]}, " if len(found) > 1 else ""
    said = f"{many}{format_size(sizes[0])} to {format_size(sizes[-1])}; highest "
    said += ", ".join(f"{label} {digits(v)} {unit}" for label, v in best.items())
    if reference:
        said += "; limits " + ", ".join(
            f"{digits(reference[s])} at {format_size(s)}" for s in sorted(reference)
        )
    return Chart(f"{name}, {TITLE[per]}", said, _svg(figure))


PER = {"node": "nodes", "pair": "pairs of nodes", "cluster": "jobs over all nodes"}
TITLE = {"node": "in a node", "pair": "between two nodes", "cluster": "over all nodes"}


def _per(record: Record) -> str:
    if record.placement == "all":
        return "cluster"
    return "node" if len(record.nodes) == 1 else "pair"


# --- heat maps


def _matrices(record: Record) -> Iterator[tuple[str, str, dict[tuple[int, int], float]]]:
    """(node, metric, (from, to) -> value) of the copies between the GPUs of a node."""
    if len(record.nodes) != 1:
        return
    for metric in ("write", "both"):
        cells = {
            (rank.local_rank, int(m.at["to"])): _value(m)
            for rank, m in record.points(metric, {})
            if "to" in m.at and m.samples
        }
        if cells:
            yield record.nodes[0], f"{record.workload}.{metric}", cells


def _heat(node: str, name: str, cells: Mapping[tuple[int, int], float]) -> Chart:
    each = sorted({k for pair in cells for k in pair})
    figure, axes = _figure(3.0, 2.5)
    values = [[cells.get((a, b), float("nan")) for b in each] for a in each]
    axes.imshow(values, cmap="Blues", vmin=0, vmax=2 * max(cells.values()))
    for i, a in enumerate(each):
        for j, b in enumerate(each):
            text = f"{cells[a, b]:.0f}" if (a, b) in cells else ""
            axes.text(j, i, text, ha="center", va="center", fontsize=7, color=INK)
    axes.set_xticks(range(len(each)), [f"{k}" for k in each], fontsize=7)
    axes.set_yticks(range(len(each)), [f"{k}" for k in each], fontsize=7)
    axes.set_xlabel("to GPU", fontsize=7)
    axes.set_ylabel("from GPU", fontsize=7)
    slowest = min(cells, key=lambda pair: cells[pair])
    said = f"GB/s from GPU (row) to GPU (column); slowest {slowest[0]} to {slowest[1]}: "
    return Chart(f"{name} {node}", f"{said}{digits(cells[slowest])}", _svg(figure))


def _pairs(verdicts: Mapping[str, list[Mapping[str, Any]]], limits: Thresholds) -> Iterator[Chart]:
    """Bandwidth between the two nodes of each pair, as its verdict has it."""
    for key, found in verdicts.items():
        criterion = limits.criteria.get(key)
        pairs = {tuple(str(v["subject"]).split("--")): v["value"] for v in found}
        nodes = sorted({node for pair in pairs for node in pair})
        rate = criterion is not None and criterion.per == "pair" and criterion.unit == "GB/s"
        if not rate or not 2 < len(nodes) <= ALL_PAIRS:
            continue
        figure, axes = _figure(3.0, 2.5)
        places = {node: k for k, node in enumerate(nodes)}
        values = [[float("nan")] * len(nodes) for _ in nodes]
        for (a, b), value in pairs.items():
            values[places[a]][places[b]] = values[places[b]][places[a]] = float(value)
        axes.imshow(values, cmap="Blues", vmin=0, vmax=2 * max(pairs.values()))
        if len(nodes) <= BARS:
            for i, row in enumerate(values):
                for j, value in enumerate(row):
                    text = "" if math.isnan(value) else f"{value:.0f}"
                    axes.text(j, i, text, ha="center", va="center", fontsize=6, color=INK)
            axes.set_xticks(range(len(nodes)), nodes, fontsize=6, rotation=90)
            axes.set_yticks(range(len(nodes)), nodes, fontsize=6)
        worst = min(pairs, key=lambda pair: pairs[pair])
        said = f"{len(pairs)} pairs; slowest {' and '.join(worst)}: {digits(pairs[worst])} GB/s"
        yield Chart(f"{key}, pairs of nodes", said, _svg(figure))


# --- training


def _losses(record: Record) -> Iterator[tuple[str, dict[int, float]]]:
    """Step -> loss, where a training left it as a sweep over `step`."""
    curve: dict[int, float] = {}
    for rank, m in record.points("loss", {}):
        if rank.rank == 0 and "step" in m.at:
            value = _value(m) if m.samples else m.value
            if isinstance(value, (int, float)):
                curve[int(m.at["step"])] = float(value)
    if len(curve) > 1:
        yield record.name.removesuffix(".json"), dict(sorted(curve.items()))


def _loss_chart(found: list[tuple[str, dict[int, float]]]) -> Chart:
    figure, axes = _figure(3.6, 2.3)
    for label, curve in found:
        axes.plot(list(curve), list(curve.values()), linewidth=1.1, label=label)
    axes.set_xlabel("step", fontsize=7)
    axes.set_ylabel("loss", fontsize=7)
    axes.legend(fontsize=6, frameon=False)
    ends = [(label, list(curve.values())) for label, curve in found]
    said = "; ".join(f"{label} {digits(y[0])} to {digits(y[-1])}" for label, y in ends)
    return Chart("Loss", said, _svg(figure))


# --- matplotlib


def _value(m: Measurement) -> float:
    return statistics.median(statistics.median(samples) for samples in (m.samples, *m.rounds))


def _figure(width: float, height: float) -> tuple[Any, Any]:
    """Inches; without pyplot, which looks for a display and keeps every figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#d3d8de")
    axes.tick_params(labelsize=7, colors=SOFT, length=2)
    return figure, axes


def _svg(figure: Any) -> str:
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "acceptance", "font.family": ["sans-serif"],
         "text.parse_math": False}
    ):  # fmt: skip
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]
