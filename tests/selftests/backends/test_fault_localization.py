"""The search for the culprit on a cluster: jobs answer, and the judge decides on each rail."""

# Length: all tests of one module, which share a searched fabric and made-up verdicts.

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.backends import fault_localization as module
from fixtures.backends.fault_localization import find_culprits
from fixtures.errors import RunError
from fixtures.localization.culprits import Culprit, Finding
from fixtures.localization.measuring import Measurement, Stopped
from fixtures.plan.items import Item
from fixtures.plan.jobs import Job
from fixtures.records.absence import JobKind
from fixtures.records.files import read_json
from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds import loader
from fixtures.verdict.model import Outcome
from tests.selftests.support import NONCE, SHIPPED, node_record, population
from tests.tools.simulated_fabric import Fabric, names

pytestmark = pytest.mark.cpu

LIMITS = loader.load(SHIPPED)
PEOPLE = replace(population(2, 8, "H200 SXM"), origin="cluster")


# --- the search


class Searched:
    """A run whose nodes fail as those of a fabric do; it remembers the jobs of each round."""

    def __init__(self, folder: Path, fabric: Fabric) -> None:
        self.directory = RunDirectory(folder)
        self.directory.jobs.mkdir(exist_ok=True)
        self.nonce = NONCE
        self.population = SimpleNamespace(gpus_per_node=fabric.rails)
        self.fabric = fabric
        self.rounds: list[list[Job]] = []

    def evidence(self) -> None:
        return None

    def measure(self, jobs: Sequence[Job]) -> None:
        self.rounds.append(list(jobs))

    def failed_rails(self, run: Any, evidence: Any, items: Any, job: Job) -> frozenset[int]:
        asked = Measurement(job.nodes, every_path=bool(job.params.get("every_path")))
        return self.fabric.answer([asked])[0]

    def located(self) -> dict[str, Any] | None:
        return read_json(self.directory.located) if self.directory.located.exists() else None


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Searched]:
    """Search a fabric where these criteria failed between nodes."""

    def run(
        fabric: Fabric, *, failed: Sequence[str] = ("allreduce.cluster",), items: Any = ("rail",),
        pairs: Any = None, answers: Any = None, known: Any = None,
    ) -> Searched:  # fmt: skip
        made = Searched(tmp_path, fabric)
        found = list(failed), dict(pairs or {})
        monkeypatch.setattr(module, "_failed_between_nodes", lambda run, evidence: found)
        monkeypatch.setattr(module, "_rails_items", lambda run: list(items))
        monkeypatch.setattr(module, "_nodes_with_bad_nics", lambda *_: dict(known or {}))
        monkeypatch.setattr(module, "_leaf_switches", lambda nodes: {})
        monkeypatch.setattr(module, "_failed_rails", answers or made.failed_rails)
        find_culprits(made, fabric.nodes, made.measure)  # type: ignore[arg-type]
        return made

    return run


def broken(count: int, rails: int = 1) -> Fabric:
    fabric = Fabric(names(count), rails=rails)
    fabric.break_node(fabric.nodes[0])
    return fabric


@pytest.mark.parametrize("count", [3, 16])
def test_the_culprit_is_named_with_all_that_was_measured(search, count):
    made = search(broken(count, rails=2))
    data = made.located()
    assert data is not None
    assert [c["nodes"] for c in data["culprits"]] == [["n0000"]]
    assert (data["explained"], data["why"]) == (True, "")
    assert data["because"] == ["allreduce.cluster"]
    assert len(data["rounds"]) == len(made.rounds)
    first = data["rounds"][0][0]
    assert first["placement"] == made.rounds[0][0].placement == "locate-1"
    assert first["nodes"] == list(made.rounds[0][0].nodes)
    assert (first["every_path"], first["failed_rails"]) == (False, [0, 1])
    placements = [job.placement for jobs in made.rounds for job in jobs]
    assert len(set(placements)) == len(placements)


def test_there_is_no_search_without_three_nodes_a_failure_and_a_limit(search):
    assert search(broken(2)).located() is None
    assert search(broken(8), failed=()).located() is None
    assert search(broken(8), items=()).located() is None


def test_only_pairs_of_nodes_that_take_part_are_known(search, monkeypatch):
    told = []
    real = module.group_testing.search

    def remembered(nodes: Any, **more: Any) -> Any:
        told.append(more)
        return real(nodes, **more)

    monkeypatch.setattr(module.group_testing, "search", remembered)
    known = {("n0000", "n0001"): False, ("n0002", "away"): True, ("n0002", "n0003"): True}
    search(broken(8, rails=4), pairs=known)
    del known["n0002", "away"]
    assert (told[0]["measured_pairs"], told[0]["rails"]) == (known, 4)


