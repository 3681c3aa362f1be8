"""What the tier `fabric` proves, as people read it: `fabric_load` of verdict.json (login side).

Coverage and the smallest defect that is found are sentences of the verdict, which `verify` makes
again from the records. Here is what has to stand beside them: where the leaves are from, and that
a demonstration is about no cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fixtures.conclusion.run_verdict import demonstration_text

LEAVES_FROM = {
    "order": "Leaves: those of the order",
    "topology": "Leaves: those of Slurm's topology",
    "wiring": "Leaves: by the distance found in wiring; neither the order nor Slurm names them",
}
NOT_KNOWN = "Leaves not known: neither the order nor Slurm names them, and wiring found none"
DEFECTS = {
    "port": "a slower port", "port_ten_minutes": "a port slower for ten minutes",
    "uplinks": "a leaf that carries less",
}  # fmt: skip
WAYS = {"out": "this way", "both": "both ways"}
NOTHING = "The fabric was not loaded: no slice counts, so nothing is known of its ports and leaves."
MAX_FINDINGS = 20
"""Most findings that are listed beside the picture; the rows have all."""


def of(verdict: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what the tier left; None where it did not run, or no slice counts."""
    load: Mapping[str, Any] | None = verdict.get("fabric_load")
    return load


def sentences(verdict: Mapping[str, Any]) -> list[str]:
    """Return coverage with the smallest defect found, what is not found or covered, where the
    leaves are from and, of a demonstration, that it is one; [] where the tier was not planned."""
    load = of(verdict)
    if load is None:
        return [NOTHING] if "fabric_load" in verdict else []
    basis, without = verdict.get("basis") or {}, load["not_covered"]
    unseen = [name for key, name in DEFECTS.items() if load["smallest"].get(key) is None]
    given = [
        load["sentence"],
        f"Not found with 95 %, whatever its size: {', '.join(unseen)}" if unseen else "",
        f"Not covered: {without}" if without else "",
        LEAVES_FROM.get(load["leaves_from"], "" if without else NOT_KNOWN),
        demonstration_text(str(basis.get("origin"))) if basis.get("demonstration") else "",
    ]  # fmt: skip
    return [f"{text[0].upper()}{text[1:].rstrip('.')}." for text in map(str, given) if text]


def missing(load: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return (from leaf, to leaf, rail, direction) of what was never driven, as far as listed."""
    return [(str(a), str(b), str(rail), WAYS.get(way, str(way)))
            for a, b, rail, way in load["missing"]]  # fmt: skip


def not_listed(load: Mapping[str, Any]) -> int:
    """Return how many ways that were never driven are not listed."""
    listed = sum(2 if way == "both" else 1 for *_, way in load["missing"])
    return max(0, int(load["cells"] - load["covered"]) - listed)
