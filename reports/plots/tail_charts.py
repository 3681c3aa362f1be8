"""The samples of a row that failed for an intermittent fault, over time (login side).

Beside the GPU that failed stand the other GPUs of its node, and below its clock, power and
temperature of the same seconds, where the telemetry of the job was kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from fixtures.records.fields import is_number
from fixtures.records.files import read_lines
from fixtures.records.model import Points
from fixtures.records.run_directory import RunDirectory
from fixtures.run.reader import RunReader
from fixtures.thresholds.loader import Criterion
from fixtures.verdict.samples import points_of
from fixtures.verdict.tails import COMES_AND_GOES, Series, whole_series
from fixtures.wording import counted, digits, plural
from reports.plots.charts import Chart
from reports.plots.drawing import GREY, PALE_BLUE, RED, new_figure, svg_of

GAUGES = {"sm_mhz": "SM MHz", "power_w": "W", "temp_c": "C"}
"""Of the telemetry -> how the axis is called."""
MOST_OTHERS = 15
MAX_TELEMETRY_BYTES = 64_000_000


def tail_chart(
    reader: RunReader, v: Mapping[str, Any], criterion: Criterion | None
) -> Chart | None:
    """Return the chart of a verdict; None where it failed for another reason, or where no record
    that counts shows it."""
    if criterion is None or not str(v.get("reason")).startswith(COMES_AND_GOES):
        return None
    worst = v.get("worst") or {}
    with suppress(OSError, ValueError):
        record = reader.of_row(v)
        if record is None:
            return None
        nodes = [str(worst.get("node"))] if criterion.span.of_one_node else record.nodes
        points = points_of(criterion, record, nodes, str(v["subject"]))
        if points:
            named, others = _lines(criterion, points, worst)
            uuid = named.rank.device.get("uuid")
            telemetry = _telemetry(reader.directory, named.rank.node, uuid, points)
            return _draw(v, criterion, named, others, telemetry)
    return None


def _lines(
    criterion: Criterion,
    points: Points,
    worst: Mapping[str, Any],
) -> tuple[Series, list[Series]]:
    """Return the series that failed, with all its rounds, and those drawn beside it.

    That is the named device or link beside the others, or the mean over ranks beside the ranks.
    """
    of_each = [whole_series(criterion, [point])[0] for point in points]
    if criterion.kind.over_ranks:
        return whole_series(criterion, points)[0], of_each
    named = [
        s
        for s, (rank, m) in zip(of_each, points, strict=True)
        if rank.node == worst.get("node")
        and worst.get("uuid") in (None, rank.device.get("uuid"))
        and worst.get("part") in (None, m.at.get("part"))
    ]
    red = min(named or of_each, key=lambda s: s.ratio)
    return red, [s for s in of_each if s is not red]


def _telemetry(
    directory: RunDirectory,
    node: str,
    uuid: Any,
    points: Points,
) -> list[tuple[float, Mapping[str, Any]]]:
    """Return (epoch seconds, gauges of the GPU) while the workload ran, if that was kept."""
    start, end = min(r.start for r, _ in points), max(r.end for r, _ in points)
    found = []
    for path in directory.telemetry_files(node):
        if path.lstat().st_size > MAX_TELEMETRY_BYTES:
            continue
        for sample in read_lines(path):
            with suppress(ValueError, KeyError, TypeError):
                gauges = sample["gpus"][uuid]
                if start <= sample["t"] <= end and isinstance(gauges, Mapping):
                    found.append((float(sample["t"]), gauges))
    return sorted(found, key=lambda pair: pair[0])


def _draw(
    v: Mapping[str, Any],
    criterion: Criterion,
    named: Series,
    others: Sequence[Series],
    telemetry: Sequence[tuple[float, Mapping[str, Any]]],
) -> Chart:
    drawn = [*others[:MOST_OTHERS], named]
    timed = all(s.ended and len(s.ended) == len(s.samples) for s in drawn)
    gauges = [name for name in GAUGES if any(is_number(x.get(name)) for _, x in telemetry)]
    if not timed:
        gauges = []  # samples that are only counted have no seconds to show a gauge at
    figure, axes = new_figure(7.2, 1.7 + 0.75 * len(gauges), rows=1 + len(gauges))
    begin = min(s.ended[0] for s in drawn) if timed else 0.0
    for s in drawn:
        when = [t - begin for t in s.ended] if timed else range(len(s.samples))
        colour = RED if s is named else PALE_BLUE
        axes[0].plot(when, s.samples, color=colour, linewidth=1.0, marker=".", markersize=3)
    axes[0].set_ylabel(criterion.unit, fontsize=7)
    first, last = (0.0, max(s.ended[-1] for s in drawn) - begin) if timed else (0.0, 0.0)
    for axis, name in zip(axes[1:], gauges, strict=True):
        shown = [(t - begin, x[name]) for t, x in telemetry if is_number(x.get(name))]
        shown = [(t, x) for t, x in shown if first - 1 <= t <= last + 1]
        axis.plot([t for t, _ in shown], [x for _, x in shown], color=GREY, linewidth=1.0)
        axis.set_ylabel(GAUGES[name], fontsize=7)
    if timed:
        for axis in axes:
            axis.set_xlim(first, last)
    axes[-1].set_xlabel("seconds" if timed else "sample", fontsize=7)
    below = f"; below it {', '.join(GAUGES[name] for name in gauges)}" if gauges else ""
    description = (
        f"{counted(len(named.samples), 'sample')} over time (red) {_beside(criterion, others)}"
        f"{below}: "
        f"{digits(min(named.samples))} to {digits(max(named.samples))} {criterion.unit}"
    )
    return Chart(f"{v['criterion']} {v['subject']}", description, svg_of(figure))


def _beside(criterion: Criterion, others: Sequence[Series]) -> str:
    """Return what the other lines are."""
    if criterion.kind.over_ranks:
        return f"of all ranks together, beside {_some(others)} {plural(len(others), 'rank')}"
    what = criterion.kind.of.value
    if not others:
        return f"of the only {what}"
    where = " of the node" if criterion.span.of_one_node else ""
    return f"beside {_some(others)} other {plural(len(others), what)}{where}"


def _some(others: Sequence[Series]) -> str:
    count = min(len(others), MOST_OTHERS)
    return f"{count} of {len(others)}" if count < len(others) else f"{count}"
