"""Records as the tables that engineers know from other tools (login side)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from fixtures.records.fast_reader import read_record
from fixtures.records.files import RecordError, read_json, read_lines
from fixtures.records.model import RankResult, Record
from fixtures.records.run_directory import RunDirectory, assemble

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


def table(record: Record) -> str:
    """A record's figures as text; "" where there is no such table."""
    return nccl_tables(record) or nvbandwidth_tables(record)


def records_of(run: RunDirectory) -> list[Record]:
    """The newest record of each workload and placement; by hand there are only rank lines.

    What cannot be read is left out: tables are for looking at, and no verdict hangs on them.
    """
    about = read_json(run.run_json)
    newest: dict[tuple[str, str], Record] = {}
    for record in (*_assembled(run), *_by_hand(run, about)):
        key = (record.workload, record.placement)
        if key not in newest or newest[key].attempt <= record.attempt:
            newest[key] = record
    return sorted(newest.values(), key=lambda r: min(rank.start for rank in r.ranks))


def _assembled(run: RunDirectory) -> Iterator[Record]:
    for path in sorted(run.records.glob("*.json")):
        with suppress(OSError, ValueError):
            yield read_record(path)


def _by_hand(run: RunDirectory, about: Mapping[str, Any]) -> Iterator[Record]:
    if about.get("origin") != "by-hand":
        return
    lines = [line for path in sorted(run.jobs.glob("*/rank*.jsonl")) for line in read_lines(path)]
    done = {
        (line["workload"], line["placement"], int(line["attempt"]))
        for line in lines
        if line.get("event") == "result"
    }
    for workload, placement, attempt in sorted(done):
        with suppress(RecordError, KeyError):
            record = assemble(
                lines,
                run_id=about["id"],
                nonce=about["nonce"],
                workload=workload,
                placement=placement,
                attempt=attempt,
                job={},
            )
            if record is not None:
                yield record


COLLECTIVES = (
    "allreduce", "allreduce_ring", "allgather", "reducescatter", "alltoall", "broadcast",
    "sendrecv", "rails",
)  # fmt: skip


def nccl_tables(record: Record) -> str:
    """The sweep of a collective in the form of nccl-tests, times as the mean over ranks.

    One table a group of ranks (a rail has its own); "" for a record of anything else. `graph` is
    the time of NCCL's own call in a CUDA graph, `algo` what NCCL took by its log.
    """
    if record.workload not in COLLECTIVES:
        return ""
    groups: dict[str, list[RankResult]] = {}
    for rank in record.ranks:
        name = f"rail{rank.local_rank}" if record.workload == "rails" else record.placement
        groups.setdefault(name, []).append(rank)
    return "\n\n".join(_sweep(record.workload, name, ranks) for name, ranks in groups.items())


def _sweep(workload: str, name: str, ranks: list[RankResult]) -> str:
    where = "in place" if ranks[0].facts.get("in_place") else "out of place"
    lines = [
        f"# {workload} {name}: {len(ranks)} ranks, {where}",
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
