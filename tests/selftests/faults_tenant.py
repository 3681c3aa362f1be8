"""Faults of what is cleared between two jobs on a node: processes, files, environment, memory.

For FAULTS: two nodes with two emulated GPUs each. Files are judged where the order says that
several tenants take turns; the sites of those faults have an epilog that cleans up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from fixtures.sandbox import Sandbox
from fixtures.sandbox.faults import reload_configuration
from fixtures.sandbox.processes import run
from fixtures.workloads.tenant.tenant_marks import NAME
from tests.selftests.drill_limits import ordered
from tests.selftests.faults import Fault, Inject
from tests.selftests.faults_hardware import GPU, NODE, broken
from tests.selftests.faults_host import preloaded
from tests.selftests.faults_scheduler import after_line, replaced

SELECT = "tenant"
SCRATCH = "/mnt"

UNCLEARED = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
void *mmap64(void *at, size_t size, int access, int flags, int file, off_t from) {
  static void *(*real)(void *, size_t, int, int, int, off_t);
  if (!real) real = (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap64");
  if (file == -1 && size == 8 << 20 && getenv("SLURM_LOCALID")) {
    char path[64];
    snprintf(path, sizeof path, "/dev/shm/pages-%s", getenv("SLURM_LOCALID"));
    int pages = open(path, O_RDWR | O_CREAT, 0666);
    if (pages >= 0 && ftruncate(pages, size) == 0)
      return real(at, size, access, MAP_SHARED, pages, 0);
  }
  return real(at, size, access, flags, file, from);
}
void *mmap(void *at, size_t size, int access, int flags, int file, off_t from) {
  return mmap64(at, size, access, flags, file, from);
}
"""
"""Pages of the size that stands in for half of a GPU's memory keep what was written to them."""


@contextmanager
def uncleared(sandbox: Sandbox) -> Iterator[list[str]]:
    """Memory of the second device of the culprit goes from process to process as it is."""
    here = f'[ "$SLURMD_NODENAME$SLURM_LOCALID" = {NODE}1 ]'
    yield preloaded(sandbox, "uncleared", UNCLEARED, here)


@contextmanager
def untracked(sandbox: Sandbox) -> Iterator[None]:
    """The culprit has a slurm.conf of its own, by which its processes are no longer in a cgroup."""
    shared, own = sandbox.state.home / "slurm.conf", sandbox.state.home / f"slurm-{NODE}.conf"
    own.write_text(replaced("proctrack/cgroup", "proctrack/linuxproc")(shared.read_text()))
    run(sandbox.inside(NODE, "mount", "--bind", str(own), str(shared)), env=sandbox.environ)
    try:
        reload_configuration(sandbox, NODE)
        yield
    finally:
        run(sandbox.inside(NODE, "umount", str(shared)), env=sandbox.environ)
        reload_configuration(sandbox, NODE)


@contextmanager
def site(sandbox: Sandbox, *left: str) -> Iterator[list[str]]:
    """A site for several tenants, with an epilog that removes a job's files.

    `left`: the folder that it forgets on the culprit.
    """
    script = sandbox.state.home / "epilog.sh"
    removed = [f"rm -rf {folder}/*" for folder in ("/dev/shm", SCRATCH) if folder not in left]
    forgotten = [f'[ "$(hostname)" = {NODE} ] || rm -rf {folder}/*' for folder in left]
    script.write_text("\n".join(["#!/bin/sh", *removed, *forgotten, "exit 0", ""]))
    script.chmod(0o755)
    first, *others = sandbox.state.names
    mount = ("mount", "-t", "tmpfs", "-o", "mode=1777,size=64m", "scratch", SCRATCH)
    with ExitStack() as stack:
        for node in sandbox.state.names:
            run(sandbox.inside(node, *mount), env=sandbox.environ)
            stack.callback(run, sandbox.inside(node, "umount", SCRATCH), env=sandbox.environ)
        # One file for all nodes, which each of them reads again.
        for node in others:
            stack.callback(reload_configuration, sandbox, node)
        line = after_line("TaskPlugin=", f"Epilog={script}")
        stack.enter_context(sandbox.reconfigured(first, "slurm.conf", line))
        for node in others:
            reload_configuration(sandbox, node)
        yield ordered(sandbox, tenants="several", scratch={"path": SCRATCH})


def forgets(folder: str) -> Inject:
    return lambda sandbox: site(sandbox, folder)


def passing_on() -> Inject:
    """A site's TaskProlog that takes what it finds in a file of another job into every job."""

    @contextmanager
    def inject(sandbox: Sandbox) -> Iterator[None]:
        script = sandbox.state.home / "passing-on.sh"
        files = f"/dev/shm/{NAME}-shared_memory-*"
        script.write_text(
            f'#!/bin/sh\n[ "$SLURMD_NODENAME" = {NODE} ] || exit 0\n'
            f'for f in {files}; do [ ! -f "$f" ] || echo "export CACHE=$(head -c 64 "$f")"; done\n'
        )
        script.chmod(0o755)
        line = after_line("TaskPlugin=", f"TaskProlog={script}")
        with sandbox.reconfigured(NODE, "slurm.conf", line):
            yield

    return inject


FAULTS = [
    Fault(
        criterion="tenant.gpu_memory", name="memory that is not cleared between processes",
        where=f"pages of the second device of {NODE}: shared by all processes", culprit=NODE,
        device=GPU, inject=uncleared, select=SELECT, says="words of the process that was killed",
    ),
    Fault(
        criterion="tenant.gpu_processes", name="a process on the GPU of a job that starts",
        where=f"emulated NVML of {NODE}: foreign-process", culprit=NODE, device=GPU,
        inject=broken("foreign-process", "1"), select=SELECT, says="4711",
    ),
    Fault(
        criterion="tenant.processes", name="processes that outlive their job",
        where=f"slurm.conf of {NODE}: proctrack/linuxproc", culprit=NODE, device="processes",
        inject=untracked, select=SELECT, says="is alive, with its arguments and environment",
    ),
    Fault(
        criterion="tenant.variables", name="a variable of the job before",
        where=f"TaskProlog of {NODE}: takes a file of another job over", culprit=NODE,
        device="variables", inject=passing_on(), select=SELECT, says="variable CACHE",
    ),
    Fault(
        criterion="tenant.shared_memory", name="an epilog that forgets /dev/shm",
        where=f"Epilog of {NODE}", culprit=NODE, device="/dev/shm",
        inject=forgets("/dev/shm"), select=SELECT, says=f"/dev/shm/{NAME}-shared_memory-",
    ),
    Fault(
        criterion="tenant.scratch", name="an epilog that forgets the scratch",
        where=f"Epilog of {NODE}", culprit=NODE, device=SCRATCH,
        inject=forgets(SCRATCH), select=SELECT, says=f"{SCRATCH}/{NAME}-scratch-",
    ),
]  # fmt: skip
