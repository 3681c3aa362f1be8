"""A burn-in on a real Slurm: nodes die at Poisson times, pytest is killed, slurmctld restarts.

Time is compressed: a slice lasts seconds, and the order wants an MTBF of seconds.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fixtures.records.files import read_json, read_lines
from fixtures.run import burn_in
from fixtures.sandbox import Sandbox
from fixtures.statistics.mtbf import Decision
from fixtures.thresholds.contract import Contract
from tests.selftests.sandboxes import Finished, Suite, copy_checkout, eventually, on

pytestmark = [pytest.mark.cpu, pytest.mark.slow]
NODES = ("worker0", "worker1", "worker2")
SLICE_S = 10.0
MEAN_LIFE_S = 25.0
ORDERED_S = 12.0
SESSIONS = 5
SELECTION = ("tests/test_compute.py", "-k", "burnin.products", "--tier", "burnin", "--hours", "1")


def ordered(nodes: int) -> dict[str, object]:
    """An order that wants an MTBF of ORDERED_S."""
    days = ORDERED_S / burn_in.DAY_S
    return {"nodes": nodes, "gpus_per_node": 1, "gpu_model": "cpu", "mtbf_node_days": days}


def compressed(root: Path, nodes: int) -> Path:
    """Return a checkout with slices of SLICE_S and with the order for so many nodes."""
    root.mkdir()
    copy_checkout(root)
    workload = root / "fixtures" / "workloads" / "compute" / "burnin.py"
    text = workload.read_text(encoding="utf-8")
    assert text.count("\nCPU_SECONDS = 3.0\n") == 1
    workload.write_text(text.replace("CPU_SECONDS = 3.0", f"CPU_SECONDS = {SLICE_S}"), "utf-8")
    limits = root / "thresholds.yaml"
    text = limits.read_text(encoding="utf-8")
    assert text.count("\ncluster: {}\n") == 1
    order = f"\ncluster: {json.dumps(ordered(nodes))}\n"
    limits.write_text(text.replace("\ncluster: {}\n", order), encoding="utf-8")
    return root


@pytest.fixture
def three(machine: None) -> Iterator[Sandbox]:
    with Sandbox.up(nodes=3, gpus=1) as up:
        yield up


def in_burn_in(run: Suite, before: int) -> bool:
    """Whether more ranks than before have begun their load, on all nodes."""
    return len(run.lines(event="started", workload="burnin")) >= before + len(NODES)


def session(checkout: Path, run: Path, sandbox: Sandbox, number: int) -> Suite:
    how = () if number == 0 else (f"--resume={run}",)
    return Suite(checkout, run, *SELECTION, *how, env=on(sandbox), new=number == 0)


def test_nodes_that_die_at_poisson_times_are_judged_as_the_plan_says(
    three: Sandbox, tmp_path: Path
) -> None:
    checkout = compressed(tmp_path / "checkout", len(NODES))
    rng = np.random.default_rng(26)
    run = tmp_path / "run"
    deaths = 0
    done: Finished | None = None
    for number in range(SESSIONS):
        lives = {node: float(rng.exponential(MEAN_LIFE_S)) for node in NODES}
        dying = sorted((life, node) for node, life in lives.items() if life < 0.7 * SLICE_S)
        if number == SESSIONS - 1:
            dying = []  # so that the last attempt of every row is measured
        with session(checkout, run, three, number) as at_work:
            before = len(at_work.lines(event="started", workload="burnin"))
            at_work.until(lambda n=before, s=at_work: in_burn_in(s, n), "the load", timeout_s=300)
            begun = time.monotonic()
            for life, node in dying:
                time.sleep(max(0.0, begun + life - time.monotonic()))  # its time to die
                three.kill_node(node)
                deaths += 1
            if number == 1:  # pytest dies before it has seen what became of the nodes
                at_work.process.send_signal(signal.SIGKILL)
            elif number == 2:
                three.stop_daemon("slurmctld")
                three.start_controller()
            done = at_work.wait()
        for _, node in dying:
            three.revive(node)
    assert done is not None
    stated = read_json(done.directory.run_json)
    found = burn_in.read(done.directory, stated["nonce"], NODES)
    assert deaths > 1
    assert len(found.failures) == deaths
    said = done.verdict["basis"]["mtbf"]
    assert sum(said["kinds"].values()) == deaths
    # By hand: the time that all nodes together had survived at each failure.
    times = [
        sum(max(0.0, min(end, time) - start) for _, start, end in found.slices) / burn_in.DAY_S
        for time, _, _ in found.failures
    ]
    plan = burn_in.plan_of(Contract.model_validate(ordered(len(NODES))))
    assert plan is not None
    decision, _, failures = plan.decide(times, found.days())
    assert (said["decision"], said["failures"]) == (decision, failures)
    expected = {Decision.ACCEPT: "DEMONSTRATION", Decision.GO_ON: "INCOMPLETE"}
    assert done.verdict["verdict"] == expected.get(decision, "REJECTED")


PREEMPTING = {
    "partitions": (
        "PartitionName=main Default=YES Nodes=ALL State=UP MaxTime=INFINITE PriorityTier=1\n"
        "PartitionName=urgent Nodes=ALL State=UP MaxTime=INFINITE PriorityTier=9"
    ),
    "slurm": "PreemptType=preempt/partition_prio\nPreemptMode=CANCEL",
}


def test_a_preempted_slice_is_not_a_failure_and_counts_for_nothing(
    machine: None, tmp_path: Path
) -> None:
    checkout = compressed(tmp_path / "checkout", 2)
    run = tmp_path / "run"
    with Sandbox.up(nodes=2, gpus=1, site=PREEMPTING) as sandbox:
        with session(checkout, run, sandbox, 0) as at_work:
            at_work.until(
                lambda: len(at_work.lines(event="started", workload="burnin")) == 2, "the load",
                timeout_s=300,
            )  # fmt: skip
            urgent = ["sbatch", "--partition=urgent", "--nodelist=worker1", "--exclusive",
                      "--output=/dev/null", "--wrap", "true"]  # fmt: skip
            subprocess.run(urgent, env=sandbox.environ, check=True, timeout=900, cwd=tmp_path)
            done = at_work.wait()
        missing = [line for line in read_lines(done.directory.missing)
                   if line["workload"] == "burnin"]  # fmt: skip
        assert [(line["placement"], line["kind"]) for line in missing] == [("worker1", "cancelled")]
        said = done.verdict["basis"]["mtbf"]
        nonce = read_json(done.directory.run_json)["nonce"]
        found = burn_in.read(done.directory, nonce, NODES)
        assert {node for node, _, _ in found.slices} == {"worker0"}
        assert (found.failures, said["failures"], said["kinds"]) == ([], 0, {})
        assert said["node_days"] == pytest.approx(found.days(), rel=1e-4)
        # What was preempted is measured by the next session.
        eventually(lambda: "idle" in sandbox.node_states()["worker1"], "worker1 is idle")
        with session(checkout, run, sandbox, 1) as at_work:
            again = at_work.wait()
        found = burn_in.read(again.directory, nonce, NODES)
        assert {node for node, _, _ in found.slices} == {"worker0", "worker1"}
        assert found.failures == []
