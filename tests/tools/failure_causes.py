"""The tables of published failures in docs/failure-modes.md, made from docs/failure-causes.yaml.

python -m tests.tools.failure_causes           what is wrong with the file, and the coverage
python -m tests.tools.failure_causes --write   write the tables anew

Every criterion that is said to see a cause has a drill that provokes it, by name.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

import yaml
from pydantic import Field, PositiveInt, TypeAdapter, model_validator

from fixtures.paths import CHECKOUT
from fixtures.thresholds import loader
from fixtures.thresholds.strict_yaml import Strict
from tests.selftests import planted, training_faults
from tests.selftests.incidents import INCIDENTS
from tests.selftests.support import SHIPPED
from tests.tools import drills

FILE = CHECKOUT / "docs" / "failure-causes.yaml"
PAGE = CHECKOUT / "docs" / "failure-modes.md"
BEGIN = "## Published failures, and what sees them"
END = "## Jobs that are made to fail"
GOAL = 0.95
"""Share of the testable faults of Llama 3 whose cause or symptom a criterion sees."""

SEEN: Mapping[str, str] = {
    "cause": "cause seen",
    "symptom": "symptom seen",
    "burn-in": "burn-in only",
    "root": "not without root",
    "no": "not covered",
    "outside": "software or maintenance",
}
COVERED = ("cause", "symptom")


class Cause(Strict):
    """One cause of failure, or one check of another system."""

    cause: str
    count: PositiveInt | None = None
    seen: Literal["cause", "symptom", "burn-in", "root", "no", "outside"]
    by: dict[str, str] = Field(default_factory=dict)
    waits: list[str] = Field(default_factory=list)
    note: str = ""

    @model_validator(mode="after")
    def _claims_have_criteria(self) -> Cause:
        if (self.seen in (*COVERED, "burn-in")) != bool(self.by):
            raise ValueError(f"{self.cause}: seen: {self.seen}, with {len(self.by)} criteria")
        return self


class Published(Strict):
    """A published list."""

    title: str
    source: str
    causes: Annotated[list[Cause], Field(min_length=1)]


@dataclass(frozen=True)
class Coverage:
    """Faults of a list by how they are seen."""

    testable: int
    covered: int

    @property
    def share(self) -> float:
        return self.covered / self.testable


def read(text: str | None = None) -> dict[str, Published]:
    """Return the lists; pydantic's ValidationError for a file that is not as it should be."""
    data = yaml.safe_load(FILE.read_text(encoding="utf-8") if text is None else text)
    return TypeAdapter(dict[str, Published]).validate_python(data)


def coverage(published: Published) -> Coverage:
    """Return how many faults of a list are seen; without counts each cause is one."""
    weighed = [(c, c.count or 1) for c in published.causes if c.seen != "outside"]
    return Coverage(
        testable=sum(n for _, n in weighed),
        covered=sum(n for c, n in weighed if c.seen in COVERED),
    )


@cache
def known_drills() -> frozenset[tuple[str, str]]:
    """Return (criterion, drill) of every drill: faults, training faults, records."""
    criteria = loader.load(SHIPPED).criteria
    found = {(k, planted.WHERE) for k, c in criteria.items() if not planted.never_judged(c)}
    found |= {(k, name) for name, keys in training_faults.RED.items() for k in keys}
    for _, faults in drills.fault_lists():
        for fault in faults:
            found |= {(key, fault.name) for key in (fault.criterion, *fault.also)}
    return frozenset(found)


def wrong(lists: Mapping[str, Published]) -> Iterator[str]:
    """Yield each claim that no criterion or no drill stands behind."""
    criteria = loader.load(SHIPPED).criteria
    for name, published in lists.items():
        for cause in published.causes:
            for key, drill in cause.by.items():
                if key not in criteria:
                    yield f"{name}: {cause.cause}: no criterion {key}"
                elif (key, drill) not in known_drills():
                    yield f"{name}: {cause.cause}: no drill {drill!r} of {key}"


def tables(lists: Mapping[str, Published]) -> str:
    """Return the section of the page."""
    first = lists["llama3"]
    total = coverage(first)
    outside = sum(c.count or 0 for c in first.causes if c.seen == "outside")
    parts = [
        BEGIN,
        "Made from [failure-causes.yaml](failure-causes.yaml) by `python -m tests.tools."
        "failure_causes --write`. A criterion stands here only with a drill that provokes it: a "
        "fault put in below the workload, or one planted `in a record`. *Cause seen* says that a "
        "criterion measures the cause itself, *symptom seen* that it shows in what is measured. An "
        "acceptance run sees what is there while it runs: a fault that comes once in months needs "
        "hours of [burn-in](compute.md#burn-in), and their strength is on the certificate.",
        f"Of the {sum(c.count or 0 for c in first.causes)} interruptions of the first list "
        f"{outside} are software and maintenance. Of the other {total.testable} the cause or the "
        f"symptom of {total.covered} has a criterion: **{total.share:.1%}**.",
    ]
    for published in lists.values():
        found = coverage(published)
        parts.append(f"### {published.title}")
        what = "faults" if published.causes[0].count else "entries"
        parts.append(
            f"Source: {published.source}. Covered by cause or symptom: {found.covered} of "
            f"{found.testable} {what}."
        )
        rows = [
            "| cause or check | count | here | criteria and their drills |",
            "|---|---|---|---|",
        ]
        for cause in published.causes:
            by = "; ".join(f"`{key}` ({drill})" for key, drill in cause.by.items())
            waits = f"not yet: {', '.join(f'`{key}`' for key in cause.waits)}" * bool(cause.waits)
            cells = (
                cause.cause, cause.count or "", SEEN[cause.seen],
                ". ".join(filter(None, (by, waits, cause.note))),
            )  # fmt: skip
            rows.append(f"| {' | '.join(str(c).replace('|', '/') for c in cells)} |")
        parts.append("\n".join(rows))
    parts += [
        "## Incidents of 2026",
        f"{len(INCIDENTS)} incidents that others described this year, each with the drill that "
        "shows what the suite says of it (`tests/selftests/incidents.py`; those in a record are "
        "planted in a recorded run, as large as they were where the thread says it).",
    ]
    rows = ["| thread | what happened | drill | what the suite says |", "|---|---|---|---|"]
    for incident in INCIDENTS:
        cells = (", ".join(incident.threads), incident.what, incident.drill, incident.drill.says)
        rows.append(f"| {' | '.join(map(str, cells))} |")
    parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n\n"


def page(lists: Mapping[str, Published]) -> str:
    """Return the whole page with the section of now."""
    text = PAGE.read_text(encoding="utf-8")
    end = text.index(END)
    begin = text.index(BEGIN) if BEGIN in text else end
    return text[:begin] + tables(lists) + text[end:]


def main(argv: Sequence[str] | None = None) -> int:
    """Write the tables; 1 where the page is out of date, or a claim has nothing behind it."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.failure_causes")
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args(argv).write
    lists = read()
    problems = list(wrong(lists))
    if write and not problems:
        PAGE.write_text(page(lists), encoding="utf-8")
    criteria = loader.load(SHIPPED).criteria
    for name, published in lists.items():
        found = coverage(published)
        print(f"{name}: {found.covered} of {found.testable}, {found.share:.1%}")
        for cause in published.causes:
            if there := [key for key in cause.waits if key in criteria]:
                print(f"  {cause.cause}: move {', '.join(there)} from `waits` to `by`")
    print("\n".join(problems), end="\n" if problems else "")
    return int(bool(problems) or PAGE.read_text(encoding="utf-8") != page(lists))


if __name__ == "__main__":
    sys.exit(main())
