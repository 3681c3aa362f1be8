"""Faults of Slurm, of the names and ways between nodes, and of what fences GPUs, on one node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from fixtures.sandbox import Sandbox, emulation
from fixtures.sandbox.processes import run
from tests.selftests.faults import Fault, Inject

CULPRIT = "worker1"
OTHER = "worker0"
NODE_STATES = "scheduler and (node_state or gres or partition or controller)"
WORKLOAD_PORTS = "20000-32767"
"""Where the suite's own listeners are; Slurm's and srun's lie outside."""


# --- Slurm itself


@contextmanager
def drained(sandbox: Sandbox) -> Iterator[None]:
    sandbox.drain(CULPRIT, reason="bad DIMM")
    try:
        yield
    finally:
        sandbox.drain(CULPRIT, resume=True)
        sandbox.wait_idle([CULPRIT])


@contextmanager
def dead(sandbox: Sandbox) -> Iterator[None]:
    sandbox.kill_node(CULPRIT)
    sandbox.wait_state(CULPRIT, "down")
    try:
        yield
    finally:
        sandbox.revive(CULPRIT)
        sandbox.wait_idle([CULPRIT])


@contextmanager
def device_gone(sandbox: Sandbox) -> Iterator[None]:
    """slurmd finds a GPU fewer than slurm.conf says: Slurm drains the node by itself."""
    path = sandbox.devices[CULPRIT][1]
    with sandbox.reconfigured(CULPRIT, "gres.conf", without(f"File={path}")):
        sandbox.wait_state(CULPRIT, "^(inval|drain)")
        yield
    sandbox.wait_state(CULPRIT, "^drained")
    sandbox.drain(CULPRIT, resume=True)
    sandbox.wait_idle([CULPRIT])


@contextmanager
def partition_down(sandbox: Sandbox) -> Iterator[None]:
    scontrol(sandbox, "update", "PartitionName=main", "State=DOWN")
    try:
        yield
    finally:
        scontrol(sandbox, "update", "PartitionName=main", "State=UP")


@contextmanager
def whole_nodes(sandbox: Sandbox) -> Iterator[None]:
    scontrol(sandbox, "update", "PartitionName=main", "OverSubscribe=EXCLUSIVE")
    try:
        yield
    finally:
        scontrol(sandbox, "update", "PartitionName=main", "OverSubscribe=NO")


@contextmanager
def backup_silent(sandbox: Sandbox) -> Iterator[None]:
    """A second controller that does not run; nothing else reads the file again meanwhile."""
    with edited(sandbox.state.home / "slurm.conf", after_line("SlurmctldHost=", BACKUP)):
        yield


BACKUP = "SlurmctldHost=backup(127.0.0.1)"


def reconfigured(file: str, change: Callable[[str], str]) -> Inject:
    return lambda sandbox: sandbox.reconfigured(CULPRIT, file, change)


def prolog(line: str) -> Inject:
    """A site's TaskProlog that sets a variable of every task of the node."""

    @contextmanager
    def inject(sandbox: Sandbox) -> Iterator[None]:
        script = sandbox.state.home / "task-prolog.sh"
        script.write_text(f'#!/bin/sh\n[ "$SLURMD_NODENAME" != {CULPRIT} ] || echo {line}\n')
        script.chmod(0o755)
        with sandbox.reconfigured(
            CULPRIT, "slurm.conf", after_line("TaskPlugin=", f"TaskProlog={script}")
        ):
            yield

    return inject


@contextmanager
def unbound(sandbox: Sandbox) -> Iterator[None]:
    """Slurm binds no task on the node, whatever is asked for."""
    scontrol(sandbox, "update", f"NodeName={OTHER}", "CpuBind=none")
    try:
        yield
    finally:
        scontrol(sandbox, "update", f"NodeName={OTHER}", "CpuBind=off")


# --- names and ways


@contextmanager
def wrong_name(sandbox: Sandbox) -> Iterator[None]:
    """On the node alone, its neighbour's name leads to an address that nobody has."""
    hosts = sandbox.state.home / "hosts"
    wrong = sandbox.state.node_home(CULPRIT) / "hosts.wrong"
    address = sandbox.state.address(OTHER)
    nobody = f"{address.rpartition('.')[0]}.250"
    wrong.write_text(hosts.read_text().replace(f"{address} {OTHER}", f"{nobody} {OTHER}"))
    wrong.chmod(0o644)
    inside(sandbox, "mount", "--bind", str(wrong), "/etc/hosts")
    try:
        yield
    finally:
        inside(sandbox, "umount", "/etc/hosts")


