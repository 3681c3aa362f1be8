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


def search(tmp_path: Path, **given: Any) -> RunDirectory:
    """A run with the result of a search in two rounds of three jobs."""
    directory = RunDirectory(tmp_path)
    fields: dict[str, Any] = {
        "because": ["x"], "culprits": [], "explained": True, "rounds": [[{}, {}], [{}]], "why": "",
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


def test_nodes_of_an_accused_place_are_in_doubt(tmp_path):
    directory = search(tmp_path, culprits=[NODE, *PLACES, PAIR])
    assert located.nodes_in_doubt(directory, "nonce") == ["leaf", "switch", "uplink"]
    assert located.nodes_in_doubt(directory, "another run") == []


def test_nodes_are_at_fault_only_where_all_is_explained(tmp_path):
    for given, nodes in (
        ({"culprits": [NODE, NIC, PAIR, *PLACES]}, ["n1", "n2"]),
        ({"culprits": [PAIR]}, []),
        ({"culprits": [NODE], "explained": False}, None),
        ({}, None),
    ):
        assert located.nodes_at_fault(search(tmp_path, **given), "nonce") == nodes
    assert located.nodes_at_fault(search(tmp_path, culprits=[NODE]), "another run") is None


def test_a_file_that_is_no_json_is_no_search(tmp_path):
    directory = search(tmp_path, culprits=[NODE])
    assert directory.located.is_file()
    directory.located.write_text("{", encoding="utf-8")
    assert located.lines(directory, "nonce") == []