def test_what_does_not_fail_again_or_fails_at_times_is_said(search):
    data = search(Fabric(names(8))).located()
    assert (data["culprits"], data["why"]) == ([], module.NOT_REPRODUCED)
    turns = itertools.count()
    data = search(Fabric(names(8)), answers=lambda *_: frozenset({0} if not next(turns) else ()))
    assert data.located()["why"] == module.NOT_CONFIRMED


def test_a_group_that_could_not_be_measured_is_told_to_the_search_which_goes_on(
    search, monkeypatch
):
    told: list[Any] = []

    def asks(nodes: Any, **_: Any) -> Iterator[Any]:
        told.append((yield [Measurement(nodes[:2]), Measurement(nodes[2:])]))
        told.append((yield [Measurement(nodes)]))
        return Finding(culprits=(Culprit(kind="node", nodes=nodes[:1]),))

    monkeypatch.setattr(module.group_testing, "search", asks)
    answers = iter([None, frozenset(), frozenset({0})])
    data = search(broken(8), answers=lambda *_: next(answers)).located()
    assert told == [[None, frozenset()], [frozenset({0})]]
    assert [[job["failed_rails"] for job in jobs] for jobs in data["rounds"]] == [[None, []], [[0]]]
    assert (data["explained"], data["why"]) == (True, "")


def nic_of(node: str) -> dict[str, Any]:
    return {"kind": "nic", "nodes": [node], "rails": [3], "line": f"{node} mlx5_3, by x"}


def test_a_nic_that_failed_by_itself_explains_what_failed_where_the_others_pass(search):
    known = {"n0000": nic_of("n0000")}
    made = search(broken(8), known=known)
    assert all("n0000" not in job.nodes for jobs in made.rounds for job in jobs)
    data = made.located()
    assert (data["culprits"], data["explained"], data["why"]) == ([nic_of("n0000")], True, "")


def test_what_fails_without_the_known_nic_is_searched(search):
    fabric = broken(16)
    fabric.break_node(fabric.nodes[7])
    data = search(fabric, known={"n0000": nic_of("n0000")}).located()
    assert [c["nodes"] for c in data["culprits"]] == [["n0000"], ["n0007"]]
    assert data["explained"]


def test_a_search_that_goes_on_is_ended_after_150_rounds(search, monkeypatch):
    """Twice what a node that fails at times takes on average."""
    certain = Finding(culprits=(Culprit(kind="node", nodes=("n0001",)),), explained=False)

    def endless(nodes: Any, **_: Any) -> Iterator[Any]:
        try:
            while True:
                yield [Measurement(nodes)]
        except Stopped:
            return certain

    monkeypatch.setattr(module.group_testing, "search", endless)
    made = search(broken(8))
    assert len(made.rounds) == 150
    data = made.located()
    assert "150 rounds" in data["why"]
    assert [c["nodes"] for c in data["culprits"]] == [["n0001"]]


def test_jobs_of_an_earlier_session_keep_their_names(tmp_path):
    directory = RunDirectory(tmp_path)
    for k in (1, 3):
        directory.job(f"locate-{k}").mkdir(parents=True)
    assert list(itertools.islice(module._free_numbers(directory), 3)) == [2, 4, 5]


# --- what failed between nodes


def item(criterion: str, *nodes: str, **more: Any) -> Item:
    placement = "--".join(nodes)
    return Item(
        criterion=criterion, subject=placement, nodes=nodes, workload="allreduce",
        placement=placement, **more,
    )  # fmt: skip


PAIR, OTHER = "allreduce.pair.256MiB", "allreduce.pair.1GiB"
CLUSTER = "allreduce.cluster.256MiB"


def failed_between(monkeypatch, verdicts: dict[Item, tuple[Outcome, str | None]], missing=None):
    """Of rows with these outcomes and records, and reasons of what is missing by placement."""
    asked: list[Any] = []

    def judge_many(judge: Any, items: Any, keys: Any) -> Any:
        asked.extend(keys)
        found = {i.key: SimpleNamespace(outcome=o, record=r) for i, (o, r) in verdicts.items()}
        return SimpleNamespace(verdicts=found)

    monkeypatch.setattr(module, "judge_many", judge_many)
    monkeypatch.setattr(module, "BatchJudge", lambda *_: None)
    evidence: Any = SimpleNamespace(
        for_batch=lambda: None, get=lambda workload, placement: (missing or {}).get(placement)
    )
    run: Any = SimpleNamespace(
        scope=list(verdicts), items=list(verdicts), thresholds=LIMITS, population=PEOPLE
    )
    return *module._failed_between_nodes(run, evidence), asked


PASS, FAIL = (Outcome.PASS, "r.json"), (Outcome.FAIL, "r.json")
NONE = (Outcome.NOT_MEASURED, None)


