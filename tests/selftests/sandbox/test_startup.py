"""The start of a sandbox: its state first, its resources, its files, and whom it waits for."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import pytest

from fixtures.sandbox import (
    accounting,
    emulation,
    light,
    network,
    node,
    processes,
    resources,
    startup,
)
from fixtures.sandbox.cgroups import Cgroups
from fixtures.sandbox.errors import SandboxError
from fixtures.sandbox.resources import Gpu
from fixtures.sandbox.state import State, load
from tests.selftests.sandbox import parts
from tests.selftests.sandbox.parts import DEAD, Calls

pytestmark = pytest.mark.cpu


@pytest.fixture
def two(tmp_path) -> State:
    found = parts.state(tmp_path / "ab1")
    for name in found.names:
        found.node_home(name).mkdir(parents=True)
    return found


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    return parts.clock(monkeypatch, processes, step=1)


# --- the state


@pytest.fixture
def any_length(monkeypatch) -> None:
    """No socket is made, so that pytest's long folders will do."""
    monkeypatch.setattr("fixtures.sandbox.state.MAX_REGISTRY", 1000)


def test_the_state_is_written_before_anything_else(tmp_path, any_length):
    made = startup.create_state(
        tmp_path / "registry", "ab1", nodes=3, gpus=1, accounting=True, platform="hgx-h100"
    )
    assert load(tmp_path / "registry" / "ab1") == made
    assert (made.nodes, made.gpus, made.accounting, made.light) == (3, 1, True, False)
    assert made.owner == parts.living()
    assert made.ownerless is False
    with pytest.raises(SandboxError, match="a sandbox ab1 is there"):
        startup.create_state(tmp_path / "registry", "ab1", nodes=1, gpus=1, accounting=False)
    with pytest.raises(SandboxError, match="small letters and digits"):
        startup.create_state(tmp_path / "registry", "A b", nodes=1, gpus=1, accounting=False)


def test_a_registry_that_goes_meanwhile_is_made_again(tmp_path, monkeypatch, any_length):
    goes = [2]
    locked = startup.locked

    @contextmanager
    def lock(folder: Path):
        if goes[0]:
            goes[0] -= 1
            raise FileNotFoundError(folder)
        with locked(folder):
            yield

    monkeypatch.setattr(startup, "locked", lock)
    made = startup.create_state(tmp_path / "registry", "ab1", nodes=1, gpus=0, accounting=False)
    assert made.home.is_dir()
    goes[0] = 1000
    with pytest.raises(SandboxError, match="keeps disappearing"):
        startup.create_state(tmp_path / "registry", "ab2", nodes=1, gpus=0, accounting=False)


# --- resources


def test_nodes_share_memory_and_have_stand_ins_for_gpus(two, monkeypatch):
    monkeypatch.setattr(resources, "memory_mib", lambda: 9001)
    monkeypatch.setattr(resources, "claimed_cpus", lambda nodes, gpus: 10 * nodes + gpus)
    startup.assign_resources(two, None, [])
    assert (two.cpus, two.memory_mib) == (22, 4500)
    assert two.devices["worker1"] == [
        str(two.node_home("worker1") / "dev" / f"gpu{k}") for k in (0, 1)
    ]
    assert (two.gpu_uuids, two.gpu_model) == ({}, "cpu")
    startup.assign_resources(two, 6, [])
    assert two.cpus == 6
    monkeypatch.setattr(resources, "memory_mib", lambda: 4)
    startup.assign_resources(two, 6, [])
    assert two.memory_mib == 6  # 1 MiB per CPU, or no job could run


def test_real_gpus_are_shared_out_in_order(two):
    every = [Gpu(f"/dev/nvidia{k}", f"GPU-{k}", "NVIDIA H200") for k in range(4)]
    startup.assign_resources(two, 4, every)
    assert two.devices == {"worker0": ["/dev/nvidia0", "/dev/nvidia1"],
                           "worker1": ["/dev/nvidia2", "/dev/nvidia3"]}  # fmt: skip
    assert two.gpu_uuids["worker1"] == ["GPU-2", "GPU-3"]
    assert two.gpu_model == "h200"


def test_a_node_without_gpus_has_no_devices(tmp_path):
    found = parts.state(tmp_path / "ab1", gpus=0)
    startup.assign_resources(found, 2, [])
    assert found.devices == {}


