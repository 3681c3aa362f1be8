"""How many records are judged at a time, by how many processes, and what of them is given back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.run import batch_judging as module
from fixtures.run.batch_judging import BatchResult
from tests.selftests.support import node_record

pytestmark = pytest.mark.cpu


class Pool:
    """A pool of processes that works in this one."""

    def __init__(self, processes: int, context: Any, start: Any, arguments: Any) -> None:
        start(*arguments)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, work: Any, *lists: Any) -> list[Any]:
        return [work(*one) for one in zip(*lists, strict=True)]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch):
    """Judge groups of one item each; return the sizes of the batches and how often memory went."""
    released: list[int] = []
    monkeypatch.setattr(module, "ProcessPoolExecutor", Pool)

    def run(count: int, *, processes: int = 2, large: Any = (), wanted: Any = ()) -> Any:
        monkeypatch.setattr(module.os, "sched_getaffinity", lambda pid: set(range(processes)))
        released.clear()
        batches: list[list[str]] = []
        chosen: list[set[Any]] = []

        def judge(items: Any, keys: Any, fleet: Any) -> BatchResult:
            batches.append([i.placement for i in items])
            chosen.append({*keys})
            return BatchResult()

        evidence = SimpleNamespace(
            size=lambda workload, placement: dict(large).get(placement, 1), forget=lambda: None
        )
        groups: Any = [
            [SimpleNamespace(workload="w", placement=f"n{k}", key=("c", f"n{k}"))]
            for k in range(count)
        ]
        fake: Any = SimpleNamespace(judge=judge, evidence=evidence)
        monkeypatch.setattr(module, "release_memory", lambda: released.append(len(batches)))
        parts = list(module._judge_groups(fake, groups, {("c", n) for n in wanted}, {}))
        assert len(parts) == len(batches)
        return SimpleNamespace(batches=batches, chosen=chosen, released=len(released))

    return run


def test_few_items_or_a_single_processor_are_one_batch(judged):
    assert [len(b) for b in judged(4000).batches] == [4000]
    assert [len(b) for b in judged(4001, processes=1).batches] == [4001]


def test_many_items_are_judged_forty_records_at_a_time(judged):
    found = judged(4001)
    assert [len(b) for b in found.batches] == [40] * 100 + [1]
    # After each part, and by the process of the run after the first, the 51st and the 101st.
    assert found.released == 101 + 3


def test_records_above_eight_million_bytes_are_read_by_one_process(judged):
    found = judged(4001, large={"n7": 8_000_001, "n9": 8_000_001, "n8": 8_000_000})
    assert found.batches[0] == ["n7", "n9"]
    assert "n8" in found.batches[1]


def test_each_process_is_told_what_of_its_part_is_wanted(judged):
    found = judged(4001, wanted=("n0", "n39", "n40"))
    assert found.chosen[:3] == [{("c", "n0"), ("c", "n39")}, {("c", "n40")}, set()]


def test_memory_is_given_back_where_the_c_library_can(monkeypatch):
    trimmed: list[int] = []
    for library in (SimpleNamespace(), SimpleNamespace(malloc_trim=trimmed.append)):
        monkeypatch.setattr(module.ctypes, "CDLL", lambda _, library=library: library)
        module.release_memory()
    assert trimmed == [0]


def test_a_record_of_a_cpu_makes_a_demonstration_and_is_read_once():
    asked: list[str] = []

    def get(workload: str, placement: str) -> Any:
        asked.append(placement)
        if placement == "missing":
            return {"reason": "x"}
        made = node_record(1, 1)
        if placement == "cpu":
            made.ranks[0].device["name"] = "cpu"
        return made

    evidence: Any = SimpleNamespace(get=get)
    result = BatchResult()
    for name, expected in (("gpu", False), ("missing", False), ("login", False), ("cpu", True)):
        assert result.has_demonstration(evidence, [("w", name)]) is expected
    assert result.has_demonstration(evidence, [("w", "gpu"), ("w", "cpu")]) is True
    assert asked == ["gpu", "missing", "cpu"]


def test_results_are_filed_under_the_keys_of_their_items():
    key = ("c", "n1")
    item: Any = SimpleNamespace(key=("c", "n1"))
    result: Any = BatchResult(verdicts={key: "v"}, lowest={key: 1.0}, figures={key: None})
    found = result.filed_under([item])
    assert (found.verdicts, found.lowest, found.figures) == ({key: "v"}, {key: 1.0}, {key: None})
    assert next(iter(found.verdicts)) is item.key
