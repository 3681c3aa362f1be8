"""Memory that is filled with words and searched for them, of a host and of a made-up GPU."""

from __future__ import annotations

import io
import itertools
import json
import sys
from typing import Any

import pytest
import torch

from fixtures.workloads.tenant import tenant_marks, tenant_memory

pytestmark = pytest.mark.cpu


def test_the_words_are_searched_for_as_they_are_written():
    memory = tenant_memory.HostMemory()
    first, second = tenant_marks.words("token")
    assert first != second
    assert memory.fill(first, 0.5) == tenant_memory.CPU_BYTES // 2
    (pages,) = memory._pages
    read = memoryview(pages).cast("q")
    assert read[0] == read[-1] == first
    assert memory.search([first, second]) == (tenant_memory.CPU_BYTES, [0, 0], 0)
    read.release()


def test_memory_of_a_gpu_is_filled_and_searched_in_whole_chunks(monkeypatch: Any):
    torch = pytest.importorskip("torch")
    chunk, reserve = 1 << 20, 1 << 20
    monkeypatch.setattr(tenant_memory, "CHUNK", chunk)
    monkeypatch.setattr(tenant_memory, "RESERVE", reserve)
    memory = object.__new__(tenant_memory.GpuMemory)
    memory._device, memory._tensors = torch.device("cpu"), []

    def free_and_total(device: Any) -> tuple[int, int]:
        held = sum(tensor.numel() * 8 for tensor in memory._tensors)
        return 9 * chunk + reserve - held, 12 * chunk

    calls: list[str] = []
    count = memory.count

    def free_and_counted(device: Any) -> tuple[int, int]:
        calls.append("take")
        return free_and_total(device)

    def count_and_note(words: Any) -> Any:
        calls.append("count")
        return count(words)

    monkeypatch.setattr(memory, "count", count_and_note)
    monkeypatch.setattr(torch.cuda, "mem_get_info", free_and_counted)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    first, second = tenant_marks.words("token")
    assert memory.fill(first, 0.5) == 4 * chunk
    memory._tensors[0][0, 3] = second
    memory._tensors[0][1, 7] = 0
    assert memory.count([first, second]) == ([4 * chunk // 8 - 2, 1], 4 * chunk // 8 - 1)
    given = torch.full((9, chunk // 8), first)
    monkeypatch.setattr(torch, "empty", lambda count, *_, **__: given[:count])
    memory._tensors = []
    # What a search takes, also for its kernels, it does not write to.
    assert memory.search([first, second]) == (9 * chunk, [9 * chunk // 8, 0], 9 * chunk // 8)
    monkeypatch.setattr(torch, "empty", torch.zeros)
    memory._tensors = []
    calls.clear()
    assert memory.search([first, second]) == (9 * chunk, [0, 0], 0)
    # Kernels are loaded before the memory is taken, in which they would have no room.
    in_turn = [call for call, _ in itertools.groupby(calls)]
    assert in_turn == ["count", "take", "count"]


def answered(monkeypatch: pytest.MonkeyPatch, capsys: Any, **asked: Any) -> dict[str, Any]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"index": 2, **asked}) + "\nrest"))
    tenant_memory.main()
    return dict(json.loads(capsys.readouterr().out))


def test_a_line_is_answered_by_the_memory_of_its_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    class Gpu:
        total = 99

        def __init__(self, index: int) -> None:
            assert index == 2

        def fill(self, word: int, part: float) -> int:
            return int(100 * part) + word

        def search(self, words: list[int]) -> Any:
            return 7, [len(words)], 3

    monkeypatch.setattr(tenant_memory, "GpuMemory", Gpu)
    found = answered(monkeypatch, capsys, do="fill", device="cuda", words=[5], part=0.5)
    assert found == {"bytes": 55, "total": 99}
    assert sys.stdin.read() == "", "it holds the memory until its input ends"
    found = answered(monkeypatch, capsys, do="search", device="cuda", words=[5, 6])
    assert found == {"bytes": 7, "total": 99, "found": [2], "not_zero": 3}
    found = answered(monkeypatch, capsys, do="search", device="cpu", words=[5])
    assert found == {"bytes": 16 << 20, "total": 16 << 20, "found": [0], "not_zero": 0}


def test_words_in_the_host_s_memory_are_counted(monkeypatch: pytest.MonkeyPatch):
    pieces = [[5, 5, 0, 7], [0, 0, 6, 5]]

    def map_(_: int, size: int) -> Any:
        assert size == 8 << 20
        return memoryview(b"".join(w.to_bytes(8, sys.byteorder) for w in pieces.pop(0)))

    monkeypatch.setattr(tenant_memory.mmap, "mmap", map_)
    size, found, not_zero = tenant_memory.HostMemory().search([5, 6])
    assert (size, found, not_zero) == (16 << 20, [3, 1], 5)


def test_words_in_a_gpu_s_memory_are_counted():
    memory = object.__new__(tenant_memory.GpuMemory)
    memory._device = torch.device("cpu")
    memory._tensors = [torch.tensor([[5, 0], [6, 5]]), torch.tensor([[5, 0]])]
    assert memory.count([5, 6, 7]) == ([3, 1, 0], 4)
    memory._tensors = []
    assert memory.count([5]) == ([0], 0)
    assert (tenant_memory.WORD, tenant_memory.CHUNK) == (8, 256 << 20)
