"""judge() and conclude(): what passes, what fails, and above all what never passes."""

from __future__ import annotations

import copy
import datetime
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.records.files import RecordError
from fixtures.records.model import Measurement, Record
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Outcome, Verdict
from fixtures.verdict.run_verdict import RunVerdict, conclude
from tests.selftests import support
from tests.selftests.support import bf16, busbw, case, latency, node_record, rank, record, value

pytestmark = pytest.mark.cpu

PAIR = ("worker0", "worker1")


@pytest.fixture(scope="module")
def limits(tmp_path_factory: pytest.TempPathFactory) -> Thresholds:
    return support.load(tmp_path_factory.mktemp("limits"))


def judged(limits: Thresholds, key: str, found: Record | None = None, **more: Any) -> Verdict:
    return judge(case(limits, key, found, **more), limits)


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
    assert verdict.line.startswith("worker0 gpu1 gemm.bf16: 541 TFLOPS, limit >= 605 (-11%)")
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
    assert judged(limits, "gemm.bf16", found).reason == "worker0 gpu0: no samples"


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
    assert verdict.reason == "measured in GFLOPS, the contract says TFLOPS"


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


def test_what_is_recorded_is_not_applicable(limits):
    verdict = judged(limits, "gemm.bf16", node_record(1, 1), facts={"model": "L40S"})
    assert verdict.outcome is Outcome.NOT_APPLICABLE
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


# --- outliers


def test_an_outlier_of_four_fails_though_it_is_above_the_floor(limits):
    rates = [700, 700, 700, 640]
    verdict = judged(limits, "gemm.bf16", node_record(*rates), gpus=4, siblings=rates)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.worst["gpu"] == 3
    assert verdict.reason == "outlier: 640 is below 0.92 x 700, the median of 4 like devices"


def test_the_outlier_of_another_node_is_not_blamed_on_this_one(limits):
    siblings = [700, 700, 700, 640]
    assert judged(limits, "gemm.bf16", node_record(700, 700), siblings=siblings).ok


def test_three_devices_have_no_outlier(limits):
    rates = [700, 700, 640]
    assert judged(limits, "gemm.bf16", node_record(*rates), gpus=3, siblings=rates).ok


def test_from_16_devices_on_four_standard_deviations_are_an_outlier_too(limits):
    """The floor of sigma is what like devices differ by: here 0.3 %, and so 1.2 % below 700."""
    spread = replace_spread(limits, delta=0.08, device_sigma=0.003)
    low, high = [700] * 15 + [691], [700] * 15 + [692]
    verdict = judged(spread, "gemm.bf16", node_record(700, 691), siblings=low)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.worst["gpu"] == 1
    assert verdict.reason == (
        "outlier: 691 is below 691.6, 4 standard deviations (2.1) under 700, the median of 16 like"
        " devices"
    )
    assert judged(spread, "gemm.bf16", node_record(700, 692), siblings=high).ok
    assert judged(spread, "gemm.bf16", node_record(700, 691), siblings=low[1:]).ok, "of 15"


def test_a_fleet_that_spreads_accuses_nobody_by_standard_deviations(limits):
    spread = replace_spread(limits, delta=0.08, device_sigma=0.003)
    fleet = [680 + 3 * k for k in range(16)]
    verdict = judged(spread, "gemm.bf16", node_record(680, 683), siblings=fleet)
    assert verdict.ok, verdict.line


def test_the_rule_of_a_large_fleet_never_lets_in_what_the_rule_of_a_small_one_refuses(limits):
    fleet = [700] * 15 + [640]
    verdict = judged(limits, "gemm.bf16", node_record(700, 640), siblings=fleet)
    assert verdict.reason.startswith("outlier: 640 is below 0.92 x 700")


def replace_spread(limits: Thresholds, **changed: float) -> Thresholds:
    spread = limits.spread["gemm"].model_copy(update=changed)
    return replace(limits, spread={**limits.spread, "gemm": spread})


