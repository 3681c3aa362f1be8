"""The node side: entry, ranks' lines, and the workloads on CPU ranks."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fixtures.entry import Workload, describe, module_of
from fixtures.jobs.error_texts import kind_of_text
from fixtures.records.absence import JobKind, Kind
from fixtures.records.model import Measurement, Record
from fixtures.records.run_directory import assemble
from fixtures.workloads.inventory import inventory
from fixtures.workloads.runtime.identity import Identity
from fixtures.workloads.runtime.rank_main import kind_of, nic_identities
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.scheduler import connectivity
from tests.selftests.rank_job import (
    MODULES,
    ROOT,
    TORCH,
    Job,
    free_port,
)
from tests.selftests.support import whys

pytestmark = pytest.mark.cpu


def only(record: Record, metric: str) -> Measurement:
    ((_, found),) = record.points(metric, {})
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_lines_are_complete_and_make_a_record(tmp_path: Path, ranks: int) -> None:
    job = Job(tmp_path, per_node=ranks)
    job.add("gemm", ["fp32"], soak_s=0.01, window_s=0.1, size=128)
    job.add("probe", ["x"])
    job.add("environment", ["versions", "run_directory"])
    assert job.run() == [0] * ranks, job.output()
    for k in range(ranks):
        # What needs no torch runs before torch is imported, else in the order of the spec.
        assert job.events(k) == [
            (event, name)
            for name in ("probe", "environment", "gemm")
            for event in ("started", "result")
        ] + [("end", "")]
    assert [rank.facts["torch"] for rank in job.record("probe").ranks] == [False] * ranks
    record = job.record("gemm")
    assert [rank.device["uuid"] for rank in record.ranks] == [
        f"worker0-cpu{k}" for k in range(ranks)
    ]
    assert record.provenance["torch"]
    assert only(job.record("environment"), "run_directory").value == "seen"


@pytest.mark.parametrize(
    ("do", "kind", "text"),
    [
        ("raise", "raised", "ValueError: on purpose"),
        ("import", "import_failure", "no_such_module"),
        ("memory", "out_of_memory", "MemoryError"),
        ("full", "storage", "No space left"),
        ("exit", "exited", "SystemExit"),
        ("nan", "raised", "Out of range float"),
        ("nothing", "raised", "not a Result"),
    ],
)
def test_failure_is_recorded_with_its_kind(tmp_path: Path, do: str, kind: str, text: str) -> None:
    job = Job(tmp_path)
    job.add("probe", ["x"], do=do)
    (status,) = job.run()
    assert status != 0
    assert job.events() == [("started", "probe"), ("error", "probe")]
    error = job.error()
    assert error["kind"] == kind
    assert text in error["error"]
    assert error["stack"]


@pytest.mark.parametrize("do", ["vanish", "kill"])
def test_started_line_names_the_workload_that_a_rank_died_in(tmp_path: Path, do: str) -> None:
    job = Job(tmp_path, per_node=2)
    job.add("environment", ["versions"])
    job.add("probe", ["x"], do=do, rank=1)
    assert job.run() == [0, 0 if do == "vanish" else -signal.SIGKILL]
    assert job.events(0)[-1] == ("end", "")
    assert job.events(1)[-1] == ("started", "probe")
    lines = [*job.lines(0), *job.lines(1)]
    about: dict[str, Any] = {"run_id": "run", "nonce": job.spec["nonce"], "placement": "worker0"}
    about |= {"attempt": 1, "job": {}}
    assert assemble(lines, workload="probe", **about) is None
    assert assemble(lines, workload="environment", **about) is not None


@pytest.mark.parametrize("do", ["pass", "raise", "exit", "kill"])
def test_a_forked_rank_writes_and_ends_as_a_started_one(tmp_path: Path, do: str) -> None:
    found = []
    for name, warm in (("started", ()), ("forked", ("json",))):
        job = Job(tmp_path / name, per_node=2)
        job.add("probe", ["x"], do=do)
        found.append((job.run(warm=warm), job.events(0), job.events(1)))
    assert found[0] == found[1]


def test_hung_workload_is_ended_at_its_deadline_with_stacks(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.add("probe", ["x"], do="hang")
    job.spec["workloads"][0]["deadline_s"] = 1
    assert job.run() == [70]
    error = job.error()
    assert (error["kind"], error["workload"]) == ("hung", "probe")
    assert "time.sleep(60)" in error["stack"]


def test_missing_module_is_an_import_failure_of_that_workload(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.add("no_such_workload", ["x"])
    job.add("probe", ["x"])
    assert job.run() != [0]
    assert job.events()[:2] == [("started", "probe"), ("result", "probe")], job.output()
    assert job.error()["kind"] == "import_failure"
    assert job.error()["workload"] == "no_such_workload"


def test_wrong_number_of_ranks_and_foreign_node_are_errors(tmp_path: Path) -> None:
    job = Job(tmp_path / "a")
    job.spec["ranks_per_node"] = 2
    assert job.run() != [0]
    assert "1 rank started, expected 2" in job.error()["error"]
    job = Job(tmp_path / "b", nodes=["worker0", "worker1"])
    job.spec["nodes"] = ["worker0", "worker2"]
    job.run(slurm=True)
    assert "rank 1 is on worker1" in job.error(rank=1)["error"]


@pytest.mark.waits("the ranks end each other by the intervals of torch's store")
def test_two_ranks_with_one_local_rank_are_no_measurement(tmp_path: Path) -> None:
    def errors(root: Path, prolog: dict[str, str]) -> list[str]:
        job = Job(root, per_node=2)
        for k in (0, 1):  # both are at work at the same time
            job.add("probe", ["x"], do="hang", rank=k)
            job.spec["workloads"][k]["deadline_s"] = 5
        job.run(slurm=True, prolog=prolog)
        return [x["error"] for k in (0, 1) for x in job.lines(k) if x["event"] == "error"]

    wanted = "two ranks of worker0 are local rank 0"
    assert any(wanted in error for error in errors(tmp_path / "a", {"SLURM_LOCALID": "0"}))
    assert not any("local rank" in error for error in errors(tmp_path / "b", {}))


def test_gemm_on_two_ranks_is_a_valid_measurement(tmp_path: Path) -> None:
    job = Job(tmp_path, per_node=2)
    job.add("gemm", ["bf16", "fp32", "fp8"], soak_s=0.05, window_s=0.5)
    assert job.run(warm=TORCH) == [0, 0], job.output()
    record = job.record("gemm")
    for rank in record.ranks:
        assert [m.metric for m in rank.measurements] == ["bf16", "fp32"]
        assert "fp8" in whys(rank, Kind.NOT_THERE)
        for m in rank.measurements:
            assert m.unit == "TFLOPS"
            assert len(m.ended) == len(m.samples) > 0
            assert all(sample > 0 for sample in m.samples)
            assert m.checks["operand_std"] == pytest.approx(1, abs=0.05)
            assert 0 < m.checks["overlap"] <= 1
            assert m.checks["batches"] >= 1
            assert m.checks["relative_error"] < (2e-5 if m.metric == "fp32" else 1e-2)
            assert m.started is not None
            assert m.started < m.ended[0]


def test_versions_that_differ_and_a_foreign_token_are_named(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.spec["expected"] = {"python": "2.7.18", "no-such-package": "1", "torch": None}
    job.spec["token"] = "another"
    job.add("environment", ["versions", "run_directory"], token_wait_s=0)
    assert job.run() == [0], job.output()
    versions = only(job.record("environment"), "versions")
    assert versions.value == 2
    assert versions.notes[0].startswith("python: expected 2.7.18, got 3.")
    assert versions.notes[1] == "no-such-package: expected 1, got not installed"
    assert only(job.record("environment"), "run_directory").value == "not seen"


def test_inventory_counts_what_slurm_gave_where_there_is_no_nvml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if inventory.devices.nvml() is not None:
        pytest.skip("this host has NVML")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    ibs = tmp_path / "sys" / "class" / "infiniband"
    for name in ("mlx5_0", "mlx5_1", "mlx5_2"):
        (ibs / name / "device").mkdir(parents=True)
    (ibs / "mlx5_2" / "device" / "physfn").mkdir()  # a virtual function is no NIC
    job = Job(tmp_path, per_node=2)
    job.add("inventory", ["gpus", "gpu_model", "nics"], root=str(tmp_path))
    assert job.run() == [0, 0], job.output()
    record = job.record("inventory")
    assert only(record, "gpus").value == 2
    assert only(record, "nics").value == 2
    assert [m.value for _, m in record.points("gpu_model", {})] == ["cpu", "cpu"]
    assert record.ranks[0].facts["emulated"] is True


def test_connectivity_between_two_nodes(tmp_path: Path) -> None:
    job = Job(tmp_path, nodes=["localhost", "127.0.0.1"])
    job.add("connectivity", ["peers"])
    assert job.run(slurm=True) == [0, 0], job.output()
    record = job.record("connectivity")
    assert [m.value for _, m in record.points("peers", {})] == [0, 0]
    for rank in record.ranks:
        assert rank.facts["reached"] == "1 of 1"
        assert [row["by"] for row in rank.facts["table"]] == ["name", "address"]


def test_connectivity_names_peer_way_and_reason(tmp_path: Path) -> None:
    job = Job(tmp_path, nodes=["localhost", "no-such-host.invalid"])
    job.add("connectivity", ["peers"], deadline_s=1, appear_s=4)
    assert job.run(slurm=True) == [0, 0], job.output()
    (_, first), (_, second) = job.record("connectivity").points("peers", {})
    # By address the second is reached: a peer counts unless both ways work.
    assert (first.value, second.value) == (1, 0)
    assert len(first.notes) == 1
    assert first.notes[0].startswith("no-such-host.invalid by name: ")


def test_foreign_listener_does_not_count(tmp_path: Path) -> None:
    job = Job(tmp_path, nodes=["localhost", "127.0.0.1"])
    me = Identity(rank=0, local_rank=0, world_size=2, node="localhost")
    ranks = Ranks(job.spec, me)
    foreign = Ranks(
        {**job.spec, "nonce": "of another run", "master_port": free_port() - 1},
        Identity(rank=1, local_rank=0, world_size=2, node="127.0.0.1"),
    )
    with connectivity.Listener(foreign):
        port = json.loads((job.directory / "connectivity-127.0.0.1.json").read_text())["port"]
        with pytest.raises(ValueError, match="answers as None"):
            connectivity._exchange(ranks, "127.0.0.1", port, "127.0.0.1", "reach")


def test_every_workload_imports_without_torch_and_pynvml() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['pynvml'] = None\n"
        "from fixtures import entry\n"
        f"for name in {MODULES!r}: print(entry.describe(entry.module_of(name)).metrics)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("name", MODULES)
def test_workload_says_what_the_plan_needs(name: str) -> None:
    workload = describe(module_of(name))
    assert isinstance(workload, Workload)
    for device in ("cuda", "cpu"):
        assert 0 < workload.estimate(device) < workload.deadline(device)


def test_names_of_nvml_exist_and_what_it_cannot_answer_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pynvml = pytest.importorskip("pynvml")
    from fixtures.workloads.devices import devices
    from fixtures.workloads.inventory import environment

    asked: list[str] = []

    class Mute:
        """pynvml whose every call fails, as on a device that supports nothing."""

        def __getattr__(self, name: str) -> Any:
            value = getattr(pynvml, name)  # an AttributeError here is a misspelt name
            if not name.startswith("nvmlDevice") and not name.startswith("nvmlSystem"):
                return value
            asked.append(name)

            def refuse(*_: Any) -> None:
                raise pynvml.NVMLError_NotSupported

            return refuse

    monkeypatch.setattr(devices, "nvml", Mute)
    assert devices.nvml_facts(None) == {"nvlinks": 0}
    assert devices.pcie_link("GPU-1") == {}
    assert environment._nvidia()["driver"] is None
    assert environment._link(Mute(), None, None) == "unknown"
    assert {"nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetMemoryInfo"} <= set(asked)


def test_lost_rank_is_told_from_a_failure_of_its_own() -> None:
    from torch.distributed import DistNetworkError, DistStoreError

    assert kind_of(DistStoreError("wait timeout after 40000ms")) == "peer_lost"
    assert kind_of(DistNetworkError("timed out after 40000ms")) == "peer_lost"
    assert kind_of(DistNetworkError("EADDRINUSE: address already in use")) == "raised"
    assert kind_of(RuntimeError("Connection closed by peer [127.0.0.1]")) == "peer_lost"
    assert kind_of(RuntimeError("shapes do not match")) == "raised"


def test_what_the_kernel_shows_and_takes_away_is_no_fault_of_the_shared_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = errno.ESTALE, "Stale file handle"
    for path, kind in (("/sys/class/net/eth1", "raised"), ("/shared/run/record", "storage")):
        error = OSError(*stale, path)
        assert kind_of(error) == kind
        assert (kind_of_text(f"OSError: {error}") is JobKind.STORAGE) == (kind == "storage")
    for name in ("eth0", "eth1"):
        (tmp_path / "net" / name / "device").mkdir(parents=True)
        (tmp_path / "net" / name / "address").write_text(f"mac of {name}\n")
    # As the kernel answers for an interface that was taken away while the folder is remembered.
    stat = os.stat

    def gone(path: Any, **how: Any) -> os.stat_result:
        if "/net/eth1" in str(path):
            raise OSError(*stale, str(path))
        return stat(path, **how)

    monkeypatch.setattr(os, "stat", gone)
    monkeypatch.setattr(os, "lstat", gone)
    assert nic_identities(tmp_path) == {"eth0": "mac of eth0"}
