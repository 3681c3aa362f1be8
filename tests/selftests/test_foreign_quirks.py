"""Ways in which sites differ or fail, one by one: a verdict or one clear line each.

Whatever it is: the exit status is right, no healthy node is blamed, no job is left in the queue.
Each runs on a real Slurm of its own that is set up so; they take minutes together (`make soak`).
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fixtures.records.run_directory import RunDirectory
from fixtures.sandbox import Sandbox
from tests.selftests.cluster import (
    NODES_ONLY,
    Suite,
    eventually,
    on,
    queued,
    suite,
    waiting_in,
)
from tests.selftests.test_ways_to_run import as_nobody

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

FILTER = """\
function slurm_job_submit(job, partitions, uid)
  if job.comment == nil or job.comment == "" then
    slurm.log_user("this site wants --comment=PROJECT")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end
"""


@dataclass
class Site:
    """A site at work: what a quirk may change."""

    sandbox: Sandbox
    folder: Path
    run: Path
    checkout: Path
    suite: Suite | None = None

    def slurm(self, *command: str) -> str:
        """Run a command of Slurm as root."""
        env = self.sandbox.environ
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def first_line(self) -> None:
        """Wait until a rank of every node runs: with a workload that waits there."""
        assert self.suite is not None
        self.suite.until(lambda: len(self.ranks()) == 2 * len(self.sandbox.nodes), "all ranks run")

    def ranks(self) -> list[dict[str, object]]:
        assert self.suite is not None
        return self.suite.lines("node-*", event="started", workload="environment")

    def job_of(self, node: str) -> str:
        """The id of the suite's job on a node."""
        jobs = {name: job for job, name in queued(self.sandbox).items()}
        return next(job for name, job in jobs.items() if name.endswith(f"node-{node}"))


@dataclass(frozen=True)
class Quirk:
    """One way in which a site is unlike ours, and what the suite must make of it."""

    name: str
    status: int
    says: str
    """A regular expression in what the suite prints."""
    bad: str = ""
    """bad-nodes.txt: nodes that are at fault."""
    site: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    first: Callable[[Path], object] | None = None
    """Done in the test's folder before the site is brought up."""
    before: Callable[[Site], object] | None = None
    """Done before the suite starts."""
    during: Callable[[Site], object] | None = None
    """Done while the ranks wait; then they go on."""
    runs: bool = True
    """Whether there is a run at all; else one line and no run directory."""


def small_disk(folder: Path) -> None:
    """Put a small file system where the run directory is to be; nodes that start later see it."""
    image = folder / "small.img"
    with image.open("wb") as file:
        file.truncate(8 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True, capture_output=True, timeout=60)
    (folder / "runs").mkdir()
    mount = ["mount", "-o", "loop", str(image), str(folder / "runs")]
    subprocess.run(mount, check=True, timeout=60)


def fill_disk(site: Site) -> None:
    filler = site.run.parent / "filler"
    with filler.open("wb") as file:
        try:
            while True:
                file.write(b"x" * 4096)
                file.flush()
        except OSError:
            return


def cancel_one(site: Site) -> None:
    job = site.job_of("worker1")
    site.slurm("scancel", job)
    eventually(lambda: job not in queued(site.sandbox), "the end of the cancelled job")


def restart_controller(site: Site) -> None:
    site.sandbox.stop_daemon("slurmctld")
    site.sandbox.start_controller()


