"""What a rank of a compromised node leaves in the place of its own file, live in a sandbox.

Each kind is written by the rank itself, before its first workload measures anything.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1 << 20


def _line(**changed: Any) -> Callable[[Path, dict[str, Any]], None]:
    """Append a line in which these fields are others; ... leaves a field out."""

    def write(path: Path, line: dict[str, Any]) -> None:
        fields = {k: v for k, v in {**line, **changed}.items() if v is not ...}
        with path.open("ab") as file:
            file.write(json.dumps(fields).encode() + b"\n")

    return write


def _bytes(content: bytes) -> Callable[[Path, dict[str, Any]], None]:
    def write(path: Path, line: dict[str, Any]) -> None:
        with path.open("ab") as file:
            file.write(content.replace(b"NONCE", line["nonce"].encode()))

    return write


def _instead(make: Callable[[Path], object]) -> Callable[[Path, dict[str, Any]], None]:
    """Put something else in the place of the file."""

    def write(path: Path, line: dict[str, Any]) -> None:
        path.unlink(missing_ok=True)
        make(path)

    return write


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(path.parent)
        made.bind(path.name)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 8 << 30)


RESULT = {"event": "result", "device": {"index": 0, "name": "cpu"}, "start": 1.0, "end": 2.0,
          "measurements": [], "absent": [], "facts": {}}  # fmt: skip

KINDS: dict[str, Callable[[Path, dict[str, Any]], None]] = {
    "time is text": _line(event="note", time="soon"),
    "no time": _line(event="note", time=...),
    "time is null": _line(event="note", time=None),
    "time is not finite": _line(event="note", time=float("nan")),
    "time is a list": _line(event="note", time=[1.0]),
    "rank is text": _line(event="note", rank="0"),
    "no rank": _line(event="note", rank=...),
    "rank of another": _line(event="note", rank=10**6),
    "rank is true": _line(event="note", rank=True),
    "workload is a list": _line(event="note", workload=["environment"]),
    "result without workload": _line(**RESULT, workload=...),
    "result without placement": _line(**RESULT, placement=...),
    "placement is an object": _line(**RESULT, placement={}),
    "world size of a billion": _line(**RESULT, world_size=10**9),
    "negative world size": _line(**RESULT, world_size=-1),
    "world size is text": _line(**RESULT, world_size="1"),
    "node is a number": _line(event="note", node=7),
    "event is a list": _line(event=["result"]),
    "measurements are text": _line(**{**RESULT, "measurements": "none"}),
    "a sample is text": _line(
        **{**RESULT, "measurements": [{"metric": "x", "unit": "s", "samples": ["fast"]}]}
    ),
    "facts are a list": _line(**{**RESULT, "facts": []}),
    "device is null": _line(**{**RESULT, "device": None}),
    "an unknown absence": _line(
        **{**RESULT, "absent": [{"metric": "x", "kind": "tired", "why": "w"}]}
    ),
    "deep lists": _bytes(b"[" * 100_000 + b"\n"),
    "deep objects": _bytes(
        b'{"nonce":"NONCE","schema":1,"a":' + b'{"a":' * 300 + b"1" + b"}" * 301 + b"\n"
    ),
    "a line without end": _bytes(b"x" * (17 * MIB)),
    "a FIFO": _instead(os.mkfifo),
    "a link to a device": _instead(lambda path: path.symlink_to("/dev/zero")),
    "a link to a file": _instead(lambda path: path.symlink_to("/etc/passwd")),
    "a folder": _instead(Path.mkdir),
    "a socket": _instead(_socket),
    "a sparse file": _instead(_sparse),
}  # fmt: skip
"""Kind -> what writes it, given the rank's file and the fields of a sound line."""
QUICK = ("time is text", "deep lists", "a FIFO", "a link to a device")
"""Those of `make test`."""


def act(kinds: dict[str, str], ranks: Any, workload: str) -> None:
    """Write the kind of this rank's node, if it has one, and leave time to see it."""
    if (kind := kinds.get(ranks.node)) is None:
        return
    line = {
        "schema": 1, "nonce": ranks.spec["nonce"], "event": "note", "time": time.time(),
        "rank": ranks.rank, "local_rank": ranks.local_rank, "world_size": ranks.world_size,
        "node": ranks.node, "workload": workload, "placement": ranks.node, "attempt": 1,
    }  # fmt: skip
    KINDS[kind](ranks.folder / f"rank{ranks.rank}.jsonl", line)


APPENDED = """

_run = run

def run(ranks, metrics, **more):
    from tests.selftests.hostile_ranks import act
    act({kinds!r}, ranks, {workload!r})
    return _run(ranks, metrics, **more)
"""
"""What makes a workload of a copied checkout hostile on the nodes of `kinds`."""
