"""judge(): what passes, what fails, and above all what never passes."""

from __future__ import annotations

import datetime
import math
from dataclasses import replace

import pytest

from fixtures.records.model import Record
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Outcome
from tests.selftests.judging import PAIR, judged
from tests.selftests.support import bf16, busbw, case, latency, node_record, rank, record, value

pytestmark = pytest.mark.cpu


# --- a value against its limit


def test_a_healthy_node_passes_with_value_limit_ceiling_and_margin(limits):
    verdict = judged(limits, "gemm.bf16", node_record(655, 650))
    assert (verdict.outcome, verdict.value, verdict.limit) == (Outcome.PASS, 650, ">= 605")
    assert verdict.ok
    assert verdict.ceiling == pytest.approx(1070.5, rel=1e-3)
    assert verdict.margin == pytest.approx((650 - 605) / 605)
    assert verdict.devices == {"planned": 2, "measured": 2}
    assert verdict.record == "gemm@worker0.json"


def test_the_slowest_device_decides_and_is_named(limits):
    verdict = judged(limits, "gemm.bf16", node_record(655, 541))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.value == 541
    assert verdict.margin == pytest.approx((541 - 605) / 605)
    assert verdict.worst == {"node": "worker0", "gpu": 1, "uuid": "GPU-worker0-1", "value": 541}
    assert verdict.line.startswith("worker0 gpu1 gemm.bf16: 541 TFLOPS, limit >= 605 (-11 %)")
    assert "GPU-worker0-1" in verdict.next_step
    assert "records/gemm@worker0.json" in verdict.line


def test_the_median_of_the_samples_is_judged(limits):
    found = record(rank(0, "worker0", bf16([100, 650, 651])), rank(1, "worker0", bf16()))
    assert judged(limits, "gemm.bf16", found).value == 650


def test_a_value_on_the_limit_passes_and_one_below_it_fails(limits):
    assert judged(limits, "gemm.bf16", node_record(605, 605)).outcome is Outcome.PASS
    below = math.nextafter(605, 0)
    assert judged(limits, "gemm.bf16", node_record(605, below)).outcome is Outcome.FAIL


def test_the_highest_latency_decides_and_names_no_gpu_where_all_wait_for_each_other(limits):
    found = record(rank(0, "worker0", latency(40)), rank(1, "worker0", latency(90)))
    verdict = judged(limits, "allreduce.latency", found)
    assert (verdict.outcome, verdict.value) == (Outcome.FAIL, 90)
    everybody = {"gpu": None, "uuid": None, "part": "all GPUs", "value": 90}
    assert verdict.worst == {"node": "worker0", **everybody}
    assert verdict.line.startswith("worker0 all GPUs allreduce.latency: 90 us, limit <= ")
    assert verdict.next_step.startswith("compare nvlink.*, p2p.* of worker0")


@pytest.mark.parametrize(
    ("rates", "outcome"), [((650, 600), Outcome.PASS), ((650, 580), Outcome.FAIL)]
)
def test_the_spread_between_devices_is_judged_in_per_cent_of_the_median(limits, rates, outcome):
    verdict = judged(limits, "gemm.spread", node_record(*rates))
    assert verdict.outcome is outcome
    assert verdict.value == pytest.approx(100 * (rates[0] - rates[1]) / (sum(rates) / 2))
    assert verdict.worst["gpu"] == 1, "the slowest stands for the spread"


def test_a_rate_over_ranks_is_the_harmonic_mean_of_each_batch(limits):
    found = record(
        *[
            rank(k, PAIR[k // 2], busbw(*samples))
            for k, samples in enumerate([(60, 90), (120, 90), (60, 90), (120, 90)])
        ],
        workload="allreduce", placement="all",
    )  # fmt: skip
    verdict = judged(limits, "allreduce.pair", found, nodes=PAIR)
    assert verdict.value == pytest.approx((80 + 90) / 2), "not the arithmetic (90 + 90) / 2"
    assert verdict.outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("inventory.gpus", 2, 1),
        ("inventory.gpus", 2, 3),
        ("inventory.gpu_model", "NVIDIA H200", "H100 SXM"),
        ("inventory.gpu_model", "NVIDIA H200", "Something New"),
        ("allreduce.errors", 0, 1),
    ],
)
def test_a_state_or_count_must_hold_on_every_rank_that_reports_it(limits, key, good, bad):
    criterion = limits.criteria[key]

    def found(second):
        ranks = [
            rank(0, "worker0", value(criterion.metric, criterion.unit, good)),
            rank(1, "worker0", value(criterion.metric, criterion.unit, second)),
        ]
        return record(*ranks, workload=criterion.workload)

    assert judged(limits, key, found(good)).outcome is Outcome.PASS
    verdict = judged(limits, key, found(bad))
    assert (verdict.outcome, verdict.value) == (Outcome.FAIL, bad)
    assert verdict.worst["gpu"] == 1


# --- what was not measured


