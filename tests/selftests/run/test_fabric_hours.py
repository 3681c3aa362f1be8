"""Hours of load on the whole fabric: which slices a session adds, and what --plan says of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.run.fabric_hours import plan_lines, slices_to_add
from fixtures.thresholds.contract import Contract

pytestmark = pytest.mark.cpu

LOAD, COUNTERS, OTHER = ("permutations", "all"), ("ib_counters", "all"), ("wiring", "all")


def after(hours: float | None) -> Any:
    return SimpleNamespace(load_on_fabric=lambda: None if hours is None else {"hours": hours})


def test_a_slice_is_added_until_the_hours_are_reached_with_the_counters_of_the_ports():
    planned = {LOAD, COUNTERS, OTHER}
    assert slices_to_add(after(None), planned, 4) == {LOAD, COUNTERS}
    assert slices_to_add(after(3.9), planned, 4) == {LOAD, COUNTERS}
    assert slices_to_add(after(3.9), {LOAD}, 4) == {LOAD}
    assert slices_to_add(after(4.0), planned, 4) == set()
    assert slices_to_add(after(0.0), {COUNTERS}, 4) == set()


def test_the_plan_says_permutations_minutes_and_bytes():
    nodes = [f"gpu{k:04}" for k in range(1024)]
    leaves = {f"leaf{k:02}": f"gpu[{32 * k:04}-{32 * k + 31:04}]" for k in range(32)}
    order = Contract.model_validate({
        "nodes": "gpu[0000-1023]", "gpus_per_node": 8, "gpu_model": "H200 SXM", "leaves": leaves,
    })  # fmt: skip
    first, cycle, whole = plan_lines(nodes, 8, order, 4)
    assert first == (
        "fabric  1,024 nodes x 8 ports, 32 leaf switches: 122 permutations of 4.9 s in a slice "
        "of 10 min"
    )
    assert "both ways: " in cycle
    assert "permutations" in cycle
    assert whole.startswith("fabric  24 slices, 240 min: records of ")
    assert " MB in all" in whole
    assert "leaves not ordered" in plan_lines(nodes[:2], 1, None, None)[0]
    assert plan_lines(nodes[:2], 1, None, None)[2].startswith("fabric  1 slice, 10 min: ")
    assert plan_lines(nodes[:1], 8, None, None) == []  # of one node there is no fabric
