"""The leaf switches of a real Slurm's topology.conf reach the ranks; a cable in the wrong one is
named, and a healthy cluster is accused of nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.sandbox import Sandbox
from tests.selftests.faults import Outcome, drill, named
from tests.selftests.faults_wiring import LEAVES, ON_SECOND, SHAPE, WIRING_FAULTS
from tests.selftests.leaf_switches import two_leaves

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def sandbox(machine: None) -> Iterator[Sandbox]:
    with Sandbox.up(**SHAPE) as up:
        yield up


(FAULT,) = WIRING_FAULTS


def leaves(found: Outcome) -> dict[str, str]:
    """Return the outcome of each node's row."""
    rows = {r["subject"]: r["outcome"] for r in found.rows if r["criterion"] == FAULT.criterion}
    assert set(rows) == set(LEAVES), found.said
    return rows


def test_the_plan_is_that_of_topology_conf_and_nobody_is_accused(sandbox: Sandbox, tmp_path: Path):
    into = tmp_path / "run"
    found = drill(sandbox, replace(FAULT, inject=lambda _: nullcontext()), into)
    # Behind one bridge near and far cannot be told apart: never a pass, and nobody's fault.
    assert set(leaves(found).values()) == {"NOT_APPLICABLE"}, found.said
    record = json.loads((into / "records" / "wiring@all.json").read_text(encoding="utf-8"))
    facts = [rank["facts"] for rank in record["ranks"]]
    assert facts[0]["planned"] == LEAVES
    assert facts[0]["rounds"] == {"made": 7, "of": 7}
    assert all(len(of_rank["latency_us"]) == 7 for of_rank in facts)


def test_ports_are_confirmed_where_near_and_far_can_be_told(sandbox: Sandbox, tmp_path: Path):
    healthy = replace(FAULT, inject=lambda sandbox: two_leaves(sandbox, ON_SECOND))
    found = drill(sandbox, healthy, tmp_path / "run")
    assert set(leaves(found).values()) == {"PASS"}, found.said


def test_a_cable_in_the_wrong_leaf_switch_is_named_and_where_it_is(
    sandbox: Sandbox, tmp_path: Path
):
    found = drill(sandbox, FAULT, tmp_path / "run")
    named(found, FAULT)
    # Of the first leaf three are left, too few to tell near from far.
    assert leaves(found) == {
        node: "PASS" if leaf == "leaf1" else "NOT_APPLICABLE" for node, leaf in LEAVES.items()
    } | {FAULT.culprit: "FAIL"}
