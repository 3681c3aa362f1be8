"""Whether nodes reach each other: ranks of a job as threads, on the loopback of this host."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.files import write_json
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.scheduler import connectivity
from fixtures.workloads.scheduler.connectivity import Listener
from tests.selftests import rank_job
from tests.selftests.rank_job import free_port
from tests.selftests.threads import as_ranks

pytestmark = pytest.mark.cpu

NODES = ["localhost", "127.0.0.2"]
"""Two names of this host."""


def rank_of(folder: Path, k: int, nodes: list[str] = NODES, **more: Any) -> Ranks:
    addresses = dict.fromkeys(nodes, "127.0.0.1")
    spec = {"master_port": free_port(), "addresses": addresses, **more}
    return rank_job.rank_of(folder, k, nodes, **spec)


def test_nodes_that_reach_each_other_are_none_unreached(tmp_path: Path):
    ranks = [rank_of(tmp_path, k) for k in range(2)]
    for k, found in enumerate(as_ranks(2, lambda k: connectivity.run(ranks[k], ["peers"]))):
        (row,) = found.measurements
        assert (row.metric, row.value, row.notes) == ("peers", 0, [])
        assert found.facts["reached"] == "1 of 1"
        assert [(r["peer"], r["by"], r["to"]) for r in found.facts["table"]] == [
            (NODES[1 - k], "name", NODES[1 - k]), (NODES[1 - k], "address", "127.0.0.1"),
        ]  # fmt: skip
        assert all(0 < r["ms"] < 60_000 for r in found.facts["table"])


def test_a_single_node_reaches_nobody_and_other_ranks_measure_nothing(tmp_path: Path):
    alone = connectivity.run(rank_of(tmp_path, 0, ["localhost"]), ["peers"])
    assert [(m.value, m.unit) for m in alone.measurements] == [(0, "peers")]
    assert alone.facts == {"table": [], "reached": "0 of 0"}
    second = rank_of(tmp_path, 0)
    second.local_rank = 1
    assert connectivity.run(second, ["peers"]).measurements == []
    assert connectivity.run(rank_of(tmp_path, 0), ["other"]).measurements == []


def test_a_peer_that_does_not_come_or_has_no_address_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    waited: list[tuple[set[str], float]] = []
    monkeypatch.setattr(
        Listener, "wait_for", lambda _, peers, deadline: waited.append((peers, deadline))
    )
    monkeypatch.setattr(connectivity.time, "monotonic", lambda: 1000.0)
    silent = rank_of(tmp_path, 0, addresses={})
    found = connectivity.run(silent, ["peers"], appear_s=0)
    (row,) = found.measurements
    assert (row.value, found.facts["reached"]) == (1, "0 of 1")
    assert row.notes[0].startswith("127.0.0.2 by name: ")
    assert row.notes[1] == "127.0.0.2 by address: no address known"
    assert waited == [({"127.0.0.2"}, 1005)]


def test_the_time_to_appear_is_longer_on_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    given: list[float] = []

    def reach(*arguments: Any) -> dict[str, Any]:
        given.extend(arguments[-2:])
        return {"peer": arguments[1], "by": arguments[2], "error": ""}

    monkeypatch.setattr(connectivity, "_reach", reach)
    monkeypatch.setattr(connectivity, "_say_goodbye", lambda *_: None)
    monkeypatch.setattr(Listener, "wait_for", lambda *_: None)
    for device, seconds in (("cuda", 60), ("cpu", 15)):
        given.clear()
        connectivity.run(rank_of(tmp_path, 0, device=device), ["peers"])
        assert given == [15, seconds, 15, seconds], "to reach a peer that listens, and any"


def test_the_port_of_a_peer_is_that_of_this_attempt(tmp_path: Path):
    rank = rank_of(tmp_path, 0, nonce="a", attempt=2)
    path = tmp_path / "connectivity-peer.json"
    assert connectivity._port(rank, "peer") is None
    for entry, port in (
        ({"nonce": "a", "attempt": 2, "port": 7}, 7),
        ({"nonce": "b", "attempt": 2, "port": 7}, None),
        ({"nonce": "a", "attempt": 1, "port": 7}, None), ({"nonce": "a", "attempt": 2}, None),
        ({"nonce": "a", "attempt": 2, "port": "x"}, None), ([], None),
    ):  # fmt: skip
        write_json(path, entry)
        assert connectivity._port(rank, "peer") == port, entry


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(connectivity.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(connectivity.time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_peer_is_tried_until_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clock = Clock(monkeypatch)
    asked: list[int] = []

    def refused(_: Ranks, host: str, port: int, peer: str, word: str) -> None:
        asked.append(port)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(connectivity, "_exchange", refused)
    rank = rank_of(tmp_path, 0, master_port=5000)

    def reach(started: float = 0.0) -> dict[str, Any]:
        return connectivity._reach(rank, "127.0.0.2", "name", started, 2.0, 10.0)

    row = reach()
    assert (row["error"], row["ms"], row["to"]) == ("Connection refused", None, "127.0.0.2")
    assert 9.7 < clock.now < 10
    assert set(asked) == {5001}
    write_json(tmp_path / "connectivity-127.0.0.2.json", {"nonce": "a", "attempt": 1, "port": 7})
    asked.clear()
    clock.now = 0.0
    reach()
    assert 1.7 < clock.now < 2, "it listens: no need to wait for it to appear"
    assert set(asked) == {7}
    clock.now = 9.0
    reach()
    assert 9.7 < clock.now < 10, "the whole time is not longer for that"
    for error, says in ((ValueError("another"), "another"), (AttributeError(), "AttributeError")):

        def fails(*_: Any, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(connectivity, "_exchange", fails)
        assert reach()["error"] == says
    clock.now = 9.75
    calls = iter([ValueError("not yet"), None])

    def second_time(*_: Any) -> None:
        if error := next(calls):
            raise error

    monkeypatch.setattr(connectivity, "_exchange", second_time)
    assert reach()["error"] == ""


def test_another_program_at_the_port_is_no_peer(tmp_path: Path):
    rank = rank_of(tmp_path, 0)
    for answer, says in (
        (b"220 ready\n", "not as a node of this run"),
        (b"", "answers as None, not as peer"),
        (b'{"nonce": "a", "node": "other"}', "answers as 'other', not as peer"),
        (b'{"nonce": "b", "node": "peer"}', "answers as 'peer', not as peer"),
        (b'{"nonce": "a", "node": "peer"}', ""),
    ):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]

            def one(k: int, server: Any = server, answer: bytes = answer, port: int = port) -> str:
                if k == 0:
                    connection, _ = server.accept()
                    with connection, connection.makefile("rb") as stream:
                        stream.readline()
                        connection.sendall(answer)
                    return ""
                try:
                    connectivity._exchange(rank, "127.0.0.1", port, "peer", "reach")
                except ValueError as error:
                    return str(error)
                return ""

            said = as_ranks(2, one)[1]
        assert says in said
        assert bool(says) is bool(said)


def ask(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request + b"\n")
        with connection.makefile("rb") as stream:
            return stream.read()


def test_a_listener_answers_its_own_run_and_knows_who_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rank = rank_of(tmp_path, 0)
    with Listener(rank) as listener:
        entry = json.loads((tmp_path / "connectivity-localhost.json").read_text())
        assert (entry["nonce"], entry["attempt"], entry["node"]) == ("a", 1, "localhost")
        assert entry["port"] == int(rank.spec["master_port"]) + 1
        (tmp_path / "beside").mkdir()
        taken = rank_of(tmp_path / "beside", 0, master_port=rank.spec["master_port"])
        with Listener(taken) as beside:
            assert beside._socket.getsockname()[1] != entry["port"]
        hello = {"nonce": "a", "from": "n1", "word": "reach"}
        answer = {"nonce": "a", "node": "localhost"}
        assert json.loads(ask(entry["port"], json.dumps(hello).encode())) == answer
        for strange in (b'{"nonce": "b", "word": "goodbye", "from": "n2"}', b"GET /", b"[]", b""):
            assert ask(entry["port"], strange) == b""
        assert listener._departed == set()
        connectivity._say_goodbye(rank_of(tmp_path, 1), "localhost")
        connectivity._say_goodbye(rank_of(tmp_path, 1, addresses={}), "localhost")
        deadline = connectivity.time.monotonic() + 30
        listener.wait_for({"127.0.0.2"}, deadline)
        assert listener._departed == {"127.0.0.2"}
        listener.wait_for({"n3"}, deadline=0.0)


def test_a_goodbye_by_address_is_said_where_the_name_does_not_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    said: list[tuple[str, int]] = []

    def exchange(_: Ranks, host: str, port: int, peer: str, word: str) -> None:
        assert word == "goodbye"
        said.append((host, port))
        if host == "127.0.0.2":
            raise OSError

    monkeypatch.setattr(connectivity, "_exchange", exchange)
    rank = rank_of(tmp_path, 0, master_port=5000)
    connectivity._say_goodbye(rank, "127.0.0.2")
    assert said == [("127.0.0.2", 5001), ("127.0.0.1", 5001)]
    write_json(tmp_path / "connectivity-127.0.0.2.json", {"nonce": "a", "attempt": 1, "port": 7})
    said.clear()
    connectivity._say_goodbye(rank, "127.0.0.2")
    assert said == [("127.0.0.2", 7), ("127.0.0.1", 7)]


def test_one_attempt_takes_three_seconds_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[float] = []

    def connect(place: Any, timeout: float) -> None:
        asked.append(timeout)
        raise TimeoutError

    monkeypatch.setattr(connectivity.socket, "create_connection", connect)
    with pytest.raises(TimeoutError):
        connectivity._exchange(rank_of(tmp_path, 0), "127.0.0.1", 7, "peer", "reach")
    assert asked == [3]