# --- several rounds


def of_rounds(*devices: tuple[float, ...]) -> Record:
    """GPUs of one node with the rates of their rounds."""
    return record(
        *[
            rank(k, "worker0", bf16([first] * 5, rounds=further), gpus=len(devices))
            for k, (first, *further) in enumerate(devices)
        ]
    )


def test_the_median_of_the_rounds_is_judged_and_never_the_best(limits):
    verdict = judged(limits, "gemm.bf16", of_rounds((650, 650, 650), (606, 700, 608)))
    assert (verdict.outcome, verdict.value) == (Outcome.PASS, 608)
    assert verdict.worst["value"] == 608
    assert "worker0 gpu1: rounds of 606, 700, 608, 15% apart" in verdict.notes


def test_steady_rounds_above_the_limit_pass_with_a_note_of_the_worst_device(limits):
    verdict = judged(limits, "gemm.bf16", of_rounds((650, 652, 651), (608, 610, 609)))
    assert verdict.ok
    assert verdict.notes == ["worker0 gpu1: rounds of 608, 610, 609"]


def test_below_the_limit_in_every_round_fails(limits):
    verdict = judged(limits, "gemm.bf16", of_rounds((650, 650, 650), (600, 560, 604)))
    assert (verdict.outcome, verdict.value) == (Outcome.FAIL, 600)
    assert verdict.worst["gpu"] == 1


@pytest.mark.parametrize("rounds", [(600, 610, 620), (610, 600, 601), (606, 606, 604.9)])
def test_rounds_on_both_sides_of_the_limit_are_unstable(limits, rounds):
    verdict = judged(limits, "gemm.bf16", of_rounds((650, 650, 650), rounds))
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert verdict.reason.startswith("unstable: worker0 gpu1 measured ")
    assert verdict.reason.endswith(", on both sides of >= 605")


def test_an_unstable_device_does_not_hide_one_that_surely_fails(limits):
    verdict = judged(limits, "gemm.bf16", of_rounds((500, 500, 700), (601, 602, 603)))
    assert verdict.outcome is Outcome.FAIL
    assert (verdict.worst["gpu"], verdict.value) == (1, 602)


def test_a_round_above_the_ceiling_is_a_measurement_error(limits):
    verdict = judged(limits, "gemm.bf16", of_rounds((650, 650, 650), (606, 1200, 608)))
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert "measurement error, 1200" in verdict.reason


@pytest.mark.parametrize(
    ("rounds", "outcome"),
    [((640, 641, 642), Outcome.FAIL), ((640, 650, 660), Outcome.NOT_MEASURED),
     ((660, 650, 640), Outcome.NOT_MEASURED), ((650, 650, 650), Outcome.PASS)],
)  # fmt: skip
def test_an_outlier_must_be_one_in_every_round(limits, rounds, outcome):
    found = of_rounds((700,) * 3, (700,) * 3, (700,) * 3, rounds)
    siblings = [700, 700, 700, 650]
    verdict = judged(limits, "gemm.bf16", found, gpus=4, siblings=siblings)
    assert verdict.outcome is outcome
    if outcome is Outcome.NOT_MEASURED:
        assert "on both sides of 0.92 x 700, the median of 4 like devices" in verdict.reason


