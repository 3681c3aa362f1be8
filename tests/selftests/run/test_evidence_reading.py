"""Which attempt of a record counts, what is waited for, and what of it stays in memory."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.files import append_line
from fixtures.records.model import Record
from fixtures.records.run_directory import RunDirectory
from fixtures.run import evidence as module
from fixtures.run.attempts import FIRST, Attempts
from fixtures.run.evidence import NOT_RUN, Evidence
from tests.selftests.support import NONCE, node_record, record, save

pytestmark = pytest.mark.cpu

GEMM = ("gemm", "worker0")


@pytest.fixture(autouse=True)
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it slept each time."""
    slept: list[float] = []
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=slept.append))
    return slept


def missing(directory: RunDirectory, *, workload: str = "gemm", **more: Any) -> None:
    line = {"nonce": NONCE, "workload": workload, "placement": "worker0", "reason": "r", **more}
    append_line(directory.missing, line)


def attempt(found: Any) -> Any:
    return found.attempt if isinstance(found, Record) else found and found.get("attempt")


def inventory(*uuids: str, node: str = "worker0", **more: Any) -> Record:
    made = node_record(*[1.0] * len(uuids), node=node)
    for rank, uuid in zip(made.ranks, uuids, strict=True):
        rank.device["uuid"] = uuid
    return record(*made.ranks, workload="inventory", placement=node, **more)


class Devices:
    """What the records are checked against; counts how often it was asked."""

    def __init__(self, **claims: str) -> None:
        self.claimed = claims
        self.asked = 0
        self.checked: list[str] = []

    def claims(self) -> dict[str, str]:
        self.asked += 1
        return self.claimed

    def check(self, found: Record) -> Record:
        self.checked.append(found.name)
        return found


# --- which attempt counts


def test_the_newest_attempt_counts_unless_one_is_waited_for(directory):
    save(node_record(650, 650), directory)
    assert attempt(Evidence(directory, NONCE).get(*GEMM)) == 1
    save(node_record(650, 650, attempt=2), directory)
    assert attempt(Evidence(directory, NONCE).get(*GEMM)) == 2
    assert attempt(Evidence(directory, NONCE, {GEMM: 1}).get(*GEMM)) == 1
    assert Evidence(directory, NONCE, {GEMM: 3}).get(*GEMM) is None


def test_a_later_attempt_that_left_no_record_counts_too(directory):
    save(node_record(650, 650), directory)
    missing(directory, attempt=1)
    assert isinstance(Evidence(directory, NONCE).get(*GEMM), Record)
    missing(directory, attempt=2)
    assert attempt(Evidence(directory, NONCE).get(*GEMM)) == 2
    assert not isinstance(Evidence(directory, NONCE).get(*GEMM), Record)
    assert attempt(Evidence(directory, NONCE, {GEMM: 1}).get(*GEMM)) == 1


def test_reasons_of_another_run_and_of_an_earlier_session_are_passed_over(directory):
    missing(directory, attempt=1, reason="old")
    assert Evidence(directory, NONCE).get(*GEMM)["reason"] == "old"
    assert Evidence(directory, NONCE, missing_from=1).get(*GEMM) is None
    assert Evidence(directory, "f" * 32).get(*GEMM) is None


def test_reasons_are_read_again_when_there_are_more(directory):
    evidence = Evidence(directory, NONCE)
    assert evidence.get(*GEMM) is None
    missing(directory, reason="first")
    assert evidence.get(*GEMM)["reason"] == "first"
    missing(directory, reason="second")
    assert evidence.get(*GEMM)["reason"] == "second"


def test_an_inventory_that_two_nodes_claim_is_unusable_and_no_other_record(directory):
    save(inventory("GPU-1"), directory)
    save(node_record(650, 650), directory)
    evidence = Evidence(directory, NONCE, devices=Devices(worker0="it is in two nodes"))
    found = evidence.get("inventory", "worker0")
    assert (found["kind"], found["cause_nodes"]) == ("unusable record", [])
    assert "inventory@worker0.json: it is in two nodes" in found["reason"]
    assert isinstance(evidence.get(*GEMM), Record)
    assert isinstance(Evidence(directory, NONCE).get("inventory", "worker0"), Record)


