"""Faults of cables between nodes and leaf switches, in a sandbox with two of these."""

from __future__ import annotations

from tests.selftests.faults import Fault
from tests.selftests.leaf_switches import two_leaves

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
