"""The map of GPUs and criteria, and above MAX_GPUS GPUs that of nodes by rack (login side).

A cell is the margin to the limit in per cent. No run says which nodes share a rack: of a large run
a line has RACK nodes that follow each other by name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fixtures.wording import margin_text
from reports.facts.areas import WORST_FIRST
from reports.facts.rows import outcome_text
from reports.plots.charts import DeviceValues, limit_value

MAX_GPUS = 64
"""Most GPUs in the map of GPUs and criteria."""
MAX_COLUMNS = 14
"""Most criteria in it."""
RACK = 32
"""Nodes in a line of the map by rack."""


@dataclass(frozen=True)
class HeatCell:
    """The margin of one GPU to the limit of one criterion."""

    text: str
    style: str
    """bad, near (within 3 %), ok, good (10 % and more)."""


@dataclass(frozen=True)
class HeatMap:
    """Rows by GPU, columns by criterion."""

    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[HeatCell | None]]]


@dataclass(frozen=True)
class Rack:
    """Nodes that follow each other by name."""

    title: str
    cells: Sequence[tuple[str, str]]
    """(node, the most urgent outcome of its rows, in lower case)."""
    text: str


def heat_map(values: DeviceValues, criteria: Sequence[Mapping[str, Any]]) -> HeatMap | None:
    """Return the map; None where no criterion has a value and a limit for each of several GPUs."""
    limits: dict[tuple[str, str], tuple[float, bool]] = {}
    for v in criteria:
        if (limit := limit_value(v)) is not None and limit > 0:
            at = str(v["criterion"]), str(v["subject"])
            limits[at] = limit, str(v["limit"]).startswith(">")
    cells: dict[str, dict[str, HeatCell]] = {}
    columns: list[str] = []
    for key, found in values.by_criterion.items():
        for name, value in found:
            node, _, gpu = name.rpartition(" ")
            if gpu.startswith("gpu") and (key, node) in limits:
                limit, low_is_bad = limits[key, node]
                margin = value / limit - 1 if low_is_bad else 1 - value / limit
                cells.setdefault(name, {})[key] = _cell(margin)
                columns += [] if key in columns else [key]
    if not 1 < len(cells) <= MAX_GPUS:
        return None
    columns = columns[:MAX_COLUMNS]
    names = sorted(cells, key=_natural)
    return HeatMap(columns, [(name, [cells[name].get(key) for key in columns]) for name in names])


def _cell(margin: float) -> HeatCell:
    style = "bad" if margin < 0 else "near" if margin < 0.03 else "ok" if margin < 0.1 else "good"
    return HeatCell(margin_text(margin, 0).removesuffix(" the limit"), style)


def racks(criteria: Sequence[Mapping[str, Any]], nodes: Sequence[str]) -> list[Rack]:
    """Return the map of nodes by rack."""
    ranks = {name: k for k, name in enumerate(WORST_FIRST)}
    worst: dict[str, str] = {}
    for v in criteria:
        node, outcome = str(v["subject"]), str(v["outcome"])
        if node not in worst or ranks[outcome] < ranks[worst[node]]:
            worst[node] = outcome
    ordered = sorted(nodes, key=_natural)
    found = []
    for k in range(0, len(ordered), RACK):
        members = ordered[k : k + RACK]
        cells = [(node, worst.get(node, "NOT_MEASURED")) for node in members]
        counted = Counter(outcome for _, outcome in cells)
        words = {"PASS": "passed", "FAIL": "failed"}
        text = ", ".join(
            f"{counted[name]} {words.get(name, outcome_text(name).lower())}"
            for name in WORST_FIRST
            if counted[name]
        )
        title = f"{members[0]} to {members[-1]}" if len(members) > 1 else members[0]
        found.append(Rack(title, [(node, outcome.lower()) for node, outcome in cells], text))
    return found


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that puts gpu9 before gpu10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]
