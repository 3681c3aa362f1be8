"""The devices of a node by an inventory, and what of them is another at another time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fixtures.run.identities import is_gpu
from fixtures.run.node_devices import NodeDevices, changes, claimed_otherwise, nics_of, other_serial
from tests.selftests.support import rank

pytestmark = pytest.mark.cpu


def test_only_what_a_driver_named_is_a_gpu():
    assert [is_gpu(x) for x in ("GPU-1", "MIG-1", "cpu-worker0", None)] == [
        True, True, False, False,
    ]  # fmt: skip
    assert nics_of({"nics": {"mlx5_0": 7}}) == {"mlx5_0": "7"}
    assert nics_of({"nics": ["mlx5_0"]}) == nics_of({}) == {}


def test_an_inventory_names_slots_addresses_firmware_and_nics():
    found = NodeDevices.from_ranks([
        {"local_rank": 1, "start": 5, "device": {"uuid": "GPU-b", "pci": "p", "vbios": "v"}},
        {"local_rank": 0, "start": 9, "device": {"uuid": "GPU-a", "nics": {"ib0": "guid"}}},
        {"local_rank": 2, "start": 7, "device": {"uuid": "cpu-node", "pci": "q"}},
        {"local_rank": 3, "start": 7, "device": {}},
    ])  # fmt: skip
    assert found == NodeDevices(
        {"GPU-b": 1, "GPU-a": 0}, {"GPU-b": "p"}, {"ib0": "guid"}, {"GPU-b": "v"}, 9.0
    )
    assert [found.lacks(u) for u in ("GPU-a", "GPU-z", "cpu-node", None)] == [
        False, True, False, False,
    ]  # fmt: skip
    assert not NodeDevices({}, {}, {}, {}, 0.0).lacks("GPU-z")


def test_an_inventory_names_the_models_of_its_gpus():
    found = NodeDevices.from_ranks([
        {"local_rank": 0, "start": 5, "device": {"uuid": "GPU-b", "name": "NVIDIA H200"}},
        {"local_rank": 1, "start": 5, "device": {"uuid": "GPU-a"}},
        {"local_rank": 2, "start": 5, "device": {"uuid": "cpu-node", "name": "cpu"}},
    ])  # fmt: skip
    assert found.names == {"NVIDIA H200"}


# --- at another time

RANK = rank(0, "worker0", vbios="V1", nvlinks=18, serial="1650", gpus=1)
UUID = RANK.device["uuid"]


def inventory(at: float, **device: Any) -> NodeDevices:
    made = {**RANK.device, **device}
    return NodeDevices.from_ranks([{"local_rank": 0, "start": at, "device": made}])


def found(now: NodeDevices, then: NodeDevices | None) -> list[tuple[str, bool]]:
    before = not now.taken_before(RANK.start, {})
    every = changes(now, then, "worker0", [RANK], False, True, before=before)
    return [(said, shown) for _, said, shown in every]


@pytest.mark.parametrize(
    ("taken", "jobs", "before"),
    [
        (90.0, (1.0, 2.0), True), (200.0, (1.0, 2.0), False),
        # The clock of the node was set back, or forward, between them.
        (90.0, (2.0, 1.0), False), (90.0, (2.0, "x"), True), (90.0, (None, 1.0), True),
    ],
)  # fmt: skip
def test_an_inventory_is_before_ranks_by_the_clocks_of_node_and_owner(taken, jobs, before):
    own, other = ({"submitted": when} for when in jobs)
    known = replace(inventory(taken), job=own)
    assert known.taken_before(RANK.start, other) is before


def test_the_devices_of_an_inventory_have_not_changed():
    now = inventory(90.0)
    assert found(now, now) == found(inventory(200.0), now) == []


@pytest.mark.parametrize(
    ("is_now", "says"),
    [({"pci": "00000000:ee:00.0"}, "was moved"), ({"vbios": "V2"}, "has new firmware"),
     ({"nvlinks": 17}, "had nvlinks 18, now 17")],
)  # fmt: skip
def test_a_change_is_shown_by_the_inventory_before_it(is_now, says):
    now, then = inventory(200.0, **is_now), inventory(90.0)
    ((said, shown),) = found(now, then)
    assert (says in said, shown) == (True, True)
    assert all(shown for _, shown in found(now, None)), "there was one, and it is lost"
    assert not any(shown for _, shown in found(now, now)), "by the record alone"


def test_a_record_that_no_inventory_has_is_of_nothing_that_was_there():
    now, then = inventory(200.0, pci="c"), inventory(90.0, pci="b")
    ((said, shown),) = found(now, then)
    assert ("was moved" in said, shown) == (True, False)


def test_a_nic_is_another_only_where_the_network_was_measured_through_it():
    was = replace(RANK, device={**RANK.device, "nics": {"mlx5_0": "guid-a", "mlx5_1": "guid-b"}})

    def of(over_network: bool, **nics: str) -> list[tuple[str, str, bool]]:
        now = inventory(200.0, nics=nics)
        return list(changes(now, now, "worker0", [was], False, over_network, before=False))

    assert of(True, mlx5_0="guid-a", mlx5_1="guid-b") == []
    assert of(False, mlx5_0="guid-z") == [], "it was measured within the node"
    assert of(True) == [], "an inventory without NICs says nothing of them"
    assert of(True, mlx5_0="guid-a", mlx5_1="guid-z") == [
        ("mlx5_1", "worker0: mlx5_1 was replaced: measured on guid-b, now guid-z", True)
    ]
    ((_, said, _),) = of(True, mlx5_0="guid-a")
    assert said.endswith("measured on guid-b, now none")


def test_what_scales_a_limit_and_the_serial_are_those_of_the_inventory():
    same, other = inventory(90.0), inventory(90.0, nvlinks=17, serial="77")
    assert claimed_otherwise(same, "worker0", [RANK]) == ""
    assert "nvlinks 18 by this record alone" in claimed_otherwise(other, "worker0", [RANK])
    assert other_serial(same, "worker0", RANK) == ""
    assert "the serial 1650" in other_serial(other, "worker0", RANK)
    without = replace(RANK, device={**RANK.device, "serial": None})
    assert other_serial(other, "worker0", without) == ""
