"""How each counter of a GPU is read, and what two readings come to."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.records.absence import Kind
from fixtures.workloads.devices import nvml_fields
from fixtures.workloads.devices.known import Known, Missing
from fixtures.workloads.telemetry import gpu_counters
from tests.selftests.workloads.health.made_up_nvml import (
    Driver,
    NVMLError_GpuIsLost,
    NVMLError_InvalidArgument,
    NVMLError_NotSupported,
)

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field values: a number for each name, and the link that is asked for."""
    known = {nvml_fields.POWER_CAP_NS: 1, nvml_fields.SW_THERMAL_NS: 2,
             nvml_fields.HW_THERMAL_NS: 3, nvml_fields.POWER_BRAKE_NS: 4}  # fmt: skip

    def read(_: Any, __: Any, field: Any, link: int = 0) -> int:
        return 100 + link if field is nvml_fields.NVLINK_RECOVERIES else known[field]

    monkeypatch.setattr(gpu_counters, "read_field", read)
    monkeypatch.setattr(nvml_fields, "link_states", lambda *_: {0: True, 1: False})
    monkeypatch.setattr(nvml_fields, "clock_reason_names", lambda *_: ["power cap"])


ANSWERS: dict[str, Any] = {
    "nvmlDeviceGetTotalEccErrors": lambda _, kind, since: 10 * kind + since,
    "nvmlDeviceGetMemoryErrorCounter": lambda _, kind, since, place: 1000 + 100 * since + place,
    "nvmlDeviceGetRemappedRows": (1, 2, 0, 1), "nvmlDeviceGetPcieReplayCounter": 7,
    "nvmlDeviceGetNvLinkErrorCounter": lambda _, link, kind: 10 * link + kind,
}  # fmt: skip


def test_every_counter_is_read_with_its_arguments(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu_counters.time, "monotonic", lambda: 50.0)
    found = gpu_counters.read(Driver(**ANSWERS), "h")
    assert found == {
        "clock": 50.0, "silent": {}, "clocks": ["power cap"],
        "totals": {
            "power_cap_ns": {"total": 1}, "sw_thermal_ns": {"total": 2},
            "hw_thermal_ns": {"total": 3}, "power_brake_ns": {"total": 4},
            "ecc_volatile": {"total": 10}, "ecc_aggregate": {"total": 11},
            "dram_volatile": {"DRAM": 1002}, "dram_aggregate": {"DRAM": 1102},
            "sram_volatile": {"SRAM": 1007}, "sram_aggregate": {"SRAM": 1107},
            "remapped_rows": {"corrected": 1, "uncorrected": 2}, "remap_pending": {"pending": 0},
            "remap_failed": {"failed": 1}, "pcie_replays": {"total": 7},
            "nvlink_errors": {
                "link 0 replays": 0, "link 0 recoveries": 1, "link 1 replays": 10,
                "link 1 recoveries": 11,
            },
        },
    }  # fmt: skip
    assert gpu_counters.sums(found)["nvlink_errors"] == 22
    assert gpu_counters.sums(found)["remapped_rows"] == 3


def test_what_a_driver_does_not_count_is_read_in_another_way_or_missing():
    for error in (NVMLError_NotSupported(), NVMLError_InvalidArgument()):
        driver = Driver(**{
            **ANSWERS, "nvmlDeviceGetMemoryErrorCounter": error,
            "nvmlDeviceGetNvLinkErrorCounter": NVMLError_NotSupported(),
            "nvmlDeviceGetPcieReplayCounter": NVMLError_GpuIsLost(),
        })  # fmt: skip
        found = gpu_counters.read(driver, "h")
        assert found["totals"]["dram_volatile"] == {"all memory": 0}
        assert found["totals"]["dram_aggregate"] == {"all memory": 1}
        assert found["totals"]["nvlink_errors"] == {
            "link 0 recovery events": 100, "link 1 recovery events": 101,
        }  # fmt: skip
        assert set(found["silent"]) == {"sram_volatile", "sram_aggregate", "pcie_replays"}
        assert found["silent"]["pcie_replays"] == Missing("GpuIsLost")
        assert not found["silent"]["sram_volatile"].of_node


