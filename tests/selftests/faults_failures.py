"""Faults under jobs that are made to fail: ended late, something left, called by a wrong name."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fixtures.sandbox import Sandbox, SandboxError
from fixtures.sandbox.processes import run
from tests.selftests.faults import Fault, Inject
from tests.selftests.faults_scheduler import CULPRIT, OTHER, after_line, inside

BOTH = f"{OTHER} {CULPRIT}"
LOOK_S = 0.05
STORAGE = ("storage_hang", "storage_full", "storage_read_only")
DEATHS = ("exit", "raise", "kill", "segfault")
HANGS = ("collective", "loader", "frozen")


# --- what a site adds to its jobs


def epilog(seconds: int) -> Inject:
    """A site's Epilog that takes its time, on one node."""

    @contextmanager
    def inject(sandbox: Sandbox) -> Iterator[None]:
        script = sandbox.state.home / "slow-epilog.sh"
        script.write_text(f"#!/bin/sh\nexec sleep {seconds}\n")
        script.chmod(0o755)
        line = after_line("TaskPlugin=", f"Epilog={script}")
        with sandbox.reconfigured(CULPRIT, "slurm.conf", line):
            yield
        sandbox.wait_idle(sandbox.nodes, timeout_s=seconds + 60)

    return inject


ESCAPE = """\
#!/bin/sh
[ "$SLURMD_NODENAME" = {node} ] || exit 0
setsid sh -c '
  for f in /sys/fs/cgroup/*/cgroup.procs /sys/fs/cgroup/system.slice/slurmd.scope/cgroup.procs; do
    echo $$ 2>/dev/null >$f
  done
  echo $$ >>{pids}
  exec sleep 900
' </dev/null >/dev/null 2>&1 &
# What the prolog leaves in the control group is killed with its end.
for k in $(seq 100); do grep -qx $! {pids} && break; sleep 0.05; done
"""


@contextmanager
def escaping(sandbox: Sandbox) -> Iterator[None]:
    """A site's TaskProlog starts an agent in every job's name, which leaves its control group."""
    script, pids = (sandbox.state.home / n for n in ("escape.sh", "escaped.pids"))
    pids.touch()
    script.write_text(ESCAPE.format(node=CULPRIT, pids=pids))
    script.chmod(0o755)
    try:
        line = after_line("TaskPlugin=", f"TaskProlog={script}")
        with sandbox.reconfigured(CULPRIT, "slurm.conf", line):
            yield
    finally:
        for pid in pids.read_text().split():
            with suppress(SandboxError):
                inside(sandbox, "kill", "-KILL", pid)
        pids.unlink()


def complaining(text: str) -> Inject:
    """A site's TaskProlog that prints an error of its own into every job's log."""

    @contextmanager
    def inject(sandbox: Sandbox) -> Iterator[None]:
        script = sandbox.state.home / "complain.sh"
        script.write_text(f'#!/bin/sh\n[ "$SLURMD_NODENAME" != {CULPRIT} ] || echo print {text}\n')
        script.chmod(0o755)
        line = after_line("TaskPlugin=", f"TaskProlog={script}")
        with sandbox.reconfigured(CULPRIT, "slurm.conf", line):
            yield

    return inject


# --- what happens beside them


def victims(sandbox: Sandbox) -> list[tuple[str, Path]]:
    """Running jobs that are to fail: id and directory."""
    tools = sandbox.tools
    text = run([tools["scontrol"], "show", "job", "--oneliner"], env=sandbox.environ)
    found = []
    for line in text.splitlines():
        job = re.search(r"JobId=(\d+) JobName=accept-\S+-victim-\S+ .* JobState=RUNNING ", line)
        out = re.search(r" StdOut=(\S+)", line)
        if job and out:
            found.append((job[1], Path(out[1]).parents[1]))
    return found


