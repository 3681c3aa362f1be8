"""A limits file for one drill: where the demonstration's limit leaves the fault unseen."""

from __future__ import annotations

import yaml

from fixtures.paths import CHECKOUT
from fixtures.sandbox import Sandbox


def held_to(sandbox: Sandbox, criterion: str, **limit: float) -> list[str]:
    """Write a limit for a demonstration's CPUs; return the arguments for pytest that use it."""
    file = sandbox.state.home / "limit.yaml"
    row = {"model": "cpu", **limit, "loose": "the drill", "source": "the drill"}
    text = {
        "base": str(CHECKOUT / "thresholds.yaml"),
        "criteria": {criterion: {"limits": [row]}},
    }
    file.write_text(yaml.safe_dump(text), encoding="utf-8")
    return [f"--thresholds={file}"]