def test_a_gpu_that_could_not_be_asked_has_no_counter():
    why = Missing("GpuIsLost")
    found = gpu_counters.unread(why)
    assert found["totals"] == {}
    assert set(found["silent"]) == set(gpu_counters.COUNTERS)
    assert set(found["silent"].values()) == {why}
    assert found["clocks"] is None
    assert found["clock"] > 0


def reading(clock: float = 0.0, **totals: Any) -> Any:
    return {"clock": clock, "totals": totals, "silent": {}, "clocks": None}


def test_a_rise_is_that_of_each_part():
    before = reading(a={"x": 5, "y": 1, "z": 2})
    found = gpu_counters.rise("a", before, reading(a={"x": 7, "y": 1, "z": 3}))
    assert (found.parts, found.total, found.gap) == ({"x": 2, "z": 1}, 3, None)
    reset = gpu_counters.rise("a", before, reading(a={"x": 4, "y": 9, "z": 2}))
    assert (reset.parts, reset.gap) == ({"y": 8}, gpu_counters.WAS_RESET)
    other = gpu_counters.rise("a", before, reading(a={"x": 6, "q": 1}))
    assert other.parts == {"x": 1}
    assert other.gap is not None
    assert other.gap.why == "the driver counted y, z before and q after"
    fewer = gpu_counters.rise("a", before, reading(a={"x": 6}))
    assert fewer.gap is not None
    assert fewer.gap.why == "the driver counted y, z before and nothing else after"


def test_a_counter_that_was_not_read_twice_says_when():
    gap = Missing("NotSupported", Kind.NOT_THERE)
    there, never = reading(a={"x": 5}), reading()
    silent = {**reading(), "silent": {"a": gap}}
    assert gpu_counters.rise("a", never, never).gap == gpu_counters.NOT_READ
    assert gpu_counters.rise("a", silent, silent).gap == gap
    assert gpu_counters.rise("a", there, silent).gap == Missing("after the work: NotSupported")
    assert gpu_counters.rise("a", silent, there).gap == Missing("before the work: NotSupported")
    assert gpu_counters.rise("a", there, silent).total == 0
    assert gpu_counters.rise("a", there, never).gap == gpu_counters.NOT_READ


def test_of_several_places_the_one_that_rose_most_counts():
    gap, none = Missing("GpuIsLost"), Missing("NotSupported", Kind.NOT_THERE)
    before, after = reading(a={"x": 0}, b={"x": 0}), reading(a={"x": 2}, b={"x": 5})
    found = gpu_counters.largest_rise(("a", "b"), before, after)
    assert (found.name, found.total, found.gap) == ("b", 5, None)
    lost = {**reading(a={"x": 0}), "silent": {"b": gap}}
    found = gpu_counters.largest_rise(
        ("a", "b"), lost, {**reading(a={"x": 2}), "silent": {"b": gap}}
    )
    assert (found.name, found.total, found.gap) == ("a", 2, gap)
    lacks = {**reading(a={"x": 0}), "silent": {"b": none}}
    found = gpu_counters.largest_rise(
        ("a", "b"), lacks, {**reading(a={"x": 2}), "silent": {"b": none}}
    )
    assert (found.total, found.gap) == (2, None)
    neither = {**reading(), "silent": {"a": none, "b": none}}
    assert gpu_counters.largest_rise(("a", "b"), neither, neither).gap == none


def test_nanoseconds_are_a_share_of_the_time():
    before, after = reading(10.0, a={"x": 0}), reading(12.0, a={"x": 10**9})
    assert gpu_counters.percent_of_time("a", before, after) == Known(50)
    assert gpu_counters.seconds_between(before, after) == 2
    assert gpu_counters.seconds_between(after, before) == 1e-3
    gone = gpu_counters.percent_of_time("a", before, reading(12.0))
    assert gone == Known(0, gap=gpu_counters.NOT_READ)