def test_failures_between_nodes_are_named_and_pairs_are_told_by_all_of_their_rows(monkeypatch):
    failed, passed, _ = failed_between(monkeypatch, {
        item(PAIR, "a", "b"): PASS, item(OTHER, "a", "b"): FAIL,
        item(PAIR, "c", "d"): FAIL, item(OTHER, "c", "d"): PASS,
        item(PAIR, "e", "f"): PASS, item(CLUSTER, "a", "b", "c"): FAIL,
    })  # fmt: skip
    assert failed == [f"{OTHER} a--b", f"{PAIR} c--d", f"{CLUSTER} a--b--c"]
    assert passed == {("a", "b"): False, ("c", "d"): False, ("e", "f"): True}


def test_what_hung_has_failed_and_what_is_missing_for_another_reason_is_unknown(monkeypatch):
    missing = {
        "a--b": {"kind": str(JobKind.RANK_HUNG)}, "c--d": {"kind": str(JobKind.LEFT_OUT)},
        "g--h": {"kind": str(JobKind.NCCL_TIMEOUT)},
    }  # fmt: skip
    rows = {item(PAIR, *pair): NONE for pair in ("ab", "cd", "ef", "gh")}
    failed, passed, _ = failed_between(monkeypatch, rows, missing)
    assert failed == [f"{PAIR} a--b", f"{PAIR} g--h"]
    assert passed == {("a", "b"): False, ("g", "h"): False}
    # A record that was judged counts, whatever is missing beside it.
    measured = {item(PAIR, "a", "b"): PASS}
    assert failed_between(monkeypatch, measured, missing)[:2] == ([], {("a", "b"): True})


def test_only_rates_and_times_between_nodes_that_are_judged_count(monkeypatch):
    rows = {
        item(PAIR, "a", "b"): PASS,
        item(PAIR, "c", "d", not_applicable="no"): FAIL,
        item(PAIR, "e", "f", recorded=True): FAIL,
        item("allreduce.node.256MiB", "a"): FAIL,
        item("gemm.bf16", "a", "b"): FAIL,
    }
    failed, passed, asked = failed_between(monkeypatch, rows)
    assert (failed, passed, asked) == ([], {("a", "b"): True}, [(PAIR, "a--b")])


# --- rails, and who is behind which switch


def test_rails_are_judged_by_the_limits_of_the_ring_of_a_rail(monkeypatch):
    def criteria(people: Any) -> list[str]:
        run: Any = SimpleNamespace(thresholds=LIMITS, population=people)
        items = module._rails_items(run)
        assert all((i.placement, i.nodes) == ("all", people.nodes) for i in items)
        return [i.criterion for i in items]

    both = ["rails.sendrecv.256MiB", "rails.sendrecv.1GiB"]
    assert criteria(PEOPLE) == both
    assert criteria(replace(PEOPLE, gpus_per_node=1)) == both
    assert criteria(replace(PEOPLE, nodes=("worker0",))) == []


def test_rings_that_are_measured_in_another_way_are_not_those_of_the_search():
    known = LIMITS.criteria["rails.sendrecv.1GiB"]
    others = {"other": replace(known, key="other", workload="rails_nic"),
              "pair": replace(known, key="pair", per="pair")}  # fmt: skip
    limits = SimpleNamespace(
        criteria={known.key: known, **others}, not_applicable=LIMITS.not_applicable
    )
    run: Any = SimpleNamespace(thresholds=limits, population=PEOPLE)
    assert [i.criterion for i in module._rails_items(run)] == [known.key]


TOPOLOGY = """\
SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n3 word
SwitchName=leaf2 Level=0 LinkSpeed=1
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf[0-2]
"""


def test_leaf_switches_are_known_where_slurm_names_one_for_every_node(monkeypatch):
    monkeypatch.setattr(module, "slurm_query", lambda *_: TOPOLOGY)
    assert module._leaf_switches(("n1", "n3")) == {"n1": "leaf0", "n3": "leaf1"}
    assert module._leaf_switches(("n1", "n4")) == {}

    def refuses(*_: str) -> str:
        raise RunError("no topology plugin")

    monkeypatch.setattr(module, "slurm_query", refuses)
    assert module._leaf_switches(("n1",)) == {}


# --- one round


@pytest.mark.parametrize(("every_path", "params"), [(True, {"every_path": True}), (False, {})])
def test_a_group_is_measured_by_a_job_with_a_rank_on_each_rail(every_path, params):
    job = module._job("locate-7", Measurement(("a", "b"), every_path), 4)
    assert (job.name, job.placement, job.stage) == ("locate-7", "locate-7", "locate")
    assert (job.nodes, job.ranks_per_node, job.gpus_per_node) == (("a", "b"), 4, 4)
    assert (job.workloads, job.params) == ((("rails", ("busbw",)),), params)