QUIRKS = [
    Quirk("cores kept for the system", 0, "DEMONSTRATION", site={"nodes": "CoreSpecCount=1"}),
    Quirk(
        "a node is drained at the start", 2, "worker1", bad="worker1\n",
        arguments=("--queue-timeout", "1"),
        before=lambda s: s.slurm("scontrol", "update", "NodeName=worker1", "State=DRAIN",
                                 "Reason=bad DIMM"),
    ),
    Quirk(
        "a reservation holds the nodes", 2, "not measured", arguments=("--queue-timeout", "1"),
        before=lambda s: s.slurm("scontrol", "create", "reservation", "ReservationName=other",
                                 "Users=daemon", "Nodes=ALL", "StartTime=now", "Duration=60",
                                 "Flags=MAINT,IGNORE_JOBS"),
    ),
    Quirk(
        "the submit filter refuses", 2, "this site wants --comment=PROJECT",
        site={"slurm": "JobSubmitPlugins=lua", "job_submit.lua": FILTER},
    ),
    Quirk(
        "the submit filter is satisfied", 0, "DEMONSTRATION",
        site={"slurm": "JobSubmitPlugins=lua", "job_submit.lua": FILTER},
        arguments=("--sbatch-args=--comment=project 7",),
    ),
    Quirk(
        "licenses are demanded and there", 0, "DEMONSTRATION", site={"slurm": "Licenses=site:4"},
        arguments=("--sbatch-args=--licenses=site:1",),
    ),
    Quirk(
        "a license that the site does not have", 2, "nvalid license",
        arguments=("--sbatch-args=--licenses=other:1",),
    ),
    Quirk(
        "the partition never allows the time", 2, "refused by Slurm",
        site={"partitions": "PartitionName=main Default=YES Nodes=ALL State=UP MaxTime=1"},
    ),
    Quirk(
        "the partition is down", 2, "Partition|not measured", arguments=("--queue-timeout", "1"),
        before=lambda s: s.slurm("scontrol", "update", "PartitionName=main", "State=DOWN"),
    ),
    Quirk(
        "no default partition", 4, "no default partition: give --partition", runs=False,
        site={"partitions": "PartitionName=a Nodes=ALL State=UP\nPartitionName=b Nodes=ALL"},
    ),
    Quirk(
        "another account's partition", 2, "refused by Slurm|ermission|ccount|group",
        site={"partitions": "PartitionName=main Default=YES Nodes=ALL State=UP "
                            "AllowAccounts=nobodys"},
    ),
    Quirk(
        "few jobs at a time", 0, "DEMONSTRATION", site={"slurm": "MaxJobCount=3\nMinJobAge=2"},
        arguments=("--max-jobs", "1"),
    ),
    Quirk(
        "SQUEUE_PARTITION and SINFO_FORMAT are set", 0, "DEMONSTRATION",
        env={"SQUEUE_PARTITION": "elsewhere", "SINFO_FORMAT": "%c", "SQUEUE_FORMAT": "%u"},
    ),
    Quirk(
        "the interpreter is nowhere on the nodes", 2, "not visible on the nodes",
        arguments=("--node-python", "/nowhere/bin/python"),
    ),
    Quirk(
        "the controller is down at the start", 4, "lurm", runs=False,
        before=lambda s: s.sandbox.stop_daemon("slurmctld"),
    ),
    Quirk("the controller is restarted in the middle", 0, "DEMONSTRATION",
          during=restart_controller),
    Quirk(
        "an administrator cancels one job", 2, "cancelled",
        during=cancel_one,
    ),
    Quirk(
        "a node is drained in the middle", 0, "DEMONSTRATION",
        during=lambda s: s.slurm("scontrol", "update", "NodeName=worker1", "State=DRAIN",
                                 "Reason=later"),
    ),
    Quirk(
        "SIGINT twice", 2, "interrupted|SIGINT",
        during=lambda s: twice(s, signal.SIGINT),
    ),
    Quirk(
        "the terminal is closed", 2, "interrupted|SIGHUP|closed",
        during=lambda s: s.suite and s.suite.process.send_signal(signal.SIGHUP),
    ),
    Quirk("the run directory is full", 2, "No space left|full|cannot be written",
          first=small_disk, during=fill_disk),
]  # fmt: skip


