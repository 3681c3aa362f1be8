"""Limits files for a drill: with another order, or a limit that the fault is below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from fixtures.paths import CHECKOUT
from fixtures.sandbox import Sandbox


def ordered(
    sandbox: Sandbox, limits: Mapping[str, Mapping[str, Any]] | None = None, **fields: Any
) -> list[str]:
    """Write an order with these fields; return the arguments for pytest that use it.

    `limits`: criterion -> its limit for a demonstration's CPUs.
    """
    state = sandbox.state
    order = {"nodes": state.nodes, "gpus_per_node": state.gpus, "gpu_model": "cpu", **fields}
    return _written(sandbox, limits or {}, cluster=order)


def held_to(sandbox: Sandbox, criterion: str, **limit: Any) -> list[str]:
    """Write a limit for a demonstration's CPUs; return the arguments for pytest that use it."""
    return _written(sandbox, {criterion: limit})


def _written(sandbox: Sandbox, limits: Mapping[str, Mapping[str, Any]], **more: Any) -> list[str]:
    file = sandbox.state.home / "order.yaml"
    text = {"base": str(CHECKOUT / "thresholds.yaml"), **more}
    if limits:
        common = {"model": "cpu", "loose": "the drill", "source": "the drill"}
        text["criteria"] = {key: {"limits": [{**common, **row}]} for key, row in limits.items()}
    file.write_text(yaml.safe_dump(text), encoding="utf-8")
    return [f"--thresholds={file}"]
