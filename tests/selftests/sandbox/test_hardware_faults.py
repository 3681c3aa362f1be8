"""Faults of emulated hardware: which file or line each changes, and who is named for it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fixtures.sandbox import emulated_host, emulation, hardware_faults
from fixtures.sandbox.emulation import gpu_uuid
from fixtures.sandbox.errors import SandboxError
from fixtures.sandbox.hardware_faults import clear, inject
from fixtures.sandbox.state import load
from tests.selftests.sandbox.parts import DEAD, Calls, cluster, state

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def healthy(tmp_path_factory) -> Path:
    """The hardware of a node, made once."""
    root = tmp_path_factory.mktemp("healthy") / "hardware"
    emulation.make_hardware(emulation.platforms.find(""), root)
    emulated_host.make(root, "worker1")
    return root


@pytest.fixture
def sandbox(tmp_path, healthy, monkeypatch):
    """Two nodes of three GPUs; the second has its hardware."""
    found = state(tmp_path / "ab1", gpus=3)
    found.devices = {name: [f"/dev/{name}{k}" for k in range(3)] for name in found.names}
    home = emulation.hardware_home(found, "worker1")
    shutil.copytree(healthy, home, symlinks=True)
    emulation.shared_driver(found).mkdir()
    (emulation.shared_driver(found) / emulation.LIBRARY).touch()
    (home / "driver").mkdir()
    emulation.write_state(found, "worker1", [])
    monkeypatch.setattr(hardware_faults, "spawn", Calls(DEAD))
    return cluster(found)


def lines(sandbox) -> list[str]:
    """What the state file of worker1 has beyond a healthy one."""
    healthy = emulation.healthy_state_lines(sandbox.state, "worker1")
    text = emulation.state_file(sandbox.state, "worker1").read_text()
    return [line for line in text.splitlines() if line and line not in healthy]


def root(sandbox) -> Path:
    return emulation.hardware_home(sandbox.state, "worker1")


def started() -> list[tuple[str, ...]]:
    """File, first value, change and pattern of the counters that were started."""
    return [tuple(call[0][-4:]) for call in hardware_faults.spawn]


def nic(sandbox, k: int = -1) -> str:
    return emulation.platform_of(sandbox.state).ordered_nics[k]


def test_a_fault_of_a_gpu_names_its_uuid(sandbox):
    for target, gpu in (("gpu0", 0), ("gpu1", 1), (None, 2)):
        assert inject(sandbox, "worker1", "lost", target) == gpu_uuid("worker1", gpu)
    assert lines(sandbox) == ["0.lost=1", "1.lost=1", "2.lost=1"]  # earlier faults stay
    for target in ("gpu3", "gpux", "mlx5_0"):
        with pytest.raises(SandboxError, match=rf"no GPU '{target}'; there are gpu0 to gpu2"):
            inject(sandbox, "worker1", "lost", target)


def test_a_fault_between_gpus_is_seen_from_both_ends(sandbox):
    assert inject(sandbox, "worker1", "p2p-off", "gpu1") == gpu_uuid("worker1", 1)
    assert lines(sandbox) == ["1.p2p.0=4", "0.p2p.1=4", "1.p2p.2=4", "2.p2p.1=4"]


def test_a_fault_of_the_whole_node_names_the_node(sandbox):
    assert inject(sandbox, "worker1", "gpu-missing", None) == "worker1"
    assert lines(sandbox) == ["count=2"]


def test_a_function_that_the_driver_does_not_support(sandbox):
    uuid = inject(sandbox, "worker1", "unsupported", "gpu0:nvmlDeviceGetEccMode")
    assert (uuid, lines(sandbox)) == (gpu_uuid("worker1", 0), ["0.fail.nvmlDeviceGetEccMode=3"])
    with pytest.raises(SandboxError, match="takes a target like gpu0:nvmlDeviceGetEccMode"):
        inject(sandbox, "worker1", "unsupported", "gpu0")


def test_faults_that_cannot_be_put_in_are_refused(sandbox):
    for node, kind, said in (
        ("worker7", "lost", "has no node 'worker7'"),
        ("worker1", "losst", "no fault 'losst', did you mean 'lost'"),
    ):
        with pytest.raises(SandboxError, match=said):
            inject(sandbox, node, kind, None)
    (emulation.shared_driver(sandbox.state) / emulation.LIBRARY).unlink()
    with pytest.raises(SandboxError, match="worker1 has no emulated driver"):
        inject(sandbox, "worker1", "lost", None)
    assert inject(sandbox, "worker1", "ib-port-down", None) == nic(sandbox)  # needs no driver
    sandbox.state.gpu_uuids = {"worker1": ["GPU-real"]}
    with pytest.raises(SandboxError, match="worker1 has real hardware"):
        inject(sandbox, "worker1", "lost", None)


# --- NICs


def test_faults_of_a_port_change_its_files(sandbox):
    first, last = nic(sandbox, 0), nic(sandbox)
    assert first != last
    for kind, target, changed in (
        ("ib-port-down", None, {"state": "2: INIT"}),
        ("ib-rate", first, {"rate": "200 Gb/sec (2X NDR)"}),
        ("ib-no-link", first, {"state": "1: DOWN", "phys_state": "2: Polling"}),
        ("ib-ethernet", last, {"link_layer": "Ethernet"}),
    ):
        name = target or last
        port = root(sandbox) / "infiniband" / name / "ports" / "1"
        assert inject(sandbox, "worker1", kind, target) == name
        assert {file: (port / file).read_text().strip() for file in changed} == changed
    with pytest.raises(SandboxError, match=rf"no NIC 'mlx9' on worker1; there are {first}"):
        inject(sandbox, "worker1", "ib-port-down", "mlx9")


def test_a_nic_without_firmware_verbs_or_memory_of_its_peers(sandbox):
    name, home = nic(sandbox), root(sandbox)
    others = {p.name: (p / "ibdev").read_text() for p in (home / "infiniband_verbs").iterdir()}
    assert inject(sandbox, "worker1", "ib-firmware", name) == name
    assert (home / "infiniband" / name / "fw_ver").read_text() == "28.39.1002\n"
    assert inject(sandbox, "worker1", "ib-no-verbs", name) == name
    left = {(p / "ibdev").read_text() for p in (home / "infiniband_verbs").iterdir()}
    assert left == {*others.values()} - {f"{name}\n"}
    assert (home / emulation.PEERMEM_FILE).read_text() == "live\n"
    assert inject(sandbox, "worker1", "ib-no-peermem", name) == "worker1"
    assert (home / emulation.PEERMEM_FILE).read_text() == "going\n"
    assert (home / "infiniband" / name).exists()
    assert inject(sandbox, "worker1", "ib-missing", name) == name
    assert not (home / "infiniband" / name).exists()
    assert started() == []


def test_the_interface_of_an_ethernet_nic_has_its_mtu_and_counters(sandbox, monkeypatch):
    sandbox.state.platform = "azure-nd-h100"
    platform = emulation.platform_of(sandbox.state)
    kind = next(n for n in platform.nics if n.kind.statistics)
    emulation.platforms.make_nic(root(sandbox), 6, kind)
    (interface,) = root(sandbox).glob(f"{emulation.PCI_CLASS}/{kind.pci}/net/*")
    assert inject(sandbox, "worker1", "ib-mtu", kind.name) == kind.name
    assert (interface / "mtu").read_text() == "1500\n"
    for counter, file in (
        ("rx_pcs_symbol_err_phy", "statistics/rx_pcs_symbol_err_phy"),
        ("carrier_changes", "carrier_changes"),
    ):
        hardware_faults.spawn.clear()
        target = f"{kind.name}:{counter}"
        assert inject(sandbox, "worker1", "ib-counter-rising", target) == kind.name
        assert started() == [(str(interface / file), "0", "+25000", "%015d\\n")]


def test_a_counter_rises_or_starts_again_from_a_high_value(sandbox):
    name = nic(sandbox)
    port = root(sandbox) / "infiniband" / name / "ports" / "1"
    assert inject(sandbox, "worker1", "ib-counter-rising", None) == name
    assert (port / "counters" / "symbol_error").read_text() == "000000000000000\n"
    assert inject(sandbox, "worker1", "ib-counter-reset", f"{name}:out_of_sequence") == name
    other = port / "hw_counters" / "out_of_sequence"
    assert other.read_text() == "000001000000000\n"
    assert started() == [
        (str(port / "counters" / "symbol_error"), "0", "+25000", "%015d\\n"),
        (str(other), "1000000000", "-1000", "%015d\\n"),
    ]
    saved = load(sandbox.state.home).processes
    assert len([key for key in saved if key.startswith("worker1.fault.")]) == 2
    with pytest.raises(SandboxError, match=f"{name} of worker1 has no counter 'symbols'"):
        inject(sandbox, "worker1", "ib-counter-rising", f"{name}:symbols")


# --- PCI devices and the host


def test_a_pci_device_has_half_its_lanes_or_errors(sandbox):
    name = nic(sandbox)
    pci = (root(sandbox) / "infiniband" / name / "device").resolve()
    assert inject(sandbox, "worker1", "pci-width", None) == name
    assert (pci / "current_link_width").read_text() == "8\n"
    drive = next(root(sandbox).glob(f"{emulation.PCI_CLASS}/*/nvme/nvme1")).parents[1]
    assert inject(sandbox, "worker1", "pci-width", "nvme1") == "nvme1"
    assert (drive / "current_link_width").read_text() == "2\n"
    assert inject(sandbox, "worker1", "pci-generation", "nvme1") == "nvme1"
    assert (drive / "current_link_speed").read_text() == "8.0 GT/s PCIe\n"
    assert started() == []
    assert inject(sandbox, "worker1", "aer-fatal", "nvme1") == "nvme1"
    assert started() == [(str(drive / "aer_dev_fatal"), "0", "1", "DLP %015d\\n")]
    assert (drive / "aer_dev_fatal").read_text() == "DLP 000000000000000\n"
    for missing in ("nvme7", "mlx9"):
        with pytest.raises(SandboxError, match=f"no NIC or NVMe drive '{missing}' on worker1"):
            inject(sandbox, "worker1", "pci-width", missing)


def test_faults_of_the_host_name_the_node(sandbox, monkeypatch):
    host = root(sandbox) / "host"
    assert inject(sandbox, "worker1", "clocksource", None) == "worker1"
    assert (host / "clocksource").read_text() == "hpet\n"
    assert inject(sandbox, "worker1", "edac-corrected", None) == "worker1"
    assert started() == [(str(host / "edac/mc/mc1/ce_count"), "0", "50", "%015d\n")]
    asked = Calls("Node 0 MemTotal: 1 kB", None)
    monkeypatch.setattr(emulated_host, "memory_of_host", asked)
    assert inject(sandbox, "worker1", "dimm-lost", None) == "worker1"
    assert asked[0] == (4 * 2**20,)  # 4 GiB, in KiB
    assert (host / "meminfo").read_text() == "Node 0 MemTotal: 1 kB\n"
    with pytest.raises(SandboxError, match="no NUMA node 0"):
        inject(sandbox, "worker1", "dimm-lost", None)


def test_a_node_is_healthy_again(sandbox, monkeypatch):
    ended = Calls()
    monkeypatch.setattr(hardware_faults, "kill_all", lambda find: ended.append([*find()]))
    name = nic(sandbox)
    for kind in ("lost", "ib-port-down", "clocksource", "ib-counter-rising", "ib-missing"):
        inject(sandbox, "worker1", kind, None)
    clear(sandbox, "worker1")
    port = root(sandbox) / "infiniband" / name / "ports" / "1"
    assert lines(sandbox) == []
    assert (port / "state").read_text() == "4: ACTIVE\n"
    assert (root(sandbox) / "host" / "clocksource").read_text() == "tsc\n"
    assert ended == [[DEAD]]
    assert not [key for key in load(sandbox.state.home).processes if "fault" in key]
    with pytest.raises(SandboxError, match="has no node 'worker7'"):
        clear(sandbox, "worker7")
    sandbox.state.gpu_uuids = {"worker1": ["GPU-real"]}
    (port / "state").write_text("2: INIT\n")
    clear(sandbox, "worker1")  # nothing of real hardware is written
    assert (port / "state").read_text() == "2: INIT\n"


def test_without_a_driver_the_rest_is_made_healthy(sandbox):
    (emulation.shared_driver(sandbox.state) / emulation.LIBRARY).unlink()
    inject(sandbox, "worker1", "clocksource", None)
    emulation.state_file(sandbox.state, "worker1").unlink()
    clear(sandbox, "worker1")
    assert (root(sandbox) / "host" / "clocksource").read_text() == "tsc\n"
    assert not emulation.state_file(sandbox.state, "worker1").exists()
