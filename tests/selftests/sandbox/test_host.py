"""What the sandbox takes from its host: names, networks, control groups, the root of a chroot."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.sandbox import cgroups, config, network, tools
from fixtures.sandbox.cgroups import Cgroups
from fixtures.sandbox.errors import SandboxError
from fixtures.sandbox.processes import Process, is_rank
from fixtures.sandbox.state import State

pytestmark = pytest.mark.cpu


def state(home: Path) -> State:
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
    known = addresses(config.hosts(state(tmp_path)))
    assert known["login01"] == known["login01.site.example"] == "198.18.7.1"
    assert known["controller"] == "198.18.7.1"
    assert known["localhost"] == "127.0.0.1"
    assert known["worker1"] == "198.18.7.3"


def test_a_host_with_the_name_of_a_node_does_not_take_its_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "worker0")
    assert addresses(config.hosts(state(tmp_path)))["worker0"] == "198.18.7.2"


@pytest.mark.parametrize("timeouts", [config.TIMEOUTS, config.TIMEOUTS_LIGHT])
def test_steps_may_take_five_message_timeouts_to_end(timeouts: str) -> None:
    """With less, Slurm 24.11 warns that nodes may go down with "Kill task failed"."""
    values = dict(line.split("=") for line in timeouts.splitlines() if not line.startswith("#"))
    assert int(values["UnkillableStepTimeout"]) >= 5 * int(values["MessageTimeout"])


def test_sandboxes_that_start_under_the_same_pid_take_other_networks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(network, "run", lambda *_, **__: "[]")
    made = tools.Tools(ip="ip")
    assert len({network.free_subnet(made, set()) for _ in range(20)}) > 1


V1 = {name: Path(f"/sys/fs/cgroup/{name}") for name in ("devices", "freezer", "memory")}


@pytest.fixture
def unified(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    return tmp_path


def on_host(
    monkeypatch: pytest.MonkeyPatch, v1: dict[str, Path], v2: Path | None, *others: str
) -> None:
    monkeypatch.setattr(cgroups, "mounted_hierarchies", lambda: (v1, v2))
    monkeypatch.setattr(cgroups, "v1_hierarchies", lambda: [*v1, *others])


def test_where_the_host_has_cgroup_v2_alone_it_is_used(
    monkeypatch: pytest.MonkeyPatch, unified: Path
) -> None:
    on_host(monkeypatch, {}, unified)
    plan = Cgroups.plan("unit")
    assert (plan.version, plan.memory) == (2, True)
    assert plan.trees == {"unified": unified / "gpu-acceptance-unit"}


@pytest.mark.parametrize("hybrid", [False, True])
def test_where_v1_has_the_devices_v1_is_used(
    monkeypatch: pytest.MonkeyPatch, unified: Path, hybrid: bool
) -> None:
    on_host(monkeypatch, V1, unified if hybrid else None, "cpu")
    assert Cgroups.plan("unit").version == 1


@pytest.mark.parametrize(
    ("v1", "has_v2", "version", "line"),
    [
        (V1, True, 2, "v2 cannot be used here: v1 has devices, freezer, memory, name=systemd on"),
        ({}, True, None, "v2 cannot be used here: v1 has name=systemd on this host"),
        (V1, False, 2, "cgroup v2 is not mounted here, and v1 is what this host has"),
        ({}, False, None, "cgroup v2 is not mounted here, and v1 lacks devices, freezer: "),
        ({}, False, 1, "cgroup v1 has no devices, freezer controller mounted here$"),
    ],
)
def test_where_no_cgroups_can_be_used_it_says_why(
    monkeypatch: pytest.MonkeyPatch,
    unified: Path,
    v1: dict[str, Path],
    has_v2: bool,
    version: int | None,
    line: str,
) -> None:
    on_host(monkeypatch, v1, unified if has_v2 else None, "name=systemd")
    with pytest.raises(SandboxError, match=line):
        Cgroups.plan("unit", version=version)


@pytest.mark.parametrize(
    ("step", "expected"),
    [({"SLURM_STEP_ID": "0"}, True), ({}, False), ({"SLURM_STEP_ID": "-5"}, False)],
    ids=["a rank", "a batch script", "a batch script of 26.05"],
)
def test_a_batch_script_is_no_rank(step: dict[str, str], expected: bool) -> None:
    env = {"SLURM_PROCID": "0", "SLURM_JOB_ID": "7", **step}
    argv = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(argv, env=env, stdin=-1, stdout=-1) as started:
        assert started.stdout is not None
        started.stdout.readline()  # from here on it has its environment
        process = Process.of(started.pid)
        assert process is not None
        assert is_rank(process, 0, 7) is expected
        started.communicate(b"\n")


def test_in_a_chroot_it_says_that_the_root_is_no_mount_point(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unshare = tmp_path / "unshare"
    said = "unshare: cannot change root filesystem propagation: Invalid argument"
    unshare.write_text(f"#!/bin/sh\necho '{said}' >&2; exit 1\n")
    unshare.chmod(0o755)
    monkeypatch.setattr(tools, "SYSTEM_PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(SandboxError, match=r"a chroot.*enter it by pivot_root") as caught:
        tools.check_host()
    assert "--privileged" not in str(caught.value)
