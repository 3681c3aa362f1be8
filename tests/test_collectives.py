"""AllReduce in a node, between two nodes and over all of them; the result is checked [H1]."""

import pytest

pytestmark = [pytest.mark.multinode, pytest.mark.gpu]


@pytest.mark.singlenode
@pytest.mark.criterion(
    "allreduce.node.256MiB", "allreduce.node.1GiB", "allreduce.node.4GiB", "allreduce.node.8GiB"
)
def test_the_gpus_of_a_node_reach_the_agreed_bus_bandwidth(verdict):
    assert verdict.ok, verdict.line


@pytest.mark.singlenode
@pytest.mark.criterion("allreduce.node.latency")
def test_a_small_allreduce_in_a_node_is_fast(verdict):
    assert verdict.ok, verdict.line


@pytest.mark.singlenode
@pytest.mark.criterion("allreduce.node.errors")
def test_allreduce_in_a_node_is_right(verdict):
    assert verdict.ok, verdict.line


@pytest.mark.criterion("allreduce.pair.256MiB", "allreduce.pair.1GiB", "allreduce.pair.8GiB")
def test_two_nodes_reach_the_agreed_bus_bandwidth(verdict):
    assert verdict.ok, verdict.line


@pytest.mark.criterion("allreduce.pair.errors")
def test_allreduce_between_two_nodes_is_right(verdict):
    assert verdict.ok, verdict.line


@pytest.mark.criterion(
    "allreduce.cluster.256MiB",
    "allreduce.cluster.1GiB",
    "allreduce.cluster.4GiB",
    "allreduce.cluster.8GiB",
)
def test_all_nodes_together_reach_the_agreed_bus_bandwidth(verdict):
    assert verdict.ok, verdict.line


@pytest.mark.criterion("allreduce.cluster.errors")
def test_allreduce_over_all_nodes_is_right(verdict):
    assert verdict.ok, verdict.line
