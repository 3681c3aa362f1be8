"""Matrix products on all GPUs of a node at once, the slowest judged."""

import pytest

pytestmark = [pytest.mark.multinode, pytest.mark.singlenode, pytest.mark.gpu]


@pytest.mark.criterion("gemm.bf16", "gemm.fp16", "gemm.tf32", "gemm.fp32", "gemm.fp8")
def test_every_gpu_reaches_the_agreed_rate(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("gemm.spread")
def test_the_gpus_of_a_node_are_alike(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("gemm.bf16_per_ghz")
def test_every_gpu_does_the_agreed_work_in_a_clock_cycle(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("gemm.bf16_best", "gemm.fp8_best")
def test_the_best_published_shape_is_recorded(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("gemm.identical", "gemm.identical.cluster")
def test_like_gpus_get_the_same_product_bit_for_bit(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("burnin.bf16", "burnin.steadiness")
def test_every_gpu_holds_its_rate(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("burnin.products", "burnin.thermal", "burnin.power_brake")
def test_no_gpu_errs_or_is_slowed_down_under_a_long_load(measured, agreed):
    assert measured <= agreed