@contextmanager
def way_cut(sandbox: Sandbox) -> Iterator[None]:
    """From the node to its neighbour nothing goes but what Slurm itself needs."""
    rule = ("to", sandbox.state.address(OTHER), "ipproto", "tcp", "dport", WORKLOAD_PORTS)
    ip = sandbox.tools["ip"]
    inside(sandbox, ip, "rule", "add", *rule, "prohibit")
    try:
        yield
    finally:
        inside(sandbox, ip, "rule", "del", *rule, "prohibit")


# --- GPUs


@contextmanager
def left_open(sandbox: Sandbox) -> Iterator[None]:
    """A GPU that gres.conf does not name: no job gets it, and every job can open it."""
    path = Path(sandbox.devices[CULPRIT][0]).with_name("gpu7")
    major, minor = numbers(sandbox, sandbox.devices[CULPRIT][0])
    inside(sandbox, "mknod", "-m", "666", str(path), "c", major, str(int(minor) + 512))
    try:
        yield
    finally:
        inside(sandbox, "rm", str(path))


@contextmanager
def two_names(sandbox: Sandbox) -> Iterator[None]:
    """Both files of gres.conf lead to one physical GPU, and nothing fences devices."""
    first, second = sandbox.devices[CULPRIT]
    mine, theirs = numbers(sandbox, second), numbers(sandbox, first)
    # slurmd keeps the device numbers that it finds when it reads: only the right ones.
    with sandbox.reconfigured(CULPRIT, "cgroup.conf", FENCES_OFF):
        node(sandbox, second, theirs)
        try:
            yield
        finally:
            node(sandbox, second, mine)


@contextmanager
def one_board(sandbox: Sandbox) -> Iterator[None]:
    """The driver says the same UUID of both of the node's GPUs: one board behind two devices."""
    twin = f"1.uuid={emulation.gpu_uuid(CULPRIT, 0)}"
    emulation.write_state(sandbox.state, CULPRIT, [twin])
    try:
        yield
    finally:
        emulation.write_state(sandbox.state, CULPRIT, [])


@contextmanager
def file_gone(sandbox: Sandbox) -> Iterator[None]:
    """The device file of a GPU is missing, which Slurm goes on giving to jobs."""
    path = sandbox.devices[CULPRIT][1]
    was = numbers(sandbox, path)
    inside(sandbox, "rm", path)
    try:
        yield
    finally:
        inside(sandbox, "mknod", "-m", "666", path, "c", *was)


def node(sandbox: Sandbox, path: str, number: tuple[str, str]) -> None:
    inside(sandbox, "rm", path)
    inside(sandbox, "mknod", "-m", "666", path, "c", *number)


def numbers(sandbox: Sandbox, path: str) -> tuple[str, str]:
    """Major and minor of a device file on the node."""
    major, minor = inside(sandbox, "stat", "-c", "%Hr %Lr", path).split()
    return major, minor


def inside(sandbox: Sandbox, *argv: str) -> str:
    return run(sandbox.inside(CULPRIT, *argv))


def scontrol(sandbox: Sandbox, *argv: str) -> None:
    run([sandbox.tools["scontrol"], *argv], env=sandbox.environ)


# --- changes of a file


def replaced(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new)


def without(part: str) -> Callable[[str], str]:
    return lambda text: "".join(
        line for line in text.splitlines(keepends=True) if not line.rstrip().endswith(part)
    )