def test_the_rounds_of_a_group_are_combined_round_by_round(limits):
    def group(*rounds: list[tuple[float, float]], ranks: int = 4) -> Record:
        found = [
            rank(
                k, PAIR[k // 2],
                replace(busbw(*rounds[0][k]), rounds=[list(r[k]) for r in rounds[1:]]),
            )
            for k in range(ranks)
        ]  # fmt: skip
        return record(*found, workload="allreduce", placement="all")

    steady, slow = [(60, 90), (120, 90)] * 2, [(60, 60)] * 4  # 80 and 90; 60
    verdict = judged(limits, "allreduce.pair", group(steady, steady, steady), nodes=PAIR)
    assert verdict.value == pytest.approx(85)
    assert verdict.outcome is Outcome.PASS
    torn = judged(limits, "allreduce.pair", group(steady, slow, steady), nodes=PAIR)
    assert torn.outcome is Outcome.NOT_MEASURED
    low = judged(limits, "allreduce.pair", group(slow, slow, slow), nodes=PAIR)
    assert low.outcome is Outcome.FAIL
    uneven = group(steady, steady, steady)
    del uneven.ranks[1].measurements[0].rounds[1]
    verdict = judged(limits, "allreduce.pair", uneven, nodes=PAIR)
    assert verdict.reason == "some ranks measured more rounds than others"


def test_the_spread_is_taken_between_the_medians_of_the_rounds(limits):
    verdict = judged(limits, "gemm.spread", of_rounds((650, 650, 650), (600, 650, 650)))
    assert (verdict.outcome, verdict.value) == (Outcome.PASS, 0)


def test_a_record_from_before_there_were_rounds_is_judged_as_ever(limits):
    data = WHOLE["gemm.bf16"].to_json()
    for one in data["ranks"]:
        for m in one["measurements"]:
            m.pop("rounds", None)
    assert outcome_of(limits, "gemm.bf16", data) is Outcome.PASS


@pytest.mark.parametrize(
    "wrong", [650.0, [650.0], [[]], [["650"]], [[True]], [[None]], [[math.nan]], [{}]]
)
def test_rounds_that_are_no_lists_of_numbers_are_refused(wrong):
    data = WHOLE["gemm.bf16"].to_json()
    data["ranks"][0]["measurements"][0]["rounds"] = wrong
    with pytest.raises(RecordError):
        Record.from_json(data)


def test_rounds_without_samples_are_refused():
    with pytest.raises(RecordError, match="no further round"):
        Measurement.from_json({"metric": "x", "unit": "s", "value": 1, "rounds": [[1.0]]})


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
    verdict = judged(limits, "gemm.bf16", found, together=PAIR)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert verdict.reason == "worker0 took no part; measured on worker1"


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


# --- properties

RATE = st.floats(min_value=1e-3, max_value=1000, allow_nan=False)
RATES = st.lists(st.lists(RATE, min_size=1, max_size=6), min_size=2, max_size=2)
BAD_NUMBERS = st.sampled_from([math.nan, math.inf, -math.inf])
quick = settings(deadline=None, max_examples=60)


def of_samples(samples: list[list[float]]) -> Record:
    return record(*[rank(k, "worker0", bf16(s)) for k, s in enumerate(samples)])


@quick
@given(good=st.floats(605, 1000), bad=st.floats(-1e6, math.nextafter(605, 0)))
def test_a_value_on_the_bad_side_never_passes(limits, good, bad):
    assert not judged(limits, "gemm.bf16", node_record(good, bad)).ok
    assert not judged(limits, "gemm.bf16", node_record(bad, good)).ok


@quick
@given(bad=st.floats(math.nextafter(84, 100), 1e9))
def test_a_latency_on_the_bad_side_never_passes(limits, bad):
    found = record(rank(0, "worker0", latency(42)), rank(1, "worker0", latency(bad)))
    assert not judged(limits, "allreduce.latency", found).ok


@quick
@given(samples=RATES, factor=st.floats(1e-6, 1))
def test_slowing_everything_down_never_turns_a_failure_into_a_pass(limits, samples, factor):
    if judged(limits, "gemm.bf16", of_samples(samples)).outcome is not Outcome.FAIL:
        return
    slower = [[s * factor for s in rank_samples] for rank_samples in samples]
    assert not judged(limits, "gemm.bf16", of_samples(slower)).ok


@quick
@given(
    devices=st.lists(st.lists(st.floats(500, 700), min_size=3, max_size=3), min_size=2, max_size=2)
)
def test_several_rounds_pass_only_if_all_are_above_and_fail_only_if_one_is_always_below(
    limits, devices
):
    outcome = judged(limits, "gemm.bf16", of_rounds(*map(tuple, devices))).outcome
    above = all(rate >= 605 for rounds in devices for rate in rounds)
    below = any(all(rate < 605 for rate in rounds) for rounds in devices)
    wanted = Outcome.PASS if above else Outcome.FAIL if below else Outcome.NOT_MEASURED
    assert outcome is wanted


@quick
@given(
    samples=st.lists(st.lists(st.just(650.0), min_size=3, max_size=3), min_size=2, max_size=2),
    k=st.integers(0, 1), j=st.integers(0, 2), bad=BAD_NUMBERS,
)  # fmt: skip
def test_a_number_that_is_not_finite_never_passes(limits, samples, k, j, bad):
    samples[k][j] = bad
    for key in ("gemm.bf16", "gemm.spread"):
        assert judged(limits, key, of_samples(samples)).outcome is Outcome.NOT_MEASURED


# --- a record as text: any change of its shape

WHOLE = {
    "gemm.bf16": node_record(650, 650),
    "allreduce.nvls": record(
        *[rank(k, "worker0", busbw(120, 120, nvls=True)) for k in range(2)], workload="allreduce"
    ),
    "allreduce.errors": record(
        *[rank(k, "worker0", value("errors", "elements", 0)) for k in range(2)],
        workload="allreduce",
    ),
    "inventory.gpu_model": record(
        *[rank(k, "worker0", value("gpu_model", "model", "NVIDIA H200")) for k in range(2)],
        workload="inventory",
    ),
}
OTHER_TYPES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 0.5, 10**400, "", "x", [], ["x"], [[]], {}, {"x": 1}, math.nan,
    math.inf,
)  # fmt: skip
FREE = ("facts", "provenance", "job")
"""Objects whose contents are the reader's, not the judge's; their own type is checked."""


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything in a JSON document that the judge may look at."""
    if path:
        yield path
    if isinstance(data, dict) and not (path and path[-1] in FREE):
        for name, inside in data.items():
            yield from places(inside, (*path, name))
    if isinstance(data, list):
        for k, inside in enumerate(data):
            yield from places(inside, (*path, k))


def outcome_of(limits: Thresholds, key: str, data: Any) -> Outcome | None:
    """The outcome of a record's text; None where it is refused with a RecordError."""
    try:
        found = Record.from_json(json.loads(json.dumps(data)), nonce=support.NONCE)
    except RecordError:
        return None
    verdict = judged(limits, key, found)
    assert isinstance(verdict.line, str)
    json.dumps(verdict.to_json(), allow_nan=False)
    return verdict.outcome


