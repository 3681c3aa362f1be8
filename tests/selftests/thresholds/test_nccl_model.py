"""What a healthy cluster attains, against published runs; the limits of all orders against it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from fixtures import hardware
from fixtures.hardware import MissingFact
from fixtures.records.fields import Scalar
from fixtures.thresholds import nccl_model
from fixtures.thresholds.limits import possible_facts
from fixtures.thresholds.loader import Criterion, Thresholds

pytestmark = pytest.mark.cpu

GIB = 2**30


def order(nodes: int, model: str = "H100 SXM", **changed: Scalar) -> dict[str, Scalar]:
    """Return the facts of a collective over `nodes` nodes."""
    facts: dict[str, Scalar] = {
        "model": model, "nodes": nodes, "gpus_per_node": 8, "nics_per_node": 8, "nic_gbps": 400.0,
        "size": 8 * GIB, "metric": "busbw",
    }  # fmt: skip
    facts |= changed
    return {"gpus": nodes * int(facts["gpus_per_node"]), **facts}


def attained(kind: str, facts: dict[str, Scalar]) -> float:
    found = nccl_model.attainable(kind, facts)
    assert found is not None
    return found.busbw


PUBLISHED = {
    # Who measured what: kind, facts, GB/s
    "4 nodes of H200 over EFA, ring, 8 GiB (stas00/ml-engineering)": (
        "all_reduce", order(4, "H200 SXM", algorithm="ring"), 365),
    "4 nodes of B200 over EFA, 4 GiB (stas00/ml-engineering)": (
        "all_reduce", order(4, "B200", size=4 * GIB), 377),
    "2 nodes of H100, ring (nccl-tests issue 290)": (
        "all_reduce", order(2, algorithm="ring"), 376),
    "32 nodes of H100, all-reduce (NVIDIA)": ("all_reduce", order(32), 366),
    "248 nodes of H200, all-reduce (nccl-tests issue 290)": (
        "all_reduce", order(248, "H200 SXM"), 350),
    "DGX A100, 8 x 200 Gbit/s, ring": (
        "all_reduce", order(2, "A100 SXM 80", nic_gbps=200.0, algorithm="ring"), 192),
    "4 nodes of H100, reduce-scatter (nccl issue 1229)": ("reduce_scatter", order(4), 360),
    "8 nodes": ("reduce_scatter", order(8), 345),
    "16 nodes": ("reduce_scatter", order(16), 320),
    "32 nodes": ("reduce_scatter", order(32), 300),
    "64 nodes": ("reduce_scatter", order(64), 280),
    "128 nodes": ("reduce_scatter", order(128), 260),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_model_is_within_20_percent_of_published_runs_and_the_limit_below_them(name, shipped):
    kind, facts, measured = PUBLISHED[name]
    assert measured == pytest.approx(attained(kind, facts), rel=0.20)
    keys = {"all_reduce": "allreduce.cluster.8GiB", "reduce_scatter": "reducescatter.cluster.8GiB"}
    key = keys[kind].replace("8GiB", f"{int(facts['size']) // GIB}GiB")
    if facts.get("algorithm") == "ring":
        key = key.replace("allreduce", "allreduce_ring")
    assert limit_of(shipped.criteria[key], facts, shipped) <= measured


def test_steps_take_time_and_large_sizes_hide_it():
    ring = {"algorithm": "ring"}
    for smaller, larger in itertools.pairwise((1, 2, 4, 8, 16)):
        assert attained("all_reduce", order(16, size=smaller * GIB, **ring)) < attained(
            "all_reduce", order(16, size=larger * GIB, **ring)
        )
    for fewer, more in itertools.pairwise((2, 4, 8, 16, 32, 64, 128)):
        for kind in ("all_gather", "broadcast", "all_to_all"):
            assert attained(kind, order(fewer)) > attained(kind, order(more))
    assert nccl_model.derived_facts("all_gather", order(16)) == {"bandwidth_bound": True}
    assert nccl_model.derived_facts("all_gather", order(1024)) == {"bandwidth_bound": False}
    assert attained("all_reduce", order(1024)) > 300, "a tree has few steps"


def test_what_is_not_known_is_said_and_nothing_is_derived_from_it():
    rack = order(18, "GB200", gpus_per_node=4)
    with pytest.raises(MissingFact, match="domains"):
        nccl_model.attainable("all_gather", rack)
    assert nccl_model.derived_facts("all_gather", rack) == {}
    assert nccl_model.derived_facts("hbm", {"model": "H100 SXM"}) == {}
    assert nccl_model.derived_facts("all_gather", {"model": "cpu"}) == {"bandwidth_bound": True}
    within = nccl_model.attainable("all_gather", rack | {"domains": 1, "gpus_per_domain": 72})
    assert within is not None
    assert within.bandwidth_bound
    with pytest.raises(MissingFact, match="nic_gbps"):
        nccl_model.attainable("all_gather", {**order(2), "nic_gbps": 0})
    assert nccl_model.attainable("all_gather", order(1, gpus=1)) is None


@pytest.mark.parametrize(
    ("nics", "gbps", "each"), [(4, 200.0, 12.5), (8, 400.0, 50), (1, 100.0, 1.5625)]
)
def test_rails_that_share_a_nic_share_its_rate(nics, gbps, each, shipped):
    """Four NICs of 200 Gbit/s for eight GPUs: 12.5 GB/s per rail, and no limit above that."""
    facts = order(4, gpus=4, nics_per_node=nics, nic_gbps=gbps, size=GIB)
    facts |= {"domains": 4, "gpus_per_domain": 1}
    assert hardware.ceiling("rail", facts) == pytest.approx(each)
    assert limit_of(shipped.criteria["rails.sendrecv.1GiB"], facts, shipped) < each


# --- all orders: no limit that physics forbids, or that a healthy cluster does not meet

NIC_RATES = (100.0, 200.0, 400.0, 800.0)
NOISE = 0.97
"""A healthy cluster may be so much slower than the model in one run."""
SAMPLED = (1, 2, 3, 4, 9, 33, 302, 1024)
POWERS = (128, 256, 512, 1024)
GRID = tuple(sorted({
    *range(1, 65), *range(67, 1024, 29), *POWERS,
    *(n - 1 for n in POWERS), *(n + 1 for n in POWERS[:3]),
}))  # fmt: skip
"""Numbers of nodes: all up to 64, from there every 29th, and powers of two with their neighbours.
What depends on the number changes slowly there, or at a power of two, where a tree gets a level."""
WITH_NVLS = {1: 475 / 382, 2: 430 / 375}
"""Nodes -> what switches that reduce give an all-reduce over a ring: 475 GB/s are published of a
node of eight H100, and 430 to 450 of two nodes with 8 x 400 Gbit/s."""


def orders(nodes: tuple[int, ...]) -> Iterator[dict[str, Scalar]]:
    """Yield what may be ordered, of any model whose NVLink ends at the node."""
    for n, gpus, nics, gbps in itertools.product(nodes, (4, 8), range(1, 9), NIC_RATES):
        yield order(n, "", gpus_per_node=gpus, nics_per_node=nics, nic_gbps=gbps)


def judged_models(criterion: Criterion) -> list[str]:
    """Return the models with a row that judges; a row without models holds for all of them."""
    rows = [row for row in criterion.limits if not (row.calibrate or row.recorded)]
    return [
        model for model in hardware.GPUS
        if model not in hardware.RACK_SCALE
        and any(not row.model or model in row.model for row in rows)
    ]  # fmt: skip


def facts_at(criterion: Criterion, ordered: dict[str, Scalar]) -> dict[str, Scalar] | None:
    """Return the facts of a criterion's measurement under an order; None where it has none."""
    n, per_node = int(ordered["nodes"]), int(ordered["gpus_per_node"])
    nodes, g = {
        "node": (1, per_node), "pair": (2, per_node), "rail": (n, 1), "cluster": (n, per_node),
    }[criterion.per]  # fmt: skip
    if (n > 1) == (criterion.per == "node"):
        return None  # a node's own limits do not depend on how many there are
    if criterion.per == "node":
        ordered = {k: v for k, v in ordered.items() if k not in ("nics_per_node", "nic_gbps")}
    return {
        **ordered, **criterion.at, "nodes": nodes, "gpus": nodes * g, "domains": nodes,
        "gpus_per_domain": g, "sharp": False,
    }  # fmt: skip