def after_line(start: str, line: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        (found,) = [one for one in text.splitlines() if one.startswith(start)]
        return text.replace(found, f"{found}\n{line}", 1)

    return change


@contextmanager
def edited(path: Path, change: Callable[[str], str]) -> Iterator[None]:
    before = path.read_text()
    path.write_text(change(before))
    try:
        yield
    finally:
        path.write_text(before)


FENCES_OFF = replaced("ConstrainDevices=yes", "ConstrainDevices=no")
MEMORY_OFF = replaced("ConstrainRAMSpace=yes", "ConstrainRAMSpace=no")


def nothing(sandbox: Sandbox) -> AbstractContextManager[None]:
    """For a sandbox that was brought up with the fault."""
    return _nothing()


@contextmanager
def _nothing() -> Iterator[None]:
    yield


FAULTS = [
    Fault(
        criterion="scheduler.node_state", name="node drained", where="scontrol update State=DRAIN",
        culprit=CULPRIT, inject=drained, select=NODE_STATES, says="bad DIMM",
    ),
    Fault(
        criterion="scheduler.node_state", name="node down", where="power off: all processes killed",
        culprit=CULPRIT, inject=dead, select=NODE_STATES, says="Not responding",
    ),
    Fault(
        criterion="scheduler.node_state", name="GPU gone from a node", where="gres.conf",
        culprit=CULPRIT, inject=device_gone, select=NODE_STATES,
        says="gres/gpu count reported lower than configured",
    ),
    Fault(
        criterion="scheduler.partition", name="partition down", where="scontrol update State=DOWN",
        culprit="login", inject=partition_down, select=NODE_STATES, says="partition main",
    ),
    Fault(
        criterion="scheduler.controller", name="backup controller silent", where="slurm.conf",
        culprit="login", inject=backup_silent, select=NODE_STATES, says="backup at backup is DOWN",
    ),
    Fault(
        criterion="scheduler.placement", name="local rank wrong", where="TaskProlog of a site",
        culprit=CULPRIT, inject=prolog("export SLURM_LOCALID=0"),
        select="scheduler and placement", says="SLURM_LOCALID is 0, not 1",
    ),
    Fault(
        criterion="scheduler.memory_limit", name="memory limit off",
        where="cgroup.conf ConstrainRAMSpace=no", culprit=CULPRIT,
        inject=reconfigured("cgroup.conf", MEMORY_OFF), select="memory_limit",
        says="took 512 MiB and lived",
    ),
    Fault(
        criterion="connectivity.peers", name="name resolves wrongly", where="/etc/hosts of a node",
        culprit=CULPRIT, inject=wrong_name, select="connectivity", says="worker0 by name",
    ),
    Fault(
        criterion="connectivity.peers", name="way to a node cut", where="routing rule of a node",
        culprit=CULPRIT, inject=way_cut, select="connectivity", says="worker0 by address",
    ),
    Fault(
        criterion="isolation.let_in", name="devices not fenced",
        where="cgroup.conf ConstrainDevices=no", culprit=CULPRIT,
        inject=reconfigured("cgroup.conf", FENCES_OFF), select="isolation", says="attached: ",
        also=("isolation.own_gpu",),
    ),
    Fault(
        criterion="isolation.let_in", name="one device left open",
        where="device file beside gres.conf", culprit=CULPRIT, inject=left_open,
        select="isolation", says="gpu7", also=("isolation.own_gpu",),
    ),
    Fault(
        criterion="isolation.shared", name="two names of one GPU",
        where="device files, cgroup.conf", culprit=CULPRIT, inject=two_names, select="isolation",
        says="both hold", also=("isolation.own_gpu",),
    ),
    Fault(
        criterion="isolation.shared", name="two devices of one GPU", where="driver library",
        culprit=CULPRIT, inject=one_board, select="isolation", says="both hold GPU-",
    ),
    Fault(
        criterion="isolation.count", name="device file missing", where="/dev of a node",
        culprit=CULPRIT, inject=file_gone, select="isolation", says="it asked for 1",
        also=("isolation.own_gpu",),
    ),
    Fault(
        criterion="isolation.visible", name="CUDA_VISIBLE_DEVICES of all GPUs",
        where="TaskProlog of a site", culprit=CULPRIT,
        inject=prolog("export CUDA_VISIBLE_DEVICES=0,1"), select="isolation",
        says="CUDA_VISIBLE_DEVICES=0,1", also=("isolation.own_gpu",),
    ),
]  # fmt: skip
"""In a sandbox of two nodes with two GPUs."""

BINDING_FAULTS = [
    Fault(
        criterion="scheduler.cpu_binding", name="ranks not bound",
        where="scontrol update CpuBind=none", culprit=OTHER, inject=unbound,
        select="cpu_binding", says="shares them with ranks",
    ),
]  # fmt: skip
"""In a sandbox of one node, whose cores are the host's."""

GRES_FAULTS = [
    Fault(
        criterion="scheduler.gres", name="GRES smaller than ordered",
        where="slurm.conf, gres.conf", culprit=CULPRIT, inject=nothing, select=NODE_STATES,
    ),
]  # fmt: skip
"""In a sandbox brought up with withheld={CULPRIT: 1}."""