@pytest.mark.parametrize(
    ("placement", "nodes"), [("worker0", ["worker0"]), ("worker0--worker1", []), ("all", [])]
)
def test_a_broken_record_of_one_node_is_that_node_s(directory, placement, nodes):
    directory.record("gemm", placement).write_text("{")
    found = Evidence(directory, NONCE).get("gemm", placement)
    assert (found["kind"], found["cause_nodes"]) == ("unusable record", nodes)


def test_a_record_under_the_name_of_another_is_unusable(directory):
    save(node_record(650, 650), directory, name="gemm@worker1.json")
    found = Evidence(directory, NONCE).get("gemm", "worker1")
    assert "it is a record of gemm@worker0" in found["reason"]


# --- waiting


def test_a_record_is_waited_for_until_none_will_come(directory, naps):
    turns = iter([False, False, True])
    evidence = Evidence(directory, NONCE, {GEMM: 1})
    assert evidence.wait(*GEMM, until=lambda: next(turns)) == NOT_RUN
    assert naps == [0.05, 0.05]  # twenty times a second
    save(node_record(650, 650), directory)
    assert isinstance(evidence.wait(*GEMM, until=lambda: False), Record)
    assert len(naps) == 2


def test_a_file_is_waited_for_until_it_or_a_reason_is_there(directory, naps):
    def waits(*turns: bool, key: tuple[str, str] = GEMM) -> int:
        naps.clear()
        left = iter([*turns, True])
        evidence = Evidence(directory, NONCE, {GEMM: 1, ("copy", "worker0"): 1})
        evidence.wait_for_file(*key, until=lambda: next(left))
        return len(naps)

    assert waits(False, False) == 2
    missing(directory)
    assert waits(False, False) == 0
    save(node_record(650, 650), directory, name="copy@worker0.json")
    assert waits(False, False, key=("copy", "worker0")) == 0


INVENTORIES = {("inventory", "worker0"): 1, ("inventory", "worker1"): 1, GEMM: 1}


def awaits(directory: RunDirectory, workload: str, placement: str, **more: Any) -> bool:
    more = {"expected": INVENTORIES, "devices": Devices(), **more}
    return Evidence(directory, NONCE, **more)._awaits_inventory(workload, placement)


def test_a_record_is_not_judged_before_the_devices_of_its_nodes_are_known(directory):
    everywhere = (("gemm", "all"), ("inventory", "worker1"), ("gemm", "worker1--worker0"))
    assert all(awaits(directory, *key) for key in (*everywhere, GEMM))
    assert not awaits(directory, *GEMM, devices=None)
    assert not awaits(directory, "gemm", "worker2")
    assert not awaits(directory, *GEMM, expected={GEMM: 1})
    save(inventory("GPU-1"), directory)
    assert not awaits(directory, *GEMM)
    assert all(awaits(directory, *key) for key in everywhere)
    missing(directory, workload="inventory", placement="worker1")
    assert not any(awaits(directory, *key) for key in everywhere)


def test_what_was_found_settled_stays_so(directory):
    evidence = Evidence(directory, NONCE, INVENTORIES, devices=Devices())
    save(inventory("GPU-1"), directory)
    assert not evidence._awaits_inventory(*GEMM)
    assert evidence._inventories == {"worker1"}
    directory.record("inventory", "worker0").unlink()
    assert not evidence._awaits_inventory(*GEMM)


# --- attempts before


def test_attempts_before_are_read_newest_first_as_far_as_they_can_be_used(directory):
    for k in (1, 2, 4):
        save(node_record(650, 650, attempt=k), directory)
    directory.record("gemm", "worker0", 3).write_text("{")
    evidence = Evidence(directory, NONCE)
    newest = evidence.get(*GEMM)
    assert [r.attempt for r in evidence.attempts(*GEMM, newest).earlier] == [2, 1]
    assert evidence.attempts(*GEMM, evidence._read(*GEMM, 1)) is FIRST
    for found in (None, {"reason": "x"}):
        assert evidence.attempts(*GEMM, found) == Attempts(newest=4)


