"""The operations of the probe's child, called in this process on ordinary files."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import random
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.workloads.filesystem import filesystem_child as child

pytestmark = pytest.mark.cpu

PACE = {"streams": 2, "seconds": 0.0, "least": 2, "hold": False}


def test_short_file_is_no_rate(tmp_path: Path):
    (tmp_path / "shard.0").write_bytes(b"x" * 1000)
    pace = {"streams": 1, "seconds": 0.1, "least": 1, "hold": False}
    with pytest.raises(OSError, match="1000 could be read"):
        child.read_shards(str(tmp_path / "shard"), 1 << 20, 0, pace)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> bytearray:
    found = bytearray(child.SLOTS * child.SLOT_BYTES)
    monkeypatch.setattr(child, "_memory", found)
    return found


def test_a_call_stands_in_its_thread_s_slot_while_it_runs(memory: bytearray):
    def look(slot: int) -> tuple[int, bytes]:
        at = slot * 64
        count = int.from_bytes(memory[at : at + 8], "little")
        return count, bytes(memory[at + 8 : at + 64]).strip()

    assert child.call("stat", look, 0) == (1, b"stat")
    assert child.call("open", look, 0) == (2, b"open")
    assert look(0) == (2, b"")
    found: list[Any] = []
    child._run_streams(1, lambda k: found.append(child.call("read", look, 1)))
    assert found == [(1, b"read")]
    with pytest.raises(FileNotFoundError) as failed:
        child.call("unlink", os.unlink, "/no/such/file")
    assert failed.value.__notes__ == ["unlink"]
    assert (child.SLOTS, child.SLOT_BYTES) == (16, 64), "a slot for every stream, and for the name"


def test_without_a_parent_a_call_is_only_made():
    assert child.call("add", lambda a, b: a + b, 1, b=2) == 3


def described(monkeypatch: pytest.MonkeyPatch, path: str, *mounts: str) -> dict[str, Any]:
    lines = "\n".join(f"1 2 0:3 / {mount}" for mount in mounts)
    monkeypatch.setattr(child.Path, "read_text", lambda *_, **__: lines)
    monkeypatch.setattr(child.os.path, "realpath", lambda _: path)
    monkeypatch.setattr(
        child.os, "stat",
        lambda _: SimpleNamespace(st_ino=7, st_dev=os.makedev(8, 1)),
    )  # fmt: skip
    monkeypatch.setattr(
        child.os, "statvfs",
        lambda _: SimpleNamespace(f_fsid=255, f_blocks=10, f_bavail=4, f_frsize=512),
    )  # fmt: skip
    return child.describe("/given")


def test_a_directory_is_described_by_the_deepest_and_last_mount_above_it(
    monkeypatch: pytest.MonkeyPatch,
):
    mounts = (
        "/ rw - ext4 /dev/a rw", "/d rw,x shared:1 - nfs s:/one rw,hard", "/d/e rw - tmpfs t rw",
        "/d ro - nfs4 s:/two", "/with\\040space rw - tmpfs u rw",
    )  # fmt: skip
    with monkeypatch.context() as patch:
        found = described(patch, "/d/deep", *mounts)
        assert found == {
            "mount": "/d", "type": "nfs4", "source": "s:/two", "options": "ro", "inode": 7,
            "device": "8:1", "fsid": "ff", "bytes": 5120, "available": 2048,
        }  # fmt: skip
        assert described(patch, "/d", *mounts[:3])["options"] == "rw,x,rw,hard"
        assert described(patch, "/dd", *mounts)["mount"] == "/"
        assert described(patch, "/with space/x", *mounts)["source"] == "u"
        assert described(patch, "/other")["mount"] == ""


def test_a_file_is_written_in_place_or_replaced(tmp_path: Path):
    work = str(tmp_path / "work")
    child.arrive(work, "here", "one")
    child.arrive(work, "there", "two")
    path = f"{work}/here"
    inode = Path(path).stat().st_ino
    child.put(path, "longer text", mode=0o640)
    assert Path(path).stat().st_ino == inode
    child.put(path, "new", mode=0o600, replace=True)
    assert Path(path).stat().st_ino != inode
    assert sorted(p.name for p in Path(work).iterdir()) == ["here", "there"]
    assert child.see([{"path": path, "text": "new"}], 0)[0]["found"] == ""
    child.rename(path, f"{work}/moved")
    child.unlink(f"{work}/there")
    assert [p.name for p in Path(work).iterdir()] == ["moved"]
    child.remove(work)
    child.remove(work)
    assert list(tmp_path.iterdir()) == []


def test_what_differs_from_the_expectation_is_told(tmp_path: Path):
    path = str(tmp_path / "a")
    child.put(path, "text", mode=0o640)
    for expected, says in (
        ({"text": "text"}, ""), ({"text": "other"}, "has other content"),
        ({"gone": True}, "is still there"), ({"size": 4, "mode": 0o640}, ""),
        ({"size": 5, "mode": 0o640}, "has size 4, not 5"),
        ({"size": 4, "mode": 0o600}, "has mode 640, not 600"),
    ):  # fmt: skip
        assert child._difference({"path": path, **expected}) == says
    missing = {"path": str(tmp_path / "none")}
    assert child._difference({**missing, "gone": True}) == ""
    assert child._difference({**missing, "text": "x"}) == "is not there"
    assert child._difference({**missing, "size": 1, "mode": 1}) == "is not there"


def clock(monkeypatch: pytest.MonkeyPatch, step: float = 0.0) -> list[float]:
    """Time that passes while somebody sleeps, and by a step whenever it is asked for."""
    now = [0.0]

    def ask() -> float:
        now[0] += step
        return now[0]

    def sleep(seconds: float) -> None:
        now[0] += 1

    monkeypatch.setattr(child.time, "perf_counter", ask)
    monkeypatch.setattr(child.time, "monotonic", ask)
    monkeypatch.setattr(child.time, "sleep", sleep)
    return now


def test_files_are_waited_for_until_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    now = clock(monkeypatch)
    child.put(str(tmp_path / "a"), "text")
    wanted = [{"path": str(tmp_path / name), "text": "text"} for name in "ab"]
    first, second = child.see(wanted, timeout_s=3)
    assert (first["seconds"], first["found"]) == (0, "")
    assert (second["seconds"], second["found"]) == (None, "is not there")
    assert now[0] == 4, "one more look after the time is over"
    now[0] = 0
    assert child.see([wanted[0]], timeout_s=0)[0]["seconds"] == 0
    assert now[0] == 0


def test_appended_lines_are_counted_by_node(tmp_path: Path):
    path = str(tmp_path / "append")
    child.append(path, "n0", 3, 16)
    child.append(path, "n1", 2, 16)
    assert {len(line) for line in Path(path).read_text().splitlines()} == {15}
    with Path(path).open("a") as file:
        file.write("n2 0 .....\n")
    assert child.count(path, ["n0", "n1", "n2"], 3, 16) == {"n0": 3, "n1": 2, "n2": 0}


def test_a_lock_is_held_once_and_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = str(tmp_path / "lock")
    assert child.lock(path, "first") == {"granted": True}
    now = clock(monkeypatch)
    assert child.lock(path, "second") == {"granted": False}
    assert now[0] == 0
    assert child.lock(path, "second", timeout_s=2) == {"granted": False}
    assert now[0] == 2
    child.unlock("second")
    child.unlock("first")
    assert child.lock(path, "second") == {"granted": True}
    child.unlock("second")
    child.unlock("second")
    for number, found in (
        (errno.EAGAIN, {"granted": False}), (errno.EACCES, {"granted": False}),
        (errno.ENOLCK, {"granted": False, "refused": os.strerror(errno.ENOLCK)}),
    ):  # fmt: skip

        def refuses(*_: Any, number: int = number) -> None:
            raise OSError(number, "refused")

        monkeypatch.setattr(child.fcntl, "flock", refuses)
        assert child.lock(path, "third") == found
    assert child._locks == {}


def test_blocks_are_written_between_those_of_others_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = str(tmp_path / "blocks")
    ours = child.write_blocks(path, "seed/a", [0, 2], 100)
    theirs = child.write_blocks(path, "seed/b", [1], 100)
    assert len({*ours, *theirs}) == 3
    data = Path(path).read_bytes()
    assert data[200:] == random.Random("seed/a/2").randbytes(100)
    assert child.hash_blocks(path, [0, 1, 2], 100) == [ours[0], theirs[0], ours[1]]
    honest = os.pread
    monkeypatch.setattr(child.os, "pread", lambda fd, n, at: honest(fd, min(n, 7), at))
    assert child.hash_blocks(path, [1], 100) == theirs
    assert child.hash_blocks(path, [3], 100) == [hashlib.sha256(b"").hexdigest()]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write, pwrite = os.write, os.pwrite
    monkeypatch.setattr(child.os, "write", lambda fd, data: write(fd, data[:3]))
    monkeypatch.setattr(child.os, "pwrite", lambda fd, data, at: pwrite(fd, data[:3], at))
    child.put(str(tmp_path / "a"), "a longer text")
    assert (tmp_path / "a").read_text() == "a longer text"
    (digest,) = child.write_blocks(str(tmp_path / "b"), "s", [1], 10)
    assert hashlib.sha256((tmp_path / "b").read_bytes()[10:]).hexdigest() == digest


def test_bytes_of_a_round_fit_the_time_and_the_room():
    pace = {"seconds": 6.0, "least": 3, "streams": 2}
    mib = child.MIB
    for seconds_per_mib, largest, found in (
        (0.1, 100 * mib, 10), (0.1, 4 * mib, 4), (0.1, 4 * mib + 1, 4), (9.0, 100 * mib, 1),
        (0.1, 0, 1),
    ):  # fmt: skip
        assert child._bytes_per_round(seconds_per_mib, pace, largest) == found * 1048576


def test_rounds_go_on_until_there_are_enough_and_the_time_is_over(monkeypatch: pytest.MonkeyPatch):
    now = clock(monkeypatch)
    worked: list[int] = []

    def work(k: int) -> None:
        worked.append(k)
        now[0] += 0.5

    found = child._measure_rounds({**PACE, "seconds": 0.0, "least": 3}, 10**9, work)
    assert (found["size"], len(found["ended"])) == (10**9, 3)
    assert found["samples"] == [2.0] * 3, "two streams of 1 GB in a second"
    assert sorted(worked) == [0, 0, 0, 1, 1, 1]
    assert len(child._measure_rounds({**PACE, "seconds": 5.0}, 1, work)["samples"]) == 5
    assert len(child._measure_rounds({**PACE, "seconds": 4.5}, 1, work)["samples"]) == 5


def test_a_node_that_holds_works_on_until_it_is_halted():
    started = threading.Event()
    calls: list[int] = []

    def work(k: int) -> None:
        calls.append(k)
        if len(calls) > 6:
            started.set()

    child._measure_rounds({**PACE, "hold": True}, 1, work)
    assert started.wait(60)
    child.halt()
    assert child._background == []
    assert child._stop.is_set()
    child._measure_rounds(PACE, 1, work)
    assert child._background == []


def test_an_error_of_a_stream_ends_the_round():
    def work(k: int) -> None:
        if k:
            raise OSError(errno.EIO, "broken")

    with pytest.raises(OSError, match="broken"):
        child._run_streams(2, work)
    child._run_streams(1, work)


def test_shards_are_written_by_stream_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = str(tmp_path / "shard")
    monkeypatch.setattr(child, "_bytes_per_round", lambda _, __, largest: largest)
    found = child.write_shards(path, room=6 * child.MIB, largest=2 * child.MIB, pace=PACE)
    assert (found["size"], len(found["samples"])) == (2 * child.MIB, 2)
    assert [(tmp_path / f"shard.{k}").stat().st_size for k in range(2)] == [2 * child.MIB] * 2
    data = (tmp_path / "shard.0").read_bytes()
    assert data[8 : child.MIB] == data[child.MIB + 8 :], "the same but for the first eight bytes"
    assert data[:8] != data[child.MIB : child.MIB + 8]
    assert child.write_shards(path, 2 * child.MIB, 9 * child.MIB, PACE)["size"] == child.MIB
    found = child.read_shards(path, child.MIB, 0, PACE) or {}
    assert (found["size"], len(found["samples"])) == (child.MIB, 2)
    now = clock(monkeypatch)
    (tmp_path / "shard.1").unlink()
    assert child.read_shards(path, child.MIB, 2, PACE) is None
    assert now[0] == 3, "it looks until the time is over"


def test_metadata_is_made_looked_at_and_deleted_in_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    clock(monkeypatch, step=0.5)
    found = child.metadata(str(tmp_path / "many"), files=4, seconds=0, least=2)
    assert found["samples"] == [24.0, 24.0], "three operations on four files in half a second"
    assert len(found["ended"]) == 2
    assert list((tmp_path / "many").iterdir()) == []
    assert len(child.metadata(str(tmp_path / "many"), 1, seconds=3, least=1)["samples"]) == 2


def test_requests_are_answered_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    requests = [
        {"operation": "unlock", "key": "none"}, {"operation": "unlink", "path": f"{tmp_path}/x"},
        {"operation": "unlock"},
        {"operation": "read_shards", "path": "", "size": "", "timeout_s": 0, "pace": {}},
        {"operation": "fails"},
    ]  # fmt: skip

    def fails() -> None:
        raise OSError

    monkeypatch.setitem(child.OPERATIONS, "fails", fails)
    handle = os.memfd_create("m6")
    os.ftruncate(handle, child.SLOTS * child.SLOT_BYTES)
    monkeypatch.setattr(sys, "argv", ["child", str(handle)])
    monkeypatch.setattr(child, "_memory", None)
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(map(json.dumps, requests))))
    child.main()
    os.close(handle)
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert answers[0] == {"result": None}
    assert (answers[1]["call"], answers[1]["errno"]) == ("unlink", errno.ENOENT)
    assert answers[1]["text"] == "No such file or directory"
    assert "TypeError" in answers[2]["crash"]
    assert "KeyError" in answers[3]["crash"]
    assert (answers[4]["call"], answers[4]["errno"]) == ("?", 0)
    assert len(child._memory) == 1024
    monkeypatch.setattr(sys, "argv", ["child"])
    monkeypatch.setattr(child, "_memory", None)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    child.main()
    assert child._memory is None
