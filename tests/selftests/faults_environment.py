"""Faults of what a node runs and sees: other versions."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fixtures.sandbox import Sandbox
from tests.selftests.faults import Fault
from tests.selftests.faults_scheduler import CULPRIT, inside


@contextmanager
def another_version(sandbox: Sandbox) -> Iterator[None]:
    """On one node the interpreter has another submitit than on the login node."""
    own = importlib.metadata.distribution("submitit")
    path = Path(str(own.locate_file(""))) / f"submitit-{own.version}.dist-info" / "METADATA"
    other = sandbox.state.node_home(CULPRIT) / "METADATA"
    other.write_text(path.read_text().replace(f"\nVersion: {own.version}\n", "\nVersion: 0.9\n"))
    other.chmod(0o644)
    inside(sandbox, "mount", "--bind", str(other), str(path))
    try:
        yield
    finally:
        inside(sandbox, "umount", str(path))


FAULTS = [
    Fault(
        criterion="environment.versions", name="another version of a package",
        where="site-packages of a node", culprit=CULPRIT, inject=another_version,
        select="environment.versions", says="submitit",
    ),
]  # fmt: skip
"""In a sandbox of two nodes with two GPUs."""
