"""The smallest defect that each criterion of a run finds with 95 %, as text for the certificate."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from fixtures.wording import counted, digits, quantity


def lines(verdict: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Yield criterion, defect and its basis; none for runs of earlier versions."""
    for row in verdict.get("power") or ():
        yield {
            "criterion": str(row["criterion"]), "finds": _finds(row), "from": _from(row),
        }  # fmt: skip


def sentence(verdict: Mapping[str, Any]) -> str:
    """Return what is found of one device, over all rates; "" where no rate says."""
    rows = verdict.get("power") or ()
    found = sorted(100 * r["finds"] for r in rows if r["kind"] == "rate" and r["finds"] is not None)
    if not found:
        return ""
    ends = "" if len(found) == 1 else f" ({digits(found[0])} to {quantity(found[-1], '%')})"
    return (
        f"One device whose rate is lower for good by {quantity(statistics.median(found), '%')} is "
        f"found with 95 %: the median of {counted(len(found), 'rate')}{ends}. A smaller defect may "
        "pass; annex 6 has each."
    )


def _finds(row: Mapping[str, Any]) -> str:
    share = row["finds"]
    if share is None:
        return "none" if row["kind"] == "rate" else "none up to 64 times the value"
    percent = quantity(100 * share, "%")
    return {
        "rate": f"a value that falls by {percent}",
        "time": f"a time that grows by {percent} of it"
        if percent.endswith("x")
        else f"a time that grows by {percent}",
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
