"""Versions, the shared run directory and the facts of a node, on made-up files and driver."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.sandbox.platforms import write_sysfs_file
from fixtures.workloads.devices import devices
from fixtures.workloads.inventory import environment

pytestmark = pytest.mark.cpu


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The installed packages; a test changes them."""
    found = {"torch": "2.9.0"}

    def version(name: str) -> str:
        if name not in found:
            raise environment.metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(environment.metadata, "version", version)
    return found


def rank_of(folder: Path, *, leads: bool = True, **spec: Any) -> Any:
    given = {"run_directory": str(folder), "token": "a token", **spec}
    return SimpleNamespace(leads_node=leads, spec=given)


def test_versions_that_differ_from_the_login_side_are_counted(versions: dict[str, str]):
    assert environment.installed("python") == environment.platform.python_version()
    assert environment.installed("torch") == "2.9.0"
    assert environment.installed("numpy") is None
    # The patch level of an image's interpreter is not that of the login side, and is no fault.
    release, _, _ = environment.platform.python_version().rpartition(".")
    assert environment._versions({"python": f"{release}.99"}).value == 0
    row = environment._versions({"torch": "2.9.0", "numpy": "1.0", "pip": None, "python": "2.7"})
    assert row.value == 2
    assert row.notes[0] == "numpy: expected 1.0, got not installed"
    assert row.notes[1].startswith("python: expected 2.7, got 3.")


def test_the_token_of_the_run_directory_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    now = [0.0]
    slept: list[float] = []
    monkeypatch.setattr(environment.time, "monotonic", lambda: now[0])

    def passes(seconds: float) -> None:
        slept.append(seconds)
        now[0] += 6
        if len(slept) == 2:
            (tmp_path / "token").write_text("a token\n")

    monkeypatch.setattr(environment.time, "sleep", passes)
    row = environment._run_directory(rank_of(tmp_path), 11)
    assert (row.value, row.notes, len(slept)) == ("seen", [], 2)
    row = environment._run_directory(rank_of(tmp_path, token="other"), 0)
    assert (row.value, row.notes) == ("not seen", [f"{tmp_path}/token holds another text"])
    (tmp_path / "token").unlink()
    row = environment._run_directory(rank_of(tmp_path), 6)
    assert row.value == "not seen"
    assert "No such file" in row.notes[0]
    assert len(slept) == 3, "the time is over after one more pause of six seconds"
    assert environment.TOKEN_WAIT_S == 10, "NFS shows new files late"


def test_only_the_first_rank_measures_what_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(environment, "facts", lambda _: {"cpus": 8})
    (tmp_path / "token").write_text("a token")
    found = environment.run(rank_of(tmp_path), ["versions", "run_directory"])
    assert [(m.metric, m.value) for m in found.measurements] == [
        ("versions", 0), ("run_directory", "seen"),
    ]  # fmt: skip
    assert found.facts == {"cpus": 8}
    assert environment.run(rank_of(tmp_path), []).measurements == []
    assert environment.run(rank_of(tmp_path, leads=False), ["versions"]).facts == {}


SYSTEM = {
    "/proc/cpuinfo": (
        "physical id\t: 0\nmodel name\t: Xeon: A\nphysical id\t: 1\nmodel name\t: Xeon B\n"
    ),
    "/etc/os-release": 'NAME=x\nPRETTY_NAME="Debian 12"\n',
    "/proc/meminfo": f"MemTotal:   {3 << 19} kB\n",
    "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0,64\n",
    "/sys/devices/system/cpu/smt/control": "on\n",
    "/proc/self/mounts": "a / ext4 rw 0 0\nn:/x /shared nfs4 rw,hard 0 0\nb /sh tmpfs rw 0 0\n",
}


def test_facts_of_a_node_are_what_its_files_say(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]
):
    files = dict(SYSTEM)
    monkeypatch.setattr(environment, "_read", lambda path: files.get(str(path), ""))
    monkeypatch.setattr(environment, "_slurm", lambda: "slurm 23")
    monkeypatch.setattr(environment, "_nics", lambda _: [])
    monkeypatch.setattr(devices, "nvml", lambda: None)
    monkeypatch.setattr(environment.os, "cpu_count", lambda: 8)
    found = environment.facts(rank_of(Path("/shared/run")))
    names = ("sockets", "cpus", "threads_per_core", "smt", "cpu", "memory_gib", "os", "slurm")
    assert [found[name] for name in names] == [
        2, 8, 2, "on", "Xeon: A", 1.5, "Debian 12", "slurm 23",
    ]  # fmt: skip
    assert found["run_directory"] == {
        "source": "n:/x", "point": "/shared", "type": "nfs4", "options": "rw,hard",
    }  # fmt: skip
    assert not {"nccl", "nics", "gpus"} & found.keys()
    for package, version in (("nvidia-nccl-cu12", "2.1"), ("nvidia-nccl-cu13", "2.2")):
        versions[package] = version
        assert environment.facts(rank_of(Path("/run")))["nccl"] == version
    files.clear()
    bare = environment.facts(rank_of(Path("/run")))
    assert bare["sockets"] == 1
    assert not {"threads_per_core", "memory_gib", "smt", "cpu", "os", "run_directory"} & bare.keys()


