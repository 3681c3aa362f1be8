"""Faults that come and go: what a median does not see; healthy samples are not accused of it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from fixtures.errors import ConfigError
from fixtures.thresholds import loader
from fixtures.verdict import tails
from fixtures.verdict.model import Outcome
from fixtures.verdict.tails import Series
from tests.selftests import support
from tests.selftests.mutations import Json, Mutated
from tests.selftests.support import DATA, SHIPPED

pytestmark = pytest.mark.cpu

Change = Callable[[list[float]], list[float]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return Mutated(DATA / "h200-1x4", tmp_path_factory.mktemp("tails") / "run")


def stalls(share: float, factor: float) -> Change:
    """Make this share of all samples, at random, so many times slower."""

    def change(samples: list[float]) -> list[float]:
        chosen = random.Random(1).sample(range(len(samples)), int(share * len(samples)))
        return [x / factor if k in chosen else x for k, x in enumerate(samples)]

    return change


def judged(run: Mutated, workload: str, metric: str, change: Change, ranks: int | None = None):
    """The verdicts on the rows of a metric, whose samples were changed on some or all ranks."""
    name = next(name for name in run.data if name.startswith(f"{workload}@"))
    target = next(t for t in run.targets() if t.record == name)

    def apply(entries: list[Json], _: object) -> bool:
        for rank in entries[:ranks]:
            for m in rank["measurements"]:
                if m["metric"] == metric and m.get("samples"):
                    m["samples"] = change(m["samples"])
        return True

    assert run.apply(target, apply)
    try:
        asked = [
            item
            for item in run.items[name]
            if run.run.thresholds.criteria[item.criterion].metric == metric
            and run.before[item.key].outcome is Outcome.PASS
            and run.run.thresholds.criteria[item.criterion].tail
        ]
        return list(run.judge(asked).values())
    finally:
        run.restore()


@pytest.mark.parametrize(
    ("workload", "metric"),
    [
        ("gemm", "bf16"), ("memory", "copy"), ("allreduce", "busbw"), ("training_fsdp", "mfu"),
        ("training_ddp", "tokens"), ("p2p", "write"), ("hostcopy", "h2d"),
    ],
)  # fmt: skip
def test_stalls_of_a_minority_of_the_samples_fail(recorded, workload, metric):
    """Finding H6: 45 % of all batches a hundred times slower were accepted."""
    verdicts = judged(recorded, workload, metric, stalls(0.45, 100))
    assert verdicts
    assert {v.outcome for v in verdicts} == {Outcome.FAIL}
    assert all("comes and goes" in v.reason for v in verdicts)


def test_a_neighbour_that_takes_bandwidth_in_bursts_is_named_by_gpu(recorded):
    """Three of 26 batches at 0.80 of the median, on one GPU."""
    burst: Change = lambda s: [x * 0.8 if 10 <= k < 13 else x for k, x in enumerate(s)]  # noqa: E731
    (verdict,) = judged(recorded, "memory", "copy", burst, ranks=1)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.worst["gpu"] == 0
    assert "3 of 26 batches are slower than 0.95 x the median of 4299 GB/s;" in verdict.reason
    assert verdict.value < 0.98 * recorded.before[verdict.criterion, verdict.subject].value


def test_a_stall_every_tenth_step_is_said_with_its_period(recorded):
    stall: Change = lambda s: [x / 1.25 if k % 10 == 4 else x for k, x in enumerate(s)]  # noqa: E731
    verdicts = judged(recorded, "training_fsdp", "mfu", stall)
    assert verdicts
    for verdict in verdicts:
        assert verdict.outcome is Outcome.FAIL
        assert "3 of 30 steps are slower than 0.9 x the median of " in verdict.reason
        assert ", every 10 steps (" in verdict.reason


@pytest.mark.parametrize(("workload", "metric"), [("gemm", "bf16"), ("memory", "copy")])
def test_one_slow_sample_accuses_nobody(recorded, workload, metric):
    once: Change = lambda s: [s[0] * 0.8, *s[1:]]  # noqa: E731
    assert {v.outcome for v in judged(recorded, workload, metric, once)} == {Outcome.PASS}


@pytest.mark.parametrize("run", ["h200-1x4", "h200-2x2", "h200-1x2-training"])
def test_no_healthy_recorded_sample_is_accused(run, tmp_path):
    _, verdict = support.judged(DATA / run, tmp_path / "run")
    assert [v for v in verdict["criteria"] if "comes and goes" in v["reason"]] == []


def series(*samples: float, is_time: bool = False, ended: tuple[float, ...] = ()) -> Series:
    return Series(rank=support.rank(0, "n"), samples=samples, is_time=is_time, ended=ended)


def test_rates_together_are_their_harmonic_mean_and_times_their_mean():
    assert series(*[10.0] * 9, 5.0).ratio == pytest.approx(10 / 11)
    assert series(*[10.0] * 9, 20.0, is_time=True).ratio == pytest.approx(10 / 11)
    assert series(*[10.0] * 9, 5.0).slow(0.9) == [9]
    assert series(*[10.0] * 9, 20.0, is_time=True).slow(0.9) == [9]


def test_p99_of_times_is_said_beside_their_mean():
    """By the mean it fails already: of 20 batches one may take six times the median, not more."""
    tail = loader.load(SHIPPED).tails["latency"]
    twenty = series(*[10.0] * 19, 80.0, is_time=True)
    assert twenty.p99 == 80
    assert not tails.is_steady(twenty, tail)
    assert "p99 is 80, 8 x the median" in tails.describe(twenty, tail, "us", "batches")
    assert series(*[10.0] * 990, *[50.0] * 10, is_time=True).p99 == 10
    assert series(*[10.0] * 989, *[50.0] * 11, is_time=True).p99 == 50


def test_a_period_needs_three_that_are_equally_far_apart():
    regular = series(*[1.0] * 30, ended=tuple(0.5 * k for k in range(30)))
    assert tails.period([4, 14, 24], regular, "steps") == ", every 10 steps (5 s)"
    assert tails.period([4, 5, 14, 24], regular, "steps") == ", every 10 steps (5 s)"
    assert tails.period([4, 14], regular, "steps") == ""
    assert tails.period([4, 6, 24], regular, "steps") == ""


def test_few_samples_are_not_judged_by_their_tail():
    tail = loader.load(SHIPPED).tails["hbm"]
    assert tails.is_steady(series(*[10.0] * 5, 1.0), tail)
    assert not tails.is_steady(series(*[10.0] * 20, 1.0), tail)


def test_every_sampled_rate_has_a_class():
    """Rates of many samples on GPUs: what has none is derived from one that has."""
    derived = {
        "inventory.gpu_memory", "health.answer_time", "health.answer_time_load", "nvlink.rate",
        "gemm.bf16_per_ghz", "gemm.bf16_best", "gemm.fp8_best", "burnin.steadiness",
        "training_fsdp.gemm", "training_ddp.pace", "training_ddp.cluster.pace",
        "training_fsdp.pace", "training_fsdp.cluster.pace",  # of the steps that have one
        "host.memory_bandwidth",  # five batches: too few for a tail
    }  # fmt: skip
    without = {
        c.key
        for c in loader.load(SHIPPED).criteria.values()
        if c.statistic == "median" and c.tail is None and ".efficiency" not in c.key
    }
    assert without <= derived


def test_an_unknown_class_is_refused(tmp_path):
    text = support.LIMITS.replace("    spread: gemm\n", "    spread: gemm\n    tail: gem\n", 1)
    with pytest.raises(ConfigError, match="no class 'gem' in tails:, did you mean 'gemm'"):
        support.load(tmp_path, text)
