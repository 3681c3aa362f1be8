"""Why nothing was measured, and whose fault that is, on a real Slurm of three nodes.

Each case breaks one thing below the suite; bad-nodes.txt is then exactly right, the reason in the
words of what broke, the exit status 2, and no job is left in the queue. One of them is part of
`make test`, the others of `make soak`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fixtures.sandbox import Sandbox
from tests.selftests.sandboxes import SMALL, Finished, Suite, eventually, on, queued, waiting_in

pytestmark = pytest.mark.cpu

NODES = ("worker0", "worker1", "worker2")
SICK = NODES[1]
HOOK = """#!/bin/sh
[ -e {folder}/{name}-$SLURMD_NODENAME ] && . {folder}/{name}-$SLURMD_NODENAME
exit 0
"""
PARTITIONS = """\
PartitionName=main Default=YES Nodes=ALL State=UP MaxTime=INFINITE PriorityTier=1
PartitionName=urgent Nodes=ALL State=UP MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF"""
SLURM = """\
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PrologFlags=Alloc
Prolog={folder}/prolog
TaskProlog={folder}/task_prolog
BatchStartTimeout=60"""


@dataclass
class Site:
    """The cluster of these tests, and what is broken in it at the moment."""

    sandbox: Sandbox
    folder: Path
    mended: list[Callable[[], object]] = field(default_factory=list)

    def hook(self, name: str, node: str, script: str) -> None:
        """Let a prolog of a node run a script, until the test has ended."""
        file = self.folder / f"{name}-{node}"
        file.write_text(script)
        self.mended.append(file.unlink)

    def slurm(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.sandbox.environ, capture_output=True, text=True, timeout=900,
            check=True,
        )  # fmt: skip
        return done.stdout

    def job_of(self, node: str) -> str:
        """The id of the suite's job on a node, "" while there is none."""
        jobs = queued(self.sandbox).items()
        return next((job for job, name in jobs if name.endswith(f"node-{node}")), "")

    def interpreter(self, folder: Path, script: str) -> str:
        """A --node-python that runs a script first; with NODE in its environment."""
        file = folder / "python"
        file.write_text(f'#!/bin/sh\nNODE=$SLURMD_NODENAME\n{script}\nexec {sys.executable} "$@"\n')
        file.chmod(0o755)
        return f"--node-python={file}"