def twice(site: Site, number: signal.Signals) -> None:
    """Send a signal, and again as soon as the first has been heard."""
    assert site.suite is not None
    process = site.suite.process
    process.send_signal(number)
    eventually(
        lambda: process.poll() is not None or "nterrupt" in site.suite.said,  # type: ignore[union-attr]
        "the first signal to be heard",
    )
    if process.poll() is None:
        process.send_signal(number)


@pytest.mark.parametrize("quirk", QUIRKS, ids=lambda q: q.name.replace(" ", "-"))
def test_a_quirk_ends_in_a_verdict_or_a_line_and_blames_nobody(
    quirk: Quirk, machine: None, checkout: Path, tmp_path: Path
) -> None:
    waiting = waiting_in(tmp_path, "environment") if quirk.during else None
    used = waiting.checkout if waiting else checkout
    run = tmp_path / "runs" / "run"
    if quirk.first:
        quirk.first(tmp_path)
    with Sandbox.up(nodes=2, gpus=2, site=dict(quirk.site)) as sandbox:
        site = Site(sandbox, tmp_path, run, used)
        try:
            if quirk.before:
                quirk.before(site)
            with Suite(
                used, run, *NODES_ONLY, *quirk.arguments, env={**on(sandbox), **quirk.env}
            ) as at_work:
                site.suite = at_work
                if quirk.during:
                    assert waiting is not None
                    site.first_line()
                    quirk.during(site)
                    waiting.let_go()
                done = at_work.wait(300)
            assert done.status == quirk.status, done.said
            assert re.search(quirk.says, done.said), done.said
            assert "Traceback" not in done.said
            assert "INTERNALERROR" not in done.said
            if quirk.name != "the controller is down at the start":
                eventually(lambda: queued(sandbox) == {}, "an empty queue")
            if quirk.runs:
                files = RunDirectory(run).root
                bad = files / "bad-nodes.txt"
                assert (bad.read_text() if bad.exists() else "") == quirk.bad, done.said
            else:
                assert not run.exists()
        finally:
            subprocess.run(["umount", "-l", str(run.parent)], capture_output=True, timeout=60)


FOREIGN = {
    "nodes": "CoreSpecCount=1",
    "partitions": "PartitionName=batch Default=YES Nodes=worker0 State=UP\n"
    "PartitionName=gpu Nodes=ALL State=UP MaxTime=INFINITE",
    "slurm": "JobSubmitPlugins=lua\nPrivateData=jobs,usage,users,accounts\nProlog={prolog}",
    "job_submit.lua": FILTER,
}
"""Cores kept for the system, a wrong default partition, a submit filter, private data, a prolog."""


def test_an_ordinary_user_has_every_row_judged_on_a_site_unlike_ours(
    machine: None, checkout: Path
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="acceptance-user-"))
    folder.chmod(0o1777)
    prolog = folder / "prolog.sh"
    prolog.write_text("#!/bin/sh\nsleep 3\n")
    prolog.chmod(0o755)
    site = {**FOREIGN, "slurm": FOREIGN["slurm"].format(prolog=prolog)}
    try:
        with Sandbox.up(nodes=2, gpus=2, site=site) as sandbox:
            command = as_nobody(sandbox, (checkout, Path(sys.prefix), Path(sys.base_prefix)))
            env = {**on(sandbox), "HOME": "/tmp", "USER": "nobody", "LOGNAME": "nobody"}
            arguments = ("-m", "multinode", "--partition=gpu", "--sbatch-args=--comment=project")
            select = ("-k", "environment or scheduler or filesystem or isolation")
            done = suite(checkout, folder / "run", *arguments, *select, env=env, before=command)
            assert done.not_measured() == {}, done.said
            done.ended_as("DEMONSTRATION", 0)
            areas = {key[0].partition(".")[0] for key, o in done.outcomes.items() if o == "PASS"}
            assert areas >= {"environment", "scheduler", "filesystem", "isolation"}
            assert queued(sandbox) == {}
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True, timeout=30)
