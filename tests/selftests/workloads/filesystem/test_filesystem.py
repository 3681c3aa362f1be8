"""The workload of the shared directory without Slurm: what it measures, and what it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.cluster import shared_directory
from fixtures.records.model import Result
from fixtures.thresholds.contract import Contract
from fixtures.workloads.filesystem import filesystem, filesystem_child
from fixtures.workloads.filesystem.filesystem_checks import Faults
from tests.selftests.threads import Meeting, as_ranks

pytestmark = pytest.mark.cpu

ALL = list(filesystem.WORKLOAD.metrics)


@dataclass
class Node:
    """As much of Ranks as the workload takes: the only rank of its node."""

    rank: int
    nodes: list[str]
    meeting: Meeting
    spec: dict[str, Any]
    ranks_per_node: int = 1
    demonstration: bool = True
    on_gpu: bool = False
    leads_node: bool = True

    @property
    def node(self) -> str:
        return self.nodes[self.rank]

    def gather(self, item: Any) -> list[Any]:
        return self.meeting.gather(self.rank, item)


def run(*directories: Path, login: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """The workload on as many nodes, each with what it sees as the shared directory."""
    nodes = [f"worker{k}" for k in range(len(directories))]
    meeting = Meeting(len(nodes))

    def one(rank: int) -> Result:
        order = {"path": str(directories[rank]), "login": login or {}}
        spec = {"run_id": "run", "job": "cluster", "nonce": "nonce", "shared_directory": order}
        return filesystem.run(Node(rank, nodes, meeting, spec), ALL)  # type: ignore[arg-type]

    return {
        node: {m.metric: m.value for m in result.measurements}
        for node, result in zip(nodes, as_ranks(len(nodes), one), strict=True)
    }


def folders(root: Path, *names: str) -> list[Path]:
    for name in set(names):
        (root / name).mkdir()
    return [root / name for name in names]


# --- the workload


def test_healthy_directory_is_measured_whole_and_left_empty(tmp_path: Path):
    found = run(tmp_path, tmp_path, tmp_path)
    for values in found.values():
        assert set(values) == set(ALL)
        assert (values["directory"], values["same"]) == ("usable", "same")
        assert [values[m] for m in ("coherence", "append", "flock", "writes")] == [0, 0, 0, 0]
    assert list(tmp_path.iterdir()) == []


def test_single_node_has_nobody_to_agree_with(tmp_path: Path):
    (values,) = run(tmp_path).values()
    alone = {"directory", "size", "free", "write.alone", "read.alone", "metadata", "stalls"}
    assert set(values) == alone


def test_majority_has_the_right_directory(tmp_path: Path):
    wrong, right, _ = folders(tmp_path, "wrong", "right", "right")
    found = run(wrong, right, right)
    assert found["worker0"]["same"].startswith("another directory: it shows no file of worker1")
    assert {"coherence", "write.alone", "size"}.isdisjoint(found["worker0"])
    assert found["worker2"]["same"] == "same"
    assert set(found["worker2"]) == set(ALL)
    assert list(wrong.iterdir()) == list(right.iterdir()) == []


def test_login_node_decides_between_two(tmp_path: Path):
    wrong, right = folders(tmp_path, "wrong", "right")
    login = filesystem_child.describe(str(right))
    found = run(wrong, right, login=login)
    assert found["worker0"]["same"].startswith("another directory")
    assert found["worker1"]["same"] == "same"
    # Alone, it has nobody to show anything to: nothing of that passes.
    assert "coherence" not in found["worker1"]


def test_node_without_the_directory_leaves_the_others_to_go_on(tmp_path: Path):
    (right,) = folders(tmp_path, "right")
    found = run(right, tmp_path / "missing", right)
    assert found["worker1"] == {"directory": "No such file or directory in stat()"}
    assert set(found["worker0"]) == set(ALL)


# --- the login side


def order(directory: Path | str) -> Contract:
    return Contract(nodes=2, gpus_per_node=1, gpu_model="cpu", shared_directory=str(directory))


def test_login_node_describes_the_ordered_directory(tmp_path: Path):
    found = shared_directory.describe_for_spec(order(tmp_path))
    assert found is not None
    assert found["path"] == str(tmp_path)
    assert found["login"]["inode"] == tmp_path.stat().st_ino


def test_login_node_without_the_directory_says_nothing(tmp_path: Path):
    assert shared_directory.describe_for_spec(None) is None
    found = shared_directory.describe_for_spec(order(tmp_path / "missing"))
    assert found == {"path": str(tmp_path / "missing"), "login": {}}


# --- what is made of the answers of all nodes


def findings(*members: str, node: str = "a") -> filesystem.Findings:
    team: Any = SimpleNamespace(node=node, errors={}, members=list(members) or ["a", "b"])
    found = filesystem.Findings(team)
    found.mounts = {n: {"bytes": 4 * 10**12, "available": 10**12} for n in team.members}
    found.nodes_compared = 2
    return found


def values(found: filesystem.Findings, *metrics: str) -> dict[str, Any]:
    return {m.metric: m.value for m in found.result(list(metrics) or ALL, "/d").measurements}


def test_a_usable_directory_has_its_size_and_free_space():
    found = findings()
    assert values(found) == {"directory": "usable", "same": "same", "size": 4, "free": 25}
    result = found.result(["size"], "/d")
    assert [(m.metric, dict(m.at)) for m in result.measurements] == [("size", {"part": "/d"})]
    assert result.facts["mount"] == found.mounts["a"]
    found.mounts = {"a": {"bytes": 0, "available": 0}}
    assert values(found)["free"] == 0
    found.nodes_compared = 1
    assert "same" not in values(found), "nobody to compare it with"
    found.other_directory = {"a": "another directory"}
    assert values(found) == {"directory": "usable", "same": "another directory"}
    found.mounts = {}
    found.other_directory = {}
    assert values(found) == {"directory": "usable"}


@pytest.mark.parametrize(
    ("kind", "number", "expected"),
    [
        ("hung", 0, {"directory": "why", "size": 4, "free": 25}),
        ("lost", 0, {"size": 4, "free": 25}),
        ("failed", 5, {"directory": "why", "size": 4, "free": 25}),
        ("failed", 28, {"size": 4, "free": 0}),
        ("failed", 122, {"size": 4, "free": 0}),
    ],
    ids=["hung", "lost", "input/output error", "full", "over quota"],
)
def test_an_error_of_the_directory_is_no_error_of_the_probe_or_of_its_space(kind, number, expected):
    found = findings()
    found.team.errors["a"] = {"kind": kind, "errno": number, "text": "why"}
    assert values(found) == expected
    (free,) = found.result(["free"], "/d").measurements
    assert free.notes == (["why"] if expected["free"] == 0 else [])


def test_faults_of_a_member_are_counted_with_four_notes():
    found = findings()
    found.faults = {"append": Faults({"a": 7, "b": 0}, {"a": list("12345"), "b": []})}
    (row,) = found.result(["append"], "/d").measurements
    assert (row.value, row.unit, row.notes) == (7, "lines", list("1234"))
    found.team.node = "c"
    assert found.result(["append"], "/d").measurements == []
    found.team.node = "a"
    found.team.members = ["b"]
    assert found.result(["append"], "/d").measurements == [], "it fell out of the team"


def test_the_time_until_new_names_are_seen_is_the_median_of_those_that_were():
    found = findings()
    found.views_by_change = {
        "created": {"a": [{"seconds": 1.0}, {"seconds": None}], "b": [{"seconds": 9.0}]},
        "renamed": {"a": [{"seconds": 3.0}]}, "deleted": {"a": [{"seconds": 99.0}]},
    }  # fmt: skip
    assert values(found)["visibility"] == 2
    found.views_by_change = {"created": {"a": None}, "renamed": {"a": [{"seconds": None}]}}
    assert "visibility" not in values(found)


def test_rates_are_medians_and_their_stalls_are_beside_them():
    found = findings()
    found.rates = {
        "write.alone": {"a": {"samples": [2.0, 2.0, 1.0]}, "b": None}, "read.alone": {"a": None},
        "metadata": {"a": {"samples": [50.0]}},
    }  # fmt: skip
    rows = found.result(ALL, "/d").measurements[4:]
    assert [(m.metric, m.value, m.unit, m.at["part"], m.checks["rounds"]) for m in rows] == [
        ("write.alone", 2, "GB/s", "/d", 3), ("stalls", 25, "%", "write.alone", 3),
        ("metadata", 50, "ops/s", "/d", 1), ("stalls", 0, "%", "metadata", 1),
    ]  # fmt: skip


def test_rounds_lose_what_they_took_longer_than_their_median():
    assert filesystem.lost_to_stalls([1.0, 1.0, 1.0]) == 0
    # Three rounds of 1, 1 and 3 seconds of equal work: 0.6 of the median rate.
    assert filesystem.lost_to_stalls([1.0, 1.0, 1 / 3]) == 40
    assert filesystem.lost_to_stalls([1.0, 1.0, 9.0]) == 0


class Team:
    """A team whose answers a test gives; what it was asked."""

    def __init__(self, *members: str, answers: dict[str, Any] | None = None) -> None:
        self.members, self.node = list(members), "a"
        self.answers = answers or {}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.excluded: list[str] = []
        self.ranks = SimpleNamespace(spec={"nonce": "text"})
        self.scale = SimpleNamespace(
            visibility_timeout_s=2, streams=2, seconds=3, rounds=4, shard_bytes=100, files=5
        )

    def peers(self, node: str) -> list[str]:
        return [n for n in self.members if n != node]

    def ask(self, operation: str, **arguments: Any) -> Any:
        self.asked.append((operation, arguments))
        return self.answers.get(operation)

    def gather_results(self, result: Any = None) -> dict[str, Any]:
        return dict.fromkeys(self.members, result)

    def ask_all(self, operation: str, **arguments: Any) -> Any:
        self.asked.append((operation, arguments))
        return self.answers.get(operation, {})

    def exclude(self, nodes: list[str]) -> None:
        self.excluded += nodes
        self.members = [n for n in self.members if n not in nodes]


def view(seen: bool) -> dict[str, Any]:
    return {"seconds": 0.1 if seen else None}


def test_nodes_that_do_not_see_the_others_files_are_in_another_directory():
    answers = {n: [view(p != "c") for p in "abc" if p != n] for n in "ab"}
    answers["c"] = [view(False), view(False)]
    team: Any = Team("a", "b", "c", answers={"see": answers})
    found = filesystem.Findings(team)
    mount = {"type": "nfs", "source": "s:/x", "mount": "/d"}
    found.mounts = dict.fromkeys("abc", mount)
    views = filesystem._find_each_other(team, found, "/w", {})
    assert team.asked[0][1] == {
        "wanted": [{"path": f"/w/here-{n}", "text": "text"} for n in "bc"], "timeout_s": 2,
    }  # fmt: skip
    assert (team.excluded, found.nodes_compared) == (["c"], 3)
    assert found.other_directory["c"].endswith("it shows no file of a (nfs s:/x on /d)")
    assert views == {"a": [view(True)], "b": [view(True)]}
    nobody: Any = Team("a", "b")
    assert filesystem._find_each_other(nobody, filesystem.Findings(nobody), "/w", {}) == {}
    assert nobody.members == ["a", "b"]


def test_checks_are_made_of_what_is_asked_for_and_by_two_nodes_at_least(
    monkeypatch: pytest.MonkeyPatch,
):
    made: list[str] = []
    for name in ("coherence", "appends", "locks", "blocks"):

        def check(*_: Any, name: str = name) -> Any:
            made.append(name)
            return ("faults", {"created": {}}) if name == "coherence" else "faults"

        monkeypatch.setattr(filesystem.checks, name, check)
    for members, metrics, expected in (
        ("ab", ["coherence"], ["coherence"]), ("ab", ["visibility"], ["coherence"]),
        ("ab", ["append"], ["appends"]), ("ab", ["flock"], ["locks"]),
        ("ab", ["writes"], ["blocks"]), ("ab", [], []),
        ("a", ["append", "flock", "writes"], []),
    ):  # fmt: skip
        made.clear()
        team: Any = Team(*members)
        found = filesystem.Findings(team)
        filesystem._run_checks(team, found, "/w", metrics, {}, {})
        assert made == expected
        assert set(found.faults.values()) <= {"faults"}
        assert bool(found.views_by_change) is (expected == ["coherence"])


RATES = {
    "write_shards": {"samples": [1.0], "size": 64}, "read_shards": {"samples": [2.0]},
    "metadata": {"a": {"samples": [3.0]}},
}  # fmt: skip


def rates(*members: str, metrics: list[str]) -> tuple[Any, dict[str, Any]]:
    team: Any = Team(*members, answers=RATES)
    found = filesystem.Findings(team)
    found.mounts = {"a": {"available": 5000}}
    filesystem._measure_rates(team, found, "/w", metrics)
    return team, found.rates


def test_each_node_reads_what_another_wrote_alone_and_together():
    every = ["read.alone", "read.together", "metadata"]
    team, found = rates("a", "b", metrics=every)
    assert list(found) == ["write.alone", "write.together", *every]
    asked = [(name, more["pace"]["hold"]) for name, more in team.asked if "pace" in more]
    assert asked == [
        ("write_shards", False), ("write_shards", True), ("read_shards", False),
        ("read_shards", True),
    ]  # fmt: skip
    given = dict(team.asked)
    assert (given["write_shards"]["room"], given["write_shards"]["largest"]) == (100, 100)
    assert (given["read_shards"]["path"], given["read_shards"]["size"]) == ("/w/shard-b", 64)
    assert [name for name, _ in team.asked].count("halt") == 2
    alone, found = rates("a", metrics=every)
    assert list(found) == ["write.alone", "read.alone", "metadata"]
    assert dict(alone.asked)["read_shards"]["path"] == "/w/shard-a"
    _, found = rates("a", "b", metrics=[])
    assert list(found) == ["write.alone", "write.together"]
    outside, found = rates("b", "c", metrics=["read.together"])
    assert "read_shards" not in dict(outside.asked), "a node outside the team reads nothing"


def test_the_directory_is_the_ordered_one_or_the_run_s(tmp_path: Path):
    for spec, directory in (
        ({"shared_directory": {"path": f"{tmp_path}/"}}, str(tmp_path)),
        ({"shared_directory": None, "run_directory": str(tmp_path)}, str(tmp_path)),
        ({"run_directory": str(tmp_path)}, str(tmp_path)),
    ):
        given = {"run_id": "run", "job": "cluster", "nonce": "nonce", **spec}
        node: Any = Node(0, ["n0"], Meeting(1), given)
        found = filesystem.run(node, ["directory"])
        assert found.facts["directory"] == directory
        assert [m.value for m in found.measurements] == ["usable"]
    node.leads_node = False
    assert filesystem.run(node, ["directory"]).facts == {}
