"""Records as text tables in the form of nccl-tests and nvbandwidth (login side)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from fixtures.records.files import read_json
from fixtures.records.model import RankResult, Record
from fixtures.records.run_directory import RunDirectory
from fixtures.run.reader import newest_records
from fixtures.wording import counted, digits, quantity
from reports.plots.trainings import Training, Trainings

COLUMN_WIDTH = 10
"""Width of a cell in characters."""

_MATRIX_TITLES = {
    "p2p.write": "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
    "p2p.both": "memcpy CE GPU(row) <-> GPU(column) bandwidth (GB/s), total of both ways",
}
_ROW_TITLES = {
    "hostcopy.h2d": "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)",
    "hostcopy.d2h": "memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)",
    "hostcopy.h2d_all": "memcpy CE CPU(row) -> all GPUs(column) at once bandwidth (GB/s)",
    "hostcopy.d2h_all": "memcpy CE CPU(row) <- all GPUs(column) at once bandwidth (GB/s)",
    "memory.copy": "local copy GPU(column) bandwidth (GB/s), read and written counted",
    "memory.triad": "local triad GPU(column) bandwidth (GB/s), two reads and a write counted",
    "memory.read": "local read GPU(column) bandwidth (GB/s)",
    "memory.fill": "local fill GPU(column) bandwidth (GB/s)",
}
"""Titles of nvbandwidth, or in its wording where it has no such test."""


def nvbandwidth_tables(record: Record) -> str:
    """Return a record's bandwidths within a node in the form of nvbandwidth.

    One table per metric and node, medians in GB/s; "" for a record without such a metric.
    """
    rows, matrices = (_titles_of(record, titles) for titles in (_ROW_TITLES, _MATRIX_TITLES))
    blocks = []
    for node in record.nodes:
        ranks = sorted((r for r in record.ranks if r.node == node), key=lambda r: r.local_rank)
        for metric, title in rows.items():
            cells = {
                (0, r.local_rank): v for r in ranks for v in _median_by_peer(r, metric).values()
            }
            blocks += _table_blocks(f"{node}: {title}", [0], [r.local_rank for r in ranks], cells)
        for metric, title in matrices.items():
            cells = {
                (r.local_rank, int(to)): v
                for r in ranks
                for to, v in _median_by_peer(r, metric).items()
                if to is not None
            }
            gpus = [r.local_rank for r in ranks]
            blocks += _table_blocks(f"{node}: {title}", gpus, gpus, cells)
    return "\n\n".join(blocks)


def table(record: Record) -> str:
    """Return a record's values as a text table, "" where there is none for its workload."""
    return nccl_tables(record) or nvbandwidth_tables(record) or training_tables(record)


MAX_STEPS = 12
"""Most steps of a training that are printed: the first, the last, and some between."""


def training_tables(record: Record) -> str:
    """Return the figures of each training of a record and the loss of some of its steps."""
    trainings = Trainings()
    trainings.add(record)
    return "\n\n".join(_training_table(training) for training in trainings.found)


