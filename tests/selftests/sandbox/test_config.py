"""The files of Slurm that a sandbox writes: names, addresses, GPUs, what each form leaves out."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from fixtures.sandbox import config, resources
from fixtures.sandbox.state import State
from tests.selftests.sandbox import parts

pytestmark = pytest.mark.cpu


def unit(home: Path) -> State:
    return State("unit", home, None, "", 2, 0, subnet="198.18.7")


def addresses(text: str) -> dict[str, str]:
    """Name -> address; the first line counts, as for the resolver."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        address, *names = line.split()
        for name in names:
            found.setdefault(name, address)
    return found


def test_slurmctld_can_resolve_the_host_that_commands_come_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "login01.site.example")
    known = addresses(config.hosts(unit(tmp_path)))
    assert known["login01"] == known["login01.site.example"] == "198.18.7.1"
    assert known["controller"] == "198.18.7.1"
    assert known["localhost"] == "127.0.0.1"
    assert known["worker1"] == "198.18.7.3"


def test_a_host_with_the_name_of_a_node_does_not_take_its_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "worker0")
    assert addresses(config.hosts(unit(tmp_path)))["worker0"] == "198.18.7.2"


@pytest.mark.parametrize("timeouts", [config.TIMEOUTS, config.TIMEOUTS_LIGHT])
def test_steps_may_take_five_message_timeouts_to_end(timeouts: str) -> None:
    """With less, Slurm 24.11 warns that nodes may go down with "Kill task failed"."""
    values = dict(line.split("=") for line in timeouts.splitlines() if not line.startswith("#"))
    assert int(values["UnkillableStepTimeout"]) >= 5 * int(values["MessageTimeout"])


def test_a_host_without_a_name_has_no_line(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "")
    assert len(config.hosts(unit(tmp_path)).splitlines()) == 4


# --- slurm.conf


def slurm_conf(state: State, **more) -> list[str]:
    given = {"gres": "virtual", "plugin_dir": None, "dbd_port": None}
    return config.slurm_conf(state, **given | more).splitlines()


@pytest.fixture
def two(tmp_path: Path) -> State:
    """Two nodes of two GPUs."""
    found = parts.state(tmp_path / "ab1")
    found.devices = {name: [f"/dev/{name}/gpu{k}" for k in range(2)] for name in found.names}
    return found


@pytest.fixture
def light(tmp_path: Path) -> State:
    found = parts.state(tmp_path / "ab1", nodes=3, light=True, first_port=10000)
    found.devices = {name: ["/gpus/gpu0", "/gpus/gpu1"] for name in found.names}
    return found


def test_each_node_has_its_line_with_address_and_gpus(two):
    two.withheld = {"worker1": 1}
    two.site = {"nodes": "Weight=7"}
    lines = [line for line in slurm_conf(two) if line.startswith("NodeName")]
    common = "CPUs=4 Sockets=1 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=4000"
    assert lines == [
        f"NodeName=worker0 NodeAddr=198.18.7.2 {common} Gres=gpu:virtual:2 Weight=7",
        f"NodeName=worker1 NodeAddr=198.18.7.3 {common} Gres=gpu:virtual:1 Weight=7",
    ]
    two.withheld, two.site = {"worker0": 2, "worker1": 0}, {}
    lines = [line for line in slurm_conf(two, gres="h200") if line.startswith("NodeName")]
    assert lines[0].endswith("RealMemory=4000")
    assert lines[1].endswith("RealMemory=4000 Gres=gpu:h200:2")


def test_the_light_form_has_one_line_for_all_nodes_and_a_port_for_each(light):
    lines = slurm_conf(light)
    (node,) = [line for line in lines if line.startswith("NodeName")]
    assert node.startswith("NodeName=worker[0-2] NodeAddr=198.18.7.1 Port=[10000-10002] CPUs=4 ")
    assert node.endswith(" Gres=gpu:virtual:2")
    assert "ClusterName=sandbox-light-ab1" in lines
    assert f"TaskProlog={light.home}/task-prolog" in lines
    assert {"ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none"} <= set(lines)


def test_a_sandbox_is_set_up_for_nodes_of_its_own(two, monkeypatch):
    for bound, plugin in ((True, "task/affinity,task/cgroup"), (False, "task/cgroup")):
        monkeypatch.setattr(resources, "can_bind_cores", lambda *given, bound=bound: bound)
        lines = slurm_conf(two)
        assert f"TaskPlugin={plugin}" in lines
    assert {"ClusterName=sandbox-ab1", "ProctrackType=proctrack/cgroup", "SlurmctldPort=7001",
            "SlurmctldHost=controller(198.18.7.1)", "SlurmdTimeout=10"} <= set(lines)  # fmt: skip
    assert any(line.endswith(",cred_expire=20") for line in lines)
    assert "AccountingStorageType=accounting_storage/none" in lines
    (partition,) = [line for line in lines if line.startswith("PartitionName=main")]
    assert partition.endswith(" RootOnly=YES DefMemPerCPU=1000")


def test_a_site_of_ones_own_and_accounting_are_in_it(two):
    two.site = {"partitions": "PartitionName=a\nPartitionName=b", "slurm": "Licenses=x:1"}
    lines = slurm_conf(two, dbd_port=7002, plugin_dir=Path("/bundle/plugins"))
    assert [line for line in lines if line.startswith("Part")] == [
        "PartitionName=a DefMemPerCPU=1000", "PartitionName=b DefMemPerCPU=1000"
    ]  # fmt: skip
    assert {"Licenses=x:1", "PluginDir=/bundle/plugins", "AccountingStoragePort=7002",
            "AccountingStorageHost=198.18.7.1"} <= set(lines)  # fmt: skip


# --- the other files


def test_gres_conf_names_the_devices_that_are_not_withheld(two, light):
    two.withheld = {"worker1": 1}
    assert config.gres_conf(two, gres="virtual").splitlines() == [
        "AutoDetect=off",
        "NodeName=worker0 Name=gpu Type=virtual File=/dev/worker0/gpu0",
        "NodeName=worker0 Name=gpu Type=virtual File=/dev/worker0/gpu1",
        "NodeName=worker1 Name=gpu Type=virtual File=/dev/worker1/gpu0",
    ]
    lines = config.gres_conf(light, gres="virtual").splitlines()
    assert lines[1:] == [
        f"NodeName=worker[0-2] Name=gpu Type=virtual File=/gpus/gpu{k}" for k in range(2)
    ]


def test_cgroup_conf_is_of_the_version_and_limits_memory_where_it_can(two):
    for version, memory, systemd in ((1, True, False), (2, False, True)):
        two.cgroup, two.memory = version, memory
        lines = config.cgroup_conf(two).splitlines()
        assert f"CgroupPlugin=cgroup/v{version}" in lines
        assert f"ConstrainRAMSpace={'yes' if memory else 'no'}" in lines
        assert ("IgnoreSystemd=yes" in lines) is systemd


def test_a_sandbox_is_of_root_unless_it_is_opened(tmp_path):
    found = parts.state(tmp_path / "ab1")
    closed = [line for line in slurm_conf(found) if line.startswith("PartitionName=main")]
    assert ["RootOnly=YES" in line for line in closed] == [True]
    found.site = {"partitions": config.OPEN_PARTITION}
    opened = [line for line in slurm_conf(found) if line.startswith("PartitionName=main")]
    assert ["RootOnly" in line for line in opened] == [False]
