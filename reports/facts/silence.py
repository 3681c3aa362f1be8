"""Who of the expected is in no visit any more, and since when: absence is news. Pure.

Expected is what the certificate has: every node, every GPU, every figure of a GPU. A silent
node is not accused: it may be at work, or away; but it is not known to be healthy.
"""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fixtures.records.fields import LAST_DAY_S
from fixtures.wording import abbreviated, counted

LONGEST_S = 7 * 86400.0
"""A node that was not visited for longer is silent, whatever the others are."""
VISITS_OF_OTHERS = 10
"""So often the others are visited while an expected node is at work."""
VISITS_AT_FIRST = 3
"""So often the others are visited before a node that never was is silent."""
FAILED_VISITS = 3
"""Failures in a row after which a node is silent."""
AHEAD_S = 300.0
"""A visit whose end lies further in the future was dated by a clock that was wrong."""
DONE, FAILED = "done", "failed"

Row = Mapping[str, Any]
Stream = tuple[str, str]
"""(UUID, metric)"""
Place = tuple[str, int]
"""Node and index of a GPU."""


@dataclass(frozen=True)
class Silence:
    """What is expected and was not seen."""

    lines: list[str] = field(default_factory=list)
    """One for each node or GPU that is silent."""
    renamed: list[str] = field(default_factory=list)
    """One for each node whose GPUs are all visited under another name: it is not silent."""


def silence(
    rows: Sequence[Row], nodes: Sequence[str], expected: Mapping[Stream, Place], now: float
) -> Silence:
    """Return who is silent of the nodes and figures of a certificate; `rows`: of every visit."""
    seen: dict[Stream, tuple[float, str]] = {}
    done: dict[str, set[float]] = {}
    failed: dict[str, set[float]] = {}
    for row in rows:
        if row["value"] is not None:
            stream = row["uuid"], row["metric"]
            seen[stream] = max(seen.get(stream, (0.0, "")), (float(row["end"]), row["node"]))
        of_outcome = {DONE: done, FAILED: failed}.get(row["outcome"])
        if of_outcome is not None:
            of_outcome.setdefault(row["node"], set()).add(float(row["end"]))
    found = Silence()
    on_node: dict[str, dict[Stream, int]] = {node: {} for node in nodes}
    for stream, (node, gpu) in expected.items():
        on_node.setdefault(node, {})[stream] = gpu
    began = min((float(row["start"]) for row in rows), default=now)
    for node, streams in on_node.items():
        names = {seen[stream][1] if stream in seen else node for stream in streams} or {node}
        if node not in done and len(names) == 1 and node not in names:
            found.renamed.append(f"{node}: its GPUs are visited as {names.pop()}: it was renamed")
            continue
        visits = done.get(node, set())
        others = [ends for other, ends in done.items() if other != node]
        last = max(visits, default=None)
        if why := _why(last, others, failed.get(node, set()), began, now):
            found.lines.append(f"{node}: {why}")
            continue
        found.lines.extend(_silent_gpus(node, streams, seen, last))
    return found


def until(rows: Sequence[Row], now: float) -> tuple[list[Row], list[str]]:
    """Return the visits that can have been by now, and a line for each node that has others.

    A visit that is dated in the future does not show that its node was visited lately, and the
    others have not been silent since then.
    """
    past: list[Row] = []
    ahead: dict[str, dict[float, float]] = {}
    for row in rows:
        if max(row["start"], row["end"]) <= now + AHEAD_S:
            past.append(row)
        else:
            ahead.setdefault(row["node"], {})[float(row["start"])] = float(row["end"])
    return past, [
        f"{node}: {counted(len(visits), 'visit')} dated in the future, up to "
        f"{date_of(max(visits.values()))}, not counted: the clock of the patrol's host was wrong, "
        "or its log was changed"
        for node, visits in ahead.items()
    ]


def _why(
    last: float | None, others: Sequence[set[float]], failed: set[float], began: float, now: float
) -> str:
    """Return why a node is silent, "" if it is not. `last`: end of its last visit that was done."""
    since = began if last is None else last
    in_vain = sum(end > since for end in failed)
    of_others = statistics.median([sum(e > since for e in ends) for ends in others] or [0])
    what = "never visited" if last is None else f"in no visit since {date_of(last)}"
    if in_vain >= FAILED_VISITS:
        return f"{what}: {counted(in_vain, 'visit')} failed"
    if of_others >= (VISITS_AT_FIRST if last is None else VISITS_OF_OTHERS):
        return f"{what}: the others were visited {of_others:.0f} times meanwhile"
    if now - since > LONGEST_S or (last is None and not others):
        return f"{what}, {(now - since) / 86400:.0f} days of patrol ago" if last else what
    return ""


def _silent_gpus(
    node: str, streams: Mapping[Stream, int], seen: Mapping[Stream, tuple[float, str]],
    last: float | None,
) -> Iterable[str]:  # fmt: skip
    """Yield the GPUs, or figures of one, that the last visit of their node does not have."""
    if last is None:
        return
    missing: dict[tuple[str, int], list[Stream]] = {}
    for stream, gpu in streams.items():
        when, where = seen.get(stream, (0.0, node))
        if where == node and when < last:
            missing.setdefault((stream[0], gpu), []).append(stream)
    for (uuid, gpu), absent in missing.items():
        whole = len(absent) == sum(stream[0] == uuid for stream in streams)
        what = "" if whole else f" {abbreviated([metric for _, metric in absent])}"
        times = [seen[stream][0] for stream in absent if stream in seen]
        since = f"in no visit since {date_of(max(times))}" if times else "in no visit"
        yield f"{node} gpu{gpu} {uuid}{what}: {since}"


def date_of(time: float) -> str:
    """Return a time as people read it."""
    day = min(max(time, 0.0), LAST_DAY_S)  # a log may have centuries without a calendar
    return f"{datetime.datetime.fromtimestamp(day, datetime.UTC):%Y-%m-%d %H:%M} UTC"
