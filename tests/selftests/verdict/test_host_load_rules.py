"""Which verdicts name busy cores, and from which share of the cores on."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.verdict import host_load
from fixtures.verdict.causes import Cause
from fixtures.verdict.model import Outcome, Verdict
from tests.selftests.verdict import made
from tests.selftests.verdict.made import criterion, rank, record, row

pytestmark = pytest.mark.cpu

TWO = ("worker0", "worker1")


def busy(percent: Any, cpus: Any = 104, node: str = "worker0", first: int = 0) -> list[Any]:
    """Two ranks, which keep four cores busy themselves, on a node with this load."""
    telemetry = {"cpu_percent": percent, "cpus": cpus}
    return [rank(first + k, node=node, telemetry=telemetry) for k in range(2)]


def explained(
    *ranks: Any, nodes: tuple[str, ...] = ("worker0",), tail: str | None = "steady",
    model: str = "H200 SXM", **given: Any,
) -> Verdict:  # fmt: skip
    fields = {"outcome": Outcome.FAIL, "reason": "slow", "next_step": "look"} | given
    case = made.case(criterion(row(fail_below=1), tail=tail), nodes, facts={"model": model})
    return host_load.explain(made.verdict(**fields), case, record(*ranks))


def test_busy_cores_are_named_of_a_rate_that_failed_or_is_not_valid():
    found = explained(*busy(100))
    assert found.reason.startswith("other processes used 100 % of the cores of worker0 meanwhile;")
    assert found.reason.endswith("; slow")
    assert found.next_step.startswith("find what uses the cores of worker0")
    invalid = {"outcome": Outcome.NOT_MEASURED, "cause": Cause.MEASUREMENT}
    assert "other processes" in explained(*busy(100), **invalid).reason
    for given in (
        {"outcome": Outcome.PASS}, {"outcome": Outcome.PASS, "cause": Cause.MEASUREMENT},
        {"outcome": Outcome.NOT_MEASURED, "cause": Cause.NODE}, {"tail": None}, {"model": "cpu"},
    ):  # fmt: skip
        assert explained(*busy(100), **given).reason == "slow", given


def test_the_busiest_of_several_nodes_is_named():
    both = [*busy(80), *busy(90, node="worker1", first=2)]
    assert "of worker1 and of 1 more" in explained(*both, nodes=TWO).reason
    assert "of worker0 meanwhile" in explained(*both).reason


def test_half_of_the_cores_that_the_ranks_leave_are_too_many():
    # Of 104 cores the ranks use 4: 54 busy ones are half of the other 100.
    for percent, load in ((100 * 54 / 104, 50), (100 * 4 / 104, 0), (0, 0), (100, 100)):
        found = host_load._busy_with_others(record(*busy(percent)), "worker0")
        assert found == pytest.approx(load)
    assert "other processes used 51 %" in explained(*busy(100 * 55 / 104)).reason
    assert explained(*busy(100 * 53 / 104)).reason == "slow"
    for unknown in (busy(None), busy(90, None), busy(90, 4), [rank(0)], [rank(0, telemetry=3)]):
        assert host_load._busy_with_others(record(*unknown), "worker0") == 0
    assert host_load._busy_with_others(record(*busy(100, 5)), "worker0") == pytest.approx(100)
    assert host_load._busy_with_others(record(*busy(90)), "worker1") == 0