def test_a_missing_record_says_kind_reason_and_next_step(limits):
    missing = {
        "kind": "node lost", "reason": "job 42 (NODE_FAIL)", "next_step": "look at the console",
        "job": "42",
    }  # fmt: skip
    verdict = judged(limits, "gemm.bf16", missing=missing)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert verdict.reason == "node lost: job 42 (NODE_FAIL)"
    assert verdict.next_step == "look at the console"
    assert verdict.line.startswith("worker0 gemm.bf16: not measured; node lost")


def test_no_record_and_no_reason_is_not_measured(limits):
    verdict = judged(limits, "gemm.bf16")
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert "no record" in verdict.reason


def test_a_missing_metric_never_passes(limits):
    found = record(rank(0, "worker0"), rank(1, "worker0"))
    verdict = judged(limits, "gemm.bf16", found)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert verdict.reason == "the record holds no bf16"


def test_a_missing_point_of_the_sweep_never_passes(limits):
    found = record(*[rank(k, PAIR[k // 2], busbw(200, size=2**20)) for k in range(4)])
    verdict = judged(limits, "allreduce.pair", found, nodes=PAIR)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert "size=1073741824" in verdict.reason


def test_a_rank_without_the_metric_never_passes(limits):
    verdict = judged(limits, "gemm.bf16", record(rank(0, "worker0", bf16()), rank(1, "worker0")))
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert verdict.reason == "measured on 1 of 2 devices"


def test_a_rank_that_measured_twice_does_not_stand_for_another(limits):
    found = record(rank(0, "worker0", bf16(), bf16()), rank(1, "worker0"))
    assert judged(limits, "gemm.bf16", found).outcome is Outcome.NOT_MEASURED
    found = record(rank(0, "worker0", bf16(), bf16()), rank(1, "worker0", bf16()))
    assert judged(limits, "gemm.bf16", found).outcome is Outcome.NOT_MEASURED


@pytest.mark.parametrize("key", ["gemm.bf16", "gemm.spread"])
def test_a_record_of_fewer_ranks_than_planned_devices_never_passes(limits, key):
    verdict = judged(limits, key, record(rank(0, "worker0", bf16())))
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert verdict.reason == "measured on 1 of 2 devices"


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, 0.0, -650.0])
def test_a_sample_that_is_no_positive_number_never_passes(limits, wrong):
    found = record(rank(0, "worker0", bf16()), rank(1, "worker0", bf16([650, wrong, 650])))
    verdict = judged(limits, "gemm.bf16", found)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert "worker0 gpu1" in verdict.reason


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1, False, True, None, "0"])
@pytest.mark.parametrize("first", [True, False])
def test_a_count_that_is_no_count_never_passes(limits, wrong, first):
    pair = [wrong, 0] if first else [0, wrong]
    ranks = [rank(k, "worker0", value("errors", "elements", v)) for k, v in enumerate(pair)]
    verdict = judged(limits, "allreduce.errors", record(*ranks, workload="allreduce"))
    assert verdict.outcome is Outcome.NOT_MEASURED


def test_no_samples_never_passes(limits):
    found = record(rank(0, "worker0", bf16([])), rank(1, "worker0", bf16()))
    reason = judged(limits, "gemm.bf16", found).reason
    assert reason == "worker0 gpu0: the workload returned no samples"


def test_a_value_above_the_ceiling_is_a_measurement_error(limits):
    ceiling = judged(limits, "gemm.bf16", node_record(650, 650)).ceiling
    just = judged(limits, "gemm.bf16", node_record(650, 1.019 * ceiling))
    assert just.outcome is Outcome.PASS
    above = judged(limits, "gemm.bf16", node_record(650, 1.021 * ceiling))
    assert above.outcome is Outcome.NOT_MEASURED
    assert "worker0 gpu1: measurement error" in above.reason
    assert "physical ceiling" in above.reason


def test_a_slow_device_does_not_hide_one_above_the_ceiling(limits):
    verdict = judged(limits, "gemm.bf16", node_record(300, 5000))
    assert verdict.outcome is Outcome.NOT_MEASURED


@pytest.mark.parametrize("model", ["H200 SXM", "B200"])
def test_a_latency_below_the_physical_floor_is_a_measurement_error(limits, model):
    found = record(rank(0, "worker0", latency(1.0)), rank(1, "worker0", latency(40)))
    verdict = judged(limits, "allreduce.latency", found, facts={"model": model})
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert "physical floor" in verdict.reason


def test_a_missing_fact_of_the_ceiling_is_not_guessed(limits):
    ranks = [rank(k, "worker0", bf16()) for k in range(2)]
    for one in ranks:
        del one.device["sm_count"]
    verdict = judged(limits, "gemm.bf16", record(*ranks))
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert "sm_count" in verdict.reason


@pytest.mark.parametrize(
    ("checks", "reason"),
    [({}, "overlap was not recorded"), ({"overlap": 0.5}, "overlap is 0.5"),
     ({"overlap": math.nan}, "overlap is nan")],
)  # fmt: skip
def test_an_invalid_measurement_is_not_measured(limits, checks, reason):
    found = record(rank(0, "worker0", bf16()), rank(1, "worker0", bf16(checks=checks)))
    verdict = judged(limits, "gemm.bf16", found)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert reason in verdict.reason