def _training_table(training: Training) -> str:
    figures = [f"{title} {value}" for title, value in training.figures.items()]
    lines = [f"# {training.title}", *(f"# {text}" for text in figures)]
    if training.steps:
        lines.append(" ".join(f"{heading:>14}" for heading in training.headings))
        stride = max(1, -(-(len(training.steps) - 1) // (MAX_STEPS - 1)))
        shown = [*training.steps[:-1:stride], training.steps[-1]]
        lines += [" ".join(f"{_cell(value):>14}" for value in row) for row in shown]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return "-" if value is None else digits(value)


def recorded_table(verdict: Mapping[str, Any]) -> str:
    """Return the recorded values, which are not judged, as a text table; "" without any."""
    rows = [
        (str(v["criterion"]), str(v["subject"]), quantity(v["value"], str(v["unit"])))
        for v in verdict["criteria"]
        if v["outcome"] == "RECORDED"
    ]
    if not rows:
        return ""
    widths = [max(len(row[k]) for row in rows) for k in range(2)]
    return "\n".join(
        [
            "# recorded, not judged",
            *(f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows),
        ]
    )


def records_of(run: RunDirectory) -> list[Record]:
    """Return the newest record of each workload and placement, as far as the judge can use it."""
    return newest_records(run, read_json(run.run_json))


def nccl_tables(record: Record) -> str:
    """Return the sweep of a collective in the form of nccl-tests, with times as mean over ranks.

    One table per group of ranks (each rail is one); "" for a record without a sweep. `graph`
    is the time of NCCL's call in a CUDA graph, `algo` the algorithm that NCCL logged.
    """
    if not all("busbw" in row for rank in record.ranks for row in rank.facts.get("table", [{}])):
        return ""
    groups: dict[str, list[RankResult]] = {}
    for rank in record.ranks:
        name = f"rail{rank.local_rank}" if record.workload == "rails" else record.placement
        groups.setdefault(name, []).append(rank)
    return "\n\n".join(_sweep_table(record.workload, name, ranks) for name, ranks in groups.items())


def _sweep_table(workload: str, name: str, ranks: list[RankResult]) -> str:
    where = "in place" if ranks[0].facts.get("in_place") else "out of place"
    lines = [
        f"# {workload} {name}: {counted(len(ranks), 'rank')}, {where}",
        f"# {'size':>11} {'count':>11} {'type':>6} {'redop':>6} {'time':>9} {'algbw':>8} "
        f"{'busbw':>8} {'#wrong':>7} {'graph':>8} {'algo':>12}",
        f"# {'(B)':>11} {'(elements)':>11} {'':6} {'':6} {'(us)':>9} {'(GB/s)':>8} "
        f"{'(GB/s)':>8} {'':7} {'(us)':>8}",
    ]
    for rows in zip(*(rank.facts["table"] for rank in ranks), strict=True):
        first = rows[0]
        time = statistics.fmean(row["time_us"] for row in rows)
        share = first["time_us"] / time if time else 0.0
        graph = [row["graph_us"] for row in rows if "graph_us" in row]
        algorithm = "/".join(str(first[k]) for k in ("algorithm", "protocol") if k in first)
        lines.append(
            f"  {first['size']:>11} {first['count']:>11} {first['type']:>6} {first['redop']:>6} "
            f"{time:>9.2f} {first['algbw'] * share:>8.2f} {first['busbw'] * share:>8.2f} "
            f"{sum(row['wrong'] for row in rows):>7} "
            f"{f'{statistics.fmean(graph):.2f}' if graph else '-':>8} {algorithm or '-':>12}"
        )
    return "\n".join(lines)


def _titles_of(record: Record, titles: Mapping[str, str]) -> dict[str, str]:
    """Return metric -> title of those titles that are of the record's workload."""
    own = f"{record.workload}."
    return {m.removeprefix(own): title for m, title in titles.items() if m.startswith(own)}


def _median_by_peer(rank: RankResult, metric: str) -> dict[int | None, float]:
    """Return peer GPU (None for a metric without one) -> median of a rank's samples."""
    medians: dict[int | None, float] = {}
    for m in rank.measurements:
        if m.metric == metric and m.samples:
            to = m.at.get("to")
            medians[None if to is None else int(to)] = statistics.median(m.samples)
    return medians


def _table_blocks(
    title: str, rows: list[int], columns: list[int], cells: Mapping[tuple[int, int], float]
) -> list[str]:
    """Return a list with the table as one text; an empty list where nothing was measured."""
    if not cells:
        return []
    lines = [title, "  " + "".join(f"{column:{COLUMN_WIDTH}}" for column in columns)]
    for row in rows:
        values = [cells.get((row, column)) for column in columns]
        shown = "".join(f"{'N/A' if v is None else f'{v:.2f}':>{COLUMN_WIDTH}}" for v in values)
        lines.append(f"{row:2}{shown}")
    return ["\n".join(lines)]
