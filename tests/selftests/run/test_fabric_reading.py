"""Slices of a load on the fabric: read once for all readers, and again where they may be others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from fixtures.plan.items import ALL
from fixtures.records.model import Record
from fixtures.records.run_directory import RunDirectory
from fixtures.run import fabric_load
from fixtures.run.devices_of_record import INVENTORY, DeviceIndex
from fixtures.run.evidence import Evidence
from fixtures.run.fabric_load import PERMUTATIONS, FabricLoad
from tests.selftests import support
from tests.selftests.loaded_fabrics import LoadedFabric, in_leaves, value
from tests.selftests.support import NONCE

pytestmark = pytest.mark.cpu

FABRIC = LoadedFabric(in_leaves(5, 2), rounds=40)


@dataclass
class Slices:
    """A run with slices, and the names of the records that its readers have read."""

    directory: RunDirectory
    load: FabricLoad
    devices: DeviceIndex
    read: list[str]

    def reader(self, **more: Any) -> Evidence:
        """Of the run, of its own: as for each part of a session."""
        return Evidence(self.directory, NONCE, devices=self.devices, fabric=self.load, **more)

    def look(self, **more: Any) -> Record:
        """Return the newest slice with what all of them show, as a new reader does."""
        reader = self.reader(**more)
        assert reader.load_on_fabric() is not None
        found = reader.get(PERMUTATIONS, ALL)
        assert isinstance(found, Record)
        return found

    def taken(self) -> list[str]:
        """Return what was read since the last question."""
        read = [*self.read]
        self.read.clear()
        return read

    def inventory(self, attempt: int, **uuids: str) -> None:
        """Take that of all nodes; node -> another UUID of its first GPU."""
        for node in FABRIC.nodes:
            ranks = [support.later(support.rank(k, node), 600.0) for k in range(FABRIC.rails)]
            if node in uuids:
                device = {**ranks[0].device, "uuid": uuids[node]}
                ranks[0] = replace(ranks[0], device=device)
            found = support.record(*ranks, workload=INVENTORY, placement=node, attempt=attempt)
            found = replace(found, job={"id": str(attempt), "submitted": 600.0 * attempt})
            support.save(found, self.directory)


@pytest.fixture
def slices(directory: RunDirectory, records_read: list[str]) -> Slices:
    people = replace(support.population(10, 2, "H200 SXM"), nodes=FABRIC.nodes)
    devices = DeviceIndex(directory, NONCE, people, created=500.0)
    made = Slices(directory, FABRIC.load(), devices, records_read)
    made.inventory(1)
    for attempt in (1, 2, 3):
        support.save(FABRIC.record(attempt), directory)
    return made


def name_of(slices: Slices, attempt: int) -> str:
    return slices.directory.record(PERMUTATIONS, ALL, attempt).name


def test_a_second_reader_reads_nothing_again(slices):
    first = slices.look()
    assert slices.taken() == [name_of(slices, k) for k in (1, 2, 3)]
    assert slices.look() is first
    assert slices.look(without_facts=True) is first
    assert slices.taken() == []
    slices.load.forget()
    assert slices.look() == first
    assert len(slices.taken()) == 3


def test_a_session_computes_a_slice_once_and_holds_no_rates_but_those_of_the_newest(
    slices, monkeypatch
):
    """The leaves are known with the first slice, and what it shows counts from then on."""
    computed = []
    honest = fabric_load.observed
    monkeypatch.setattr(
        fabric_load, "observed",
        lambda record, *of, **more: computed.append(record.attempt) or honest(record, *of, **more),
    )  # fmt: skip
    planner = slices.reader(without_facts=True)
    planner.load_on_fabric()
    assert computed == [3, 1, 2] or computed == [1, 2, 3]
    assert [key for key in planner._records if key[0] == PERMUTATIONS] == [(PERMUTATIONS, ALL, 3)]
    slices.taken()
    slices.inventory(2)
    slices.look(without_facts=True)
    assert slices.taken() == []


def test_after_an_inventory_of_the_same_devices_nothing_is_read_again(slices):
    first = slices.look()
    slices.taken()
    slices.inventory(2)
    assert slices.look() is first
    assert slices.taken() == []


def test_slices_are_read_again_where_a_node_has_another_device_now(slices):
    slices.look()
    slices.taken()
    slices.inventory(2, n11="GPU-new")
    again = slices.look()
    assert set(again.void) == {"n11"}
    assert slices.taken() == [name_of(slices, k) for k in (1, 2, 3)]
    alone = replace(slices, load=FABRIC.load())
    assert alone.look() == again


def test_a_slice_whose_file_is_another_is_read_again(slices):
    assert value(slices.look(), "n11", "ports") == 0
    slices.taken()
    slow = replace(FABRIC, slow=n11_at_half)
    for attempt in (1, 2):
        support.save(slow.record(attempt), slices.directory)
    again = slices.look()
    assert slices.taken() == [name_of(slices, k) for k in (1, 2, 3)]
    assert value(again, "n11", "ports") == 2


def test_a_slice_without_facts_is_no_answer_for_who_asks_for_them(slices):
    slices.look(without_facts=True)
    slices.taken()
    slices.look()
    assert slices.taken() == [name_of(slices, 3)]


def test_where_the_wiring_says_the_leaves_the_newest_slice_asks_it_again(slices):
    slices.load = replace(FABRIC, stated="").load()
    for attempt in (1, 2, 3):
        support.save(replace(FABRIC, stated="").record(attempt), slices.directory)
    slices.look()
    slices.taken()
    slices.look()
    assert slices.taken() == [name_of(slices, 3)]


def n11_at_half(rates, targets, nodes):
    rates[:, [n == "n11" for n in nodes]] *= 0.5
