"""The smallest defect that each criterion of a run finds with 95 %, as text for the certificate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fixtures.wording import counted, digits


def lines(verdict: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Yield criterion, defect and its basis; none for runs of earlier versions."""
    for row in verdict.get("power") or ():
        yield {
            "criterion": str(row["criterion"]), "finds": _finds(row), "from": _from(row),
        }  # fmt: skip


def _finds(row: Mapping[str, Any]) -> str:
    share = row["finds"]
    if share is None:
        return "none" if row["kind"] == "rate" else "none up to 64 times the value"
    percent = f"{digits(100 * share)} %"
    return {
        "rate": f"a value that falls by {percent}",
        "time": f"a time that grows by {percent}",
        "repeated": f"a fault in {percent} of the repetitions",
    }[row["kind"]]


def _from(row: Mapping[str, Any]) -> str:
    if row["kind"] == "repeated":
        count = row["repetitions"]
        return f"{counted(count, 'repetition')}, none may be faulty"
    parts = [
        f"{counted(row['values'], 'value')}",
        f"below the {'limit' if row['by'] == 'limit' else 'other devices'} in "
        f"{counted(row['rounds'], 'round')}",
        f"{digits(100 * row['noise'])} % between rounds",
    ]
    if row["kind"] == "time":
        parts[1] = parts[1].replace("below", "above", 1)
    return ", ".join(parts)
