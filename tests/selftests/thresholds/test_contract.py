"""The contract: what an order may say, and what follows from it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fixtures import hardware
from fixtures.errors import ConfigError
from fixtures.thresholds import contract
from fixtures.thresholds.contract import Contract
from tests.selftests.small_thresholds import SMALL, load

pytestmark = pytest.mark.cpu

LEAST: dict[str, Any] = {"nodes": 2, "gpus_per_node": 8, "gpu_model": "H200 SXM"}


def order(**given: Any) -> Contract:
    return Contract.model_validate(LEAST | given)


def test_a_contract_is_read(tmp_path):
    text = SMALL.replace(
        "cluster: {}",
        "cluster: {nodes: 'gpu[01-02,7]', gpus_per_node: 8, gpu_model: H200 SXM,"
        " nics_per_node: 8, nic_gbps: 400, driver: '535.10'}",
    )
    found = load(tmp_path, text).cluster
    assert found.node_names == ["gpu01", "gpu02", "gpu7"]
    assert found.node_count == 3
    assert found.facts() == {
        "model": "H200 SXM", "gpus_per_node": 8, "nics_per_node": 8, "nic_gbps": 400,
        "nic_fabric": "InfiniBand",
    }  # fmt: skip
    assert Contract(**found.model_dump()) == found


def test_a_model_is_its_own_name_or_that_of_nvidia_smi():
    for name, model in (
        ("H200 SXM", "H200 SXM"), ("cpu", "cpu"), ("NVIDIA L40S", "L40S"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("nvidia_h100_80gb_hbm3", "H100 SXM"),  # Slurm's AutoDetect=nvml
        ("NVIDIA-H200", "H200 SXM"),  # a label of Kubernetes
        ("NVIDIA-H200-NVL", "H200 NVL"), ("nvidia_h20-3e", "H20 141"),
        ("nvidia-h100-80gb", "H100 SXM"), ("nvidia-h200-141gb", "H200 SXM"),  # GKE
        ("p5.48xlarge", "H100 SXM"), ("standard_nd128isr_gb300_v6", "GB300"),
        *((model, model) for model in hardware.MODELS), *hardware._BY_CLOUD.items(),
        *((f"NVIDIA {name}", model) for name, model in hardware._PRODUCTS.items()),
    ):  # fmt: skip
        assert contract.ordered_model(name) == model
    assert contract.known_model("H200 SXM") == "H200 SXM"
    for name, says in (
        ("H200", "did you mean 'H200 SXM' or 'H200 NVL'"),
        ("L40X", "--calibrate"),
        ("NVIDIA L40X", "'L40"),
        ("NVIDIA H100", "'H100 SXM' or 'H100 PCIe' or 'H100 NVL' or 'H100 SXM 64'"),
        ("h100", "'H100 SXM' or 'H100 PCIe' or 'H100 NVL' or 'H100 SXM 64'"),
        ("A100-80GB", "did you mean 'A100 SXM 80' or 'A100 PCIe 80'[?]"),
        ("H100-80GB-SXM", "did you mean 'H100 SXM'[?]"),
        ("NVIDIA-H100-SXM5-80GB", "did you mean 'H100 SXM'[?]"),
        ("gh200", "'GH200 96' or 'GH200 144'"),
        ("Tesla V100-SXM2-32GB", "has no bf16"),
    ):
        with pytest.raises(ValueError, match=says):
            contract.ordered_model(name)
    assert contract.did_you_mean_model("NVIDIA L40S") == ", did you mean 'L40S'?"
    assert contract.did_you_mean_model("H200") == ", did you mean 'H200 SXM' or 'H200 NVL'?"


@pytest.mark.parametrize(
    "name",
    ["NVIDIA Rubin", "VR200", "AMD Instinct MI300X", "GeForce RTX 4090", "A100-SXM-64GB", ""],
)
def test_an_order_of_a_gpu_that_nobody_knows_says_what_to_do(name):
    with pytest.raises(ValueError, match=re.escape(hardware.NEW_GPU)):
        contract.ordered_model(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "is a MIG instance"),
        ("nvidia_h100_80gb_hbm3_1g.10gb", "is a MIG instance"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "is a MIG instance"),
        ("a100_1g.5gb", "is a MIG instance"),
        ("NVIDIA-L40S-SHARED", "several pods in turn"),
        ("NVIDIA L40S-48", "is a vGPU"),
    ],
)
def test_part_of_a_gpu_is_no_model(name, says):
    with pytest.raises(ValueError, match=says):
        contract.ordered_model(name)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"nodes": 0}, "a count of nodes or a hostlist"),
    ({"nodes": True}, "a count of nodes or a hostlist"),
    ({"nodes": 1.5}, "a count of nodes or a hostlist"),
    ({"nodes": "gpu[1-"}, "hostlist"),
    ({"nvls": False}, "expected true, or"),
    ({"nvls": {"disabled": " "}}, "expected true, or"),
    ({"nvls": {"disabled": 3}}, "expected true, or"),
    ({"nvls": {"disabled": "x", "more": "y"}}, "expected true, or"),
    ({"nics": []}, "expected RDMA devices"),
    ({"nics": ["a", 3]}, "expected RDMA devices"),
    ({"nics": 3}, "expected RDMA devices"),
    ({"nics": ["a", "a"]}, "names a device twice"),
    ({"nics": ["a"], "nics_exclude": ["b"]}, "remove nics_exclude"),
    ({"nics": ["a"], "nics_per_node": 2}, "nics names 1, and nics_per_node is 2"),
    ({"mounts": {"/a": "xfs", "b": "xfs"}}, "expected paths like /scratch, got 'b'"),
    ({"leaves": {"l1": "a[1-2]", "l2": "a2"}}, "a2 is on two leaves: l1 and l2"),
    ({"mtbf_design_days": 9}, "mtbf_design_days has no effect"),
    ({"mtbf_customer_risk": 0.2}, "mtbf_customer_risk has no effect"),
    ({"mtbf_node_days": 100, "mtbf_design_days": 149}, "at least 1.5 times"),
]


def test_an_order_that_cannot_be_meant_is_refused():
    for given, says in REFUSED:
        with pytest.raises(ValueError, match=says):
            order(**given)


def test_nodes_are_counted_or_named():
    assert (order(nodes=1).node_count, order(nodes=1).node_names) == (1, None)
    named = order(nodes="gpu[1-3]")
    assert (named.node_count, named.node_names) == (3, ["gpu1", "gpu2", "gpu3"])
    assert named.value("nodes") == 3


def test_whether_the_switches_reduce_is_ordered_or_follows_from_the_board():
    for given, expected in (
        ({}, True),
        ({"gpus_per_node": 7}, False),
        ({"gpu_model": "H100 SXM"}, True),
        ({"gpu_model": "B200"}, True),
        ({"gpu_model": "B300", "gpus_per_node": 7}, False),
        ({"gpu_model": "H200 NVL"}, False),
        ({"gpu_model": "H200 NVL", "nvls": True}, True),
        ({"nvls": {"disabled": "driver bug"}}, False),
    ):
        assert order(**given).expects_nvls is expected, given
    assert contract.NVLS_GPUS == {"H100 SXM": 8, "H200 SXM": 8, "B200": 8, "B300": 8}
    assert order(nvls={"disabled": "x"}).nvls == {"disabled": "x"}


def test_rdma_devices_are_a_list_or_a_text():
    for names in (["mlx5_0", "mlx5_3"], "mlx5_[0,3]"):
        found = order(nics=names)
        assert found.nics == ["mlx5_0", "mlx5_3"]
        assert found.nics_per_node == 2
    assert order(nics=["a", "b"], nics_per_node=2).nics_per_node == 2
    for pattern in (["bond_*"], "bond_*"):
        assert order(nics_exclude=pattern).nics_exclude == ["bond_*"]
    assert order().nics is None


def test_the_mtbf_of_an_order_has_usual_risks_and_a_design():
    none, plain = order(), order(mtbf_node_days=100)
    assert none.mtbf_design == 0.0
    assert (plain.mtbf_design, plain.mtbf_customer, plain.mtbf_supplier) == (300, 0.1, 0.1)
    given = order(
        mtbf_node_days=100, mtbf_design_days=150, mtbf_customer_risk=0.2, mtbf_supplier_risk=0.3
    )
    assert (given.mtbf_design, given.mtbf_customer, given.mtbf_supplier) == (150, 0.2, 0.3)


def test_what_an_order_does_not_say_has_no_value():
    empty = order()
    for field in (
        "storage_write_share_gbs", "storage_read_share_gbs", "files_for_next_tenant",
        "scratch_size_gb", "scratch_write_gbs", "scratch_read_gbs", "driver",
    ):  # fmt: skip
        assert getattr(empty, field) is None
        assert empty.states(field) is False
        with pytest.raises(ConfigError, match=f"does not say {field}"):
            empty.value(field)
    assert empty.states("nodes") is True
    full = order(
        nodes=4, storage_write_total_gbs=80.0, storage_read_total_gbs=40.0, tenants="several",
        scratch={"path": "/s", "size_gb": 10, "write_gbs": 2, "read_gbs": 3}, driver="535.10",
    )  # fmt: skip
    said = {
        "storage_write_share_gbs": 20, "storage_read_share_gbs": 10, "files_for_next_tenant": 0,
        "scratch_size_gb": 10, "scratch_write_gbs": 2, "scratch_read_gbs": 3, "driver": "535.10",
        "nodes": 4,
    }  # fmt: skip
    assert {field: full.value(field) for field in said} == said
    assert all(full.states(field) for field in said)
    assert order(tenants="one").files_for_next_tenant is None


def test_the_transport_follows_from_the_fabric_unless_it_is_ordered():
    assert order().transport == "NET/IB"
    assert order(nic_fabric="RoCE").transport == "NET/IB"
    assert order(nic_fabric="EFA").transport == "NET/OFI"
    assert order(nic_fabric="EFA", nccl_transport="NET/FasTrak").transport == "NET/FasTrak"


def test_nodes_get_the_parts_of_the_order_that_they_check():
    empty = order()
    assert empty.nic_order() == {"fabric": "InfiniBand"}
    assert empty.host_order() == {}
    assert empty.wiring_order() == {"leaves": {}}
    full = order(
        nics=["a"], mounts={"/s": "xfs"}, scratch={"path": "/s", "size_gb": 5},
        firmware={"driver": "1.2"}, leaves={"l1": "n[1-2]", "l2": "n3"},
    )  # fmt: skip
    assert full.nic_order() == {"names": ["a"], "number": 1, "fabric": "InfiniBand"}
    assert full.host_order() == {
        "mounts": {"/s": "xfs"}, "scratch": {"path": "/s"}, "firmware": {"driver": "1.2"},
    }  # fmt: skip
    assert full.wiring_order() == {"leaves": {"n1": "l1", "n2": "l1", "n3": "l2"}}
    assert order(leaves={"l1": "n[1-2]"}).leaves == {"l1": "n[1-2]"}
    assert order(mounts={"/a": "xfs"}).mounts == {"/a": "xfs"}


def test_facts_are_only_what_was_ordered():
    assert order().facts() == {"model": "H200 SXM", "gpus_per_node": 8}
    assert order(nics_per_node=0).facts() == {
        "model": "H200 SXM", "gpus_per_node": 8, "nics_per_node": 0,
    }  # fmt: skip
    assert order(nic_gbps=400).facts()["nic_gbps"] == 400


def test_limits_refer_to_numbers_and_texts_of_the_order_alone():
    fields = set(contract.CONTRACT_FIELDS)
    assert {"nodes", "gpu_model", "driver", "transport", "scratch_size_gb"} <= fields
    assert not fields & {"nvls", "nics", "leaves", "customer", "order_number", "mtbf_node_days"}
