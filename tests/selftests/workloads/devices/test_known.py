"""Values that are known in part, and why the rest is missing."""

from __future__ import annotations

import pytest

from fixtures.records.absence import Kind
from fixtures.workloads.devices import known, nvml_fields
from fixtures.workloads.devices.known import Findings, Known, Missing

pytestmark = pytest.mark.cpu

NODE, DRIVER = Missing("GpuIsLost"), Missing("NotSupported", Kind.NOT_THERE)


def test_of_several_gaps_one_of_the_node_decides():
    assert known.deciding([DRIVER, NODE]) is NODE
    assert known.deciding([DRIVER, Missing("later", Kind.NOT_OFFERED)]) is DRIVER


def test_a_value_with_two_ways_is_offered_where_either_is():
    refused = Missing("NoPermission", Kind.NOT_OFFERED)
    for one, other, kind in (
        (NODE, DRIVER, Kind.FAULT), (DRIVER, NODE, Kind.FAULT), (DRIVER, DRIVER, Kind.NOT_THERE),
        (DRIVER, refused, Kind.NOT_OFFERED),
    ):  # fmt: skip
        both = one.combined_with(other)
        assert (both.why, both.kind) == (f"{one.why}; {other.why}", kind)


def test_errors_are_of_the_node_unless_driver_or_package_lack_the_value():
    class NVMLError_NotSupported(Exception): ...

    class NVMLError_GpuIsLost(Exception): ...

    assert known.of_error(NVMLError_NotSupported()) == DRIVER
    assert known.of_error(NVMLError_GpuIsLost()) == NODE
    assert known.of_error(nvml_fields.NotOffered("why")) == Missing("why", Kind.NOT_OFFERED)
    with pytest.raises(AttributeError) as too_old:
        known.nvmlDeviceGetSomethingNew  # noqa: B018
    assert known.of_error(too_old.value) == Missing(
        "this nvidia-ml-py has no nvmlDeviceGetSomethingNew", Kind.NOT_OFFERED
    )
    with pytest.raises(AttributeError) as mistake:
        None.value  # type: ignore[attr-defined]  # noqa: B018
    shown = known.of_error(mistake.value)
    assert shown.of_node
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
    assert [(a.metric, a.kind, a.why) for a in found.absent(["errors", "replays"])] == [
        ("errors", Kind.LOWER_BOUND, "GpuIsLost"), ("replays", Kind.NOT_THERE, "NotSupported"),
    ]  # fmt: skip
    assert [a.metric for a in found.absent(["replays"])] == ["replays"]
    found.add_known("replays", Known(1, gap=DRIVER))
    assert found.measurements["replays"].notes == ["GPU-1 at least: NotSupported"]
    found.add("exact", 4)
    assert found.measurements["exact"].notes == []
    assert known.absences({}, ["exact"]) == []
    assert [a.kind for a in known.absences({"errors": NODE}, ["exact"])] == [Kind.FAULT]
    assert [a.kind for a in known.absences({"a": DRIVER}, ["a"])] == [Kind.NOT_OFFERED]
