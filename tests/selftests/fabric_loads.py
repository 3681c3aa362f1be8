"""`fabric_load` of verdict.json as the tier `fabric` leaves it, made up: for tests of pages."""

from __future__ import annotations

import random
from typing import Any


def fabric_load(
    leaves: int, *, rails: int = 1, never: int = 0, name: str = "leaf", origin: str = "order"
) -> dict[str, Any]:
    """Return that of so many leaves, of which the first `never` pairs were not driven on rail 0."""
    names, rng = [f"{name} {k}" for k in range(leaves)], random.Random(0)
    pairs = [(a, b) for a in range(leaves) for b in range(leaves) if a != b]
    gone = pairs[:never]
    matrix: list[list[float | None]] = [[None] * leaves for _ in names]
    for a, b in pairs:
        matrix[a][b] = 0.0 if (a, b) in gone else float(f"{rng.uniform(0.15, 0.25):.4g}")
    cells, without = rails * len(pairs), len(gone)
    ways = f"{cells - without} of {cells} ways from leaf to leaf on a rail"
    return {
        "hours": 2.0, "slices": 12, "cells": cells, "covered": cells - without,
        "missing": [[names[a], names[b], 0, "out"] for a, b in gone[:50]], "leaves_from": origin,
        "smallest": {"port": 2.1, "port_ten_minutes": 6.4, "uplinks": 4.5},
        "sentence": f"loaded for 2 h in 12 slices: {ways} carried at least 0.9 of the expected "
        "load, each for at least 9 min; a port slower by 2.1 % is found with 95 %; a port slower "
        "for ten minutes by 6.4 % is found with 95 %; a leaf that carries less by 4.5 % is found "
        "with 95 %",
        "not_covered": f"{without} of {cells} not driven" if without else "",
        "matrix": matrix, "leaves": names,
        "findings": [f"{names[0]}: its uplinks carry 12 % less since 14:02"] if never else [],
    }  # fmt: skip
