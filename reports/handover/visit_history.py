"""The history of a patrol's visits: Parquet files that take in each line of its log once.

The log is only ever appended to. One that was rotated or cut is taken in as a new one, and named:
what it had of a node that is in no visit since is not known.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fixtures.records.files import RecordError, read_json, read_lines, replace_file, write_json
from fixtures.records.foreign_files import read_bytes
from fixtures.records.foreign_folders import files_in
from fixtures.wording import counted
from reports.evidence.run_files import CommandError
from reports.facts.silence import Place, Row, Stream, date_of, until
from reports.handover import visit_folders

COLUMNS = ("start", "end", "node", "job", "outcome", "uuid", "gpu", "metric", "value")
BEGUN = "begun"
LOG = "log.json"
"""In the history: which lines of the log were taken in, and their SHA-256."""
_FILE = re.compile(r"visits-(\d+)-(\d+)\.parquet")


def take_in(log: Path, history: Path) -> int:
    """Write the visits of a log that the history does not have; return how many lines were new.

    Each file has whole lines and says by its name which, counted over all logs, so that one that is
    taken in twice changes nothing.
    """
    history = history.resolve()
    history.mkdir(parents=True, exist_ok=True)
    names = [path.name for path in files_in(history)]
    known = max((int(m[2]) for name in names if (m := _FILE.fullmatch(name))), default=0)
    lines, state = list(read_lines(log)), _state(history)
    start = int(state.get("start", 0))
    new = lines[known - start :]
    if len(lines) < known - start or not _continues(lines, state):
        had = {_visit(row) for row in read(history)}
        new = [line for line in lines if line.get("outcome") != BEGUN and not _is_in(had, line)]
        start, state = known + len(new) - len(lines), {**state, "replaced": time.time()}
    taken = {visit_folders.key_of(row["node"], row["start"]) for row in read(history)}
    found = visit_folders.compared(new, lines, log.parent / "visits", taken)
    count, start = len(new) + found.added, start + found.added
    rows = [row for line in found.lines for row in _rows(line)]
    if rows:
        arrow, parquet = _parquet()
        table = arrow.table({name: [row[name] for row in rows] for name in COLUMNS})
        path = history / f"visits-{known + 1:08d}-{known + count:08d}.parquet"
        content = io.BytesIO()
        parquet.write_table(table, content)
        replace_file(path, (content.getvalue(),))
    if found.differs:
        newest = max((row["end"] for row in until(read(history), time.time())[0]), default=0.0)
        told = [{"node": node, "text": text, "since": newest} for node, text in found.differs]
        known_texts = {entry["text"] for entry in told}
        before = [e for e in state.get("differs", ()) if e["text"] not in known_texts]
        state = {**state, "differs": [*before, *told]}
    now = {"start": start, "lines": len(lines), "sha256": _digest(lines)}
    write_json(history / LOG, {**state, **now})
    return len(new) if rows else 0


def differing(history: Path, rows: Sequence[Row]) -> Iterator[str]:
    """Yield what is not as the visits of a node left it, until the node was visited since."""
    last: dict[str, float] = {}
    for row in rows:
        if row["value"] is not None:
            last[row["node"]] = max(last.get(row["node"], 0.0), row["end"])
    for entry in _state(history.resolve()).get("differs", ()):
        if last.get(entry["node"], 0.0) <= entry["since"]:
            yield entry["text"]


def _continues(lines: Sequence[Row], state: Mapping[str, Any]) -> bool:
    """Whether the log begins as it did when it was taken in last."""
    return "sha256" not in state or _digest(lines[: int(state["lines"])]) == state["sha256"]


def _state(history: Path) -> dict[str, Any]:
    with suppress(OSError, RecordError):
        state = read_json(history / LOG)
        if isinstance(state, dict):
            return state
    return {}


def _digest(lines: Sequence[Row]) -> str:
    return hashlib.sha256(json.dumps(lines, sort_keys=True).encode()).hexdigest()


def _visit(line: Row) -> tuple[str, float]:
    return str(line["node"]), float(line["start"])


def _is_in(visits: Collection[tuple[str, float]], line: Row) -> bool:
    with suppress(KeyError, TypeError, ValueError):
        return _visit(line) in visits
    return False


def replaced(history: Path, rows: Iterable[Row], expected: Mapping[Stream, Place]) -> Iterator[str]:
    """Yield that the log was replaced, until every GPU that is expected was visited since."""
    since = _state(history.resolve()).get("replaced")
    if since is None:
        return
    seen = {row["uuid"] for row in rows if row["value"] is not None and row["end"] > since}
    missing = {uuid for uuid, _ in expected} - seen
    if missing or not expected:
        yield (
            f"visits.jsonl was rotated or cut before {date_of(since)}; it may only be appended to. "
            f"{counted(len(missing), 'GPU')} of the certificate not visited since"
        )


def _rows(line: Row) -> Iterable[dict[str, Any]]:
    """Yield a row for each value of a visit, and one without for a visit that has none."""
    if line.get("outcome") == BEGUN:
        return
    head = {"start": float(line["start"]), "end": float(line["end"]), "node": str(line["node"]),
            "job": str(line["job"]), "outcome": str(line["outcome"])}  # fmt: skip
    nothing: dict[str, Any] = {"uuid": "", "gpu": -1, "metric": "", "value": None}
    for value in line.get("values") or [nothing]:
        number = value["value"]
        yield {**head, "uuid": str(value["uuid"]), "gpu": int(value["gpu"]),
               "metric": str(value["metric"]),
               "value": None if number is None else float(number)}  # fmt: skip


def read(history: Path) -> list[dict[str, Any]]:
    """Return every row of the history, oldest visit first."""
    _, parquet = _parquet()
    found: list[dict[str, Any]] = []
    for path in files_in(history, "visits-*.parquet"):
        found += parquet.read_table(io.BytesIO(read_bytes(path))).to_pylist()
    return sorted(found, key=lambda row: row["end"])


def _parquet() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise CommandError("the history is Parquet: `pip install pyarrow`") from None
