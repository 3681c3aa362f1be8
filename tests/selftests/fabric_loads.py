"""`fabric_load` of verdict.json as the tier `fabric` leaves it, made up: for tests of pages."""

from __future__ import annotations

import random
from typing import Any


def fabric_load(
    leaves: int, *, rails: int = 1, never: int = 0, name: str = "leaf", origin: str = "order"
) -> dict[str, Any]:
    """Return that of so many leaves of each rail, in which the first `never` pairs were not driven.

    Of leaves of several rails only pairs of the same rail are cells.
    """
    names = [f"{name} {k}" if rails == 1 else f"{name} {k} rail {rail}"
             for k in range(leaves) for rail in range(rails)]  # fmt: skip
    rail_of = [rail for _ in range(leaves) for rail in range(rails)]
    rng, count = random.Random(0), leaves * rails
    matrix: list[list[float | None]] = [
        [
            float(f"{rng.uniform(0.15, 0.25):.4g}") if a != b and rail_of[a] == rail_of[b] else None
            for b in range(count)
        ]
        for a in range(count)
    ]
    cells = [(a, b) for a in range(count) for b in range(count) if matrix[a][b] is not None]
    never = min(never, len(cells))
    for a, b in cells[:never]:
        matrix[a][b] = 0.0
    missing = [[names[a], names[b], rail_of[a], "out"] for a, b in cells[:never]]
    covered = len(cells) - never
    return {
        "hours": 2.0, "slices": 12, "cells": len(cells), "covered": covered,
        "missing": missing[:50], "leaves_from": origin,
        "smallest": {"port": 2.1, "port_ten_minutes": 6.4, "uplinks": 4.5},
        "sentence": f"Fabric under load for 2 h: {covered} of {len(cells)} leaf pairs x rails x "
        "directions were driven to at least 0.9 of the expected load, each for 12 min. Found with "
        "95 %: a port that is slower for good by 2.1 %, for ten minutes by 6.4 %, and a leaf that "
        "lost 4.5 % of its uplinks",
        "not_covered": f"Not covered: {never} of {len(cells)}" if never else "",
        "matrix": matrix, "leaves": names, "leaf_rails": rail_of,
        "findings": [f"{names[0]}: its uplinks carry 12 % less since 14:02"] if never else [],
    }  # fmt: skip
