"""Latency of small messages between two ranks, with made-up messages and clocks."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fixtures.workloads.runtime import process_group
from fixtures.workloads.wiring import small_messages
from fixtures.workloads.wiring.small_messages import SmallMessages

pytestmark = pytest.mark.cpu


class Comm:
    """A communicator that notes what is asked of it."""

    def __init__(self, *given: Any) -> None:
        self.given, self.calls = given, []

    @contextmanager
    def grouped(self) -> Any:
        yield

    def send(self, buffer: Any, peer: int) -> None:
        self.calls.append(("send", peer))

    def recv(self, buffer: Any, peer: int) -> None:
        self.calls.append(("recv", peer))

    def destroy(self) -> None:
        self.calls.append("destroy")


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is done for communication, and what is sent on the host."""
    done: list[Any] = []
    monkeypatch.setattr(process_group, "of", lambda _: done.append("group"))
    monkeypatch.setattr(process_group, "prepare", lambda _, backend: done.append(backend))
    monkeypatch.setattr(small_messages, "Communicator", Comm)
    monkeypatch.setattr(small_messages.timing, "synchronize", lambda _: None)
    monkeypatch.setattr(dist, "send", lambda buffer, peer: done.append(("send", peer)))
    monkeypatch.setattr(dist, "recv", lambda buffer, peer: done.append(("recv", peer)))
    return done


def messages(rank: int, on_gpu: bool) -> SmallMessages:
    ranks: Any = SimpleNamespace(rank=rank, on_gpu=on_gpu, device=torch.device("cpu"))
    return SmallMessages(ranks, [4, 5, 6])


def test_the_lower_rank_begins(prepared: list[Any]):
    for rank, peer, ways in ((5, 6, ["send", "recv"]), (5, 4, ["recv", "send"])):
        prepared.clear()
        host = messages(rank, False)
        host._ping(peer)
        assert prepared == ["group", *((way, peer) for way in ways)]
        assert host.close() is None
        prepared.clear()
        gpu = messages(rank, True)
        comm: Any = gpu._comm
        gpu._ping(peer)
        assert comm.calls == [(way, peer - 4) for way in ways], "numbers of the group"
        assert (prepared, comm.given[1]) == (["nccl"], [4, 5, 6])
        gpu.close()
        assert comm.calls[-1] == "destroy"


def test_on_a_host_the_median_of_forty_batches_counts(
    prepared: list[Any], monkeypatch: pytest.MonkeyPatch
):
    now = [0.0]
    steps = iter([1.0] * 19 + [3.0] * 21)
    host = messages(5, False)
    pings: list[int] = []

    def ping(peer: int) -> None:
        pings.append(peer)
        if len(pings) > 1:
            now[0] += next(steps)

    monkeypatch.setattr(small_messages.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(host, "_ping", ping)
    # There and back in 3 s are two messages of 1.5 s.
    assert host.latency_us(6) == 1.5e6
    assert pings == [6] * 41


def test_on_a_gpu_twenty_messages_there_and_back_are_one_launch(
    prepared: list[Any], monkeypatch: pytest.MonkeyPatch
):
    done: list[Any] = []

    class Graph:
        def replay(self) -> None:
            done.append("replay")

        def reset(self) -> None:
            done.append("reset")

    @contextmanager
    def capture(graph: Graph, capture_error_mode: str) -> Any:
        done.append(capture_error_mode)
        yield
        done.append(len(comm.calls))

    def batches(_: Any, launch: Any, **given: int) -> Any:
        done.append(given)
        return SimpleNamespace(median=80e-6)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(small_messages.timing, "measure_batches", batches)
    gpu = messages(5, True)
    comm: Any = gpu._comm
    assert gpu.latency_us(6) == pytest.approx(2)
    assert done == ["thread_local", 42, "replay", {"launches": 1, "count": 40}, "reset"]
    assert gpu._buffer.numel() * 4 == 8
