"""Faults of the shared directory: each on worker1 alone, below the workload."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fixtures.cluster.population import host_model
from fixtures.sandbox import Sandbox, storage
from tests.selftests import support
from tests.selftests.faults import Fault, Inject

CULPRIT = "worker1"
SELECT = "filesystem"


@contextmanager
def shared(sandbox: Sandbox) -> Iterator[tuple[Path, list[str]]]:
    """A directory of this host that the order names, and the arguments that say so."""
    with tempfile.TemporaryDirectory(prefix="acceptance-shared-") as folder:
        directory = Path(folder) / "mounts" / "data"
        directory.mkdir(parents=True)
        size = os.statvfs(directory)
        order = {
            "nodes": len(sandbox.nodes), "gpus_per_node": sandbox.state.gpus,
            "gpu_model": host_model(), "shared_directory": str(directory),
            "shared_tb": 0.9 * size.f_blocks * size.f_frsize / 1e12,
        }  # fmt: skip
        text = support.SHIPPED.read_text(encoding="utf-8")
        assert text.count("\ncluster: {}\n") == 1
        lines = "".join(f"  {name}: {value}\n" for name, value in order.items())
        limits = Path(folder) / "thresholds.yaml"
        limits.write_text(text.replace("\ncluster: {}\n", f"\ncluster:\n{lines}"), encoding="utf-8")
        yield directory, [f"--thresholds={limits}"]


def lies(fault: str) -> Inject:
    """worker1 sees the directory through a filesystem in user space that has this fault."""

    @contextmanager
    def inject(sandbox: Sandbox) -> Iterator[list[str]]:
        with shared(sandbox) as (directory, arguments):
            with storage.faulty_directory(sandbox, CULPRIT, directory, fault):
                yield arguments
            # Nothing of the workload's own stays behind.
            assert list(directory.iterdir()) == []

    return inject


@contextmanager
def stuck(sandbox: Sandbox) -> Iterator[list[str]]:
    """Who waits for the filesystem cannot be killed, so that Slurm drains the node afterwards."""
    with lies("stuck")(sandbox) as arguments:
        yield arguments
    sandbox.wait_state(CULPRIT, "^(idle|drained)")
    if sandbox.node_states()[CULPRIT] != "idle":
        sandbox.drain(CULPRIT, resume=True)
        sandbox.wait_idle([CULPRIT])


@contextmanager
def nothing(sandbox: Sandbox) -> Iterator[list[str]]:
    with shared(sandbox) as (_, arguments):
        yield arguments


@contextmanager
def not_mounted(sandbox: Sandbox) -> Iterator[list[str]]:
    """The mount point is not there."""
    with (
        shared(sandbox) as (directory, arguments),
        storage.mounted_over(sandbox, CULPRIT, directory.parent, "-t", "tmpfs", "empty"),
    ):
        yield arguments


@contextmanager
def local_disk(sandbox: Sandbox) -> Iterator[list[str]]:
    """The mount point is there and empty: what is written lands on a disk of the node's own."""
    with (
        shared(sandbox) as (directory, arguments),
        storage.mounted_over(sandbox, CULPRIT, directory, "-t", "tmpfs", "local"),
    ):
        yield arguments


@contextmanager
def other_directory(sandbox: Sandbox) -> Iterator[list[str]]:
    """The right filesystem, and another directory of it."""
    with shared(sandbox) as (directory, arguments):
        other = directory.parent / "old"
        other.mkdir()
        with storage.mounted_over(sandbox, CULPRIT, directory, "--bind", str(other)):
            yield arguments


@contextmanager
def read_only(sandbox: Sandbox) -> Iterator[list[str]]:
    with (
        shared(sandbox) as (directory, arguments),
        storage.read_only(sandbox, CULPRIT, directory),
    ):
        yield arguments


def _fault(
    criterion: str, name: str, inject: Inject, says: str, where: str = "mount", also: str = ""
) -> Fault:
    return Fault(
        criterion=f"filesystem.{criterion}", name=name, where=f"{where} on {CULPRIT}",
        culprit=CULPRIT, inject=inject, select=SELECT, says=says,
        also=tuple(f"filesystem.{key}" for key in also.split()),
    )  # fmt: skip


FAULTS = [
    _fault("directory", "not mounted", not_mounted, "No such file or directory in stat()"),
    _fault("directory", "read-only", read_only, "Read-only file system in open()"),
    _fault("directory", "hangs", lies("hang"), "hung for 8 s in open()", "FUSE"),
    _fault("directory", "hangs past any signal", stuck, "hung for 8 s in fsync()", "FUSE"),
    _fault("same", "local disk under the mount point", local_disk, "another directory"),
    _fault("same", "another directory", other_directory, "another directory"),
    _fault("size", "smaller than ordered", lies("small"), "", "FUSE"),
    _fault("free", "full", lies("full"), "No space left on device in write()", "FUSE"),
    _fault("visibility", "new files appear late", lies("late"), "", "FUSE"),
    _fault("coherence", "stale view", lies("stale"), "has other content", "FUSE"),
    _fault("append", "appends are lost", lies("lost-append"), "lines appended on worker1", "FUSE"),
    _fault("flock", "every lock is granted", lies("free-locks"), "at once", "FUSE"),
    _fault("flock", "locks stay on the node", lies("local-locks"), "granted on", "FUSE"),
    _fault("writes", "a bit is turned over", lies("corrupt"), "worker1 wrote", "FUSE"),
    _fault("write.alone", "slow writes", lies("slow-writes"), "", "FUSE", "write.together"),
    _fault("write.together", "slow while others write", lies("crowded"), "", "FUSE"),
    _fault("read.alone", "slow reads", lies("slow-reads"), "", "FUSE", "read.together"),
    _fault("metadata", "slow creation of files", lies("slow-names"), "", "FUSE"),
]
