"""The state of ports, their addresses and sensors, and the path to a GPU's memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.absence import Kind
from fixtures.sandbox import emulation, platforms
from fixtures.workloads.devices import nics
from fixtures.workloads.infiniband import infiniband
from tests.selftests.support import whys
from tests.selftests.workloads.infiniband import roce_trees
from tests.selftests.workloads.infiniband.roce_trees import interface, tree

pytestmark = pytest.mark.cpu


@pytest.fixture
def roce(tmp_path: Path) -> Path:
    return tree("hgx-h100-roce", tmp_path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The tree that the sandbox emulates: four InfiniBand ports."""
    emulation.make_hardware(platforms.find(""), tmp_path / "sys" / "class")
    return tmp_path


def port(root: Path, nic: str = "mlx5_0") -> Path:
    return root / "sys" / "class" / "infiniband" / nic / "ports" / "1"


def states(root: Path, nic: str = "mlx5_0") -> dict[str, Any]:
    return infiniband.states(root, port(root, nic))


def test_healthy_port(root: Path) -> None:
    assert list(nics.choose(root, order={}).ports(root)) == list(platforms.find("").ordered_nics)
    assert states(root) == {
        "fabric": "InfiniBand", "state": "ACTIVE", "physical_state": "LinkUp", "rate": 400.0,
        "verbs": "present",
    }  # fmt: skip


def test_roce_and_efa_are_told_apart_from_infiniband(root: Path) -> None:
    platforms.write_sysfs_file(port(root) / "link_layer", "Ethernet")
    assert states(root)["fabric"] == "RoCE"
    driver = root / "drivers" / "efa"
    driver.mkdir(parents=True)
    device = port(root, "mlx5_1").parents[1] / "device"
    (device / "driver").unlink()
    (device / "driver").symlink_to(driver)
    found = states(root, "mlx5_1")
    # EFA always says ACTIVE: without a network device nothing is known of its link.
    assert (found["fabric"], found["state"], found["physical_state"]) == ("EFA", None, None)
    platforms.write_sysfs_file(device / "net" / "eth0" / "carrier", "0")
    assert states(root, "mlx5_1")["state"] == "DOWN"


def test_port_that_says_nothing_leaves_no_measurement(root: Path) -> None:
    for name in platforms.port_files(platforms.NIC_KINDS["virtual"]):
        (port(root) / name).unlink()
    assert {k for k, v in states(root).items() if v is not None} == {"verbs"}


def test_virtual_functions_are_no_nics_and_no_nics_give_nothing(root: Path) -> None:
    (port(root).parents[1] / "device" / "physfn").mkdir()
    chosen = nics.choose(root, order={})
    assert "mlx5_0" not in chosen.ports(root)
    assert chosen.left_out == {"mlx5_0": "a virtual function of another device"}
    assert nics.choose(root / "nowhere", order={}).ports(root) == {}


def test_gpudirect_by_module_by_driver_or_not_at_all(root: Path) -> None:
    assert infiniband.gpudirect(root) is None
    platforms.write_sysfs_file(
        root / "proc/driver/nvidia/version", "NVIDIA UNIX Open Kernel Module  580.1"
    )
    assert infiniband.gpudirect(root) == "dma-buf"
    platforms.write_sysfs_file(root / "sys" / emulation.PEERMEM_FILE, "live")
    assert infiniband.gpudirect(root) == "nvidia_peermem"


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
    platforms.write_sysfs_file(roce_trees.port(roce) / "gids" / "1", gid)
    platforms.write_sysfs_file(roce_trees.port(roce) / "gid_attrs" / "types" / "1", version)
    assert infiniband._roce_states(roce_trees.port(roce))["gid"] == family


def test_mtu_and_temperature_are_those_of_the_nic(roce: Path) -> None:
    assert infiniband._roce_states(roce_trees.port(roce)) == {"gid": "IPv4", "mtu": 9000}
    platforms.write_sysfs_file(interface(roce) / "mtu", "1500")
    assert infiniband._roce_states(roce_trees.port(roce))["mtu"] == 1500
    platforms.write_sysfs_file(interface(roce).parent / "eth9" / "mtu", "unknown")
    assert infiniband._roce_states(roce_trees.port(roce))["mtu"] == 1500
    sensors = roce_trees.port(roce).parents[1] / "device" / "hwmon" / "hwmon0"
    platforms.write_sysfs_file(sensors / "temp2_input", "74000")
    assert infiniband.temperature(roce_trees.port(roce)) == 74.0


# --- what the first rank measures


def run(root: Path, *metrics: str, leads: bool = True) -> Any:
    ranks: Any = SimpleNamespace(leads_node=leads, spec={})
    return infiniband.run(ranks, list(metrics) or list(infiniband.WORKLOAD.metrics), root=str(root))