# --- files


def test_files_of_slurm_are_readable_and_name_the_kind_of_gpu(two):
    two.devices = {"worker0": ["/dev/gpu0"]}
    two.site = {"nodes": "Weight=7", "job_submit.lua": "-- a filter"}
    for model, kind in (("cpu", "virtual"), ("h200", "h200")):
        two.gpu_model = model
        startup.write_configuration(two, parts.tools(), None)
        assert f"Gres=gpu:{kind}:1" in (two.home / "slurm.conf").read_text()
        assert f"Type={kind} " in (two.home / "gres.conf").read_text()
    assert (two.home / "job_submit.lua").read_text() == "-- a filter"
    assert not (two.home / "nodes").is_file()
    names = ("slurm.conf", "gres.conf", "cgroup.conf", "job_submit.lua")
    assert {(two.home / name).stat().st_mode & 0o777 for name in names} == {0o644}


@parts.AS_ROOT
def test_the_key_of_munge_is_closed_and_new(two, monkeypatch):
    spawned = Calls(parts.living())
    monkeypatch.setattr(startup, "spawn", spawned)
    startup.start_munged(two, parts.tools(), Cgroups(1, {"x": two.home}, True))
    key = two.home / "munge" / "key"
    assert key.stat().st_mode & 0o777 == 0o400
    assert len(key.read_bytes()) == 128
    argv, more = spawned[0]
    assert argv[argv.index("/fake/munged") - 3 :][:3] == ["nice", "-n", "-10"]
    assert f"--socket={two.home}/munge/socket" in argv
    assert more["env"] == parts.tools().daemon_env(two.home)
    assert two.processes["munged"] == parts.living()


# --- waiting


def test_a_daemon_is_waited_for_until_it_is_ready_or_has_ended(two, clock):
    log = two.home / "log"
    two.processes["munged"] = parts.living()
    startup.wait_for_daemon(two, "munged", lambda: clock[0] >= 3, log)
    assert clock[0] == 3
    with pytest.raises(SandboxError, match="munged of sandbox ab1 did not start: nothing in its"):
        startup.wait_for_daemon(two, "munged", lambda: False, log)
    assert clock[0] == 3 + 20
    log.write_text("no socket\n")
    two.processes["munged"] = DEAD
    with pytest.raises(SandboxError, match="did not start: no socket"):
        startup.wait_for_daemon(two, "munged", lambda: False, log)
    assert clock[0] == 23


def test_slurmctld_is_ready_once_it_listens(two, monkeypatch):
    asked = Calls(False, True)
    monkeypatch.setattr(network, "listening", asked)
    condition = startup.controller_listening(two)
    assert [condition(), condition()] == [False, True]
    assert asked[0] == ("198.18.7.1", 7001)


def test_nodes_are_idle_or_named_with_what_their_slurmd_says(two, clock):
    def states() -> dict[str, str]:
        return {"worker0": "idle", "worker1": "idle" if clock[0] >= 4 else "down"}

    startup.wait_idle(two, states, two.names, timeout_s=30)
    assert clock[0] == 4
    clock[0] = -10.0
    home = two.node_home("worker1")
    for file, said in ((None, "no log"), ("slurmd.out", "out"), ("slurmd.log", "logged")):
        if file:
            (home / file).write_text(f"{said}\n")
        clock[0] = -100.0
        with pytest.raises(SandboxError, match=rf"worker1 of .* it reads down; its .* {said}$"):
            startup.wait_idle(two, states, two.names, timeout_s=5)
    with pytest.raises(SandboxError, match=r"worker0 .* it reads unknown"):
        startup.wait_idle(two, dict, two.names, timeout_s=0)


def test_a_slurmd_that_has_ended_is_not_waited_for(two, clock):
    two.processes["worker1"] = DEAD
    with pytest.raises(SandboxError, match="node worker1 of sandbox ab1 did not start"):
        startup.wait_idle(two, lambda: {"worker0": "idle"}, two.names, timeout_s=30)
    assert clock[0] == 0


