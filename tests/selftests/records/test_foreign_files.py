"""The one way in: all but bounded regular files is refused with its name."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.records import foreign_files
from fixtures.records.files import is_storage_error
from fixtures.records.foreign_files import (
    Bound,
    RecordError,
    begins_with,
    bound_of,
    is_plain,
    linked_beside,
    open_foreign,
    parse_json,
    parse_line,
    raw_lines,
    read_bytes,
    read_tail,
    read_text,
    sha256_of,
    text_lines,
)
from fixtures.records.inert import inert

pytestmark = pytest.mark.cpu


def link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(path.parent)  # its name may have 107 bytes
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 20 << 30)


def with_hole(path: Path) -> None:
    path.write_text('{"schema": 1}\n')
    os.truncate(path, 60 << 20)


SPECIAL = [
    (link, "is a link to /dev/zero, expected a regular file"),
    (folder, "is a folder, expected a regular file"),
    (fifo, "is a FIFO, expected a regular file"),
    (bound_socket, "is a socket, expected a regular file"),
    (sparse, "21,474,836,480 bytes, expected at most"),
    (with_hole, "holds no data from byte"),
]


@pytest.mark.parametrize(("make", "text"), SPECIAL, ids=[make.__name__ for make, _ in SPECIAL])
@pytest.mark.parametrize("read", [read_bytes, read_text, sha256_of, lambda p: list(raw_lines(p))])
def test_what_is_no_regular_file_of_its_size_is_refused_by_name(
    tmp_path: Path, make: Callable[[Path], None], text: str, read: Callable[[Path], object]
) -> None:
    path = tmp_path / "job.json"
    make(path)
    with pytest.raises(RecordError) as refused:
        read(path)
    assert str(refused.value).startswith("job.json: ")
    assert text.partition(" bytes")[0] in str(refused.value)


def test_a_device_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda *a, **k: opened.append(a[0]) or real(*a, **k))
    with pytest.raises(RecordError, match="null: is a device"):
        read_bytes(Path("/dev/null"))
    assert opened == []


def test_a_file_that_becomes_a_link_before_it_is_opened_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "job.json").symlink_to("secret")
    of_file = (tmp_path / "secret").stat()
    monkeypatch.setattr(foreign_files.os, "stat", lambda *_, **__: of_file)
    with pytest.raises(RecordError, match="is a link"):
        read_bytes(tmp_path / "job.json")


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_an_error_of_the_storage_names_the_file_and_stays_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    path = tmp_path / "job.json"
    path.touch()
    monkeypatch.setattr(foreign_files.os, "open", broken)
    with pytest.raises(RecordError) as refused:
        read_bytes(path)
    assert isinstance(refused.value, OSError)
    assert is_storage_error(refused.value) is (number != errno.EACCES)
    assert str(refused.value) == f"{path}: {os.strerror(number)}"


def test_a_missing_file_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "jobs" / "a" / "none", below=tmp_path)


def test_no_folder_on_the_way_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "job.json").write_text("{}")
    run = tmp_path / "run"
    run.mkdir()
    (run / "jobs").symlink_to(tmp_path / "outside")
    with pytest.raises(RecordError, match=r"jobs/job\.json: jobs is a link, expected a folder"):
        read_bytes(run / "jobs" / "job.json", below=run)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - not a folder of a run
    for _ in range(3):
        with pytest.raises(RecordError):
            read_bytes(run / "jobs" / "job.json", below=run)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    (run / "jobs").unlink()
    (run / "jobs").mkdir()
    (run / "jobs" / "job.json").write_text("{}")
    assert read_text(run / "jobs" / "job.json", below=run) == "{}"


def test_a_file_that_grows_beyond_its_bound_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_bytes(b"x" * 11)
    with pytest.raises(RecordError, match="11 bytes, expected at most 10"):
        read_bytes(path, bound=Bound(10))
    assert read_bytes(path, bound=Bound(11)) == b"x" * 11


def test_lines_are_bounded_in_length_and_number(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    path.write_bytes(b"12345678\n12\n\n")
    assert list(raw_lines(path, bound=Bound(99, 9, 3))) == [b"12345678\n", b"12\n", b"\n"]
    with pytest.raises(RecordError, match=r"rank0\.jsonl: a line of more than 8 bytes"):
        list(raw_lines(path, bound=Bound(99, 8, 3)))
    with pytest.raises(RecordError, match=r"rank0\.jsonl: expected at most 2 lines"):
        list(raw_lines(path, bound=Bound(99, 9, 2)))


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "manifest.sha256"
    path.write_text("a\u2028b\x0bc\r\nd\n", encoding="utf-8", newline="")
    assert list(text_lines(path)) == ["a\u2028b\x0bc\r", "d"]
    path.write_bytes(b"a\xff\n")
    with pytest.raises(RecordError, match=r"manifest\.sha256: byte 1 is not UTF-8"):
        list(text_lines(path))


def test_the_end_of_a_large_file_is_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "0_log.out"
    path.write_bytes(b"begin" + b"." * 5000 + b"end")
    assert read_tail(path, 4) == b".end"
    assert read_tail(path, 9000).startswith(b"begin")


NOT_JSON = [b"", b"{", b"\xff", b"9" * 5000, b"[" * 100_000, b'{"a":' * 100_000]


@pytest.mark.parametrize("content", NOT_JSON, ids=lambda c: repr(c[:6]))
def test_what_is_no_json_is_an_error_with_the_name(content: bytes) -> None:
    with pytest.raises(RecordError, match=r"job\.json"):
        parse_json(Path("job.json"), content)


DEEP = [
    b"[" * 65 + b"]" * 65,
    b'{"a":' * 65 + b"1" + b"}" * 65,
    b'[{"a":' * 33 + b"1" + b"}]" * 33,
    b'["]",' * 65 + b"1" + b',"["]' * 65,
    b'["\\"]",' * 65 + b"1" + b',"[\\\\"]' * 65,
    b'{"x":[],"a":' * 65 + b"[]" + b',"y":{}}' * 65,
]


@pytest.mark.parametrize("content", DEEP, ids=lambda c: repr(c[:8]))
def test_levels_are_counted_outside_of_strings(content: bytes) -> None:
    path = Path("job.json")
    with pytest.raises(RecordError, match="nested too deeply"):
        parse_json(path, content)
    with pytest.raises(RecordError, match="nested too deeply"):
        parse_line(path, b'{"a":' + content + b"}")
    assert parse_json(path, content, bound=Bound(1, depth=66))


def test_brackets_in_strings_are_no_levels() -> None:
    text = b'{"a": "' + b"[" * 200 + b'", "b": ["' + b'\\"]{' * 100 + b'"], "c": "\\\\"}'
    assert parse_json(Path("job.json"), text)["c"] == "\\"
    assert parse_line(Path("job.json"), text) == parse_json(Path("job.json"), text)


def test_other_programs_output_is_no_object() -> None:
    path = Path("rank0.jsonl")
    for line in (b"NCCL INFO", b"1", b'{"a": \xff}', b"[]", b""):
        assert parse_line(path, line) is None
    with pytest.raises(RecordError, match=r"rank0\.jsonl: is nested too deeply"):
        parse_line(path, b"[" * 100_000)


def test_a_name_is_shown_in_one_line() -> None:
    odd = os.fsdecode(b"a\xffb") + "\n\u2028\u202e\x1b"
    assert inert(odd) == "a\\udcffb\\n\\u2028\\u202e\\x1b"
    assert inert("gpu 1.json") == "gpu 1.json"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\n", "\u2028", os.fsdecode(b"\xff")])
def test_a_name_that_is_not_plain(name: str) -> None:
    assert not is_plain(name)
    assert is_plain(f"a{'b' * 3}.json")


def test_a_link_is_taken_for_the_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "5_0_log.out").write_text("text")
    (tmp_path / "5_log.out").symlink_to("/elsewhere/5_0_log.out")
    (tmp_path / "6_log.out").symlink_to("/etc/passwd")
    assert linked_beside(tmp_path / "5_log.out") == tmp_path / "5_0_log.out"
    assert linked_beside(tmp_path / "6_log.out") is None
    assert linked_beside(tmp_path / "5_0_log.out") is None


@pytest.mark.parametrize(
    ("name", "at_least"),
    [("run.json", 45 << 20), ("gemm@n3.attempt2.json", 260 << 20), ("ledger.jsonl", 5 << 30)],
)
def test_the_bounds_leave_room_for_the_largest_cluster(name: str, at_least: int) -> None:
    assert bound_of(Path(name)).bytes > at_least


def test_an_opened_file_is_closed_when_it_is_refused(tmp_path: Path) -> None:
    sparse(tmp_path / "job.json")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - not a folder of a run
    for _ in range(3):
        with pytest.raises(RecordError):
            open_foreign(tmp_path / "job.json")
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize(
    ("content", "begins"),
    [(b"a\nb\n", True), (b"a\nb\nc\n", True), (b"a\nb\npart", True), (b"a\n", False),
     (b"a\nc\nb\n", False), (b"", False), (None, False)],
)  # fmt: skip
def test_whether_a_file_was_at_most_continued(tmp_path, content, begins):
    path = tmp_path / "lines"
    if content is not None:
        path.write_bytes(content)
    assert begins_with(path, hashlib.sha256(b"a\nb\n").hexdigest()) is begins
    assert begins_with(path, hashlib.sha256().hexdigest()), "of nothing"
