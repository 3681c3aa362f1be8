"""How many records are judged at a time, by how many processes, and what of them is given back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.run import batch_judging as module
from fixtures.run.batch_judging import BatchResult
from fixtures.statistics.fleet_slots import Like
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


UNREPEATED: Any = SimpleNamespace(find_repeated=lambda: False, keep_marks=lambda marks: None)
"""Evidence in which no samples are there twice."""


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
            size=lambda workload, placement: dict(large).get(placement, 1),
            forget=lambda: None,
            take_marks=dict,
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


@pytest.mark.parametrize(
    ("siblings", "lowest", "again"), [(4, 4.9, True), (4, 5.0, False), (3, 4.9, False)]
)
def test_who_lies_below_the_suspicion_of_a_fleet_of_four_is_judged_again(
    monkeypatch, siblings, lowest, again
):
    """`f` is compared on the whole fleet, and wanted of n0 only; `p` is not compared."""
    items: Any = [
        SimpleNamespace(key=(c, n), criterion=c, workload=c, placement=n)
        for c in ("f", "p", "q") for n in ("n0", "n1")
    ]  # fmt: skip
    fleet, plain = (SimpleNamespace(compares_with_fleet=compared) for compared in (True, False))
    limits = SimpleNamespace(criteria={"f": fleet, "p": plain, "q": fleet})
    asked: list[tuple[list[Any], set[Any], Any]] = []

    def judge_groups(judge: Any, groups: Any, wanted: Any, fleet: Any) -> Any:
        asked.append(([[i.key for i in g] for g in groups], wanted, fleet))
        low = {("f", "n0"): lowest, ("f", "n1"): 1.0, ("p", "n0"): 1.0}
        yield BatchResult(siblings={"f": [(0, 9.0)] * siblings}, lowest=low)

    monkeypatch.setattr(module, "_judge_groups", judge_groups)
    monkeypatch.setattr(module, "of_fleet", lambda c, values, limits: len(values))
    monkeypatch.setattr(module, "highest_suspicion", lambda criterion, values, limits: 5.0)
    checks: list[int] = []
    wanted = [("f", "n0"), ("p", "n0")]
    found = module.judge_many(
        SimpleNamespace(thresholds=limits, evidence=UNREPEATED),
        items,
        wanted,
        checkpoint=lambda: checks.append(1),
    )
    assert asked[0] == ([[("f", "n0")], [("f", "n1")], [("p", "n0")]], set(wanted), {})
    assert asked[1:] == ([([[("f", "n0")]], {("f", "n0")}, {"f": 4})] if again else [])
    assert len(checks) == len(asked)
    assert (found.siblings, found.lowest) == ({}, {})


def test_each_record_is_read_once_and_only_what_is_wanted_is_judged(monkeypatch):
    read: list[Any] = []
    evidence: Any = SimpleNamespace(
        get=lambda *key: read.append(key) or (node_record(1, 2) if key[1] == "n0" else None),
        attempts=lambda workload, placement, record: "attempts",
    )
    compared = SimpleNamespace(compares_with_fleet=True)
    limits: Any = SimpleNamespace(criteria={"f": compared, "g": compared})
    judged: dict[Any, Any] = {}
    monkeypatch.setattr(
        module, "judge_item", lambda item, record, **more: judged.setdefault(item.key, record)
    )
    monkeypatch.setattr(
        module, "judge_reading",
        lambda reading, limits, earlier: judged.setdefault(reading.key, reading.record),
    )  # fmt: skip
    monkeypatch.setattr(module, "_valid_rounds", lambda reading: [(0, [3.0, 2.0])])
    monkeypatch.setattr(module, "independent", lambda criterion, rounds: [(0, 2.5)])
    monkeypatch.setattr(
        module, "case_of",
        lambda item, found, **_: SimpleNamespace(key=item.key, record=found, criterion=compared),
    )  # fmt: skip
    monkeypatch.setattr(module, "Reading", lambda case: case)
    monkeypatch.setattr(module, "figure_of", lambda reading, limits: "figure")
    items: Any = [
        SimpleNamespace(
            key=(c, n), criterion=c, workload="w", placement=n, nodes=(n,), subject=n,
            not_applicable="x" if (c, n) == ("g", "n1") else None,
        )
        for n in ("n0", "n1") for c in ("f", "g")
    ]  # fmt: skip
    judge = module.BatchJudge(evidence, limits, None)  # type: ignore[arg-type]
    found = judge.judge(items, {("f", "n0"), ("f", "n1"), ("g", "n1")}, {})
    assert read == [("w", "n0"), ("w", "n1")]
    assert {k: type(v).__name__ for k, v in judged.items()} == {
        ("f", "n0"): "Record", ("f", "n1"): "dict", ("g", "n1"): "NoneType",
    }  # fmt: skip
    assert found.siblings == {"f": [(0, 2.5)], "g": [(0, 2.5)]}
    assert found.lowest == {("f", "n0"): 2.0, ("g", "n0"): 2.0}
    assert found.figures == {("f", "n0"): "figure", ("g", "n0"): "figure"}
    assert found.records == {("w", "n0"): False}
    # With the fleet of one criterion: its values are known, and no figures are asked for.
    again = judge.judge(items, set(), {"f": Like()})
    assert (again.verdicts, again.figures, list(again.siblings)) == ({}, {}, ["g"])
