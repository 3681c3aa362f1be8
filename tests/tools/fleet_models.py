"""GPUs of a made-up fleet that are of another model than those which were recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fixtures import hardware
from fixtures.paths import THRESHOLDS
from fixtures.thresholds import loader
from fixtures.thresholds.loader import Criterion
from tests.tools.platforms import Platform

RECORDED_MODEL = "H200 SXM"
WithinLimit = Callable[[Criterion, Mapping[str, Any]], dict[str, Any] | None]
"""Criterion and conditions -> a measurement within the limit of a row for the model, if any."""


def chip(platform: Platform) -> dict[str, Any]:
    """Return what a GPU of the platform computes with: of the data sheet, or made up."""
    if platform.gpu_model == RECORDED_MODEL:
        return {}
    gpu = hardware.GPUS[platform.gpu_model]
    return {
        "compute_capability": gpu.compute_capability, "sm_count": gpu.sm_count or 148,
        "max_sm_clock_mhz": gpu.max_sm_clock_mhz or 1965,
    }  # fmt: skip


def as_model(rank: dict[str, Any], workload: str, within_limit: WithinLimit) -> dict[str, Any]:
    """Return a rank recorded on an H200 with what another GPU shows, where that is judged by a
    row for it. A curve keeps its shape; what copies at the same time its part of one alone."""
    rank = json.loads(json.dumps(rank))
    criteria = [
        c for c in loader.load(THRESHOLDS).criteria.values()
        if c.workload == workload and c.per == "node"
    ]  # fmt: skip
    factors: dict[int, float] = {}
    alone_of = {m["metric"]: m for m in rank["measurements"] if workload == "hostcopy"}
    for m in rank["measurements"]:
        at = m.get("at", {})
        of = [c for c in criteria if c.metric == m["metric"] and c.at.items() <= at.items()]
        found = [within_limit(criterion, m.get("conditions", {})) for criterion in of]
        for expected in [f for f in found if f is not None][:1]:
            if samples := m.get("samples"):
                factors[id(m)] = expected["samples"][0] / 1.06 * 1.02 / _median(samples)
            else:
                m["value"] = expected["value"]
    of_curve = max(factors.values(), default=1.0)
    for m in rank["measurements"]:
        factor = of_curve if "size" in m.get("at", {}) else factors.get(id(m), 1.0)
        if m["metric"].endswith("_all") and (alone := alone_of.get(m["metric"][:-4])):
            factor = factors.get(id(alone), 1.0)
            m["conditions"] = {**m["conditions"], "alone_gbps": _median(alone["samples"])}
        if "samples" in m and m["unit"] != "us":
            m["samples"] = [float(f"{s * factor:.6g}") for s in m["samples"]]
    return rank


def _median(samples: Sequence[float]) -> float:
    return sorted(samples)[len(samples) // 2]
