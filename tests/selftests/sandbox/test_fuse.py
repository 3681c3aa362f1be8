"""The FUSE protocol without a kernel: numbers and layouts of its header, replies, interrupts."""

from __future__ import annotations

import errno
import os
import socket
import struct
from types import SimpleNamespace

import pytest

from fixtures.sandbox import fuse
from fixtures.sandbox.fuse import Connection, Unanswered
from tests.selftests.sandbox.parts import Calls, faked

pytestmark = pytest.mark.cpu

NUMBERS = {
    "lookup": 1, "getattr": 3, "setattr": 4, "mkdir": 9, "unlink": 10, "rmdir": 11, "rename": 12,
    "open": 14, "read": 15, "write": 16, "statfs": 17, "release": 18, "fsync": 20, "flush": 25,
    "opendir": 27, "readdir": 28, "releasedir": 29, "setlk": 32, "setlkw": 33, "access": 34,
    "create": 35, "rename2": 45,
}  # fmt: skip
"""enum fuse_opcode of include/uapi/linux/fuse.h."""
FORGET, INIT, INTERRUPT, BATCH_FORGET = 2, 26, 36, 42


class Handlers:
    """Answers every request with its name; some never, some with an error."""

    def __init__(self, **errors: Exception) -> None:
        self.errors = errors
        self.seen: list[tuple[str, int, int, bytes]] = []

    def __getattr__(self, name: str):
        if name not in NUMBERS:
            raise AttributeError(name)

        def handler(node: int, uid: int, body: memoryview) -> bytes:
            self.seen.append((name, node, uid, bytes(body)))
            if name in self.errors:
                raise self.errors[name]
            return name.encode()

        return handler


def request(opcode: int, unique: int = 7, body: bytes = b"", node: int = 5, uid: int = 1000):
    return struct.pack("<IIQQIIII", 40 + len(body), opcode, unique, node, uid, 0, 0, 0) + body


