"""Records as the tables that engineers know from other tools (login side). Pure: record to text."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from fixtures.records import RankResult, Record

COLUMN = 10
"""Characters of a cell."""

_MATRICES = {
    "write": "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
    "both": "memcpy CE GPU(row) <-> GPU(column) bandwidth (GB/s), total of both ways",
}
_ROWS = {
    "h2d": "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)",
    "d2h": "memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)",
    "h2d_all": "memcpy CE CPU(row) -> all GPUs(column) at once bandwidth (GB/s)",
    "d2h_all": "memcpy CE CPU(row) <- all GPUs(column) at once bandwidth (GB/s)",
    "copy": "local copy GPU(column) bandwidth (GB/s), read and written counted",
    "triad": "local triad GPU(column) bandwidth (GB/s), two reads and a write counted",
    "read": "local read GPU(column) bandwidth (GB/s)",
    "fill": "local fill GPU(column) bandwidth (GB/s)",
}
"""Titles as nvbandwidth has them, with its own words where it has no such test."""


def nvbandwidth_tables(record: Record) -> str:
    """The figures of a record of `memory`, `hostcopy` or `p2p` in the form of nvbandwidth.

    One table a metric and node, medians in GB/s; "" for a record of anything else.
    """
    if record.workload not in ("memory", "hostcopy", "p2p"):
        return ""
    blocks = []
    for node in record.nodes:
        ranks = sorted((r for r in record.ranks if r.node == node), key=lambda r: r.local_rank)
        for metric, title in _ROWS.items():
            cells = {(0, r.local_rank): v for r in ranks for v in _medians(r, metric).values()}
            blocks += _table(f"{node}: {title}", [0], [r.local_rank for r in ranks], cells)
        for metric, title in _MATRICES.items():
            cells = {
                (r.local_rank, int(to)): v
                for r in ranks
                for to, v in _medians(r, metric).items()
                if to is not None
            }
            every = [r.local_rank for r in ranks]
            blocks += _table(f"{node}: {title}", every, every, cells)
    return "\n\n".join(blocks)


def _medians(rank: RankResult, metric: str) -> dict[int | None, float]:
    """The other end of a link (None where it has none) -> median of a rank's samples."""
    found: dict[int | None, float] = {}
    for m in rank.measurements:
        if m.metric == metric and m.samples:
            to = m.at.get("to")
            found[None if to is None else int(to)] = statistics.median(m.samples)
    return found


def _table(
    title: str, rows: list[int], columns: list[int], cells: Mapping[tuple[int, int], float]
) -> list[str]:
    """The table as one text; none where nothing was measured."""
    if not cells:
        return []
    lines = [title, "  " + "".join(f"{column:{COLUMN}}" for column in columns)]
    for row in rows:
        values = [cells.get((row, column)) for column in columns]
        shown = "".join(f"{'N/A' if v is None else f'{v:.2f}':>{COLUMN}}" for v in values)
        lines.append(f"{row:2}{shown}")
    return ["\n".join(lines)]
