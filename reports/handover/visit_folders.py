"""What the folder of a visit says beside the log's line of it: both were left by the same visit.

A visit writes what it measured into STATE/visits/START-NODE, and its round a line into the log. So
a line is only what the log says of a visit: where the folder says otherwise, the lower value
counts, and it is named. A visit that has a folder and no line counts by its folder. Folders may be
cleared away, the oldest first: then the lines stand for themselves.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fixtures.patrol.share import VISIT_S
from fixtures.patrol.visits import BEGUN, DONE, GAVE_WAY, METRICS, STOPPED, values_of
from fixtures.records.foreign_folders import folders_in
from reports.facts.silence import Row, date_of

LONGEST_VISIT_S = 3600.0
"""A visit takes a minute; its end is a look at the clock of the owner of the round."""
STILL_OPEN_S = 900.0
"""So long a round may still write the line of a visit that has measured all."""
_FOLDER = re.compile(r"(\d{1,12})-(.+)")
_BROKEN = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
Values = dict[tuple[str, str], tuple[int, float]]
"""(UUID, metric) -> the GPU's place and its value."""


@dataclass
class Compared:
    """Lines as they count."""

    lines: list[Row] = field(default_factory=list)
    added: int = 0
    """How many of the lines are of visits that the log does not have."""
    differs: list[tuple[str, str]] = field(default_factory=list)
    """Node, and what is not as its visits left it."""

    def add(self, line: Row | None, node: str, start: float, why: str) -> None:
        if line is not None:
            self.lines.append(line)
        if why:
            self.differs.append((node, f"{node}: the visit of {date_of(start)} {why}"))


def key_of(node: Any, start: Any) -> str:
    """Return the name of the folder of a visit."""
    return f"{float(start):.0f}-{node}"


def compared(
    new: Sequence[Row], log: Sequence[Row], folder: Path, taken: Container[str]
) -> Compared:
    """Return lines of a log compared with the folders of their visits.

    `log`: all of its lines, `taken`: the visits that were taken in before.
    """
    folders = {p.name: p for p in folders_in(folder) if _FOLDER.fullmatch(p.name)}
    oldest = min((float(name.partition("-")[0]) for name in folders), default=math.inf)
    whole = bool(log) and log[0].get("outcome") == BEGUN
    begun = {_begun(line) for line in log if line.get("outcome") == BEGUN} if whole else None
    found, seen = Compared(), set[str]()
    for line in new:
        if line.get("outcome") == BEGUN:
            continue
        try:
            node, start, end = str(line["node"]), float(line["start"]), float(line["end"])
            key, stated = key_of(node, start), _values(line.get("values") or [])
        except _BROKEN:
            found.differs.append((str(line.get("node")), "visits.jsonl has a line of no visit"))
            continue
        if key in seen or key in taken:
            found.add(None, node, start, "is there twice: it counts once")
            continue
        seen.add(key)
        if not start <= end <= start + LONGEST_VISIT_S:
            found.add(None, node, start, "ends when it cannot have ended")
            line = {**line, "end": start + VISIT_S}
        own = _values_of(folders[key]) if key in folders else {}
        counts, why = _as_it_counts(line, stated, own)
        if line["outcome"] == DONE and not own:
            if key not in folders and start >= oldest:
                counts, why = None, "has no folder, though older ones have: it does not count"
            elif begun is not None and _begun(line) not in begun:
                counts, why = None, "was never begun: it does not count"
        found.add(counts, node, start, why)
    for name, path in folders.items():
        if name in seen or name in taken or not _is_whole(own := _values_of(path)):
            continue
        start, node = float(name.partition("-")[0]), name.partition("-")[2]
        if 0 <= time.time() - start < STILL_OPEN_S:
            continue
        line = {"node": node, "job": "", "start": start, "end": start + VISIT_S, "outcome": DONE}
        lines = [x for x in log if str(x.get("node")) == node and _is_near(x.get("start"), start)]
        # A round that was killed leaves a line that says that the visit began, and no other.
        why = "" if lines else "is not in visits.jsonl, and its folder has what it measured"
        found.add({**line, "values": _as_values(own)}, node, start, why)
        found.added += 1
    return found


def _as_it_counts(line: Row, stated: Values, own: Values) -> tuple[Row | None, str]:
    """Return a line by what its folder says too, and what differs."""
    if not own:
        return line, ""
    if line["outcome"] == DONE:
        if _same(stated, own):
            return line, ""
        lower = {
            key: min((v for v in (stated.get(key), own.get(key)) if v), key=lambda v: v[1])
            for key in {**stated, **own}
        }
        return {**line, "values": _as_values(lower)}, "is not as its folder says: the lower counts"
    if not _is_whole(own):
        return line, ""
    # It was over when it was ended to give way: it measured all the same.
    why = "" if line["outcome"] in (GAVE_WAY, STOPPED) else "measured, and the log says otherwise"
    return {**line, "outcome": DONE, "values": _as_values(own)}, why


def _begun(line: Row) -> tuple[str, str, str]:
    return str(line.get("node")), str(line.get("job")), str(line.get("start"))


def _is_near(start: Any, other: float) -> bool:
    return isinstance(start, (int, float)) and abs(start - other) <= 1


def _values(values: Sequence[Mapping[str, Any]]) -> Values:
    return {
        (str(v["uuid"]), str(v["metric"])): (int(v["gpu"]), float(v["value"]))
        for v in values if v["value"] is not None
    }  # fmt: skip


def _values_of(folder: Path) -> Values:
    try:
        return _values(values_of(folder / "run"))
    except _BROKEN:
        return {}


def _as_values(values: Values) -> list[dict[str, Any]]:
    return [{"uuid": uuid, "gpu": gpu, "metric": metric, "value": value}
            for (uuid, metric), (gpu, value) in values.items()]  # fmt: skip


def _same(one: Values, other: Values) -> bool:
    return one.keys() == other.keys() and all(
        gpu == other[key][0] and math.isclose(value, other[key][1], rel_tol=1e-9)
        for key, (gpu, value) in one.items()
    )


def _is_whole(values: Values) -> bool:
    """Whether a visit measured all of what it was to measure on each of its GPUs."""
    metrics: dict[str, set[str]] = {}
    for uuid, metric in values:
        metrics.setdefault(uuid, set()).add(metric.partition(".")[2])
    return bool(metrics) and all({*METRICS} <= of for of in metrics.values())