def limit_of(criterion: Criterion, facts: dict[str, Scalar], limits: Thresholds) -> float:
    """Return the value below which it fails, 0 where nobody judges; checks it against physics."""
    domains = {"domains": facts["nodes"], "gpus_per_domain": facts["gpus_per_node"]}
    facts = {**domains, "sharp": False, "nvls": False, **facts, **criterion.at}
    row = criterion.limit_for(facts)
    if row.recorded is not None or row.calibrate:
        return 0.0
    ceiling = criterion.bound(facts)
    resolved = row.resolve(ceiling, limits.cluster, criterion.model_for(row, facts))
    assert resolved.kind == "below"
    assert isinstance(resolved.value, float)
    assert ceiling is not None
    assert max(resolved.value, resolved.expect or 0) <= ceiling, (criterion.key, facts, row.text())
    return resolved.value


def check_orders(limits: Thresholds, nodes: tuple[int, ...]) -> int:
    """Hold every limit of a collective against physics and the model's healthy cluster.

    Orders that have the same facts are checked once. Returns how many limits were held.
    """
    checked = [
        (c, judged_models(c)) for c in limits.criteria.values()
        if c.ceiling in hardware.COLLECTIVES and c.unit == "GB/s" and c.statistic == "median"
        and "rack" not in c.when  # none of these models has NVLink beyond a node
    ]  # fmt: skip
    assert sum(1 for c, models in checked if models and c.per != "node") > 20
    seen: set[tuple[Any, ...]] = set()
    judged = 0
    for ordered in orders(nodes):
        for criterion, models in checked:
            here = facts_at(criterion, ordered)
            if here is None or (key := (criterion.key, *here.values())) in seen:
                continue
            if criterion.per in ("node", "pair"):  # the others have the number of nodes in them
                seen.add(key)
            judged += sum(hold(criterion, {**here, "model": m}, limits) for m in models)
    return judged


