"""The culprit on a real Slurm: a node behind a slow link, and what is said of a search."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fixtures.backends import fault_localization
from fixtures.conclusion.node_lists import RowNodes, lists_of_run
from fixtures.localization.culprits import Culprit, Finding
from fixtures.records import located
from fixtures.records.files import read_json
from fixtures.records.run_directory import RunDirectory
from fixtures.sandbox import Sandbox
from fixtures.verdict.model import Outcome, Verdict
from tests.selftests.sandboxes import on, queued, suite

pytestmark = pytest.mark.cpu


@pytest.mark.slow
def test_the_node_behind_a_slow_link_is_named_and_not_the_rank_that_waits_for_it(
    machine: None, checkout: Path, tmp_path: Path
) -> None:
    with Sandbox.up(nodes=4, gpus=1) as sandbox:
        sandbox.slow_link("worker2", "100mbit")
        done = suite(checkout, tmp_path / "run", "tests/test_collectives.py", "-k",
                     "sendrecv.cluster.16MiB", env=on(sandbox))  # fmt: skip
        assert queued(sandbox) == {}
    done.ended_as("REJECTED", 1)
    found = read_json(done.directory.located)
    assert found["because"] == ["sendrecv.cluster.16MiB cluster"]
    assert [(c["kind"], c["nodes"]) for c in found["culprits"]] == [("node", ["worker2"])]
    assert {tuple(g["nodes"]) for r in found["rounds"] for g in r if g["failed_rails"]} == {
        (f"worker{a}", f"worker{b}") for a, b in ((0, 2), (1, 2), (2, 3))
    }
    assert (done.root / "bad-nodes.txt").read_text() == "worker2\n"
    assert any(
        r.startswith("located: worker2 (6 jobs in 3 rounds") for r in done.verdict["reasons"]
    )

    again = suite(checkout, tmp_path / "again", "-m", "multinode", "--cluster", "replay",
                  f"--from={done.root}")  # fmt: skip
    assert again.verdict["reasons"] == done.verdict["reasons"]
    assert (again.root / "bad-nodes.txt").read_text() == "worker2\n"


def test_a_healthy_run_searches_nothing(healthy) -> None:
    assert not healthy.directory.located.exists()


# --- what is said of a search


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    found = RunDirectory(tmp_path)
    found.jobs.mkdir()
    return found


def write(directory: RunDirectory, finding: Finding, why: str = "") -> None:
    job = {"placement": "locate-1", "nodes": ["n1", "n2"], "failed_rails": [0]}
    located.write(
        directory, "nonce", because=["x y"], culprits=finding.culprits_json(),
        explained=finding.explained, rounds=[[job]], why=why,
    )  # fmt: skip


def found(directory: RunDirectory) -> located.Search:
    search = located.found(directory, "nonce")
    assert search is not None
    return search


def test_a_bad_path_takes_no_node_out_of_service(directory: RunDirectory) -> None:
    link = Culprit(kind="link", nodes=("n1", "n2"), rails=frozenset([0]))
    nic = Culprit(kind="nic", nodes=("n3",), rails=frozenset([5]))
    write(directory, Finding(culprits=(link, nic)))
    assert found(directory).at_fault == ("n3",)
    cost = "(1 job in 1 round, jobs/located.json)"
    assert located.lines(directory, "nonce") == [
        f"located: the path between n1 and n2, not the nodes {cost}",
        f"located: n3, rail 5 {cost}",
    ]


def test_what_was_not_explained_accuses_nobody_and_says_so(directory: RunDirectory) -> None:
    write(directory, Finding(explained=False), "the search ended after 150 rounds")
    assert (found(directory).at_fault, found(directory).explained) == ((), False)
    (line,) = located.lines(directory, "nonce")
    assert line.startswith("not all located: the search ended after 150 rounds")


def test_what_was_confirmed_until_the_search_had_to_end_is_at_fault(
    directory: RunDirectory,
) -> None:
    node = Culprit(kind="node", nodes=("n1",), rails=frozenset([0]))
    write(directory, Finding(culprits=(node,), explained=False), "the search ended after 60 rounds")
    assert (found(directory).at_fault, found(directory).explained) == (("n1",), False)
    first, second = located.lines(directory, "nonce")
    assert first.startswith("found so far, with others still unknown: n1 (1 job")
    assert second.startswith("not all located: the search ended after 60 rounds")


def test_a_failure_that_does_not_repeat_is_said_to_be_so(directory: RunDirectory) -> None:
    write(directory, Finding(reproduced=False), fault_localization.NOT_REPRODUCED)
    assert not found(directory).explained
    (line,) = located.lines(directory, "nonce")
    assert line.startswith("nothing located: all nodes together passed nine times as a ring")


@pytest.mark.parametrize("text", ["", "{", json.dumps({"schema": 1, "nonce": "another"})])
def test_a_search_of_another_run_or_torn_is_none(directory: RunDirectory, text: str) -> None:
    directory.located.write_text(text)
    assert located.found(directory, "nonce") is None
    assert located.lines(directory, "nonce") == []


@pytest.mark.parametrize("kind", located.SUSPECT_PLACES)
def test_the_nodes_of_an_accused_place_are_neither_good_nor_bad(
    directory: RunDirectory, kind: str
) -> None:
    place = Culprit(kind=kind, place="leaf3", nodes=("n1", "n2"), rails=frozenset([0]))
    node = Culprit(kind="node", nodes=("n3",), rails=frozenset([0]))
    write(directory, Finding(culprits=(place, node)))
    assert (found(directory).at_fault, found(directory).in_doubt) == (("n3",), ("n1", "n2"))
    verdicts = [
        Verdict(criterion="alone", title="", subject=name, outcome=Outcome.PASS)
        for name in ("n1", "n2", "n3", "n4")
    ]
    worst = {"node": "n1"}
    verdicts.append(
        Verdict(criterion="together", title="", subject="cluster", outcome=Outcome.FAIL,
                unit="GB/s", worst=worst)
    )  # fmt: skip
    nodes = ("n1", "n2", "n3", "n4")
    lists = lists_of_run(directory, "nonce", verdicts, RowNodes(nodes, {}), lambda node, nic: None)
    assert (lists.good, lists.bad) == (["n4"], ["n3"])
    assert lists.reasons[0].startswith("n1 neither: the search accuses what it shares")


def test_what_failed_once_without_a_culprit_says_so(directory: RunDirectory) -> None:
    write(directory, Finding(explained=False), fault_localization.NOT_CONFIRMED)
    assert (found(directory).at_fault, found(directory).explained) == ((), False)
    (line,) = located.lines(directory, "nonce")
    assert line.startswith("not all located: groups failed at times, but no node, path or uplink")


def test_every_kind_of_culprit_has_a_line() -> None:
    kinds = ("node", "nic", "link", "leaf", "switch", "uplink", "spine", "rail", "fabric")
    said = {k: Culprit(kind=k, nodes=("a", "b"), rails=frozenset([1, 0])).line for k in kinds}
    assert len(set(said.values())) == len(kinds)
    assert said["rail"] == "rail 0, 1 on all nodes"
    assert Culprit(kind="switch", nodes=("a", "b")).line.startswith("what a, b share")
