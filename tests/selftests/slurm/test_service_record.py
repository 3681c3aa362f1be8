"""The DNS record of a Slurm controller, asked of a name server of the test's own."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from fixtures.slurm import service_record
from fixtures.slurm.service_record import domain_with_controller

pytestmark = pytest.mark.cpu

NAME = "_slurmctld._tcp.hpc.example"


def name_of(question: bytes) -> str:
    labels, at = [], 12
    while length := question[at]:
        labels.append(question[at + 1 : at + 1 + length].decode())
        at += 1 + length
    return ".".join(labels)


def answered(question: bytes, *, kinds: tuple[int, ...] = (33,), code: int = 0) -> bytes:
    """Return an answer whose records refer to the name of the question."""
    head = question[:2] + struct.pack(">5H", 0x8180 | code, 1, len(kinds), 0, 0)
    records = b"".join(
        b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 60, 3) + b"abc" for kind in kinds
    )
    return head + question[12:] + records


@pytest.fixture
def server(tmp_path) -> Iterator[Callable[..., str | None]]:
    """Ask a name server that answers as it is told, within half a second."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        here.bind(("127.0.0.1", 0))

        def ask(
            answer: Callable[[bytes], bytes | None], text: str = "search hpc.example\n"
        ) -> str | None:
            def serve() -> None:
                with suppress(OSError):  # until the test is over
                    while question_and_sender := here.recvfrom(512):
                        question, sender = question_and_sender
                        if not question:
                            return
                        if (packet := answer(question)) is not None:
                            here.sendto(packet, sender)

            threading.Thread(target=serve, daemon=True).start()
            (tmp_path / "resolv.conf").write_text(f"nameserver 127.0.0.1\n{text}")
            port = here.getsockname()[1]
            return domain_with_controller(tmp_path / "resolv.conf", port=port, timeout_s=0.5)

        yield ask
        with suppress(OSError):  # which it says of a socket without a peer, and does all the same
            here.shutdown(socket.SHUT_RDWR)


def of(name: str, **more) -> Callable[[bytes], bytes]:
    return lambda q: answered(q, **more) if name_of(q) == name else answered(q, code=3, kinds=())


@pytest.mark.parametrize(
    ("text", "name"),
    [("search hpc.example\n", NAME), ("domain hpc.example.\n", NAME),
     ("search a.example hpc.example # both\n", NAME), ("search a.example\n", "_slurmctld._tcp")],
)  # fmt: skip
def test_a_controller_is_found_in_each_domain_that_is_searched(server, text, name):
    assert server(of(name), text) == name


ANSWERS: dict[str, Callable[[bytes], bytes | None]] = {
    "no such domain": lambda q: answered(q, code=3, kinds=()),
    "no record": lambda q: answered(q, kinds=()),
    "others": lambda q: answered(q, kinds=(1, 28, 5)),
    "a failure": lambda q: answered(q, code=2),
    "to another question": lambda q: b"\0\0" + answered(q)[2:],
    "torn": lambda q: answered(q)[:14],
    "empty": lambda q: b"",
    "the question": lambda q: q,
    "silence": lambda q: None,
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_without_such_a_record_there_is_none(server, answer):
    assert server(ANSWERS[answer]) is None


def test_a_record_behind_another_is_found(server):
    assert server(of(NAME, kinds=(5, 33))) == NAME


def test_a_server_that_is_silent_is_waited_for_as_long_as_was_said(server):
    start = time.monotonic()
    assert server(lambda q: None) is None
    assert 0.4 < time.monotonic() - start < 2
    assert service_record.TIMEOUT_S == 2


@pytest.mark.parametrize("text", ["", "search hpc.example\n", "nameserver nonsense\n", "\xff\n"])
def test_without_a_name_server_nothing_is_asked(tmp_path, text):
    (tmp_path / "resolv.conf").write_text(text)
    start = time.monotonic()
    assert domain_with_controller(tmp_path / "resolv.conf") is None
    assert domain_with_controller(tmp_path / "no-such-file") is None
    assert time.monotonic() - start < 1