JOB = module._job("locate-7", Measurement(("a", "b")), 2)
RAIL = item("rails.sendrecv.256MiB", "a", "b")


def failed_rails(monkeypatch, found: Any, outcomes: dict[str, Outcome] | None = None):
    """By what stands in the place of the record, and the outcome of each rail."""

    def judge(rail_item: Item, record: Any, **_: Any) -> Any:
        assert (rail_item.nodes, rail_item.placement) == (("a", "b"), "locate-7")
        return SimpleNamespace(outcome=(outcomes or {})[rail_item.subject], reason="unclear")

    monkeypatch.setattr(module, "judge_item", judge)
    evidence: Any = SimpleNamespace(get=lambda workload, placement: found)
    run: Any = SimpleNamespace(thresholds=LIMITS, population=PEOPLE)
    return module._failed_rails(run, evidence, [RAIL], JOB)


def test_each_rail_fails_by_its_own_verdict(monkeypatch):
    record = node_record(1, 1)
    rails = {"rail0": Outcome.PASS, "rail1": Outcome.FAIL}
    assert failed_rails(monkeypatch, record, rails) == {1}
    assert failed_rails(monkeypatch, record, dict.fromkeys(rails, Outcome.PASS)) == set()
    unknown = {**rails, "rail1": Outcome.NOT_MEASURED}
    assert failed_rails(monkeypatch, record, unknown) is None
    assert failed_rails(monkeypatch, record, {**unknown, "rail0": Outcome.FAIL}) == {0}


def test_a_group_that_hung_failed_on_all_rails_and_any_other_has_no_answer(monkeypatch):
    for kind in (JobKind.RANK_HUNG, JobKind.NCCL_TIMEOUT, JobKind.RUN_TIMEOUT):
        assert failed_rails(monkeypatch, {"kind": str(kind)}) == {0, 1}
    lost = {"kind": str(JobKind.NODE_LOST), "reason": "b is gone"}
    assert failed_rails(monkeypatch, lost) is None
    assert failed_rails(monkeypatch, None) is None


# --- NICs that failed by themselves

STATE = "infiniband.state"


def bad_nics(monkeypatch, tmp_path, count: int, failed: dict[str, str | None], **more: Any):
    """Of so many nodes, of which these have a NIC that failed (None: the row names none)."""
    nodes = names(count)
    items = [item(STATE, node, **more) for node in nodes]
    verdicts = {
        i.key: SimpleNamespace(
            outcome=Outcome.FAIL if i.subject in failed else Outcome.PASS,
            worst={"part": failed[i.subject]} if failed.get(i.subject) else None,
        )
        for i in items
    }
    monkeypatch.setattr(module.RunReader, "rail_of", lambda self, node, nic: {"mlx5_3": 3}.get(nic))
    monkeypatch.setattr(module, "BatchJudge", lambda *_: None)
    monkeypatch.setattr(
        module, "judge_many",
        lambda judge, items, keys: SimpleNamespace(verdicts={key: verdicts[key] for key in keys}),
    )  # fmt: skip
    run: Any = SimpleNamespace(
        scope=[*items, item("gemm.bf16", nodes[0]), item(PAIR, *nodes[:2])], items=items,
        thresholds=LIMITS, population=PEOPLE, directory=RunDirectory(tmp_path), devices=None,
    )  # fmt: skip
    return module._nodes_with_bad_nics(run, SimpleNamespace(for_batch=lambda: None), nodes)


def test_nodes_whose_nic_failed_a_criterion_of_its_own_are_known_before_the_search(
    monkeypatch, tmp_path
):
    found = bad_nics(
        monkeypatch, tmp_path, 12, {"n0001": "mlx5_3", "n0002": "mlx5_9", "n0003": None}
    )
    assert list(found) == ["n0001", "n0002"]
    assert (found["n0001"]["kind"], found["n0001"]["rails"]) == ("nic", [3])
    assert found["n0001"]["line"] == "n0001 mlx5_3, by infiniband.state"
    assert found["n0002"]["rails"] == []
    for more in ({"not_applicable": "no"}, {"recorded": True}):
        assert bad_nics(monkeypatch, tmp_path, 12, {"n0001": "mlx5_3"}, **more) == {}


def test_where_the_nics_of_more_than_a_quarter_of_the_nodes_fail_all_are_searched(
    monkeypatch, tmp_path
):
    failed = dict.fromkeys(names(3), "mlx5_3")
    assert list(bad_nics(monkeypatch, tmp_path, 12, failed)) == [*names(3)]
    assert bad_nics(monkeypatch, tmp_path, 11, failed) == {}
