"""The faulty filesystem, request by request: what each fault changes, and what it leaves alone."""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
import time
from pathlib import Path

import pytest

from fixtures.sandbox import faulty_filesystem, fuse
from fixtures.sandbox.faulty_filesystem import FaultyFilesystem
from fixtures.sandbox.fuse import Unanswered
from tests.selftests.sandbox.parts import Calls, faked

pytestmark = pytest.mark.cpu

ENTRY, ATTRIBUTES = 40, 16
"""Bytes before struct fuse_attr in struct fuse_entry_out and in struct fuse_attr_out."""


class Node:
    """The requests of one node, packed as the kernel packs them."""

    def __init__(self, folder: Path, fault: str = "none") -> None:
        self.folder = folder
        self.made = FaultyFilesystem(os.open(folder, os.O_PATH | os.O_DIRECTORY), fault)

    def __call__(self, request: str, body: bytes, node: int = 1, uid: int = 0) -> bytes:
        return getattr(self.made, request)(node, uid, memoryview(body))

    def lookup(self, name: str, node: int = 1) -> tuple[int, int]:
        """Node id and size."""
        reply = self("lookup", name.encode() + b"\0", node)
        return struct.unpack_from("<Q", reply)[0], fuse.ATTR.unpack_from(reply, ENTRY)[1]

    def size(self, node: int, handle: int | None = None) -> int:
        body = struct.pack("<IIQ", int(handle is not None), 0, handle or 0)
        return fuse.ATTR.unpack_from(self("getattr", body, node), ATTRIBUTES)[1]

    def open(self, name: str, flags: int = os.O_RDONLY, node: int = 1) -> int:
        reply = self("open", struct.pack("<II", flags, 0), self.lookup(name, node)[0])
        return struct.unpack_from("<Q", reply)[0]

    def create(self, name: str, flags: int = os.O_RDWR, node: int = 1) -> int:
        body = struct.pack("<4I", flags, 0o666, 0o022, 0) + name.encode() + b"\0"
        return struct.unpack_from("<Q", self("create", body, node), ENTRY + fuse.ATTR.size)[0]

    def read(self, handle: int, size: int = 4096, offset: int = 0) -> bytes:
        return self("read", fuse.IO_IN.pack(handle, offset, size, 0, 0, 0, 0))

    def write(self, handle: int, data: bytes, offset: int = 0) -> int:
        body = fuse.IO_IN.pack(handle, offset, len(data), 0, 0, 0, 0) + data
        return struct.unpack("<II", self("write", body))[0]

    def lock(self, handle: int, kind: int) -> bytes:
        return self("setlk", fuse.LOCK_IN.pack(handle, 0, 0, 0, kind, 0, 0, 0))


@pytest.fixture
def naps(monkeypatch) -> Calls:
    """What it slept, without the sleep."""
    slept = Calls()
    monkeypatch.setattr(faulty_filesystem, "time", faked(time, sleep=slept))
    return slept


# --- without a fault


def test_names_keep_their_ids_and_lead_to_files_in_folders(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"12345")
    node = Node(tmp_path)
    a = node.lookup("a")[0]
    b = node.lookup("b", a)[0]
    file, size = node.lookup("file", b)
    assert len({1, a, b, file}) == 4
    assert (size, node.size(file)) == (5, 5)
    assert node.lookup("file", b)[0] == file
    with pytest.raises(FileNotFoundError):
        node.lookup("file")


def test_a_file_is_created_written_read_truncated_and_closed(tmp_path):
    node = Node(tmp_path)
    handle = node.create("new")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o644
    assert node.write(handle, b"hello world") == 11
    assert node.write(handle, b"HE") == 2
    assert node.read(handle) == b"HEllo world"
    assert node.read(handle, 3, 2) == b"llo"
    file = node.lookup("new")[0]
    mode_and_size = fuse.SETATTR_IN.pack(1 | 8, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0o600, 0, 0, 0, 0)
    reply = fuse.ATTR.unpack_from(node("setattr", mode_and_size, file), ATTRIBUTES)
    assert (reply[1], stat.S_IMODE(reply[9])) == (4, 0o600)
    assert (tmp_path / "new").read_bytes() == b"HEll"
    asked = struct.pack("<QII", handle, 0, 0)
    assert node("flush", asked) == node("fsync", asked) == node("release", asked) == b""
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


