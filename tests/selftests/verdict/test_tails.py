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

    def each(rank: int, m: Json) -> None:
        if ranks is None or rank < ranks:
            m["samples"] = change(m["samples"])

    return judged_with(run, workload, metric, each)


def judged_with(run: Mutated, workload: str, metric: str, change: Callable[[int, Json], None]):
    """The verdicts on the rows of a metric, whose measurements were changed, rank by rank."""
    name = next(name for name in run.data if name.startswith(f"{workload}@"))
    target = next(t for t in run.targets() if t.record == name)

    def apply(entries: list[Json], _: object) -> bool:
        for number, rank in enumerate(entries):
            for m in rank["measurements"]:
                if m["metric"] == metric and m.get("samples"):
                    change(number, m)
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
    assert (
        "3 of 26 batches are slower than 0.95 x the 4299 GB/s of the faster quarter;"
        in verdict.reason
    )
    assert verdict.value < 0.98 * recorded.before[verdict.criterion, verdict.subject].value


def test_a_stall_every_tenth_step_is_said_with_its_period(recorded):
    stall: Change = lambda s: [x / 1.25 if k % 10 == 4 else x for k, x in enumerate(s)]  # noqa: E731
    verdicts = judged(recorded, "training_fsdp", "mfu", stall)
    assert verdicts
    for verdict in verdicts:
        assert verdict.outcome is Outcome.FAIL
        assert "3 of 30 steps are slower than 0.9 x the " in verdict.reason
        assert ", every 10 steps (" in verdict.reason


@pytest.mark.parametrize(
    ("workload", "metric", "share", "factor"),
    [
        ("training_ddp", "tokens", 0.57, 1.4), ("training_single", "tokens", 0.57, 1.1),
        ("training_fsdp", "mfu", 0.57, 1.1), ("memory", "copy", 0.54, 1.051),
        ("p2p", "write", 0.6, 1.08), ("gemm", "bf16", 0.7, 1.1), ("allreduce", "busbw", 0.6, 1.25),
    ],
)  # fmt: skip
def test_where_most_samples_are_slow_the_median_is_no_measure(
    recorded, workload, metric, share, factor
):
    """Then the median is what the fault left, and the minority shows what the device can do."""
    verdicts = judged(recorded, workload, metric, stalls(share, factor))
    assert verdicts
    assert {v.outcome for v in verdicts} == {Outcome.FAIL}


def test_a_sample_that_is_faster_makes_up_for_no_stall(recorded):
    slow: Change = lambda s: [x * (0.5 if k == 9 else 1) for k, x in enumerate(s)]  # noqa: E731
    both: Change = lambda s: [x * (1.1 if k % 8 == 3 else 1) for k, x in enumerate(slow(s))]  # noqa: E731
    for change in (slow, both):
        assert {v.outcome for v in judged(recorded, "memory", "copy", change)} == {Outcome.FAIL}


@pytest.mark.parametrize("factor", [2, 1000, 1e300])
@pytest.mark.parametrize(("workload", "metric"), [("memory", "copy"), ("gemm", "bf16")])
def test_one_sample_beyond_what_the_device_can_give_is_an_error_of_measurement(
    recorded, workload, metric, factor
):
    once: Change = lambda s: [s[0] * factor, *s[1:]]  # noqa: E731
    verdicts = judged(recorded, workload, metric, once, ranks=1)
    assert {v.outcome for v in verdicts} == {Outcome.NOT_MEASURED}
    assert all("above the physical ceiling" in v.reason for v in verdicts)


@pytest.mark.parametrize(("workload", "metric"), [("allreduce", "busbw"), ("allgather", "busbw")])
def test_ranks_with_different_numbers_of_samples_are_not_cut_to_the_fewest(
    recorded, workload, metric
):
    """What one of them did not measure may be what was slow on the others."""

    def more(rank: int, m: Json) -> None:
        if rank:
            m["samples"] += [x / 100 for x in m["samples"][:4]]
            m["checks"] |= {k: float(len(m["samples"])) for k in ("batches", "steps")}
            m.pop("ended", None)

    verdicts = judged_with(recorded, workload, metric, more)
    assert verdicts
    assert {v.outcome for v in verdicts} == {Outcome.NOT_MEASURED}
    assert all("samples of the same launches" in v.reason for v in verdicts)


def test_a_burst_in_one_round_is_not_diluted_by_the_others(recorded):
    def one_of_three(rank: int, m: Json) -> None:
        clean = list(m["samples"])
        burst = [x * 0.8 if 3 <= k < 7 else x for k, x in enumerate(clean)]
        m["rounds"] = [clean, burst] if rank == 2 else [clean, clean]

    (verdict,) = judged_with(recorded, "memory", "copy", one_of_three)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.worst["gpu"] == 2
    assert verdict.reason.startswith("comes and goes in round 3 of 3: 4 of 26 batches")


def test_a_link_in_bursts_is_named_and_not_another_with_a_lower_median(recorded):
    def one_link(rank: int, m: Json) -> None:
        if rank == 1 and m["at"]["to"] == 0:
            m["samples"] = [x * (0.5 if k % 7 == 3 else 1) for k, x in enumerate(m["samples"])]
        if rank == 2 and m["at"]["to"] == 3:
            m["samples"] = [x * 0.995 for x in m["samples"]]

    (verdict,) = judged_with(recorded, "p2p", "write", one_link)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.worst["part"] == "gpu1->gpu0"
    assert verdict.worst["value"] == verdict.value
    assert verdict.next_step.startswith("only the link between gpu0 and gpu1 is slow")