@pytest.fixture(scope="module")
def cluster(machine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    for name in ("prolog", "task_prolog"):
        (folder / name).write_text(HOOK.format(folder=folder, name=name))
        (folder / name).chmod(0o755)
    site = {"slurm": SLURM.format(folder=folder), "partitions": PARTITIONS}
    with Sandbox.up(nodes=3, gpus=1, site=site) as up:
        yield Site(up, folder)


@pytest.fixture
def site(cluster: Site) -> Iterator[Site]:
    yield cluster
    for mend in reversed(cluster.mended):
        mend()
    cluster.mended.clear()
    for node in NODES:
        if "drain" in cluster.slurm("sinfo", "-h", "-N", "-n", node, "-o", "%T"):
            cluster.sandbox.drain(node, resume=True)


def run_in(site: Site, checkout: Path, run: Path, *options: str) -> Finished:
    with Suite(checkout, run, *SMALL, *options, env=on(site.sandbox)) as suite:
        return suite.wait()


def expect(done: Finished, site: Site, bad: tuple[str, ...], says: str) -> None:
    """bad-nodes.txt is exactly this, some row says so, and nothing is left in the queue."""
    assert done.status == 2, done.said
    named = (done.root / "bad-nodes.txt").read_text().split()
    assert tuple(n for n in NODES if n in named) == bad, done.not_measured()
    reasons = list(done.not_measured().values())
    assert any(says in reason for reason in reasons), reasons
    assert queued(site.sandbox) == {}


@pytest.mark.parametrize(
    ("script", "bad"),
    [
        pytest.param(
            "echo 'python: /lib/libm.so.6: version `GLIBC_2.99 not found' >&2; exit 1", (),
            marks=pytest.mark.slow,
        ),
        ("[ $NODE = worker1 ] && echo 'python: error while loading shared libraries: libz.so.9: "
         "cannot open shared object file' >&2 && exit 127", (SICK,)),
    ],
    ids=["on every node", "on one node"],
)  # fmt: skip
def test_an_interpreter_that_does_not_start(
    site: Site, checkout: Path, tmp_path: Path, script: str, bad: tuple[str, ...]
):
    says = "libz.so.9" if bad else "GLIBC_2.99"
    done = run_in(site, checkout, tmp_path / "run", site.interpreter(tmp_path, script))
    expect(done, site, bad, says)


@dataclass(frozen=True)
class Case:
    """One thing that is broken, and what comes of it."""

    name: str
    says: str
    bad: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    script: str = ""
    """What the interpreter of the nodes runs first."""
    prolog: str = ""
    task_prolog: str = ""
    """What the prolog of the sick node runs."""
    before: Callable[[Site], object] | None = None
    during: Callable[[Site, Suite], object] | None = None
    """Done while the ranks wait in `environment`."""


def cancelled(site: Site, suite: Suite) -> None:
    job = site.job_of(SICK)
    site.slurm("scancel", "--signal=KILL", "--full", job)
    site.slurm("scancel", job)
    eventually(lambda: job not in queued(site.sandbox), "the end of the cancelled job")


def preempted(site: Site, suite: Suite) -> None:
    """A job of a higher partition on the sick node; it ends when the suite has ended."""
    job = site.slurm(
        "sbatch", "--parsable", "--partition=urgent", f"--nodelist={SICK}", "--exclusive",
        "--job-name=other", "--time=5", "--output=/dev/null", "--wrap=sleep 2",
    )  # fmt: skip
    eventually(lambda: site.slurm("squeue", "-h", "-j", job.strip(), "-t", "R"), "preemption",
               timeout_s=60)  # fmt: skip


def killed_and_back(site: Site, suite: Suite) -> None:
    site.sandbox.kill_node(SICK)
    site.sandbox.revive(SICK)


def featured(site: Site) -> None:
    """Give the feature `fast` to all nodes but the sick one."""
    for node in NODES:
        given = "slow" if node == SICK else "fast"
        site.slurm("scontrol", "update", f"NodeName={node}", f"AvailableFeatures={given}",
                   f"ActiveFeatures={given}")  # fmt: skip


CASES = (
    Case("library missing on one node", "No module named 'yaml'", (SICK,),
         script="[ $NODE = worker1 ] && echo \"ModuleNotFoundError: No module named 'yaml'\" >&2"
         " && exit 1"),
    Case("container hook on one node", "nvidia-container-cli: mount error", (SICK,),
         script="[ $NODE = worker1 ] && echo 'nvidia-container-cli: mount error: no such device' "
         ">&2 && exit 1"),
    Case("task prolog on one node", "TaskProlog failed", (SICK,), task_prolog="exit 3"),
    Case("prolog on one node", "rolog", (SICK,), prolog="exit 3"),
    Case("node killed and back at once", SICK, (SICK,), during=killed_and_back),
    Case("job cancelled while it runs", "cancelled", during=cancelled),
    Case("job cancelled while it is pending", "cancelled", before=lambda site: site.slurm(
        "sbatch", f"--nodelist={SICK}", "--exclusive", "--time=5", "--output=/dev/null",
        "--job-name=other", "--wrap=sleep 300")),
    Case("job cancelled before its first line", "cancelled", prolog="sleep 20"),
    Case("job preempted while it runs", "PREEMPTED", during=preempted),
    Case("job preempted in its prolog", "PREEMPTED", prolog="sleep 8"),
    Case("constraint that one node lacks", "refused", options=("--constraint=fast",),
         before=featured),
    Case("wrong MPI type", "pmix_v9", options=("--srun-args=--mpi=pmix_v9",)),
    Case("set-up line that ends the script", "--setup line ended the job with status 3",
         options=("--setup=exit 3",)),
    Case("option that srun does not know", "unrecognized option",
         options=("--srun-args=--container-image=x",)),
)  # fmt: skip


def during_pending(case: Case, site: Site, suite: Suite) -> None:
    """Do to the sick node's job what the case says, before any of its ranks runs."""
    suite.until(lambda: site.job_of(SICK), "a job on the sick node")
    if "preempted" in case.name:
        running = ("squeue", "-h", "-j", site.job_of(SICK), "-o", "%T")
        suite.until(lambda: site.slurm(*running).strip() in ("RUNNING", "CONFIGURING"), "prolog")
        preempted(site, suite)
    else:
        site.slurm("scancel", site.job_of(SICK))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_whose_fault_it_is_that_nothing_was_measured(
    site: Site, checkout: Path, tmp_path: Path, case: Case
):
    options = list(case.options)
    if case.script:
        options.append(site.interpreter(tmp_path, case.script))
    for name, script in (("prolog", case.prolog), ("task_prolog", case.task_prolog)):
        if script:
            site.hook(name, SICK, script)
    if case.before:
        case.before(site)
    waiting = waiting_in(tmp_path, "environment") if case.during else None
    root = waiting.checkout if waiting else checkout
    with Suite(root, tmp_path / "run", *SMALL, *options, env=on(site.sandbox)) as suite:
        if waiting and case.during:
            suite.until(lambda: waiting.here() == len(NODES), "every rank at work")
            case.during(site, suite)
            waiting.let_go()
        elif "pending" in case.name or "first line" in case.name or "in its prolog" in case.name:
            during_pending(case, site, suite)
        done = suite.wait()
    for job, name in queued(site.sandbox).items():
        if name == "other":
            site.slurm("scancel", job)
    eventually(lambda: "other" not in queued(site.sandbox).values(), "the other job's end")
    expect(done, site, case.bad, case.says)
