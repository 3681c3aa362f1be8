"""What is asked of NVML means the same in every release that we know, or has a fallback.

The table data/nvml_wheels.json says what each nvidia-ml-py from 12.535 to 13.615 means by its
names; tests/tools/nvml_wheels.py made it. The header of a driver's own release is in the wheel of
the same number: 12.575.51 is of driver 575.51.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

import pytest

from fixtures.workloads.devices import nvml_fields
from fixtures.workloads.devices.nvml_fields import Field, NotOffered, Release, number_of
from fixtures.workloads.health import health, nvlink, under_load
from fixtures.workloads.telemetry import gpu_counters
from tests.tools import nvml_wheels
from tests.tools.nvml_wheels import FABRIC, THROUGH_THE_WHEEL

pytestmark = pytest.mark.cpu

TABLE = json.loads(nvml_wheels.FILE.read_text(encoding="utf-8"))
WHEELS = nvml_wheels.unpacked(TABLE)
"""Version -> "fields", "constants", "functions", "structures" -> name -> value."""

LITERALS = {
    "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": nvml_fields.UNCORRECTED,
    "NVML_MEMORY_ERROR_TYPE_CORRECTED": nvml_fields.CORRECTED,
    "NVML_VOLATILE_ECC": nvml_fields.VOLATILE,
    "NVML_AGGREGATE_ECC": nvml_fields.AGGREGATE,
    "NVML_MEMORY_LOCATION_DEVICE_MEMORY": nvml_fields.DRAM,
    "NVML_MEMORY_LOCATION_SRAM": nvml_fields.SRAM,
    "nvmlClocksEventReasonSwPowerCap": nvml_fields.SW_POWER_CAP_BIT,
    "nvmlClocksEventReasonSwThermalSlowdown": nvml_fields.SW_THERMAL_BIT,
    "nvmlClocksThrottleReasonHwThermalSlowdown": nvml_fields.HW_THERMAL_BIT,
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": nvml_fields.POWER_BRAKE_BIT,
    "NVML_NVLINK_ERROR_DL_REPLAY": gpu_counters.LINK_ERRORS[0],
    "NVML_NVLINK_ERROR_DL_RECOVERY": gpu_counters.LINK_ERRORS[1],
    "nvmlEventTypeXidCriticalError": under_load.XID_EVENT,
    "NVML_CLOCK_SM": health.CLOCK_SM,
    "NVML_P2P_CAPS_INDEX_WRITE": nvlink.WRITE,
    "NVML_P2P_CAPS_INDEX_NVLINK": nvlink.OVER_NVLINK,
    "NVML_GPU_FABRIC_STATE_COMPLETED": nvml_fields.FABRIC_COMPLETED,
    "NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY": 2,
    "NVML_GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY": 3,
    "NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW": 0,
    "NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE": 1,
    "NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY": 2,
    "NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY": 4,
    "NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY": 6,
    "NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION": 8,
    "NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE": 1,
    "NVML_COMPUTEMODE_DEFAULT": health.COMPUTE_MODES.index("default"),
    "NVML_COMPUTEMODE_EXCLUSIVE_PROCESS": health.COMPUTE_MODES.index("exclusive process"),
    "NVML_GPU_RECOVERY_ACTION_NONE": health.RECOVERY_ACTIONS.index("none"),
    "NVML_GPU_RECOVERY_ACTION_GPU_RESET": health.RECOVERY_ACTIONS.index("reset the GPU"),
    "NVML_GPU_RECOVERY_ACTION_NODE_REBOOT": health.RECOVERY_ACTIONS.index("reboot the node"),
}
"""NVML's name -> the number that stands in our code for it."""

ALIASES = {
    "NVML_FI_DEV_PERF_POLICY_POWER": {"NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP"},
}
"""Other names of the same value, in nanoseconds all of them."""

FALLBACKS = {
    "nvmlDeviceGetMarginTemperature": "nvmlDeviceGetTemperatureThreshold",
    "nvmlDeviceGetGpuFabricInfoV": "nvmlDeviceGetGpuFabricInfo",
}
"""What some wheels do not have -> what is asked there."""
WITHOUT = {"nvmlDeviceGetNumaNodeId"}
"""What some wheels do not have, and is taken as not there: no memory that the system owns."""


def release(version: str) -> Release:
    found = nvml_fields.release_of(version.partition(".")[2])
    assert found is not None
    return found


@pytest.mark.parametrize("version", TABLE["versions"])
def test_no_number_means_something_else_in_any_release(version: str):
    fields = WHEELS[version]["fields"]
    faults = {w.name: fault for w in nvml_fields.FIELDS if (fault := misread(w, version, fields))}
    assert faults == {}


def misread(wanted: Field, version: str, fields: dict[str, int]) -> str:
    """What is wrong with the number that we ask a release for; '' for nothing."""
    try:
        number = number_of(wanted, release(version))
    except NotOffered:
        # Then the driver must really not have it: a row is not given up for a gap in our table.
        return "it is there, and not asked for" if wanted.name in fields else ""
    meanings = {n for n, k in fields.items() if k == number} - {"NVML_FI_MAX"}
    if wanted.name in meanings and meanings <= {wanted.name} | ALIASES.get(wanted.name, set()):
        return ""
    return f"{number} means {', '.join(sorted(meanings)) or 'nothing'}"


