"""Values that are known in part, and why the rest is missing."""

from __future__ import annotations

import pytest

from fixtures.workloads.devices import known, nvml_fields
from fixtures.workloads.devices.known import Findings, Known, Missing

pytestmark = pytest.mark.cpu

NODE, DRIVER = Missing("GpuIsLost"), Missing("NotSupported", offered=False)


def test_of_several_gaps_one_of_the_node_decides():
    assert known.deciding([DRIVER, NODE]) is NODE
    assert known.deciding([DRIVER, Missing("later", offered=False)]) is DRIVER


def test_a_value_with_two_ways_is_offered_where_either_is():
    for one, other, offered in (
        (NODE, DRIVER, True), (DRIVER, NODE, True), (DRIVER, DRIVER, False),
    ):  # fmt: skip
        both = one.combined_with(other)
        assert (both.why, both.offered) == (f"{one.why}; {other.why}", offered)


def test_errors_are_of_the_node_unless_driver_or_package_lack_the_value():
    class NVMLError_NotSupported(Exception): ...

    class NVMLError_GpuIsLost(Exception): ...

    assert known.of_error(NVMLError_NotSupported()) == DRIVER
    assert known.of_error(NVMLError_GpuIsLost()) == NODE
    assert known.of_error(nvml_fields.NotOffered("why")) == Missing("why", offered=False)
    with pytest.raises(AttributeError) as too_old:
        known.nvmlDeviceGetSomethingNew  # noqa: B018
    assert known.of_error(too_old.value) == Missing(
        "this nvidia-ml-py has no nvmlDeviceGetSomethingNew", offered=False
    )
    with pytest.raises(AttributeError) as mistake:
        None.value  # type: ignore[attr-defined]  # noqa: B018
    shown = known.of_error(mistake.value)
    assert shown.offered
    assert shown.why.startswith("AttributeError: ")


def test_a_lower_bound_is_marked_and_one_of_nothing_is_left_out():
    found = Findings("GPU-1", {"errors": "errors", "replays": "replays", "exact": "errors"})
    found.add_known("exact", Known(3, "of all lanes"))
    found.add_known("errors", Known(2, "of DRAM", NODE))
    found.add_known("replays", Known(0, gap=DRIVER))
    assert {m: (x.value, x.unit, x.notes) for m, x in found.measurements.items()} == {
        "exact": (3, "errors", ["GPU-1 of all lanes"]),
        "errors": (2, "errors", ["GPU-1 of DRAM; at least: GpuIsLost"]),
    }
    assert found.facts() == {
        "not_measured": {"errors": "GpuIsLost"}, "not_offered": {"replays": "NotSupported"},
        "at_least": ["errors"],
    }  # fmt: skip
    found.add_known("replays", Known(1, gap=DRIVER))
    assert found.measurements["replays"].notes == ["GPU-1 at least: NotSupported"]
    found.add("exact", 4)
    assert found.measurements["exact"].notes == []
    assert known.facts_of({}, ["exact"]) == {}
    assert "at_least" not in known.facts_of({"errors": NODE}, ["exact"])
