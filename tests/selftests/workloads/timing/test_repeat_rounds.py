"""The three-round procedure: what a job is told of its limits, and when it measures again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.plan import stopping_rule
from fixtures.plan.items import planned_list
from fixtures.plan.jobs import jobs_for
from fixtures.thresholds import loader
from fixtures.workloads.compute import gemm
from fixtures.workloads.memory import hostcopy, memory, p2p
from fixtures.workloads.timing import repeat_rounds, timing
from tests.selftests.support import SHIPPED, load, population

pytestmark = pytest.mark.cpu

LIMITS = loader.load(SHIPPED)
REFERENCE = {"metric": "bf16", "at": {}, "limit": 605.0, "sigma": 0.003, "delta": 0.08}


# --- what a job is told


def reference(key: str, model: str, **facts: Any) -> dict[str, Any] | None:
    known = {"model": model, "gpus": 4, "nodes": 1, "gpus_per_node": 4, **facts}
    return stopping_rule.reference(LIMITS.criteria[key], known, LIMITS)


def test_the_limit_is_chosen_as_if_the_power_limit_were_what_its_row_asks_for():
    """It is known only from the record, and any other than the default has no limit at all."""
    assert reference("gemm.bf16", "H200 SXM") == REFERENCE


@pytest.mark.parametrize(
    ("key", "model", "limit"),
    [("gemm.bf16_per_ghz", "H200 SXM", 434), ("gemm.bf16", "cpu", 0.008),
     ("gemm.fp8", "L40S", None), ("gemm.bf16_best", "H200 SXM", None),
     ("gemm.spread", "H200 SXM", None), ("gemm.identical", "H200 SXM", None),
     ("allreduce.node.latency", "H200 SXM", None)],
)  # fmt: skip
def test_only_a_rate_with_a_limit_and_a_spread_has_a_reference(key, model, limit):
    found = reference(key, model)
    assert (found and found["limit"]) == limit


def test_two_limits_that_only_the_record_tells_apart_give_none():
    told = {"gpus": 8, "gpus_per_node": 8}
    assert reference("allreduce.node.8GiB", "H200 SXM", **told) is None
    known = reference("allreduce.node.8GiB", "H200 SXM", **told, nvls=False, algorithm="tree")
    assert known is not None
    assert (known["limit"], known["at"]) == (345, {"size": 8 << 30})


def test_a_fraction_of_the_ceiling_is_resolved_by_the_datasheet(tmp_path):
    text = """
schema: 1
cluster: {}
criteria:
  gemm.bf16:
    {title: x, per: node, unit: TFLOPS, ceiling: gemm, loose: x, spread: gemm,
     limits: [{expect: 0.6 of ceiling, fail_below: 0.5 of ceiling, source: x}]}
spread:
  gemm: {delta: 0.08, device_sigma: 0.03, run_sigma: 0.003, source: x}
