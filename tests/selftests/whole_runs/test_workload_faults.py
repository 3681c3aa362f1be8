"""Workloads that misbehave, workers that crash, devices that are slow.

What misbehaves is not measured, with the right kind, and the rest of its batch is measured by a
second submission; what is slow is red by the outlier rule and by its floor.

A misbehaving workload is a copy of the checkout in which `environment` is another file; a rank
that hangs or is killed is stopped from outside, by its pid.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fixtures.records.absence import JobKind
from fixtures.records.files import read_lines
from fixtures.sandbox import Sandbox
from tests.selftests import support
from tests.selftests.sandboxes import (
    Finished,
    Suite,
    Waiting,
    copy_checkout,
    ledger,
    on,
    queued,
    rank_states,
    suite,
    waiting_in,
)

pytestmark = pytest.mark.cpu

BATCH = ("tests/test_inventory.py", "-k", "(inventory.gpus or environment) and not drift")
"""Two workloads in one job per node: `inventory` and `environment`."""

HEAD = """\
import os, sys, time
from fixtures.records.model import Measurement, Result
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.runtime.spec import Workload
WORKLOAD = Workload(metrics=dict(versions="packages", run_directory="state"),
                    needs_torch=False, seconds=1,
                    cpu_seconds=1, deadline_s=5, cpu_deadline_s=5)
def run(ranks, metrics, **more):
    if ranks.node == "worker1" and ranks.rank == 1:
"""
TAIL = """
    if not ranks.leads_node:
        return Result()
    return Result(measurements=[
        Measurement(metric="versions", unit="packages", value=0),
        Measurement(metric="run_directory", unit="state", value="seen")])
"""

MISBEHAVIOUR = {
    "exits 0 without a result": ("os._exit(0)", JobKind.RANK_DIED),
    "raises SystemExit": ("sys.exit(0)", JobKind.RANK_RAISED),
    "raises": ("raise ValueError('no such thing')", JobKind.RANK_RAISED),
    "cannot import": ("import no_such_module", JobKind.IMPORT_FAILURE),
    "out of memory": ("raise MemoryError()", JobKind.HOST_OUT_OF_MEMORY),
    "disk is full": ("raise OSError(28, 'No space left on device')", JobKind.STORAGE),
    "is killed": ("os.kill(os.getpid(), 9)", JobKind.RANK_DIED),
    "hangs": ("time.sleep(600)", JobKind.RANK_HUNG),
    "prints bytes and dies": (
        "os.write(1, bytes(range(256)) * 40000); os.write(2, b'\\xff\\xfe' * 1000000); os._exit(0)",
        JobKind.RANK_DIED,
    ),
}
"""What rank 1 on worker1 does in `environment`, and the kind of its failure."""


@pytest.fixture
def broken_checkout(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of the checkout in which one rank misbehaves in `environment`."""

    def make(does: str) -> Path:
        root = tmp_path / "checkout"
        root.mkdir()
        copy_checkout(root)
        module = root / "fixtures" / "workloads" / "inventory" / "environment.py"
        module.write_text(f"{HEAD}        {does}{TAIL}", encoding="utf-8")
        return root

    return make


def expect_one_loss(done: Finished, kind: JobKind) -> None:
    """`environment` on worker1 is lost, with kind, node and rank; all else was measured."""
    done.ended_as("INCOMPLETE", 2)
    lost = done.not_measured()
    assert set(lost) == {(f"environment.{m}", "worker1") for m in ("versions", "run_directory")}
    for reason in lost.values():
        assert reason.startswith(f"{kind}: ")
        assert "environment" in reason
        assert "worker1" in reason
        assert "rank 1" in reason
    missing = list(read_lines(done.directory.missing))
    assert [(m["workload"], m["kind"], m["node"], m["rank"]) for m in missing] == [
        ("environment", kind, "worker1", 1)
    ]
    assert {o for k, o in done.outcomes.items() if k not in lost} <= {"PASS", "NOT_APPLICABLE"}


ALSO = ("raises", "raises SystemExit", "cannot import", "out of memory", "disk is full",
        "is killed")  # fmt: skip
