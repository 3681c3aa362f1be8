"""Faults of the host around the GPUs: PCIe links and errors, memory, clocks, limits of a job.

For FAULTS: two nodes with two emulated GPUs each.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from fixtures.paths import CHECKOUT
from fixtures.sandbox import Sandbox
from fixtures.sandbox.processes import run
from tests.selftests.drill_limits import held_to, ordered
from tests.selftests.faults import Fault, Inject, bound
from tests.selftests.faults_hardware import NODE, PORT, broken

SELECT = "test_host"
COMPILERS = ("gcc", "clang", *filter(None, [os.environ.get("CC")]))
HEADERS = sysconfig.get_path("include", "posix_prefix")


def host(
    criterion: str, name: str, kind: str, says: str = "", *, target: str = "", device: str = "",
    also: tuple[str, ...] = (),
) -> Fault:  # fmt: skip
    return Fault(
        criterion=criterion, name=name, where=f"/sys and /proc of {NODE}: {kind} {target}".strip(),
        culprit=NODE, device=device, inject=broken(kind, *([target] if target else [])),
        select=SELECT, says=says, also=also,
    )  # fmt: skip


def limited(*options: str) -> Inject:
    """Jobs on the culprit get these limits, as from a daemon or a prolog; no capability."""

    @contextmanager
    def inject(sandbox: Sandbox) -> Iterator[list[str]]:
        limits = f"setpriv --bounding-set=-ipc_lock --inh-caps=-all prlimit {' '.join(options)}"
        here = f'[ "$SLURMD_NODENAME" != {NODE} ]'
        lines = f'{here} || exec {limits} {shlex.quote(sys.executable)} "$@"'
        yield started_with(sandbox, "python-limited", lines)

    return inject


def limit(criterion: str, name: str, option: str, says: str) -> Fault:
    return Fault(
        criterion=criterion, name=name, where=f"limits of jobs on {NODE}: prlimit {option}",
        culprit=NODE, inject=limited(option), select=SELECT, says=says,
    )  # fmt: skip


@contextmanager
def slow(
    sandbox: Sandbox, node: str, what: str, *, core: int = -1, run_ms: float, stop_ms: float
) -> Iterator[None]:
    """What measures cores, memory or disk of a node has a part of its time, on a core or all."""
    init = sandbox.state.processes[f"{node}.init"].pid
    words = [str(x) for x in (init, what, core, run_ms, stop_ms)]
    command = [sys.executable, "-m", "tests.selftests.slow_cores", *words]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT
    ) as helper:
        assert helper.stdout is not None
        assert helper.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            helper.communicate("\n", timeout=10)


def slow_core(sandbox: Sandbox) -> AbstractContextManager[None]:
    """The last core of the culprit has a fifth of its speed."""
    core = max(os.sched_getaffinity(0))
    return slow(sandbox, NODE, "cores", core=core, run_ms=0.3, stop_ms=3)


@contextmanager
def two_numa_nodes(sandbox: Sandbox) -> Iterator[None]:
    """The only node has two NUMA nodes of one core each, and the second one's memory is slow."""
    folder = sandbox.state.node_home("worker0") / "numa"
    for k in range(2):
        own = folder / f"node{k}"
        own.mkdir(parents=True, exist_ok=True)
        (own / "cpulist").write_text(f"{k}\n")
        (own / "meminfo").write_text(f"Node {k} MemTotal:       8388608 kB\n")
    with (
        bound(sandbox, "worker0", {"/sys/devices/system/node": folder}),
        slow(sandbox, "worker0", "memory", core=1, run_ms=0.5, stop_ms=20),
    ):
        yield


@contextmanager
def small_scratch(sandbox: Sandbox) -> Iterator[list[str]]:
    """The ordered scratch is a file system of 64 MB on the culprit, where 1 GB was ordered."""
    place, others = "/mnt", [node for node in sandbox.state.names if node != NODE]
    for node in sandbox.state.names:
        size = "64m" if node == NODE else "1100m"
        mount = ("mount", "-t", "tmpfs", "-o", f"mode=1777,size={size}", "scratch", place)
        run(sandbox.inside(node, *mount), env=sandbox.environ)
    try:
        yield ordered(sandbox, scratch={"path": place, "size_gb": 1.0})
    finally:
        for node in (NODE, *others):
            run(sandbox.inside(node, "umount", place), env=sandbox.environ)