"""
    limits = load(tmp_path, text)
    found = stopping_rule.reference(limits.criteria["gemm.bf16"], {"model": "H200 SXM"}, limits)
    assert found is not None
    assert found["limit"] == pytest.approx(1070.5 / 2, rel=1e-3)
    assert stopping_rule.reference(limits.criteria["gemm.bf16"], {"model": "cpu"}, limits) is None


def test_the_plan_gives_every_workload_its_references():
    people = population(2, 4, "H200 SXM")
    jobs = jobs_for(planned_list(LIMITS, people), LIMITS, people)
    (job,) = [j for j in jobs if j.name == "node-worker0"]
    told = {r["metric"]: r["limit"] for r in job.references["gemm"]}
    assert told == {
        "bf16": 605, "fp16": 580, "tf32": 310, "fp32": 47, "fp8": 1070, "bf16_per_ghz": 434,
    }  # fmt: skip
    assert job.references["inventory"] == []
    json.dumps(dict(job.references), allow_nan=False)


# --- when one round is not enough


@pytest.mark.parametrize(
    ("samples", "more"),
    [
        ([660.0] * 20, False),
        ([611.0] * 20, False),  # 1 % above: 3 sigma are 0.9 %
        ([610.0] * 20, True),
        ([605.0] * 20, True),
        ([400.0] * 20, True),  # below: nobody is accused on one round
        ([600.0] * 6 + [660.0] * 14, True),  # the interval of the median reaches the limit
        ([600.0] * 5 + [660.0] * 15, False),
    ],
)
def test_near_or_below_the_limit_more_rounds_are_needed(samples, more):
    assert repeat_rounds.needs_more_rounds(REFERENCE, samples, [660.0]) is more


def test_a_device_far_below_its_siblings_is_measured_again():
    slow, near = [615.0] * 20, [650.0] * 20
    assert repeat_rounds.needs_more_rounds(REFERENCE, slow, [700, 700, 700, 615])
    assert not repeat_rounds.needs_more_rounds(REFERENCE, near, [700, 700, 700, 650])
    assert not repeat_rounds.needs_more_rounds(REFERENCE, slow, [700, 700, 615]), (
        "three say nothing of a fourth"
    )


def test_the_interval_of_twenty_is_x6_to_x15_and_few_give_their_whole_range():
    assert repeat_rounds.interval([float(k) for k in range(1, 21)]) == 15 - 6
    assert repeat_rounds.interval([5.0, 1.0, 3.0]) == 4
    assert repeat_rounds.interval([7.0]) == 0


@settings(deadline=None)
@given(st.lists(st.floats(1, 1e4), min_size=20, max_size=20))
def test_what_needs_no_second_round_is_above_the_limit(samples):
    if not repeat_rounds.needs_more_rounds(REFERENCE, samples, []):
        assert sorted(samples)[5] > REFERENCE["limit"], "x6, the lower end of the interval"


# --- the procedure


@dataclass
class Bench:
    """One rank whose device yields these rates, round by round, among others of its node."""

    rates: list[list[float]]
    others: tuple[dict[str, float], ...] = ()
    others_need: bool = False
    references: list[dict[str, Any]] = field(default_factory=lambda: [REFERENCE])
    on_gpu: bool = False
    events: list[Any] = field(default_factory=list)

    def gather_node(self, item: Any) -> list[Any]:
        return [item, *self.others]

    def gather(self, item: Any) -> list[Any]:
        return [item, self.others_need]

    def agree(self, item: Any, choose: Any) -> Any:
        return choose(self.gather(item))

    def measure(self, **at: Any) -> list[list[float]]:
        def measure_once() -> list[float]:
            self.events.append("round")
            return self.rates[self.events.count("round") - 1]

        return repeat_rounds.measure(
            self,  # type: ignore[arg-type]
            measure_once=measure_once,
            load=self.events.append,
            samples=lambda found: {"bf16": found},
            at=at,
        )


def test_far_from_the_limit_there_is_one_round():
    bench = Bench([[660.0] * 20])
    assert bench.measure() == [[660.0] * 20]
    assert bench.events == ["round"]


def test_near_the_limit_there_are_three_each_after_the_same_load():
    bench = Bench([[600.0] * 20, [610.0] * 20, [620.0] * 20])
    assert bench.measure() == bench.rates, "all of them stay"
    assert bench.events == [
        "round",
        repeat_rounds.CPU_LOAD_S,
        "round",
        repeat_rounds.CPU_LOAD_S,
        "round",
    ]
    bench = Bench([[600.0] * 20] * 3, on_gpu=True)
    bench.measure()
    assert bench.events[1::2] == [repeat_rounds.GPU_LOAD_S] * 2
    assert repeat_rounds.GPU_LOAD_S >= 10


def test_all_ranks_measure_again_where_one_needs_it():
    assert len(Bench([[660.0] * 20] * 3, others_need=True).measure()) == 3


def test_without_a_reference_at_this_point_there_is_one_round():
    assert len(Bench([[1.0] * 20] * 3, references=[]).measure()) == 1
    assert len(Bench([[1.0] * 20] * 3).measure(size=1024)) == 1
    at_a_size = [{**REFERENCE, "at": {"size": 1024}}]
    assert len(Bench([[1.0] * 20] * 3, references=at_a_size).measure(size=1024)) == 3


def test_a_device_of_four_that_stands_out_brings_more_rounds():
    others = tuple({"bf16": 700.0} for _ in range(3))
    assert len(Bench([[620.0] * 20] * 3, others=others).measure()) == 3
    assert len(Bench([[620.0] * 20] * 3, others=others[:2]).measure()) == 1


def test_a_sibling_without_the_figure_does_not_count():
    others = tuple({"bf16": 700.0} for _ in range(2))
    assert len(Bench([[620.0] * 20] * 3, others=(*others, {})).measure()) == 1


def test_the_job_is_told_in_its_spec(tmp_path: Path) -> None:
    from tests.selftests.rank_job import TORCH, Job

    told = [{"metric": "fp32", "at": {}, "limit": 1e6, "sigma": 0.003, "delta": 0.08}]
    job = Job(tmp_path, per_node=2)
    job.add("gemm", ["bf16", "fp32"], soak_s=0.01, window_s=0.1, size=64)
    job.spec["workloads"][0]["references"] = told
    assert job.run(warm=TORCH) == [0, 0], job.output()
    for rank in job.record("gemm").ranks:
        found = {m.metric: m for m in rank.measurements}
        assert len(found["fp32"].rounds) == repeat_rounds.EXTRA_ROUNDS, "far below the limit"
        assert all(samples for samples in found["fp32"].rounds)
        assert found["bf16"].rounds == [], "without a reference"


GPUS = 8
"""Of a node, as most that are sold have."""


@pytest.mark.parametrize(
    ("workload", "figures", "window"),
    [
        (gemm, len(gemm.ORDER), gemm.ON_GPU.window),
        # A batch of ten launches on an H200: 0.08 s.
        (memory, len(memory.ARRAYS_MOVED), memory.ON_GPU.batches * 0.08),
        # One after the other, then all at once; batches of 0.01 s, as p2p's.
        (
            hostcopy,
            len(hostcopy.DIRECTIONS),
            (GPUS * hostcopy.MIN_BATCHES + hostcopy.WINDOW_BATCHES) * 0.01,
        ),
        (p2p, 3 * len(p2p.round_robin(GPUS)), p2p.WINDOW_BATCHES * 0.01),
    ],
    ids=["gemm", "memory", "hostcopy", "p2p"],
)
def test_a_node_whose_every_figure_is_low_is_measured_before_the_deadline(
    workload: Any, figures: int, window: float
):
    """Three rounds of everything, in windows as long as a slow device can make them.

    Else the worst nodes would be `not measured: hung`, and nobody be told what is wrong with them.
    """
    longest = (
        1 + repeat_rounds.EXTRA_ROUNDS
    ) * timing.MAX_STRETCH * window + repeat_rounds.EXTRA_ROUNDS * repeat_rounds.GPU_LOAD_S
    assert workload.WORKLOAD.deadline("cuda") >= 60 + figures * longest
