"""The state of a sandbox: names that are derived from it, its file, who owns it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from fixtures.sandbox import cleanup
from fixtures.sandbox import state as module
from fixtures.sandbox.errors import SandboxError
from fixtures.sandbox.state import check_names, load, locked, make_folder, new_id, running
from tests.selftests.sandbox.parts import DEAD, living, state

pytestmark = pytest.mark.cpu


def test_names_and_addresses_of_nodes(tmp_path):
    found = state(tmp_path / "ab1", nodes=2)
    assert found.names == ["worker0", "worker1"]
    assert (found.bridge, found.veth("worker1")) == ("gas-ab1", "gas-ab1.1")
    assert found.address() == "198.18.7.1"
    assert [found.address(name) for name in found.names] == ["198.18.7.2", "198.18.7.3"]
    assert found.node_home("worker1") == tmp_path / "ab1" / "nodes" / "worker1"
    found.light = True  # its nodes have no addresses of their own
    assert found.address("worker1") == "198.18.7.1"


def test_a_node_that_is_none_is_refused_with_those_there_are(tmp_path):
    found = state(tmp_path / "ab1", nodes=8)
    assert [found.index(f"worker{k}") for k in range(8)] == list(range(8))
    for name in ("worker8", "worker07", "worker", "7", "workerx", "worker-1"):
        with pytest.raises(SandboxError, match=r"sandbox ab1 has no node .*; it has worker0, w.*7"):
            found.index(name)
    with pytest.raises(SandboxError, match=r", worker6, worker7$"):
        found.index("worker8")
    found.nodes = 9
    with pytest.raises(SandboxError, match=r"it has worker0, \.\.\., worker8$"):
        found.index("worker9")


def test_a_sandbox_is_ownerless_once_its_owner_or_its_boot_is_over(tmp_path):
    for owner, boot, ownerless in (
        (None, None, False), (living(), None, False), (DEAD, None, True),
        (living(), "another", True), (None, "another", True),
    ):  # fmt: skip
        found = state(tmp_path / "ab1", owner=owner)
        found.boot = boot or found.boot
        assert found.ownerless is ownerless, (owner, boot)


def test_the_boot_id_is_that_of_the_kernel():
    assert module.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_state_is_read_as_it_was_written(tmp_path):
    for name, more in (
        ("ab1", {"owner": living(), "bundle": Path("/a/bundle"), "site": {"slurm": "X=1"}}),
        ("ab2", {"owner": None, "bundle": None, "gpu_uuids": {"worker0": ["GPU-1"]}}),
    ):
        found = state(tmp_path / name, **more)
        found.save()
        assert load(tmp_path / name) == found
    assert (tmp_path / "ab1" / "state.json").stat().st_mode & 0o777 == 0o644


def test_a_broken_or_missing_state_is_refused_and_is_no_running_sandbox(tmp_path):
    state(tmp_path / "ab1").save()
    state(tmp_path / "ab2").save()
    (tmp_path / "ab2" / "state.json").write_text("{")
    (tmp_path / "ab3").mkdir()
    for name in ("ab2", "ab3"):
        with pytest.raises(SandboxError, match=name):
            load(tmp_path / name)
    assert [found.id for found in running(tmp_path)] == ["ab1"]
    assert running(tmp_path / "nothing") == []


def test_folders_can_be_entered_by_everybody_whatever_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        made = make_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert made == tmp_path / "a" / "b"
    assert {p.stat().st_mode & 0o777 for p in (made, made.parent)} == {0o755}
    made.chmod(0o700)
    assert make_folder(made).stat().st_mode & 0o777 == 0o700  # one that is there stays as it is


def test_paths_and_ids_fit_into_sockets_and_interfaces():
    """A Unix socket has 107 bytes, of which Slurm's longest name takes 58; an interface has 15."""
    longest = 107 - 58
    check_names(Path("/" + "x" * (longest - 1)), None)
    with pytest.raises(SandboxError, match="at most 49 characters"):
        check_names(Path("/" + "x" * longest), None)
    widest = "a" * (15 - len("gas-.249"))
    for name in (widest, "7"):
        check_names(Path("/run"), name)
    for name in (widest + "a", "", "Ab1", "a-b", "ab1\n"):
        with pytest.raises(SandboxError, match="1 to 7 small letters and digits"):
            check_names(Path("/run"), name)


def test_a_new_id_is_none_that_is_there_or_whose_bridge_is(tmp_path, monkeypatch):
    words = iter(["aaaaaa", "bbbbbb", "cccccc"])
    monkeypatch.setattr(module.secrets, "token_hex", lambda n: next(words))
    monkeypatch.setattr(module, "Path", lambda _: tmp_path / "net")  # for /sys/class/net
    (tmp_path / "aaaaa").mkdir()
    (tmp_path / "net" / "gas-bbbbb").mkdir(parents=True)
    assert new_id(tmp_path, None) == "ccccc"


def test_an_id_is_given_once(tmp_path):
    assert new_id(tmp_path, "ab1") == "ab1"
    first = new_id(tmp_path, None)
    assert len(first) == 5
    check_names(Path("/run"), first)
    (tmp_path / "ab1").mkdir()
    with pytest.raises(SandboxError, match="a sandbox ab1 is there"):
        new_id(tmp_path, "ab1")


def test_a_lock_excludes_others_until_its_context_ends(tmp_path):
    other = os.open(tmp_path, os.O_RDONLY)
    try:
        with locked(tmp_path), pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(other)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def of_another_user(home: Path) -> None:
    os.chown(home / "state.json", 65534, -1)


def linked(home: Path) -> None:
    (home / "state.json").rename(home.parent.parent / "elsewhere.json")
    (home / "state.json").symlink_to(home.parent.parent / "elsewhere.json")


CHANGES = {
    "its file belongs to another user": of_another_user,
    "its folder belongs to another user": lambda home: os.chown(home, 65534, -1),
    "the registry belongs to another user": lambda home: os.chown(home.parent, 65534, -1),
    "all users can write its file": lambda home: (home / "state.json").chmod(0o666),
    "a group can write its folder": lambda home: home.chmod(0o775),
    "all users can write the registry": lambda home: home.parent.chmod(0o777),
    "its file is a link": linked,
}


@as_root
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_root_believes_no_state_that_another_user_could_have_written(tmp_path, change):
    home = tmp_path / "registry" / "ab1"
    state(home).save()
    assert load(home).id == "ab1"
    change(home)
    with pytest.raises(SandboxError, match="root takes no sandbox from a folder that") as refused:
        load(home)
    assert "\n" not in str(refused.value)


@as_root
def test_root_neither_sweeps_nor_removes_nor_lists_in_the_folder_of_another_user(tmp_path):
    home = tmp_path / "registry" / "ab1"
    state(home).save()
    os.chown(home.parent, 65534, -1)
    for act in (
        lambda: cleanup.sweep(home.parent), lambda: cleanup.remove(home),
        lambda: running(home.parent),
    ):  # fmt: skip
        with pytest.raises(SandboxError, match="belongs to the user with id 65534"):
            act()
    assert (home / "state.json").exists()


@as_root
def test_a_folder_with_the_sticky_bit_may_hold_the_registry(tmp_path):
    home = tmp_path / "registry" / "ab1"
    state(home).save()
    tmp_path.chmod(0o1777)
    assert load(home).id == "ab1"


def test_another_user_reads_any_state(tmp_path, monkeypatch):
    home = tmp_path / "ab1"
    state(home).save()
    home.chmod(0o777)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert load(home).id == "ab1"