def test_a_number_of_another_meaning_is_found():
    wanted, version = nvml_fields.HW_THERMAL_NS, TABLE["versions"][-1]
    number = number_of(wanted, release(version))
    assert misread(wanted, version, {wanted.name: number}) == ""
    assert misread(wanted, version, {wanted.name: number + 1}) == f"{number} means nothing"
    assert misread(wanted, version, {"OTHER": number}) == f"{number} means OTHER"
    both = {wanted.name: number, "OTHER": number}
    assert misread(wanted, version, both) == f"{number} means {wanted.name}, OTHER"
    assert misread(wanted, "12.535.133", {wanted.name: 7}) == "it is there, and not asked for"


def test_the_table_spans_what_it_says():
    releases = [release(version) for version in TABLE["versions"]]
    assert releases[0][0] == 535
    assert releases[-1] == nvml_fields.NEWEST_KNOWN
    assert releases == sorted(releases)
    assert len(releases) >= 19


@pytest.mark.parametrize(
    ("driver", "number"),
    [((575, 51), 252), ((580, 65), 252), ((580, 82), 270), ((580, 159), 270), ((610, 43), 270)],
)
def test_the_number_is_that_of_the_driver(driver: Release, number: int):
    assert number_of(nvml_fields.HW_THERMAL_NS, driver) == number


@pytest.mark.parametrize(
    ("driver", "why"),
    [
        ((535, 183), "driver 535.183 does not have this, those from 575 on do"),
        ((580, 76), "its number in driver 580.76 is not documented"),
        ((620, 10), "driver 620.10 is newer than this suite and its nvidia-ml-py"),
        (None, "the driver does not say its version"),
    ],
)
def test_a_number_that_is_not_certain_is_not_asked_for(driver: Release | None, why: str):
    with pytest.raises(NotOffered, match=why):
        number_of(nvml_fields.HW_THERMAL_NS, driver)
    assert number_of(nvml_fields.POWER_CAP_NS, driver) == 74


def test_a_newer_driver_is_asked_by_the_numbers_of_its_own_wheel():
    class Newer:
        NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN = 300
        NVML_FI_DEV_PERF_POLICY_POWER = 74

    wanted = nvml_fields.HW_THERMAL_NS
    assert number_of(wanted, (620, 10), (620, 10), Newer) == 300
    assert number_of(nvml_fields.POWER_CAP_NS, (620, 10), (620, 10), Newer) == 74
    with pytest.raises(NotOffered):
        number_of(wanted, (620, 10), (615, 71), Newer)
    # A driver that we know is not asked by the numbers of a newer wheel.
    assert number_of(wanted, (580, 65), (620, 10), Newer) == 252


@pytest.mark.parametrize("version", TABLE["versions"])
def test_every_name_in_use_exists_or_has_a_fallback(version: str):
    wheel = WHEELS[version]
    known = {*wheel["constants"], *wheel["functions"], *wheel["fields"]}
    by_table = {wanted.name for wanted in nvml_fields.FIELDS}
    missing = nvml_wheels.names_in_use() - by_table - known
    assert missing <= {*FALLBACKS, *WITHOUT}
    assert {FALLBACKS[name] for name in missing & {*FALLBACKS}} <= known


def test_our_constants_are_those_of_every_release():
    tables = [wheel["constants"] for wheel in WHEELS.values()]
    values = {name: {table[name] for table in tables if name in table} for name in LITERALS}
    assert values == {name: {value} for name, value in LITERALS.items()}


def test_structures_that_we_take_from_the_wheel_never_changed():
    tables = [wheel["structures"] for wheel in WHEELS.values()]
    for name in THROUGH_THE_WHEEL:
        layouts = [table[name] for table in tables if name in table]
        assert layouts, name
        assert all(layout == layouts[0] for layout in layouts), name


@pytest.mark.parametrize("version", TABLE["versions"])
def test_every_version_of_the_fabric_is_ours_or_older(version: str):
    """Where a wheel has a structure of the size that NVML's version word says, it is like ours.

    Others are nvidia-ml-py's mistake: a cluster of 80 bytes where the driver writes 16. We use
    none of its structures.
    """
    structures = WHEELS[version]["structures"]
    functions = WHEELS[version]["functions"]
    known = [
        number for number, _, function in nvml_fields.FABRIC_STRUCTURES if function in functions
    ]
    assert known[-1] == 1, "the oldest is always there to fall back to"
    names = {3: ("c_nvmlGpuFabricInfo_v3_t",), 2: FABRIC[1:3], 1: FABRIC[:1]}
    for number, structure, _ in nvml_fields.FABRIC_STRUCTURES:
        for name in names[number]:
            if name not in structures:
                continue
            size, fields = structures[name]
            if size > 80:
                assert number < 3
                continue
            assert size == ctypes.sizeof(structure)
            assert [at for _, at in fields] == [
                getattr(structure, field[0]).offset for field in structure._fields_
            ]
    if "c_nvmlGpuFabricInfo_v3_t" in structures:
        newest = nvml_fields.FABRIC_STRUCTURES[0][1]
        assert nvml_fields.structure_version(newest, 3) == 0x3000028
    assert nvml_fields.structure_version(nvml_fields.FABRIC_STRUCTURES[1][1], 2) == 0x2000024


