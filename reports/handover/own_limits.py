"""The limits of a fleet in place of published figures, a file of calibration (login side)."""

from __future__ import annotations

from pathlib import Path

from fixtures.records.files import replace_file
from fixtures.thresholds.overlay import base_of
from fixtures.thresholds.published import REFUSED


def write(made: str, base: Path, file: Path) -> None:
    """Write such a file where it was asked for, with the path to its base from there."""
    relative = base_of(base, file.parent)
    lines = [
        f"base: {relative}" if line.startswith("base: ") else line for line in made.splitlines()
    ]
    replace_file(file, ("\n".join([*lines, ""]).encode(),), durable=False)


def remarks(made: str) -> list[str]:
    """Return what such a file says first: its runs, and both figures of every limit."""
    head = [line for line in made.splitlines() if line.startswith("# ")]
    return [line.removeprefix("# ") for line in head[1:]]


def contradicts(made: str) -> bool:
    """Whether such a file says that a published figure contradicts what was measured."""
    return any(line.startswith(REFUSED) for line in remarks(made))
