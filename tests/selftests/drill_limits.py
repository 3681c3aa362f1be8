"""Limits files for a drill: with another order, or a limit that the fault is below."""

from __future__ import annotations

from typing import Any

import yaml

from fixtures.paths import CHECKOUT
from fixtures.sandbox import Sandbox


def ordered(sandbox: Sandbox, **fields: Any) -> list[str]:
    """Write an order with these fields; return the arguments for pytest that use it."""
    state = sandbox.state
    order = {"nodes": state.nodes, "gpus_per_node": state.gpus, "gpu_model": "cpu", **fields}
    return _written(sandbox, cluster=order)


def held_to(sandbox: Sandbox, criterion: str, **limit: float) -> list[str]:
    """Write a limit for a demonstration's CPUs; return the arguments for pytest that use it."""
    row = {"model": "cpu", **limit, "loose": "the drill", "source": "the drill"}
    return _written(sandbox, criteria={criterion: {"limits": [row]}})


def _written(sandbox: Sandbox, **differences: Any) -> list[str]:
    file = sandbox.state.home / "order.yaml"
    text = {"base": str(CHECKOUT / "thresholds.yaml"), **differences}
    file.write_text(yaml.safe_dump(text), encoding="utf-8")
    return [f"--thresholds={file}"]
