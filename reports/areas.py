"""What a criterion is about, and how far each area of each node was judged (login side)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

AREAS = {
    "A": "Inventory", "B": "Scheduler", "C": "Filesystem", "D": "Links", "E": "Health",
    "F": "Compute", "G": "Memory", "H": "Collectives", "I": "Training", "J": "Failures",
}  # fmt: skip
"""By the letter of the id under which the requirement stands."""
OTHER = "Other"
WHOLE = "whole cluster"

WORST_FIRST = ("FAIL", "NOT_MEASURED", "WAIVED", "PASS", "NOT_APPLICABLE")
"""Outcomes as a reader wants them."""


def areas(criteria: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Area of each criterion: of its id, else of its neighbours with the same first word."""
    ids = {str(v["criterion"]): str(v["id"]) for v in criteria}
    families: dict[str, Counter[str]] = {}
    for key, id_ in ids.items():
        if area := AREAS.get(id_[:1]):
            families.setdefault(key.partition(".")[0], Counter())[area] += 1

    def area_of(key: str) -> str:
        if found := AREAS.get(ids[key][:1]):
            return found
        family = families.get(key.partition(".")[0])
        return family.most_common(1)[0][0] if family else OTHER

    return {key: area_of(key) for key in ids}


@dataclass
class Cell:
    """One node in one area."""

    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def worst(self) -> str:
        return next((o for o in WORST_FIRST if self.outcomes[o]), "")

    @property
    def said(self) -> str:
        """What stands in the cell: not only a colour."""
        if not self.outcomes:
            return ""
        bad = self.outcomes["FAIL"], self.outcomes["NOT_MEASURED"]
        judged = sum(n for o, n in self.outcomes.items() if o != "NOT_APPLICABLE")
        if bad[0]:
            return f"{bad[0]} failed"
        if bad[1]:
            return f"{bad[1]} not measured"
        return f"{self.outcomes['PASS'] + self.outcomes['WAIVED']} of {judged}" if judged else "n/a"


@dataclass
class Coverage:
    """Subjects and areas, and what became of each."""

    columns: list[str]
    rows: dict[str, dict[str, Cell]]
    """By subject, then by area."""

    @property
    def not_whole(self) -> list[str]:
        """Subjects with anything failed or not measured."""
        return [
            name
            for name, cells in self.rows.items()
            if any(cell.worst in ("FAIL", "NOT_MEASURED") for cell in cells.values())
        ]


def coverage(criteria: list[Mapping[str, Any]], nodes: Iterable[str]) -> Coverage:
    """Nodes first, in the order of the cluster; what concerns several of them comes after."""
    known = areas(criteria)
    rows: dict[str, dict[str, Cell]] = {str(node): {} for node in nodes}
    for v in criteria:
        subject = str(v["subject"])
        name = WHOLE if subject == "cluster" or subject not in rows else subject
        cell = rows.setdefault(name, {}).setdefault(known[str(v["criterion"])], Cell())
        cell.outcomes[str(v["outcome"])] += 1
    used = set(known.values())
    columns = [a for a in (*AREAS.values(), OTHER) if a in used]
    return Coverage(columns, {name: cells for name, cells in rows.items() if cells})
