"""Where the limit of a row is from: the sources in limits.csv of the run (login side)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fixtures.records.foreign_files import read_text
from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds.overview import LimitRow, read_csv

_FRACTION = re.compile(r"([<>=]+) \S+ \((\S+ of ceiling)")


class LimitSources:
    """The limits of a run with their sources, to be looked up by criterion and limit."""

    def __init__(self, rows: Sequence[LimitRow]) -> None:
        self._rows: dict[str, list[LimitRow]] = {}
        for row in rows:
            if row.limit and row.source:
                self._rows.setdefault(row.criterion, []).append(row)

    @staticmethod
    def of(directory: RunDirectory) -> LimitSources:
        """Read limits.csv; without the file no source is known."""
        if not directory.limits.exists():
            return LimitSources([])
        return LimitSources(read_csv(read_text(directory.limits)))

    def of_limit(self, criterion: str, limit: str) -> str:
        """Return the source of the limit of a row; "" where it is not known for certain."""
        stem, _, point = criterion.rpartition(".")
        rows = self._rows.get(criterion) or self._rows.get(stem) or []
        fraction = _FRACTION.match(limit)
        texts = {limit.partition(" (")[0], f"{fraction[1]} {fraction[2]}" if fraction else ""}
        same = [row for row in rows if row.limit.partition(" (")[0] in texts]
        of_point = [row for row in same if point in row.when.replace(",", " ").split()]
        sources = {row.source for row in of_point or same or rows}
        return sources.pop() if len(sources) == 1 else ""
