"""Matrix products on all GPUs of a node at once, the slowest judged [F1]."""

import pytest

pytestmark = [pytest.mark.multinode, pytest.mark.singlenode, pytest.mark.gpu]


@pytest.mark.criterion("gemm.bf16", "gemm.fp16", "gemm.tf32", "gemm.fp32", "gemm.fp8")
def test_every_gpu_reaches_the_agreed_rate(verdict):
    assert verdict.ok, verdict.line


@pytest.mark.criterion("gemm.spread")
def test_the_gpus_of_a_node_are_alike(verdict):
    assert verdict.ok, verdict.line
