"""Taking a sandbox down: all that it has, whoever's it is, and what is left is listed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from fixtures.paths import CHECKOUT
from fixtures.sandbox import cleanup, network
from fixtures.sandbox.cgroups import Cgroups
from fixtures.sandbox.errors import SandboxError
from tests.selftests.sandbox import parts
from tests.selftests.sandbox.parts import AS_ROOT, DEAD, Calls

pytestmark = pytest.mark.cpu


@pytest.fixture
def host(monkeypatch, tmp_path) -> SimpleNamespace:
    """A host with no control groups, links, mounts or processes of a sandbox."""
    seen = SimpleNamespace(
        killed=[], deleted=Calls(), unmounted=Calls(), groups=Calls(), links=Calls([]),
        cgroups=tmp_path / "cg", mounts=tmp_path / "mountinfo",
    )  # fmt: skip
    seen.cgroups.mkdir()
    seen.mounts.write_text("")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(cleanup, "kill_all", lambda find: seen.killed.append([*find()]))
    monkeypatch.setattr(
        cleanup, "mounted_hierarchies", lambda: ({"freezer": seen.cgroups}, seen.cgroups)
    )
    monkeypatch.setattr(Cgroups, "remove", lambda self: seen.groups(self.trees))
    monkeypatch.setattr(network, "links", seen.links)
    monkeypatch.setattr(network, "delete_links", seen.deleted)
    monkeypatch.setattr(cleanup.subprocess, "run", seen.unmounted)
    real = Path

    def path(text: str) -> Path:
        return seen.mounts if text == "/proc/self/mountinfo" else real(text)

    monkeypatch.setattr(cleanup, "Path", path)
    return seen


@AS_ROOT
def test_all_of_a_sandbox_is_removed_its_folder_last(host, tmp_path):
    registry = tmp_path / "registry"
    found = parts.state(registry / "ab1", processes={"worker0": DEAD})
    found.save()
    (host.cgroups / "gpu-acceptance-ab1").mkdir()
    (host.cgroups / "gpu-acceptance-ab2").mkdir()
    host.links.returns = [["gas-ab1"]]
    host.mounts.write_text(
        f"1 0 0:1 / {registry}/ab1/a rw - t t rw\n2 0 0:1 / {registry}/ab1/a/b rw - t t rw\n"
        f"3 0 0:1 / {registry}/ab12 rw - t t rw\n"
    )
    cleanup.remove(registry / "ab1")
    assert host.killed == [[DEAD]]
    assert host.groups == [({str(host.cgroups): host.cgroups / "gpu-acceptance-ab1"},)]
    assert host.links == [("ab1",)]
    assert host.deleted[0][1] == ["gas-ab1"]
    points = [f"{registry}/ab1/a/b", f"{registry}/ab1/a"]  # the last is unmounted first
    assert [call[0] for call in host.unmounted] == [["umount", "--lazy", p] for p in points]
    assert not registry.exists()
    cleanup.remove(registry / "ab1")  # a second time is not an error
    assert len(host.killed) == 1


@AS_ROOT
def test_the_registry_stays_while_there_is_another_and_a_broken_state_is_no_hindrance(
    host, tmp_path
):
    parts.state(tmp_path / "registry" / "ab1").save()
    broken = tmp_path / "registry" / "ab2"
    broken.mkdir()
    (broken / "state.json").write_text("{")
    cleanup.remove(broken)
    assert host.killed == [[]]
    assert [path.name for path in (tmp_path / "registry").iterdir()] == ["ab1"]


def test_only_root_takes_one_down(host, tmp_path, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    parts.state(tmp_path / "ab1").save()
    with pytest.raises(SandboxError, match=r"only root can take sandbox ab1 down: .* --id ab1"):
        cleanup.remove(tmp_path / "ab1")
    assert (tmp_path / "ab1").exists()
    cleanup.remove(tmp_path / "nothing")


def test_links_are_deleted_with_the_ip_of_its_bundle(host, tmp_path, monkeypatch):
    paths = Calls("/found/ip")
    monkeypatch.setattr(shutil, "which", lambda name, path: paths(path))
    found = parts.state(tmp_path / "ab1")
    cleanup.dismantle(found.home, found)
    found.bundle = Path("/b")
    cleanup.dismantle(found.home, found)
    cleanup.dismantle(found.home, None)
    usual = cleanup.SYSTEM_PATH
    assert [call[0] for call in paths] == [usual, f"/b/bin:{usual}", usual]
    paths.returns = [None]
    cleanup.dismantle(found.home, None)
    assert [call[0] for call in host.deleted] == ["/found/ip"] * 3 + ["ip"]


def test_control_groups_are_found_in_every_hierarchy_once(host, tmp_path, monkeypatch):
    roots = [tmp_path / name for name in ("one", "two", "unified")]
    for root in roots:
        (root / "gpu-acceptance-ab1").mkdir(parents=True)
    one, two, unified = roots
    monkeypatch.setattr(
        cleanup, "mounted_hierarchies",
        lambda: ({"devices": one, "cpuset": two, "cpuacct": two}, unified),
    )  # fmt: skip
    assert cleanup.cgroup_folders("ab1") == [root / "gpu-acceptance-ab1" for root in roots]
    monkeypatch.setattr(cleanup, "mounted_hierarchies", lambda: ({"devices": one}, None))
    assert cleanup.cgroup_folders("*") == [one / "gpu-acceptance-ab1"]
    assert cleanup.cgroup_folders("ab2") == []


@AS_ROOT
def test_those_whose_owner_has_ended_are_swept(host, tmp_path):
    registry = tmp_path / "registry"
    for name, owner in (("ab1", DEAD), ("ab2", parts.living()), ("ab3", None)):
        parts.state(registry / name, owner=owner, processes={}).save()
    (registry / "ab4").mkdir()  # its creator has ended before it wrote anything
    (registry / "ab5").mkdir()
    (registry / "ab5" / "state.json").write_text("{")
    (registry / "a file").touch()
    assert cleanup.sweep(registry) == ["ab1", "ab4"]
    left = sorted(path.name for path in registry.iterdir())
    assert left == ["a file", "ab2", "ab3", "ab5"]
    assert cleanup.sweep(tmp_path / "nothing") == []


def test_what_is_left_is_listed(host, tmp_path, monkeypatch):
    registry = tmp_path / "registry"
    for name in ("ab1", "ab2"):
        (registry / name).mkdir(parents=True)
        (host.cgroups / f"gpu-acceptance-{name}").mkdir()
    host.mounts.write_text(f"1 0 0:1 / {registry}/ab1/a rw - t t rw\n")

    def process(pid: int, *words: str) -> SimpleNamespace:
        return SimpleNamespace(info={"pid": pid, "cmdline": [*words] or None})

    monkeypatch.setattr(psutil, "process_iter", lambda names: [
        process(11, "slurmd", "-f", f"{registry}/ab1/slurm.conf"), process(12, "sh"), process(13),
        process(os.getpid(), f"{registry}/ab1/x"), process(14, f"{registry}/ab2/x", "y" * 200),
    ])  # fmt: skip
    monkeypatch.setattr(
        network, "links", lambda id: {"ab1": ["gas-ab1"], "*": ["gas-1", "gas-2"]}[id]
    )
    assert cleanup.leftovers("ab1", registry=registry) == [
        f"folder {registry}/ab1", f"cgroup {host.cgroups}/gpu-acceptance-ab1", "link gas-ab1",
        f"mount {registry}/ab1/a",
        f"process 11 {f'slurmd -f {registry}/ab1/slurm.conf'[:100]}",
    ]  # fmt: skip
    every = cleanup.leftovers(registry=registry)
    assert [line.split()[0] for line in every] == [
        "folder", "folder", "cgroup", "cgroup", "link", "link", "mount", "process", "process"
    ]  # fmt: skip
    assert len(every[-1]) < 130
    shutil.rmtree(registry / "ab1")
    assert cleanup.leftovers("ab1", registry=registry)[0].startswith("cgroup")


# --- the process that outlives the owner


def test_a_cleanup_process_takes_it_down_unless_it_is_dismissed(tmp_path, monkeypatch):
    started = Calls("the process")
    with monkeypatch.context() as patch:
        patch.setattr(cleanup.subprocess, "Popen", started)
        assert cleanup.start_cleanup_process(parts.state(tmp_path / "ab1")) == "the process"
    argv, more = started[0]
    assert argv[-3:] == ["down", "--id", "ab1"]
    assert argv[4:7] == [sys.executable, "-m", "fixtures.sandbox"]
    assert argv[7:9] == ["--state-dir", str(tmp_path)]
    assert (more["cwd"], more["start_new_session"]) == (CHECKOUT, True)
    for dismissed in (True, False):
        trace = tmp_path / f"trace-{dismissed}"
        argv = ["sh", "-c", argv[2], "sh", "touch", str(trace)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, text=True) as process:
            if dismissed:
                cleanup.stop_cleanup_process(process)
        assert trace.exists() is not dismissed
