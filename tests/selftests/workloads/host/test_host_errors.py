"""What a host counts of its errors, before and after the job, on files of a node."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.absence import Absence, Kind
from fixtures.records.model import Measurement
from fixtures.sandbox.platforms import write_sysfs_file
from fixtures.workloads.host import host_errors
from tests.selftests.support import whys
from tests.selftests.workloads.host.host_trees import BRIDGE, NIC, nic_below_bridge, ranks

pytestmark = pytest.mark.cpu


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return nic_below_bridge(tmp_path)


def counted(root: Path, change: Any) -> Any:
    """What is measured where `change` happens between begin() and run()."""
    asked = ranks()
    asked.begin_notes = {host_errors.NAME: host_errors.begin(asked, root=str(root))}
    change()
    return host_errors.run(asked, list(host_errors.WORKLOAD.metrics), root=str(root))


def test_errors_of_a_bridge_name_it(root: Path):
    file = root / "sys/devices/pci0000:15" / BRIDGE / "aer_dev_fatal"
    result = counted(root, lambda: write_sysfs_file(file, "DLP 2\nTLP 1\nTOTAL_ERR_FATAL 3"))
    fatal = next(m for m in result.measurements if m.metric == "aer_fatal")
    assert (fatal.value, fatal.at["part"]) == (3, f"bridge {BRIDGE} above mlx5_0")
    assert "DLP 2" in fatal.notes[0]


def test_a_device_that_stops_counting_makes_its_row_invalid(root: Path):
    file = root / "sys/devices/pci0000:15" / BRIDGE / NIC / "aer_dev_correctable"
    result = counted(root, file.unlink)
    row = next(m for m in result.measurements if m.metric == "aer_correctable")
    assert row.checks["resets"] == 1


def test_what_a_kernel_does_not_count_is_named_by_its_file(root: Path):
    unsupported = whys(counted(root, lambda: None), Kind.NOT_THERE)
    assert set(unsupported) == {"edac_corrected", "edac_uncorrected", "machine_checks"}
    assert "/sys/devices/system/edac/mc" in unsupported["edac_corrected"]
    assert "/proc/interrupts" in unsupported["machine_checks"]


def test_machine_checks_of_all_cores_are_counted(root: Path):
    file = root / "proc/interrupts"
    text = "      CPU0 CPU1\nMCE:   1   2   Machine check exceptions\nMCP: 9 9 polls"
    write_sysfs_file(file, text)
    assert host_errors._machine_checks(root) == 3


def test_without_a_line_of_interrupts_no_machine_check_is_counted(tmp_path: Path):
    assert host_errors._machine_checks(tmp_path) is None
    write_sysfs_file(tmp_path / "proc/interrupts", "MCP: 9 9 polls")
    assert host_errors._machine_checks(tmp_path) is None


def test_memory_errors_are_counted_by_controller_and_dimm(root: Path):
    for file, text in (
        ("ce_count", "7"), ("ue_count", "1"), ("dimm0/dimm_label", "A1"),
        ("dimm0/dimm_ce_count", "4"), ("dimm1/dimm_ce_count", "3"), ("dimm1/dimm_ue_count", "0"),
        ("dimm2/dimm_ce_count", "0"),
    ):  # fmt: skip
        write_sysfs_file(root / host_errors.EDAC / "mc0" / file, text)
    write_sysfs_file(root / host_errors.BOOT_ID, "abc")
    found = host_errors.begin(ranks(), root=str(root))
    assert found["counts"]["edac_corrected"] == {"mc0": {"": 7, "A1": 4, "dimm1": 3}}
    assert found["counts"]["edac_uncorrected"] == {"mc0": {"": 1}}
    assert found["boot"] == "abc"
    other: Any = SimpleNamespace(leads_node=False)
    assert host_errors.begin(other, root=str(root)) == {}


def test_what_nothing_counts_is_named_by_file_or_driver(tmp_path: Path):
    reasons = host_errors.missing(tmp_path)
    assert set(reasons) == set(host_errors.WORKLOAD.metrics) - {"boot"}
    assert reasons["aer_fatal"] == "/sys/bus/pci/devices is not there"
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    assert "aer_dev_*" in host_errors.missing(tmp_path)["aer_fatal"]


def test_coverage_is_one_line_that_like_nodes_share():
    assert host_errors.coverage({"counts": {}}) == "none"
    counts = {"b": {"x": {}}, "a": {"x": {}, "y": {}}}
    assert host_errors.coverage({"counts": counts}) == "a of 2, b of 1"


def rise(before: Any, after: Any, metric: str = "aer_fatal", seconds: float = 60) -> Any:
    return host_errors._rise(metric, before, after, seconds)


def test_the_worst_part_s_rise_is_the_figure():
    row = rise({"a": {"x": 1, "y": 5}, "b": {"x": 0}}, {"a": {"x": 2, "y": 5}, "b": {"x": 3}})
    assert (row.value, row.at, row.checks) == (3, {"part": "b"}, {"resets": 0})
    assert row.notes == ["a: 1 in 60 s (x 1)", "b: 3 in 60 s (x 3)"]
    still = rise({"a": {"x": 1}}, {"a": {"x": 1}})
    assert (still.value, still.at, still.notes) == (0, {}, [])
    assert rise({}, {}).value == 0
    new = rise({"a": {}}, {"a": {"x": 2}})
    assert new.value == 2, "a kind that was not there before"


def test_repaired_errors_are_a_rate_and_uncorrectable_ones_count_since_boot():
    assert rise({"a": {"x": 0}}, {"a": {"x": 30}}, "aer_correctable", 120).value == 15
    row = rise({"mc0": {"": 2}}, {"mc0": {"": 2}}, "edac_uncorrected")
    assert (row.value, row.notes) == (2, ["mc0: 2 since boot"])
    # A controller's own total, beside those of its DIMMs, counts once.
    row = rise({"mc0": {"": 1}}, {"mc0": {"": 61, "A1": 60}}, "edac_corrected", 60)
    assert (row.value, row.notes) == (60, ["mc0: 60 in 60 s (A1 60)"])


def test_a_part_that_is_gone_or_counts_less_is_no_measurement():
    row = rise({"a": {"x": 1}}, {"b": {"x": 1}})
    assert row.checks == {"resets": 2}
    assert row.notes == ["a: counted before the job only", "b: counted after the job only"]
    row = rise({"a": {"x": 5, "y": 0}}, {"a": {"x": 4, "y": 3}})
    assert (row.value, row.checks) == (2, {"resets": 1})
    assert row.notes[0] == "a: counts less than before the job"
    assert rise({"a": {"x": 5}}, {"a": {"x": 1}}).value == 0
    many = {str(k): {"x": 1} for k in range(9)}
    assert len(rise({}, many).notes) == 8


def test_a_boot_in_between_is_seen_by_the_id():
    for before, after, value in (
        ("a", "a", "unchanged"), ("a", "b", "rebooted"), (None, "a", None), ("a", None, None),
    ):  # fmt: skip
        row = host_errors._boot(before, after)
        if value is None:
            assert isinstance(row, Absence)
            assert row.kind is Kind.UNKNOWN
        else:
            assert isinstance(row, Measurement)
            assert row.value == value
            assert (row.notes == []) is (value == "unchanged")


def test_two_readings_are_half_a_second_apart_and_their_facts_are_kept(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    now, waited = [1000.0], []
    monkeypatch.setattr(host_errors.time, "time", lambda: now[0])
    monkeypatch.setattr(host_errors.time, "sleep", waited.append)
    asked = ranks()
    file = root / "sys/devices/pci0000:15" / BRIDGE / NIC / "aer_dev_fatal"
    asked.begin_notes = {"host_errors": host_errors.begin(asked, root=str(root))}
    now[0] += 0.125
    write_sysfs_file(file, "DLP 2\nTLP 0")
    write_sysfs_file(root / "proc/interrupts", "MCE: 1 2")
    metrics = ["aer_fatal", "boot", "machine_checks", "edac_corrected"]
    found = host_errors.run(asked, metrics, root=str(root))
    assert waited == [0.375]
    assert [(m.metric, m.value) for m in found.measurements] == [
        ("aer_fatal", 2), ("machine_checks", 0),
    ]  # fmt: skip
    assert found.measurements[1].checks == {"resets": 1}, "it began to count during the job"
    assert found.facts["since_boot"]["aer_fatal"] == {"mlx5_0": {"DLP": 2}}
    assert found.facts["minutes"] == 0.002
    assert set(whys(found, Kind.NOT_THERE)) == {"edac_corrected"}
    assert "mlx5_0" in found.facts["counters"]["aer_fatal"]
    now[0] += 600
    assert not whys(host_errors.run(asked, ["boot"], root=str(root)), Kind.NOT_THERE)
    assert waited[-1] == 0
    for leads, notes in ((False, asked.begin_notes), (True, {})):
        asked.leads_node, asked.begin_notes = leads, notes
        assert host_errors.run(asked, metrics, root=str(root)).facts == {}


def test_counts_above_zero_since_boot_are_kept():
    counts = {"a": {"p": {"": 3, "x": 0}, "q": {"x": 0}}, "b": {"p": {"y": 0}}}
    assert host_errors._above_zero(counts) == {"a": {"p": {"all": 3}}}
