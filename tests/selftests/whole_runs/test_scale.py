"""Many nodes behind a real slurmctld: all bad ones named, nobody else, nothing measured twice.

24 of them: a shared host starts each. `make bench` does the same with 1,024
(tests/tools/bench_scale.py).
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.records.files import read_lines
from fixtures.sandbox import Sandbox, SandboxError
from fixtures.sandbox.faults import set_node
from tests.selftests import sandboxes
from tests.selftests.sandboxes import Suite
from tests.tools.bench_scale import BadNodes, nodes_measured, results_twice

# Nothing is measured by these nodes: their sandbox may stand beside another.
pytestmark = [pytest.mark.cpu, pytest.mark.xdist_group("scale")]

NODES = 24
PROBE = ("-m", "multinode", "--tier", "probe", "--max-jobs", "8")


@pytest.fixture(scope="module")
def many(machine: None) -> Iterator[Sandbox]:
    with Sandbox.up(nodes=NODES, gpus=1, light=True) as up:
        yield up


def test_of_many_nodes_the_bad_ones_are_named_by_a_run_that_was_killed_and_resumed(
    many: Sandbox, checkout: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    bad = BadNodes.choose(many.nodes)
    bad.inject(many)
    for node in bad.killed:
        many.kill_node(node)
        # Slurm would notice by itself after a minute. Drained too: a registration that is on its
        # way makes a node that is only down available again.
        for state in ("State=DOWN", "State=DRAIN"):
            set_node(many, node, state, "Reason=power loss")
    env = sandboxes.on(many)
    with Suite(checkout, run, *PROBE, env=env) as first:
        first.until(
            lambda: nodes_measured(first.directory) >= NODES // 4, "a quarter", timeout_s=200
        )
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(30)
        before = nodes_measured(first.directory)
    assert NODES // 4 <= before < NODES - len(bad.all)
    done = sandboxes.resume(checkout, run, *PROBE, env=env)

    done.ended_as("REJECTED", 1)
    assert sorted((run / "bad-nodes.txt").read_text().split()) == sorted(bad.all)
    accused = {
        s for (_, s), outcome in done.outcomes.items() if outcome not in ("PASS", "NOT_APPLICABLE")
    }
    assert accused == bad.all
    for node in bad.slow:
        assert done.outcomes["health.answer_time", node] == "FAIL"
    for node in bad.missing_gpu:
        assert done.outcomes["inventory.gpus", node] == "FAIL"
    for node in (*bad.drained, *bad.killed):
        assert done.outcomes["scheduler.node_state", node] == "FAIL"
        assert done.outcomes["health.answers", node] == "NOT_MEASURED"
    assert results_twice(done.directory, bad) == 0
    lines = [n for f in done.directory.jobs.glob("node-*/rank*.jsonl") for n in read_lines(f)]
    assert {n["node"] for n in lines if n["event"] == "result"} == (
        set(many.nodes) - set(bad.drained) - set(bad.killed)
    )


def test_a_light_sandbox_is_only_probed(many: Sandbox, checkout: Path, tmp_path: Path) -> None:
    done = sandboxes.suite(checkout, tmp_path / "run", "-m", "multinode", env=sandboxes.on(many))
    assert done.status == 4
    assert "use --tier probe" in done.said
    assert not done.directory.root.exists()


def test_the_nodes_of_a_light_sandbox_have_no_links(many: Sandbox) -> None:
    with pytest.raises(SandboxError, match="no links of their own"):
        many.cut_link("worker0")
