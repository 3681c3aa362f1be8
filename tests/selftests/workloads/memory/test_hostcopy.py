"""Copies between the host and a GPU: what is counted, compared and judged."""

from __future__ import annotations

import statistics

import pytest

from fixtures.thresholds import facts
from fixtures.verdict.model import Outcome
from fixtures.workloads.devices import numa
from tests.selftests import support
from tests.selftests.rank_job import TORCH, Job
from tests.selftests.workloads.memory.records_of_memory import (
    LIMITS,
    host,
    judged,
    node,
)

pytestmark = pytest.mark.cpu


def test_host_copies_are_measured_in_turn_and_at_once(tmp_path):
    job = Job(tmp_path, per_node=2)
    job.add("hostcopy", ["h2d", "d2h", "h2d_all", "d2h_all", "errors"])
    assert job.run(warm=TORCH) == [0, 0], job.output()
    record = job.record("hostcopy")
    for way in ("h2d", "d2h"):
        alone = [(m.started, m.ended[-1]) for _, m in record.points(way, {})]
        (_, end), (begin, _) = sorted(alone)
        assert end <= begin, "nobody else copies meanwhile"
        best = max(statistics.median(m.samples) for _, m in record.points(way, {}))
        for _, m in record.points(f"{way}_all", {}):
            assert m.conditions["alone_gbps"] == pytest.approx(best, rel=1e-3)
            assert 0 < m.checks["overlap"] <= 1
    assert [m.value for _, m in record.points("errors", {})] == [0, 0]
    known = {m.checks.get("pages_elsewhere") for r in record.ranks for m in r.measurements[:-1]}
    assert known == {0.0 if len(numa.nodes()) == 1 else None}


@pytest.mark.parametrize(
    ("key", "gbps", "more", "outcome", "reason"),
    [
        ("h2d", 55.4, {}, Outcome.PASS, ""),
        ("h2d", 49, {}, Outcome.FAIL, ""),
        ("h2d", 110, {}, Outcome.NOT_MEASURED, "above the physical ceiling of 63"),
        ("h2d", 55, {"pages_elsewhere": 0.2}, Outcome.NOT_MEASURED, "pages_elsewhere is 0.2"),
        ("h2d", 55, {"pages_elsewhere": None}, Outcome.NOT_MEASURED, "was not recorded"),
        ("h2d_all", 37, {}, Outcome.PASS, ""),
        ("h2d_all", 24, {}, Outcome.FAIL, ""),
        ("h2d_all", 57, {}, Outcome.NOT_MEASURED, "above the physical ceiling of 55.5"),
        ("h2d_all", 37, {"alone": None}, Outcome.NOT_MEASURED, "no ceiling without alone_gbps"),
        ("h2d_all", 37, {"overlap": None}, Outcome.NOT_MEASURED, "overlap was not recorded"),
    ],
)
def test_host_copies_are_judged(key, gbps, more, outcome, reason):
    found = [host(key, gbps, **more) for _ in range(2)]
    verdict = judged(f"hostcopy.{key}", node("hostcopy", *found))
    assert (verdict.outcome, reason in verdict.reason) == (outcome, True), verdict.line


def test_a_link_that_came_up_short_is_too_slow_and_not_measured_wrongly():
    found = [host("h2d", 55.4), host("h2d", 27.7)]
    verdict = judged("hostcopy.h2d", node("hostcopy", *found))
    assert (verdict.outcome, verdict.worst["gpu"]) == (Outcome.FAIL, 1)


def test_virtual_nodes_of_one_host_cannot_copy_alone():
    people = support.population(2, 2, "H200 SXM")
    for way in ("h2d", "d2h_all"):
        reason = support.item(f"hostcopy.{way}", LIMITS, people, "worker0").not_applicable
        assert reason == facts.FACTS["own_host"].otherwise
    assert support.item("p2p.write", LIMITS, people, "worker0").not_applicable is None
