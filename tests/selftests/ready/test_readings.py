"""What the kernel's log, its table of mounts and its list of processes say."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fixtures.ready import readings
from tests.selftests.ready_nodes import Node

pytestmark = pytest.mark.cpu


def test_a_xid_of_the_kernels_log_has_its_time_its_gpu_and_its_number(tmp_path: Path):
    log = tmp_path / "kmsg"
    us = round(1e6 * (time.monotonic() - 100))
    log.write_text(
        f"4,9,{us},-;NVRM: Xid (PCI:0000:9B:00): 79, pid=1, GPU has fallen off the bus.\n"
        " SUBSYSTEM=pci\n"
        "6,10,1,-;a user wrote Xid (PCI:0000:9b:00): 48\n"
        "garbage\n"
    )  # fmt: skip
    ((at, bus, number),) = readings.xids(log)["xids"]
    assert (bus, number) == ("0000:9b:00", 79)
    assert at == pytest.approx(time.time() - 100, abs=2)


def test_a_log_that_cannot_be_read_says_why(tmp_path: Path):
    assert readings.xids(tmp_path / "none") == {"xids": None, "why": "No such file or directory"}
    assert readings.xids(tmp_path) == {"xids": None, "why": "Is a directory"}


def test_the_real_log_ends_at_once():
    assert readings.xids(Path("/dev/kmsg")).keys() >= {"xids"}


def told(*arguments: Any) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    readings.mount(messages.append, *arguments)
    return messages[-1]


def test_the_last_mount_at_a_point_counts(tmp_path: Path):
    table = tmp_path / "mounts"
    table.write_text("none / autofs rw 0 0\nserver:/x / nfs4 ro,hard 0 0\nb /boot ext4 rw 0 0\n")
    assert told("/", table) == {"mount": "/", "type": "nfs4", "writable": False}
    assert told("/", tmp_path / "none")["type"] is None
    assert told("/no/such", table) == {"mount": "/no/such", "error": "No such file or directory"}


def process(proc: Path, pid: int, cgroup: str, environment: bytes) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "comm").write_text("python\n")
    (proc / str(pid) / "cgroup").write_text(cgroup)
    (proc / str(pid) / "environ").write_bytes(environment)


def test_a_process_of_a_job_is_no_stranger(tmp_path: Path):
    process(tmp_path, 1, "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n", b"")
    process(tmp_path, 2, "5:devices:/slurm/uid_0/job_70/step_batch\n1:x:/\n", b"")
    process(tmp_path, 3, "0::/user.slice\n", b"A=1\0SLURM_JOB_ID=7\0")
    process(tmp_path, 4, "0::/user.slice/my_job_7x\n", b"NOT_SLURM_JOB_ID=7\0")
    assert [readings._stranger(pid, tmp_path) for pid in (1, 2, 3)] == [None] * 3
    assert readings._stranger(4, tmp_path) == {
        "pid": 4, "name": "python", "seen": True, "sure": True,
    }  # fmt: skip
    assert readings._stranger(5, tmp_path) == {"pid": 5, "name": "", "seen": False, "sure": True}
    hidden = readings._stranger(5, tmp_path / "hidepid=2")
    assert hidden == {"pid": 5, "name": "", "seen": False, "sure": False}


def test_a_process_that_ends_at_this_moment_is_not_foreign(monkeypatch):
    seen = iter([{0: [{"pid": 1}, {"pid": 2}]}, {0: [{"pid": 2}, {"pid": 3}]}])
    monkeypatch.setattr(readings, "_strangers", lambda nvml, handles: next(seen))
    monkeypatch.setattr(readings.time, "sleep", lambda s: None)
    assert readings._processes(None, {}) == {0: [{"pid": 2}]}


def test_a_driver_that_is_not_there_and_a_missing_pynvml_are_told(node: Node, monkeypatch):
    node.break_driver("count=-1")
    messages: list[dict[str, Any]] = []
    readings.driver(messages.append)
    assert messages[-1] == {"driver": {"why": "DriverNotLoaded", "kind": "fault of the node"}}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    readings.driver(messages.append)
    assert messages[-1]["driver"]["why"] == "nvidia-ml-py (pynvml) is not installed"


def test_what_is_asked_is_told_before_it_is_asked(node: Node):
    messages: list[dict[str, Any]] = []
    readings.driver(messages.append)
    asked = [m["asking"] for m in messages if "asking" in m]
    assert asked == [
        "the driver to start (nvmlInit)", "the driver about GPU 0", "the driver about GPU 1",
        "the driver for the counters of GPU 0", "the driver for the counters of GPU 1",
        "the driver for processes",
    ]  # fmt: skip
