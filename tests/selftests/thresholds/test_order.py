"""Whose order counts: that of the file of limits, held against what run.json says."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.cluster.population import contract_json
from fixtures.thresholds.order import RUN_ALONE, order_of, origin_of
from tests.selftests import support

pytestmark = pytest.mark.cpu

LESS = [
    ({"nodes": 1}, "nodes 1, ordered 2"),
    ({"gpus_per_node": 1}, "gpus_per_node 1, ordered 2"),
    ({"firmware": None}, "firmware not stated, ordered"),
    ({"mounts": None}, "mounts not stated, ordered"),
    ({"driver": None, "nics_per_node": 0}, "nics_per_node 0, ordered 4; driver not stated"),
]
ORDER = (
    "cluster: {nodes: 2, gpus_per_node: 2, gpu_model: H200 SXM, nics_per_node: 4, driver: '570', "
    "mounts: {/scratch: ext4}, firmware: {nic: '1'}}"
)


@pytest.fixture
def limits(tmp_path):
    before = "cluster: {nodes: 2, gpus_per_node: 2, gpu_model: H200 SXM}"
    return support.load(tmp_path, support.LIMITS.replace(before, ORDER))


def run_of(contract: Any, origin: str = "cluster") -> dict[str, Any]:
    return {"contract": contract, "population": {"origin": origin}}


@pytest.mark.parametrize(("less", "said"), LESS)
def test_the_file_counts_where_run_json_orders_less(limits, less, said):
    order = order_of(limits, run_of(contract_json(limits.cluster) | less))
    assert (order.limits.cluster, order.of_file) == (limits.cluster, True)
    (line,) = order.differences
    assert line.startswith("run.json states another order than thresholds.yaml, which counts: ")
    assert said in line


def test_the_same_order_differs_in_nothing_and_none_in_all(limits):
    assert order_of(limits, run_of(contract_json(limits.cluster))).differences == ()
    assert order_of(limits, run_of(None)).differences[0].endswith("run.json has none")
    parties = contract_json(limits.cluster) | {"customer": "someone else"}
    assert (
        "customer 'someone else', ordered not stated"
        in (order_of(limits, run_of(parties)).differences[0])
    )


def test_run_json_counts_where_no_file_is_about_it(limits, tmp_path):
    stated = contract_json(limits.cluster) | {"nodes": 1}
    for origin in ("sandbox", "by-hand"):
        order = order_of(limits, run_of(stated, origin))
        assert (order.source, order.differences) == (RUN_ALONE, ())
        assert order.limits.cluster is not None
        assert order.limits.cluster.nodes == 1
    shipped = support.load(tmp_path, support.LIMITS.replace(
        "cluster: {nodes: 2, gpus_per_node: 2, gpu_model: H200 SXM}", "cluster: {}"
    ))  # fmt: skip
    order = order_of(shipped, run_of(stated))
    assert (order.of_file, order.differences) == (False, ())
    assert order.limits.cluster is not None


def test_an_origin_is_that_of_the_nodes_and_of_a_run_by_hand_at_the_top():
    assert origin_of(run_of(None, "local")) == "local"
    assert origin_of({"origin": "by-hand", "population": {}}) == "by-hand"
    assert origin_of({"population": []}) == ""
