"""The samples of a row that failed for what comes and goes, over time (login side).

Beside the GPU that failed stand the other GPUs of its node, and below its clock, power and
temperature of the same seconds, where the telemetry of the job was kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from fixtures.records.fast_reader import read_record
from fixtures.records.model import Measurement, RankResult
from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds.conditions import digits
from fixtures.thresholds.loader import Criterion
from fixtures.verdict.tails import COMES_AND_GOES
from fixtures.wording import counted
from reports.charts import Chart
from reports.drawing import GREY, PALE_BLUE, RED, new_figure, svg_of

GAUGES = {"sm_mhz": "SM MHz", "power_w": "W", "temp_c": "C"}
"""Of the telemetry -> how the axis is called."""
MOST_OTHERS = 15
MAX_TELEMETRY_BYTES = 64_000_000


def tail_chart(
    directory: RunDirectory, v: Mapping[str, Any], criterion: Criterion | None
) -> Chart | None:
    """Return the chart of a verdict; None where it failed for another reason, or has no record."""
    if criterion is None or not str(v.get("reason")).startswith(COMES_AND_GOES):
        return None
    worst = v.get("worst") or {}
    with suppress(OSError, ValueError):
        record = read_record(directory.records / str(v["record"]))
        node = worst.get("node") or record.nodes[0]
        points = record.points(criterion.metric, criterion.at, node=str(node))
        if points:
            uuid = worst.get("uuid") or points[0][0].device.get("uuid")
            return _draw(v, criterion, points, uuid, _telemetry(directory, str(node), uuid, points))
    return None


def _telemetry(
    directory: RunDirectory,
    node: str,
    uuid: Any,
    points: Sequence[tuple[RankResult, Measurement]],
) -> list[tuple[float, Mapping[str, Any]]]:
    """Return (epoch seconds, gauges of the GPU) while the workload ran, if that was kept."""
    start, end = min(r.start for r, _ in points), max(r.end for r, _ in points)
    found = []
    for path in sorted(directory.jobs.glob(f"*/telemetry-{node}.jsonl")):
        if path.stat().st_size > MAX_TELEMETRY_BYTES:
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError, KeyError, TypeError):
                sample = json.loads(line)
                if start <= sample["t"] <= end and uuid in sample["gpus"]:
                    found.append((float(sample["t"]), sample["gpus"][uuid]))
    return sorted(found, key=lambda pair: pair[0])


def _draw(
    v: Mapping[str, Any],
    criterion: Criterion,
    points: Sequence[tuple[RankResult, Measurement]],
    uuid: Any,
    telemetry: Sequence[tuple[float, Mapping[str, Any]]],
) -> Chart:
    gauges = [name for name in GAUGES if any(name in values for _, values in telemetry)]
    figure, axes = new_figure(7.2, 1.7 + 0.75 * len(gauges), rows=1 + len(gauges))
    timed = all(len(m.ended) == len(m.samples) and m.ended for _, m in points)
    begin = min(m.ended[0] for _, m in points) if timed else 0.0
    of_worst = [m for rank, m in points if rank.device.get("uuid") == uuid] or [points[0][1]]
    others = [m for _, m in points if m not in of_worst][:MOST_OTHERS]
    for m, colour in [*((m, PALE_BLUE) for m in others), *((m, RED) for m in of_worst)]:
        when = [t - begin for t in m.ended] if timed else range(len(m.samples))
        axes[0].plot(when, m.samples, color=colour, linewidth=1.0, marker=".", markersize=3)
    axes[0].set_ylabel(criterion.unit, fontsize=7)
    first, last = (0.0, max(m.ended[-1] for _, m in points) - begin) if timed else (0.0, 0.0)
    for axis, name in zip(axes[1:], gauges, strict=True):
        shown = [(t - begin, x[name]) for t, x in telemetry if x.get(name) is not None]
        shown = [(t, x) for t, x in shown if first - 1 <= t <= last + 1]
        axis.plot([t for t, _ in shown], [x for _, x in shown], color=GREY, linewidth=1.0)
        axis.set_ylabel(GAUGES[name], fontsize=7)
    if timed:
        for axis in axes:
            axis.set_xlim(first, last)
    axes[-1].set_xlabel("seconds" if timed else "sample", fontsize=7)
    beside = f"beside {len(others)} other GPUs of the node" if others else "of the only GPU"
    below = f"; below it {', '.join(GAUGES[name] for name in gauges)}" if gauges else ""
    samples = of_worst[0].samples
    description = (
        f"{counted(len(samples), 'sample')} over time (red) {beside}{below}: "
        f"{digits(min(samples))} to {digits(max(samples))} {criterion.unit}"
    )
    return Chart(f"{v['criterion']} {v['subject']}", description, svg_of(figure))
