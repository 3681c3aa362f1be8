"""From a planned item to its verdict: who waits for which records, and what is judged at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.plan.items import Item
from fixtures.plugin import resolve
from tests.selftests.verdict.made import item

pytestmark = pytest.mark.cpu


class Evidence:
    """Keeps what is waited for."""

    def __init__(self) -> None:
        self.expected = {("w", "n0"), ("w", "n1"), ("w", "n2")}
        self.files: list[tuple[str, str]] = []
        self.waited: list[tuple[str, str]] = []

    def wait_for_file(self, workload: str, placement: str, *, until: Any) -> None:
        self.files.append((workload, placement))
        assert until() is False

    def wait(self, workload: str, placement: str, *, until: Any) -> str:
        self.waited.append((workload, placement))
        return f"record of {placement}"

    def get(self, *key: Any) -> None:
        return None

    def attempts(self, workload: str, placement: str, found: Any) -> Any:
        return ("attempts", found)

    def for_batch(self) -> str:
        return "batch evidence"


@pytest.fixture
def state(monkeypatch) -> Any:
    """A session of criteria on three nodes; `many` says what was judged at once."""
    items = [item(c, f"n{k}") for c in ("steady", "fleet") for k in range(3)]
    verdicts: dict[Any, str] = {}
    batch = SimpleNamespace(verdicts=verdicts, add=verdicts.update)
    by_criterion = {c: [i for i in items if i.criterion == c] for c in ("steady", "fleet")}
    made = SimpleNamespace(
        items=items, by_criterion=by_criterion, batch=batch, run=None, backend=None,
        stop_requested=False, evidence=Evidence(), siblings={}, population="people",
        thresholds=SimpleNamespace(criteria={
            name: SimpleNamespace(compares_with_fleet=name == "fleet")
            for name in ("steady", "fleet")
        }),
        command=SimpleNamespace(in_verdict=lambda verdict: f"{verdict} with a command"),
        admits=lambda found: found.subject != "n2", many=[], single=[],
    )  # fmt: skip

    def judge_many(judge: Any, items: Any, wanted: Any, *, checkpoint: Any) -> dict[Any, str]:
        made.many.append(wanted)
        return {key: f"batch {key[0]} {key[1]}" for key in wanted}

    def judge_item(found: Item, evidence: Any, **more: Any) -> str:
        made.single.append((found.key, evidence, more["siblings"], more["attempts"]))
        return f"single {found.criterion} {found.subject}"

    monkeypatch.setattr(resolve, "BatchJudge", lambda *given: given)
    monkeypatch.setattr(resolve, "judge_many", judge_many)
    monkeypatch.setattr(resolve, "judge_item", judge_item)
    monkeypatch.setattr(resolve, "gc", SimpleNamespace(freeze=lambda: None))
    monkeypatch.setattr(resolve, "siblings_of", lambda found, others, *_: f"{len(others)} siblings")
    return made


def complete(state: Any) -> None:
    state.backend = SimpleNamespace(no_more_records=lambda: True)
    state.run = SimpleNamespace(scope=state.items[:2])


def test_an_item_is_judged_when_its_record_is_there(state):
    steady = state.items[0]
    assert resolve.verdict_on(state, steady) == "single steady n0 with a command"
    assert state.evidence.waited == [("w", "n0")]
    assert state.evidence.files == []
    ((_, evidence, siblings, attempts),) = state.single
    assert (evidence, attempts) == ("record of n0", ("attempts", "record of n0"))
    assert siblings == resolve.Like()
    not_applicable = item("steady", "n0", not_applicable="no NVLink")
    resolve.verdict_on(state, not_applicable)
    assert state.single[-1][1] is None
    assert len(state.evidence.waited) == 1


def test_an_outlier_is_found_once_the_whole_fleet_is_there(state):
    fleet = state.by_criterion["fleet"]
    for found in fleet[:2]:
        resolve.verdict_on(state, found)
    assert [given[2] for given in state.single] == ["3 siblings"] * 2
    assert state.evidence.files == [("w", "n0"), ("w", "n1"), ("w", "n2")]  # once


def test_where_nothing_more_comes_all_is_judged_at_once(state):
    complete(state)
    first, second, third = state.items[:3]
    assert resolve.verdict_on(state, first) == "batch steady n0 with a command"
    assert state.many == [[first.key, second.key]]
    assert resolve.verdict_on(state, second) == "batch steady n1 with a command"
    assert len(state.many) == 1
    assert resolve.verdict_on(state, third) == "single steady n2 with a command"
    assert len(state.many) == 1  # the rest of the scope has its verdicts


def test_a_worker_or_a_run_that_goes_on_judges_one_by_one(state):
    complete(state)
    state.run = None
    resolve.verdict_on(state, state.items[0])
    complete(state)
    state.backend = SimpleNamespace(no_more_records=lambda: False)
    resolve.verdict_on(state, state.items[0])
    assert (state.many, len(state.single)) == ([], 2)


def test_tests_of_a_node_judge_their_criteria_for_the_whole_fleet(state):
    first = state.items[0]
    assert resolve.verdicts_on(state, [first]) == ["batch steady n0 with a command"]
    assert state.evidence.files == [("w", "n0"), ("w", "n1"), ("w", "n2")]
    assert state.many == [[state.items[0].key, state.items[1].key]]  # n2 is not of this run
    resolve.verdicts_on(state, state.items[:2])
    assert len(state.many) == 1
    absent = state.items[2]
    assert resolve.verdicts_on(state, [absent]) == ["single steady n2 with a command"]
    assert len(state.many) == 1


def test_only_records_that_are_measured_here_are_waited_for(state):
    state.evidence.expected = {("w", "n1")}
    not_applicable = item("steady", "n1", not_applicable="no NVLink")
    resolve._wait_for_records(state, [not_applicable])
    assert state.evidence.files == []
    resolve._wait_for_records(state, [*state.items, not_applicable])
    assert state.evidence.files == [("w", "n1")]


def test_whoever_asks_to_stop_is_heard_before_any_verdict(state):
    state.stop_requested = True
    with pytest.raises(KeyboardInterrupt):
        resolve.verdict_on(state, state.items[0])
    state.stop_requested = False
    assert resolve._no_more_records(state) is False
    complete(state)
    assert resolve._no_more_records(state) is True


def test_there_is_one_reader_of_records_in_a_process(state, monkeypatch):
    reader = state.evidence
    assert resolve._evidence(state) is reader
    state.evidence, state.run = None, SimpleNamespace(evidence=lambda: "of the owner")
    assert resolve._evidence(state) == "of the owner"
    state.evidence, state.run = None, None
    repair = {
        "run": "before", "manifest_sha256": "", "verdict": "ACCEPTED", "nodes": ["n0"], "told": [],
        "created": "1970-01-01T00:00:05+00:00", "not_repeated": [],
    }  # fmt: skip
    stated = {
        "id": "r", "nonce": "x", "created": "1970-01-01T00:01:00+00:00", "recertifies": [repair],
        "session": {"expected": [["w", "n0", 2]], "missing_from": 7},
    }  # fmt: skip
    state.directory = SimpleNamespace(read_run=lambda: stated)
    state.nonce = "x"
    state.thresholds = SimpleNamespace(cluster="order")
    monkeypatch.setattr(resolve.FabricLoad, "of", lambda people, order: ("load", people, order))
    monkeypatch.setattr(resolve, "Evidence", lambda *given, fabric: (*given, fabric))
    found = resolve._evidence(state)
    assert found[:4] == (state.directory, "x", {("w", "n0"): 2}, 7)
    assert found[5] == ("load", "people", "order")
    devices = found[4]
    assert (devices.run_id, devices.population, devices.ended) == ("r", "people", None)
    assert devices.created == 5.0, "records of the run that is recertified count for a worker too"
    assert [one.run for one in devices.repairs] == ["before"]
    assert state.evidence is found
