"""Recorded runs with verdict, pages and manifest, as if this version of the suite had made them,
and the keys that sign them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fixtures.paths import version
from fixtures.run.run import PAGE_VERSIONS
from fixtures.thresholds import loader
from reports import __main__ as command
from tests.selftests import support


def judged_run(source: Path, into: Path) -> Path:
    """Copy a recorded run, judge it by the shipped limits, and render it."""
    root = Path(shutil.copytree(source, into))
    assert made_whole(root) in (0, 1, 2)
    return root


def made_whole(root: Path, **more: Any) -> int:
    """Judge the evidence at `root` by the shipped limits, and write all that a run leaves.

    `more`: what run.json says besides. Returns the status of `render`.
    """
    with support.edited(root / "run.json") as run:
        run["versions"] |= PAGE_VERSIONS
        run |= {"suite_version": version(), "thresholds": loader.load(support.SHIPPED).identity()}
        run |= more
    judged = root.with_name(f"{root.name}-judged")
    support.judged(root, judged)
    for name in ("limits.csv", "ledger.jsonl"):  # a run writes them while it goes on
        shutil.copy(judged / name, root)
    (root / "jobs").mkdir(exist_ok=True)
    (root / "jobs" / "out.txt").write_text("what a rank printed\n")
    return command.main(["render", str(root)])


def key_of(folder: Path, name: str = "key") -> Path:
    """A new key NAME, with NAME.pub beside it; the test is skipped where none can be made."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen on the PATH")
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
    subprocess.run(make, check=True)
    return folder / name
