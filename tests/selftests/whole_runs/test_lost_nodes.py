"""Nodes that are dead, die, are drained or cut off on a real Slurm, and the resumed run.

Faults are put in below the workload, and every one of them is then mended: `--resume` measures
what was missing and ends as a healthy run does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.records.files import read_json
from fixtures.sandbox import Sandbox, emulation
from tests.selftests.sandboxes import (
    FILES,
    SMALL,
    Finished,
    Suite,
    Waiting,
    bytes_of,
    measured,
    on,
    queued,
    resume,
    suite,
)

pytestmark = pytest.mark.cpu

WITH_ALLREDUCE = (*FILES, "tests/test_collectives.py", "-k", "not drift and "
                  "(inventory or environment or peers or allreduce.cluster.errors)")  # fmt: skip
"""Criteria of a node, of the whole cluster, and one that a part of the nodes can answer."""


# --- nodes that are lost


def expect_lost(done: Finished, node: str) -> None:
    """All that concerns the node says why it was not measured; all else passed."""
    done.ended_as("INCOMPLETE", 2)
    other = "worker0" if node == "worker1" else "worker1"
    for key, row in done.rows.items():
        if key[1] == node and row["outcome"] != "NOT_APPLICABLE":
            assert row["outcome"] == "NOT_MEASURED", row
            assert node in row["reason"], row
            assert row["next_step"], row
        elif key[1] == other and key[0] != "connectivity.peers":
            assert row["outcome"] in ("PASS", "RECORDED", "NOT_APPLICABLE"), row
    assert done.outcomes["inventory.nodes", "cluster"] == "PASS"
    assert done.rows["connectivity.peers", other]["outcome"] == "NOT_MEASURED"
    assert "passes on 1 of 2 nodes" in done.rows["connectivity.peers", other]["reason"]
    assert (done.root / "bad-nodes.txt").read_text().split()[-1] == node


def expect_mended(checkout: Path, lost: Finished, sandbox: Sandbox, node: str, *more: str) -> None:
    """--resume measures what is missing, that alone, and ends as a healthy run."""
    before = bytes_of(lost.directory.records.glob("*.json"))
    stood = {key: row for key, row in lost.rows.items() if row["outcome"] == "PASS"}
    done = resume(checkout, lost.root, *more, env=on(sandbox))
    done.ended_as("DEMONSTRATION", 0)
    after = bytes_of(done.directory.records.glob("*.json"))
    assert {name: after[name] for name in before} == before
    for key, row in stood.items():
        assert done.rows[key]["value"] == row["value"]
    submitted = [p.name for p in done.directory.jobs.iterdir() if p.is_dir()]
    other = "worker0" if node == "worker1" else "worker1"
    assert not [name for name in submitted if name.startswith(f"node-{other}.")]
    assert queued(sandbox) == {}


def test_a_node_that_is_dead_before_the_run(
    sandbox: Sandbox, checkout: Path, tmp_path: Path
) -> None:
    sandbox.kill_node("worker1")
    done = suite(checkout, tmp_path / "run", *SMALL, env=on(sandbox))
    expect_lost(done, "worker1")
    sandbox.revive("worker1")
    expect_mended(checkout, done, sandbox, "worker1", *SMALL)


def test_a_node_that_dies_in_its_own_job(
    sandbox: Sandbox, waiting: Waiting, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with Suite(waiting.checkout, run, *waiting.selection, env=on(sandbox)) as at_work:
        at_work.until(
            lambda: len(at_work.lines("node-*", event="started", workload="environment")) == 4,
            "environment on every rank",
        )
        sandbox.kill_node("worker1")
        waiting.let_go()
        done = at_work.wait()
    done.ended_as("INCOMPLETE", 2)
    lost = done.not_measured()
    assert set(lost) == {(f"environment.{m}", "worker1") for m in ("versions", "run_directory")}
    assert all("worker1" in reason for reason in lost.values())
    # What it had delivered before it died stands.
    assert done.outcomes["inventory.gpus", "worker1"] == "PASS"
    sandbox.revive("worker1")
    expect_mended(waiting.checkout, done, sandbox, "worker1", *waiting.selection)


@pytest.mark.slow
def test_a_node_that_dies_in_the_job_of_all_nodes(
    sandbox: Sandbox, checkout: Path, tmp_path: Path
) -> None:
    with Suite(checkout, tmp_path / "run", *WITH_ALLREDUCE, env=on(sandbox)) as at_work:
        at_work.until(
            lambda: len(at_work.lines("cluster", event="started", workload="allreduce")) == 4,
            "allreduce on every rank",
        )
        sandbox.kill_node("worker1")
        done = at_work.wait()
    done.ended_as("INCOMPLETE", 2)
    assert [key for key, o in done.outcomes.items() if o == "NOT_MEASURED"] == [
        ("allreduce.cluster.errors", "cluster")
    ]
    reason = done.rows["allreduce.cluster.errors", "cluster"]["reason"]
    assert "passes on 1 of 2 nodes; without worker1" in reason
    sandbox.revive("worker1")
    expect_mended(checkout, done, sandbox, "worker1", *WITH_ALLREDUCE)


@pytest.mark.slow
def test_a_node_that_is_drained(sandbox: Sandbox, checkout: Path, tmp_path: Path) -> None:
    sandbox.drain("worker1")
    done = suite(checkout, tmp_path / "run", *SMALL, env=on(sandbox))
    expect_lost(done, "worker1")
    assert "DRAIN" in done.rows["inventory.gpus", "worker1"]["reason"].upper()
    sandbox.drain("worker1", resume=True)
    sandbox.wait_idle(["worker1"], timeout_s=60)
    expect_mended(checkout, done, sandbox, "worker1", *SMALL)


@pytest.mark.slow
def test_a_node_that_is_cut_off(sandbox: Sandbox, checkout: Path, tmp_path: Path) -> None:
    sandbox.cut_link("worker1")
    done = suite(checkout, tmp_path / "run", *SMALL, env=on(sandbox))
    expect_lost(done, "worker1")
    sandbox.cut_link("worker1", restore=True)
    sandbox.wait_idle(["worker1"], timeout_s=60)
    expect_mended(checkout, done, sandbox, "worker1", *SMALL)


@pytest.mark.parametrize("how", ["--resume", pytest.param("--retest", marks=pytest.mark.slow)])
def test_a_gpu_that_was_swapped_is_measured_again_and_nothing_else(
    how: str, sandbox: Sandbox, checkout: Path, tmp_path: Path
) -> None:
    first = suite(checkout, tmp_path / "run", *SMALL, env=on(sandbox))
    first.ended_as("DEMONSTRATION", 0)
    state = emulation.state_file(sandbox.state, "worker1")
    old = emulation.gpu_uuid("worker1", 1)
    state.write_text(state.read_text().replace(old, "GPU-that-came-instead"))
    done = suite(checkout, first.root, f"{how}={first.root}", *SMALL, new=False, env=on(sandbox))
    done.ended_as("DEMONSTRATION", 0)
    attempts: dict[tuple[str, str], int] = {}
    for workload, placement, attempt, _ in measured(done.directory):
        attempts[workload, placement] = max(attempt, attempts.get((workload, placement), 0))
    assert {key for key, attempt in attempts.items() if attempt > 1} == {
        ("inventory", "worker0"), ("inventory", "worker1"), ("environment", "worker1"),
        ("connectivity", "all"),
    }  # fmt: skip
    ranks = read_json(done.directory.record("environment", "worker1", 2))["ranks"]
    assert ranks[1]["device"]["uuid"] == "GPU-that-came-instead"
