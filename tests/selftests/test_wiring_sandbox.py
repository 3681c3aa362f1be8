"""The leaf switches of a real Slurm's topology.conf reach the ranks; a healthy cluster is accused
of nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.sandbox import Sandbox
from tests.selftests.support import run_pytest

pytestmark = pytest.mark.cpu

LEAVES = {f"worker{k}": f"leaf{k // 4}" for k in range(8)}
SITE = {
    "slurm": "TopologyPlugin=topology/tree",
    "topology.conf": "SwitchName=leaf0 Nodes=worker[0-3]\nSwitchName=leaf1 Nodes=worker[4-7]\n"
    "SwitchName=spine Switches=leaf[0-1]\n",
}


@pytest.fixture(scope="module")
def sandbox(machine: None) -> Iterator[Sandbox]:
    with Sandbox.up(nodes=8, gpus=1, site=SITE) as up:
        yield up


def test_the_plan_is_that_of_topology_conf_and_nobody_is_accused(sandbox: Sandbox, tmp_path: Path):
    into = tmp_path / "run"
    done = run_pytest(
        "-m", "multinode", "-q", "-k", "leaf_switch", "--cluster=slurm", f"--run-dir={into}",
        **sandbox.env,
    )  # fmt: skip
    rows = json.loads((into / "verdict.json").read_text(encoding="utf-8"))["criteria"]
    leaf = {row["subject"]: row["outcome"] for row in rows if row["criterion"] == "wiring.leaf"}
    assert set(leaf) == set(LEAVES), done.stdout + done.stderr
    # Behind one bridge near and far cannot be told apart: never a pass, and nobody's fault.
    assert set(leaf.values()) == {"NOT_APPLICABLE"}, rows
    record = json.loads((into / "records" / "wiring@all.json").read_text(encoding="utf-8"))
    facts = [rank["facts"] for rank in record["ranks"]]
    assert facts[0]["planned"] == LEAVES
    assert facts[0]["rounds"] == {"made": 7, "of": 7}
    assert all(len(of_rank["latency_us"]) == 7 for of_rank in facts)