def hold(criterion: Criterion, facts: dict[str, Scalar], limits: Thresholds) -> int:
    """Hold a criterion's limits under these facts; returns how many there are."""
    judged = 0
    for possible in every_algorithm(criterion, facts):
        healthy = attained(str(criterion.ceiling), possible)
        if possible.get("nvls") and possible.get("algorithm") != "ring":
            healthy = with_nvls(healthy, criterion, possible)
        limit = limit_of(criterion, possible, limits)
        assert limit <= NOISE * healthy, (criterion.key, possible, limit, healthy)
        judged += limit > 0
    return judged


def every_algorithm(criterion: Criterion, facts: dict[str, Scalar]) -> Iterator[dict[str, Scalar]]:
    """Yield what a record may add: NCCL takes a ring also where no row asks for the algorithm."""
    for possible in possible_facts(criterion.limits, facts):
        if criterion.workload != "allreduce_ring":
            yield possible
        if criterion.ceiling == "all_reduce" and "algorithm" not in possible:
            yield {**possible, "algorithm": "ring"}


def with_nvls(healthy: float, criterion: Criterion, facts: dict[str, Scalar]) -> float:
    """Return what a cluster reaches whose switches reduce."""
    if criterion.ceiling == "all_reduce" and facts["gpus_per_domain"] == 8:
        return healthy * WITH_NVLS.get(int(facts["nodes"]), 1.0)
    return healthy


def test_no_order_has_a_limit_that_a_healthy_cluster_misses(shipped):
    assert check_orders(shipped, SAMPLED) > 10_000


@pytest.mark.slow
def test_no_order_of_1_to_1024_nodes_has_a_limit_that_a_healthy_cluster_misses(shipped):
    assert check_orders(shipped, GRID) > 1_000_000
