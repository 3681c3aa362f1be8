"""One virtual node: the script of its first process, its devices, its start and why it failed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fixtures.sandbox import network, node, processes, resources
from fixtures.sandbox.cgroups import Cgroups
from fixtures.sandbox.errors import SandboxError
from fixtures.sandbox.resources import Gpu
from fixtures.sandbox.state import State
from tests.selftests.sandbox import parts
from tests.selftests.sandbox.parts import DEAD, Calls

pytestmark = pytest.mark.cpu


@pytest.fixture
def two(tmp_path) -> State:
    found = parts.state(tmp_path / "my ab1")
    for name in found.names:
        found.node_home(name).mkdir(parents=True)
    return found


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    return parts.clock(monkeypatch, node, processes, step=1)


# --- its namespaces and devices


def test_a_node_is_bound_to_its_cores_where_it_has_enough(two, monkeypatch):
    cores, which = Calls("0,1"), Calls("/bin/taskset")
    monkeypatch.setattr(resources, "cores_of_node", cores)
    monkeypatch.setattr(node.shutil, "which", which)
    argv = node.namespace_command(two, "worker1")
    assert argv[:4] == ["taskset", "--cpu-list", "0,1", "unshare"]
    assert cores == [(1, 2, 4)]
    assert "--cgroup" not in argv
    two.cgroup = 2
    for cores.returns, which.returns in (([None], ["/bin/taskset"]), (["0,1"], [None])):
        argv = node.namespace_command(two, "worker1")
        assert argv[0] == "unshare"
        assert "--cgroup" in argv


def test_fake_gpus_are_devices_that_no_other_node_or_sandbox_has(two, monkeypatch):
    monkeypatch.setattr(resources, "fake_major", lambda: 120)
    assert node.device_lines(two, "worker1") == []
    two.devices = {name: [f"/run/my {name}/gpu{k}" for k in range(2)] for name in two.names}
    lines = node.device_lines(two, "worker1")
    first = 3 * 1024 + 1 * 2  # slot 3, second node of two GPUs
    assert lines[0] == "mkdir -p '/run/my worker1'"
    assert lines[2:] == [
        f"mknod -m 666 '/run/my worker1/gpu{k}' c 120 {first + k}" for k in range(2)
    ]


def test_real_gpus_of_other_nodes_are_hidden(two, monkeypatch):
    monkeypatch.setattr(
        resources, "gpus", lambda: [Gpu(f"/dev/nvidia{k}", "", "") for k in range(3)]
    )
    two.gpu_uuids = {"worker0": ["GPU-0"]}
    two.devices = {"worker0": ["/dev/nvidia0"], "worker1": ["/dev/nvidia1"]}
    assert node.device_lines(two, "worker1") == [
        "mount --bind /dev/null /dev/nvidia0", "mount --bind /dev/null /dev/nvidia2"
    ]  # fmt: skip


def test_a_node_sees_its_groups_as_the_root(two, tmp_path):
    cgroups = Cgroups(1, {"freezer": Path("/cg/f/unit"), "memory": Path("/cg/m/unit")}, True)
    lines = node.cgroup_lines(two, cgroups, "worker1", Path("/my staging"))
    assert "mount --bind /cg/f/unit/worker1 '/my staging/freezer'" in lines
    assert "mount --bind /cg/m/unit/worker1 '/my staging/memory'" in lines
    assert lines[-1] == "mount --move '/my staging' /sys/fs/cgroup"
    two.cgroup = 2
    lines = node.cgroup_lines(two, cgroups, "worker1", Path("/my staging"))
    assert "mount -t cgroup2 cgroup2 /sys/fs/cgroup" in lines
    assert lines[-1] == "echo 0 >/sys/fs/cgroup/system.slice/slurmd.scope/cgroup.procs"


def test_what_a_container_mounts_of_the_driver_is_kept(monkeypatch, tmp_path):
    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr(node, "Path", lambda path: mounts)
    mounts.write_text("1 2 0:1 / /proc/driver rw - proc proc rw\n")
    assert node.proc_lines(Path("/s")) == ["mount -t proc proc /proc"]
    mounts.write_text("1 2 0:1 /x /proc/driver/nvidia/gpus/0 rw - tmpfs tmpfs rw\n")
    lines = node.proc_lines(Path("/my s"))
    assert lines[1] == "mount --rbind /proc/driver/nvidia '/my s'"
    assert lines.index("mount -t proc proc /proc") == 2
    assert lines[3] == "mount --rbind '/my s' /proc/driver/nvidia"


def test_the_script_waits_for_its_link_and_then_runs_slurmd(two):
    two.gpus = 0
    script = node.start_script(two, parts.tools(), Cgroups(1, {}, True), "worker1").splitlines()
    home = two.node_home("worker1")
    order = [
        script.index(line) for line in (
            "hostname worker1", f"mount --bind '{two.home}/hosts' /etc/hosts",
            f"echo $pid >'{home}/init.pid'", f"read -r go <'{home}/go'",
            "addr add 198.18.7.3/24 dev eth0",
        )
    ]  # fmt: skip
    assert order == sorted(order)
    (slurmd,) = [line for line in script if line.startswith("/fake/slurmd -D -N worker1 ")]
    assert f"-f '{two.home}/slurm.conf'" in slurmd
    assert script[-1] == "wait $!"


# --- its start


def test_the_first_process_is_the_one_that_the_script_names(two, clock):
    file = two.node_home("worker1") / "init.pid"
    file.write_text("4711\n")
    assert node.init_pid(two, "worker1") == 4711
    assert clock == [0.0]


def test_a_pid_that_is_not_there_or_half_written_after_ten_seconds_is_a_failure(two, clock):
    home = two.node_home("worker1")
    for text in (None, "47"):
        clock[0] = 0.0
        if text is not None:
            (home / "init.pid").write_text(text)
        with pytest.raises(SandboxError, match="node worker1 of sandbox my ab1 did not start"):
            node.init_pid(two, "worker1")
        assert clock[0] == 10


def test_a_start_that_has_ended_is_not_waited_for_and_its_log_is_the_reason(two, clock):
    two.processes["worker1"] = DEAD
    home = two.node_home("worker1")
    with pytest.raises(SandboxError, match="nothing in its logs"):
        node.init_pid(two, "worker1")
    (home / "start.log").write_text("mount: no\n")
    with pytest.raises(SandboxError, match=r"did not start: mount: no \(logs"):
        node.init_pid(two, "worker1")
    (home / "slurmd.log").write_text("fatal: no\n")
    with pytest.raises(SandboxError, match=r"did not start: fatal: no \(logs"):
        node.init_pid(two, "worker1")
    assert clock == [0.0]


def test_a_waiting_script_is_released(two, clock):
    home = two.node_home("worker1")
    os.mkfifo(home / "go")
    reader = os.open(home / "go", os.O_RDONLY | os.O_NONBLOCK)
    node.release(two, ["worker1"])
    assert os.read(reader, 10) == b"go\n"
    os.close(reader)
    with pytest.raises(SandboxError, match="did not start"):
        node.release(two, ["worker1"])  # nobody reads any more
    assert clock[0] == 11
    clock[0] = 0.0
    two.processes["worker1"] = DEAD
    with pytest.raises(SandboxError, match="did not start"):
        node.release(two, ["worker1"])
    assert clock[0] == 0


@pytest.mark.parametrize("version", [1, 2])
def test_nodes_are_started_connected_and_moved_out_of_their_root(two, monkeypatch, version):
    me = parts.living()
    spawned, joined, moved = Calls(me), Calls(), []
    monkeypatch.setattr(node, "spawn", spawned)
    monkeypatch.setattr(node, "start_script", lambda *given: f"# {given[-1]}")
    monkeypatch.setattr(network, "connect", joined)
    monkeypatch.setattr(Cgroups, "make", Calls())
    monkeypatch.setattr(Cgroups, "move", lambda self, name, process: moved.append((name, process)))
    monkeypatch.setattr(Cgroups, "delegate", lambda self, name: name == "worker0")
    pids = {"worker0": os.getpid(), "worker1": os.getpid()}
    monkeypatch.setattr(node, "init_pid", lambda state, name: pids[name])
    cgroups = Cgroups(version, {"x": two.home}, True)
    (two.node_home("worker0") / "init.pid").write_text("1\n")  # of an earlier start
    node.start(two, parts.tools(), cgroups, two.names)
    assert not (two.node_home("worker0") / "init.pid").exists()
    assert (two.node_home("worker0") / "go").is_fifo()
    assert (two.node_home("worker1") / "start.sh").read_text() == "# worker1"
    assert [call[0][-2:] for call in spawned] == [
        ["sh", str(two.node_home(name) / "start.sh")] for name in two.names
    ]
    assert two.processes["worker1.init"] == two.processes["worker1"] == me
    assert joined[0][2] == {"worker0": me, "worker1": me}
    assert moved == ([("control", me)] * 2 if version == 2 else [])
    assert two.memory is (version == 1)  # not all nodes could limit it
    pids["worker1"] = DEAD.pid
    with pytest.raises(SandboxError, match=r"node worker1 .* did not start"):
        node.start(two, parts.tools(), cgroups, two.names)


def test_memory_stays_limited_where_every_node_can(two, monkeypatch):
    for name in ("spawn", "start_script"):
        monkeypatch.setattr(
            node, name, Calls("") if name == "start_script" else Calls(parts.living())
        )
    monkeypatch.setattr(network, "connect", Calls())
    for name, value in (("make", None), ("move", None), ("delegate", True)):
        monkeypatch.setattr(Cgroups, name, Calls(value))
    monkeypatch.setattr(node, "init_pid", lambda *_: os.getpid())
    for memory in (True, False):
        two.memory = memory
        node.start(two, parts.tools(), Cgroups(2, {"x": two.home}, True), two.names)
        assert two.memory is memory
