"""The second judge's bounds by the data sheets: GB/s = 10^9 bytes/s and direction, TFLOPS, us."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]
TABLES: Json = yaml.safe_load(Path(__file__).with_name("tables.yaml").read_text(encoding="utf-8"))
KINDS = (
    "gemm", "gemm_per_clock", "training", "p2p", "p2p_both", "pcie", "hbm", "nvlink", "memory",
    "alone", "latency", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
    "send_recv", "rail",
)  # fmt: skip


class Cannot(Exception):
    """The row cannot be judged from its record: NOT_MEASURED."""


class Unknown(Exception):
    """A rule is needed that this judge does not know: not covered."""


def _spelled(name: Any) -> str:
    """Return a name without its vendor, as the driver, a label and Slurm spell it alike."""
    plain = " ".join(str(name).split()).lower().replace("-", " ").replace("_", " ")
    return plain.removeprefix("nvidia ").removeprefix("tesla ")


NAMES = {_spelled(n): m for m, row in TABLES["gpus"].items() for n in row[5]}
ORDERED = NAMES | {_spelled(n): m for m, row in TABLES["gpus"].items() for n in (m, *row[6])}


def model_of(name: Any, names: Json = NAMES) -> str:
    """Return the model of a product name; any other text as it is."""
    return str(names.get(_spelled(name), name))


def ceiling(kind: Any, facts: Json) -> float | None:
    """Return the physical bound of a kind, in the unit of its criterion; Cannot without a fact."""

    def need(name: str) -> float:
        value = facts.get(name)
        if isinstance(value, (bool, str)) or value is None or not value > 0:
            raise Cannot(f"no ceiling without {name}")
        return float(value)

    if not isinstance(kind, str):
        return kind if kind is None else float(kind)
    if kind not in KINDS:
        raise Unknown(f"the ceiling {kind}")
    if (model := str(facts.get("model"))) not in TABLES["gpus"]:
        raise Cannot("no ceiling without a known model")
    capability, nvlink, pcie, hbm, memory = TABLES["gpus"][model][:5]
    cpu, peer = model == "cpu", float(nvlink or TABLES["pcie_x16_gbps"].get(pcie, 0))
    if kind in ("gemm", "gemm_per_clock", "training"):
        default = "bf16" if kind == "training" else facts["metric"].partition("_")[0]
        stated = 0.0 if cpu else round(need("compute_capability"), 1)
        family = "cpu" if cpu else 10.0 if 10 <= stated < 11 else stated
        flop = TABLES["flop_per_clock"].get(family, {}).get(facts.get("dtype", default), 0)
        mhz = 1e3 * need("cpu_max_ghz") if cpu else need("max_sm_clock_mhz")
        if kind == "gemm_per_clock":  # the clock is known to 3 %
            mhz = 1.03 * (mhz if cpu else 1e3)
        tflops = need("cpu_cores" if cpu else "sm_count") * flop * mhz / 1e6
        bound = tflops * 1e12 / need("flops_per_token") if kind == "training" else tflops
    elif kind in ("p2p", "p2p_both"):
        bound = peer if kind == "p2p" else 2 * peer
    elif kind == "pcie" and model.startswith(("GB", "GH")):
        bound = TABLES["c2c_gbps"]
    elif kind == "pcie":
        bound = TABLES["pcie_x16_gbps"].get(need("pcie_gen"), 0) * need("pcie_width") / 16
    elif kind == "hbm":
        bits = 0.0 if cpu else need("memory_clock_mhz") * need("memory_bus_bits")
        bound = max(2e6 * bits / 8e9, hbm)
    elif kind == "memory":
        bound = memory
    elif kind == "nvlink":
        bound = TABLES["nvlink_gbps"].get(10.0 if 10 <= capability < 11 else capability, 0)
    elif kind == "alone":
        bound = need("alone_gbps")
    elif need("gpus") < 2:
        return None
    elif kind == "latency":
        bound = 0.5 if cpu else 5.0 if need("domains") > 1 else 2.0
    else:
        bound = peer if cpu else _bus_bandwidth(kind, peer, facts, need)
    if not bound:
        raise Cannot(f"no ceiling {kind} for a {model}")
    return float(bound)


def _bus_bandwidth(kind: str, fast: float, facts: Json, need: Callable[[str], float]) -> float:
    """Return what NVLink at `fast` GB/s and the NICs allow n ranks in k domains of g."""
    n, k, g = need("gpus"), need("domains"), need("gpus_per_domain")
    nic = need("nic_gbps") / 8 * need("nics_per_node") / need("gpus_per_node") if k > 1 else 0.0
    ring, switch = facts.get("algorithm") == "ring", 2 * (n - 1) / n
    if kind == "all_reduce" and not ring:
        inside = max(fast + nic, fast * g / (g + 1) * switch * (facts.get("nvls") is not False))
        sharp = switch * g * nic * (facts.get("sharp") is not False)
        return inside if k == 1 else min(inside, max(nic * (n - 1) / (k - 1), sharp))
    if k == 1:
        return fast
    if ring and kind in ("all_reduce", "all_gather", "reduce_scatter"):
        return min(fast, g * nic)
    whole_nics = max(1, -(-need("nics_per_node") // need("gpus_per_node")))
    gathered = min(nic * (n - 1) / (k - 1), fast + nic)
    return {
        "all_gather": gathered, "reduce_scatter": gathered, "broadcast": min(fast + nic, g * nic),
        "all_to_all": nic * (n - 1) / (n - g), "send_recv": need("nic_gbps") / 8 * whole_nics,
        "rail": nic,
    }[kind]  # fmt: skip
