"""A run that is killed after its k-th event: nothing stays behind, and --resume ends as if nothing
had happened.

An event is a line that a rank writes, a record that is assembled, a verdict in the ledger, or a
job's submission: every moment at which the run directory changes.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fixtures.conclusion.run_verdict import judged_of
from fixtures.records.files import read_json, read_lines
from fixtures.records.run_directory import RunDirectory
from fixtures.sandbox import Sandbox
from tests.selftests.sandboxes import (
    NODES_ONLY,
    SMALL,
    Finished,
    Suite,
    Waiting,
    bytes_of,
    complete_sets,
    eventually,
    on,
    queued,
    resume,
    submit,
    suite,
)

pytestmark = pytest.mark.cpu

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]


def _submissions(run: RunDirectory) -> int:
    return len(list(run.jobs.glob("*/job.json")))


def _rank_lines(run: RunDirectory) -> int:
    files = run.jobs.glob("*/rank*.jsonl")
    return sum(1 for file in files if file.parent.name != "login" for _ in read_lines(file))


def _records(run: RunDirectory) -> int:
    return len(list(run.records.glob("*.json")))


def _verdicts(run: RunDirectory) -> int:
    return sum(1 for _ in read_lines(run.ledger))


EVENTS: dict[str, Callable[[RunDirectory], int]] = {
    "submission": _submissions,
    "rank line": _rank_lines,
    "record": _records,
    "verdict": _verdicts,
}


@dataclass(frozen=True)
class Drill:
    """A plan on a sandbox, and what it comes to when nobody interrupts it."""

    sandbox: Sandbox
    checkout: Path
    selection: tuple[str, ...]
    unbroken: Finished

    @classmethod
    def of(cls, sandbox: Sandbox, checkout: Path, run: Path, *selection: str) -> Drill:
        unbroken = suite(checkout, run, *selection, env=on(sandbox))
        unbroken.ended_as("DEMONSTRATION", 0)
        return cls(sandbox, checkout, selection, unbroken)

    def __call__(self, run: Path, event: str, k: int, number: signal.Signals) -> None:
        """Interrupt the plan after its k-th event, look at what is left, and go on with it."""
        with Suite(self.checkout, run, *self.selection, env=on(self.sandbox)) as at_work:
            at_work.until(lambda: EVENTS[event](at_work.directory) >= k, f"{event} {k}")
            at_work.send(number)
            broken = at_work.wait()
        if has_ended(broken):
            # The signal came after the last word.
            assert broken.status in (0, -number), broken.said
        elif number is signal.SIGKILL:
            assert broken.status == -number, broken.said
            self.expect_rendered(broken)
        else:
            self.expect_stopped(broken)
        self.expect_resumed(broken)

    def expect_stopped(self, broken: Finished) -> None:
        """After INT and TERM: the last word is said, and nothing is queued once pytest is gone."""
        left = jobs_of(broken, self.sandbox)
        broken.ended_as("INCOMPLETE", 2)
        assert left == {}
        verdict = broken.verdict
        assert verdict["reasons"][0] == "interrupted"
        for reason in broken.not_measured().values():
            assert "interrupted" in reason
        expect_nobody_accused(broken)
        assert set(broken.rows) == set(self.unbroken.rows)

    def expect_rendered(self, broken: Finished) -> None:
        """After KILL: render says INCOMPLETE, and how much of the plan could be judged."""
        shown = subprocess.run(
            [sys.executable, "-m", "reports", "render", str(broken.root)],
            cwd=self.checkout, capture_output=True, text=True, timeout=900,
        )  # fmt: skip
        assert shown.returncode == 2, shown.stdout + shown.stderr
        verdict = broken.verdict
        assert verdict["verdict"] == "INCOMPLETE"
        counts = verdict["counts"]
        judged = "{} of {}".format(*judged_of(counts))
        assert f"{judged} judged" in verdict["reasons"]
        assert judged in (broken.root / "report.html").read_text()

    def expect_resumed(self, broken: Finished) -> None:
        """--resume measures what is missing, once, and comes to the unbroken run's verdicts."""
        before = bytes_of(broken.directory.records.glob("*.json"))
        done = resume(self.checkout, broken.root, *self.selection, env=on(self.sandbox))
        done.ended_as("DEMONSTRATION", 0)
        assert done.outcomes == self.unbroken.outcomes
        after = bytes_of(done.directory.records.glob("*.json"))
        assert {name: after[name] for name in before} == before
        whole = bytes_of(self.unbroken.directory.records.glob("*.json"))
        # The inventory is taken again, to hold what was measured before against it.
        assert {n for n in after if "inventory@" not in n} == {
            n for n in whole if "inventory@" not in n
        }
        sets = complete_sets(done.directory)
        assert {k: n for k, n in sets.items() if n != 1 and k[0] != "inventory"} == {}
        assert jobs_of(done, self.sandbox) == {}


