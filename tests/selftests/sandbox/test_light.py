"""The light form: many slurmd on one host, by ports, in batches, with drivers of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fixtures.sandbox import light, network
from fixtures.sandbox.cgroups import Cgroups
from fixtures.sandbox.errors import SandboxError
from tests.selftests.sandbox import parts
from tests.selftests.sandbox.parts import Calls

pytestmark = pytest.mark.cpu


def test_nodes_share_the_files_of_their_gpus(tmp_path):
    found = parts.state(tmp_path / "ab1", gpus=3)
    light.assign_resources(found)
    files = [str(tmp_path / "ab1" / "gpus" / f"gpu{k}") for k in range(3)]
    assert found.devices == {"worker0": files, "worker1": files}
    assert (found.cpus, found.memory_mib) == (4, 1024)  # even, so that two halves fit
    light.prepare(found)
    assert all(Path(file).exists() for file in files)
    for gpus, cpus in ((0, 2), (1, 2), (2, 2), (4, 4)):
        found = parts.state(tmp_path / "ab2", gpus=gpus)
        light.assign_resources(found)
        assert found.cpus == cpus
    found.gpus = 0
    light.assign_resources(found)
    assert found.devices == {}
    light.prepare(found)


def test_a_task_finds_the_driver_of_its_node(tmp_path):
    found = parts.state(tmp_path / "ab1")
    light.prepare(found)
    script = light.task_prolog(found)
    assert script == tmp_path / "ab1" / "task-prolog"
    own = f"{tmp_path}/ab1/nodes/worker7/hardware/driver"
    for before, path in (({}, own), ({"LD_LIBRARY_PATH": "/x"}, f"{own}:/x")):
        said = subprocess.run(
            [script], env={"SLURMD_NODENAME": "worker7", **before}, capture_output=True, text=True
        )
        assert said.stdout == f"export LD_LIBRARY_PATH={path}\n"


def test_a_slurmd_is_started_under_the_name_of_its_node(tmp_path, monkeypatch):
    found = parts.state(tmp_path / "ab1", processes={})
    spawned = Calls(parts.living())
    monkeypatch.setattr(light, "spawn", spawned)
    monkeypatch.setattr(Cgroups, "make", Calls())
    light.start(found, parts.tools(), Cgroups(1, {"x": tmp_path}, False), ["worker1"])
    assert found.processes == {"worker1": parts.living()}
    assert (found.node_home("worker1") / "spool").is_dir()
    argv = spawned[0][0]
    start = argv.index("/fake/slurmd")
    conf = str(tmp_path / "ab1" / "slurm.conf")
    assert argv[start:] == ["/fake/slurmd", "-D", "-N", "worker1", "-f", conf, "-d",
                            "/fake/slurmstepd"]  # fmt: skip


def test_nodes_are_started_in_batches_that_are_waited_for(tmp_path, monkeypatch):
    """slurmctld loses registrations when several hundred nodes register at once."""
    found = parts.state(tmp_path / "ab1", nodes=300, processes={})
    started, waits = [], []
    idle = dict.fromkeys(found.names, "idle")
    monkeypatch.setattr(light, "start", lambda *given: started.append(given[3]))

    def wait_until(condition, *, timeout_s: float, step_s: float) -> None:
        states.clear()
        states.update(idle)
        assert condition() is True
        states[started[-1][-1]] = "down"
        assert condition() is False
        waits.append(timeout_s)

    states: dict[str, str] = {}
    monkeypatch.setattr(light, "wait_until", wait_until)
    light.start_all(found, parts.tools(), Cgroups(1, {}, False), lambda: states)
    assert [len(batch) for batch in started] == [128, 128, 44]
    assert [name for batch in started for name in batch] == found.names
    assert waits == [20] * 3  # those that are late are waited for at the end
    assert (tmp_path / "ab1" / "state.json").exists()
    assert light.READY_TIMEOUT_S == 240  # 4,096 nodes in 32 batches of a few seconds


def test_two_of_the_largest_sandboxes_find_their_ports_side_by_side():
    ports = light.LAST_PORT - light.FIRST_PORT + 1
    assert 4000 <= light.MAX_NODES <= ports // 2


def test_as_many_ports_in_a_row_as_nodes_are_found(tmp_path, monkeypatch):
    found = parts.state(tmp_path / "ab1", nodes=100, processes={})
    taken = {10003, 10199}
    asked = []

    def port_is_free(address: str, port: int) -> bool:
        asked.append((address, port))
        return port not in taken

    monkeypatch.setattr(network, "port_is_free", port_is_free)
    assert light.find_port_range(found) == 10200
    assert asked[0] == ("198.18.7.1", 10000)
    found.nodes = 4096
    taken.clear()
    assert light.find_port_range(found) == 10000
    found.nodes = 10000  # 10000 to 19999
    assert light.find_port_range(found) == 10000
    taken.add(19999)
    with pytest.raises(SandboxError, match="no 10000 free ports in a row between 10000 and 19999"):
        light.find_port_range(found)
    found.nodes = 10001
    taken.clear()
    with pytest.raises(SandboxError, match="no 10001 free ports"):
        light.find_port_range(found)
    found.nodes = 1
    taken |= set(range(10000, 10064))
    assert light.find_port_range(found) == 10064  # the next is not tried beside it