def kind_of(data: Any) -> str:
    if isinstance(data, bool):
        return "flag"
    return "number" if isinstance(data, (int, float)) else type(data).__name__


@pytest.mark.parametrize("key", WHOLE)
def test_the_whole_record_passes_as_text(limits, key):
    assert outcome_of(limits, key, WHOLE[key].to_json()) is Outcome.PASS


@pytest.mark.parametrize("key", WHOLE)
def test_a_record_without_any_one_of_its_keys_never_passes(limits, key):
    for name in WHOLE[key].to_json():
        data = WHOLE[key].to_json()
        del data[name]
        assert outcome_of(limits, key, data) is None, name


@pytest.mark.parametrize("key", WHOLE)
def test_a_record_with_any_value_of_another_type_never_passes(limits, key):
    """What a device says of itself beside its node only has to crash nothing: see below."""
    whole = WHOLE[key].to_json()
    tried = 0
    for path in places(whole):
        for other in OTHER_TYPES:
            data = copy.deepcopy(whole)
            *parents, last = path
            target = data
            for step in parents:
                target = target[step]
            was, target[last] = target[last], other
            outcome = outcome_of(limits, key, data)
            tried += 1
            same_type = kind_of(was) == kind_of(other) and math.isfinite(_number(other))
            optional = other is None and last == "started"
            if not same_type and not optional and "device" not in parents:
                assert outcome is not Outcome.PASS, (path, other)
    assert tried > 500