"""These end as the others do; the line that the rank leaves is what differs."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in ALSO else ()) for n in MISBEHAVIOUR]
)
def test_a_workload_that_misbehaves_is_not_measured(
    name: str, shared_sandbox: Sandbox, broken_checkout: Callable[[str], Path], tmp_path: Path
) -> None:
    does, kind = MISBEHAVIOUR[name]
    done = suite(broken_checkout(does), tmp_path / "run", *BATCH, env=on(shared_sandbox))
    expect_one_loss(done, kind)
    assert queued(shared_sandbox) == {}


def test_megabytes_of_noise_are_no_fault(
    shared_sandbox: Sandbox, broken_checkout: Callable[[str], Path], tmp_path: Path
) -> None:
    does = "os.write(1, bytes(range(256)) * 40000); os.write(2, b'\\xff\\n' * 1000000)"
    done = suite(broken_checkout(does), tmp_path / "run", *BATCH, env=on(shared_sandbox))
    done.ended_as("DEMONSTRATION", 0)
    html = (done.root / "report.html").read_bytes()
    assert len(html) < 2_000_000


@pytest.mark.slow
def test_a_rank_that_stands_still_is_hung(
    sandbox: Sandbox, waiting: Waiting, tmp_path: Path
) -> None:
    """Stopped from outside, its own watchdog stands still too: its silence gives it away."""
    run = tmp_path / "run"
    with Suite(waiting.checkout, run, *waiting.selection, env=on(sandbox)) as at_work:
        at_work.until(
            lambda: len(at_work.lines("node-*", event="started", workload="environment")) == 4,
            "environment on every rank",
        )
        sandbox.freeze("worker1", rank=1)
        waiting.let_go()
        done = at_work.wait()
    expect_one_loss(done, JobKind.RANK_HUNG)
    assert queued(sandbox) == {}


# --- a worker of xdist


def test_a_worker_that_crashes_takes_one_verdict_with_it(
    sandbox: Sandbox, waiting: Waiting, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with Suite(waiting.checkout, run, *waiting.selection, "-n", "2", env=on(sandbox)) as at_work:
        at_work.until(
            lambda: len(at_work.lines("node-*", event="started", workload="environment")) == 4,
            "environment on every rank",
        )
        # The verdicts on `inventory` have fallen; the worker waits, or is about to.
        at_work.until(lambda: len(ledger(at_work.directory)) == 2, "verdicts")
        victim = workers_of(at_work.process.pid)[0]
        os.kill(victim, signal.SIGKILL)
        waiting.let_go()
        done = at_work.wait()
    done.ended_as("INCOMPLETE", 2)
    lost = done.not_measured()
    assert len(lost) == 1
    [(key, reason)] = lost.items()
    assert "the xdist worker that judged it died" in reason
    page = (done.root / "report.html").read_text(encoding="utf-8")
    assert "the xdist worker that judged it died" in page
    assert "-".join(key) in page


def workers_of(pid: int) -> list[int]:
    """Child processes of pytest that are workers of -n: execnet feeds them through their input."""
    children = psutil.Process(pid).children()
    return [c.pid for c in children if any("sys.stdin.readline" in w for w in c.cmdline())]


# --- slow devices


@pytest.mark.slow
def test_one_slowed_device_is_an_outlier(sandbox: Sandbox, tmp_path: Path) -> None:
    """Slow once all ranks have met: a rank whose start takes forty times as long never joins.

    Four ranks share two cores, and whatever else is at work: one that runs a fortieth of the time
    has a twentieth of its share at most, and less than a seventh of it on a busy host. Where a
    round of it falls into a moment that the others did not have, or a healthy one into a moment
    that others of this host took, the rate is unstable; where most of its batches lie outside the
    window common to all, it is too short. Either is measured again, as its row says.
    """
    for attempt in range(MOST_UNSTABLE):
        done = _with_a_slowed_device(sandbox, tmp_path / str(attempt))
        row, healthy = done.rows["gemm.bf16", "worker1"], done.rows["gemm.bf16", "worker0"]
        unstable = [r for r in (row, healthy) if r["outcome"] == "NOT_MEASURED"]
        if not unstable:
            break
        assert all(
            r["reason"].startswith("unstable: ") or " batches is " in r["reason"] for r in unstable
        ), done.said
    assert healthy["outcome"] == "PASS", done.said
    done.ended_as("REJECTED", 1)
    assert row["outcome"] == "FAIL"
    assert row["reason"].startswith("outlier: ")
    assert (row["worst"]["node"], row["worst"]["gpu"]) == ("worker1", 1)
    assert (done.root / "bad-nodes.txt").read_text() == "worker1\n"


MOST_UNSTABLE = 4
"""Attempts at a rate of a device that runs now and then."""


def _with_a_slowed_device(sandbox: Sandbox, folder: Path) -> Finished:
    folder.mkdir()
    waiting = waiting_in(folder, "gemm")
    selection = ("tests/test_compute.py", "-k", "gemm.bf16-")
    with Suite(waiting.checkout, folder / "run", *selection, env=on(sandbox)) as at_work:
        at_work.until(lambda: waiting.here() == 4, "gemm on every rank")
        with sandbox.slow("worker1", rank=1, factor=40):
            at_work.until(
                lambda: "stopped" in rank_states(sandbox, "worker1", 1), "a rank that stands"
            )
            waiting.let_go()
            return at_work.wait()


RATES = ("TFLOPS", "GB/s")
RECORDED = support.DATA / "sandbox-2x2-cpu"


def test_whatever_is_slowed_fifty_times_is_below_its_floor(tmp_path: Path) -> None:
    """Derived from the recorded run, so that the limits alone decide.

    Live it would pass its deadline first, and a machine twice as fast would be red only at 100.
    """
    _, healthy = support.judged(RECORDED, tmp_path / "as-it-was")
    assert (healthy["verdict"], healthy["exit_status"]) == ("DEMONSTRATION", 0)
    source = tmp_path / "slowed"
    shutil.copytree(RECORDED, source)
    for path in source.glob("records/*.json"):
        with support.edited(path) as record:
            for rank in record["ranks"]:
                for m in rank["measurements"]:
                    factor = 1 / 50 if m["unit"] in RATES else 50 if m["unit"] == "us" else 1
                    m["samples"] = [sample * factor for sample in m.get("samples", [])]
                    m["rounds"] = [[sample * factor for sample in r] for r in m.get("rounds", [])]
    _, slowed = support.judged(source, tmp_path / "run")
    assert (slowed["verdict"], slowed["exit_status"]) == ("REJECTED", 1)
    # A file system in this host's memory is faster than any floor that a loaded disk can keep, and
    # an emulated driver answers a thousand times faster than the bound for a real one.
    apart = ("filesystem.", "health.")
    timed = {(row["criterion"], row["subject"]) for row in healthy["criteria"]
             if row["outcome"] == "PASS" and row["unit"] in (*RATES, "us")
             and not row["criterion"].startswith(apart)}  # fmt: skip
    assert timed
    red = {(row["criterion"], row["subject"]) for row in slowed["criteria"]
           if row["outcome"] == "FAIL" and not row["criterion"].startswith(apart)}  # fmt: skip
    assert red == timed
