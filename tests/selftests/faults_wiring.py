"""Faults of cables, ports and leaf switches, in a sandbox with two of these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fixtures.sandbox import Sandbox
from tests.selftests.drill_limits import ordered
from tests.selftests.faults import Fault
from tests.selftests.leaf_switches import two_leaves
from tests.selftests.rails import slow_second_port, two_rails

CULPRIT = "worker3"
LEAVES = {f"worker{k}": f"leaf{k // 4}" for k in range(8)}
ON_SECOND = [node for node, leaf in LEAVES.items() if leaf == "leaf1"]
SHAPE = {
    "nodes": 8,
    "gpus": 1,
    "site": {
        "slurm": "TopologyPlugin=topology/tree",
        "topology.conf": "SwitchName=leaf0 Nodes=worker[0-3]\nSwitchName=leaf1 Nodes=worker[4-7]\n"
        "SwitchName=spine Switches=leaf[0-1]\n",
    },
}
RAIL_SHAPE: dict[str, Any] = {"nodes": 5, "gpus": 2}

PAIR = "worker2--worker3"
PORT_SHAPE: dict[str, Any] = {"nodes": 4, "gpus": 2, "site": {"slurm": "ClusterName=ports"}}
"""Under another name than a sandbox's, whose wire is the host's memory: here it is the drill's."""
LEAST_GB_S = 0.03
SLOW = "100mbit"
"""Less than half of that."""


@contextmanager
def rails(sandbox: Sandbox, swapped: Sequence[str] = ()) -> Iterator[list[str]]:
    with two_rails(sandbox, swapped) as own_ports:
        yield [*own_ports, *ordered(sandbox, rail_optimized=True)]


@contextmanager
def ports(sandbox: Sandbox, slow: str | None = None) -> Iterator[list[str]]:
    """Two NICs per node, as ordered; the second one of the node `slow` carries less."""
    limits = {"rails.alone": {"fail_below": LEAST_GB_S}}
    with two_rails(sandbox) as own_ports:
        if slow is not None:
            slow_second_port(sandbox, slow, SLOW)
        yield [*own_ports, *ordered(sandbox, limits, nics_per_node=2, nic_gbps=1)]


WIRING_FAULTS = [
    Fault(
        criterion="wiring.leaf",
        name="cable in the wrong leaf switch",
        where="on the bridge that the node's link ends in",
        culprit=CULPRIT,
        inject=lambda sandbox: two_leaves(sandbox, [*ON_SECOND, CULPRIT]),
        select="leaf_switch",
        says="worker3 gpu0 is on leaf1, planned on leaf0",
        alone=True,
    )
]

RAIL_FAULTS = [
    Fault(
        criterion="wiring.rail",
        name="two cables of a node swapped",
        where="on the bridges that the node's two links end in",
        culprit=CULPRIT,
        inject=lambda sandbox: rails(sandbox, [CULPRIT]),
        select="leaf_switch",
        says="worker3 gpu0 is on rail1, planned on rail0",
        device="gpu0",
        alone=True,
    )
]

PORT_FAULTS = [
    Fault(
        criterion="rails.alone",
        name="the port of one GPU slow",
        where="the node's second link, limited with tc",
        culprit=PAIR,
        inject=lambda sandbox: ports(sandbox, CULPRIT),
        select="by_itself",
        says="slowest rail: worker2 gpu1 and worker3 gpu1, ",
        alone=True,
    )
]
