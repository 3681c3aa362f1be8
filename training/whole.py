"""Which checkpoints are whole: by their manifests, without torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fixtures.records.files import RecordError, read_json

MANIFEST = "manifest.json"
PIECE = 1 << 24


def newest(directory: Path) -> Path | None:
    """The newest whole checkpoint; None where there is none. Torn ones are passed over."""
    for path in sorted(directory.glob("step-*"), reverse=True):
        if wrong(path) is None:
            return path
    return None


def wrong(path: Path) -> str | None:
    """What is wrong with a checkpoint; None where it is whole."""
    try:
        manifest = read_json(path / MANIFEST)
        files = {str(n): (int(size), str(sha)) for n, (size, sha) in manifest["files"].items()}
    except (OSError, RecordError, KeyError, TypeError, ValueError) as error:
        return f"{path.name}/{MANIFEST}: {type(error).__name__}: {error}"
    for name, (size, sha) in files.items():
        file = path / name
        if not file.is_file():
            return f"{path.name}/{name} is missing"
        if (found := file.stat().st_size) != size:
            return f"{path.name}/{name} has {found} bytes, expected {size}"
        if digest(file) != sha:
            return f"{path.name}/{name} is not what was written (sha256)"
    return None


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            found.update(piece)
    return found.hexdigest()
