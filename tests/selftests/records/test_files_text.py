"""JSON files and lines: replaced and appended as a whole, read as far as they are complete."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.records import files, foreign_files
from fixtures.records.files import RecordError, Tail
from fixtures.records.foreign_files import Bound

pytestmark = pytest.mark.cpu


def test_errors_of_the_storage_are_told_from_others():
    for number, storage in (
        (errno.ENOSPC, True), (errno.EIO, True), (errno.ESTALE, True), (errno.EROFS, True),
        (errno.EDQUOT, True), (errno.ENOENT, False),
    ):  # fmt: skip
        assert files.is_storage_error(OSError(number, "x")) is storage
    assert files.is_storage_error(ValueError("x")) is False


def test_text_is_ascii_and_every_number_finite():
    assert files.dump_json({"a": "ä\ud800"}) == '{"a": "\\u00e4\\ud800"}'
    assert files.dump_json({"a": 1}, indent=1) == '{\n "a": 1\n}'
    for indent in (None, 1):
        with pytest.raises(ValueError):
            files.dump_json(float("nan"), indent=indent)


def test_an_object_is_written_line_by_line():
    data: dict[str, Any] = {"a": [1, {"b": 2}], "c": [], "d": "x", "e": [3]}
    text = "".join(files.json_lines(data))
    assert json.loads(text) == data
    assert text.splitlines() == [
        "{", ' "a": [', "  1,", '  {"b": 2}', " ],", ' "c": [],', ' "d": "x",', ' "e": [', "  3",
        " ]", "}",
    ]  # fmt: skip


def test_a_file_is_replaced_as_a_whole_or_stays(tmp_path):
    path = tmp_path / "folder" / "a.json"
    files.write_json(path, {"a": 1})
    assert path.read_text() == '{\n "a": 1\n}\n'
    assert path.stat().st_mode & 0o777 == 0o644

    def parts() -> Any:
        yield b"half"
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        files.replace_file(path, parts())
    assert files.read_json(path) == {"a": 1}
    assert list(path.parent.iterdir()) == [path]


def test_a_list_may_be_left_out_where_the_suite_wrote_it(tmp_path):
    path = tmp_path / "a.json"
    data: dict[str, Any] = {"a": 1, "rows": [{"b": [1]}, 2], "c": [3]}
    files.write_text(path, files.json_lines(data))
    assert files.read_json(path) == data
    assert files.read_json(path, without="rows") == {**data, "rows": []}
    assert files.read_json(path, without="c") == {**data, "c": []}
    assert files.read_json(path, without="none") == data
    path.write_text(json.dumps(data), encoding="utf-8")
    assert files.read_json(path, without="rows") == data
    first = {"rows": [1], "a": 1}
    files.write_text(path, files.json_lines(first))
    assert files.read_json(path, without="rows") == {"rows": [], "a": 1}
    for raw in (b"{", b"\xff"):
        path.write_bytes(raw)
        with pytest.raises(RecordError, match=r"a\.json is not JSON"):
            files.read_json(path)
    with pytest.raises(FileNotFoundError):
        files.read_json(tmp_path / "none")


def test_a_file_is_waited_for_as_long_as_it_may_take(tmp_path, monkeypatch):
    path = tmp_path / "late"
    assert files.is_visible(path, 0.0) is False
    monkeypatch.setattr(files, "ask_anew", lambda folder: path.touch())
    assert files.is_visible(path, 5.0) is True
    assert files.is_visible(path, -1.0) is True
    now = iter(range(0, 1000, 10))
    path.unlink()
    asked: list[Path] = []
    monkeypatch.setattr(files, "ask_anew", asked.append)
    clock = type("Clock", (), {"monotonic": lambda: next(now), "sleep": lambda s: None})
    monkeypatch.setattr(files, "time", clock)
    assert files.is_visible(path) is False
    assert len(asked) == 6, "for a minute, one look in ten seconds"


def test_lines_are_appended_whole_and_a_torn_one_is_ended(tmp_path, monkeypatch):
    path = tmp_path / "lines"
    files.append_line(path, {"a": 1})
    files.append_lines(path, [{"a": 2}, {"a": 3}], durable=False)
    assert path.read_text() == '{"a": 1}\n{"a": 2}\n{"a": 3}\n'
    with path.open("a") as file:
        file.write('{"torn')
    files.append_line(path, {"a": 4})
    assert [line["a"] for line in files.read_lines(path)] == [1, 2, 3, 4]
    assert path.read_text().splitlines()[3] == '{"torn'
    assert list(files.read_lines(tmp_path / "none")) == []
    assert list(files.read_lines(path / "below")) == []
    path.write_text('{"a": 1}\n[1]\nnoise\n{"a": 2}')
    assert list(files.read_lines(path)) == [{"a": 1}]


def test_a_growing_file_is_read_from_where_it_was(tmp_path):
    path = tmp_path / "lines"
    tail = Tail(path)
    assert (tail.read(), tail.last_growth) == ([], 0.0)
    path.write_text('{"a": 1}\n{"a": ')
    assert tail.read() == [{"a": 1}]
    grown = tail.last_growth
    assert 0 < grown <= time.monotonic()
    assert tail.read() == []
    assert tail.last_growth == grown, "nothing was added"
    with path.open("a") as file:
        file.write("2}\n")
    assert tail.read() == [{"a": 2}]
    assert tail.last_growth > grown


# --- a file that others write


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"x" * 100, "rank0.jsonl: a line of more than 60 bytes"),
        (b"x" * 100 + b"\n" + b'{"a": 3}\n', "rank0.jsonl: a line of more than 60 bytes"),
        (b"[" * 9000 + b"\n", "rank0.jsonl: a line of more than 60 bytes"),
        (b'{"a":[[[[[[1]]]]]]}\n', "rank0.jsonl: is nested too deeply, expected at most 4 levels"),
    ],
)
def test_a_growing_file_that_no_rank_writes_is_read_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, error: str
) -> None:
    monkeypatch.setattr(files, "READ_BYTES", 16)
    monkeypatch.setattr(files, "bound_of", lambda _: Bound(1 << 20, line_bytes=60, depth=4))
    path = tmp_path / "rank0.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n')
    tail = Tail(path)
    found = tail.read()
    while tail.more:
        found += tail.read()
    assert [line["a"] for line in found] == [1, 2]
    with path.open("ab") as file:
        file.write(content)
    found = [line for _ in range(20) for line in tail.read()]
    assert found == []
    assert tail.error == error
    with path.open("ab") as file:
        file.write(b'{"a": 4}\n')
    assert tail.read() == []


def test_a_growing_file_is_read_a_part_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "READ_BYTES", 32)
    path = tmp_path / "rank0.jsonl"
    lines = [{"k": k, "text": "x" * (100 if k == 5 else 1)} for k in range(12)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tail = Tail(path)
    parts = [tail.read()]
    while tail.more:
        parts.append(tail.read())
    assert [line["k"] for part in parts for line in part] == list(range(12))
    assert max(len(part) for part in parts) <= 3
    assert tail.read() == []


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda p: p.symlink_to("/dev/zero")])
def test_what_is_no_file_is_an_error_of_the_tail(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    tail = Tail(tmp_path / "rank0.jsonl")
    assert (tail.read(), tail.error) == ([], "")
    make(tail.path)
    assert tail.read() == []
    assert "expected a regular file" in tail.error


def test_a_file_whose_storage_fails_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rank0.jsonl"
    path.write_text('{"a": 1}\n')
    tail, real = Tail(path), os.open

    def broken(*_: object, **__: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(foreign_files.os, "open", broken)
    assert (tail.read(), tail.error) == ([], "")
    monkeypatch.setattr(foreign_files.os, "open", real)
    assert tail.read() == [{"a": 1}]
