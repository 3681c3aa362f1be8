"""Without an identity nothing counts, and each identity is that of one device."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fixtures.run.identities import (
    Identities,
    address_of,
    doubled,
    guids_of,
    is_gpu,
    nameless,
    serial_of,
)
from fixtures.verdict.causes import Cause
from tests.selftests.fleets import NODES, Data, FleetRun, fleet, whole_fleet
from tests.selftests.support import rank

__all__ = ["fleet", "whole_fleet"]

pytestmark = pytest.mark.cpu

A, B = NODES[1], NODES[2]


def _of_each(change: Callable[[Data], None]) -> Callable[[FleetRun], None]:
    def apply(fleet: FleetRun) -> None:
        for name in fleet.names(A):
            fleet.change(name, lambda d: [change(r) for r in d["ranks"] if r["node"] == A] and None)

    return apply


def _in(workload: str, change: Callable[[Data], None]) -> Callable[[FleetRun], None]:
    return lambda fleet: fleet.change(f"{workload}@{A}.json", change)


def _no_uuid(r: Data) -> None:
    r["device"].pop("uuid")


def _blank(r: Data) -> None:
    r["device"] = {"index": r["device"]["index"], "name": "unknown", "uuid": "", "pci": ""}


def _another_form(r: Data) -> None:
    r["device"]["uuid"] = f"gpu{r['local_rank']}"


def _one_serial(r: Data) -> None:
    r["device"]["serial"] = "1650000000001"


def _one_address(r: Data) -> None:
    r["device"]["pci"] = "00000000:06:00.0"


def _another_serial(d: Data) -> None:
    d["ranks"][2]["device"]["serial"] = "1650999999999"


def _uuids_exchanged(d: Data) -> None:
    a, b = d["ranks"][1]["device"], d["ranks"][3]["device"]
    a["uuid"], b["uuid"] = b["uuid"], a["uuid"]


def _devices_exchanged(d: Data) -> None:
    a, b = d["ranks"][1], d["ranks"][3]
    a["device"], b["device"] = b["device"], a["device"]


def _one_uuid_missing(d: Data) -> None:
    _no_uuid(d["ranks"][3])


FORGERIES = {
    "no UUID in any record": _of_each(_no_uuid),
    "blank in every record": _of_each(_blank),
    "UUIDs of another form": _of_each(_another_form),
    "one UUID missing": _in("gemm", _one_uuid_missing),
    "one serial": _of_each(_one_serial),
    "one address": _of_each(_one_address),
    "another serial": _in("gemm", _another_serial),
    "UUIDs exchanged": _in("gemm", _uuids_exchanged),
    "devices exchanged": _in("gemm", _devices_exchanged),
    "slots exchanged": _in("inventory", _devices_exchanged),
}


@pytest.mark.parametrize("change", FORGERIES.values(), ids=FORGERIES)
def test_devices_that_are_not_who_they_say_are_not_measured(change, fleet: FleetRun, tmp_path):
    change(fleet)
    verdict, rows = fleet.judged(tmp_path / "judged")
    void = {k for k, v in rows.items() if v["outcome"] == "NOT_MEASURED"}
    assert ("gemm.bf16", A) in void
    assert verdict["verdict"] != "ACCEPTED"
    assert not {v["outcome"] for v in rows.values()} & {"FAIL"}


@pytest.mark.parametrize("identity", ["serial", "guid"])
def test_two_nodes_do_not_share_a_serial_or_a_port(identity, fleet: FleetRun, tmp_path):
    def change(d: Data) -> None:
        device = d["ranks"][0]["device"]
        if identity == "serial":
            device["serial"] = "1650777777777"
        else:
            device["nics"] = {**(device.get("nics") or {}), "mlx5_9": "b8ce:f603:0012:3456"}

    for node in (A, B):
        fleet.change(f"inventory@{node}.json", change)
    verdict, rows = fleet.judged(tmp_path / "judged")
    void = {k: v for k, v in rows.items() if v["outcome"] == "NOT_MEASURED" and k[1] in (A, B)}
    assert ("inventory.gpus", A) in void
    assert f"is in the inventories of {A}, {B}" in void["inventory.gpus", A]["reason"]
    assert verdict["verdict"] == "INCOMPLETE"


def test_what_is_a_uuid_a_serial_and_an_address():
    assert [is_gpu(u) for u in (
        "GPU-653bed17-15e9-bec5-e0e8-9ec64150e285", "MIG-653bed17-15e9-bec5-e0e8-9ec64150e285",
        "MIG-GPU-653bed17/7/0", "worker0-cpu0", "GPU-", "gpu-1", "", None, 7,
    )] == [True, True, True, False, False, False, False, False, False]  # fmt: skip
    gpu = {"uuid": "GPU-1", "serial": "16", "pci": "00000000:0A:00.0", "name": "NVIDIA H200"}
    assert (serial_of(gpu), address_of(gpu)) == ("16", "00000000:0a:00.0")
    for part in ({"uuid": "MIG-1"}, {"name": "H200 (MIG instance)"}, {"part": "x"}):
        assert serial_of({**gpu, **part}) == address_of({**gpu, **part}) == ""
    assert [serial_of({**gpu, "serial": s}) for s in ("0", "N/A", None, "000")] == [""] * 4
    assert guids_of({"a": "b8ce:f603:0012:3456", "b": "0000:0000:0000:0000", "c": "02:fc:00"}) == [
        "b8ce:f603:0012:3456"
    ]


def test_a_gpu_that_does_not_answer_is_a_fault_of_its_node():
    lost = [rank(0, "worker0", uuid="", name="unknown")]
    void = nameless("worker0", lost, small=False, inventory=False)
    assert void is not None
    assert void.cause == Cause.NODE
    assert nameless("worker0", lost, small=True, inventory=False) is None
    assert nameless("worker0", lost, small=False, inventory=True) is None
    forged = nameless("worker0", [rank(0, "worker0", uuid="x")], small=True, inventory=True)
    assert forged is not None
    assert forged.cause == Cause.RECORD


def test_gpus_of_a_node_share_nothing_and_instances_share_their_gpu():
    pair = [rank(k, "worker0") for k in range(2)]
    assert doubled("worker0", pair) == ""
    twice = [rank(k, "worker0", pci="00000000:0a:00.0") for k in range(2)]
    assert "have the same PCI address" in doubled("worker0", twice)
    parts = [rank(k, "worker0", uuid=f"MIG-{k}", serial="1", pci="x") for k in range(2)]
    assert doubled("worker0", parts) == ""


def test_identities_have_one_owner_in_runs_side_by_side():
    known = Identities()
    known.add("unit 1: a", ["GPU-1"], {"GPU-1": "77"}, ["g"])
    known.add("unit 2: b", ["GPU-2"], {"GPU-2": "78"}, ["h"])
    assert known.claimed_twice() == {}
    known.add("unit 2: c", ["GPU-3"], {"GPU-3": "77"})
    twice = known.claimed_twice()
    assert set(twice) == {"unit 1: a", "unit 2: c"}
    assert "the serial 77 is in the inventories of" in twice["unit 2: c"]
    known.add("unit 3: d", ["gpu-2"], {"gpu-2": "N9"})
    assert "unit 3: d" in known.claimed_twice(), "upper and lower case are one identity"
