"""Recorded runs with verdict, pages and manifest, as if this version of the suite had made them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from fixtures.paths import version
from fixtures.thresholds import loader
from reports import __main__ as command
from tests.selftests import support


def judged_run(source: Path, into: Path) -> Path:
    """Copy a recorded run, judge it by the shipped limits, and render it."""
    root = Path(shutil.copytree(source, into))
    run = json.loads((root / "run.json").read_text())
    run |= {"suite_version": version(), "thresholds": loader.load(support.SHIPPED).identity()}
    (root / "run.json").write_text(json.dumps(run))
    support.judged(root, into.with_name(f"{into.name}-judged"))
    shutil.copy(into.with_name(f"{into.name}-judged") / "limits.csv", root)
    assert command.main(["render", str(root)]) in (0, 1, 2)
    return root
