"""Checks of a shared directory that take several nodes, and whom they blame."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.workloads.filesystem import filesystem_checks
from fixtures.workloads.filesystem.filesystem_checks import Faults
from tests.selftests.workloads.filesystem import test_filesystem

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("got", "odd", "blamed"),
    [
        ({"a": ["b"]}, [], {"b": 1}),
        # Each got what the other held: the one that is mounted unlike the login node.
        ({"a": ["b"], "b": ["a"]}, ["b"], {"b": 2}),
        ({"a": ["b"], "b": ["a"]}, [], {"a": 1, "b": 1}),
        ({"a": ["b"], "b": ["a"]}, ["a", "b"], {"a": 1, "b": 1}),
    ],
)
def test_lock_granted_twice_is_blamed_on(
    got: dict[str, list[str]], odd: list[str], blamed: dict[str, int]
):
    found = Faults.of(["a", "b"])
    filesystem_checks._blame_double_grants(got, odd, found)
    assert {n: count for n, count in found.counts.items() if count} == blamed


@pytest.mark.parametrize(
    ("missed", "blamed"),
    [
        ({"a": [], "b": ["a", "c"], "c": []}, {"b": 2}),  # it sees nobody: its view
        ({"a": ["b"], "b": [], "c": ["b"]}, {"b": 2}),  # nobody sees it: its writes
        ({"a": ["b"], "b": [], "c": []}, {"a": 1}),
    ],
)
def test_change_not_seen_is_blamed_on(missed: dict[str, list[str]], blamed: dict[str, int]):
    class Ring:
        def peers(self, node: str) -> list[str]:
            return [n for n in "abc" if n != node]

        observers = peers

    def view(node: str, peer: str) -> dict[str, Any]:
        return {"seconds": None if peer in missed[node] else 0.1, "found": "is not there"}

    ring = Ring()
    answers = {n: [view(n, p) for p in ring.peers(n)] for n in "abc"}
    found = Faults.of(["a", "b", "c"])
    filesystem_checks._blame_views(ring, "created", answers, found)  # type: ignore[arg-type]
    assert {n: count for n, count in found.counts.items() if count} == blamed


def blamed(found: Faults) -> dict[str, int]:
    return {n: count for n, count in found.counts.items() if count}


def test_faults_are_counted_with_their_notes():
    found = Faults.of(["a"])
    assert found == Faults({"a": 0}, {"a": []})
    found.blame("a", "one")
    found.blame("a", "three", 3)
    found.blame("b", "new")
    assert found == Faults({"a": 4, "b": 1}, {"a": ["one", "three"], "b": ["new"]})


def test_nodes_that_see_each_other_are_a_group():
    groups = filesystem_checks.visible_groups
    assert groups({}) == []
    assert groups({"a": [], "b": [], "c": ["b"]}) == [["b", "c"], ["a"]]
    # One direction is enough, and so is a way over a third.
    assert groups({"a": ["b"], "b": [], "c": ["b"]}) == [["a", "b", "c"]]


def test_of_groups_of_one_size_the_login_node_s_own_is_right():
    mounts = {n: {"inode": k, "type": "nfs"} for k, n in enumerate("abc")}
    login = {"inode": 1, "type": "nfs"}
    right = filesystem_checks.right_group
    assert right([["a", "c"], ["b"]], mounts, login) == ["a", "c"]
    assert right([["a"], ["b"], ["c"]], mounts, login) == ["b"]
    assert right([["a"], ["b"]], mounts, {}) == ["a"]
    assert right([["a"], ["b"]], mounts, {"inode": 1, "type": "tmpfs"}) == ["a"]


class Team(test_filesystem.Team):
    """A team of which this process is the first node; a test answers for all of them."""

    def __init__(self, *members: str, answers: dict[str, Any] | None = None) -> None:
        super().__init__(*members, answers=answers)
        self.ranks = SimpleNamespace(spec={"nonce": "nonce"})
        self.scale = SimpleNamespace(
            visibility_timeout_s=10, lines=20, blocks=2, block_bytes=64,
        )  # fmt: skip
        self.gathered: list[dict[str, Any]] = []
        self.given: list[Any] = []

    observers = test_filesystem.Team.peers

    def ask_all(self, operation: str, **arguments: Any) -> Any:
        self.asked.append((operation, arguments))
        found = self.answers.get(operation, {})
        return found(**arguments) if callable(found) else found

    def gather_results(self, result: Any = None) -> dict[str, Any]:
        self.given.append(result)
        return self.gathered.pop(0) if self.gathered else {}


def seen(*missed: bool) -> list[dict[str, Any]]:
    return [{"seconds": None if m else 0.1, "found": "is not there"} for m in missed]


def test_every_change_of_a_file_is_looked_at_on_the_other_nodes():
    def see(wanted: list[dict[str, Any]], timeout_s: float) -> dict[str, Any]:
        texts.append({k: v for k, v in wanted[0].items() if k != "path"})
        timeouts.append(timeout_s)
        late = wanted[0].get("gone") and wanted[0]["path"].startswith("/w/here")
        return {n: seen(bool(late and n == "a"), False) for n in "abc"}

    texts: list[dict[str, Any]] = []
    timeouts: list[float] = []
    team: Any = Team("a", "b", "c", answers={"see": see})
    created = {"a": seen(False, False), "b": seen(False, False), "x": seen(True, True)}
    faults, views = filesystem_checks.coherence(team, "/w", created)
    assert list(views) == [
        "created", "size and mode", "rewritten", "size and mode changed", "replaced", "renamed",
        "renamed away", "deleted",
    ]  # fmt: skip
    assert "x" not in views["created"]
    assert texts == [
        {"size": 5, "mode": 0o600}, {"text": "rewritten in place"}, {"size": 18, "mode": 0o640},
        {"text": "put in its place"}, {"text": "put in its place"}, {"gone": True}, {"gone": True},
    ]  # fmt: skip
    assert timeouts == [10] * 6 + [1], "after a miss there is no need to wait as long"
    assert blamed(faults) == {"a": 1}
    assert faults.notes["a"] == ["renamed away: on a the file of b is not there"]
    made = [(name, more) for name, more in team.asked if name != "see"]
    assert [name for name, _ in made] == ["put", "put", "rename", "unlink"]
    assert made[1][1] == {
        "path": "/w/here-a", "text": "put in its place", "mode": 0o640, "replace": True,
    }  # fmt: skip
    team.members = ["a", "b", "c"]
    early = filesystem_checks.coherence(team, "/w", {"a": seen(True, False)})
    assert timeouts[7:] == [1] * 7
    assert early[0].counts["a"] == 2


def test_a_node_without_an_answer_is_not_blamed():
    found = Faults.of(["a", "b"])
    team: Any = Team("a", "b", "c")
    filesystem_checks._blame_views(team, "created", {"a": None, "b": seen(True, False)}, found)
    assert blamed(found) == {"b": 1}


def test_lines_that_no_reader_finds_are_lost():
    counts = {"a": {"a": 20, "b": 18, "c": 20}, "b": {"a": 19, "b": 19}}
    team: Any = Team("a", "b", "c", "d", answers={"count": counts})
    found = filesystem_checks.appends(team, "/w")
    assert found.counts == {"a": 0, "b": 1, "c": 0, "d": 20}
    assert found.notes["b"] == ["1 of 20 lines appended on b is lost"]
    assert "are lost" in found.notes["d"][0]
    given = dict(team.asked)["append"]
    assert given == {"path": "/w/append", "prefix": "a", "lines": 20, "length": 64}
    assert dict(team.asked)["count"]["prefixes"] == ["a", "b", "c", "d"]


GOOD = [{"granted": True}, {"granted": False}]


def locked(
    *rounds: tuple[str, dict[str, Any], dict[str, Any]], pairs: dict[str, Any] | None = None
) -> Any:
    """What is blamed where these holders and others got the locks that others held."""
    team: Any = Team("a", "b", "c", answers={"lock": {"granted": True}})
    team.gathered = [pairs or dict.fromkeys("abc", GOOD)]
    for holder, first, others in rounds:
        team.gathered += [{holder: first} if first else {}, others, {}]
    return filesystem_checks.locks(team, "/w", {}, {}), team


def test_a_lock_is_granted_once_on_every_node():
    yes, no = {"granted": True}, {"granted": False}
    fine = ("a", yes, {"b": no, "c": no}), ("c", yes, {"a": no, "b": no})
    found, team = locked(*fine)
    assert blamed(found) == {}
    assert [more["key"] for name, more in team.asked if name == "lock"] == [
        "first", "second", "held", "tried",
    ]  # fmt: skip
    assert team.asked[4][1] == {"path": "/w/lock-of-a", "key": "held", "timeout_s": 2}
    # As the holder it gives what it holds, else what it tried; both its locks come first.
    assert team.given == [[yes, yes], yes, None, None, None, yes, None]
    found, _ = locked(fine[0], ("c", yes, {"a": no, "b": yes}))
    assert found.notes["b"] == ["a flock that c held was granted on b too"]
    found, _ = locked(fine[0], ("c", yes, {"a": yes, "b": yes}))
    assert blamed(found) == {"c": 1}, "all others got it: the holder did not hold it"
    for first in (no, None):
        found, _ = locked(fine[0], ("c", first, {}))
        assert found.notes["c"] == ["flock on c: a free lock is refused"]
    found, _ = locked(fine[0], ("c", yes, {"a": None}))
    assert blamed(found) == {}


def test_a_node_that_does_not_lock_at_all_takes_no_part_in_the_rest():
    yes, no = {"granted": True}, {"granted": False}
    refused = [{"granted": False, "refused": "No locks available"}, no]
    found, _ = locked(
        ("a", yes, {"b": no}), ("b", yes, {"a": no}), pairs={"a": GOOD, "b": GOOD, "c": refused}
    )
    assert found.notes["c"] == ["flock on c: No locks available"]
    found, _ = locked(
        ("b", yes, {"c": yes}), ("c", yes, {"b": no}), pairs={"a": [yes, yes], "b": GOOD, "c": GOOD}
    )
    assert found.notes["a"] == ["flock on a was granted to two of its processes at once"]
    # Of two nodes the one that got it is blamed: none decides whether it was held.
    assert blamed(found) == {"a": 1, "c": 1}
    found, team = locked(pairs={"a": GOOD, "b": [no, no], "c": [no, yes]})
    assert (found.counts, len(team.gathered)) == ({"a": 0, "b": 1, "c": 1}, 0)
    assert found.notes["b"] == ["flock on b: a free lock is refused"]


def test_mounts_are_compared_without_what_differs_by_client():
    login = {"type": "nfs4", "options": "rw,addr=1,hard"}
    mounts = {
        "a": {"type": "nfs4", "options": "hard,rw,addr=2,clientaddr=3"},
        "b": {"type": "nfs4", "options": "rw,hard,nolock"},
        "c": {"type": "nfs", "options": "rw,hard"},
    }  # fmt: skip
    assert filesystem_checks._mounted_differently(["a", "b", "c"], mounts, login) == ["b", "c"]
    assert filesystem_checks._mounted_differently(["a", "b"], mounts, {}) == []


def test_blocks_that_are_read_back_wrong_are_blamed_by_writer_or_reader():
    def found(*wrong: tuple[str, str, int]) -> Any:
        written = {n: [f"{n}{k}" for k in range(2)] for n in "abc"}
        reads = {}
        for reader in "abc":
            order = [reader, *(n for n in "abc" if n != reader)]
            read = [d for n in order for d in written[n]]
            for who, writer, k in wrong:
                if who == reader:
                    read[2 * order.index(writer) + k] = "wrong"
            reads[reader] = read
        team: Any = Team("a", "b", "c", answers={"write_blocks": written, "hash_blocks": reads})
        return filesystem_checks.blocks(team, "/w"), team

    faults, team = found()
    assert blamed(faults) == {}
    asked = dict(team.asked)
    assert (asked["write_blocks"]["numbers"], asked["write_blocks"]["seed"]) == ([0, 3], "nonce/a")
    assert asked["hash_blocks"]["numbers"] == [0, 3, 1, 4, 2, 5]
    assert blamed(found(("b", "a", 0))[0]) == {"b": 1}, "only one other sees it: its view"
    assert blamed(found(("a", "a", 0), ("a", "a", 1))[0]) == {"a": 2}, "the writer sees it itself"
    faults, _ = found(("b", "a", 0), ("c", "a", 0), ("c", "a", 1))
    assert blamed(faults) == {"a": 2}
    assert faults.notes["a"] == ["of 2 blocks that a wrote, 1 were wrong on b, 2 were wrong on c"]


def test_blocks_of_a_node_that_fell_out_are_not_compared():
    written = {"a": ["a0", "a1"]}
    team: Any = Team("a", "b", answers={"write_blocks": written})
    team.answers["hash_blocks"] = {"a": ["a0", "a1", "x", "y"]}
    assert blamed(filesystem_checks.blocks(team, "/w")) == {}
