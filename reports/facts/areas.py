"""The area of each criterion, and the outcomes of each node in each area (login side)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fixtures.thresholds.definitions import OTHER, shipped

WHOLE_CLUSTER = "whole cluster"

WORST_FIRST = ("FAIL", "NOT_MEASURED", "WAIVED", "PASS", "RECORDED", "NOT_APPLICABLE")
"""Outcomes, the most urgent first."""


def areas(criteria: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the title of each criterion's area."""
    definitions = shipped()
    return {str(v["criterion"]): definitions.title_of(str(v["criterion"])) for v in criteria}


def ordered(titles: Iterable[str]) -> list[str]:
    """Return these titles of areas in the order in which pages show them."""
    present = set(titles)
    return [title for title in (*shipped().titles.values(), OTHER) if title in present]


@dataclass
class Cell:
    """The outcomes of one node in one area."""

    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def worst(self) -> str:
        """The most urgent outcome, "" where there is none."""
        return next((o for o in WORST_FIRST if self.outcomes[o]), "")

    @property
    def text(self) -> str:
        """The text of the cell, so that it does not rely on its colour alone."""
        if not self.outcomes:
            return ""
        failed, unmeasured = self.outcomes["FAIL"], self.outcomes["NOT_MEASURED"]
        passed = self.outcomes["PASS"] + self.outcomes["WAIVED"]
        if failed:
            return f"{failed} failed"
        if unmeasured:
            return f"{unmeasured} not measured"
        if passed:
            return f"{passed} of {passed}"
        return f"{self.outcomes['RECORDED']} recorded" if self.outcomes["RECORDED"] else "n/a"


@dataclass
class Coverage:
    """The table of subjects (rows) and areas (columns)."""

    columns: list[str]
    rows: dict[str, dict[str, Cell]]
    """Cells by subject, then by area."""

    @property
    def not_passed(self) -> list[str]:
        """Subjects with a criterion that failed or was not measured."""
        return [
            name
            for name, cells in self.rows.items()
            if any(cell.worst in ("FAIL", "NOT_MEASURED") for cell in cells.values())
        ]


def coverage(criteria: list[Mapping[str, Any]], nodes: Iterable[str]) -> Coverage:
    """Return the coverage: nodes in the order of `nodes`, then the whole cluster.

    Criteria on several nodes (a pair, the cluster) count for the whole cluster.
    """
    area_of_criterion = areas(criteria)
    rows: dict[str, dict[str, Cell]] = {str(node): {} for node in nodes}
    for v in criteria:
        subject = str(v["subject"])
        name = WHOLE_CLUSTER if subject == "cluster" or subject not in rows else subject
        cell = rows.setdefault(name, {}).setdefault(area_of_criterion[str(v["criterion"])], Cell())
        cell.outcomes[str(v["outcome"])] += 1
    columns = ordered(area_of_criterion.values())
    return Coverage(columns, {name: cells for name, cells in rows.items() if cells})