def test_an_inventory_of_other_devices_is_void_for_those_that_are_gone(directory):
    for k, uuids in enumerate((("GPU-1", "GPU-2"), ("GPU-1", "GPU-3"), ("GPU-2", "GPU-1")), 1):
        save(inventory(*uuids, attempt=k), directory)
    evidence = Evidence(directory, NONCE)
    newest = evidence.get("inventory", "worker0")
    other, same = evidence.attempts("inventory", "worker0", newest).earlier
    assert (other.attempt, other.void["worker0"].gone) == (2, {"GPU-3"})
    assert (same.attempt, same.void) == (1, {})
    # Of any other record it is the devices themselves that are checked.
    for k, uuid in enumerate(("GPU-1", "GPU-9"), 1):
        made = node_record(650, attempt=k)
        made.ranks[0].device["uuid"] = uuid
        save(made, directory)
    assert len(evidence.attempts(*GEMM, evidence.get(*GEMM)).earlier) == 1


# --- memory


def test_a_reader_for_many_keeps_nothing_and_asks_for_claims_once(directory):
    devices = Devices()
    evidence = Evidence(directory, NONCE, devices=devices)
    evidence.get(*GEMM)
    lean = evidence.for_batch()
    assert (devices.asked, lean.cache_bytes, lean.without_facts) == (1, 0, True)
    assert lean._records is not evidence._records
    assert Evidence(directory, NONCE).for_batch().devices is None
    for k in range(3):
        save(node_record(650, 650, node=f"n{k}"), directory)
        lean.get("gemm", f"n{k}")
        assert len(lean._records) == 1


def test_records_are_kept_until_others_need_the_memory(directory):
    for k in range(3):
        save(node_record(650, 650, node=f"n{k}"), directory)
    size = directory.record("gemm", "n0").stat().st_size
    devices = Devices()
    evidence = Evidence(directory, NONCE, devices=devices, cache_bytes=2 * size)
    for node in ("n0", "n1", "n0", "n2", "n0", "n1"):  # n0 was used last when n2 comes
        evidence.get("gemm", node)
    assert [name[5:7] for name in devices.checked] == [
        "n0", "n1", "n2", "n1",
    ]  # fmt: skip
    evidence.forget()
    assert (evidence._records, evidence._sizes) == ({}, {})
    assert module.CACHE_BYTES == 64_000_000  # eight times as much in memory: half a gigabyte


def test_the_size_of_a_record_is_that_of_the_attempt_that_counts(directory):
    evidence = Evidence(directory, NONCE)
    assert evidence.size(*GEMM) == 0
    save(node_record(650, 650), directory)
    save(node_record(650, 650, 650, attempt=2), directory)
    first, second = (directory.record(*GEMM, k).stat().st_size for k in (1, 2))
    assert evidence.size(*GEMM) == second
    assert Evidence(directory, NONCE, {GEMM: 1}).size(*GEMM) == first
    assert json.loads(directory.record(*GEMM, 2).read_text())["attempt"] == 2


def test_what_is_held_is_counted_as_records_come_and_go(directory):
    """No record is read twice that fits, and none stays that does not."""
    sizes = {}
    for k in range(6):
        made = record(*node_record(650, node=f"n{k}").ranks, placement=f"n{k}")
        save(made, directory)
        sizes[k] = directory.record("gemm", f"n{k}").stat().st_size
    evidence = Evidence(directory, NONCE, cache_bytes=3 * max(sizes.values()))
    for k in (0, 1, 2, 0, 3, 4, 0, 5, 1):
        evidence.get("gemm", f"n{k}")
        held = [int(placement[1:]) for _, placement, _ in evidence._records]
        assert evidence._held == sum(sizes[k] for k in held)
        assert len(held) <= 3
    assert held == [0, 5, 1]
    evidence.forget()
    evidence.get("gemm", "n2")
    assert evidence._held == sizes[2]
    assert evidence.for_batch()._held == 0
