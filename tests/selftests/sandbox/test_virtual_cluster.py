"""A running sandbox that is only looked at: its environment, node states, processes, commands."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fixtures.sandbox import processes, startup, virtual_cluster
from fixtures.sandbox.errors import SandboxError
from fixtures.sandbox.state import REGISTRY
from fixtures.sandbox.virtual_cluster import READY_TIMEOUT_S, VirtualCluster
from tests.selftests.sandbox import parts
from tests.selftests.sandbox.parts import DEAD, Calls, faked

pytestmark = pytest.mark.cpu


@pytest.fixture
def cluster(tmp_path) -> VirtualCluster:
    found = parts.state(
        tmp_path / "ab1", devices={"worker0": ["/dev/a"]}, gpu_model="h200",
        gpu_uuids={"worker0": ["GPU-1"]},
    )  # fmt: skip
    return VirtualCluster(found, parts.tools())


def test_it_shows_what_its_state_says(cluster, tmp_path, monkeypatch):
    assert (cluster.id, cluster.nodes) == ("ab1", ["worker0", "worker1"])
    assert cluster.devices == {"worker0": ["/dev/a"]}
    assert (cluster.gpu_model, cluster.gpu_uuids) == ("h200", {"worker0": ["GPU-1"]})
    assert cluster.cgroups.trees == {"freezer": tmp_path / "ab1" / "cgroup"}
    conf = str(tmp_path / "ab1" / "slurm.conf")
    assert cluster.env == {"SLURM_CONF": conf}
    cluster.tools.bundle = Path("/bundle")
    monkeypatch.setenv("PATH", "/mine")
    assert cluster.env == {"SLURM_CONF": conf, "PATH": "/bundle/bin:/mine"}
    monkeypatch.setenv("OF_MINE", "7")
    assert cluster.environ == {**os.environ, **cluster.env}


def test_a_dead_node_is_named_with_the_command_that_revives_it(cluster, tmp_path):
    cluster.require_alive("worker1")
    cluster.state.processes["worker1"] = DEAD
    revive = f"python -m fixtures.sandbox --state-dir {tmp_path} revive worker1 --id ab1"
    with pytest.raises(SandboxError, match=f"worker1 of sandbox ab1 is dead.*`{revive}`"):
        cluster.require_alive("worker1")
    cluster.state.home = REGISTRY / "ab1"
    assert cluster.command("down") == "python -m fixtures.sandbox down --id ab1"


def test_node_states_are_those_of_sinfo(cluster, monkeypatch):
    ran = Calls("worker0 idle\n\nworker1 down*\n")
    monkeypatch.setattr(virtual_cluster, "run", ran)
    assert cluster.node_states() == {"worker0": "idle", "worker1": "down*"}
    assert ran[0][0][0] == "/fake/sinfo"

    def fails(*_, **__):
        raise SandboxError("slurmctld does not answer")

    monkeypatch.setattr(virtual_cluster, "run", fails)
    assert cluster.node_states() == {}


def test_a_state_is_waited_for(cluster, monkeypatch):
    states = Calls({}, {"worker1": "down"}, {"worker1": "idle"})
    monkeypatch.setattr(VirtualCluster, "node_states", lambda self: states())
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(processes, "time", faked(time, monotonic=lambda: now[0], sleep=sleep))
    assert cluster.wait_state("worker1", "^(idle|mixed)$") == "idle"
    assert len(states) == 3
    for found, said in (({"worker1": "idle"}, "reads idle"), ({}, "reads unknown")):
        states.returns = [found]
        with pytest.raises(SandboxError, match=rf"worker1 {said} after 0 s, not \^down"):
            cluster.wait_state("worker1", "^down", timeout_s=0)
    with pytest.raises(SandboxError, match="has no node 'worker7'"):
        cluster.wait_state("worker7", "idle")


def test_idle_nodes_are_waited_for_as_long_as_a_start_takes(cluster, monkeypatch):
    waited = Calls()
    monkeypatch.setattr(startup, "wait_idle", waited)
    cluster.wait_idle(["worker1"])
    assert waited == [(cluster.state, cluster.node_states, ["worker1"], {"timeout_s": 30})]
    assert READY_TIMEOUT_S == 30  # Slurm registers a node in seconds, on a loaded host in some ten


def test_processes_of_a_node_are_chosen_by_pid_or_rank(cluster, monkeypatch):
    me = parts.living()
    monkeypatch.setattr(
        type(cluster.cgroups), "members", lambda self, name: [me, DEAD] if name == "worker1" else []
    )
    monkeypatch.setattr(virtual_cluster, "pid_inside", lambda process: {me: 7, DEAD: 8}[process])
    monkeypatch.setattr(
        virtual_cluster, "is_rank", lambda process, rank, job: (process, rank, job) == (DEAD, 0, 5)
    )
    assert cluster.processes("worker0") == []
    assert cluster.processes("worker1") == [me, DEAD]
    assert cluster.processes("worker1", pid=7) == [me]
    assert cluster.processes("worker1", rank=0, job=5) == [DEAD]
    assert cluster.processes("worker1", rank=0) == []
    with pytest.raises(SandboxError, match="has no node 'worker7'"):
        cluster.processes("worker7")


def test_a_command_enters_the_namespaces_of_its_node(cluster):
    argv = cluster.inside("worker1", "ls", "/dev")
    assert argv[:2] == ["/fake/nsenter", f"--target={os.getpid()}"]
    assert argv[-3:] == ["--", "ls", "/dev"]
    assert {"--mount", "--net", "--pid"} <= set(argv)
    cluster.state.light = True  # without namespaces
    assert cluster.inside("worker1", "ls", "/dev") == ["ls", "/dev"]
