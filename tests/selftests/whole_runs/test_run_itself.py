"""What happens around a run: the controller restarts, the disk fills up, clocks differ.

Each ends bounded, with the right verdict, and nothing that was measured is lost or measured twice.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fixtures.sandbox import Sandbox
from tests.selftests.sandboxes import (
    Finished,
    Suite,
    Waiting,
    copy_checkout,
    measured,
    on,
    queued,
    resume,
    suite,
)
from tests.selftests.support import DATA, run_pytest

pytestmark = pytest.mark.cpu

NODES = ("node-worker0", "node-worker1")


def both_at_work(run: Suite) -> None:
    """Wait until the ranks of both nodes stand before the workload that waits."""
    for job in NODES:
        run.until(
            lambda job=job: len(run.lines(job, event="started", workload="environment")) == 2,
            f"ranks of {job} in their second workload",
        )


def expect_all_measured_once(done: Finished, sandbox: Sandbox) -> None:
    done.ended_as("DEMONSTRATION", 0)
    assert set(done.outcomes.values()) == {"PASS"}
    assert set(measured(done.directory).values()) == {1}
    assert queued(sandbox) == {}


def test_the_controller_restarts_while_jobs_run(
    sandbox: Sandbox, waiting: Waiting, tmp_path: Path
) -> None:
    """What the nodes measure meanwhile counts, and Slurm's silence is not a failure of a job."""
    with Suite(waiting.checkout, tmp_path / "run", *waiting.selection, env=on(sandbox)) as run:
        both_at_work(run)
        sandbox.stop_daemon("slurmctld")
        waiting.let_go()
        for job in NODES:
            run.until(
                lambda job=job: len(run.lines(job, event="end")) == 2, f"the end of {job}'s ranks"
            )
        sandbox.start_controller()
        done = run.wait()
    expect_all_measured_once(done, sandbox)


def test_a_job_of_ours_is_not_requeued_whoever_asks(
    sandbox: Sandbox, waiting: Waiting, tmp_path: Path
) -> None:
    """Started anew it would measure beside what it left: it says that it must not be."""
    with Suite(waiting.checkout, tmp_path / "run", *waiting.selection, env=on(sandbox)) as run:
        both_at_work(run)
        for job_id in queued(sandbox):
            asked = subprocess.run(
                ["scontrol", "requeue", job_id], env=sandbox.environ, capture_output=True, text=True
            )
            assert asked.returncode != 0
            assert "disabled" in asked.stderr
        waiting.let_go()
        done = run.wait()
    expect_all_measured_once(done, sandbox)


def test_the_clock_of_a_node_is_an_hour_ahead(sandbox: Sandbox, tmp_path: Path) -> None:
    """No deadline, no silence and no order of stages is taken from the nodes' clocks."""
    root = tmp_path / "checkout"
    root.mkdir()
    copy_checkout(root)
    entry = root / "fixtures" / "workloads" / "runtime" / "rank_main.py"
    ahead = (
        'if os.environ.get("SLURMD_NODENAME") == "worker1":\n'
        "    _here = time.time\n"
        "    time.time = lambda: _here() + 3600\n"
    )
    text = entry.read_text(encoding="utf-8")
    begin = "STARTUP_TIMEOUT_S ="
    assert text.count(begin) == 1
    entry.write_text(text.replace(begin, f"{ahead}\n{begin}"), encoding="utf-8")
    done = suite(root, tmp_path / "run", "-m", "multinode", "-k",
                 "(environment and not drift) or inventory.gpus or peers",
                 env=on(sandbox))  # fmt: skip
    done.ended_as("DEMONSTRATION", 0)
    assert not done.not_measured()
    lines = [n for n in _results(done) if n["node"] == "worker1"]
    assert all(n["time"] > done.directory.verdict.stat().st_mtime + 3000 for n in lines)


def _results(done: Finished) -> list[dict[str, float | str]]:
    from fixtures.records.files import read_lines

    files = done.directory.jobs.glob("*/rank*.jsonl")
    return [n for file in files for n in read_lines(file) if n.get("event") == "result"]


# --- the disk that the run directory is on


@contextmanager
def disk_of(kib: int, path: Path) -> Iterator[Path]:
    """A filesystem of its own."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@pytest.fixture
def small_disk(machine: None, tmp_path: Path) -> Iterator[Path]:
    """16 MiB, there before the nodes are, so that they see it."""
    with disk_of(16 << 10, tmp_path / "disk") as disk:
        yield disk


def fill(path: Path) -> None:
    """Write until nothing more goes in."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 12)):
            pass


def test_the_disk_fills_up_and_is_freed_for_the_resume(small_disk: Path, waiting: Waiting) -> None:
    run_dir = small_disk / "run"
    filler = small_disk / "filler"
    with Sandbox.up(nodes=2, gpus=2) as sandbox:
        with Suite(waiting.checkout, run_dir, *waiting.selection, env=on(sandbox)) as run:
            both_at_work(run)
            fill(filler)
            waiting.let_go()
            done = run.wait()
        assert done.status in (2, 3), done.said
        assert "No space left on device" in done.said, done.said
        assert queued(sandbox) == {}
        before = measured(done.directory)
        filler.unlink()
        again = resume(waiting.checkout, run_dir, "-m", "multinode", env=on(sandbox))
        again.ended_as("DEMONSTRATION", 0)
        assert set(again.outcomes.values()) == {"PASS"}
        # What had a complete set of results before is not measured again.
        whole = {key[:3] for key in before if all((*key[:3], k) in before for k in (0, 1))}
        assert whole
        assert {key[:3] for key, n in measured(again.directory).items() if n > 1} & whole == set()


@pytest.mark.parametrize(
    "kib",
    [
        pytest.param(64, id="no run directory"),
        pytest.param(700, id="no verdict"),
        pytest.param(1500, id="no report"),
    ],
)
def test_a_run_that_cannot_be_written_says_so_and_shows_no_verdict(
    machine: None, tmp_path: Path, kib: int
) -> None:
    """The report is the largest file and comes last: the verdict had been written, and passed."""
    with disk_of(kib, tmp_path / "disk") as disk:
        done = run_pytest(
            "-q", "-m", "multinode", "--cluster", "replay", f"--from={DATA / 'h200-1x2'}",
            f"--run-dir={disk / 'run'}",
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert done.returncode in (2, 4), said
        assert "the run directory cannot be written: No space left on device" in said
        assert "make room, then give the same command again" in said, "a replay measures nothing"
        assert "PARTIAL" not in said
        assert "INTERNALERROR" not in said
        assert ("INCOMPLETE" in said) == (done.returncode == 2), said
        left = {path.name for path in (disk / "run").glob("*")}
        assert not left & {"verdict.json", "certificate.html", "good-nodes.txt", "results.csv"}


# --- accounting


@pytest.mark.slow
def test_accounting_goes_away_while_jobs_run(
    machine: None, waiting: Waiting, tmp_path: Path
) -> None:
    """Ends are then taken from slurmctld, as where there is no accounting at all."""
    with (
        Sandbox.up(nodes=2, gpus=2, accounting=True) as sandbox,
        Suite(waiting.checkout, tmp_path / "run", *waiting.selection, env=on(sandbox)) as run,
    ):
        both_at_work(run)
        sandbox.stop_daemon("slurmdbd")
        waiting.let_go()
        expect_all_measured_once(run.wait(), sandbox)