def test_a_measurement_in_another_unit_is_not_measured(limits):
    found = record(rank(0, "worker0", bf16()), rank(1, "worker0", bf16(unit="GFLOPS")))
    verdict = judged(limits, "gemm.bf16", found)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert verdict.reason == "worker0 gpu1: measured in GFLOPS, the contract says TFLOPS"


def test_conditions_that_differ_between_devices_are_not_measured(limits):
    found = record(rank(0, "worker0", busbw(120, nvls=True)), rank(1, "worker0", busbw(120)))
    assert judged(limits, "allreduce.nvls", found).outcome is Outcome.PASS
    found.ranks[1].measurements[0].conditions["nvls"] = False
    verdict = judged(limits, "allreduce.nvls", found)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert verdict.reason.startswith("nvls differs between devices")


def test_an_open_condition_is_not_measured_and_says_which(limits):
    found = record(rank(0, "worker0", busbw(120)), rank(1, "worker0", busbw(120)))
    verdict = judged(limits, "allreduce.nvls", found)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert "depends on nvls, which is not known" in verdict.reason


def test_a_limit_that_nobody_has_set_is_not_measured(limits):
    verdict = judged(limits, "gemm.bf16", node_record(650, 650), facts={"model": "B200"})
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert "calibrate: true" in verdict.reason


def test_what_has_no_limit_is_recorded_with_its_value(limits):
    verdict = judged(limits, "gemm.bf16", node_record(2, 1), facts={"model": "L40S"})
    assert (verdict.outcome, verdict.measured) == (Outcome.RECORDED, "1 TFLOPS")
    assert verdict.reason == "nobody has published a figure"


def test_a_model_without_a_limit_is_not_measured(limits):
    verdict = judged(limits, "gemm.bf16", node_record(650, 650), facts={"model": "H100 SXM"})
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert "no limit for" in verdict.reason


def test_an_unknown_gpu_is_not_measured_where_nothing_was_ordered(limits):
    ranks = [rank(k, "worker0", bf16(), name="NVIDIA X900") for k in range(2)]
    verdict = judged(limits, "gemm.bf16", record(*ranks), facts={"model": None})
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert "'NVIDIA X900' is not known" in verdict.reason


def test_what_was_not_measured_says_which_error_came_first(limits):
    missing = {
        "kind": "rank died", "reason": "rank 1 raised", "first_error": "12:00:01 rank 0 peer_lost",
    }  # fmt: skip
    found = judge(case(limits, "gemm.bf16", missing=missing), limits)
    assert found.outcome is Outcome.NOT_MEASURED
    assert found.notes == ["first error: 12:00:01 rank 0 peer_lost"]
    assert "first error: 12:00:01" in found.line


# --- reduced sets and waivers


def pair_record(rate: float, nodes: tuple[str, ...] = PAIR) -> Record:
    ranks = [rank(2 * k + j, n, busbw(rate, rate)) for k, n in enumerate(nodes) for j in range(2)]
    return record(*ranks, workload="allreduce", placement="all")


def test_what_passes_on_a_part_of_the_nodes_is_not_measured(limits):
    found = pair_record(100, ("worker0",))
    verdict = judged(limits, "allreduce.pair", found, nodes=PAIR)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert verdict.reason == "passes on 1 of 2 nodes; without worker1"
    assert verdict.value == pytest.approx(100), "the figure is shown all the same"


def test_what_fails_on_a_part_of_the_nodes_fails(limits):
    verdict = judged(limits, "allreduce.pair", pair_record(50, ("worker0",)), nodes=PAIR)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.reason == "measured on 1 of 2 nodes"


def test_a_node_that_took_no_part_is_not_measured(limits):
    found = replace(node_record(650, 650, node="worker1"), placement="all")
    verdict = judged(limits, "gemm.bf16", found, record_nodes=PAIR)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert verdict.reason == "not measured on worker0, only on worker1"


def test_a_waived_failure_is_waived_until_the_waiver_runs_out(limits):
    waived = case(limits, "gemm.bf16", node_record(100, 100, node="waived"), nodes=("waived",))
    day = datetime.date(2026, 12, 31)
    verdict = judge(waived, limits, today=day)
    assert verdict.outcome is Outcome.WAIVED
    assert not verdict.ok
    assert "A. Name, until 2026-12-31: RMA 4711" in verdict.reason
    verdict = judge(waived, limits, today=day + datetime.timedelta(days=1))
    assert verdict.outcome is Outcome.FAIL
    assert "waiver expired" in verdict.reason


def test_a_waiver_waives_no_missing_measurement_and_no_other_node(limits):
    day = datetime.date(2026, 12, 1)
    unmeasured = case(limits, "gemm.bf16", None, nodes=("waived",))
    assert judge(unmeasured, limits, today=day).outcome is Outcome.NOT_MEASURED
    other = case(limits, "gemm.bf16", node_record(100, 100))
    assert judge(other, limits, today=day).outcome is Outcome.FAIL
