"""What RoCE and EFA ports count, read as an ordinary user; what cannot be read is said by name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.model import Result
from fixtures.sandbox import emulation, platforms
from fixtures.thresholds import loader
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.model import Outcome
from fixtures.workloads.infiniband import ethtool, ib_counters, infiniband
from tests.selftests import support
from tests.selftests.judging import judged as judged_case

pytestmark = pytest.mark.cpu

NIC = "mlx5_0"


@pytest.fixture
def roce(tmp_path: Path) -> Path:
    return tree("hgx-h100-roce", tmp_path)


def tree(platform: str, root: Path) -> Path:
    emulation.make_hardware(platforms.find(platform), root / "sys" / "class")
    return root


def port(root: Path) -> Path:
    return root / "sys" / "class" / "infiniband" / NIC / "ports" / "1"


def interface(root: Path) -> Path:
    (found,) = (port(root).parents[1] / "device" / "net").glob("*")
    return found


def counted(root: Path, change: Any, monkeypatch: pytest.MonkeyPatch) -> Result:
    """Return what ib_counters measures where `change` happens between its two readings."""
    ranks: Any = SimpleNamespace(leads_node=True, spec={"nic_order": {"names": [NIC]}})
    monkeypatch.setattr(ib_counters.time, "sleep", lambda seconds: None)
    ranks.begin_notes = {"ib_counters": ib_counters.begin(ranks, root=str(root))}
    ranks.begin_notes["ib_counters"]["time"] -= 60
    change()
    return ib_counters.run(ranks, ["rate"], root=str(root))


def rates(found: Result) -> dict[str, float]:
    return {str(m.at["counter"]): float(str(m.value)) for m in found.measurements}


# --- ethtool


def test_the_statistics_of_a_driver_are_read_without_root() -> None:
    """Of the interfaces of this host; one that nobody has, and the loopback, have none."""
    assert ethtool.of_driver("no-such-device") == {}
    assert ethtool.of_driver("lo") == {}
    found = {p.name: ethtool.of_driver(p.name) for p in Path("/sys/class/net").iterdir()}
    for name, statistics in found.items():
        assert all(key.isprintable() and key for key in statistics), name
        assert all(isinstance(value, int) and value >= 0 for value in statistics.values()), name


def test_the_answers_of_the_kernel_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    import struct

    names = ("rx_prio3_pause", "rx_pcs_symbol_err_phy")

    def ask(control: object, name: str, request: bytes) -> bytes:
        command = struct.unpack_from("=I", request)[0]
        if command == ethtool.GSSET_INFO:
            return struct.pack("=IIQI", command, 0, 2, len(names))
        if command == ethtool.GSTRINGS:
            return request[:12] + b"".join(text.encode().ljust(32, b"\0") for text in names)
        return request[:8] + struct.pack("=2Q", 7, 2**40)

    monkeypatch.setattr(ethtool, "_ask", ask)
    assert ethtool.of_driver("eth0") == {"rx_prio3_pause": 7, "rx_pcs_symbol_err_phy": 2**40}


# --- counters


def test_a_healthy_roce_port_counts_all_that_is_judged(
    roce: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = counted(roce, lambda: None, monkeypatch)
    assert set(rates(found)) >= {*ib_counters.ROCE_COUNTERS, *ib_counters.OF_INTERFACE}
    assert set(rates(found).values()) == {0.0}
    assert "unsupported" not in found.facts


def test_pauses_are_summed_over_priorities(roce: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pause() -> None:
        for priority in (0, 3):
            file = interface(roce) / "statistics" / f"rx_prio{priority}_pause"
            platforms.write_sysfs_file(file, "4000")

    found = rates(counted(roce, pause, monkeypatch))
    assert (found["rx_pause"], found["tx_pause"]) == (pytest.approx(8000, rel=0.01), 0)


@pytest.mark.parametrize("platform", ["", "hgx-h100"])
def test_what_only_root_can_read_of_an_infiniband_port_is_named(
    platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = counted(tree(platform, tmp_path), lambda: None, monkeypatch)
    assert "mlxlink" in found.facts["unsupported"]["rate rx_corrected_bits_phy"]
    row = judged("infiniband.corrected_bits", "ib_counters", found)
    assert row.outcome is Outcome.NOT_APPLICABLE
    assert "visible here; `mlxlink -d DEVICE -c` shows it to root" in row.reason


def test_a_roce_port_without_a_visible_interface_is_not_measured_by_name(
    roce: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = interface(roce)
    folder.rename(roce / "another-namespace")
    found = counted(roce, lambda: None, monkeypatch)
    row = judged("infiniband.pcs_symbol_error", "ib_counters", found)
    assert row.outcome is Outcome.NOT_MEASURED
    assert "none of the NIC is visible here" in row.reason
    assert judged("infiniband.congestion.rx_pause", "ib_counters", found).outcome is (
        Outcome.NOT_APPLICABLE
    )
    assert infiniband._roce_states(port(roce))["mtu"] is None


# --- addresses, MTU, temperature


@pytest.mark.parametrize(
    ("gid", "version", "family"),
    [
        ("0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2", "IPv4"),
        ("0000:0000:0000:0000:0000:ffff:0a00:0001", "IB/RoCE v1", "none"),
        ("fe80:0000:0000:0000:a288:c2ff:fe03:0001", "RoCE v2", "none"),
        ("2001:0db8:0000:0000:0000:0000:0000:0001", "RoCE v2", "IPv6"),
        ("0000:0000:0000:0000:0000:0000:0000:0000", "RoCE v2", "none"),
    ],
)
def test_only_an_address_that_nccl_can_use_counts(
    gid: str, version: str, family: str, roce: Path
) -> None:
    platforms.write_sysfs_file(port(roce) / "gids" / "1", gid)
    platforms.write_sysfs_file(port(roce) / "gid_attrs" / "types" / "1", version)
    assert infiniband._roce_states(port(roce))["gid"] == family


def test_mtu_and_temperature_are_those_of_the_nic(roce: Path) -> None:
    assert infiniband._roce_states(port(roce)) == {"gid": "IPv4", "mtu": 9000}
    platforms.write_sysfs_file(interface(roce) / "mtu", "1500")
    assert infiniband._roce_states(port(roce))["mtu"] == 1500
    sensors = port(roce).parents[1] / "device" / "hwmon" / "hwmon0"
    platforms.write_sysfs_file(sensors / "temp2_input", "74000")
    assert infiniband.temperature(port(roce)) == 74.0


def judged(key: str, workload: str, found: Result) -> Any:
    """The verdict of the shipped limit on a node of two ranks, of which the first measured."""
    ranks = [support.rank(k, "worker0", *(found.measurements if k == 0 else ())) for k in (0, 1)]
    ranks[0].facts.update(found.facts)
    record = support.record(*ranks, workload=workload)
    limits = shipped()
    recorded = limits.criteria[key].recorded_reason({}) is not None
    return judged_case(limits, key, record, recorded=recorded)


def shipped() -> Thresholds:
    return loader.load(support.SHIPPED)
