"""What InfiniBand, RoCE and EFA ports count; what cannot be read is said by name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.absence import Kind
from fixtures.records.model import Result
from fixtures.sandbox import platforms
from fixtures.thresholds import loader
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.model import Outcome
from fixtures.workloads.infiniband import ib_counters, infiniband
from tests.selftests import support
from tests.selftests.judging import judged as judged_case
from tests.selftests.support import whys
from tests.selftests.workloads.infiniband.roce_trees import NIC, interface, port, tree

pytestmark = pytest.mark.cpu


@pytest.fixture
def roce(tmp_path: Path) -> Path:
    return tree("hgx-h100-roce", tmp_path)


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


def test_a_healthy_roce_port_counts_all_that_is_judged(
    roce: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = counted(roce, lambda: None, monkeypatch)
    assert set(rates(found)) >= {*ib_counters.ROCE_COUNTERS, *ib_counters.OF_INTERFACE}
    assert set(rates(found).values()) == {0.0}
    assert not whys(found, Kind.NOT_THERE)


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
    assert "mlxlink" in whys(found, Kind.NOT_THERE)["rate rx_corrected_bits_phy"]
    row = judged("infiniband.corrected_bits", "ib_counters", found)
    assert row.outcome is Outcome.NOT_APPLICABLE
    assert "visible here; 'mlxlink -d DEVICE -c' shows it to root" in row.reason


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


def judged(key: str, workload: str, found: Result) -> Any:
    """The verdict of the shipped limit on a node of two ranks, of which the first measured."""
    reported = [*found.measurements, *found.absent], []
    ranks = [support.rank(k, "worker0", *of) for k, of in enumerate(reported)]
    ranks[0].facts.update(found.facts)
    record = support.record(*ranks, workload=workload)
    limits = shipped()
    recorded = limits.criteria[key].recorded_reason({}) is not None
    return judged_case(limits, key, record, recorded=recorded)


def shipped() -> Thresholds:
    return loader.load(support.SHIPPED)


# --- two readings


def between(
    root: Path, monkeypatch: pytest.MonkeyPatch, change: Any, *, seconds: float = 60
) -> Any:
    """What is measured where `change` happens between two readings, and how long it waited."""
    now, waited = [1000.0], []
    monkeypatch.setattr(ib_counters.time, "time", lambda: now[0])
    monkeypatch.setattr(ib_counters.time, "sleep", waited.append)
    ranks: Any = SimpleNamespace(leads_node=True, spec={"nic_order": {"names": [NIC]}})
    ranks.begin_notes = {"ib_counters": ib_counters.begin(ranks, root=str(root))}
    now[0] += seconds
    change()
    return ib_counters.run(ranks, ["rate"], root=str(root)), waited


def plain(root: Path, layer: str = "InfiniBand") -> Path:
    """A port with two counters of its own, and one of its traffic."""
    found = port(root)
    for name, text in (
        ("link_layer", layer), ("counters/symbol_error", "5"), ("counters/port_xmit_data", "9"),
        ("hw_counters/np_cnp_sent", "1"), ("hw_counters/local_ack_timeout_err", "x"),
    ):  # fmt: skip
        platforms.write_sysfs_file(found / name, text)
    return found


def test_a_rise_is_a_rate_with_a_note_and_a_fall_a_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = plain(tmp_path) / "counters/symbol_error"
    for text, value, resets, notes in (
        ("5", 0, 0, []), ("11", 6, 0, ["mlx5_0 symbol_error: 5 before, 11 after 60 s"]),
        ("4", 0, 1, ["mlx5_0 symbol_error: 5 before, 4 after 60 s"]),
        ("", 0, 1, ["mlx5_0 symbol_error: 5 before, gone after 60 s"]),
    ):  # fmt: skip
        platforms.write_sysfs_file(file, "5")
        found, waited = between(
            tmp_path, monkeypatch, lambda text=text: platforms.write_sysfs_file(file, text)
        )
        (row,) = found.measurements
        assert (row.value, row.checks, row.notes) == (value, {"resets": resets}, notes), text
        assert row.at == {"counter": "symbol_error", "part": NIC}
        assert waited == [0]
        assert found.facts["before"] == {NIC: {"symbol_error": 5, "port_xmit_data": 9}}
        assert found.facts["minutes"] == 1
    assert "emulated" not in found.facts
    _, waited = between(tmp_path, monkeypatch, lambda: None, seconds=0.125)
    assert waited == [0.375], "two readings are half a second apart at least"


def test_a_port_has_the_counters_of_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain(tmp_path, "Ethernet")
    platforms.write_sysfs_file(port(tmp_path).parents[1] / "board_id", "EMULATED0001")
    found, _ = between(tmp_path, monkeypatch, lambda: None)
    assert set(rates(found)) == {"symbol_error", "np_cnp_sent"}
    assert found.facts["emulated"] is True
    assert set(whys(found, Kind.NOT_THERE)) == {f"rate {n}" for n in ib_counters.OF_INTERFACE}
    platforms.write_sysfs_file(port(tmp_path) / "hw_counters/rx_drops", "1")
    monkeypatch.setattr(ib_counters.nics, "fabric_of", lambda _: "EFA")
    found, _ = between(tmp_path, monkeypatch, lambda: None)
    assert set(rates(found)) == {"symbol_error", "rx_drops"}
    assert not whys(found, Kind.NOT_THERE), "an EFA port has no such interface"


def test_only_the_first_rank_with_a_reading_before_measures(tmp_path: Path) -> None:
    plain(tmp_path)
    ranks: Any = SimpleNamespace(
        leads_node=False, spec={}, begin_notes={"ib_counters": {"time": 0.0, "ports": {}}}
    )
    assert ib_counters.begin(ranks, root=str(tmp_path)) == {}
    for leads, metrics, notes in (
        (False, ["rate"], ranks.begin_notes), (True, ["other"], ranks.begin_notes),
        (True, ["rate"], {}),
    ):  # fmt: skip
        ranks.leads_node, ranks.begin_notes = leads, notes
        found = ib_counters.run(ranks, metrics, root=str(tmp_path))
        assert (found.measurements, found.facts) == ([], {})


def test_counters_of_several_interfaces_are_summed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, changes in (("eth0", "3"), ("eth1", "4"), ("eth2", "?")):
        net = port(tmp_path).parents[1] / "device" / "net" / name
        platforms.write_sysfs_file(net / "carrier_changes", changes)
    counts = {"rx_prio0_pause": 2, "rx_prio7_pause": 1, "rx_corrected_bits_phy": 5, "other": 9}
    monkeypatch.setattr(
        ib_counters.ethtool, "statistics", lambda i: counts if i.name == "eth1" else {}
    )
    assert ib_counters.interface_counters(port(tmp_path)) == {
        "carrier_changes": 7, "rx_pause": 3, "rx_corrected_bits_phy": 5,
    }  # fmt: skip
    assert "shows no rx_pause" in ib_counters.why_unread(port(tmp_path), "rx_pause")