def at_the_fault(then: Callable[[Sandbox, str, Path], None], *, event: str = "fault") -> Inject:
    """Do something, once per job, when a victim says that it fails now."""

    @contextmanager
    def inject(sandbox: Sandbox) -> Iterator[None]:
        over, done = threading.Event(), set()

        def watch() -> None:
            while not over.wait(LOOK_S):
                with suppress(SandboxError):
                    for job, folder in victims(sandbox):
                        text = "".join(p.read_text() for p in folder.glob("rank*.jsonl"))
                        if job not in done and f'"event": "{event}"' in text:
                            done.add(job)
                            then(sandbox, job, folder)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    return inject


def purge(sandbox: Sandbox, job: str, folder: Path) -> None:
    """A site that clears its scratch directory under a running job."""
    for path in (folder / "checkpoints").glob("step-*"):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def purged_and_lost(sandbox: Sandbox) -> Iterator[None]:
    """The same, while the suite takes a node away and brings it back."""
    try:
        with at_the_fault(purge)(sandbox):
            yield
    finally:
        # The suite's own process has started the node again.
        sandbox.state = Sandbox.attach(sandbox.id, state_dir=sandbox.state.home.parent).state


def freeze_the_other(sandbox: Sandbox, job: str, folder: Path) -> None:
    """A second rank, on another node, stands still as well."""
    sandbox.freeze(OTHER, rank=0, job=int(job))


def reap(sandbox: Sandbox, job: str, folder: Path) -> None:
    """A site that cancels what it takes for idle."""
    run(["scancel", job], env=sandbox.environ)


def _fault(key: str, name: str, where: str, culprit: str, inject: Inject, says: str = "") -> Fault:
    return Fault(
        criterion=key, name=name, where=where, culprit=culprit, inject=inject, select=key,
        says=says, destructive=True,
    )  # fmt: skip


SLOW_ENDS = {
    **{f"failures.end.{way}": 33 for way in DEATHS},
    "failures.host_memory.end": 33,
    "failures.cancel.end": 33,
    **{f"failures.hang.end.{way}": 46 for way in HANGS},
    **{f"failures.storage.end.{way}": 46 for way in STORAGE},
    "failures.time_limit.end": 105,
}
LEFT = [
    *(f"failures.left.{way}" for way in DEATHS),
    *(f"failures.hang.left.{way}" for way in HANGS),
    "failures.host_memory.left", "failures.cancel.left", "failures.time_limit.left",
]  # fmt: skip
NO_MEMORY = "slurmstepd: error: Detected 1 oom_kill event"
NO_PROLOG = "slurmstepd: error: TaskProlog failed"

FAULTS = [
    *(
        _fault(key, "node given back late", "Epilog of a site", CULPRIT, epilog(seconds))
        for key, seconds in SLOW_ENDS.items()
    ),
    *(
        _fault(key, "process left behind", "TaskProlog of a site, cgroups", CULPRIT, escaping,
               says="is there, state")
        for key in LEFT
    ),
    *(
        _fault(f"failures.named.{way}", "another error in the log", "TaskProlog of a site",
               CULPRIT, complaining(NO_MEMORY), says="kind out of host memory, expected rank died")
        for way in ("exit", "kill", "segfault")
    ),
    _fault("failures.host_memory.named", "another error in the log", "TaskProlog of a site",
           CULPRIT, complaining(NO_PROLOG), says="kind prolog"),
    _fault("failures.cancel.named", "another error in the log", "TaskProlog of a site",
           BOTH, complaining(NO_MEMORY), says="kind out of host memory, expected cancelled"),
    _fault("failures.time_limit.named", "cancelled before its time", "scancel by a site's reaper",
           BOTH, at_the_fault(reap), says="kind cancelled, expected timed out running"),
    *(
        _fault(f"failures.hang.named.{way}", "a second rank hangs", "SIGSTOP on another node",
               BOTH, at_the_fault(freeze_the_other), says="named this node")
        for way in ("collective", "loader")
    ),
    *(
        _fault(f"failures.storage.kept.{way}", "checkpoints purged", "files of the job deleted",
               BOTH, at_the_fault(purge), says="none is taken now")
        for way in STORAGE
    ),
    _fault("failures.node.lost", "checkpoints purged", "files of the job deleted", "cluster",
           purged_and_lost, says="never restored"),
]  # fmt: skip
"""In a sandbox of two nodes with two GPUs."""
