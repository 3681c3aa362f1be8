"""The second judge's order: `cluster:` as the file of limits has it, not as run.json repeats it;
what a run says of its order and its nodes is compared with it."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from reports.second_judge.physics import ORDERED, TABLES, Json, model_of

DEFAULTS: Json = {"nics_per_node": 0, "nic_gbps": 0, "nic_fabric": "InfiniBand", "shared_tb": 0,
                  "shared_directory": False, "rail_optimized": False}  # fmt: skip
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C is ten times as fast
_parsed = functools.lru_cache(8)(functools.partial(yaml.load, Loader=_LOADER))


def in_file(file: Path, read: Callable[[Path], str]) -> Any:
    """Return the order of a file of limits: its own, or that of the nearest base that has one."""
    data = _parsed(read(file))
    while "cluster" not in data and "base" in data:
        file = file.parent / data["base"]
        data = _parsed(read(file))
    return tidy(data.get("cluster") or {})


def tidy(value: Any) -> Any:
    """Return an order in one form: nothing that is not stated, lists of NICs, plain numbers."""
    if not isinstance(value, dict):  # YAML 1.1 takes 1e3 for text
        return float(value) if re.fullmatch(r"\d+(\.\d*)?[eE][-+]?\d+", str(value)) else value
    found = {k: tidy(v) for k, v in value.items() if v is not None}
    if span := re.fullmatch(r"([^[]*)\[([\d,-]+)\]([^[]*)", str(found.get("nics"))):
        parts = [p.partition("-") for p in span[2].split(",")]
        found["nics"] = [f"{span[1]}{k:0{len(a)}}{span[3]}" for a, _, b in parts
                         for k in range(int(a), int(b or a) + 1)]  # fmt: skip
    if nics := found.get("nics"):
        found["nics"] = [nics] if isinstance(nics, str) else nics
        found["nics_per_node"] = len(found["nics"])
    if "gpu_model" in found:
        found["gpu_model"] = model_of(found["gpu_model"], ORDERED)
        found = {"nic_fabric": "InfiniBand", **found}
    return found


def settle(run: Json, of_file: Json, p: Any) -> list[str]:
    """Make the population `p` what the order means; return how run.json differs from that."""
    stated, wrong = tidy(run.get("contract") or {}), []
    if p.origin == "by-hand":
        return []
    order = stated if p.virtual or not of_file else of_file
    if run.get("origin") not in (None, "replay", p.origin):
        wrong.append(f"origin: {run.get('origin')}, of its nodes {p.origin}")
    if stated != order:
        names = [k for k in {**order, **stated} if order.get(k) != stated.get(k)]
        wrong.append(f"run.json states another order than the limits: {', '.join(names)}")
    meant: Json = {"ordered": bool(order)}
    if not p.virtual:
        meant |= {"emulated": False, "light": False, "bindable": True, "memory_control": True}
    if order:
        meant |= {k: type(v)(order.get(k, v)) for k, v in DEFAULTS.items() if k != "nic_gbps"}
        meant |= {k: order.get(k, 0) for k in ("gpus_per_node", "gpu_model", "nic_gbps")}
        least = TABLES["nvls_gpus"].get(order["gpu_model"], math.inf)
        meant["nvls"] = order.get("nvls", order["gpus_per_node"] >= least) is True
        p.on_cpu = order["gpu_model"] == "cpu"
        p.capability, p.nvlink = TABLES["gpus"][order["gpu_model"]][:2]
    wrong += [f"population: {k} is {getattr(p, k)}, ordered {v}" for k, v in meant.items()
              if k in run["population"] and getattr(p, k) != v and stated == order]  # fmt: skip
    vars(p).update(meant)
    return wrong
