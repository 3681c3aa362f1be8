"""Which GPU files a process finds and opens, on made-up files."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.workloads.devices import gpu_visibility

pytestmark = pytest.mark.cpu


def numbered(monkeypatch: pytest.MonkeyPatch, devices: dict[str, int]) -> None:
    """Make these files character devices of this number; every other file is an ordinary one."""
    honest = Path.stat

    def stat_of(path: Path, **options: Any) -> Any:
        if path.name in devices:
            return SimpleNamespace(st_mode=stat.S_IFCHR, st_rdev=devices[path.name])
        return honest(path, **options)

    monkeypatch.setattr(Path, "stat", stat_of)


NULL = Path("/dev/null").stat().st_rdev


def test_gpu_files_of_the_driver_come_before_those_of_gres_conf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = tmp_path / "gpus"
    gpus.mkdir()
    for name in ("gpu10", "gpu2", "hidden", "other", "plain"):
        (gpus / name).touch()
    (tmp_path / "gres.conf").write_text(
        f"NodeName=n0 Name=gpu File={gpus}/gpu2\nNodeName=n1 Name=gpu File={tmp_path}/none/gpu0\n"
    )
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("SLURMD_NODENAME", "n0")
    numbers = {"gpu10": 10, "gpu2": 2, "other": 3, "hidden": NULL}
    numbered(monkeypatch, numbers)
    monkeypatch.setattr(Path, "glob", lambda *_: iter(()))
    assert gpu_visibility.gpu_files() == (
        [gpus / "other", gpus / "gpu2", gpus / "gpu10"], True,
    )  # fmt: skip
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    assert gpu_visibility.gpu_files() == ([], True)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none/slurm.conf"))
    assert gpu_visibility.gpu_files() == ([], True)
    names = ("nvidia10", "nvidia2", "nvidiactl", "nvidia3")
    numbered(monkeypatch, {"nvidia10": 10, "nvidia2": 2, "nvidiactl": 255, "nvidia3": NULL})
    monkeypatch.setattr(Path, "glob", lambda *_: iter(tmp_path / name for name in names))
    assert gpu_visibility.gpu_files() == ([tmp_path / "nvidia2", tmp_path / "nvidia10"], False)


def test_a_file_that_is_missing_is_no_device(tmp_path: Path) -> None:
    assert gpu_visibility._is_device(tmp_path / "missing") is False


def test_access_is_told_once_per_device_and_an_error_of_the_driver_is_access(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = {
        "denied": errno.EPERM, "forbidden": errno.EACCES, "opened": 0, "broken": errno.EIO,
        "again": errno.EPERM, "odd": 9999,
    }  # fmt: skip
    paths = [tmp_path / name for name in errors]
    numbers = dict(zip(errors, (1, 2, 3, 4, 3, 5), strict=True))
    numbered(monkeypatch, {name: os.makedev(195, number) for name, number in numbers.items()})

    def open_(path: Path, flags: int) -> int:
        if error := errors[path.name]:
            raise OSError(error, "refused")
        return -7

    closed: list[int] = []
    monkeypatch.setattr(gpu_visibility.os, "open", open_)
    monkeypatch.setattr(gpu_visibility.os, "close", closed.append)
    found = {entry["device"]: (entry["in"], entry["said"]) for entry in
             gpu_visibility.gpu_access(paths)}  # fmt: skip
    assert found == {
        "195:1": (False, "EPERM"), "195:2": (False, "EACCES"), "195:3": (True, "opened"),
        "195:4": (True, "EIO"), "195:5": (True, "9999"),
    }  # fmt: skip
    assert closed == [-7]


def test_what_a_process_sees_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_visibility, "gpu_files", lambda: ([], True))
    for name in ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_STEP_GPUS", "4")
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    seen = gpu_visibility.observe()
    assert (seen["given"], seen["SLURM_PROCID"], seen["job"]) == ("4", "3", "17")
    assert (seen["gpus"], seen["emulated"]) == ([], True)
    monkeypatch.setenv("SLURM_JOB_GPUS", "5")
    assert gpu_visibility.observe()["given"] == "5"
    gpu_visibility.main([str(tmp_path / "seen")])
    gpu_visibility.main([])
    written = (tmp_path / "seen").read_text(), capfd.readouterr().out
    assert [json.loads(text) for text in written] == [gpu_visibility.observe()] * 2
    assert all(text.count("\n") == 1 for text in written)