def test_links_in_bursts_name_the_gpu_that_they_share(recorded):
    def of_one_gpu(rank: int, m: Json) -> None:
        if 3 in (rank, m["at"]["to"]):
            m["samples"] = [x * (0.5 if k % 7 == 3 else 1) for k, x in enumerate(m["samples"])]

    (verdict,) = judged_with(recorded, "p2p", "write", of_one_gpu)
    assert verdict.next_step.startswith("gpu3 (")
    assert " is part of all 6 slow links" in verdict.next_step


def test_links_of_several_rounds_are_counted_once(recorded):
    def of_one_gpu(rank: int, m: Json) -> None:
        if 3 in (rank, m["at"]["to"]):
            m["samples"] = [x * (0.5 if k % 7 == 3 else 1) for k, x in enumerate(m["samples"])]
        m["rounds"] = [list(m["samples"])] * 2

    (verdict,) = judged_with(recorded, "p2p", "write", of_one_gpu)
    assert " is part of all 6 slow links" in verdict.next_step


@pytest.mark.parametrize("metric", ["h2d_all", "d2h_all"])
def test_a_gpu_that_is_faster_while_its_sibling_stalls_is_not_accused(recorded, metric):
    """They share the way to the host's memory: what one does not take, the others get."""

    def shared(rank: int, m: Json) -> None:
        stalls = [k % 4 == 1 for k in range(len(m["samples"]))]
        factor = {0: 0.3, 1: 1.25}.get(rank, 1)
        m["samples"] = [x * (factor if s else 1) for x, s in zip(m["samples"], stalls, strict=True)]

    (verdict,) = judged_with(recorded, "hostcopy", metric, shared)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.worst["gpu"] == 0
    alone = judged_with(
        recorded, "hostcopy", metric, lambda rank, m: shared(rank, m) if rank == 1 else None
    )
    assert {v.outcome for v in alone} == {Outcome.PASS}


def test_times_that_go_backwards_are_a_broken_record(recorded):
    def back(rank: int, m: Json) -> None:
        m["ended"] = m["ended"][::-1]

    verdicts = judged_with(recorded, "memory", "copy", back)
    assert {v.outcome for v in verdicts} == {Outcome.NOT_MEASURED}
    assert all("a sample that ended before the one before it" in v.reason for v in verdicts)


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


@pytest.mark.parametrize(
    ("slow", "said"),
    [
        ([4, 14, 24], ", every 10 steps (5 s)"),
        ([4, 5, 14, 24], ", every 10 steps (5 s)"),
        ([4, 7, 14, 24], ", every 10 steps (5 s)"),
        ([3, 14, 24], ""),
        (list(range(1, 30, 2)), ", every 2 steps (1 s)"),
        ([4, 14], ""),
        ([4, 6, 24], ""),
        ([9, 14, 20], ""),
        ([4, 7, 14, 17, 24], ""),
        ([14, 19, 24], ""),
    ],
)
def test_a_period_takes_three_equally_far_apart_from_first_to_last(slow, said):
    regular = series(*[1.0] * 30, ended=tuple(0.5 * k for k in range(30)))
    assert tails.period(slow, regular, "steps") == said


def test_random_slow_steps_have_no_period():
    """Three of 30 lie equally far apart by chance; over all of the series they seldom do."""
    chance, steps = random.Random(1), series(*[1.0] * 30)
    drawn = [sorted(chance.sample(range(30), count)) for count in (3, 4) for _ in range(2000)]
    named = sum(tails.period(slow, steps, "steps") != "" for slow in drawn)
    assert named <= 0.03 * len(drawn)


def test_what_all_together_gave_is_said_without_slow_samples():
    """11 of 26 at 0.951 of the rest: none is below 0.95, and the mean is."""
    tail = loader.load(SHIPPED).tails["hbm"]
    text = tails.describe(series(*[4300.0] * 15, *[4090.0] * 11), tail, "GB/s", "batches")
    assert text.startswith("comes and goes: all together gave 4209, 0.979 of the 4300 GB/s of")
    assert "0 of 26" not in text


def test_one_slow_step_of_ten_is_allowed_whatever_its_share():
    tail = loader.load(SHIPPED).tails["training"]
    assert tails.is_steady(series(*[10.0] * 9, 8.9), tail)
    assert not tails.is_steady(series(*[10.0] * 8, 8.9, 8.9), tail)


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


def test_what_comes_and_goes_is_judged_in_every_workload():
    """A tail of a row that is only recorded fails nobody: another row of the workload has to."""
    criteria = loader.load(SHIPPED).criteria.values()
    with_tail = [c for c in criteria if c.tail]
    judged_there = {
        (c.workload, c.per) for c in with_tail if any(row.recorded is None for row in c.limits)
    }
    assert {(c.workload, c.per) for c in with_tail} <= judged_there


def test_an_unknown_class_is_refused(tmp_path):
    text = support.LIMITS.replace("    spread: gemm\n", "    spread: gemm\n    tail: gem\n", 1)
    with pytest.raises(ConfigError, match="no class 'gem' in tails:, did you mean 'gemm'"):
        support.load(tmp_path, text)
