"""The evidence of one node, as its dossier shows it: rows, counters, telemetry, errors.

Its records are those that the judge counts; what does not count stands there with the reason.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import statistics
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fixtures.records.files import RecordError, read_lines
from fixtures.records.foreign_files import GIB, Bound, read_bytes
from fixtures.records.inert import inert
from fixtures.records.model import RankResult, Record
from fixtures.records.run_directory import RunDirectory, attempt_of
from fixtures.run.reader import RunReader
from fixtures.thresholds.criteria import Criterion
from fixtures.thresholds.loader import Thresholds
from reports.evidence.run_files import CommandError

Json = dict[str, Any]
MAX_SAMPLES = 400
"""Samples per measurement; of more, this many evenly spread ones."""
MAX_POINTS = 300
"""Points of telemetry per job."""
MAX_ELSEWHERE = 64
MAX_LOG_LINES = 400
MAX_REPORT_BYTES = 200_000_000
BUG_REPORT = Bound(2 * GIB)
"""A file that the user names: a few hundred MB, mostly compressed."""
_OF_GPU = re.compile(
    r"Xid|fallen off the bus|RmInitAdapter|ECC|row.?remap|NVLink|nvidia-nvswitch", re.IGNORECASE
)
"""Lines of nvidia-bug-report's file about faults of a GPU."""


def ranks_of(records: Iterable[Record], node: str, workload: str) -> list[RankResult]:
    """Return the ranks of a node in the newest record of a workload that has any."""
    found: tuple[int, list[RankResult]] = (0, [])
    for record in records:
        ranks = [r for r in record.ranks if r.node == node]
        if record.workload == workload and ranks and record.attempt >= found[0]:
            found = record.attempt, ranks
    return found[1]


def not_counted(reader: RunReader, node: str) -> list[Json]:
    """Return the records of the node that count for nothing, each with the reason."""
    found = []
    for name, reasons in sorted(reader.reasons.items()):
        key = attempt_of(name)
        here = key is not None and node in key[1].split("--")
        reason = reasons.get(node) or (reasons.get("") if here else None)
        if reason:
            found.append({"record": name, "reason": reason})
    return found


def first_of(values: Iterable[Any]) -> Any:
    return next((v for v in values if v), None)


def row_of(
    v: Mapping[str, Any],
    thresholds: Thresholds,
    verdict: Mapping[str, Any],
    reader: RunReader,
    node: str,
) -> Json:
    """Return a row with its samples, its earlier attempts, and the same criterion elsewhere."""
    criterion = thresholds.criteria.get(str(v["criterion"]))
    keys = ("criterion", "title", "subject", "outcome", "value", "unit", "limit", "ceiling",
            "margin", "worst", "devices", "reason", "next_step", "notes", "record", "job",
            "attempt")  # fmt: skip
    row: Json = {key: v.get(key) for key in keys}
    elsewhere = [w for w in verdict["criteria"]
                 if w["criterion"] == v["criterion"] and w["subject"] != v["subject"]]  # fmt: skip
    row["elsewhere"] = {w["subject"]: w["value"] for w in elsewhere[:MAX_ELSEWHERE]}
    row["attempts"] = []
    row["measured"] = []
    key = attempt_of(str(v.get("record")))
    if criterion is None or key is None:
        return row
    for attempt in range(1, int(v.get("attempt") or 1) + 1):
        judged = attempt == v.get("attempt")
        record = reader.of_row(v) if judged else reader.attempt(*key[:2], attempt)
        if record is None:
            continue
        measured = list(measured_by(record, criterion, node))
        if judged:
            row["measured"] = measured
        elif measured:
            figures = [{k: m[k] for k in ("gpu", "uuid", "median", "value")} for m in measured]
            row["attempts"].append({"attempt": attempt, "record": record.name, "is": figures})
    return row