def test_a_file_that_another_user_creates_is_that_users(tmp_path, monkeypatch):
    given = Calls()
    monkeypatch.setattr(faulty_filesystem, "os", faked(os, fchown=given))
    node = Node(tmp_path)
    body = struct.pack("<4I", os.O_RDWR, 0o666, 0, 0)
    node("create", body + b"theirs\0", uid=1000)
    node("create", body + b"roots\0", uid=0)
    assert [call[1:] for call in given] == [(1000, -1)]


def test_folders_are_made_listed_renamed_and_removed(tmp_path):
    node = Node(tmp_path)
    made = node("mkdir", struct.pack("<II", 0o777, 0o027) + b"d\0")
    d = struct.unpack_from("<Q", made)[0]
    assert stat.S_IMODE(fuse.ATTR.unpack_from(made, ENTRY)[9]) == 0o750
    node.create("x", node=d)
    assert node("opendir", b"") == fuse.open_out(0)
    page = node("readdir", fuse.IO_IN.pack(0, 0, 4096, 0, 0, 0, 0), d)
    assert page == fuse.dirents([((tmp_path / "d" / "x").stat().st_ino, "x", 8)], 0, 4096)
    assert node("releasedir", b"") == node("access", b"") == b""
    x = node.lookup("x", d)[0]
    assert node("rename", struct.pack("<Q", 1) + b"x\0y\0", d) == b""
    assert node.lookup("y") == (x, 0)
    assert node.size(x) == 0
    assert node("rename2", struct.pack("<QII", d, 0, 0) + b"y\0z\0") == b""
    assert (tmp_path / "d" / "z").exists()
    with pytest.raises(OSError, match="flags") as refused:
        node("rename2", struct.pack("<QII", d, 1, 0) + b"y\0z\0")
    assert refused.value.errno == errno.EINVAL
    assert node("unlink", b"z\0", d) == b""
    assert node("rmdir", b"d\0") == b""
    assert list(tmp_path.iterdir()) == []


def test_an_open_file_of_ones_own_has_attributes_when_its_name_is_gone(tmp_path):
    node = Node(tmp_path)
    handle = node.create("mine")
    node.write(handle, b"123")
    file = node.lookup("mine")[0]
    assert node.size(file, 4711) == 3  # a handle that was closed meanwhile
    (tmp_path / "mine").unlink()
    assert node.size(file, handle) == 3
    with pytest.raises(FileNotFoundError):
        node.size(file)


def test_locks_exclude_each_other_until_they_are_given_back(tmp_path):
    (tmp_path / "lock").touch()
    shared, exclusive, unlock = 0, 1, 2
    node = Node(tmp_path)
    first, second = node.open("lock"), node.open("lock")
    assert node.lock(first, exclusive) == b""
    with pytest.raises(BlockingIOError):
        node.lock(second, shared)
    assert node.lock(first, unlock) == b""
    assert node.lock(second, exclusive) == b""
    free = Node(tmp_path, "free-locks")
    assert free.lock(free.open("lock"), exclusive) == b""


# --- faults of content and names


def test_a_stale_node_sees_what_it_first_saw(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "theirs").write_bytes(b"old")
    stale, fresh = Node(tmp_path, "stale"), Node(tmp_path)
    handles = [node.open("theirs") for node in (stale, fresh)]
    (tmp_path / "theirs").write_bytes(b"changed")
    assert [n.lookup("theirs")[1] for n in (stale, fresh)] == [3, 7]
    assert [n.read(h) for n, h in zip((stale, fresh), handles, strict=True)] == [b"old", b"changed"]
    assert stale.read(handles[0], 1, 1) == b"l"
    file = stale.lookup("theirs")[0]
    assert stale.size(file, handles[0]) == 3
    assert stale.lookup("sub")[0] != file  # a folder has no content to keep