@pytest.fixture(scope="module")
def short(
    shared_sandbox: Sandbox, checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> Drill:
    run = tmp_path_factory.mktemp("short") / "run"
    return Drill.of(shared_sandbox, checkout, run, *NODES_ONLY)


@pytest.fixture(scope="module")
def long(
    shared_sandbox: Sandbox, checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> Drill:
    run = tmp_path_factory.mktemp("long") / "run"
    return Drill.of(shared_sandbox, checkout, run, *SMALL)


def expect_nobody_accused(broken: Finished) -> None:
    """Neither on the terminal nor on a page or in a file: the nodes did nothing."""
    assert (broken.root / "bad-nodes.txt").read_text() == ""
    reasons = (broken.root / "node-reasons.txt").read_text().splitlines()
    assert all(" neither: " in line and "interrupted" in line for line in reasons)
    assert not any(row["cause_nodes"] for row in broken.rows.values())
    page = (broken.root / "report.html").read_text()
    for text in (broken.said, page, (broken.root / "certificate.html").read_text()):
        assert not [w for w in (" to look at: ", " at fault (", " dead (") if w in text]


def has_ended(run: Finished) -> bool:
    """Whether it had come to its end as the unbroken run does."""
    ends = [line for line in read_lines(run.directory.ledger) if line["event"] == "end"]
    return bool(ends) and ends[-1]["verdict"] == "DEMONSTRATION"


def jobs_of(run: Finished, sandbox: Sandbox) -> dict[str, str]:
    """Living jobs of a run."""
    mark = f"-{read_json(run.directory.run_json)['id']}-"
    return {job: name for job, name in queued(sandbox).items() if mark in name}


def signalled(*quick: tuple[str, int, signal.Signals]) -> list[object]:
    """Each signal after each of three events: those of `quick` in `make test`, all in soak."""
    return [
        pytest.param(*case, id=f"{case[0].rpartition(' ')[2]}-{case[2].name}",
                     marks=[] if case in quick else pytest.mark.slow)
        for event, k in (("rank line", 3), ("record", 1), ("verdict", 2))
        for case in [(event, k, number) for number in SIGNALS]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("event", "k", "number"),
    signalled(("rank line", 3, signal.SIGKILL)),
)  # fmt: skip
def test_a_run_that_is_killed_goes_on_as_if_nothing_had_happened(
    event: str, k: int, number: signal.Signals, short: Drill, tmp_path: Path
) -> None:
    short(tmp_path / "run", event, k, number)


def test_a_terminal_that_is_closed_ends_the_run_as_an_interrupt_does(
    short: Drill, tmp_path: Path
) -> None:
    short(tmp_path / "run", "record", 1, signal.SIGHUP)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_the_controller_of_workers_ends_its_jobs_too(
    number: signal.Signals, sandbox: Sandbox, waiting: Waiting, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with Suite(waiting.checkout, run, *waiting.selection, "-n", "2", env=on(sandbox)) as at_work:
        at_work.until(lambda: len(_in_environment(at_work)) == 4, "environment")
        at_work.send(number)
        done = at_work.wait(120)
    assert jobs_of(done, sandbox) == {}
    done.ended_as("INCOMPLETE", 2)
    assert {key[0].partition(".")[0] for key in done.not_measured()} >= {"environment"}
    assert len(done.rows) == 6


def test_ctrl_c_is_answered_at_once_and_a_second_one_does_not_wait_for_slurm(
    sandbox: Sandbox, waiting: Waiting, tmp_path: Path
) -> None:
    with Suite(waiting.checkout, tmp_path / "run", *waiting.selection, env=on(sandbox)) as at_work:
        at_work.until(lambda: len(_in_environment(at_work)) == 4, "environment")
        at_work.send(signal.SIGINT)
        at_work.until(lambda: "stopping, cancelling 2 jobs" in at_work.said, "answer")
        at_work.send(signal.SIGINT)
        done = at_work.wait(120)
    assert "still stopping" in done.said
    done.ended_as("INCOMPLETE", 2)
    expect_nobody_accused(done)
    eventually(lambda: not jobs_of(done, sandbox), "end of the jobs")


INTERRUPTED_FINALIZER = """
import os, signal

class Dropped:
    def __del__(self):
        os.kill(os.getpid(), signal.{signal})  # an exception here is printed and dropped

def pytest_runtest_logreport(report):
    Dropped()
"""


@pytest.mark.parametrize(
    ("workers", "number"),
    [((), signal.SIGINT), (("-n", "2"), signal.SIGTERM)], ids=["alone", "controller"],
)  # fmt: skip
def test_an_interrupt_is_heard_whatever_runs_when_it_comes(
    workers: tuple[str, ...], number: signal.Signals, checkout: Path, tmp_path: Path
) -> None:
    plugin = tmp_path / "interrupted_finalizer.py"
    plugin.write_text(INTERRUPTED_FINALIZER.format(signal=number.name))
    run = suite(
        checkout, tmp_path / "run", *SMALL, "--cluster=local", "-p", plugin.stem, *workers,
        env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    run.ended_as("INCOMPLETE", 2)
    assert run.verdict["reasons"][0] == "interrupted"


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS, ids=lambda n: n.name)
@pytest.mark.parametrize("event", list(EVENTS))
def test_every_event_may_be_the_last(
    event: str, number: signal.Signals, long: Drill, tmp_path: Path
) -> None:
    for k in range(1, EVENTS[event](long.unbroken.directory) + 1):
        try:
            long(tmp_path / str(k) / "run", event, k, number)
        except BaseException as error:
            error.add_note(f"{number.name} after {event} {k}")
            raise


# --- sweeping


@pytest.fixture
def held(sandbox: Sandbox) -> dict[str, str]:
    """Jobs of our own user that are not a dead run's: one of anybody, one that looks like ours."""
    return {
        name: submit(sandbox, name, "--hold", "--nodes=1")
        for name in ("somebody", "accept-20260101-000000-beef-node-worker0")
    }


def test_the_next_run_sweeps_what_a_dead_one_left_and_nothing_else(
    sandbox: Sandbox, checkout: Path, waiting: Waiting, tmp_path: Path, held: dict[str, str]
) -> None:
    env = on(sandbox)
    with Suite(waiting.checkout, tmp_path / "dead", *waiting.selection, env=env) as dead:
        dead.until(lambda: len(_in_environment(dead)) == 4, "environment")
        with Suite(checkout, tmp_path / "living", *NODES_ONLY, env=env) as living:
            living.until(lambda: _submissions(living.directory) == 2, "submissions")
            dead.process.kill()
            left = jobs_of(dead.wait(), sandbox)
            assert len(left) == 2
            third = suite(checkout, tmp_path / "third", *NODES_ONLY, env=env)
            survivor = living.wait()
    third.ended_as("DEMONSTRATION", 0)
    survivor.ended_as("DEMONSTRATION", 0)
    assert "cancelled 2 jobs that run" in third.said
    assert "cancelled" not in survivor.said
    there = queued(sandbox)
    assert not set(left) & set(there)
    assert set(held.values()) <= set(there)


def test_a_resumed_run_ends_the_jobs_that_its_dead_owner_left(
    sandbox: Sandbox, waiting: Waiting, tmp_path: Path
) -> None:
    """They hold the nodes, and would measure beside the new ones."""
    run = tmp_path / "run"
    with Suite(waiting.checkout, run, *waiting.selection, env=on(sandbox)) as dead:
        dead.until(lambda: len(_in_environment(dead)) == 4, "environment")
        dead.process.kill()
        broken = dead.wait()
    left = jobs_of(broken, sandbox)
    assert len(left) == 2
    with Suite(
        waiting.checkout, run, f"--resume={run}", *waiting.selection, new=False, env=on(sandbox)
    ) as again:
        again.until(lambda: len(_in_environment(again)) == 8, "environment again")
        assert not set(left) & set(queued(sandbox))
        waiting.let_go()
        done = again.wait()
    done.ended_as("DEMONSTRATION", 0)
    sets = complete_sets(done.directory)
    assert {n for (workload, _), n in sets.items() if workload != "inventory"} == {1}


def _in_environment(at_work: Suite) -> list[dict[str, Any]]:
    return at_work.lines("node-*", event="started", workload="environment")


def test_a_run_that_somebody_runs_cannot_be_resumed(
    shared_sandbox: Sandbox, waiting: Waiting, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    plan, env = waiting.selection, on(shared_sandbox)
    with Suite(waiting.checkout, run, *plan, env=env) as living:
        living.until(lambda: _submissions(living.directory), "submission")
        second = resume(waiting.checkout, run, *plan, env=env)
        waiting.let_go()
        assert second.status == 4
        assert f"is still being run by process {living.process.pid}" in second.said
        living.wait().ended_as("DEMONSTRATION", 0)
