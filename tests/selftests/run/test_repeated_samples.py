"""The same numbers twice are one measurement, whoever reads them; coarse readings may repeat."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from fixtures.records.model import Measurement, Record
from fixtures.run.order_of_times import samples_in_order
from fixtures.run.repeated_samples import repeated, suspects
from fixtures.verdict.causes import Cause
from tests.selftests.fleets import NODES, Data, FleetRun, as_attempt, fleet, whole_fleet
from tests.selftests.support import rank, record

__all__ = ["fleet", "whole_fleet"]

pytestmark = pytest.mark.cpu

A, B = NODES[1], NODES[2]
FINE = [650.123, 651.377, 649.911, 650.707, 652.013, 648.499, 650.05, 651.9]


def _another_gpu(fleet: FleetRun) -> set[str]:
    def copy(data: Data) -> None:
        data["ranks"][3]["measurements"] = data["ranks"][0]["measurements"]

    fleet.change(f"gemm@{A}.json", copy)
    return {A}


def _another_node(fleet: FleetRun) -> set[str]:
    source = fleet.read(f"gemm@{B}.json")

    def copy(data: Data) -> None:
        for own, other in zip(data["ranks"], source["ranks"], strict=True):
            own["measurements"] = other["measurements"]

    fleet.change(f"gemm@{A}.json", copy)
    return {A, B}


def _one_metric_in_another_format(fleet: FleetRun) -> set[str]:
    source = fleet.read(f"memory@{B}.json")["ranks"][3]["measurements"]
    wanted = next(m for m in source if len(m.get("samples", ())) >= 8)

    def copy(data: Data) -> None:
        for m in data["ranks"][0]["measurements"]:
            if m["metric"] == wanted["metric"] and m.get("at") == wanted.get("at"):
                m["samples"] = wanted["samples"]
                if m.get("ended"):
                    m["ended"] = [t + 0.001 for t in wanted["ended"]]
                    m["started"] = wanted["started"]

    data = fleet.read(f"memory@{A}.json")
    copy(data)
    path = fleet.root / "records" / f"memory@{A}.json"
    path.write_text(json.dumps(data, indent=3), encoding="utf-8")
    return {A, B}


@pytest.mark.parametrize("copy", [_another_gpu, _another_node, _one_metric_in_another_format])
def test_copied_samples_are_void_and_the_reason_names_both_places(
    copy: Callable[[FleetRun], set[str]], fleet: FleetRun, tmp_path
):
    nodes = copy(fleet)
    verdict, rows = fleet.judged(tmp_path / "judged")
    void = {k: v for k, v in rows.items() if v["outcome"] == "NOT_MEASURED"}
    assert {subject for _, subject in void} == nodes
    assert verdict["verdict"] == "INCOMPLETE"
    for row in void.values():
        assert "are equal to the last bit" in row["reason"]
        assert row["reason"].count("records/") >= 2
        assert row["cause"] == Cause.MEASUREMENT
    assert (tmp_path / "judged" / "bad-nodes.txt").read_text() == ""


def test_an_attempt_with_the_samples_of_the_one_before_is_none(fleet: FleetRun, tmp_path):
    first = fleet.read(f"gemm@{A}.json")
    second = as_attempt(first, 2)
    for own, other in zip(second["ranks"], first["ranks"], strict=True):
        for m, before in zip(own["measurements"], other["measurements"], strict=True):
            m |= {k: before[k] for k in ("samples",) if k in before}
    fleet.write(f"gemm@{A}.attempt2.json", second)
    _, rows = fleet.judged(tmp_path / "judged")
    row = rows["gemm.bf16", A]
    assert row["outcome"] == "NOT_MEASURED"
    assert "attempt2" in row["reason"]


def of(node: str, samples: list[float], **more: object) -> Record:
    m = Measurement(metric="bf16", unit="TFLOPS", samples=samples, **more)  # type: ignore[arg-type]
    return record(rank(0, node, m), placement=node)


def found(*records: Record) -> set[str]:
    marks = {(r.workload, r.placement, r.attempt): samples_in_order(r.ranks)[1] for r in records}
    again = suspects(marks)
    of_them = [r for r in records if (r.workload, r.placement, r.attempt) in again]
    return {node for nodes in repeated(of_them).values() for node in nodes}


@pytest.mark.parametrize(
    ("samples", "ended", "same"),
    [
        (FINE, None, True),
        ([1980.0] * 20, None, False),
        ([float(k) for k in range(60, 80)], None, False),
        ([61.5, 61.5, 62.5, 61.5, 62.5, 61.5, 61.5, 62.5, 61.5], None, False),
        # A steady rate of four digits has few values, and is noise; a staircase is not.
        ([40.0 + (k * k % 23) / 100 for k in range(1, 121)], None, True),
        ([40.5 + k // 12 for k in range(120)], None, False),
        (FINE[:3], None, False),
        (FINE[:3], [101.0, 102.0, 103.0], True),
    ],
)
def test_fine_samples_are_one_measurement_and_coarse_ones_may_repeat(samples, ended, same):
    more = {} if ended is None else {"started": 100.5, "ended": ended}
    pair = of("worker0", samples, **more), of("worker1", samples, **more)
    assert found(*pair) == ({"worker0", "worker1"} if same else set())
    other = [s * 1.0000001 for s in samples]
    assert found(pair[0], of("worker1", other, **more)) == set()


def test_short_lists_of_a_rank_count_together():
    lists = [FINE[:2], FINE[2:4], FINE[4:6], FINE[6:]]

    def made(node: str) -> Record:
        measured = [Measurement(metric=f"m{k}", unit="%", samples=s) for k, s in enumerate(lists)]
        return record(rank(0, node, *measured), placement=node)

    assert found(made("worker0"), made("worker1")) == {"worker0", "worker1"}


def test_one_rank_may_state_the_same_numbers_of_two_metrics():
    m = Measurement(metric="a", unit="TFLOPS", samples=FINE)
    both = record(rank(0, "worker0", m, replace(m, metric="b")))
    assert found(both) == set()
