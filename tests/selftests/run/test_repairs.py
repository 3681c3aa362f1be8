"""What a repair voids of an accepted run, and what is measured again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.plan.items import Item
from fixtures.run.repairs import (
    CABLE,
    FIRMWARE,
    Repair,
    for_repaired,
    nodes_of_placement,
    partial_reason,
    repairs_of,
    voided,
)
from tests.selftests.support import population

pytestmark = pytest.mark.cpu

FIRST = Repair(
    run="r1", manifest_sha256="aa", verdict="ACCEPTED", created="2026-11-20T10:00:00+00:00",
    nodes=("worker0", "worker1"), told=(), not_repeated=(("gemm.bf16", "worker0", "why"),),
)  # fmt: skip
SECOND = replace(FIRST, run="r2", nodes=("worker2",), told=(CABLE,), not_repeated=())


def test_a_repair_is_the_same_after_it_was_written_and_read():
    assert FIRST.to_json()["not_repeated"] == [["gemm.bf16", "worker0", "why"]]
    assert Repair.from_json(FIRST.to_json()) == FIRST
    both = {"recertifies": [FIRST.to_json(), SECOND.to_json()]}
    assert repairs_of(both) == (FIRST, SECOND)
    assert repairs_of({}) == repairs_of({"recertifies": None}) == ()


def reason(
    *repairs: Repair, run_id: str = "r1", inventory: str = "now", node: str = "worker0",
    over_network: bool = False,
) -> str:  # fmt: skip
    return voided(repairs, run_id=run_id, inventory=inventory, node=node, over_network=over_network)


def test_a_repair_that_the_inventory_shows_voids_nothing_by_itself():
    assert reason(FIRST) == ""
    assert reason() == ""


def test_without_a_new_inventory_nothing_stands_that_was_measured_before_the_repair():
    for inventory in ("", "r1"):
        assert "inventory was not taken again" in reason(FIRST, inventory=inventory)
        assert reason(FIRST, inventory=inventory, node="worker2") == ""
        assert reason(FIRST, inventory=inventory, run_id="now") == ""
    # Of the run between two repairs, the second alone counts.
    assert reason(FIRST, replace(SECOND, nodes=("worker0",)), run_id="r2", inventory="r1") != ""
    assert reason(FIRST, SECOND, run_id="r2", inventory="r1") == ""


def test_new_firmware_voids_all_of_a_node_and_a_cable_what_crosses_the_network():
    firmware, cable = replace(FIRST, told=(FIRMWARE,)), replace(FIRST, told=(CABLE,))
    assert "worker0: has new firmware" in reason(firmware)
    assert reason(firmware, node="worker2") == ""
    assert "worker0: a cable was moved" in reason(cable, over_network=True)
    assert reason(cable, over_network=False) == ""
    assert reason(FIRST, over_network=True) == ""


def item(placement: str, *nodes: str) -> Item:
    return Item(criterion="x.y", subject=placement, nodes=nodes, workload="x", placement=placement)


def test_a_placement_names_its_nodes():
    people = population(3)
    assert nodes_of_placement(item("all", "worker0"), people) == people.nodes
    assert nodes_of_placement(item("worker2"), people) == ("worker2",)
    assert nodes_of_placement(item("kill--worker2--worker0"), people) == ("worker2", "worker0")
    assert nodes_of_placement(item("login"), people) == ()


def test_only_what_touches_a_repaired_node_is_measured_again():
    items = [item("worker0"), item("worker1"), item("worker2--worker1"), item("all")]
    found = for_repaired(items, [FIRST, SECOND], population(3))
    assert [i.placement for i in found] == ["worker2--worker1", "all"]


def test_rows_that_no_run_repeated_make_the_run_a_part():
    assert partial_reason([SECOND]) == partial_reason([]) == ""
    rows = tuple((f"c{k}.x", s, "why") for k in range(5) for s in ("all", "rail0"))
    said = partial_reason([FIRST, replace(SECOND, not_repeated=rows)])
    assert "repair of worker2: 11 rows" in said
    assert said.endswith("as c0.x, c1.x, c2.x, c3.x")