def test_the_mount_of_a_path_is_the_deepest_and_the_last(monkeypatch: pytest.MonkeyPatch):
    mounts = "a / ext4 rw 0 0\nb /x tmpfs rw 0 0\nc /x nfs ro 0 0\nd /x/y/z nfs ro 0 0\n"
    monkeypatch.setattr(environment, "_read", lambda _: mounts)
    for path, source in (("/x/y", "c"), ("/x", "c"), ("/other", "a"), ("/x/y/z", "d")):
        assert environment._mount(Path(path))["source"] == source, path


def test_a_file_that_cannot_be_read_is_empty(tmp_path: Path):
    (tmp_path / "a").write_text("text")
    assert (environment._read(tmp_path / "a"), environment._read(tmp_path / "b")) == ("text", "")


def test_the_version_of_slurm_is_what_srun_prints(monkeypatch: pytest.MonkeyPatch):
    answers: list[Any] = ["slurm 23.11\n", "\n", OSError(), subprocess.TimeoutExpired("srun", 5)]

    def run(command: list[str], **_: Any) -> Any:
        assert command == ["/bin/srun", "--version"]
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(stdout=answer)

    monkeypatch.setattr(environment.subprocess, "run", run)
    monkeypatch.setattr(environment.shutil, "which", lambda name: f"/bin/{name}")
    assert [environment._slurm() for _ in range(4)] == ["slurm 23.11", None, None, None]
    monkeypatch.setattr(environment.shutil, "which", lambda _: None)
    assert environment._slurm() is None


def test_nics_are_listed_with_what_they_show(tmp_path: Path):
    assert environment._nics(tmp_path / "none") == []
    for path, text in (
        ("mlx5_1/fw_ver", "28.1"), ("mlx5_1/ports/1/rate", "400 Gb/sec"), ("mlx5_0/board_id", ""),
    ):  # fmt: skip
        write_sysfs_file(tmp_path / path, text)
    assert environment._nics(tmp_path) == [
        {"name": "mlx5_0"}, {"name": "mlx5_1", "fw_ver": "28.1", "rate": "400 Gb/sec"},
    ]  # fmt: skip


class Driver:
    NVML_P2P_CAPS_INDEX_NVLINK = 2


def test_driver_cuda_mig_and_topology_come_from_nvml(monkeypatch: pytest.MonkeyPatch):
    handles = ["g0", "g1"]
    answers: dict[tuple[Any, ...], Any] = {
        ("nvmlSystemGetCudaDriverVersion_v2",): 12090, ("nvmlSystemGetDriverVersion",): "580.1",
        ("nvmlDeviceGetMigMode", "g0"): [1, 1], ("nvmlDeviceGetP2PStatus", "g0", "g1", 2): 0,
        ("nvmlDeviceGetP2PStatus", "g1", "g0", 2): 5,
        ("nvmlDeviceGetTopologyCommonAncestor", "g1", "g0"): 0,
    }  # fmt: skip
    monkeypatch.setattr(devices, "nvml", lambda: Driver)
    monkeypatch.setattr(devices, "open_handles", lambda: handles)
    monkeypatch.setattr(devices, "query_nvml", lambda *asked: answers.get(asked))
    monkeypatch.setattr(devices, "nvml_facts", lambda h: {"uuid": h, "serial": "1"})
    assert environment._nvidia() == {
        "driver": "580.1", "cuda": "12.9", "mig": [True, False],
        "gpus": [{"uuid": "g0"}, {"uuid": "g1"}],
        "topology": [["self", "nvlink"], ["pcie level 0", "self"]],
    }  # fmt: skip
    answers.clear()
    assert environment._nvidia()["cuda"] is None
    assert environment._link(Driver, "g1", "g0") == "unknown"
    handles[:] = [f"g{k}" for k in range(16)]
    assert len(environment._nvidia()["topology"][0]) == 16
    handles.append("g16")
    assert environment._nvidia()["topology"] == [[]] * 17
    monkeypatch.setattr(devices, "nvml", lambda: None)
    assert environment._nvidia() == {}
