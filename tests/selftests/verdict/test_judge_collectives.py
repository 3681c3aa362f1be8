"""Curves, rails and transports: what of a collective's record is a failure, and whose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fixtures import entry
from fixtures.records.model import Measurement, RankResult, Record
from fixtures.statistics.fleet_slots import Like
from fixtures.thresholds import loader
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Case, Outcome, Verdict
from fixtures.workloads.collectives.swept import SWEPT
from tests.selftests.support import CHECKOUT, SHIPPED, case, rank, record

pytestmark = pytest.mark.cpu

MIB = 1 << 20
CURVE = {16: 100.0, 32: 290, 64: 315, 128: 330, 256: 341, 512: 348, 1024: 354, 2048: 361}
"""GB/s by MiB, as 4 H200 have them; 16 MiB is below what is looked at."""

H200 = {"model": "H200 SXM", "gpus": 4, "gpus_per_node": 4, "nodes": 1}


@pytest.fixture(scope="module")
def limits() -> Thresholds:
    return loader.load(SHIPPED)


def curve(values: Mapping[int, float], metric: str = "busbw") -> list[Measurement]:
    return [
        Measurement(metric=metric, unit="GB/s", samples=[v] * 20, at={"size": mib * MIB})
        for mib, v in values.items()
    ]


def node(measured: list[list[Measurement]]) -> Record:
    ranks = [rank(k, "worker0", *found) for k, found in enumerate(measured)]
    return record(*ranks, workload="allreduce")


def dip(limits: Thresholds, *measured: list[Measurement]) -> Verdict:
    found = node(list(measured))
    about = {"facts": H200, "gpus": len(measured)}
    return judge(case(limits, "allreduce.node.dip", found, **about), limits)


def test_a_rising_curve_has_no_dip(limits: Thresholds) -> None:
    verdict = dip(limits, curve(CURVE), curve(CURVE))
    assert (verdict.outcome, verdict.value) == (Outcome.PASS, 0)


def test_a_dip_fails_and_says_where(limits: Thresholds) -> None:
    verdict = dip(limits, curve(CURVE), curve({**CURVE, 512: 300}))
    assert verdict.outcome is Outcome.FAIL
    # The harmonic mean of 348 and 300 against 341.
    assert verdict.value == pytest.approx(100 * (1 - 322.22 / 341), abs=0.01)
    assert verdict.worst is not None
    assert (verdict.worst["gpu"], verdict.worst["part"]) == (None, "all GPUs")
    assert "at 256MiB to 322.2 at 512MiB" in verdict.notes[0]


def test_a_fall_below_the_sizes_that_are_looked_at_is_none(limits: Thresholds) -> None:
    verdict = dip(limits, curve({8: 200, **CURVE}), curve({8: 200, **CURVE}))
    assert verdict.ok


def test_a_fall_that_is_gone_when_measured_again_is_no_dip(limits: Thresholds) -> None:
    once = curve({**CURVE, 512: 300})
    again = curve({256: 341, 512: 348}, metric="busbw_again")
    assert dip(limits, once + again, once + again).ok
    twice = curve({256: 341, 512: 302}, metric="busbw_again")
    verdict = dip(limits, once + twice, once + twice)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.value == pytest.approx(100 * (1 - 302 / 341))


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ({k: v for k, v in CURVE.items() if k != 128}, "measured on 1 of 2 devices"),
        ({**CURVE, 128: float("nan")}, "not finite"),
        ({**CURVE, 128: 0.0}, "not positive"),
    ],
)
def test_a_curve_with_a_hole_is_not_measured(
    second: dict[int, float], reason: str, limits: Thresholds
) -> None:
    verdict = dip(limits, curve(CURVE), curve(second))
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert reason in verdict.reason


def test_a_curve_that_lost_a_size_on_every_rank_is_not_measured(limits: Thresholds) -> None:
    """A whole size is gone, so no rank is missing; the others say how many there were."""
    found = curve({k << 10: 100.0 for k in (1, 2, 4, 8)})
    for m in found:
        m.checks["sizes"] = 4.0
    assert dip(limits, found, found).outcome is Outcome.PASS
    verdict = dip(limits, found[:3], found[:3])
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert verdict.reason == "the curve has 3 of 4 sizes"


def test_two_sizes_are_no_curve(limits: Thresholds) -> None:
    short = curve({64: 300, 128: 310})
    verdict = dip(limits, short, short)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert "2 sizes" in verdict.reason


# --- rails

HGX = {
    "model": "H200 SXM", "gpus": 2, "gpus_per_node": 2, "nodes": 2, "nics_per_node": 2,
    "nic_gbps": 400, "domains": 2, "gpus_per_domain": 1,
}  # fmt: skip


def rails(*rates: float) -> Record:
    """Two nodes of two GPUs: the rates of worker0 gpu0, gpu1, worker1 gpu0, gpu1."""
    ranks: list[RankResult] = [
        rank(
            k,
            f"worker{k // 2}",
            Measurement(
                metric="busbw", unit="GB/s", samples=[rate] * 20, at={"size": 1 << 30},
                checks={"batches": 20},
            ),
        )
        for k, rate in enumerate(rates)
    ]  # fmt: skip
    return record(*ranks, workload="rails", placement="all")


def rail_case(limits: Thresholds, subject: str, found: Record, **more: Any) -> Case:
    nodes = ("worker0", "worker1")
    return Case(
        criterion=limits.criteria["rails.sendrecv.1GiB"], subject=subject, nodes=nodes,
        record_nodes=nodes, devices=2, facts=HGX, record=found, **more,
    )  # fmt: skip


def test_a_slow_nic_is_red_on_its_rail_alone(limits: Thresholds) -> None:
    found = rails(47, 30, 47, 47)
    good = judge(rail_case(limits, "rail0", found), limits)
    bad = judge(rail_case(limits, "rail1", found), limits)
    assert (good.outcome, good.value, good.ceiling) == (Outcome.PASS, 47, 50)
    assert (bad.outcome, bad.value) == (Outcome.FAIL, 30)
    assert bad.worst is not None
    # Who sends waits for who receives: the search between pairs says which of them it is.
    assert (bad.worst["node"], bad.worst["part"], bad.worst["value"]) == (None, "all nodes", 30)


def test_a_rail_is_slower_than_its_siblings(limits: Thresholds) -> None:
    found = rails(48, 48, 45, 48)
    siblings = Like((48.0, 48.0, 45.0, 48.0))
    verdict = judge(rail_case(limits, "rail0", found, siblings=siblings), limits)
    assert verdict.outcome is Outcome.FAIL
    assert "outlier" in verdict.reason
    assert judge(rail_case(limits, "rail1", found, siblings=siblings), limits).ok


def test_a_rail_above_the_line_rate_is_a_measurement_error(limits: Thresholds) -> None:
    verdict = judge(rail_case(limits, "rail0", rails(52, 47, 52, 47)), limits)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert "physical ceiling of 50" in verdict.reason


def test_a_rail_without_one_of_its_gpus_is_not_measured(limits: Thresholds) -> None:
    found = rails(47, 47, 47)
    verdict = judge(rail_case(limits, "rail1", found), limits)
    assert verdict.outcome is Outcome.NOT_MEASURED


# --- transports


@pytest.mark.parametrize(
    ("key", "metric", "value", "outcome"),
    [
        ("allreduce.node.transport", "transport", "P2P", Outcome.PASS),
        ("allreduce.node.transport", "transport", "SHM", Outcome.FAIL),
        ("allreduce.cluster.transport", "transport", "NET/IB", Outcome.PASS),
        ("allreduce.cluster.transport", "transport", "NET/Socket", Outcome.FAIL),
        ("allreduce.cluster.gdr", "gdr", "on", Outcome.PASS),
        ("allreduce.cluster.gdr", "gdr", "off", Outcome.FAIL),
        ("allreduce.cluster.nics", "nics", 2, Outcome.PASS),
        ("allreduce.cluster.nics", "nics", 1, Outcome.FAIL),
    ],
)
def test_the_way_that_nccl_took_is_judged(
    key: str, metric: str, value: str | int, outcome: Outcome, tmp_path: Any
) -> None:
    text = SHIPPED.read_text(encoding="utf-8").replace(
        "cluster: {}",
        "cluster: {nodes: 2, gpus_per_node: 2, gpu_model: H200 SXM,"
        " nics_per_node: 2, nic_gbps: 400}",
    )
    path = tmp_path / "thresholds.yaml"
    path.write_text(text, encoding="utf-8")
    ordered = loader.load(path)
    unit = "NICs" if metric == "nics" else "state"
    ranks = [
        rank(k, f"worker{k // 2}", Measurement(metric=metric, unit=unit, value=value))
        for k in range(4)
    ]
    found = record(*ranks, workload="allreduce", placement="all")
    nodes = ("worker0", "worker1")
    if "node" in key:
        found = record(*ranks[:2], workload="allreduce")
        nodes = ("worker0",)
    verdict = judge(case(ordered, key, found, nodes=nodes, gpus=2), ordered)
    assert verdict.outcome is outcome, verdict.line
    if outcome is Outcome.FAIL:
        assert str(value) in verdict.line


def test_every_workload_whose_ranks_wait_for_each_other_is_known_as_one() -> None:
    """Else a new one would name the GPU whose figure is lowest by its last digit."""
    folder = CHECKOUT / "fixtures" / "workloads"
    of_all = {
        p.stem for p in folder.glob("*/*.py") if "collective_sweep.run(" in p.read_text("utf-8")
    }
    assert {"allreduce", "swept"} <= of_all
    of_all = (of_all - {"swept"}) | {*SWEPT}
    assert len(of_all) >= 8
    names = {c.workload for c in loader.load(CHECKOUT / "thresholds.yaml").criteria.values()}
    described = {name: entry.known(name) for name in names}
    synchronous = {name for name, w in described.items() if w is not None and w.synchronous}
    of_all |= {"rails_nic", "rails_alone"}  # the first runs rails, the other its operation
    of_all |= {"training_ddp", "training_fsdp"}
    of_all |= {"permutations"}  # times its own flows, in rounds of all ranks
    assert of_all == synchronous


def test_what_all_ranks_say_alike_accuses_none_of_them(limits: Thresholds) -> None:
    def wrong(*counts: int) -> Verdict:
        ranks = [
            rank(k, "worker0", Measurement(metric="errors", unit="elements", value=count))
            for k, count in enumerate(counts)
        ]
        found = record(*ranks, workload="allreduce", placement="worker0")
        about = {"facts": H200, "gpus": len(counts)}
        return judge(case(limits, "allreduce.node.errors", found, **about), limits)

    one, both = wrong(0, 3), wrong(3, 3)
    assert one.worst is not None
    assert both.worst is not None
    assert (one.outcome, both.outcome) == (Outcome.FAIL, Outcome.FAIL)
    assert one.worst["gpu"] == 1
    assert (both.worst["gpu"], both.worst["part"]) == (None, "all GPUs")
    assert "no single rank is at fault" in both.next_step
