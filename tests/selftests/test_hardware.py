"""Ceilings: the vectors that they were derived with, and what must hold for any machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures import hardware
from fixtures.errors import ConfigError, UnknownGpu
from fixtures.hardware import COLLECTIVES, GPUS, MissingFact, collective_ceiling, model_of

pytestmark = pytest.mark.cpu

VECTORS = [
    # n, k, g, B, b, nvls, sharp, GB/s
    (8, 1, 8, 450, 0, True, False, 700),
    (8, 1, 8, 450, 0, False, False, 450),
    (2, 1, 2, 450, 0, True, False, 450),
    (4, 1, 4, 450, 0, True, False, 540),
    (16, 2, 8, 450, 50, True, False, 750),
    (16, 2, 8, 450, 50, False, False, 500),
    (32, 4, 8, 450, 50, False, False, 500),
    (64, 8, 8, 450, 50, True, False, 450),
    (64, 8, 8, 450, 50, True, True, 787.5),
    (24, 3, 8, 900, 50, False, False, 575),
    (72, 1, 72, 900, 0, True, False, 1750.7),
]


@pytest.mark.parametrize(("n", "k", "g", "B", "b", "nvls", "sharp", "expected"), VECTORS)
def test_all_reduce_vectors(n, k, g, B, b, nvls, sharp, expected):
    assert collective_ceiling("all_reduce", n, k, g, B, b, nvls, sharp) == pytest.approx(
        expected, abs=0.05
    )


@pytest.mark.parametrize(
    ("operation", "n", "k", "g", "ring", "expected"),
    [
        ("all_reduce", 8, 1, 8, True, 450),
        ("all_reduce", 16, 2, 8, True, 400),
        ("all_gather", 8, 1, 8, False, 450),
        ("all_gather", 16, 2, 8, False, 500),
        ("reduce_scatter", 32, 4, 8, False, 500),
        ("reduce_scatter", 16, 2, 8, True, 400),
        ("all_to_all", 8, 1, 8, False, 450),
        ("all_to_all", 16, 2, 8, False, 93.75),
        ("all_to_all", 32, 4, 8, False, 64.583),
        ("broadcast", 16, 2, 8, False, 400),
        ("reduce", 4, 2, 2, False, 100),
        ("send_recv", 8, 1, 8, False, 450),
        ("send_recv", 2, 2, 1, False, 25),
    ],
)
def test_other_collectives_on_hgx_nodes(operation, n, k, g, ring, expected):
    found = collective_ceiling(operation, n, k, g, 450, 50, ring=ring, gpu_nic_gbps=200)
    assert found == pytest.approx(expected, abs=0.001)


def test_nobody_alone_has_a_bandwidth():
    for operation in COLLECTIVES:
        assert collective_ceiling(operation, 1, 1, 1, 450, 50) is None


def test_ranks_that_cannot_span_their_domains_are_refused():
    for n, k, g in ((9, 1, 8), (8, 2, 8), (4, 0, 4)):
        with pytest.raises(ValueError, match="cannot span"):
            collective_ceiling("all_reduce", n, k, g, 450, 50)


@st.composite
def groups(draw):
    g = draw(st.integers(1, 72))
    k = draw(st.integers(1, 64)) if g > 1 else draw(st.integers(2, 64))
    return {"n": g * k, "k": k, "g": g, "gpu_nic_gbps": 400}


RATES = st.floats(1, 2000, allow_nan=False)
MAYBE = st.sampled_from([None, True, False])


@given(st.sampled_from(COLLECTIVES), groups(), RATES, RATES, RATES, RATES, MAYBE, MAYBE)
def test_faster_links_never_lower_a_ceiling(operation, group, B, b, more_B, more_b, nvls, sharp):
    low = collective_ceiling(operation, B=B, b=b, nvls=nvls, sharp=sharp, **group)
    high = collective_ceiling(
        operation, B=B + more_B, b=b + more_b, nvls=nvls, sharp=sharp, **group
    )
    assert 0 < low <= high


@given(st.sampled_from(COLLECTIVES), groups(), RATES, RATES, st.booleans(), st.booleans())
def test_what_is_unknown_never_lowers_a_ceiling(operation, group, B, b, nvls, sharp):
    known = collective_ceiling(operation, B=B, b=b, nvls=nvls, sharp=sharp, **group)
    assert collective_ceiling(operation, B=B, b=b, **group) >= known


@given(st.sampled_from(COLLECTIVES), groups(), RATES, RATES, MAYBE, MAYBE)
def test_a_ring_is_never_above_the_best_algorithm(operation, group, B, b, nvls, sharp):
    best = collective_ceiling(operation, B=B, b=b, nvls=nvls, sharp=sharp, **group)
    ring = collective_ceiling(operation, B=B, b=b, nvls=nvls, sharp=sharp, ring=True, **group)
    assert ring <= best * (1 + 1e-12)


def test_gemm_ceilings_of_the_h200_and_a100():
    assert hardware.gemm_ceiling("bf16", 9.0, 132, 1980) == pytest.approx(1070.5, abs=0.1)
    assert hardware.gemm_ceiling("fp32", 8.0, 108, 1410) == pytest.approx(19.49, abs=0.01)
    assert hardware.gemm_ceiling("fp8", 10.3, 148, 1965) == pytest.approx(4765, abs=1)


@pytest.mark.parametrize(("dtype", "capability"), [("fp8", 8.0), ("bf16", 7.0), ("int4", 9.0)])
def test_a_rate_that_is_not_known_is_missing_not_guessed(dtype, capability):
    with pytest.raises(MissingFact, match=dtype):
        hardware.gemm_ceiling(dtype, capability, 132, 1980)


@pytest.mark.parametrize("model", GPUS)
def test_no_computed_ceiling_is_below_the_datasheet(model):
    gpu = GPUS[model]
    for dtype in ("bf16", "fp16", "fp8", "tf32", "fp32"):
        peak = gpu.peak(dtype)
        if peak is None:
            continue
        top = hardware.datasheet_ceiling("gemm", {"model": model, "metric": dtype})
        # The sheets round up: 312 of 311.9.
        assert top >= 0.98 * peak


def test_memory_copies_and_latency():
    facts = {"model": "H200 SXM", "memory_clock_mhz": 3201, "memory_bus_bits": 6144}
    assert hardware.ceiling("hbm", facts) == pytest.approx(4917, abs=1)
    facts = {"model": "H200 SXM", "memory_clock_mhz": 3201, "memory_bus_bits": 6016}
    assert hardware.ceiling("hbm", facts) == pytest.approx(4814, abs=1), "as NVML says of 141 GB"
    facts = {"model": "B200", "memory_clock_mhz": 3996, "memory_bus_bits": 7680}
    assert hardware.ceiling("hbm", facts) == 8000, "the driver's bus width is short of the sheet's"
    assert hardware.ceiling("pcie", {"model": "L40S", "pcie_gen": 4, "pcie_width": 8}) == 15.5
    assert hardware.ceiling("pcie", {"model": "GB200"}) == 450
    assert hardware.ceiling("p2p", {"model": "H100 SXM"}) == 450
    assert hardware.ceiling("p2p", {"model": "L40S"}) == 31
    assert hardware.ceiling("p2p_both", {"model": "H100 SXM"}) == 900
    assert hardware.ceiling("alone", {"model": "H200 SXM", "alone_gbps": 55.5}) == 55.5
    with pytest.raises(MissingFact, match="alone_gbps"):
        hardware.ceiling("alone", {"model": "H200 SXM"})
    assert hardware.ceiling("memory", {"model": "H100 SXM"}) == 80
    assert hardware.ceiling("latency", {"model": "H200 SXM", "gpus": 8, "domains": 1}) == 2
    assert hardware.ceiling("latency", {"model": "H200 SXM", "gpus": 16, "domains": 2}) == 5
    assert hardware.ceiling("latency", {"model": "H200 SXM", "gpus": 1}) is None


PAIR = {
    "model": "H100 SXM", "gpus": 16, "domains": 2, "gpus_per_domain": 8,
    "gpus_per_node": 8, "nics_per_node": 8, "nic_gbps": 400, "sharp": False,
}  # fmt: skip


def test_the_one_door_takes_flat_facts():
    assert hardware.ceiling("all_reduce", PAIR | {"nvls": True}) == 750
    assert hardware.ceiling("all_reduce", PAIR | {"nvls": False}) == 500
    assert hardware.ceiling("all_reduce", PAIR | {"nvls": True, "algorithm": "ring"}) == 400
    assert hardware.ceiling("all_reduce", PAIR) == 750
    shared = PAIR | {"nics_per_node": 4, "nic_gbps": 200}
    assert hardware.ceiling("send_recv", shared) == 25, "one GPU reaches a whole NIC"
    assert hardware.ceiling("all_to_all", shared) == pytest.approx(12.5 * 15 / 8)


@pytest.mark.parametrize("absent", [name for name in PAIR if name != "sharp"])
def test_a_missing_fact_is_named(absent):
    facts = {name: value for name, value in PAIR.items() if name != absent}
    with pytest.raises(MissingFact, match=absent) as caught:
        hardware.ceiling("all_reduce", facts)
    assert caught.value.fact == absent


@pytest.mark.parametrize("value", [0, -1, float("nan"), "8", True, 7.5])
def test_a_fact_that_is_no_count_is_missing(value):
    with pytest.raises(MissingFact, match="gpus"):
        hardware.ceiling("all_reduce", PAIR | {"gpus": value})


def test_nics_do_not_matter_inside_a_domain():
    inside = {"model": "H200 SXM", "gpus": 4, "domains": 1, "gpus_per_domain": 4, "nvls": False}
    assert hardware.ceiling("all_reduce", inside) == 450


def test_a_cpu_has_generous_ceilings_and_no_datasheet():
    facts = {"model": "cpu", "metric": "bf16", "cpu_cores": 2, "cpu_max_ghz": 3.0}
    assert hardware.ceiling("gemm", facts) == pytest.approx(12.288)
    assert hardware.ceiling("gemm", facts | {"dtype": "fp32"}) == pytest.approx(0.768)
    assert hardware.ceiling("all_reduce", {"model": "cpu", "gpus": 4}) == hardware.CPU_MEMORY_GBPS
    assert hardware.ceiling("all_reduce", {"model": "cpu", "gpus": 1}) is None
    assert hardware.ceiling("hbm", {"model": "cpu"}) == hardware.CPU_MEMORY_GBPS
    with pytest.raises(MissingFact):
        hardware.ceiling("memory", {"model": "cpu"})
    with pytest.raises(MissingFact, match="fp8"):
        hardware.ceiling("gemm", facts | {"dtype": "fp8"})


@pytest.mark.parametrize(
    ("product", "model"),
    [
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80"),
        ("A100-SXM4-40GB", "A100 SXM 40"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GH200 480GB", "GH200 96"),
        ("NVIDIA GH200 120GB", "GH200 96"),
        ("NVIDIA GH200 144G HBM3e", "GH200 144"),
        ("NVIDIA H20", "H20 96"),
        ("NVIDIA H20-3e", "H20 141"),
        ("NVIDIA H800", "H800 SXM"),
        ("NVIDIA A800-SXM4-80GB", "A800 SXM 80"),
        ("NVIDIA A800 80GB PCIe", "A800 PCIe 80"),
        ("NVIDIA H100 64GB HBM2", "H100 SXM 64"),
        ("NVIDIA H100 96GB HBM3", "H100 SXM 96"),
        ("NVIDIA A40", "A40"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000"),
        ("cpu", "cpu"),
        *((model, model) for model in GPUS),
    ],
)
def test_product_names(product, model):
    assert model_of(product) == model


@pytest.mark.parametrize(
    "product",
    [
        "NVIDIA H100",
        "NVIDIA A100",
        "NVIDIA GH200",
        "NVIDIA L4",
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "AMD Instinct MI300X",
        "",
    ],
)
def test_an_unknown_gpu_is_an_error_that_names_the_way_out(product):
    with pytest.raises(UnknownGpu, match="--calibrate") as caught:
        model_of(product)
    assert repr(product) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ConfigError)


@pytest.mark.parametrize(
    ("product", "remedy"),
    [
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "switch MIG off"),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "switch MIG off"),
        ("NVIDIA GH200 480GB MIG 1c.2g.24gb", "switch MIG off"),
        ("GRID A100D-20C", "pass whole GPUs through"),
        ("NVIDIA H100-80C", "pass whole GPUs through"),
        ("NVIDIA L40S-48Q", "pass whole GPUs through"),
        ("GRID A100D-1-20C", "pass whole GPUs through"),
        ("NVIDIA A100-1-5CME", "pass whole GPUs through"),
    ],
)
def test_a_part_of_a_gpu_is_refused_with_what_to_do(product, remedy):
    with pytest.raises(UnknownGpu, match=remedy):
        model_of(product)


def test_no_whole_gpu_is_taken_for_a_part():
    names = [
        *hardware.GPUS,
        *hardware._PRODUCTS,
        *(f"NVIDIA {name}" for name in hardware._PRODUCTS),
    ]
    assert [name for name in names if hardware.part_of_gpu(name)] == []


@pytest.mark.parametrize("product", ["Tesla V100-SXM2-32GB", "Tesla V100S-PCIE-32GB"])
def test_a_gpu_without_bf16_is_refused_with_the_reason(product):
    with pytest.raises(UnknownGpu, match="has no bf16"):
        model_of(product)


@given(st.text())
def test_no_text_is_mistaken_for_a_gpu(text):
    try:
        model = model_of(text)
    except UnknownGpu:
        return
    assert model in hardware.MODELS


def test_an_unknown_kind_is_a_bug_not_a_missing_fact():
    with pytest.raises(ValueError, match="known: gemm") as caught:
        hardware.ceiling("gem", {})
    assert not isinstance(caught.value, MissingFact)
