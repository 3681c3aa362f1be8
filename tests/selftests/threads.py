"""Ranks of one job as threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar

PATIENCE_S = 60
Found = TypeVar("Found")


@dataclass
class Meeting:
    """What the store is to real ranks: everybody's items, in order."""

    size: int
    items: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size, timeout=PATIENCE_S)

    def gather(self, rank: int, item: Any) -> list[Any]:
        self.items[rank] = item
        self.barrier.wait()
        found = [self.items[k] for k in range(self.size)]
        self.barrier.wait()
        return found

    def rank(self, number: int) -> Any:
        """As much of Ranks, on a CPU, as what measures together takes."""

        def gather(item: Any) -> list[Any]:
            return self.gather(number, item)

        return SimpleNamespace(
            device=SimpleNamespace(type="cpu"), gather=gather, gather_node=gather,
            agree=lambda item, choose: choose(gather(item)), barrier=lambda: gather(None),
        )  # fmt: skip


def own_rank() -> int:
    """Of the thread that asks."""
    return int(threading.current_thread().name)


def as_ranks(size: int, one: Callable[[int], Found]) -> list[Found]:
    """What `one` returns for each rank, all of them at the same time."""

    def named(rank: int) -> Found:
        threading.current_thread().name = str(rank)
        return one(rank)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(named, range(size)))
