"""The leaf switch that a node is planned on: what the order says goes before what Slurm says."""

from __future__ import annotations

import pytest

from fixtures.workloads.runtime import planned_leaves
from tests.selftests.workloads.wiring.test_wiring_ranks import a_rank

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("address", "pattern", "leaf"),
    [
        ("core.leaf7.gpu12", "switch.switch.node", "leaf7"),
        ("leaf7.gpu12.example.org", "switch.node", "leaf7"),
        ("gpu12", "node", ""),
        ("block3.gpu12", "block.node", ""),
        ("leaf7", "switch.node", ""),
        ("", "", ""),
    ],
)
def test_slurm_names_the_leaf_of_a_node_in_the_environment_of_its_tasks(address, pattern, leaf):
    environ = {"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern}
    assert planned_leaves.leaf_by_slurm(environ) == leaf
    assert planned_leaves.leaf_by_slurm({}) == ""


def test_the_leaf_of_the_order_goes_before_that_of_slurm(monkeypatch):
    monkeypatch.setenv("SLURM_TOPOLOGY_ADDR", "slurm.a")
    monkeypatch.setenv("SLURM_TOPOLOGY_ADDR_PATTERN", "switch.node")
    ordered = {"wiring_order": {"leaves": {"a": "ordered"}}}
    assert planned_leaves.where(a_rank(spec=ordered)) == (["a"], [0], {"a": "ordered"})
    for spec in ({}, {"wiring_order": None}, {"wiring_order": {"leaves": {"b": "ordered"}}}):
        assert planned_leaves.where(a_rank(local_rank=1, spec=spec)) == (["a"], [1], {"a": "slurm"})
    monkeypatch.delenv("SLURM_TOPOLOGY_ADDR")
    assert planned_leaves.where(a_rank()) == (["a"], [0], {})