def test_the_first_step_runs_on_every_node(two, monkeypatch):
    ran = Calls("worker1\nworker0\n")
    monkeypatch.setattr(startup, "run", ran)
    startup.run_test_step(two, parts.tools(), {"SLURM_CONF": "x"})
    argv, more = ran[0]
    assert {"/fake/srun", "--nodes=2", "--gres=gpu:2"} <= set(argv)
    assert more == {"env": {"SLURM_CONF": "x"}, "timeout_s": 20}
    (two.node_home("worker0") / "slurmd.log").write_text("error: eBPF\n")
    for ran.returns, said in ((["worker0\n"], "worker0"), ([""], "no answer")):
        with pytest.raises(SandboxError, match=f"first step in sandbox ab1 failed: {said}; .*eBPF"):
            startup.run_test_step(two, parts.tools(), {})

    def fails(*_, **__):
        raise SandboxError("srun gave no answer")

    monkeypatch.setattr(startup, "run", fails)
    with pytest.raises(SandboxError, match="failed: srun gave no answer"):
        startup.run_test_step(two, parts.tools(), {})


# --- all of it


@pytest.fixture
def built(monkeypatch, tmp_path) -> list[str]:
    """The steps of a start that were taken; none starts a process."""
    steps: list[str] = []

    def step(module, name: str, result=None) -> None:
        def taken(*given, **more):
            steps.append(f"{name} {more}" if name == "plan" else name)
            return result(*given, **more) if callable(result) else result

        monkeypatch.setattr(module, name, taken)

    def find(*, bundle, accounting):
        steps.append(f"find {bundle} {accounting}")
        return parts.tools()

    monkeypatch.setattr(startup, "find", find)
    tree = {"x": tmp_path / "cgroup"}
    monkeypatch.setattr(startup, "unpacked", lambda bundle, home: home / "bundle")
    step(Cgroups, "plan", lambda id, version: Cgroups(2, tree, True))
    step(Cgroups, "light", lambda id: Cgroups(1, tree, False))
    step(Cgroups, "make")
    step(emulation, "start_compiler")
    step(emulation, "prepare")
    step(network, "free_subnet", (7, "198.18.9"))
    step(network, "make_bridge")
    step(network, "free_port", 7003)
    step(node, "start")
    step(node, "release")
    step(light, "assign_resources")
    step(light, "find_port_range", 10064)
    step(light, "prepare")
    step(accounting, "start", 7004)
    step(accounting, "register")
    for name in ("start_munged", "wait_for_daemon", "start_slurmctld", "assign_resources"):
        step(startup, name)
    step(startup, "write_configuration", lambda state, tools, port: steps.append(f"port {port}"))
    return steps


def build(state: State, **more):
    given = {"cpus": None, "host_gpus": [], "bundle": None, "cgroup_version": None}
    return startup.build(state, **given | more)


def test_everything_up_to_slurmd_is_started(two, built):
    tools, cgroups = build(two, cgroup_version=2, withheld={"worker0": 1}, site={"slurm": "X=1"})
    assert tools == parts.tools()
    assert cgroups.version == two.cgroup == 2
    assert (two.memory, two.slot, two.subnet, two.port) == (True, 7, "198.18.9", 7003)
    assert (two.withheld, two.site, two.bundle) == ({"worker0": 1}, {"slurm": "X=1"}, None)
    assert built[0] == "find None False"
    assert "plan {'version': 2}" in built
    order = [built.index(name) for name in ("make_bridge", "start", "start_slurmctld", "release")]
    assert order == sorted(order)
    assert not {"light", "register", "find_port_range"} & {*built}
    assert "port None" in built
    assert load(two.home).subnet == "198.18.9"
    assert (two.home / "hosts").stat().st_mode & 0o777 == 0o644
    assert built.count("wait_for_daemon") == 2
    build(two)
    assert (two.withheld, two.site) == ({}, {})


def test_the_light_form_and_accounting_and_a_bundle(two, built):
    two.light = two.accounting = True
    build(two, bundle=Path("/bundle.tar"))
    assert two.bundle == two.home / "bundle"
    assert built[0] == f"find {two.home}/bundle True"
    assert "light" in built
    assert not [step for step in built if step.startswith("plan")]
    assert two.first_port == 10064
    assert "release" not in built
    assert "port 7004" in built
    assert built.index("register") < built.index("start_slurmctld")
