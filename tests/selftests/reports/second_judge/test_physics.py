"""The second judge's bounds, against figures worked out by hand from the data sheets."""

from __future__ import annotations

import pytest

from reports.second_judge.physics import ORDERED, Cannot, Unknown, ceiling, model_of

pytestmark = pytest.mark.cpu

H200 = {
    "model": "H200 SXM", "metric": "bf16_best", "compute_capability": 9.0, "sm_count": 132,
    "max_sm_clock_mhz": 1980, "gpus": 8, "domains": 1, "gpus_per_domain": 8, "gpus_per_node": 8,
}  # fmt: skip
CPU = {"model": "cpu", "metric": "bf16", "cpu_cores": 2, "cpu_max_ghz": 3.0, "gpus": 2}


def across(nodes: int, nics: int = 4, gbps: float = 400, **more: object) -> dict[str, object]:
    """H200 nodes of 8 GPUs; with four NICs of 400 Gb/s there are 25 GB/s for each GPU."""
    return {
        **H200, "gpus": 8 * nodes, "domains": nodes, "nics_per_node": nics, "nic_gbps": gbps, **more
    }  # fmt: skip


def bounds(table: list[tuple[str, dict[str, object], float]]) -> None:
    for kind, facts, expected in table:
        assert ceiling(kind, facts) == pytest.approx(expected, rel=1e-9), (kind, facts)


def test_a_product_name_is_its_model_and_other_text_stays():
    assert model_of("NVIDIA H200") == "H200 SXM"
    assert model_of(" nvidia   a100-sxm4-40gb ") == "A100 SXM 40"
    assert model_of("NVIDIA-H100-80GB-HBM3") == model_of("nvidia_h100_80gb_hbm3") == "H100 SXM"
    assert model_of("Another GPU") == "Another GPU"
    assert model_of("p5.48xlarge") == "p5.48xlarge"
    assert {model_of(name, ORDERED) for name in ("p5.48xlarge", "h100 sxm")} == {"H100 SXM"}


def test_arithmetic_is_bounded_by_units_and_clock():
    bounds([
        ("gemm", H200, 1070.53056),  # 132 SMs x 4096 FLOP x 1.98 GHz
        ("gemm", {**H200, "metric": "fp8"}, 2141.06112),
        ("gemm", {**H200, "dtype": "fp8"}, 2141.06112),
        ("gemm_per_clock", H200, 556.89216),  # at 1 GHz, and 3 % more
        ("training", {**H200, "metric": "tokens", "flops_per_token": 1e9}, 1_070_530.56),
        ("gemm", CPU, 12.288),
        ("gemm_per_clock", CPU, 12.65664),
    ])  # fmt: skip


def test_a_compute_capability_of_10_and_above_is_of_the_family_of_10_up_to_11():
    per_clock = {"sm_count": 100, "max_sm_clock_mhz": 1000, "metric": "bf16"}
    bounds([
        ("gemm", {"model": "B200", "compute_capability": 10.0, **per_clock}, 819.2),
        ("gemm", {"model": "B300", "compute_capability": 10.3, **per_clock}, 819.2),
        ("gemm", {"model": "RTX PRO 6000", "compute_capability": 12.0, **per_clock}, 102.4),
        ("nvlink", {"model": "B300"}, 53.125),
        ("nvlink", {"model": "H200 SXM"}, 26.563),
    ])  # fmt: skip
    with pytest.raises(Cannot):
        ceiling("nvlink", {"model": "RTX PRO 6000"})


def test_links_and_memory_are_bounded_by_the_data_sheet_or_by_what_the_driver_states():
    bounds([
        ("p2p", H200, 450), ("p2p_both", H200, 900), ("p2p", {"model": "L40S"}, 31),
        ("pcie", {**H200, "pcie_gen": 5, "pcie_width": 8}, 31.5),
        ("pcie", {"model": "GB200"}, 450), ("pcie", {"model": "GH200 96"}, 450),
        ("hbm", {**H200, "memory_clock_mhz": 2000, "memory_bus_bits": 5120}, 4800),
        ("hbm", {**H200, "memory_clock_mhz": 3201, "memory_bus_bits": 6144}, 4916.736),
        ("hbm", {"model": "GH200 96", "memory_clock_mhz": 1, "memory_bus_bits": 1}, 4000),
        ("hbm", CPU, 2000), ("memory", H200, 141), ("alone", {**H200, "alone_gbps": 1}, 1),
        ("latency", {**H200, "domains": 1}, 2), ("latency", {**H200, "domains": 2}, 5),
        ("latency", CPU, 0.5), ("all_reduce", CPU, 2000),
    ])  # fmt: skip


def test_a_stated_number_is_its_own_bound_and_one_gpu_has_none_between_gpus():
    assert ceiling(None, {}) is None
    assert ceiling(5, {}) == 5
    assert ceiling("latency", {**H200, "gpus": 1}) is None
    assert ceiling("latency", {**H200, "gpus": 2}) == 2
    with pytest.raises(Unknown):
        ceiling("of another world", H200)


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        ("p2p", {"model": "Another GPU"}), ("memory", CPU),
        *(("alone", {**H200, "alone_gbps": x}) for x in (None, 0, -1, True, "50")),
        ("gemm", {**H200, "metric": "int8"}),
    ],
)  # fmt: skip
def test_without_its_fact_there_is_no_bound(kind, facts):
    with pytest.raises(Cannot):
        ceiling(kind, facts)


def test_an_all_reduce_within_nvlink_is_bounded_by_the_switch_or_by_the_links():
    bounds([
        ("all_reduce", H200, 700),  # 450 x 8/9 x 2 x 7/8
        ("all_reduce", {**H200, "nvls": False}, 450),
        ("all_reduce", {**H200, "algorithm": "ring"}, 450),
        ("all_gather", H200, 450),
    ])  # fmt: skip


def test_across_nodes_the_nics_bound_as_the_algorithm_allows():
    bounds([
        ("all_reduce", across(4), 387.5),  # in the network: 2 x 31/32 x 8 x 25
        ("all_reduce", across(4, sharp=False), 25 * 31 / 3),
        ("all_reduce", across(2, gbps=3200), 750),  # the switch: 450 x 8/9 x 2 x 15/16
        ("all_reduce", across(2, gbps=3200, nvls=False), 650),
        ("all_reduce", across(2, algorithm="ring"), 200),
        ("all_gather", across(2, algorithm="ring"), 200),
        ("reduce_scatter", across(2, algorithm="ring"), 200),
        ("all_to_all", across(2, algorithm="ring"), 25 * 15 / 8),
        ("all_gather", across(2), 375),
        ("reduce_scatter", across(2, gbps=3200), 650),
        ("broadcast", across(2), 200),
        ("broadcast", across(2, gbps=3200), 650),
        ("send_recv", across(2), 50),
        ("send_recv", across(2, nics=12), 100),
        ("rail", across(2), 25),
    ])  # fmt: skip
