"""What a verdict rests on, in a line each: whose order, from when to when, which devices.

`verify` prints them, so that a reader sees at once that another order, another year or other
devices were judged than those in question (login side).
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fixtures.errors import ConfigError
from fixtures.paths import THRESHOLDS
from fixtures.records.files import RecordError, read_json
from fixtures.records.foreign_files import read_bytes
from fixtures.records.foreign_folders import files_in
from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds import loader
from fixtures.thresholds.order import MADE_UP, order_of, origin_of
from fixtures.wording import counted

_TIMES = re.compile(rb'"(?:start|end)"\s*:\s*(\d{1,12}(?:\.\d{1,9})?)\s*[,}]')
"""When a rank began and ended; the samples' own times have other names."""
_GPU = re.compile(rb'"uuid"\s*:\s*"((?:GPU|MIG)-[^"\\]{1,80})"')
INVENTORY = "inventory@"


def lines(directory: RunDirectory, run: Mapping[str, Any], file: Path | None) -> list[str]:
    """Return the lines on a run; `file`: its limits, None for those shipped."""
    layers = [f"limits  {line}" for line in taken_away_lines(directory)]
    return [f"order  {order_line(run, file)}", *_measured_lines(directory, run), *layers]


def taken_away_lines(directory: RunDirectory) -> list[str]:
    """Return what the verdict says of criteria that a layer of the limits has recorded."""
    with suppress(OSError, RecordError, AttributeError):
        lines = (read_json(directory.verdict).get("basis") or {}).get("taken_away")
        return [str(line) for line in lines] if isinstance(lines, list) else []
    return []


def order_line(run: Mapping[str, Any], file: Path | None) -> str:
    """Return whose order was judged: the file with its SHA-256, or why there is none in a file."""
    path = file or THRESHOLDS
    try:
        limits = loader.load(path)
        order = order_of(limits, run)
    except (ConfigError, OSError) as error:
        return f"not known: {error}"
    if order.of_file:
        return f"that of {path}, SHA-256 {limits.sha256}"
    if order.stated is None:
        return "none"
    if origin_of(run) in MADE_UP:
        return "that of the options, of virtual nodes"
    return f"that of run.json alone: {path.name} has no `cluster:`"


def _measured_lines(directory: RunDirectory, run: Mapping[str, Any]) -> Iterator[str]:
    """Yield the span of times and the devices, by all records; each is read once, by its bytes."""
    least, most = float("inf"), 0.0
    of_inventory: set[bytes] = set()
    of_all: set[bytes] = set()
    nodes: set[str] = set()
    for path in _records(directory):
        with suppress(OSError, RecordError):
            data = read_bytes(path)
            if times := [float(t) for t in _TIMES.findall(data)]:
                least, most = min(least, *times), max(most, *times)
            found = {*_GPU.findall(data)}
            of_all |= found
            if path.name.startswith(INVENTORY):
                of_inventory |= found
                nodes.add(
                    path.name.removeprefix(INVENTORY).removesuffix(".json").partition(".attempt")[0]
                )
    began, ended = run.get("created") or "not stated", run.get("ended") or "not stated"
    span = f"{_utc(least)} to {_utc(most)}" if most else "none"
    yield f"times  run from {began} to {ended}; measured from {span}"
    gpus = of_inventory or of_all
    source = "the inventory" if of_inventory else "the records"
    where = f" in {counted(len(nodes), 'node')}" if nodes else ""
    yield f"devices  {counted(len(gpus), 'GPU')} by {source}{where}"


def _records(directory: RunDirectory) -> list[Path]:
    try:
        return sorted(files_in(directory.records, "*@*.json"))
    except (OSError, RecordError):
        return []


def _utc(time: float) -> str:
    with suppress(ValueError, OverflowError, OSError):
        return datetime.datetime.fromtimestamp(time, datetime.UTC).isoformat(timespec="seconds")
    return f"{time:g}"