# --- which structure a driver takes


class Driver:
    """As much of pynvml as the fabric needs: it takes some versions, or answers one error."""

    NVML_ERROR_INVALID_ARGUMENT = 2
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            self.value = value

    def __init__(self, *takes: int, error: int = 25, mask: int = 0, summary: int = 0) -> None:
        self.takes, self.error, self.mask, self.summary = takes, error, mask, summary

    def nvmlDeviceGetGpuFabricInfo(self, _: Any, pointer: Any) -> None:
        self._answer(1, pointer._obj)

    def nvmlDeviceGetGpuFabricInfoV(self, _: Any, pointer: Any) -> None:
        self._answer(pointer._obj.version >> 24, pointer._obj)

    def _answer(self, version: int, info: Any) -> None:
        if version not in self.takes:
            raise self.NVMLError(self.error)
        info.cluster[0], info.clique, info.state = 0xAB, 7, 3
        if version > 1:
            info.health_mask = self.mask
        if version > 2:
            info.health_summary = self.summary


@pytest.mark.parametrize("newest", [3, 2, 1])
def test_the_newest_structure_that_the_driver_takes_is_read(newest: int):
    found = nvml_fields.fabric(Driver(*range(1, newest + 1)), None)
    assert (found.version, found.state, found.clique, found.fault) == (newest, 3, 7, "")
    assert found.cluster == "ab" + 15 * "00"


def test_what_is_no_matter_of_versions_is_not_asked_again():
    with pytest.raises(Driver.NVMLError) as caught:
        nvml_fields.fabric(Driver(1, error=15), None)
    assert caught.value.value == 15


def test_a_wheel_without_the_function_reads_the_oldest_structure(monkeypatch):
    monkeypatch.delattr(Driver, "nvmlDeviceGetGpuFabricInfoV")
    assert nvml_fields.fabric(Driver(1), None).version == 1


@pytest.mark.parametrize(
    ("takes", "mask", "summary", "fault"),
    [
        ((1, 2, 3), 0, 2, "unhealthy"),
        ((1, 2, 3), 0, 3, "limited capacity"),
        ((1, 2, 3), 0xAA, 1, ""),
        ((1, 2), 0xAA | 1 << 8, 0, ""),
        ((1, 2), 0b01, 0, "degraded bandwidth"),
        ((1, 2), 4 << 8 | 0b01_00_00, 0, "unhealthy route, incorrect configuration 4"),
        ((1,), 0, 0, ""),
    ],
)
def test_the_health_of_the_fabric_in_each_version(takes, mask, summary, fault):
    assert nvml_fields.fabric(Driver(*takes, mask=mask, summary=summary), None).fault == fault


@pytest.mark.parametrize("error", [2, 13, 25])
def test_an_older_structure_is_taken_where_the_driver_does_not_know_the_newer(error: int):
    found = nvml_fields.fabric(Driver(1, error=error), None)
    assert (found.version, found.unknown) == (1, "")
    with pytest.raises(Driver.NVMLError):
        nvml_fields.fabric(Driver(error=error), None)


def test_codes_of_health_that_are_not_documented_are_told():
    for takes, mask, summary, unknown in (
        ((1, 2, 3), 0, 4, "health summary 4"), ((1, 2), 0, 4, ""), ((1, 2, 3), 0, 3, ""),
        ((1, 2), 0b11, 0, "health mask 0x3 (degraded bandwidth)"),
        ((1, 2), 0b11_00, 0, "health mask 0xc (route recovery)"),
        ((1, 2, 3), 0b11 << 6, 5,
         "health summary 5, health mask 0xc0 (access timeout recovery)"),
        ((1, 2), 0b10_01, 0, ""),
    ):  # fmt: skip
        found = nvml_fields.fabric(Driver(*takes, mask=mask, summary=summary), None)
        assert found.unknown == unknown
    for configuration, fault in (
        (0, ""), (1, ""), (2, "incorrect configuration 2"), (15, "incorrect configuration 15"),
    ):  # fmt: skip
        found = nvml_fields.fabric(Driver(1, 2, mask=configuration << 8), None)
        assert found.fault == fault
    both = nvml_fields.fabric(Driver(1, 2, 3, mask=0b01_00, summary=2), None)
    assert (both.fault, both.status) == ("unhealthy, route recovery", 0)
    assert nvml_fields.fabric(Driver(1, 2, 3, mask=0b01 << 6), None).fault == (
        "access timeout recovery"
    )
