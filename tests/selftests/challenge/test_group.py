"""One chain in each process: who takes how many rows from whom, and the same bits as in one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fixtures.challenge import answer as answers
from fixtures.challenge import group as module
from fixtures.challenge.answer import Answer
from fixtures.challenge.chain import peers_of
from fixtures.challenge.messages import Opening
from tests.selftests.challenged import SMALL
from tests.tools.bench_challenge import made_challenge

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("one_thread")]


class Threads:
    """torch.distributed, as far as it is used, of threads; a group is the number of its thread."""

    def __init__(self, size: int) -> None:
        self._size, self._barrier = size, threading.Barrier(size, timeout=60)
        self._table: dict[int, Any] = {}

    def get_world_size(self, group: int) -> int:
        return self._size

    def get_rank(self, group: int) -> int:
        return group

    def get_backend(self, group: int) -> str:
        return "gloo"

    def all_to_all_single(
        self, found: torch.Tensor, rows: torch.Tensor, taken: Sequence[int], sent: Sequence[int],
        group: int,
    ) -> None:  # fmt: skip
        parts = self._exchanged(group, rows.split(list(sent)))
        assert [len(parts[k][group]) for k in range(self._size)] == list(taken)
        found.copy_(torch.cat([parts[k][group] for k in range(self._size)]))

    def get_global_rank(self, group: int, source: int) -> int:
        return source

    def broadcast(self, held: torch.Tensor, src: int, group: int) -> None:
        held.copy_(self._exchanged(group, held.clone())[src])

    def _exchanged(self, group: int, given: Any) -> dict[int, Any]:
        self._table[group] = given
        self._barrier.wait()
        found = dict(self._table)
        self._barrier.wait()
        return found


@pytest.mark.parametrize("size", [2, 3, 7])
def test_each_process_gives_what_one_with_all_chains_does(size, monkeypatch):
    challenge, _ = made_challenge(replace(SMALL, ranks=size, openings=16))
    alone = Answer(challenge, range(size))
    root = alone.compute().root
    opening = Opening(challenge.digest, root, bytes(32))
    threads = Threads(size)
    monkeypatch.setattr(module, "dist", threads)
    monkeypatch.setattr(answers, "dist", threads)
    found: dict[int, tuple[bytes, bytes]] = {}

    def work(k: int) -> None:
        one = Answer(challenge, range(size), group=k)
        assert list(one.chains) == [k]
        found[k] = one.compute().root, b"".join(one.response(opening))

    workers = [threading.Thread(target=work, args=(k,)) for k in range(size)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == dict.fromkeys(range(size), (root, b"".join(alone.response(opening))))


@pytest.mark.parametrize("ranks", [2, 3, 5, 16, 40])
def test_all_know_how_many_rows_go_from_whom_to_whom(ranks):
    chain: Any = SimpleNamespace(parameters=SMALL, memory=torch.empty(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "dist", Threads(ranks))
        together = module.Together(0, chain)
    for position in range(ranks):
        peers = peers_of(position, torch.arange(SMALL.n), ranks).tolist()
        counts = [together._asked_by(position, peer) for peer in range(ranks)]
        assert counts == [peers.count(peer) for peer in range(ranks)]