def test_every_port_of_a_node_has_its_states(root: Path) -> None:
    found = run(root)
    names = list(platforms.find("").ordered_nics)
    rates = {m.at["part"]: m.value for m in found.measurements if m.metric == "rate"}
    assert rates == dict.fromkeys(names, 400.0)
    checks = [m.checks for m in found.measurements if m.metric == "state"]
    assert checks == [{"link": 1.0}] * len(names)
    assert all(not m.checks for m in found.measurements if m.metric != "state")
    assert (found.facts["emulated"], found.facts["gpudirect"]) == (True, None)
    assert list(found.facts["ports"]) == list(found.facts["connected"]) == names
    assert not {"nics_left_out", "roce"} & found.facts.keys()
    (row,) = run(root, "gpudirect").measurements
    assert (row.value, row.notes) == ("absent", [])
    assert run(root, leads=False).facts == {}
    assert run(root / "nowhere", "gpudirect").measurements == []


def test_what_a_node_lacks_is_said(root: Path) -> None:
    first, second = list(platforms.find("").ordered_nics)[:2]
    platforms.write_sysfs_file(port(root, first) / "phys_state", "3: Disabled")
    (port(root, second).parents[1] / "device" / "physfn").mkdir()
    for nic in platforms.find("").ordered_nics:
        platforms.write_sysfs_file(port(root, nic).parents[1] / "board_id", "MT_1")
    platforms.write_sysfs_file(root / "sys/module/nv_peer_mem/initstate", "live")
    platforms.write_sysfs_file(
        port(root, first).parents[1] / "device/hwmon/hwmon0/temp1_input", "50000"
    )
    found = run(root)
    checks = {m.at["part"]: m.checks for m in found.measurements if m.metric == "state"}
    assert checks[first] == {"link": 0.0}
    assert second not in checks
    assert set(found.facts["nics_left_out"]) == {second}
    assert "emulated" not in found.facts
    present = next(m for m in found.measurements if m.metric == "gpudirect")
    assert (present.value, present.notes) == ("present", ["through nv_peer_mem"])
    cold = whys(found, Kind.NOT_THERE).get("temperature", "")
    assert first not in cold


def test_a_port_without_a_sensor_is_named(root: Path) -> None:
    for path in (root / "sys/class/infiniband").glob("*/device/hwmon/hwmon*/temp*_input"):
        path.unlink()
    assert infiniband.temperature(port(root)) is None
    found = run(root, "temperature")
    assert found.measurements == []
    assert platforms.find("").ordered_nics[0] in whys(found, Kind.NOT_THERE)["temperature"]


def test_a_roce_node_has_addresses_and_sensors(roce: Path) -> None:
    found = run(roce, "gid", "mtu", "temperature")
    parts = {m.at["part"] for m in found.measurements}
    assert set(found.facts["roce"]) == parts
    assert {m.metric for m in found.measurements} == {"gid", "mtu", "temperature"}
    assert not whys(found, Kind.NOT_THERE)


def test_a_device_that_programs_cannot_open_is_missing(root: Path) -> None:
    assert infiniband._has_verbs(root, "mlx5_0", "InfiniBand")
    for path in (root / "sys/class/infiniband_mad").glob("umad*"):
        if infiniband.read_sysfs(path / "ibdev") == "mlx5_0":
            (path / "ibdev").unlink()
    assert not infiniband._has_verbs(root, "mlx5_0", "InfiniBand")
    assert infiniband._has_verbs(root, "mlx5_0", "RoCE"), "only InfiniBand has its management"
    assert not infiniband._has_verbs(root, "mlx5_99", "RoCE")
    assert states(root)["verbs"] == "missing"


def test_a_state_without_a_number_is_taken_whole(tmp_path: Path) -> None:
    for text, state in (("4: ACTIVE", "ACTIVE"), ("ACTIVE", "ACTIVE"), ("", None)):
        platforms.write_sysfs_file(tmp_path / "state", text)
        assert infiniband._state_name(tmp_path / "state") == state


def test_an_efa_device_is_active_where_one_of_its_interfaces_has_a_carrier(tmp_path: Path) -> None:
    efa = tmp_path / "sys/class/infiniband/efa_0"
    platforms.write_sysfs_file(efa / "ports/1/state", "4: ACTIVE")
    for name, carrier in (("eth0", "0"), ("eth1", "1")):
        platforms.write_sysfs_file(efa / "device/net" / name / "carrier", carrier)
    assert infiniband.states(tmp_path, efa / "ports/1")["state"] == "ACTIVE"


def test_an_open_driver_gives_dma_buf_from_linux_5_12_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = tmp_path / "proc/driver/nvidia/version"
    for kernel, text, way in (
        ("5.12.0", "Open Kernel Module", "dma-buf"), ("5.11.9", "Open Kernel Module", None),
        ("6.1-x", "Open Kernel Module", "dma-buf"), ("6.1.0", "Kernel Module", None),
        ("unknown", "Open Kernel Module", None),
    ):  # fmt: skip
        platforms.write_sysfs_file(version, text)
        monkeypatch.setattr(infiniband.platform, "release", lambda kernel=kernel: kernel)
        assert infiniband.gpudirect(tmp_path) == way, kernel