def test_a_stale_node_sees_what_it_writes_itself(tmp_path):
    (tmp_path / "theirs").write_bytes(b"old")
    node = Node(tmp_path, "stale")
    reader = node.open("theirs")
    writer = node.open("theirs", os.O_WRONLY)
    node.write(writer, b"written here")
    assert node.lookup("theirs")[1] == 12
    assert node.read(reader) == b"written here"
    own = node.create("own")
    node.write(own, b"mine")
    assert node.read(own) == b"mine"
    assert node.size(node.lookup("own")[0], own) == 4


def test_a_file_of_another_node_is_late_by_a_second_and_a_half(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(faulty_filesystem, "time", faked(time, monotonic=lambda: now[0]))
    (tmp_path / "theirs").write_bytes(b"1")
    node = Node(tmp_path, "late")
    for now[0] in (100.0, 101.25):
        with pytest.raises(FileNotFoundError):
            node.lookup("theirs")
    now[0] = 101.5
    assert node.lookup("theirs")[1] == 1
    node.create("mine")
    assert node.lookup("mine")[1] == 0


def test_every_fourth_append_is_lost_and_reported_as_written(tmp_path):
    for fault, left in (("lost-append", b"123567"), ("none", b"12345678")):
        node = Node(tmp_path, fault)
        handle = node.create(fault, os.O_WRONLY | os.O_APPEND)
        assert [node.write(handle, b"%d" % k) for k in range(1, 9)] == [1] * 8
        assert (tmp_path / fault).read_bytes() == left
    node = Node(tmp_path, "lost-append")
    handle = node.create("in-place")
    for k in range(8):
        node.write(handle, b"x", k)
    assert (tmp_path / "in-place").read_bytes() == b"x" * 8


def test_one_bit_of_large_writes_is_flipped(tmp_path):
    node, healthy = Node(tmp_path, "corrupt"), Node(tmp_path)
    large = b"\x40" * (64 * 1024)
    assert node.write(node.create("large"), large) == len(large)
    assert (tmp_path / "large").read_bytes() == b"\x41" + large[1:]
    node.write(node.create("small"), large[1:])
    assert (tmp_path / "small").read_bytes() == large[1:]
    healthy.write(healthy.create("healthy"), large)
    assert (tmp_path / "healthy").read_bytes() == large


def test_a_full_filesystem_and_a_used_quota_refuse_writes(tmp_path):
    for fault, number in (("full", errno.ENOSPC), ("quota", errno.EDQUOT)):
        node = Node(tmp_path, fault)
        with pytest.raises(OSError, match=os.strerror(number)) as refused:
            node.write(node.create(fault), b"x")
        assert refused.value.errno == number


def test_what_statfs_says_of_space(tmp_path, monkeypatch):
    real = os.statvfs_result((4096, 4096, 1000, 500, 400, 60, 50, 40, 0, 255))
    monkeypatch.setattr(faulty_filesystem, "os", faked(os, fstatvfs=lambda _: real))
    for fault, blocks in (
        ("none", (1000, 500, 400)), ("full", (1000, 0, 0)), ("small", (10, 5, 4)),
        ("quota", (1000, 500, 400)),
    ):  # fmt: skip
        reply = fuse.STATFS_OUT.unpack(Node(tmp_path, fault)("statfs", b""))
        assert reply[:3] == blocks, fault
        assert reply[3:8] == (60, 50, 4096, 255, 4096)


# --- faults of speed, and requests without an answer


def test_only_the_slow_operation_is_slow(tmp_path, naps):
    for fault, expected in (
        ("none", []), ("slow-names", [(0.02,)]), ("slow-writes", [(0.2,)]), ("slow-reads", [(0.4,)])
    ):  # fmt: skip
        naps.clear()
        node = Node(tmp_path, fault)
        handle = node.create(f"of-{fault}")
        node.write(handle, b"x" * 2**19)
        node.read(handle, 2**20)
        assert naps == expected, fault


def test_writes_are_slow_while_other_nodes_write_to_the_same_folder(tmp_path, naps, monkeypatch):
    (tmp_path / "sub").mkdir()
    monkeypatch.setattr(faulty_filesystem, "time", faked(time, sleep=naps, time=lambda: 1000.0))
    crowded, calm = Node(tmp_path, "crowded"), Node(tmp_path)
    for age, slow in ((0.0625, True), (0.125, False)):
        for node in (crowded, calm):
            naps.clear()
            sub = node.lookup("sub")[0]
            handle = node.create(f"mine-{age}", node=sub)
            os.utime(tmp_path / "sub" / f"mine-{age}", (1000, 1000))
            theirs = tmp_path / "sub" / "theirs"
            theirs.touch()
            os.utime(theirs, (1000 - age, 1000 - age))
            for other in set(tmp_path.glob("sub/mine-*")) - {tmp_path / "sub" / f"mine-{age}"}:
                other.unlink()
            node.write(handle, b"x" * 2**20)
            assert naps == ([(0.4,)] if slow and node is crowded else []), age


def test_who_writes_in_another_folder_is_no_crowd(tmp_path, naps, monkeypatch):
    monkeypatch.setattr(faulty_filesystem, "time", faked(time, sleep=naps, time=lambda: 1000.0))
    (tmp_path / "sub").mkdir()
    (tmp_path / "busy").touch()
    os.utime(tmp_path / "busy", (1000, 1000))
    node = Node(tmp_path, "crowded")
    handle = node.create("mine", node=node.lookup("sub")[0])
    node.write(handle, b"x")
    assert naps == []
    node.write(node.create("beside"), b"x" * 2**20)
    assert naps == [(0.4,)]


def test_a_node_s_own_files_in_the_covered_folder_are_no_crowd(tmp_path, naps, monkeypatch):
    monkeypatch.setattr(faulty_filesystem, "time", faked(time, sleep=naps, time=lambda: 1000.0))
    node = Node(tmp_path, "crowded")
    for name in ("mine", "mine too"):
        node.write(node.create(name), b"x")
    assert naps == []


def test_a_hung_server_answers_no_open_and_a_stuck_one_no_fsync(tmp_path):
    (tmp_path / "file").touch()
    hung, stuck = Node(tmp_path, "hang"), Node(tmp_path, "stuck")
    for request in (lambda: hung.open("file"), lambda: hung.create("new")):
        with pytest.raises(Unanswered):
            request()
    handle = stuck.open("file")
    stuck.create("new")
    with pytest.raises(Unanswered):
        stuck("fsync", struct.pack("<QII", handle, 0, 0))


# --- the program


@pytest.mark.parametrize(
    ("fault", "flock", "interruptible"),
    [("none", True, True), ("local-locks", False, True), ("stuck", True, False)],
)
def test_the_program_serves_until_its_input_ends(
    fault, flock, interruptible, tmp_path, monkeypatch, capsys
):
    seen = []

    class Mounted:
        def __init__(self, target: str, *, flock: bool) -> None:
            seen.append((target, flock))

        def serve(self, handlers, *, until_eof: int, interruptible: bool) -> None:
            seen.append((handlers.fault, until_eof, interruptible))
            raise KeyboardInterrupt

        def close(self) -> None:
            seen.append("closed")

    monkeypatch.setattr(fuse, "Connection", Mounted)
    monkeypatch.setattr(faulty_filesystem, "os", faked(os, umask=lambda mask: seen.append(mask)))
    monkeypatch.setattr(sys, "argv", ["faulty", str(tmp_path), fault])
    faulty_filesystem.main()
    assert seen == [0, (str(tmp_path), flock), (fault, 0, interruptible), "closed"]
    assert capsys.readouterr().out == "ready\n"