@pytest.mark.parametrize("name", ["compute_capability", "sm_count", "max_sm_clock_mhz"])
@pytest.mark.parametrize("wrong", [None, True, "9.0", [], -1, 0])
def test_a_ceiling_is_not_computed_from_nonsense(limits, name, wrong):
    data = WHOLE["gemm.bf16"].to_json()
    for one in data["ranks"]:
        one["device"][name] = wrong
    assert outcome_of(limits, "gemm.bf16", data) is Outcome.NOT_MEASURED


def _number(data: Any) -> float:
    return float(data) if isinstance(data, float) else 0.0


def test_null_or_nan_instead_of_the_samples_is_refused():
    data = WHOLE["gemm.bf16"].to_json()
    data["ranks"][0]["measurements"][0]["samples"] = [None]
    with pytest.raises(RecordError, match="None is no number"):
        Record.from_json(data)
    data["ranks"][0]["measurements"][0]["samples"] = [math.nan]
    with pytest.raises(RecordError, match="nan is not finite"):
        Record.from_json(data)


def test_a_rank_missing_from_a_record_is_refused():
    data = WHOLE["gemm.bf16"].to_json()
    del data["ranks"][1]
    with pytest.raises(RecordError, match=r"ranks \[0\] are not the 2"):
        Record.from_json(data)


@quick
@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_record_with_any_byte_changed_is_judged_or_refused(limits, position, byte):
    raw = bytearray(json.dumps(WHOLE["gemm.bf16"].to_json()).encode())
    raw[position % len(raw)] = byte
    try:
        data = json.loads(raw)
    except ValueError:
        return  # Evidence reads this as "is not JSON"; test_evidence has it
    outcome = outcome_of(limits, "gemm.bf16", data)
    assert outcome in (None, Outcome.PASS, Outcome.FAIL, Outcome.NOT_MEASURED)


# --- the whole run


def verdicts(**outcomes: int) -> list[Verdict]:
    return [
        Verdict(id="F1", criterion="c", title="t", subject=f"{name}{k}", outcome=Outcome(name))
        for name, count in outcomes.items()
        for k in range(count)
    ]


def concluded(planned: int, /, *found: Verdict, **changed: Any) -> RunVerdict:
    settled = {
        "whole_scope": True, "ordered": True, "origin": "cluster", "demonstration": False,
        **changed,
    }  # fmt: skip
    return conclude(list(found), planned=planned, **settled)


def test_a_run_in_which_everything_passed_is_accepted():
    last = concluded(3, *verdicts(PASS=1, WAIVED=1, NOT_APPLICABLE=1))
    assert (last.verdict, last.exit_status) == ("ACCEPTED", 0)
    assert last.counts == {
        "planned": 3, "pass": 1, "fail": 0, "not_measured": 0, "not_applicable": 1, "waived": 1,
    }  # fmt: skip


SHADES: list[tuple[str, int, dict[str, Any]]] = [
    ("REJECTED", 1, {"fail": True}),
    ("INCOMPLETE", 2, {"unmeasured": True}),
    ("DEMONSTRATION", 0, {"demonstration": True}),
    ("PARTIAL", 0, {"whole_scope": False}),
    ("ACCEPTED", 0, {}),
]


@pytest.mark.parametrize("first", range(len(SHADES)))
def test_the_verdict_is_the_first_that_holds_of_rejected_to_accepted(first):
    name, status, _ = SHADES[first]
    changed: dict[str, Any] = {}
    for _, _, more in SHADES[first:]:
        changed |= more
    found = verdicts(
        PASS=2, FAIL=int(changed.pop("fail", False)),
        NOT_MEASURED=int(changed.pop("unmeasured", False)),
    )  # fmt: skip
    last = concluded(len(found), *found, **changed)
    assert (last.verdict, last.exit_status) == (name, status)


