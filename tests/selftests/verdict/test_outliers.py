"""judge(): outliers among like devices, and several rounds of a measurement."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.records.model import Record
from fixtures.statistics.fleet_slots import Like
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.model import Outcome
from fixtures.verdict.outliers import independent
from tests.selftests.judging import PAIR, judged
from tests.selftests.support import bf16, busbw, node_record, rank, record

pytestmark = pytest.mark.cpu
quick = settings(deadline=None, max_examples=60)


# --- outliers


def test_an_outlier_of_four_fails_though_it_is_above_the_floor(limits):
    rates = [700, 700, 700, 634]
    verdict = judged(limits, "gemm.bf16", node_record(*rates), gpus=4, siblings=rates)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.worst["gpu"] == 3
    assert verdict.reason == (
        "outlier: 634 is below 637.9, 8.9% under 700, the median of 4 like devices: 8% is "
        "permitted, and 3.2 deviations of 0.30% are noise"
    )


def test_one_round_is_beyond_delta_by_more_than_noise_and_three_rounds_by_less(limits):
    """8.6 % below is beyond what may last (8 %): one round leaves it open, three do not."""
    siblings = [700, 700, 700, 640]
    once = judged(limits, "gemm.bf16", node_record(700, 700, 700, 640), gpus=4, siblings=siblings)
    assert once.outcome is Outcome.PASS
    assert once.notes[-1] == (
        "slowest 1 of 4 like devices: worker0 gpu3 8.6% below in 1 round, of their median 700:"
        " within the expected spread of as many devices, and the noise of their rounds"
    )
    thrice = of_rounds((700,) * 3, (700,) * 3, (700,) * 3, (640, 640, 640))
    verdict = judged(limits, "gemm.bf16", thrice, gpus=4, siblings=siblings)
    assert verdict.outcome is Outcome.FAIL


def test_what_chance_does_not_show_and_delta_allows_is_said(limits):
    spread = replace_spread(limits, delta=0.08, device_sigma=0.003)
    siblings = [700.0] * 15 + [680]
    verdict = judged(spread, "gemm.bf16", node_record(700, 680), siblings=siblings)
    assert verdict.outcome is Outcome.PASS
    assert verdict.notes[-1] == (
        "slowest 1 of 16 like devices: worker0 gpu1 2.9% below in 1 round, of their median 700:"
        " more than chance explains, but within the permitted 8%"
    )


def test_the_outlier_of_another_node_is_not_blamed_on_this_one(limits):
    siblings = [700, 700, 700, 640]
    assert judged(limits, "gemm.bf16", node_record(700, 700), siblings=siblings).ok


def test_three_devices_have_no_outlier(limits):
    rates = [700, 700, 640]
    assert judged(limits, "gemm.bf16", node_record(*rates), gpus=3, siblings=rates).ok


def test_a_device_is_accused_beyond_delta_and_beyond_what_so_many_differ_by(limits):
    """1.8 % of spread: 4.1 deviations of 16 devices reach less than 8 %, 5.3 of 8,192 more."""

    def of(count: int, rate: float):
        siblings = [700.0] * (count - 1) + [rate]
        return judged(limits, "gemm.bf16", node_record(700, rate), siblings=siblings)

    assert of(16, 636).outcome is Outcome.FAIL
    assert of(16, 645).ok
    wide = of(8192, 636)
    assert wide.outcome is Outcome.PASS
    assert wide.notes[-1] == (
        "slowest 1 of 8192 like devices: worker0 gpu1 9.1% below in 1 round, of their median 700:"
        " within the expected spread of as many devices, and the noise of their rounds"
    )
    caught = of(8192, 600)
    assert caught.outcome is Outcome.FAIL
    assert caught.worst["gpu"] == 1
    assert "8% is permitted, and 5.0 deviations of 0.30% are noise" in caught.reason
    spread = replace_spread(limits, device_sigma=0.03)
    found = judged(
        spread, "gemm.bf16", node_record(700, 590), siblings=[700.0] * 8191 + [590],
    )  # fmt: skip
    assert (
        "they differ by 3.00% (as recorded), and 5.0 of these deviations are chance" in found.reason
    )


def test_a_figure_that_ranks_share_counts_once(limits):
    """Eight ranks of a node are one value of its all-reduce: two nodes are not a fleet of 16."""
    criterion = limits.criteria["allreduce.pair"]
    ranks = node_record(1, 1, 1).ranks
    shared = list(zip(ranks, [[400.0], [401.0], [399.0]], strict=True))
    assert independent(criterion, shared) == [(None, 400.0)]
    alone = list(zip(ranks[:2], [[700.0, 702.0], [690.0]], strict=True))
    assert independent(limits.criteria["gemm.bf16"], alone) == [(0, 701.0), (1, 690.0)]
    assert independent(criterion, []) == []


def test_a_fleet_that_spreads_accuses_nobody_by_standard_deviations(limits):
    spread = replace_spread(limits, delta=0.08, device_sigma=0.003)
    fleet = [680 + 3 * k for k in range(16)]
    verdict = judged(spread, "gemm.bf16", node_record(680, 683), siblings=fleet)
    assert verdict.ok, verdict.line


def test_a_device_is_compared_with_those_of_its_slot(limits):
    """Slot 1 is 10 % slower on all nodes: who is as slow there passes, and who is slower fails."""
    fleet = Like((800.0,) * 64, slot_shares=((1, 0.9),))
    assert judged(limits, "gemm.bf16", node_record(800, 720), siblings=fleet).ok
    assert judged(limits, "gemm.bf16", node_record(720, 720), siblings=fleet).worst["gpu"] == 0
    slow = judged(limits, "gemm.bf16", node_record(800, 640), siblings=fleet)
    assert slow.outcome is Outcome.FAIL
    assert "under 720, the median of 64 like devices and 10.0% less in this slot" in slow.reason


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
    [((638, 639, 640), Outcome.FAIL), ((640, 650, 660), Outcome.NOT_MEASURED),
     ((660, 650, 640), Outcome.NOT_MEASURED), ((650, 650, 650), Outcome.PASS)],
)  # fmt: skip
def test_an_outlier_must_be_one_in_every_round(limits, rounds, outcome):
    found = of_rounds((700,) * 3, (700,) * 3, (700,) * 3, rounds)
    siblings = [700, 700, 700, 650]
    verdict = judged(limits, "gemm.bf16", found, gpus=4, siblings=siblings)
    assert verdict.outcome is outcome
    if outcome is Outcome.NOT_MEASURED:
        assert "on both sides of 641.4, 8.4% under 700, the median of 4" in verdict.reason


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
    assert verdict.reason == "ranks measured different numbers of rounds"


def test_the_spread_is_taken_between_the_medians_of_the_rounds(limits):
    verdict = judged(limits, "gemm.spread", of_rounds((650, 650, 650), (600, 650, 650)))
    assert (verdict.outcome, verdict.value) == (Outcome.PASS, 0)


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
