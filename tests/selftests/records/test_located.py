"""jobs/located.json: what a search for culprits between nodes found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.records import located
from fixtures.records.run_directory import RunDirectory

pytestmark = pytest.mark.cpu

NODE = {"kind": "node", "line": "n1 is slow", "nodes": ["n1"]}
NIC = {"kind": "nic", "line": "mlx0 of n2", "nodes": ["n2"]}
PLACES = [{"kind": kind, "line": kind, "nodes": [kind]} for kind in ("leaf", "switch", "uplink")]
PAIR = {"kind": "pair", "line": "n3 and n4", "nodes": ["n3", "n4"]}
JOB = {"nodes": ["n1", "n2"], "failed_rails": [0]}


def search(tmp_path: Path, **given: Any) -> RunDirectory:
    """A run with the result of a search in two rounds of three jobs."""
    directory = RunDirectory(tmp_path)
    fields: dict[str, Any] = {
        "because": ["x"], "culprits": [], "explained": True, "why": "",
        "rounds": [[JOB, JOB], [JOB]],
    }  # fmt: skip
    located.write(directory, "nonce", **fields | given)
    return directory


COST = "(3 jobs in 2 rounds, jobs/located.json)"


def test_the_result_is_told_with_what_it_cost(tmp_path):
    for given, lines in (
        ({"culprits": [NODE, NIC]}, [f"located: n1 is slow {COST}", f"located: mlx0 of n2 {COST}"]),
        ({"why": "all passed"}, [f"nothing located: all passed {COST}"]),
        ({}, []),
        ({"culprits": [NODE], "why": "x"}, [f"located: n1 is slow {COST}"]),
        ({"culprits": [NODE], "explained": False, "why": "time is up"}, [
            f"found so far, with others still unknown: n1 is slow {COST}",
            f"not all located: time is up {COST}",
        ]),
        ({"explained": False}, [
            f"not all located: the other failures have no single culprit {COST}",
        ]),
    ):  # fmt: skip
        assert located.lines(search(tmp_path, **given), "nonce") == lines
    assert located.lines(search(tmp_path, culprits=[NODE]), "another run") == []
    assert located.lines(RunDirectory(tmp_path / "none"), "nonce") == []


def test_what_is_confirmed_is_at_fault_and_accused_places_are_in_doubt(tmp_path):
    for given, at_fault, explained in (
        ({"culprits": [NODE, NIC, PAIR, *PLACES]}, ("n1", "n2"), True),
        ({"culprits": [PAIR]}, (), True),
        ({"culprits": [NODE], "explained": False}, ("n1",), False),
        ({}, (), False),
    ):
        found = located.found(search(tmp_path, **given), "nonce")
        assert found is not None
        assert (found.at_fault, found.explained) == (at_fault, explained), given
    found = located.found(search(tmp_path, culprits=[NODE, *PLACES, PAIR]), "nonce")
    assert found is not None
    assert found.in_doubt == ("leaf", "switch", "uplink")
    assert located.found(search(tmp_path, culprits=[NODE]), "another run") is None


def job(nodes: str, *failed: int, answered: bool = True) -> dict[str, Any]:
    return {"nodes": list(nodes), "failed_rails": list(failed) if answered else None}


ALL = job("abcdefgh", 0)


@pytest.mark.parametrize(
    ("rounds", "culprits", "cleared"),
    [
        # The failure is in the smallest group that fails: the others passed twice.
        ([[ALL], [job("abcd", 0), job("efgh")], [job("ab", 0), job("cd"), job("efgh")],
          [job("cd")]], "", "cdefgh"),
        # One pass may be a wrong answer, and a group without an answer says nothing.
        ([[ALL], [job("abcd", 0), job("efgh")], [job("efgh", answered=False)]], "", ""),
        # A culprit closes the groups that it was in.
        ([[ALL], [job("abcd", 0), job("efgh")], [job("ab", 0), job("efgh")]], "a", "efgh"),
        ([[ALL], [job("ab", 0), job("gh")], [job("gb"), job("gh")], [job("bc")]], "a", "bgh"),
        # What failed once and has no culprit is open, whatever passed afterwards.
        ([[ALL], [job("abcd"), job("efgh")], [job("abcd"), job("efgh")]], "", ""),
        # Without a failure the search has not seen what it is to explain.
        ([[job("abcdefgh")], [job("abcdefgh")]], "", ""),
    ],
)  # fmt: skip
def test_nodes_that_passed_are_cleared_unless_a_failure_of_theirs_is_open(
    tmp_path, rounds, culprits, cleared
):
    accused = [{"kind": "node", "line": n, "nodes": [n], "rails": [0]} for n in culprits]
    found = located.found(
        search(tmp_path, culprits=accused, explained=False, rounds=rounds), "nonce"
    )
    assert found is not None
    assert found.cleared == set(cleared)


def test_a_rail_that_fails_on_all_nodes_is_no_failure_of_a_group(tmp_path):
    rail = {"kind": "rail", "line": "rail 1", "nodes": [], "rails": [1]}
    rounds = [[job("abcd", 0, 1)], [job("ab", 0, 1), job("cd", 1)], [job("cd", 1)]]
    found = located.found(
        search(tmp_path, culprits=[rail], explained=False, rounds=rounds), "nonce"
    )
    assert found is not None
    assert found.cleared == {"c", "d"}


def test_a_file_that_is_no_json_is_no_search(tmp_path):
    directory = search(tmp_path, culprits=[NODE])
    assert directory.located.is_file()
    directory.located.write_text("{", encoding="utf-8")
    assert located.lines(directory, "nonce") == []
