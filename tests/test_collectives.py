"""Collectives in a node, between nodes, over all of them and along the rails."""

import pytest

pytestmark = [pytest.mark.multinode, pytest.mark.gpu]

SIZES = ("16MiB", "1GiB", "4GiB", "8GiB")
OTHERS = ("allgather", "reducescatter", "alltoall", "broadcast", "sendrecv")


@pytest.mark.singlenode
@pytest.mark.criterion(
    "allreduce.node.256MiB", "allreduce.node.1GiB", "allreduce.node.4GiB", "allreduce.node.8GiB"
)
def test_the_gpus_of_a_node_reach_the_agreed_bus_bandwidth(measured, agreed):
    assert measured >= agreed


@pytest.mark.singlenode
@pytest.mark.criterion(*(f"{name}.node.{size}" for name in OTHERS for size in SIZES))
def test_the_gpus_of_a_node_reach_the_agreed_rate_of_every_collective(measured, agreed):
    assert measured >= agreed


@pytest.mark.singlenode
@pytest.mark.criterion(
    "allreduce.node.latency",
    "allreduce.node.graph_latency.1KiB",
    "allreduce.node.graph_latency.64KiB",
    "allreduce.node.graph_latency.1MiB",
)
def test_a_small_allreduce_in_a_node_is_fast(measured, agreed):
    assert measured <= agreed


@pytest.mark.singlenode
@pytest.mark.criterion("allreduce.node.errors", *(f"{name}.node.errors" for name in OTHERS))
def test_collectives_in_a_node_are_right(measured, agreed):
    assert measured <= agreed


@pytest.mark.singlenode
@pytest.mark.criterion(
    "allreduce.node.dip",
    "allreduce.node.latency_fall",
    *(f"{name}.node.dip" for name in OTHERS),
)
def test_curves_in_a_node_have_no_dip(measured, agreed):
    assert measured <= agreed


@pytest.mark.singlenode
@pytest.mark.criterion("allreduce.node.transport")
def test_the_gpus_of_a_node_talk_over_nvlink(measured, agreed):
    assert measured == agreed


@pytest.mark.singlenode
@pytest.mark.criterion("allreduce.node.nvls")
def test_the_nvlink_switches_reduce_as_ordered(measured, agreed):
    assert measured == agreed


@pytest.mark.singlenode
@pytest.mark.criterion(*(f"allreduce_ring.node.{size}" for size in ("16MiB", "1GiB", "8GiB")))
def test_a_ring_in_a_node_reaches_the_agreed_rate(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("allreduce.pair.256MiB", "allreduce.pair.1GiB", "allreduce.pair.8GiB")
def test_two_nodes_reach_the_agreed_bus_bandwidth(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("allreduce.pair.errors")
def test_allreduce_between_two_nodes_is_right(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion(
    "allreduce.cluster.256MiB",
    "allreduce.cluster.1GiB",
    "allreduce.cluster.4GiB",
    "allreduce.cluster.8GiB",
)
def test_all_nodes_together_reach_the_agreed_bus_bandwidth(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion(*(f"{name}.cluster.{size}" for name in OTHERS for size in SIZES))
def test_all_nodes_together_reach_the_agreed_rate_of_every_collective(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion(
    "allreduce.cluster.errors",
    "allreduce_ring.errors",
    "rails.errors",
    *(f"{name}.cluster.errors" for name in OTHERS),
)
def test_collectives_over_all_nodes_are_right(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("allreduce.cluster.dip")
def test_the_curve_over_all_nodes_has_no_dip(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("allreduce.cluster.transport")
def test_the_nodes_talk_over_the_network_that_was_ordered(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("allreduce.cluster.gdr")
def test_the_nics_read_gpu_memory_themselves(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("allreduce.cluster.nics")
def test_an_allreduce_goes_through_every_nic(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion(*(f"allreduce_ring.cluster.{size}" for size in ("16MiB", "1GiB", "8GiB")))
def test_a_ring_over_all_nodes_reaches_the_agreed_rate(measured, agreed):
    assert measured >= agreed


@pytest.mark.infiniband
@pytest.mark.criterion(
    *(f"rails.sendrecv.{size}" for size in ("16MiB", "256MiB", "1GiB")),
    *(f"rails_nic.sendrecv.{size}" for size in ("256MiB", "1GiB")),
)
def test_every_rail_carries_the_agreed_rate(measured, agreed):
    assert measured >= agreed


@pytest.mark.infiniband
@pytest.mark.criterion("rails.alone")
def test_every_nic_with_its_gpu_carries_the_agreed_rate_by_itself(measured, agreed):
    assert measured >= agreed


@pytest.mark.singlenode
@pytest.mark.criterion("crosscheck.difference.256MiB", "crosscheck.difference.1GiB")
def test_our_allreduce_agrees_with_all_reduce_perf(measured, agreed):
    assert measured <= agreed
