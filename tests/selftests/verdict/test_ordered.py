"""What the order says is judged: NVLink switches that reduce, and the rates of the storage."""

from __future__ import annotations

import pytest

from fixtures.errors import ConfigError
from fixtures.plan.items import facts_of
from fixtures.thresholds import loader
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.model import Outcome
from tests.selftests import support
from tests.selftests.judging import judged
from tests.selftests.support import SHIPPED

pytestmark = pytest.mark.cpu

HGX = {"nodes": 1, "gpus_per_node": 8, "gpu_model": "H200 SXM"}


def under(**order: object) -> Thresholds:
    return loader.load_with_contract(SHIPPED, {**HGX, **order})


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ({}, True),
        ({"gpu_model": "B200"}, True),
        ({"gpus_per_node": 4}, False),
        ({"gpus_per_node": 4, "nvls": True}, True),
        ({"gpu_model": "A100 SXM 80"}, False),
        ({"nvls": {"disabled": "the host partitions its switches"}}, False),
    ],
)
def test_nvls_is_expected_by_model_and_count_and_switched_off_with_a_reason(order, expected):
    assert under(**order).cluster.expects_nvls is expected


@pytest.mark.parametrize(
    "given", ["false", "{disabled: ''}", "{reason: x}", "'no'", "{disabled: 1}"]
)
def test_nvls_is_not_switched_off_without_a_reason(given, tmp_path):
    path = tmp_path / "own.yaml"
    order = f"{{nodes: 1, gpus_per_node: 8, gpu_model: H200 SXM, nvls: {given}}}"
    path.write_text(f"schema: 1\nbase: {SHIPPED}\ncluster: {order}\n")
    with pytest.raises(ConfigError, match=r"nvls.*disabled: REASON"):
        loader.load(path)


def allreduce(limits: Thresholds, rate: float, *, nvls: bool) -> tuple[Outcome, Outcome]:
    """The outcomes of the rate of 8 GPUs, and of the use of NVLS."""
    contract = limits.cluster
    assert contract is not None
    found = support.busbw(*[rate] * 20, size=8 << 30, nvls=nvls, domains=1, gpus_per_domain=8)
    found.checks["batches"] = 20.0
    state = support.value("nvls", "state", "on" if nvls else "off")
    ranks = [support.rank(k, "worker0", found, state, gpus=8) for k in range(8)]
    record = support.record(*ranks, workload="allreduce")
    ordered = support.population(1, 8, "H200 SXM")
    people = type(ordered).from_json({**ordered.to_json(), "nvls": contract.expects_nvls})
    facts = facts_of(limits.criteria["allreduce.node.8GiB"], ("worker0",), people)
    rated = judged(limits, "allreduce.node.8GiB", record, gpus=8, facts=facts)
    used = judged(limits, "allreduce.node.nvls", record, gpus=8)
    return rated.outcome, used.outcome


def test_a_switch_without_multicast_does_not_lower_its_own_limit():
    assert allreduce(under(), 366, nvls=False) == (Outcome.FAIL, Outcome.FAIL)
    assert allreduce(under(), 476, nvls=True) == (Outcome.PASS, Outcome.PASS)
    off = under(nvls={"disabled": "the host partitions its switches"})
    assert allreduce(off, 366, nvls=False)[0] is Outcome.PASS


def test_where_it_was_switched_off_and_is_used_the_limits_are_those_of_nvls():
    off = under(nvls={"disabled": "the host partitions its switches"})
    assert allreduce(off, 366, nvls=True)[0] is Outcome.FAIL


STORAGE = {
    "filesystem.write.alone": ({"storage_write_gbs": 2.0}, 2.0),
    "filesystem.read.alone": ({"storage_read_gbs": 3.0}, 3.0),
    "filesystem.write.together": ({"storage_write_total_gbs": 8.0, "nodes": 4}, 2.0),
    "filesystem.read.together": ({"storage_read_total_gbs": 12.0, "nodes": 4}, 3.0),
    "filesystem.metadata": ({"storage_metadata_ops": 900.0}, 900.0),
}


@pytest.mark.parametrize("key", STORAGE)
def test_a_storage_rate_that_was_ordered_is_judged(key):
    order, share = STORAGE[key]
    limits = under(**order)
    assert under().criteria[key].recorded_reason({"model": "H200 SXM"})
    assert limits.criteria[key].recorded_reason({"model": "H200 SXM"}) is None
    criterion = limits.criteria[key]
    for found, outcome in ((share * 1.01, Outcome.PASS), (share * 0.99, Outcome.FAIL)):
        value = support.value(criterion.metric, criterion.unit, found)
        value.checks["rounds"] = 5.0
        record = support.record(support.rank(0, "worker0", value), workload="filesystem")
        assert judged(limits, key, record).outcome is outcome
