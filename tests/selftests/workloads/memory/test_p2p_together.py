"""Copies of all pairs of GPUs at once: what is compared, and who is named."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.verdict.model import Outcome
from fixtures.workloads.memory import p2p_together
from tests.selftests.rank_job import TORCH, Job
from tests.selftests.workloads.memory.records_of_memory import (
    job_with,
    judged,
)

pytestmark = pytest.mark.cpu


CORRUPT_TOGETHER = """
def plant():
    honest = workload.Link._copy
    calls = []
    def _copy(self):
        honest(self)
        calls.append(1)
        if len(calls) == 40:
            self.there[12345] ^= 1 << 7
            self.back.copy_(self.there)
            self.wrong += (self.back != self.source).sum()
    workload.Link._copy = _copy
"""


def test_copies_of_all_pairs_at_once_name_the_gpu_of_a_wrong_one(tmp_path):
    found = job_with(tmp_path, "p2p_together", CORRUPT_TOGETHER, ["errors"], 3)
    verdict = judged("p2p.errors_together", found)
    assert (verdict.outcome, verdict.value, verdict.worst["gpu"]) == (Outcome.FAIL, 1, 1)
    assert any(note.startswith("1 wrong between gpu1 and gpu") for note in verdict.notes)
    assert [r.measurements[0].value for r in found.ranks] == [0, 1, 0]


def test_healthy_copies_of_all_pairs_at_once_pass_with_what_they_find(tmp_path):
    job = Job(tmp_path, per_node=3)
    job.add("p2p_together", ["errors"])
    assert job.run(warm=TORCH) == [0] * 3, job.output()
    found = job.record("p2p_together")
    assert judged("p2p.errors_together", found).outcome is Outcome.PASS
    (note,) = found.ranks[0].measurements[0].notes
    assert note == "compared 90 copies there and back over 2 links (95 %: 3.3 % of the copies)"


DEAD_LINK = """
def plant():
    def _copy(self):
        self.wrong += (self.back != self.source).sum()
    workload.Link._copy = _copy
"""


def test_a_copy_that_does_nothing_is_wrong_everywhere(tmp_path):
    found = job_with(tmp_path, "p2p_together", DEAD_LINK, ["errors"], 2, size=4096)
    assert judged("p2p.errors_together", found).worst["gpu"] == 1
    assert found.ranks[1].measurements[0].value >= 90 * 1023


# --- calls and streams


@pytest.mark.parametrize(("on_gpu", "given", "size"), [
    (True, None, 256 * 2**20), (False, None, 2**20), (True, 4096, 4096),
])  # fmt: skip
def test_all_links_copy_in_each_call_and_the_queue_is_bounded(on_gpu, given, size, monkeypatch):
    import torch

    log: list[Any] = []

    class FakeLink:
        def __init__(self, ranks: Any, target: int, source: Any) -> None:
            self.target, self.wrong = target, torch.tensor(0)

        def copy(self) -> None:
            log.append(self.target)

        def wait(self) -> None:
            log.append("wait")

    source = torch.zeros(1, dtype=torch.int32)
    elements: list[int] = []
    monkeypatch.setattr(p2p_together, "Link", FakeLink)
    monkeypatch.setattr(
        p2p_together, "_source", lambda ranks, count: elements.append(count) or source
    )
    monkeypatch.setattr(p2p_together.timing, "synchronize", lambda ranks: log.append("sync"))
    ranks: Any = SimpleNamespace(
        on_gpu=on_gpu, local_rank=1, ranks_per_node=3, gather_node=lambda item: None
    )
    result = p2p_together.run(ranks, ["errors"], size=given)
    (found,) = result.measurements
    # A fault of one copy in 30 is found with 95 %.
    assert (found.value, found.unit, found.checks) == (0, "elements", {"copies": 90.0})
    assert result.facts == {"size": size, "links": 2}
    assert elements == [size // 4]
    assert log[:3] == [0, 2, "sync"]
    assert log.count(0) == log.count(2) == 91
    # Before the calls, after every eighth, and at the end.
    assert log.count("sync") == 2 + 11
    step = p2p_together.STEP
    assert source.item() % 2**32 == 90 * step % 2**32
    # Odd, and the golden ratio's part of 2^32: calls that follow each other are far apart.
    assert step % 2 == 1
    assert step % 2**32 == pytest.approx(2**32 / 1.6180339887, abs=10)


def test_words_are_those_of_the_rank():
    import torch

    def words(rank: int) -> Any:
        ranks: Any = SimpleNamespace(device=torch.device("cpu"), rank=rank)
        return p2p_together._source(ranks, 1000)

    assert words(0).shape == (1000,)
    assert torch.equal(words(1), words(1))
    assert not torch.equal(words(0), words(1))


def test_a_link_counts_what_came_back_wrong(monkeypatch):
    import torch

    ranks: Any = SimpleNamespace(device=torch.device("cpu"), on_gpu=False)
    source = torch.arange(8, dtype=torch.int32)
    link = p2p_together.Link(ranks, 1, source)
    link.copy()
    link.wait()
    assert link.wrong.item() == 0
    link.there.copy_ = lambda *given, **how: None  # type: ignore[method-assign]
    source += 1
    link.copy()
    assert link.wrong.item() == 8


def test_a_link_on_a_gpu_has_a_stream_that_both_sides_wait_for(monkeypatch):
    import torch

    log: list[Any] = []
    link = object.__new__(p2p_together.Link)
    link.source = torch.zeros(1)
    link.stream = SimpleNamespace(wait_stream=lambda other: log.append("stream waits"))  # type: ignore[assignment]
    current = SimpleNamespace(wait_stream=lambda other: log.append("current waits"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    link._copy = lambda: log.append("copy")  # type: ignore[method-assign]
    link.copy()
    link.wait()
    assert log == ["stream waits", "copy", "current waits"]
