"""The load on the whole fabric on a real Slurm with two leaf switches: a slow link between them is
found and placed, a healthy fabric accuses nobody, and a dead node costs what it carries alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.files import read_json
from fixtures.records.run_directory import RunDirectory
from fixtures.sandbox import Sandbox
from reports import __main__ as reports
from tests.selftests.drill_limits import ordered
from tests.selftests.faults_wiring import LEAVES, ON_SECOND, SHAPE
from tests.selftests.linked_leaves import linked_leaves
from tests.selftests.sandboxes import Finished, Suite, on

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

NODE_MBIT = 60
FULL_MBIT, SLOW_MBIT = NODE_MBIT * len(ON_SECOND) * 2, NODE_MBIT * len(ON_SECOND) // 2
SELECTION = ("tests/test_fabric.py", "-m", "multinode", "--tier", "fabric")


@pytest.fixture(scope="module")
def sandbox(machine: None) -> Iterator[Sandbox]:
    with Sandbox.up(**SHAPE) as up:
        yield up


def loaded(checkout: Path, run: Path, sandbox: Sandbox, *more: str, new: bool = True) -> Finished:
    order = ordered(sandbox, oversubscription=1)
    with Suite(checkout, run, *SELECTION, *order, *more, env=on(sandbox), new=new) as suite:
        return suite.wait()


def outcomes(done: Finished, criterion: str) -> set[str]:
    return {r["outcome"] for r in done.verdict["criteria"] if r["criterion"] == criterion}


def test_a_slow_link_between_two_leaves_is_found_and_no_node_is_at_fault(
    sandbox: Sandbox, checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with linked_leaves(sandbox, ON_SECOND, node_mbit=NODE_MBIT, link_mbit=SLOW_MBIT):
        done = loaded(checkout, tmp_path / "run", sandbox)
    load: dict[str, Any] = done.verdict["fabric_load"]
    assert load["leaves"] == sorted({*LEAVES.values()})
    assert outcomes(done, "fabric.pairs") == {"FAIL"}, load
    assert any("between leaf leaf0 and leaf leaf1" in line for line in load["findings"]), load
    assert not outcomes(done, "fabric.ports") & {"FAIL"}, load
    assert (done.directory.root / "bad-nodes.txt").read_text() == ""
    assert_both_judges_agree(done.directory.root, capsys)


def assert_both_judges_agree(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both judge the records again, as does `verify`, which compares fabric_load too."""
    limits = ["--thresholds", str(json.loads((run / "run.json").read_text())["thresholds"]["path"])]
    assert reports.main(["verify", str(run), *limits]) == 0, capsys.readouterr().out
    assert reports.main(["rejudge", str(run), *limits]) == 0, capsys.readouterr().out


def test_a_healthy_fabric_accuses_nobody(sandbox: Sandbox, checkout: Path, tmp_path: Path) -> None:
    with linked_leaves(sandbox, ON_SECOND, node_mbit=NODE_MBIT, link_mbit=FULL_MBIT):
        done = loaded(checkout, tmp_path / "run", sandbox)
    load: dict[str, Any] = done.verdict["fabric_load"]
    assert load["findings"] == []
    for criterion in ("ports", "flaps", "uplinks", "pairs", "errors"):
        # What the noise of shared cores leaves undecided is not measured, and nobody's fault.
        assert outcomes(done, f"fabric.{criterion}") <= {"PASS", "NOT_MEASURED"}, load
    assert outcomes(done, "fabric.errors") == {"PASS"}
    assert load["slices"] == 1


def test_where_the_cores_are_the_bottleneck_nobody_is_accused(
    sandbox: Sandbox, checkout: Path, tmp_path: Path
) -> None:
    done = loaded(checkout, tmp_path / "run", sandbox)
    assert "FAIL" not in {outcome for key, outcome in done.outcomes.items()}, done.said
    assert (done.directory.root / "bad-nodes.txt").read_text() == ""


def test_a_node_that_dies_in_the_middle_is_left_out_and_said_and_slices_add_up(
    sandbox: Sandbox, checkout: Path, tmp_path: Path
) -> None:
    run, hours = tmp_path / "run", ("--hours", "1")

    def measured(number: int) -> list[str]:
        record = read_json(RunDirectory(run).record("permutations", "all", number))
        return list(record["nodes"])

    with linked_leaves(sandbox, ON_SECOND, node_mbit=NODE_MBIT, link_mbit=FULL_MBIT):
        before = loaded(checkout, run, sandbox, *hours).verdict["fabric_load"]
        again = (f"--resume={run}", *hours)
        order = ordered(sandbox, oversubscription=1)
        with Suite(checkout, run, *SELECTION, *order, *again, env=on(sandbox), new=False) as suite:
            suite.until(
                lambda: len(suite.lines(event="started", workload="permutations", attempt=2)) == 8,
                "the load", timeout_s=300,
            )  # fmt: skip
            sandbox.kill_node("worker5")
            killed = suite.wait()
    # The others have gone on without it; the time in which it died counts for nothing.
    assert measured(1) == [*LEAVES]
    assert "worker5" not in measured(2)
    after = killed.verdict["fabric_load"]
    assert (before["slices"], after["slices"]) == (1, 2)
    assert after["hours"] > before["hours"]
    assert after["leaves"] == sorted({*LEAVES.values()})
    assert before["findings"] == after["findings"] == []
    assert killed.outcomes["fabric.ports", "worker5"] == "NOT_MEASURED"
    assert "FAIL" not in set(killed.outcomes.values())