@contextmanager
def slow_memory(sandbox: Sandbox) -> Iterator[list[str]]:
    """What copies memory on the only node has an eightieth of its time, below a limit of its own.

    A demonstration asks for 1 GB/s only: a fast host has more in an eightieth of its time.
    """
    with slow(sandbox, "worker0", "memory", run_ms=1, stop_ms=80):
        yield held_to(sandbox, "host.memory_bandwidth", fail_below=10)


@contextmanager
def old_bios(sandbox: Sandbox) -> Iterator[list[str]]:
    """The BIOS of the culprit is older than the order allows."""
    with broken("bios")(sandbox):
        yield ordered(sandbox, firmware={"bios": "1.4", "driver": "500"})


def started_with(sandbox: Sandbox, name: str, lines: str) -> list[str]:
    """Write a shell script that is the nodes' interpreter; return the argument that says so."""
    wrapper = sandbox.state.home / name
    wrapper.write_text(f'#!/bin/sh\n{lines}\nexec {shlex.quote(sys.executable)} "$@"\n')
    wrapper.chmod(0o755)
    return [f"--node-python={wrapper}"]


@contextmanager
def old_toolkit(sandbox: Sandbox) -> Iterator[list[str]]:
    """The culprit has a container toolkit with a published fault, the other node one without."""
    for name, version in ((NODE, "1.17.3"), ("worker0", "1.17.8")):
        program = sandbox.state.home / f"toolkit-{name}" / "nvidia-ctk"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho NVIDIA Container Toolkit CLI version {version}\n")
        program.chmod(0o755)
    path = f"{sandbox.state.home}/toolkit-$SLURMD_NODENAME:$PATH"
    yield started_with(sandbox, "python-with-toolkit", f"export PATH={path}")


