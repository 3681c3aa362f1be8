"""Which GPU models can be ACCEPTED by thresholds.yaml as it is, and how an order names them.

python -m tests.tools.gpu_models            say which of the tables below is out of date
python -m tests.tools.gpu_models --write    write them anew: README.md, docs/on-a-cluster.md
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Iterable, Sequence

from fixtures import hardware
from fixtures.cluster.population import Population
from fixtures.hardware import GPUS
from fixtures.paths import CHECKOUT, THRESHOLDS
from fixtures.plan import missing_limits
from fixtures.plan.items import Item, planned_list
from fixtures.thresholds import loader
from fixtures.thresholds.loader import Thresholds
from tests.tools import sections

README = CHECKOUT / "README.md"
CLUSTER_PAGE = CHECKOUT / "docs" / "on-a-cluster.md"
Plan = tuple[list[Item], Thresholds, Population]
SIZES = (1, 4)
"""Nodes of the orders that are counted."""
A_FEW = 19
"""Most limits that a party can be expected to agree on one by one."""


def plan(model: str, nodes: int, *, states_rate: bool = True) -> Plan:
    """Return the plan of an order: 8 GPUs and 8 NICs per node, of GB200 and GB300 4, of GH200 1.

    `states_rate`: whether it says how fast the NICs are.
    """
    gpus = 1 if model.startswith("GH") else 4 if model.startswith("GB") else 8
    gbps = (200.0 if model.startswith("A100") else 400.0) if states_rate else None
    order = {
        "nodes": nodes, "gpus_per_node": gpus, "gpu_model": model, "nics_per_node": gpus,
        "nic_gbps": gbps,
    }  # fmt: skip
    limits = loader.load_with_contract(THRESHOLDS, order)
    assert limits.cluster is not None
    people = Population(
        origin="cluster", nodes=tuple(f"n{k}" for k in range(nodes)), gpus_per_node=gpus,
        gpu_model=model, ordered=True, nics_per_node=gpus, nic_gbps=gbps,
        nvls=limits.cluster.expects_nvls,
    )  # fmt: skip
    return planned_list(limits, people), limits, people


@functools.cache
def missing(model: str, nodes: int) -> dict[str, tuple[str, ...]]:
    """Return the limits of such an order that nobody has set, by area."""
    return missing_limits.missing(*plan(model, nodes))


def unset_count(model: str, nodes: int) -> int:
    """Return how many limits of such an order nobody has set."""
    return sum(map(len, missing(model, nodes).values()))


def acceptance_table() -> str:
    """Return the table of the README: models by how many of their limits are set."""
    unset = {model: tuple(unset_count(model, n) for n in SIZES) for model in GPUS}
    ranges = {
        "all": [m for m in GPUS if max(unset[m]) == 0],
        "a few": [m for m in GPUS if 0 < max(unset[m]) <= A_FEW],
        "many": [m for m in GPUS if max(unset[m]) > A_FEW],
    }
    rows = [
        ("GPU models", "limits not set yet", "what that means"),
        ("---",) * 3,
        (_names(ranges["all"]), "none", "**can be ACCEPTED as shipped**"),
        (
            _names(f"{m} ({_range(unset[m])})" for m in ranges["a few"]),
            _range(n for m in ranges["a few"] for n in unset[m]),
            "`--plan` names them; agree on values, or calibrate",
        ),
        (
            _names(ranges["many"]),
            _range(n for m in ranges["many"] for n in unset[m]),
            "health, inventory and links are judged; most rates have to be calibrated first",
        ),
    ]  # fmt: skip
    return "".join(f"| {' | '.join(row)} |\n" for row in rows if row[0])


def names_table() -> str:
    """Return the table of docs/on-a-cluster.md: how a model is named by drivers and clouds."""
    rows = ["| `gpu_model:` | as `nvidia-smi` and `dcgmi` print it | in clouds |", "|---|---|---|"]
    for model in GPUS:
        products = (f"NVIDIA {name}" for name, of in hardware._PRODUCTS.items() if of == model)
        clouds = hardware._CLOUDS.get(model, "").split()
        rows.append(f"| {model} | {', '.join(products)} | {', '.join(clouds)} |")
    return "\n".join(rows) + "\n"


def _names(models: Iterable[str]) -> str:
    return ", ".join(models)


def _range(counts: Iterable[int] | Sequence[int]) -> str:
    counts = sorted(set(counts))
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}" if counts else ""


TABLES = ((README, "models", acceptance_table), (CLUSTER_PAGE, "names", names_table))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.gpu_models")
    parser.add_argument("--write", action="store_true", help="write the tables anew")
    options = parser.parse_args()
    return max(sections.update(page, n, made(), write=options.write) for page, n, made in TABLES)


if __name__ == "__main__":
    sys.exit(main())
