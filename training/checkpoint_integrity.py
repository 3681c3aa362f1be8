"""Checks of checkpoints against the sizes and hashes in their manifests, without torch."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from fixtures.records.files import VISIBLE_S, RecordError, read_json
from fixtures.wording import counted

MANIFEST = "manifest.json"
READ_BYTES = 1 << 24


def newest_intact(directory: Path) -> Path | None:
    """Return the newest intact checkpoint, skipping damaged ones; None if there is none."""
    for path in sorted(directory.glob("step-*"), reverse=True):
        if defect_of(path) is None:
            return path
    return None


def awaited_intact(directory: Path, step: int = 0, timeout_s: float = VISIBLE_S) -> Path | None:
    """Return the newest intact checkpoint, which other hosts wrote and this one may see late.

    Waits for one of this step or later; without one in time it is what newest_intact() returns.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        newest = newest_intact(directory)
        if newest is not None and step_of(newest) >= step:
            return newest
        if time.monotonic() > deadline:
            return newest
        time.sleep(0.2)


def step_of(path: Path) -> int:
    """Return the step of a checkpoint's directory."""
    return int(path.name.removeprefix("step-"))


def defect_of(path: Path) -> str | None:
    """Return what is missing or damaged in a checkpoint; None if it is intact."""
    try:
        manifest = read_json(path / MANIFEST)
        files = {str(n): (int(size), str(sha)) for n, (size, sha) in manifest["files"].items()}
    except (OSError, RecordError, KeyError, TypeError, ValueError, AttributeError) as error:
        return f"{path.name}/{MANIFEST}: {type(error).__name__}: {error}"
    for name, (size, sha) in files.items():
        file = path / name
        if not file.is_file():
            return f"{path.name}/{name} is missing"
        if (actual_size := file.stat().st_size) != size:
            return f"{path.name}/{name} has {counted(actual_size, 'byte')}, expected {size}"
        if sha256_of(file) != sha:
            return f"{path.name}/{name} differs from what was written (sha256)"
    return None


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            sha256.update(block)
    return sha256.hexdigest()
