"""Copies between GPUs: rounds of pairs, rates of links, and who is named."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.records.model import Measurement
from fixtures.verdict.model import Outcome
from fixtures.workloads.memory import p2p
from reports.tables import nvbandwidth_tables
from tests.selftests import support
from tests.selftests.rank_job import TORCH, Job
from tests.selftests.workloads.memory.records_of_memory import (
    host,
    judged,
    node,
    rate,
)

pytestmark = pytest.mark.cpu


@given(st.integers(0, 17))
def test_every_two_gpus_meet_once_and_nobody_is_in_two_pairs_at_once(gpus):
    rounds = p2p.round_robin(gpus)
    for pairs in rounds:
        met = [gpu for pair in pairs for gpu in pair]
        assert len(met) == len(set(met))
    every = sorted(pair for pairs in rounds for pair in pairs)
    assert every == list(itertools.combinations(range(gpus), 2))
    assert len(rounds) <= max(1, gpus)


def test_three_ranks_measure_every_link_in_both_directions(tmp_path):
    job = Job(tmp_path, per_node=3)
    job.add("p2p", ["write", "both", "errors"], size=1 << 20)
    assert job.run(warm=TORCH) == [0] * 3, job.output()
    record = job.record("p2p")
    wanted = sorted(itertools.permutations(range(3), 2))
    for metric, arrow in (("write", "->"), ("both", "<->")):
        points = record.points(metric, {})
        assert sorted((r.local_rank, m.at["to"]) for r, m in points) == wanted
        for rank, m in points:
            assert m.at["part"] == f"gpu{rank.local_rank}{arrow}gpu{m.at['to']}"
            assert min(m.samples) > 0
            assert m.checks["wrong"] == 0
    assert [m.value for _, m in record.points("errors", {})] == [0] * 3
    table = nvbandwidth_tables(record)
    assert len(table.splitlines()) == 2 * 5 + 1


def matrix(
    gpus: int = 4, slow: Mapping[tuple[int, int], float] = {}, metric: str = "write", **more: Any
) -> list[list[Measurement]]:
    """What each of the GPUs measured towards each other one; 395 GB/s unless `slow` says else."""
    return [
        [
            rate(metric, slow.get((a, b), 395.0), at={"to": b, "part": f"gpu{a}->gpu{b}"}, **more)
            for b in range(gpus)
            if a != b
        ]
        for a in range(gpus)
    ]


def test_a_healthy_matrix_passes_and_shows_its_slowest_link():
    verdict = judged("p2p.write", node("p2p", *matrix(slow={(2, 1): 394.0})))
    assert (verdict.outcome, verdict.value, verdict.ceiling) == (Outcome.PASS, 394.0, 450)
    assert verdict.worst["part"] == "gpu2->gpu1"
    assert verdict.devices == {"planned": 4, "measured": 4}


def test_a_slow_link_is_named_with_both_of_its_ends():
    verdict = judged("p2p.write", node("p2p", *matrix(slow={(0, 3): 200.0})))
    assert (verdict.outcome, verdict.worst["part"]) == (Outcome.FAIL, "gpu0->gpu3")
    assert verdict.line.startswith("worker0 gpu0->gpu3 p2p.write: 200 GB/s, limit >= 380")
    assert "only the link between gpu0 and gpu3 is slow" in verdict.next_step


def test_the_gpu_that_all_slow_links_have_in_common_is_named():
    slow = {(a, b): 190.0 + a for a in range(4) for b in range(4) if 2 in (a, b) and a != b}
    verdict = judged("p2p.write", node("p2p", *matrix(slow=slow)))
    assert verdict.outcome is Outcome.FAIL
    assert "gpu2 (GPU-worker0-2) is part of all 6 slow links" in verdict.next_step


def test_slow_links_without_a_gpu_in_common_are_said_to_be_so():
    verdict = judged("p2p.write", node("p2p", *matrix(slow={(0, 1): 100.0, (2, 3): 110.0})))
    assert "no GPU is part of all 2 slow links" in verdict.next_step


def test_a_link_below_its_siblings_is_an_outlier_with_its_name():
    verdict = judged("p2p.write", node("p2p", *matrix(slow={(3, 1): 382.0})))
    assert (verdict.outcome, verdict.worst["part"]) == (Outcome.FAIL, "gpu3->gpu1")
    assert verdict.reason.startswith("outlier: ")


def test_a_link_that_is_missing_or_doubled_is_not_measured():
    lacking = matrix()
    del lacking[1][2]
    verdict = judged("p2p.write", node("p2p", *lacking))
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert verdict.reason == "measured on 11 of 12 links; not from gpu1 to gpu3 of worker0"
    lacking[1].append(lacking[1][0])
    assert "not from gpu1 to gpu3" in judged("p2p.write", node("p2p", *lacking)).reason
    doubled = matrix()
    doubled[1].append(doubled[1][0])
    verdict = judged("p2p.write", node("p2p", *doubled))
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert verdict.reason == "the record holds 13 measurements of 12 links"


def test_both_ways_have_twice_the_ceiling():
    fast = dict.fromkeys(itertools.permutations(range(4), 2), 783.7)
    record = node("p2p", *matrix(slow=fast, metric="both"))
    verdict = judged("p2p.both", record)
    assert (verdict.outcome, verdict.ceiling) == (Outcome.PASS, 900)
    as_one_way = node("p2p", *matrix(slow=fast))
    assert "above the physical ceiling" in judged("p2p.write", as_one_way).reason


def test_tables_have_the_form_of_nvbandwidth():
    assert nvbandwidth_tables(node("p2p", *matrix(2, {(1, 0): 394.123}))).splitlines() == [
        "worker0: memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
        "           0         1",
        " 0       N/A    395.00",
        " 1    394.12       N/A",
    ]
    found = node("hostcopy", host("h2d", 55.43), host("h2d", 55.06))
    assert nvbandwidth_tables(found).splitlines() == [
        "worker0: memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)",
        "           0         1",
        " 0     55.43     55.06",
    ]
    assert nvbandwidth_tables(support.node_record(650, 655)) == ""
