"""The leaf switches of a real Slurm's topology.conf reach the ranks; a cable in the wrong one is
named, and a healthy cluster is accused of nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.sandbox import Sandbox
from tests.selftests.faults import drill, named
from tests.selftests.faults_wiring import LEAVES, ON_SECOND, SHAPE, WIRING_FAULTS
from tests.selftests.leaf_switches import two_leaves
from tests.selftests.support import run_pytest

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def sandbox(machine: None) -> Iterator[Sandbox]:
    with Sandbox.up(**SHAPE) as up:
        yield up


def leaf_rows(sandbox: Sandbox, into: Path) -> dict[str, dict[str, Any]]:
    """Measure the wiring; return the row of each node."""
    done = run_pytest(
        "-m", "multinode", "-q", "-k", "leaf_switch", "--cluster=slurm", f"--run-dir={into}",
        **sandbox.env,
    )  # fmt: skip
    rows = json.loads((into / "verdict.json").read_text(encoding="utf-8"))["criteria"]
    found = {row["subject"]: row for row in rows if row["criterion"] == "wiring.leaf"}
    assert set(found) == set(LEAVES), done.stdout + done.stderr
    return found


def test_the_plan_is_that_of_topology_conf_and_nobody_is_accused(sandbox: Sandbox, tmp_path: Path):
    into = tmp_path / "run"
    leaf = {node: row["outcome"] for node, row in leaf_rows(sandbox, into).items()}
    # Behind one bridge near and far cannot be told apart: never a pass, and nobody's fault.
    assert set(leaf.values()) == {"NOT_APPLICABLE"}
    record = json.loads((into / "records" / "wiring@all.json").read_text(encoding="utf-8"))
    facts = [rank["facts"] for rank in record["ranks"]]
    assert facts[0]["planned"] == LEAVES
    assert facts[0]["rounds"] == {"made": 7, "of": 7}
    assert all(len(of_rank["latency_us"]) == 7 for of_rank in facts)


def test_ports_are_confirmed_where_near_and_far_can_be_told(sandbox: Sandbox, tmp_path: Path):
    with two_leaves(sandbox, ON_SECOND):
        rows = leaf_rows(sandbox, tmp_path / "run")
    assert {row["outcome"] for row in rows.values()} == {"PASS"}, rows


def test_a_cable_in_the_wrong_leaf_switch_is_named_and_where_it_is(
    sandbox: Sandbox, tmp_path: Path
):
    (fault,) = WIRING_FAULTS
    found = drill(sandbox, fault, tmp_path / "run")
    named(found, fault)
    outcomes = {r["subject"]: r["outcome"] for r in found.rows if r["criterion"] == "wiring.leaf"}
    # Of the first leaf three are left, too few to tell near from far.
    assert outcomes == {
        node: "PASS" if leaf == "leaf1" else "NOT_APPLICABLE" for node, leaf in LEAVES.items()
    } | {fault.culprit: "FAIL"}