def test_a_planned_verdict_that_never_fell_is_not_measured():
    last = concluded(3, *verdicts(PASS=2))
    assert (last.verdict, last.exit_status) == ("INCOMPLETE", 2)
    assert last.counts["not_measured"] == 1
    assert "2 of 3 judged" in last.reasons


def test_a_cluster_without_a_contract_is_incomplete():
    last = concluded(1, *verdicts(PASS=1), ordered=False)
    assert last.verdict == "INCOMPLETE"
    assert "fill in `cluster:`" in last.reasons[0]


def test_local_without_a_contract_is_partial_at_most():
    last = concluded(1, *verdicts(PASS=1), ordered=False, origin="local")
    assert (last.verdict, last.exit_status) == ("PARTIAL", 0)


def test_records_by_hand_are_partial_at_most():
    assert concluded(1, *verdicts(PASS=1), origin="by-hand").verdict == "PARTIAL"


@pytest.mark.parametrize("found", [[], verdicts(NOT_APPLICABLE=2)])
def test_a_run_that_measured_nothing_is_incomplete(found):
    last = concluded(len(found), *found)
    assert (last.verdict, last.exit_status) == ("INCOMPLETE", 2)
    assert "nothing was measured" in last.reasons


def test_an_interrupted_run_is_incomplete_or_rejected():
    assert concluded(1, *verdicts(PASS=1), interrupted="SIGTERM").verdict == "INCOMPLETE"
    assert concluded(1, *verdicts(FAIL=1), interrupted="SIGTERM").verdict == "REJECTED"


@quick
@given(
    outcomes=st.lists(st.sampled_from(Outcome), max_size=6), never=st.integers(0, 2),
    whole=st.booleans(), ordered=st.booleans(), demonstration=st.booleans(),
    origin=st.sampled_from(["cluster", "sandbox", "local", "by-hand"]),
)  # fmt: skip
def test_only_a_whole_measured_run_without_failures_exits_with_0(
    outcomes, never, whole, ordered, demonstration, origin
):
    found = [v for outcome in outcomes for v in verdicts(**{outcome.value: 1})]
    last = conclude(
        found, planned=len(found) + never, whole_scope=whole, ordered=ordered, origin=origin,
        demonstration=demonstration,
    )  # fmt: skip
    counts = last.counts
    assert sum(counts.values()) - counts["planned"] == counts["planned"]
    good = not never and not {Outcome.FAIL, Outcome.NOT_MEASURED} & set(outcomes)
    assert last.exit_status != 0 or (good and {Outcome.PASS, Outcome.WAIVED} & set(outcomes))
    if last.verdict == "ACCEPTED":
        assert whole
        assert ordered
        assert not demonstration


def test_a_verdict_survives_json():
    verdict = verdicts(FAIL=1)[0]
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict


def test_a_measurement_of_unknown_fields_is_refused():
    with pytest.raises(RecordError, match="unknown fields"):
        Measurement.from_json({"metric": "bf16", "unit": "TFLOPS", "speed": 1})
    with pytest.raises(RecordError, match="lacks unit"):
        Measurement.from_json({"metric": "bf16"})


def test_what_was_not_measured_says_which_error_came_first(limits):
    missing = {
        "kind": "rank died", "reason": "rank 1 raised", "first_error": "12:00:01 rank 0 peer_lost",
    }  # fmt: skip
    found = judge(case(limits, "gemm.bf16", missing=missing), limits)
    assert found.outcome is Outcome.NOT_MEASURED
    assert found.notes == ["first error: 12:00:01 rank 0 peer_lost"]
    assert "first error: 12:00:01" in found.line
