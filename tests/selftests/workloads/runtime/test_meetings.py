"""What an exchange of all ranks asks of the store: a few requests per rank, and nothing stays."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from fixtures.workloads.runtime.meetings import Meetings

pytestmark = pytest.mark.cpu


class Store:
    """A store of one process, as far as exchanges need it, that counts what it is asked."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.asked: Counter[str] = Counter()
        self._changed = threading.Condition(threading.RLock())

    def _write(self, name: str, key: str, value: bytes) -> bytes:
        with self._changed:
            self.asked[name] += 1
            self.values[key] = value
            self._changed.notify_all()
        return value

    def append(self, key: str, text: str) -> None:
        with self._changed:
            self._write("append", key, self.values.get(key, b"") + text.encode())

    def add(self, key: str, more: int) -> int:
        with self._changed:
            number = int(self.values.get(key, b"0")) + more
            self._write("add", key, str(number).encode())
        return number

    def set(self, key: str, value: str | bytes) -> None:
        self._write("set", key, value if isinstance(value, bytes) else value.encode())

    def get(self, key: str) -> bytes:
        with self._changed:
            self.asked["get"] += 1
            return self.values[key]

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        with self._changed:
            self.asked["wait"] += 1
            came = self._changed.wait_for(
                lambda: all(key in self.values for key in keys), timeout.total_seconds()
            )
        if not came:
            raise TimeoutError(f"waited for {keys}")

    def delete_key(self, key: str) -> None:
        with self._changed:
            self.asked["delete"] += 1
            self.values.pop(key, None)


def exchanged(ranks: int, rounds: int) -> tuple[Store, dict[int, list[Any]]]:
    """Return the store after so many exchanges of all ranks, and what each rank was answered."""
    store, answers = Store(), {}

    def take_part(rank: int) -> None:
        meetings = Meetings(store, range(ranks), rank, timedelta(seconds=60), "test")
        answers[rank] = [meetings.agree([rank, k], list) for k in range(rounds)]

    threads = [threading.Thread(target=take_part, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return store, answers


@pytest.mark.parametrize("ranks", [2, 16, 64])
def test_an_exchange_asks_the_store_a_few_times_per_rank(ranks: int) -> None:
    """Each rank that read every other's item asked N times: 1,820 s of one core at 2,048 ranks."""
    rounds = 5
    store, answers = exchanged(ranks, rounds)
    for rank in range(ranks):
        assert answers[rank] == [[[k, n] for k in range(ranks)] for n in range(rounds)]
    assert store.asked.total() <= rounds * (4 * ranks + 8)
    assert len(store.values) <= 1, "only the last answer is left"


def test_who_does_not_come_is_named() -> None:
    store = Store()
    meetings = Meetings(store, range(3), 0, timedelta(seconds=0.05), "test")
    with pytest.raises(TimeoutError, match="2 of 3 ranks did not come: 1, 2"):
        meetings.agree("here", list)
