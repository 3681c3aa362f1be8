"""How far a node's clock is from that of the first one, over a connection of this host."""

from __future__ import annotations

import socket
import struct
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.absence import Absence, Kind
from fixtures.workloads.host import host_clock
from tests.selftests.threads import Meeting, as_ranks

pytestmark = pytest.mark.cpu


def test_every_node_measures_its_clock_against_the_first(monkeypatch: pytest.MonkeyPatch):
    meeting = Meeting(3)

    def one(k: int) -> Any:
        rank = meeting.rank(k)
        rank.rank, rank.node, rank.leads_node = k, f"n{min(k, 1)}", k < 2
        rank.store_host = "127.0.0.1"
        return host_clock.run(rank, ["offset"])

    first, second, other = as_ranks(3, one)
    assert [(m.metric, m.unit, m.value) for m in first.measurements] == [("offset", "ms", 0)]
    (row,) = second.measurements
    assert (row.value, row.at) == (0, {"part": "clock"}), "it is the same clock"
    assert row.notes[0].startswith("n1: ")
    assert other.measurements == []


def test_only_rank_0_has_a_place():
    assert host_clock._first([None, [1, "n0"], None]) == [1, "n0"]


def row(monkeypatch: pytest.MonkeyPatch, way: float, offset: float) -> Any:
    monkeypatch.setattr(host_clock, "ask", lambda *_: (way, offset))
    rank: Any = SimpleNamespace(node="n1")
    return host_clock._measure(rank, "host", 7, "n0")


def test_the_uncertainty_of_the_way_does_not_count_against_the_clock(
    monkeypatch: pytest.MonkeyPatch,
):
    for way, offset, value, side in (
        (0.002, 0.5, 499, "ahead of"), (0.002, -0.5, 499, "behind"), (0.002, 0.0005, 0, "ahead of"),
        (0.002, 0.0, 0, "behind"),
    ):  # fmt: skip
        found = row(monkeypatch, way, offset)
        assert found.value == value
        assert f"{side} n0, known to within 1 ms" in found.notes[0]


def test_a_first_node_that_does_not_answer_leaves_no_value(monkeypatch: pytest.MonkeyPatch):
    def refused(*_: Any) -> None:
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr(host_clock, "ask", refused)
    rank: Any = SimpleNamespace(node="n1")
    found = host_clock._measure(rank, "host", 7, "n0")
    why = "n0 (host port 7) could not be asked for the time: refused"
    assert found == Absence(metric="offset", kind=Kind.UNKNOWN, why=why)


class Connection:
    """The first node, whose clock is two seconds ahead, and whose answers come in pieces."""

    def __init__(self, clock: list[float], *ways: float) -> None:
        self.clock, self.ways = clock, list(ways)
        self.asked, self.text = 0, b""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None: ...

    def setsockopt(self, *_: object) -> None: ...

    def sendall(self, _: bytes) -> None:
        way = self.ways[min(self.asked, len(self.ways) - 1)]
        self.asked += 1
        self.clock[0] += way / 2
        self.text = struct.pack("!d", self.clock[0] + 2)
        self.clock[0] += way / 2

    def recv(self, size: int) -> bytes:
        piece, self.text = self.text[: min(size, 5)], self.text[min(size, 5) :]
        return piece


def test_of_twenty_answers_that_with_the_shortest_way_counts(monkeypatch: pytest.MonkeyPatch):
    clock, asked = [1000.0], []
    monkeypatch.setattr(host_clock.time, "time", lambda: clock[0])
    monkeypatch.setattr(host_clock.time, "perf_counter", lambda: clock[0])
    first = Connection(clock, 0.5, 0.125, 0.25)

    def connect(place: tuple[str, int], timeout: float) -> Connection:
        asked.append((place, timeout))
        return first

    monkeypatch.setattr(host_clock.socket, "create_connection", connect)
    way, offset = host_clock.ask("host", 7)
    assert (way, offset) == (0.125, -2)
    assert (first.asked, asked) == (20, [(("host", 7), 10)])
    first.sendall = lambda _: None  # type: ignore[method-assign]
    with pytest.raises(ConnectionError, match="was closed"):
        host_clock.ask("host", 7)


def test_everybody_who_asks_is_answered_until_the_socket_is_closed():
    server = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=host_clock._serve, args=(server,), daemon=True)
    thread.start()
    port = server.getsockname()[1]
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(b"??")
            text = b""
            while len(text) < 16:
                text += connection.recv(16)
            assert len(text) == 16
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(30)
    assert not thread.is_alive()
    assert host_clock.BACKLOG == 1024, "all nodes of a large cluster may come at once"
