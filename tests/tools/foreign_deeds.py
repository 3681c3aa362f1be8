"""What is done to a foreign site while, or before, the suite works on it (foreign_quirks.py)."""

import contextlib
import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.selftests.sandboxes import Suite, eventually
from tests.tools.foreign_config import GPU_NODES
from tests.tools.foreign_site import ForeignSite


@dataclass
class Case:
    """A quirk at work."""

    site: ForeignSite
    checkout: Path
    run: Path
    until_end: contextlib.ExitStack
    """What is ended after the suite has ended."""
    suite: Suite | None = None

    @property
    def at_work(self) -> Suite:
        assert self.suite is not None
        return self.suite

    def ranks(self) -> int:
        """How many ranks have begun the workload that waits."""
        return len(self.at_work.lines("node-*", event="started", workload="environment"))

    def job_of(self, node: str) -> str:
        """The id of the suite's job on a node; empty while there is none."""
        jobs = self.site.queued().items()
        return next((job for job, name in jobs if name.endswith(f"node-{node}")), "")

    def signal(self, number: int) -> None:
        """Send a signal to pytest, which is the one child of nsenter."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.at_work.process.pid).children():
                process.send_signal(number)


def by_root(*command: str) -> Callable[[Case], object]:
    return lambda case: case.site.root(*command)


def fill(case: Case) -> None:
    """Write into the run directory's file system until nothing more can be written."""
    case.site.root("sh", "-c", f"dd if=/dev/zero of={case.run.parent}/filler bs=1k || true")


def use_up_names(case: Case) -> None:
    """Make files there until no more can be made."""
    script = "k=0; while : > $k; do k=$((k+1)); done"
    case.site.root("sh", "-c", f"cd {case.run.parent}; sh -c {shlex.quote(script)} || true")


def restart_controller(case: Case) -> None:
    case.site.stop_controller()
    case.site.start_controller()


def cancel_one(case: Case) -> None:
    job = case.job_of(GPU_NODES[1])
    case.site.root("scancel", job)
    eventually(lambda: job not in case.site.queued(), "the end of the cancelled job")


def hold_one(case: Case) -> None:
    """Hold the suite's job on a node that somebody else's job keeps busy; then end that one."""
    site = case.site
    job = case.at_work.until(lambda: case.job_of(GPU_NODES[1]), "a job on the second node")
    site.root("scontrol", "hold", job)
    site.root("scancel", "--name=other")


def occupy(case: Case) -> None:
    case.site.root("sbatch", "--partition=gpu", f"--nodelist={GPU_NODES[1]}", "--exclusive",
                   "--comment=x", "--job-name=other", "--output=/dev/null",
                   "--wrap=sleep 600")  # fmt: skip
    eventually(lambda: "R other" in case.site.root("squeue", "-ho", "%t %j"), "the other job")


def twice(number: int) -> Callable[[Case], object]:
    """Send a signal, and again while the suite waits for the end of the jobs that it cancelled."""

    def send(case: Case) -> None:
        case.signal(number)
        eventually(lambda: "R" not in case.site.root("squeue", "-ho", "%t"), "the first signal")
        case.signal(number)

    return send


def covered_by(fault: str, *, login: bool = False) -> Callable[[Case], object]:
    """Cover the runs by a filesystem with this fault, on the nodes and also on the login node.

    "late": each node sees what others wrote only some time after it asked.
    """

    def cover(case: Case) -> None:
        argv = [str(case.site.python), "-m", "fixtures.sandbox.faulty_filesystem",
                str(case.run.parent), fault]  # fmt: skip
        places = [case.site.on_node(node, *argv) for node in GPU_NODES]
        for command in [*places, *([case.site.on_login(*argv)] if login else [])]:
            server = case.until_end.enter_context(subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(case.checkout)},
            ))  # fmt: skip
            case.until_end.callback(server.communicate)
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"

    return cover


def preempt(case: Case) -> None:
    """Let a job of a partition that goes first take the second node."""
    site = case.site
    asked = ("--partition=first", f"--nodelist={GPU_NODES[1]}", "--exclusive", "--comment=x")
    site.root("sbatch", *asked, "--job-name=other", "--output=/dev/null", "--wrap=sleep 600")
    case.until_end.callback(site.root, "scancel", "--name=other")
    eventually(lambda: "R other" in site.root("squeue", "-aho", "%t %j"), "the job that goes first")


def cancel_pending(case: Case) -> None:
    """Cancel the suite's job that waits for a node; then let the other job go."""
    job = case.at_work.until(lambda: case.job_of(GPU_NODES[1]), "a job on the second node")
    case.site.root("scancel", job)
    case.site.root("scancel", "--name=other")


def preempt_in_prolog(case: Case) -> None:
    """Let the other job take the node while the suite's job there is in its prolog."""
    site = case.site
    case.at_work.until(
        lambda: f"R {case.job_of(GPU_NODES[1])}\n" in site.root("squeue", "-aho", "%t %A"),
        "a prolog on the second node",
    )
    preempt(case)


def suspend_for_a_while(case: Case) -> None:
    """Let a job that goes first have the second node, until it ends by itself."""
    site = case.site
    asked = ("--partition=first", f"--nodelist={GPU_NODES[1]}", "--comment=x")
    site.root("sbatch", *asked, "--job-name=other", "--output=/dev/null", "--wrap=sleep 5")
    states = lambda: site.root("squeue", "-aho", "%t %j")  # noqa: E731
    eventually(lambda: re.search("^S accept", states(), re.M), "a suspended job")
    eventually(lambda: not re.search("^S|other", states(), re.M), "the end of the other job")


def order(lines: str) -> Callable[[Case], object]:
    """Put these lines in the place of the nodes that were ordered."""

    def write(case: Case) -> None:
        file = case.checkout / "site.yaml"
        file.write_text(file.read_text().replace("nodes: rack[1-2]n[1-1]", lines))

    return write
