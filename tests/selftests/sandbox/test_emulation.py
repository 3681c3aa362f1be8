"""Emulated hardware: where it is shown, what a healthy node's driver says, when there is none."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from fixtures.sandbox import emulated_host, emulation, processes
from fixtures.sandbox.errors import SandboxError
from fixtures.sandbox.state import State
from tests.selftests.sandbox import parts
from tests.selftests.sandbox.parts import DEAD, Calls, faked

pytestmark = pytest.mark.cpu


@pytest.fixture
def two(tmp_path) -> State:
    found = parts.state(tmp_path / "my ab1")
    found.devices = {name: [f"/run/{name}/gpu{k}" for k in range(2)] for name in found.names}
    return found


def test_a_host_without_compiler_or_linker_cannot_emulate(monkeypatch):
    for there, said in (
        (("gcc", "ldconfig"), None), (("ldconfig",), "gcc is not"), (("gcc",), "ldconfig is not")
    ):  # fmt: skip
        monkeypatch.setattr(
            shutil, "which", lambda name, path, there=there: name if name in there else None
        )
        reason = emulation.refusal()
        assert reason is None if said is None else said in str(reason)


def test_hardware_is_emulated_where_there_are_gpus_and_none_is_real(two):
    real = {"worker0": ["GPU-1"]}
    for gpus, uuids, emulated in (
        (2, {}, True), (1, {}, True), (0, {}, False), (2, real, False), (0, real, False)
    ):  # fmt: skip
        two.gpus, two.gpu_uuids = gpus, uuids
        assert emulation.is_emulated(two) is emulated


def test_files_of_a_node_and_of_its_driver_have_their_places(two):
    assert emulation.shared_driver(two) == two.home / "driver"
    home = two.home / "nodes" / "worker1" / "hardware"
    assert emulation.hardware_home(two, "worker1") == home
    assert emulation.state_file(two, "worker1") == home / "driver" / "nvml.state"
    assert emulation.has_driver(two) is False
    (two.home / "driver").mkdir()
    (two.home / "driver" / "libnvidia-ml.so.1").touch()
    assert emulation.has_driver(two) is True
    assert emulation.platform_of(two).name == "virtual"
    two.platform = "dgx-a100"
    assert emulation.platform_of(two).name == "dgx-a100"


def test_gpus_have_uuids_that_stay_and_differ(two):
    every = [emulation.gpu_uuid(name, k) for name in two.names for k in range(2)]
    assert len({*every}) == 4
    assert every[0] == emulation.gpu_uuid("worker0", 0)
    assert {uuid[:4] for uuid in every} == {"GPU-"}


def test_a_healthy_nodes_gpus_are_in_its_state_file(two):
    emulation.state_file(two, "worker1").parent.mkdir(parents=True)
    emulation.write_state(two, "worker1", ["1.lost=1"])
    lines = emulation.state_file(two, "worker1").read_text().splitlines()
    assert lines[0] == "count=2"
    assert {"1.device=/run/worker1/gpu1", "0.serial=1000100", "1.serial=1000101",
            f"1.uuid={emulation.gpu_uuid('worker1', 1)}"} <= set(lines)  # fmt: skip
    assert lines[-1] == "1.lost=1"
    assert emulation.state_file(two, "worker1").stat().st_mode & 0o777 == 0o644
    two.light = True
    assert "0.device=/dev/null" in emulation.healthy_state_lines(two, "worker0")


# --- before the nodes start


def test_the_driver_is_compiled_where_it_can_be(two, monkeypatch):
    spawned = Calls(DEAD)
    monkeypatch.setattr(emulation, "spawn", spawned)
    monkeypatch.setattr(emulation, "refusal", lambda: "gcc is not installed")
    assert emulation.start_compiler(two) is None
    assert (two.home / "emulation.log").read_text() == "gcc is not installed\n"
    monkeypatch.setattr(emulation, "refusal", lambda: None)
    assert emulation.start_compiler(two) == DEAD
    argv = spawned[0][0]
    assert argv[argv.index("-o") + 1] == str(two.home / "driver" / "libnvidia-ml.so.1")
    two.gpus = 0
    assert emulation.start_compiler(two) is None
    assert len(spawned) == 1


@pytest.fixture
def prepared(two, monkeypatch) -> list[str]:
    """The nodes whose hardware was made; ldconfig is not run."""
    made: list[str] = []
    monkeypatch.setattr(emulation, "make_hardware", lambda platform, root: made.append(str(root)))
    monkeypatch.setattr(emulated_host, "make", lambda root, node: made.append(node))
    monkeypatch.setattr(processes, "time", faked(time, sleep=Calls()))
    (two.home / "driver").mkdir()

    def run(argv: list[str]) -> None:
        assert argv[0] == "/sbin/ldconfig"
        Path(argv[argv.index("-C") + 1]).touch()

    monkeypatch.setattr(shutil, "which", lambda name, path: f"/sbin/{name}")
    monkeypatch.setattr(emulation, "run", run)
    return made


def test_every_node_has_hardware_and_its_own_copy_of_the_driver(two, prepared):
    emulation.prepare(two, None)  # without a compiler
    assert prepared == [
        text for name in two.names for text in (str(emulation.hardware_home(two, name)), name)
    ]
    assert not emulation.state_file(two, "worker0").exists()
    (two.home / "driver" / emulation.LIBRARY).write_text("compiled")
    emulation.prepare(two, DEAD)
    for name in two.names:
        copy = emulation.hardware_home(two, name) / "driver" / emulation.LIBRARY
        assert (copy.read_text(), copy.is_symlink()) == ("compiled", False)
        assert emulation.state_file(two, name).exists()


def test_the_linker_is_left_to_the_path_where_it_is_not_found(two, prepared, monkeypatch):
    ran = []
    monkeypatch.setattr(shutil, "which", lambda name, path: None)
    monkeypatch.setattr(emulation, "run", lambda argv: ran.append(argv[0]))
    (two.home / "driver" / emulation.LIBRARY).write_text("compiled")
    (two.home / "ld.so.cache").touch()
    emulation.prepare(two, DEAD)
    assert ran == ["ldconfig"]


def test_nodes_of_the_light_form_share_the_driver(two, prepared):
    (two.home / "driver" / emulation.LIBRARY).write_text("compiled")
    two.light = True
    emulation.prepare(two, DEAD)
    assert prepared == []
    copy = emulation.hardware_home(two, "worker1") / "driver" / emulation.LIBRARY
    assert copy.readlink() == two.home / "driver" / emulation.LIBRARY


def test_a_compiler_that_fails_is_no_error(two, prepared, monkeypatch):
    (two.home / "emulation.log").write_text("no headers\n")
    emulation.prepare(two, DEAD)
    said = (two.home / "emulation.log").read_text()
    assert said == "GPUs have no emulated driver: gcc: no headers\n"
    assert not emulation.has_driver(two)

    def fails(argv: list[str]) -> None:
        raise SandboxError("ldconfig: no")

    monkeypatch.setattr(emulation, "run", fails)
    (two.home / "driver" / emulation.LIBRARY).write_text("compiled")
    emulation.prepare(two, DEAD)
    assert not emulation.has_driver(two)
    two.gpus = 0
    prepared.clear()
    emulation.prepare(two, DEAD)
    assert prepared == []


def test_a_compiler_is_waited_for_half_a_minute_or_until_it_has_ended(two, prepared, monkeypatch):
    waited = Calls()
    monkeypatch.setattr(emulation, "wait_until", waited)
    emulation.prepare(two, DEAD)
    ended, more = waited[0]
    assert more["timeout_s"] == 30
    assert ended() is True
    emulation.prepare(two, parts.living())
    assert waited[1][0]() is False


# --- what a node mounts


def test_a_node_mounts_its_hardware_and_its_driver_where_there_is_one(two):
    home = emulation.hardware_home(two, "worker1")
    lines = emulation.mount_lines(two, "worker1")
    assert lines[0].startswith(f"mount -t overlay -o ro,lowerdir='{home}/low':/sys/class ")
    assert any(f"mount --bind '{home}/infiniband' /sys/class/infiniband" in line for line in lines)
    assert not any("ld.so.cache" in line for line in lines)
    (two.home / "driver").mkdir()
    (two.home / "driver" / emulation.LIBRARY).touch()
    assert emulation.mount_lines(two, "worker1") == [
        *lines, f"mount --bind '{home}/driver' '{two.home}/driver'",
        f"mount --bind '{two.home}/ld.so.cache' /etc/ld.so.cache",
    ]  # fmt: skip
    two.gpu_uuids = {"worker1": ["GPU-1"]}
    assert emulation.mount_lines(two, "worker1") == []


def test_the_module_of_gpudirect_is_loaded(two, tmp_path):
    emulation.make_hardware(emulation.platform_of(two), tmp_path / "root")
    initstate = tmp_path / "root" / "module" / "nvidia_peermem" / "initstate"
    assert initstate.read_text() == "live\n"
