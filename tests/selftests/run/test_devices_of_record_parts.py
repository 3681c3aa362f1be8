"""The devices of a node by its inventory, and what of a record is not of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fixtures.records.model import RankResult, Record
from fixtures.records.run_directory import RunDirectory
from fixtures.run.devices_of_record import DeviceIndex
from fixtures.run.node_devices import NodeDevices
from fixtures.run.repairs import FIRMWARE, Repair
from fixtures.verdict.causes import IN_NODE, NEXT_STEP, Cause
from tests.selftests.run.small_run import PEOPLE, RUN_ID
from tests.selftests.support import NONCE, bf16, node_record, rank, record, save

pytestmark = pytest.mark.cpu

GPUS = ("GPU-worker0-0", "GPU-worker0-1")
PCI = "00000000:0a:00.0"
"""The address of every device that support makes."""
DAY_S = 86400.0


def ranks(node: str = "worker0", *, start: float = 100.0, **device: Any) -> list[RankResult]:
    made = [rank(k, node, **device) for k in range(2)]
    return [replace(r, start=start, end=start + 10) for r in made]


def of(
    *made: RankResult, workload: str = "gemm", placement: str = "worker0", **more: Any
) -> Record:
    return record(*made, workload=workload, placement=placement, **more)


@pytest.fixture
def index(directory: RunDirectory) -> DeviceIndex:
    return DeviceIndex(directory, NONCE, PEOPLE, run_id=RUN_ID, created=1.0)


def take(index: DeviceIndex, *made: RankResult, node: str = "worker0", **more: Any) -> None:
    """Take the inventory of a node; without ranks of those that support makes."""
    save(of(*(made or ranks(node)), workload="inventory", placement=node, **more), index.directory)


def void(index: DeviceIndex, found: Record) -> dict[str, tuple[str, bool]]:
    """Node -> why its part does not count, and whether as replaced."""
    checked = index.check(found)
    return {n: (v.reason, v.cause == Cause.REPLACED) for n, v in checked.void.items()}


def reason(index: DeviceIndex, found: Record) -> str:
    return void(index, found).get("worker0", ("", False))[0]


# --- the devices of a node


def test_the_newest_inventory_of_this_run_counts(index):
    assert index.of("worker0") is None
    take(index)
    first = index.of("worker0")
    assert first is not None
    assert (set(first.slots), first.taken, first.run_id) == ({*GPUS}, 100.0, RUN_ID)
    assert index.of("worker0") is first
    take(index, *ranks(start=200.0), attempt=2)
    second = index.of("worker0")
    assert second is not None
    assert second.taken == 220.0


@pytest.mark.parametrize("wrong", [{"nonce": "f" * 32}, {"nodes": ["worker0", "worker1"]}, "{"])
def test_an_inventory_of_another_run_or_of_two_nodes_is_none(index, wrong):
    if isinstance(wrong, str):
        index.directory.record("inventory", "worker0").write_text(wrong)
    else:
        take(index, **wrong)
    assert index.of("worker0") is None


def test_without_any_inventory_the_devices_are_those_of_most_records(index):
    save(node_record(1, 1), index.directory)
    assert index.of("worker0") is None  # each was seen once only
    save(of(*ranks(), workload="copy"), index.directory)
    alone = DeviceIndex(index.directory, NONCE, PEOPLE)
    found = alone.of("worker0")
    assert found is not None
    assert set(found.slots) == {*GPUS}
    assert DeviceIndex(index.directory, "f" * 32, PEOPLE).of("worker0") is None
    assert DeviceIndex(index.directory, NONCE).of("worker0") is None
    assert alone.of("worker1") is None
    more = DeviceIndex(index.directory, NONCE, replace(PEOPLE, gpus_per_node=3))
    assert more.of("worker0") is None
    other = ranks()
    other[1].device["uuid"] = "GPU-other"
    why = reason(alone, of(*other, workload="memory"))
    assert "which every other record of the run does not have" in why
    take(index, node="worker1")
    assert DeviceIndex(index.directory, NONCE, PEOPLE).of("worker0") is None


def test_a_device_in_two_inventories_is_claimed_by_both_nodes(index):
    take(index)
    take(index, node="worker1")
    assert index.claims() == {}
    take(index, *(replace(r, node="worker1") for r in ranks()), node="worker1", attempt=2)
    known = index.claims()
    assert set(known) == {"worker0", "worker1"}
    assert "is in the inventories of worker0, worker1" in known["worker1"]
    assert index.claims() is known
    assert DeviceIndex(index.directory, NONCE).claims() == {}


# --- what was replaced


def changed(**device: Any) -> Record:
    return of(*ranks(**device))


def test_a_record_of_the_devices_of_its_node_stands(index):
    take(index)
    assert void(index, of(*ranks())) == {}
    found = of(*ranks())
    assert index.check(found) is found


def test_a_gpu_that_is_no_longer_there_was_replaced_if_the_inventory_is_newer(index):
    take(index, *ranks(start=500.0))
    gone = ranks()
    gone[1].device["uuid"] = "GPU-gone"
    (why, replaced) = void(index, of(*gone))["worker0"]
    assert replaced
    assert f"GPU 1 was replaced: measured on GPU-gone, now {GPUS[1]}" in why
    later = [replace(r, start=900.0, end=901.0) for r in gone]
    (why, replaced) = void(index, of(*later))["worker0"]
    assert not replaced
    assert "gpu1: measured on GPU-gone, which its inventory does not have" in why
    # One rank that measured later is enough to know that it was not before.
    assert void(index, of(gone[1], later[0]))["worker0"][1] is False
    same_time = [replace(r, start=500.0, end=501.0) for r in gone]
    assert void(index, of(*same_time))["worker0"][1] is False


def test_in_a_slot_without_a_gpu_there_is_none_now(index):
    take(index, replace(rank(0, "worker0"), start=500.0, end=510.0))
    assert "measured on GPU-worker0-1, now there is none" in reason(index, of(*ranks()))


def test_a_gpu_that_was_moved_or_has_new_firmware_is_another(index):
    take(index, *ranks(start=500.0, vbios="2"))
    assert f"was moved: measured at elsewhere, now at {PCI}" in reason(
        index, changed(pci="elsewhere")
    )
    assert reason(index, changed(pci=None)) == ""
    assert "has new firmware: measured with 1, now 2" in reason(index, changed(vbios="1"))
    assert reason(index, changed(vbios="2")) == ""
    after = of(*ranks(start=900.0, vbios="1"))
    assert reason(index, after) == ""  # firmware is what the inventory before did not know yet


def test_a_nic_that_was_replaced_voids_what_uses_it(index):
    take(index, *ranks(nics={"ib0": "new"}))
    pair = ranks(nics={"ib0": "old"}) + [
        replace(r, rank=r.rank + 2) for r in ranks("worker1", nics={"ib0": "x"})
    ]
    both = of(*pair, placement="worker0--worker1", nodes=["worker0", "worker1"])
    found = void(index, both)
    assert set(found) == {"worker0"}
    assert found["worker0"] == ("worker0: ib0 was replaced: measured on old, now new", True)
    assert reason(index, changed(nics={"ib0": "old"})) == ""  # gemm on one node uses none
    assert reason(index, of(*ranks(nics={"ib0": "old"}), workload="host")) != ""
    assert reason(index, of(*ranks(nics={"ib0": "new"}), workload="host")) == ""


def test_an_inventory_is_not_checked_against_itself(index):
    take(index, *ranks(start=500.0))
    other = of(*ranks(uuid="GPU-x"), workload="inventory")
    other.ranks[1].device["uuid"] = "GPU-y"
    assert void(index, other) == {}


def test_what_slurm_said_has_no_devices(index):
    login = of(*ranks(uuid="GPU-x"), workload="slurm", placement="login")
    assert index.check(login) is login


# --- what was repaired


@pytest.mark.parametrize(("told", "is_void"), [((FIRMWARE,), True), ((), False)])
def test_a_repair_voids_records_of_the_run_before(index, told, is_void):
    index.repairs = (
        Repair(run="before", manifest_sha256="", verdict="ACCEPTED", created="",
               nodes=("worker0",), told=told),
    )  # fmt: skip
    take(index)
    found = replace(of(*ranks()), run_id="before")
    assert [replaced for _, replaced in void(index, found).values()] == [True] * is_void
    assert void(index, of(*ranks())) == {}
    own = replace(of(*ranks(), workload="inventory"), run_id="before")
    assert void(index, own) == {}


# --- what contradicts the plan


def test_two_ranks_on_one_device_are_a_broken_record_except_where_that_is_judged(index):
    twice = ranks(uuid=GPUS[0])
    assert "GPU-worker0-0 measured as 2 devices" in reason(index, of(*twice))
    assert void(index, of(*twice))["worker0"][1] is False
    assert reason(index, of(*twice, workload="isolation")) == ""
    assert "measured as 2 devices" in reason(index, of(*twice, workload="unheard_of"))


def test_local_ranks_count_from_zero_except_in_small_jobs(index):
    wrong = [replace(r, local_rank=1) for r in ranks()]
    assert "local ranks [1, 1]" in reason(index, of(*wrong))
    assert reason(index, of(*wrong, workload="isolation")) == ""


def test_a_record_is_of_this_run_or_of_one_that_it_recertifies(index):
    foreign = replace(of(*ranks()), run_id="another")
    assert reason(index, foreign) == "it is of run another"
    index.run_id = None
    assert reason(index, foreign) == ""


@pytest.mark.parametrize(("early", "stands"), [(DAY_S, True), (DAY_S + 1, False)])
def test_clocks_may_differ_by_a_day(index, early, stands):
    index.created = 10 * DAY_S
    why = reason(index, of(*ranks(start=10 * DAY_S - early)))
    assert ("measured on 1970-01-09, before the run was started" in why) is not stands
    index.created = None
    assert reason(index, of(*ranks())) == ""


def test_as_many_ranks_as_gpus_are_planned(index):
    assert "1 of 2 ranks" in reason(index, of(ranks()[0]))
    three = [*ranks(), rank(2, "worker0", gpus=3, uuid="GPU-3")]
    assert "3 ranks for 2 GPUs" in reason(index, of(*three))
    assert reason(index, of(ranks()[0], workload="isolation")) == ""
    index.population = None
    assert reason(index, of(ranks()[0])) == ""


MODEL = "the limits are those of H200 SXM"


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ({"name": "cpu"}, "measured on a CPU, a GPU was planned"), ({"name": "unknown"}, ""),
        ({"name": None}, ""), ({"name": "NVIDIA H100 80GB HBM3"}, MODEL),
        ({"name": "Abacus 1"}, f"measured on Abacus 1, {MODEL}"),
    ],
)  # fmt: skip
def test_devices_are_of_the_planned_model(index, device, said):
    why = reason(index, changed(**device))
    assert said in why
    assert bool(said) is bool(why)
    assert reason(index, of(*changed(**device).ranks, workload="inventory")) == ""
    for people in (replace(PEOPLE, origin="sandbox"), replace(PEOPLE, gpu_model="cpu")):
        index.population = people
        assert reason(index, changed(**device)) == ""


def test_a_model_that_nobody_knows_is_not_compared(index):
    index.population = replace(PEOPLE, gpu_model=None)
    assert reason(index, changed(name="Abacus 1")) == ""
    assert "on a CPU" in reason(index, changed(name="cpu"))


def emulated(people: Any) -> Callable[[DeviceIndex], str]:
    def why(index: DeviceIndex) -> str:
        index.population = people
        made = [replace(r, facts={"emulated": True}) for r in ranks()]
        return reason(index, of(*made))

    return why


def test_an_emulated_device_is_no_delivery(index):
    assert "rank 0 measured on an emulated device" in emulated(replace(PEOPLE, ordered=True))(index)
    assert emulated(PEOPLE)(index) == ""


def test_where_nothing_contradicts_the_reason_is_empty(index):
    """Not None: reasons are put together as texts."""
    found = of(*ranks())
    assert index._repaired(found, "worker0", False) == ""
    for people in (PEOPLE, replace(PEOPLE, origin="sandbox"), None):
        index.population = people
        assert index._not_as_planned(found, "worker0", found.ranks, False) == ""
        assert index._fault(found, None, "worker0", found.ranks, {}, False) == ""
    inventory = of(*ranks(), workload="inventory")
    assert index._not_as_planned(inventory, "worker0", inventory.ranks, False) == ""


def test_a_model_that_the_inventory_has_too_is_a_delivery_and_no_broken_record(index):
    """Only a record that differs from its inventory was written or changed by somebody."""
    h100 = {"name": "NVIDIA H100 80GB HBM3"}
    found = index.check(changed(**h100)).void["worker0"]
    assert (found.cause, MODEL in found.reason) == (Cause.RECORD, True)
    devices = NodeDevices({}, {}, {}, {}, 0.0, names=frozenset(h100.values()))
    index._devices["worker0"] = (0, devices)
    found = index.check(changed(**h100)).void["worker0"]
    assert found.cause is Cause.MODEL
    assert found.reason == (
        "worker0: another GPU than ordered: NVIDIA H100 80GB HBM3 instead of H200 SXM"
    )
    assert Cause.MODEL in IN_NODE, "the node is not as ordered"
    assert "cluster.gpu_model" in NEXT_STEP[Cause.MODEL]


# --- samples


def test_the_same_samples_twice_are_new_once_and_void_in_both_records(index):
    take(index)
    take(index, node="worker1")
    fine = [650.0 + k * k % 23 / 100 for k in range(20)]
    copies = [
        of(rank(0, node, bf16(samples)), rank(1, node), placement=node)
        for node, samples in (("worker0", fine), ("worker1", fine), ("worker2", fine[::-1]))
    ]
    records = {(r.workload, r.placement, r.attempt): r for r in copies}
    index.check(copies[0])
    assert not index.find_repeated(records.get)
    assert void(index, copies[0]) == {}
    for one in copies[1:]:
        index.check(one)
    assert index.find_repeated(records.get)
    for node, one in zip(("worker0", "worker1"), copies, strict=False):
        assert "are equal to the last bit" in index.check(one).void[node].reason
    assert "worker2" not in index.repeated.get(("gemm", "worker2", 1), {})
    assert not index.find_repeated(records.get)
