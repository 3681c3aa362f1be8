"""A contract as it was observed on the nodes of a run."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.calibration import observed_contract
from fixtures.calibration.observed_contract import ObservedContract, observe
from fixtures.cluster.population import Population
from fixtures.records.model import Record
from tests.selftests.support import rank, record

pytestmark = pytest.mark.cpu

NODES = ("a", "b", "c")


class Records:
    """Evidence with made-up facts: workload and node -> those of its first rank."""

    def __init__(self, facts: dict[tuple[str, str], Any]) -> None:
        self.facts = facts

    def get(self, workload: str, node: str) -> Record | str:
        if (workload, node) not in self.facts:
            return "missing"
        first, second = rank(0, node, cores=workload), rank(1, node, cores="second")
        first.facts.update(self.facts[workload, node])
        second.facts["gpus"] = "of another rank"
        return record(second, first, workload=workload)


def nics(*names: str, rate: str = "400 Gb/sec (4X NDR)", layer: str = "InfiniBand") -> Any:
    return [{"name": name, "rate": rate, "link_layer": layer} for name in names]


def seen(facts: dict[tuple[str, str], Any], **people: Any) -> ObservedContract:
    given: dict[str, Any] = {
        "origin": "cluster", "nodes": NODES, "gpus_per_node": 5, "gpu_model": None,
    }  # fmt: skip
    evidence: Any = Records(facts)
    return observe(Population(**given | people), evidence)


H200 = [{"name": "NVIDIA H200"}] * 2
SOFTWARE = {"driver": "580.1", "cuda": "13.0", "nics": nics("m0", "m1")}


def both(node: str, **more: Any) -> dict[tuple[str, str], Any]:
    """Inventory and environment of a node."""
    return {("inventory", node): {"gpus": H200}, ("environment", node): {**SOFTWARE, **more}}


def test_what_every_node_has_is_the_contract():
    found = seen(both("a") | both("b") | both("c"))
    assert (found.nodes, found.gpus_per_node, found.gpu_model) == (NODES, 2, "H200 SXM")
    assert (found.nics_per_node, found.nic_gbps, found.nic_fabric) == (2, 400.0, "InfiniBand")
    assert (found.driver, found.cuda, found.deviations) == ("580.1", "13.0", ())
    assert found.new_model is False


def test_nodes_that_differ_from_most_are_named():
    found = seen(both("a") | both("b", driver="570.1") | both("c"))
    assert found.driver == "580.1"
    assert found.deviations == ("b: driver 570.1",)
    lost = both("b")
    lost["inventory", "b"] = {"gpus": H200[:1]}
    assert seen(both("a") | lost | both("c")).deviations == ("b: gpus_per_node 1",)
    absent = seen(both("a") | both("c"))
    assert absent.deviations == (), "of a node without a record nothing is known"
    mixed = both("b")
    mixed["inventory", "b"] = {"gpus": [*H200, {"name": "NVIDIA L40S"}]}
    assert "b: gpu_model H200 SXM and L40S" in seen(both("a") | mixed | both("c")).deviations


def test_what_was_not_observed_stays_empty():
    found = seen({})
    assert (found.gpus_per_node, found.gpu_model, found.nics_per_node) == (5, None, None)
    assert (found.nic_gbps, found.nic_fabric, found.device) == (None, None, {})
    assert found.new_model is False
    only = seen({("environment", "a"): {"gpus": H200}})
    assert (only.gpus_per_node, only.gpu_model) == (2, "H200 SXM")
    for kinds in (
        nics("m0") + nics("m1", rate="200 Gb/sec"),
        nics("m0", layer="InfiniBand") + nics("m1", layer="Ethernet"),
    ):
        mixed = seen(both("a", nics=kinds))
        assert None in (mixed.nic_gbps, mixed.nic_fabric)
        assert (mixed.nic_gbps, mixed.nic_fabric) != (None, None)
    assert seen(both("a", nics=nics("m0", layer="Ethernet"))).nic_fabric == "RoCE"
    unknown = seen({("inventory", "a"): {"gpus": [{"name": "NVIDIA Z100"}]}})
    assert (unknown.gpu_model, unknown.new_model) == ("Z100", True)


def test_on_cpus_the_population_says_what_there_is():
    found = seen(both("a"), gpu_model="cpu")
    assert (found.gpus_per_node, found.gpu_model, found.deviations) == (5, "cpu", ())


def test_virtual_functions_are_no_nics():
    facts = both("a", nics=nics("m0", "m1", "vf0"))
    assert seen(facts).nics_per_node == 3
    facts["inventory", "a"]["nics"] = ["m0", "m1"]
    assert seen(facts).nics_per_node == 2
    facts["inventory", "a"]["nics"] = []
    assert seen(facts).nics_per_node is None


def test_the_device_is_that_of_gemm_or_of_the_inventory():
    assert seen(both("b")).device["cores"] == "second", "the first entry of the record"
    both_ = both("b") | {("gemm", "a"): {}}
    device = seen(both_).device
    assert device["uuid"].startswith("GPU-a")


def test_rates_and_products_are_read():
    for text, rate in (("400 Gb/sec (4X NDR)", 400.0), ("fast", None), (None, None), ("", None)):
        assert observed_contract._gbps(text) == rate
    assert observed_contract.model_name("NVIDIA H200") == "H200 SXM"
    assert observed_contract.model_name("NVIDIA  Z100  PCIe") == "Z100 PCIe"
    assert observed_contract._most_common([None, "b", "", "a", "b"]) == "b"
    assert observed_contract._most_common([None, 0]) is None
