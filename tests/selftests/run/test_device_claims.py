"""A device's facts that scale its limits: those of its inventory, not of one record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fixtures.records.model import RankResult
from fixtures.records.run_directory import RunDirectory
from fixtures.run import device_claims
from fixtures.run.devices_of_record import DeviceIndex
from reports.second_judge.physics import TABLES
from tests.selftests.support import NONCE, node_record, rank, record, save

pytestmark = pytest.mark.cpu

KNOWN = {
    "sm_count": 132, "max_sm_clock_mhz": 1980, "memory_clock_mhz": 3201, "memory_bus_bits": 6016,
    "compute_capability": 9.0, "power_limit": "default", "nvlinks": 18,
}  # fmt: skip
LESS = {
    "sm_count": 66, "max_sm_clock_mhz": 990, "memory_clock_mhz": 1000, "memory_bus_bits": 512,
    "compute_capability": 8.6, "power_limit": "lowered", "nvlinks": 4,
}  # fmt: skip


def with_facts(found: Any, **facts: Any) -> Any:
    """The record, whose ranks state these facts of their devices."""
    ranks: list[RankResult] = [replace(r, device={**r.device, **facts}) for r in found.ranks]
    return replace(found, ranks=ranks)


def voided(directory: RunDirectory, **facts: Any) -> str:
    """Why the part of the node does not count whose record states these facts, "" if it does."""
    inventory = record(rank(0, "worker0"), rank(1, "worker0"), workload="inventory")
    save(with_facts(inventory, **KNOWN), directory)
    found = DeviceIndex(directory, NONCE).check(with_facts(node_record(650, 650), **facts))
    return found.void["worker0"].reason if found.void else ""


@pytest.mark.parametrize("name", KNOWN)
def test_what_scales_a_limit_is_not_the_word_of_one_record(directory, name):
    assert voided(directory, **KNOWN) == ""
    reason = voided(directory, **{**KNOWN, name: LESS[name]})
    assert f"has {name} {LESS[name]!r} by this record alone" in reason
    assert reason.endswith(f"its inventory says {KNOWN[name]!r}")


def test_a_fact_that_one_of_them_lacks_is_not_compared(directory):
    known = {"GPU-1": device_claims.of_device({"uuid": "GPU-1", "sm_count": 132, "nvlinks": None})}
    assert known == {"GPU-1": {"sm_count": 132}}
    for device in ({"uuid": "GPU-1"}, {"uuid": "GPU-1", "nvlinks": 4}, {"uuid": "GPU-2"}, {}):
        assert device_claims.differing(device, known) == ""
    assert device_claims.differing({"uuid": "GPU-1", "sm_count": 1}, {}) == ""


def test_both_judges_compare_the_same_facts():
    assert set(TABLES["scaling"]) == set(device_claims.SCALING)
