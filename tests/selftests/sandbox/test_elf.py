"""What an ELF file says that it needs, read from files of a few hundred bytes."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from fixtures.sandbox import elf

pytestmark = pytest.mark.cpu

LOAD, DYNAMIC, INTERPRETER = 1, 2, 3
END, NEEDED, STRINGS, SONAME = 0, 1, 5, 14
"""Types of segments and tags of their entries, in elf.h."""
STRINGS_AT = 0x5100


def file_of(
    entries: list[tuple[int, int]], *, interpreter: bytes = b"", base: int = 0x1000
) -> bytes:
    """An ELF file that is loaded at `base`, and its strings apart from the rest at STRINGS_AT."""
    strings = b"\0libone.so.1\0libtwo.so.2\0own.so\0"
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    segments, at = [], 0x200
    parts = {0x100: strings, at: dynamic}
    segments.append((DYNAMIC, 0, at, base + at, 0, len(dynamic), 0, 8))
    if interpreter:
        parts[0x300] = interpreter
        segments.append((INTERPRETER, 0, 0x300, base + 0x300, 0, len(interpreter), 0, 1))
    # Two loaded parts: the strings are in the second.
    segments.append((LOAD, 0, 0, base, 0, 0x100, 0, 8))
    segments.append((LOAD, 0, 0x100, STRINGS_AT, 0, 0x300, 0, 8))
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", header, 32, 0x400)
    struct.pack_into("<HH", header, 54, 56, len(segments))
    parts[0x400] = b"".join(struct.pack("<IIQQQQQQ", *segment) for segment in segments)
    text = bytearray(0x600)
    text[: len(header)] = header
    for place, part in parts.items():
        text[place : place + len(part)] = part
    return bytes(text)


def read(folder: Path, text: bytes) -> elf.Elf | None:
    (folder / "file").write_bytes(text)
    return elf.read(folder / "file")


def test_the_libraries_that_are_needed_are_read_in_their_order(tmp_path):
    entries = [
        (NEEDED, 13), (SONAME, 25), (NEEDED, 1), (STRINGS, STRINGS_AT), (END, 0), (NEEDED, 25)
    ]  # fmt: skip
    found = read(tmp_path, file_of(entries, interpreter=b"/lib64/ld-linux-x86-64.so.2\0"))
    assert found is not None
    assert found.needed == ("libtwo.so.2", "libone.so.1")
    assert found.interpreter == "/lib64/ld-linux-x86-64.so.2"
    library = read(tmp_path, file_of([(STRINGS, STRINGS_AT), (NEEDED, 1)]))
    assert library == elf.Elf(("libone.so.1",), None)


def test_other_files_are_none(tmp_path):
    whole = file_of([])
    assert read(tmp_path, whole) == elf.Elf((), None)
    for start in (b"#!/bin/sh\n", b"\x7fELF\x01\x01", b"\x7fELF\x02\x02", b""):
        assert read(tmp_path, start + whole[len(start) :] if start else b"") is None


@pytest.mark.skipif(sys.platform != "linux", reason="its programs are no ELF files")
def test_python_needs_the_c_library():
    found = elf.read(Path(sys.executable).resolve())
    assert found is not None
    assert found.interpreter is not None
    assert "libc.so.6" in found.needed
