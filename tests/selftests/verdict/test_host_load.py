"""Cores that others use: named beside a rate that failed, and a core that is slow now and then."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.model import Measurement, RankResult
from fixtures.thresholds import loader
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.model import Outcome, Verdict
from fixtures.workloads.host import host_speed
from tests.selftests import support
from tests.selftests.judging import judged

pytestmark = pytest.mark.cpu

CHECKS = {"batches": 20.0, "wall_over_events": 1.0, "pages_elsewhere": 0.0, "wrong": 0.0}


def copy_rates(k: int, rate: float, busy: float | None, cores: int | None = 64) -> RankResult:
    m = Measurement(
        metric="h2d", unit="GB/s", samples=[rate] * 20, checks=CHECKS,
        conditions={"pcie_gen": 5, "pcie_width": 16},
    )  # fmt: skip
    found = support.rank(k, "worker0", m)
    if k or busy is None:
        return found
    return dataclasses.replace(
        found, facts={"telemetry": {"cpu_percent": busy, **({"cpus": cores} if cores else {})}}
    )


@pytest.fixture(scope="module")
def limits() -> Thresholds:
    return loader.load(support.SHIPPED)


def of_node(limits: Thresholds, rate: float, busy: float | None, cores: int | None = 64) -> Verdict:
    record = support.record(
        *(copy_rates(k, rate, busy, cores) for k in range(2)), workload="hostcopy"
    )
    return judged(limits, "hostcopy.h2d", record)


def test_a_slow_copy_names_the_cores_that_others_use_before_all_else(
    limits: Thresholds,
) -> None:
    verdict = of_node(limits, 20.0, 98.0)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.reason.startswith("other processes used 98 % of the cores of worker0 meanwhile")
    assert verdict.next_step.startswith("find what uses the cores of worker0 (`top`)")


@pytest.mark.parametrize(
    ("rate", "busy", "cores"),
    [(54.0, 98.0, 64), (20.0, 6.5, 64), (20.0, None, 64), (20.0, 98.0, None), (20.0, 98.0, 4)],
    ids=["a pass", "only the ranks", "unknown", "an earlier record", "all cores are the ranks'"],
)
def test_else_no_core_is_named(
    limits: Thresholds, rate: float, busy: float | None, cores: int | None
) -> None:
    verdict = of_node(limits, rate, busy, cores)
    assert verdict.outcome is (Outcome.PASS if rate > 50 else Outcome.FAIL)
    assert "cores" not in verdict.reason + verdict.next_step


def test_a_check_with_one_bound_is_told_in_words(limits: Thresholds) -> None:
    record = support.record(
        *(dataclasses.replace(
            copy_rates(k, 54.0, None),
            measurements=[dataclasses.replace(
                copy_rates(k, 54.0, None).measurements[0], checks={**CHECKS, "wrong": 3.0}
            )],
        ) for k in range(2)),
        workload="hostcopy",
    )  # fmt: skip
    verdict = judged(limits, "hostcopy.h2d", record)
    assert verdict.reason.endswith("wrong is 3, a valid measurement has at most 0")


# --- the speed of cores


def measured(monkeypatch: pytest.MonkeyPatch, *rounds: list[float]) -> tuple[Measurement, Any, int]:
    """What the workload makes of these rounds; (measurement, facts, rounds that it asked for)."""
    asked = iter(rounds)
    taken: list[list[float]] = []

    def ask(**_: Any) -> list[float]:
        taken.append(next(asked, rounds[-1]))
        return taken[-1]

    monkeypatch.setattr(host_speed, "_ask", ask)
    monkeypatch.setattr(host_speed, "_own_cores", lambda ranks, system: [0, 1, 2, 3])
    ranks: Any = SimpleNamespace(leads_node=True, demonstration=False)
    result = host_speed.run(ranks, ["cores"])
    (m,) = result.measurements
    return m, result.facts, len(taken)


def test_steady_cores_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    m, facts, rounds = measured(monkeypatch, [1.0, 1.0, 1.05, 1.0])
    assert (m.value, m.at, rounds) == (95.2, {"part": "cpu2"}, 1)
    assert "core_rounds" not in facts


def test_a_core_that_is_slow_now_and_then_is_as_fast_as_its_best_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The slow core moves, and cpu1 is slow twice: the host's other work, not the core.
    m, facts, rounds = measured(
        monkeypatch, [1.0, 1.7, 1.0, 1.0], [1.0, 2.4, 1.0, 1.0], [1.0, 1.0, 1.0, 1.9]
    )
    assert (m.value, rounds) == (100.0, 3)
    assert facts["core_rounds"] == [58.8, 41.7, 52.6]


def test_a_core_that_is_slow_in_every_round_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    m, facts, rounds = measured(monkeypatch, [1.0, 1.0, 3.0, 1.0], [1.9, 1.0, 2.0, 1.0])
    assert (m.value, m.at, rounds) == (50.0, {"part": "cpu2"}, host_speed.CORE_ROUNDS)
    assert m.notes == [
        "cpu2: 2000000 us for what takes 1000000 us on most of 4 cores; "
        "33, 50, 50, 50, 50 % in 5 rounds"
    ]
    assert len(facts["core_rounds"]) == rounds
