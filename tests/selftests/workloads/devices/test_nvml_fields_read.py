"""How values, reasons and links are read from a made-up NVML."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.workloads.devices import nvml_fields
from fixtures.workloads.devices.nvml_fields import NotOffered, number_of
from tests.selftests.workloads.health.made_up_nvml import (
    Driver,
    NVMLError,
    NVMLError_FunctionNotFound,
    NVMLError_InvalidArgument,
    NVMLError_NotSupported,
)

pytestmark = pytest.mark.cpu


def test_field_value_that_is_unsupported_raises(monkeypatch):
    pynvml = pytest.importorskip("pynvml")
    value = SimpleNamespace(nvmlReturn=pynvml.NVML_ERROR_NOT_SUPPORTED)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", lambda *_: [value])
    with pytest.raises(pynvml.NVMLError_NotSupported):
        nvml_fields.read_field(pynvml, None, nvml_fields.POWER_CAP_NS)


class Library(Driver):
    """As much of pynvml as a query needs; an answer that is an error is raised."""

    NVML_NVLINK_MAX_LINKS = 3
    NVML_VALUE_TYPE_UNSIGNED_INT, NVML_VALUE_TYPE_SIGNED_INT = 1, 5


def test_the_release_is_that_of_driver_and_package(monkeypatch):
    assert nvml_fields.release_of("580.159.04") == (580, 159)
    assert nvml_fields.release_of("emulated") is None
    driver = nvml_fields.driver_release.__wrapped__
    assert driver(Library(nvmlSystemGetDriverVersion=b"580.1")) == (580, 1)
    assert driver(Library(nvmlSystemGetDriverVersion="575.51.2")) == (575, 51)
    assert driver(Library(nvmlSystemGetDriverVersion=NVMLError())) is None
    assert driver(Library()) is None
    package = nvml_fields.package_release.__wrapped__
    monkeypatch.setattr(nvml_fields.metadata, "version", lambda _: "13.580.65")
    assert package() == (580, 65)

    def missing(_: str) -> str:
        raise nvml_fields.metadata.PackageNotFoundError

    monkeypatch.setattr(nvml_fields.metadata, "version", missing)
    assert package() is None


def test_a_number_of_the_newest_known_driver_needs_no_newer_wheel():
    newest = nvml_fields.NEWEST_KNOWN
    later = (newest[0], newest[1] + 1)
    wanted = nvml_fields.HW_THERMAL_NS
    assert number_of(wanted, newest) == 270
    named = SimpleNamespace(**{wanted.name: 300})
    with pytest.raises(NotOffered, match="newer than this suite"):
        number_of(wanted, later, None, named)
    assert number_of(wanted, later, later, named) == 300
    assert number_of(nvml_fields.POWER_CAP_NS, later, later, SimpleNamespace()) == 74
    with pytest.raises(NotOffered):
        number_of(wanted, later, later, SimpleNamespace())
    first = nvml_fields.RECOVERY_ACTION
    assert number_of(first, (570, 0)) == number_of(first, None) == 230
    with pytest.raises(NotOffered, match=r"driver 569\.999 does not have this, those from 570"):
        number_of(first, (569, 999))
    assert wanted.has_moved
    assert not first.has_moved


def test_a_field_is_read_by_its_type_and_an_error_of_its_own_is_raised(monkeypatch):
    monkeypatch.setattr(nvml_fields, "driver_release", lambda _: (580, 159))
    monkeypatch.setattr(nvml_fields, "package_release", lambda: None)
    for kind, found in ((1, 7), (5, 7), (2, 9)):
        value = SimpleNamespace(uiVal=7, ullVal=9)
        asked: list[Any] = []

        def fields(_: Any, wanted: Any, kind: int = kind, value: Any = value) -> Any:
            asked.append(wanted)  # noqa: B023
            return [SimpleNamespace(nvmlReturn=0, valueType=kind, value=value)]

        nvml = Library(nvmlDeviceGetFieldValues=fields)
        assert nvml_fields.read_field(nvml, None, nvml_fields.HW_THERMAL_NS, 3) == found
        assert asked == [[(270, 3)]]
    nvml = Library(nvmlDeviceGetFieldValues=[SimpleNamespace(nvmlReturn=3)])
    with pytest.raises(NVMLError) as refused:
        nvml_fields.read_field(nvml, None, nvml_fields.HW_THERMAL_NS)
    assert refused.value.value == 3


def test_reasons_of_the_clocks_are_named_and_read_by_their_former_name_too():
    new, old = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
    assert nvml_fields.clock_reasons(Library(**{new: 5, old: 6}), None) == 5
    assert nvml_fields.clock_reasons(Library(**{old: 6}), None) == 6
    assert (
        nvml_fields.clock_reasons(Library(**{new: NVMLError_FunctionNotFound(), old: 6}), None) == 6
    )
    names = nvml_fields.clock_reason_names(Library(**{new: 0x4 | 0x80 | 0x1}), None)
    assert names == ["power cap", "power brake"]
    assert nvml_fields.clock_reason_names(Library(**{new: 0x20 | 0x40}), None) == [
        "heat (driver)", "heat (hardware)",
    ]  # fmt: skip
    assert nvml_fields.clock_reason_names(Library(**{new: NVMLError_NotSupported()}), None) is None


def test_links_are_listed_up_to_the_last_and_a_gpu_without_any_is_refused():
    def state(_: Any, link: int) -> int:
        if link == 2:
            raise NVMLError_InvalidArgument
        return 1 - link

    nvml = Library(nvmlDeviceGetNvLinkState=state)
    assert nvml_fields.link_states(nvml, None) == {0: True, 1: False}
    assert nvml_fields.link_states(Library(nvmlDeviceGetNvLinkState=1), None) == dict.fromkeys(
        range(3), True
    )
    for error in (NVMLError_NotSupported(), NVMLError_InvalidArgument()):
        with pytest.raises(NVMLError):
            nvml_fields.link_states(Library(nvmlDeviceGetNvLinkState=error), None)
    assert nvml_fields.refusals(nvml) == (NVMLError, AttributeError, NotOffered)