def measured_by(record: Record, criterion: Criterion, node: str) -> Iterator[Json]:
    """Yield what each rank of the node measured for a criterion."""
    for rank in record.ranks:
        for m in rank.measurements if rank.node == node else ():
            if m.metric != criterion.metric:
                continue
            if any(m.at.get(k) != value for k, value in criterion.at.items()):
                continue
            yield {
                "rank": rank.rank, "gpu": rank.device.get("index"),
                "uuid": rank.device.get("uuid"), "at": m.at, "unit": m.unit,
                "value": m.value, "median": statistics.median(m.samples) if m.samples else None,
                "samples": thinned(m.samples, MAX_SAMPLES), "count": len(m.samples),
                "rounds": [thinned(r, MAX_SAMPLES) for r in m.rounds],
                "checks": m.checks, "conditions": m.conditions,
                "started": m.started, "notes": m.notes,
            }  # fmt: skip


def thinned(values: Sequence[Any], most: int) -> list[Any]:
    step = max(1, -(-len(values) // most))
    return list(values[::step])


def counters_of(records: Iterable[Record], node: str, workload: str) -> list[Json]:
    """Return every value of a workload on the node, with what was counted before and after."""
    return [
        {
            "gpu": r.device.get("index"), "uuid": r.device.get("uuid"),
            "values": [
                {"metric": m.metric, "part": m.at.get("part"), "unit": m.unit,
                 "value": m.value if m.value is not None
                 else statistics.median(m.samples) if m.samples else None,
                 "notes": m.notes}
                for m in r.measurements
            ],
            **{k: r.facts[k]
               for k in ("before", "after", "matrix", "ports")
               if k in r.facts},
            "absent": [a.to_json() for a in r.absent],
        }
        for r in ranks_of(records, node, workload)
    ]  # fmt: skip


def errors_of(directory: RunDirectory, node: str) -> Iterator[Json]:
    """Yield the last lines of ranks of the node that ended in an error."""
    for path in directory.rank_files():
        for line in read_lines(path):
            if line.get("event") == "error" and line.get("node") == node:
                keys = ("workload", "rank", "time", "kind", "error", "stack")
                yield {k: line.get(k) for k in keys}


def telemetry_of(
    directory: RunDirectory, records: Iterable[Record], node: str, gpu: Json | None
) -> Json:
    """Return a summary per workload, and points over time per job, of the node's GPUs."""
    wanted = gpu.get("uuid") if gpu is not None else None

    def own(gpus: Mapping[str, Any]) -> Json:
        return {uuid: value for uuid, value in gpus.items() if wanted in (None, uuid)}

    summaries = {}
    for record in records:
        for r in record.ranks:
            found = r.facts.get("telemetry") if r.node == node else None
            if isinstance(found, dict) and isinstance(found.get("gpus"), dict):
                summaries[record.name] = own(found["gpus"])
    points = {}
    for path in directory.telemetry_files(node):
        lines = [line for line in read_lines(path) if isinstance(line.get("gpus"), dict)]
        points[path.parent.name] = [
            {"t": line.get("t"), "gpus": own(line["gpus"])} for line in thinned(lines, MAX_POINTS)
        ]
    return {"summaries": summaries, "points": points}


def lines_of_bug_report(path: Path) -> Json:
    """Return what identifies nvidia-bug-report's file, and its lines on what happened to GPUs.

    CommandError where it cannot be read.
    """
    lines: list[str] = []
    try:
        raw = read_bytes(path, bound=BUG_REPORT)
        if raw[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
                text = file.read(MAX_REPORT_BYTES).decode("utf-8", "replace")
        else:
            text = raw[:MAX_REPORT_BYTES].decode("utf-8", "replace")
    except (OSError, EOFError, RecordError, zlib.error) as error:
        raise CommandError(f"--bug-report {path}: {error}") from None
    for whole in text.splitlines():
        line = inert(whole.strip(), longest=400)
        if _OF_GPU.search(whole) and line not in lines[-1:]:
            lines.append(line)
    return {
        "name": path.name, "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest(),
        "lines": lines[:MAX_LOG_LINES], "more_lines": max(0, len(lines) - MAX_LOG_LINES),
    }  # fmt: skip