@pytest.fixture
def kernel():
    """The kernel's end of the connection, and ours without a mount."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.setblocking(False)
    ours = Connection.__new__(Connection)
    ours._fd = there.fileno()
    ours._flags = fuse.FLAGS
    ours._unanswered = set()
    yield here, ours
    here.close()
    there.close()


def replies(here: socket.socket) -> list[tuple[int, int, bytes]]:
    """Request, error and body of what was answered."""
    found = []
    while True:
        try:
            text = here.recv(4096)
        except BlockingIOError:
            return found
        size, number, unique = struct.unpack_from("<IiQ", text)
        assert size == len(text)
        found.append((unique, -number, text[16:]))


def test_each_request_reaches_the_handler_of_its_number(kernel):
    here, ours = kernel
    handlers = Handlers()
    for name, number in NUMBERS.items():
        ours._handle(handlers, memoryview(request(number, body=b"body")), True)
        assert replies(here) == [(7, 0, name.encode())]
        assert handlers.seen.pop() == (name, 5, 1000, b"body")
    ours._handle(handlers, memoryview(request(99)), True)
    ours._handle(SimpleNamespace(), memoryview(request(1)), True)
    assert replies(here) == [(7, errno.ENOSYS, b"")] * 2


def test_an_error_of_a_handler_is_the_answer(kernel):
    here, ours = kernel
    handlers = Handlers(read=OSError(errno.ENOSPC, "full"), write=OSError())
    for name in ("read", "write"):
        ours._handle(handlers, memoryview(request(NUMBERS[name])), True)
    assert replies(here) == [(7, errno.ENOSPC, b""), (7, errno.EIO, b"")]


def test_what_is_forgotten_is_not_answered(kernel):
    here, ours = kernel
    for number in (FORGET, BATCH_FORGET):
        ours._handle(Handlers(), memoryview(request(number, body=bytes(8))), True)
    assert replies(here) == []


def test_an_interrupt_ends_a_request_that_is_never_answered(kernel):
    here, ours = kernel
    handlers = Handlers(open=Unanswered())
    ours._handle(handlers, memoryview(request(NUMBERS["open"], 11)), True)
    assert replies(here) == []
    for interruptible, unique, expected in (
        (False, 11, []), (True, 12, []), (True, 11, [(11, errno.EINTR, b"")]), (True, 11, []),
    ):  # fmt: skip
        interrupt = request(INTERRUPT, 12, struct.pack("<Q", unique))
        ours._handle(handlers, memoryview(interrupt), interruptible)
        assert replies(here) == expected


def test_what_is_announced_to_the_kernel(kernel):
    here, ours = kernel
    offered = 2**32 - 1
    for flags, agreed in (
        (fuse.FLAGS, 1 << 0 | 1 << 3 | 1 << 5 | 1 << 22),
        (fuse.FLAGS | fuse.FLOCK_LOCKS, 1 << 0 | 1 << 3 | 1 << 5 | 1 << 10 | 1 << 22),
    ):
        ours._flags = flags
        body = struct.pack("<4I", 7, 40, 4096, offered)
        ours._handle(Handlers(), memoryview(request(INIT, body=body)), True)
        ((_, number, body),) = replies(here)
        major, minor, readahead, said = struct.unpack_from("<4I", body)
        max_write, pages = struct.unpack_from("<I", body, 20)[0], struct.unpack_from("<H", body, 28)
        assert (number, major, minor, readahead, said) == (0, 7, 31, 4096, agreed)
        assert (max_write, pages[0], len(body)) == (2**20, 2**20 // 4096, 64)


# --- serving


def test_it_serves_until_its_input_ends(kernel):
    here, ours = kernel
    reader, writer = os.pipe()
    os.write(writer, b"not the end")
    os.close(writer)
    here.send(request(NUMBERS["lookup"]))
    here.close()
    handlers = Handlers()
    ours.serve(handlers, until_eof=reader, interruptible=True)
    os.close(reader)
    assert [name for name, *_ in handlers.seen] == ["lookup"]


def test_it_serves_until_it_is_unmounted(kernel, monkeypatch):
    _, ours = kernel
    reads = [
        *(OSError(number, "read") for number in (errno.EINTR, errno.EAGAIN, errno.ENOENT)),
        request(NUMBERS["open"]), OSError(errno.ENODEV, "unmounted"),
    ]  # fmt: skip

    def read(descriptor: int, size: int) -> bytes:
        assert (descriptor, size) == (ours._fd, 2**20 + 4096)
        found = reads.pop(0)
        if isinstance(found, OSError):
            raise found
        return found

    polled = SimpleNamespace(register=lambda *_: None, poll=lambda: [(ours._fd, 1)])
    monkeypatch.setattr(fuse, "select", SimpleNamespace(poll=lambda: polled, POLLIN=1))
    monkeypatch.setattr(fuse, "os", faked(os, read=read))
    handlers = Handlers()
    ours.serve(handlers, until_eof=0, interruptible=True)
    assert [name for name, *_ in handlers.seen] == ["open"]
    assert reads == []


@pytest.mark.parametrize(("flock", "locks"), [(True, 1 << 10), (False, 0)])
def test_a_mount_names_its_descriptor_and_whether_locks_are_ours(monkeypatch, flock, locks):
    mounts, unmounts, closed = Calls(0), Calls(0), Calls()
    libc = SimpleNamespace(mount=mounts, umount2=unmounts)
    monkeypatch.setattr(fuse, "os", faked(os, open=lambda *_: 77, close=closed))
    monkeypatch.setattr(fuse, "ctypes", SimpleNamespace(CDLL=lambda *_, **__: libc))
    made = Connection("/target", flock=flock)
    ((kind, target, name, _, options),) = mounts
    assert (kind, target, name) == (b"faulty", b"/target", b"fuse")
    assert options.decode().startswith("fd=77,")
    assert made._flags & (1 << 10) == locks
    made.close()
    detach = 2  # MNT_DETACH of umount(2)
    assert (unmounts, closed) == ([(b"/target", detach)], [(77,)])


def test_a_mount_that_is_refused_says_why(monkeypatch):
    libc = SimpleNamespace(mount=lambda *_: -1)
    monkeypatch.setattr(fuse, "os", faked(os, open=lambda *_: 77))
    ctypes = SimpleNamespace(CDLL=lambda *_, **__: libc, get_errno=lambda: errno.EPERM)
    monkeypatch.setattr(fuse, "ctypes", ctypes)
    with pytest.raises(PermissionError, match="mount: Operation not permitted: '/target'"):
        Connection("/target", flock=True)


# --- layouts


def test_attributes_and_entries_are_laid_out_as_in_the_header(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    os.utime(tmp_path / "file", ns=(3 * 10**9 + 5, 4 * 10**9 + 6))
    status = (tmp_path / "file").stat()
    attributes = fuse.attr(status)
    fields = struct.unpack("<6Q10I", attributes)
    assert fields[:2] == (status.st_ino, 5)
    assert (*fields[3:5], *fields[6:8]) == (3, 4, 5, 6)
    assert fields[9:13] == (status.st_mode, 1, status.st_uid, status.st_gid)
    assert fuse.attr_out(status) == bytes(16) + attributes
    entry = fuse.entry_out(9, status)
    assert entry[40:] == attributes
    assert struct.unpack_from("<5Q", entry) == (9, 1, 0, 0, 0)
    direct_io = 1  # FOPEN_DIRECT_IO
    assert struct.unpack("<QII", fuse.open_out(12)) == (12, direct_io, 0)


def test_names_end_with_a_zero_byte():
    assert fuse.decode_names(memoryview(b"old\0new name\0")) == ["old", "new name"]
    assert fuse.decode_names(memoryview(b"")) == []


def test_a_page_of_a_folder_has_the_entries_that_fit():
    entries = [(11, "a", 8), (12, "b", 4), (13, "longer-name", 8)]
    one = struct.pack("<QQII", 11, 1, 1, 8) + b"a" + bytes(7)
    two = struct.pack("<QQII", 12, 2, 1, 4) + b"b" + bytes(7)
    three = struct.pack("<QQII", 13, 3, 11, 8) + b"longer-name" + bytes(5)
    for offset, size, page in (
        (0, 31, b""), (0, 32, one), (0, 63, one), (0, 64, one + two), (0, 4096, one + two + three),
        (1, 4096, two + three), (3, 4096, b""),
    ):  # fmt: skip
        assert fuse.dirents(entries, offset, size) == page, (offset, size)