CLOCK_AHEAD = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int status = real(clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec += 1;
  return status;
}
"""


def compiled(sandbox: Sandbox, name: str, source: str) -> Path:
    """Make a C library of this source, for LD_PRELOAD; return its path."""
    code, library = (sandbox.state.home / f"{name}.{ending}" for ending in ("c", "so"))
    code.write_text(source)
    command = ["gcc", "-shared", "-fPIC", "-o", str(library), str(code), "-ldl"]
    subprocess.run(command, check=True, timeout=900)
    return library


def preloaded(sandbox: Sandbox, name: str, source: str, where: str) -> list[str]:
    """Let the jobs' Python start with a C library of this source, where a shell's test is true."""
    library = compiled(sandbox, name, source)
    return started_with(sandbox, f"python-{name}", f"! {where} || export LD_PRELOAD={library}")


@contextmanager
def clock_ahead(sandbox: Sandbox) -> Iterator[list[str]]:
    """The clock of the culprit is a second ahead, for all that its jobs run."""
    yield preloaded(sandbox, "ahead", CLOCK_AHEAD, f'[ "$SLURMD_NODENAME" = {NODE} ]')


SLOW_DISK = """\
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
static void slow(size_t size) {
  struct timespec pause = {0, 150000000};
  if (size >= 4 << 20) nanosleep(&pause, 0);
}
ssize_t pwrite64(int file, const void *from, size_t size, off_t at) {
  slow(size);
  return syscall(SYS_pwrite64, file, from, size, at);
}
ssize_t pwrite(int file, const void *from, size_t size, off_t at) {
  return pwrite64(file, from, size, at);
}
ssize_t preadv64v2(int file, const struct iovec *to, int count, off_t at, int flags) {
  slow(to->iov_len);
  return syscall(SYS_preadv2, file, to, count, at, 0, flags);
}
ssize_t preadv2(int file, const struct iovec *to, int count, off_t at, int flags) {
  return preadv64v2(file, to, count, at, flags);
}
ssize_t preadv64(int file, const struct iovec *to, int count, off_t at) {
  return preadv64v2(file, to, count, at, 0);
}
ssize_t preadv(int file, const struct iovec *to, int count, off_t at) {
  return preadv64v2(file, to, count, at, 0);
}
"""
"""A block of 4 MiB takes 150 ms at least, written or read: 0.028 GB/s."""


@contextmanager
def slow_scratch(sandbox: Sandbox) -> Iterator[list[str]]:
    """What writes and reads the ordered scratch of the culprit waits for each block."""
    here = preloaded(sandbox, "slow-disk", SLOW_DISK, f'[ "$SLURMD_NODENAME" = {NODE} ]')
    scratch = {"path": "/dev/shm", "write_gbs": 0.06, "read_gbs": 0.06}
    yield [*here, *ordered(sandbox, scratch=scratch)]


@contextmanager
def another_type(sandbox: Sandbox) -> Iterator[list[str]]:
    """/mnt of the culprit is a tmpfs, and an ordered one is missing."""
    others = [node for node in sandbox.state.names if node != NODE]
    for node in others:
        mount = ("mount", "-t", "tmpfs", "ordered", "/mnt")
        run(sandbox.inside(node, *mount), env=sandbox.environ)
    try:
        yield ordered(sandbox, mounts={"/dev/shm": "tmpfs", "/mnt": "tmpfs"})
    finally:
        for node in others:
            run(sandbox.inside(node, "umount", "/mnt"), env=sandbox.environ)


@contextmanager
def silent_name_server(sandbox: Sandbox) -> Iterator[None]:
    """The culprit asks a name server that does not answer, and has no names of its own."""
    home = sandbox.state.node_home(NODE)
    texts = {"/etc/resolv.conf": "nameserver 127.0.0.1\noptions timeout:30 attempts:1\n"}
    texts["/etc/nsswitch.conf"] = "hosts: dns\n"
    files = {place: home / Path(place).name for place in texts}
    for place, text in texts.items():
        files[place].write_text(text)
        files[place].chmod(0o644)
    silent = "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', 53)); "
    server = subprocess.Popen(
        sandbox.inside(NODE, sys.executable, "-c", silent + "print(flush=True); input()"),
        env=sandbox.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "\n", "the name server did not start"
        with bound(sandbox, NODE, files):
            yield
    finally:
        server.communicate("\n", timeout=10)


@contextmanager
def no_compiler(sandbox: Sandbox) -> Iterator[None]:
    """No file of the culprit that is a C compiler on the others can be executed."""
    empty = sandbox.state.node_home(NODE) / "compiler"
    empty.touch(mode=0o644)
    folders = f"{sandbox.environ['PATH']}:{os.environ['PATH']}".split(os.pathsep)
    found = (shutil.which(name, path=at) for at in folders for name in COMPILERS)
    # /bin and /usr/bin may be one folder: each file is covered once.
    with bound(sandbox, NODE, {os.path.realpath(file): empty for file in found if file}):
        yield


@contextmanager
def no_headers(sandbox: Sandbox) -> Iterator[None]:
    """The culprit has no header of the Python that runs there, as without python3-dev."""
    empty = sandbox.state.node_home(NODE) / "headers"
    empty.mkdir(exist_ok=True)
    with bound(sandbox, NODE, {HEADERS: empty}):
        yield


def first_of_three(criterion: str, name: str, kind: str, says: str, device: str) -> Fault:
    inject: Inject = broken(kind, node="worker0")
    return Fault(
        criterion=criterion, name=name, where=f"/sys of worker0: {kind}", culprit="worker0",
        device=device, inject=inject, select=f"{SELECT} or drift", says=says,
    )  # fmt: skip


FAULTS = [
    host("host.link_width", "a NIC with half of its lanes", "pci-width", "lanes 8 of 16",
         device=PORT),
    host("host.link_width", "a drive with half of its lanes", "pci-width", "lanes 2 of 4",
         target="nvme1", device="nvme1 0000:f2:00.0"),
    host("host.link_generation", "a NIC at Gen3", "pci-generation", "generation 3 of 5",
         device=PORT),
    host("host.clocksource", "clock source hpet", "clocksource", "hpet"),
    host("host.governor", "one core in powersave", "governor", "1 core of 2, first cpu1",
         device="cpu1"),
    host("host.governor", "one core capped", "clock-cap", "at most 1200 of 3800 MHz",
         device="cpu1"),
    limit("host.memlock", "locked memory limited", "--memlock=4096:4096", "4 KiB"),
    limit("host.open_files", "open files limited", "--nofile=1024:1024", "hard 1024"),
    host("host.aer_correctable", "a NIC repairs errors", "aer-correctable", "BadTLP", device=PORT),
    host("host.aer_correctable", "a drive repairs errors", "aer-correctable", "BadTLP",
         target="nvme0", device="nvme0 0000:f1:00.0"),
    host("host.aer_nonfatal", "a NIC loses transactions", "aer-nonfatal", "CmpltTO", device=PORT),
    host("host.aer_fatal", "the link of a NIC fails", "aer-fatal", "DLP", device=PORT),
    host("host.edac_corrected", "a DIMM is repaired all the time", "edac-corrected", "mc1",
         device="mc1"),
    host("host.edac_uncorrected", "a DIMM lost data", "edac-uncorrected",
         "CPU_SrcID#1_MC#0_Chan#0_DIMM#0", device="mc1"),
    host("host.machine_checks", "machine checks", "machine-check", "MCE", device="the node"),
    host("host.boot", "rebooted in mid-run", "reboot", "boot id"),
    Fault(
        criterion="host.cores", name="one slow core", where=f"a core of {NODE}: stopped most of "
        "the time", culprit=NODE, inject=slow_core, select=SELECT,
        device=f"cpu{max(os.sched_getaffinity(0))}", says="for what takes",
    ),
    Fault(
        criterion="host.scratch_size", name="a smaller scratch", where=f"/mnt of {NODE}: 64 MB",
        culprit=NODE, device="/mnt", inject=small_scratch, select=SELECT, says="GB free",
    ),
    Fault(
        criterion="host.scratch_write", name="a slow scratch",
        where=f"library that jobs of {NODE} preload: blocks wait", culprit=NODE, device="/dev/shm",
        inject=slow_scratch, select=SELECT, says="/dev/shm", also=("host.scratch_read",),
    ),
    Fault(
        criterion="host.firmware", name="an old BIOS", where=f"/sys/class/dmi of {NODE}: bios",
        culprit=NODE, device="bios", inject=old_bios, select=SELECT,
        says="EMULATED 1.3.0, at least 1.4 is wanted",
    ),
    Fault(
        criterion="host.security", name="an old container toolkit",
        where=f"nvidia-ctk of {NODE}: 1.17.3", culprit=NODE, device="container_toolkit",
        inject=old_toolkit, select=SELECT, says="1.17.3, at least 1.17.8 is wanted",
    ),
    Fault(
        criterion="host.clock_offset", name="a clock a second ahead",
        where=f"clock of {NODE}: +1 s", culprit=NODE, device="clock", inject=clock_ahead,
        select=SELECT, says="ahead of worker0",
    ),
    Fault(
        criterion="host.mounts", name="an ordered mount is missing",
        where=f"mounts of {NODE}: /mnt", culprit=NODE, device="/mnt", inject=another_type,
        select=SELECT, says="/mnt: nothing is mounted there, tmpfs was ordered",
    ),
    Fault(
        criterion="host.names", name="a name server does not answer",
        where=f"/etc/resolv.conf of {NODE}", culprit=NODE, inject=silent_name_server,
        select=SELECT, says="no answer within 5 s",
    ),
    Fault(
        criterion="host.compiler", name="no C compiler", where=f"gcc and clang of {NODE}: hidden",
        culprit=NODE, inject=no_compiler, select=SELECT, says="no C compiler (gcc, clang)",
    ),
    Fault(
        criterion="host.compiler", name="no headers of Python",
        where=f"{HEADERS} of {NODE}: empty", culprit=NODE,
        inject=no_headers, select=SELECT, says="Python.h",
    ),
]  # fmt: skip

ALONE_FAULTS = [
    Fault(
        criterion="host.memory_bandwidth", name="slow memory",
        where="memory of worker0: stopped most of the time", culprit="worker0",
        inject=slow_memory, select=SELECT,
    ),
    Fault(
        criterion="host.memory_numa", name="one slow NUMA node",
        where="memory of one NUMA node of worker0: stopped most of the time", culprit="worker0",
        device="NUMA node 1", inject=two_numa_nodes, select=SELECT, says="NUMA node 1",
    ),
]  # fmt: skip
"""On one node, whose memory is its own."""

DRIFT_FAULTS = [
    first_of_three("host.numa_memory", "a DIMM lost", "dimm-lost", "memory of NUMA node0",
                   "memory of NUMA node0"),
    first_of_three("environment.drift", "another BIOS", "bios", "worker0 BIOS: EMULATED 1.3.0",
                   "BIOS"),
]  # fmt: skip
"""On three nodes; the first one is the culprit."""
