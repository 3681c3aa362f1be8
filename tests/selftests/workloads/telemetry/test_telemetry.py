"""What the hardware workloads read, how it is judged, and that telemetry never costs a workload."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.model import Measurement, Record
from fixtures.sandbox import Sandbox, emulation, platforms
from fixtures.sandbox.processes import wait_until
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Outcome, Verdict
from fixtures.workloads.devices import devices, nics, nvml_fields
from fixtures.workloads.infiniband import infiniband
from fixtures.workloads.inventory import drift
from fixtures.workloads.runtime.rank_main import run_spec
from fixtures.workloads.runtime.watchdog import Watchdog
from fixtures.workloads.telemetry import telemetry
from tests.selftests import support
from tests.selftests.rank_job import Job

pytestmark = pytest.mark.cpu

LIMITS = """\
schema: 1
cluster: {nodes: 3, gpus_per_node: 2, gpu_model: H200 SXM, nics_per_node: 2, nic_gbps: 400}
criteria:
  health.ecc_sram:
    {title: Sound, per: node, unit: errors, statistic: value, over: devices,
     limits: [{fail_above: 0, source: exact}]}
  infiniband.rate:
    {title: Fast, per: node, unit: Gbit/s, statistic: value,
     limits: [{equals: cluster.nic_gbps, source: the order}]}
  drift.fact:
    {title: Alike, per: cluster, unit: facts, statistic: alike,
     limits: [{fail_above: 0, source: the order}]}
"""


@pytest.fixture
def limits(tmp_path: Path) -> Thresholds:
    return support.load(tmp_path, LIMITS)


def verdict(limits: Thresholds, key: str, found: Record, nodes: tuple[str, ...]) -> Verdict:
    case = support.case(limits, key, found, nodes=nodes)
    if limits.criteria[key].over == "devices":
        case = replace(case, devices=2 * len(nodes))
    return judge(case, limits)


# --- judging


def health(*errors: int | None) -> Record:
    """A node's ranks, each with its count of errors; None did not measure."""
    ranks = [
        support.rank(k, "worker0", *([] if n is None else [support.value("ecc_sram", "errors", n)]))
        for k, n in enumerate(errors)
    ]
    return support.record(*ranks, workload="health")


def test_device_that_did_not_measure_is_no_pass(limits: Thresholds) -> None:
    assert verdict(limits, "health.ecc_sram", health(0, 0), ("worker0",)).outcome is Outcome.PASS
    found = verdict(limits, "health.ecc_sram", health(0, None), ("worker0",))
    assert found.outcome is Outcome.NOT_MEASURED
    assert found.reason == "measured on 1 of 2 devices"


def test_device_that_fails_is_a_failure_whatever_the_others_left_out(limits: Thresholds) -> None:
    found = verdict(limits, "health.ecc_sram", health(None, 2), ("worker0",))
    assert found.outcome is Outcome.FAIL
    assert found.worst is not None
    assert (found.worst["gpu"], found.worst["uuid"]) == (1, "GPU-worker0-1")


def test_port_is_named_and_no_gpu(limits: Thresholds) -> None:
    ports = [
        Measurement(metric="rate", unit="Gbit/s", value=gbps, at={"part": name})
        for name, gbps in (("mlx5_0", 400.0), ("mlx5_1", 200.0))
    ]
    found = support.record(support.rank(0, "worker0", *ports), workload="infiniband")
    red = verdict(limits, "infiniband.rate", found, ("worker0",))
    assert red.outcome is Outcome.FAIL
    assert red.line.startswith("worker0 mlx5_1 infiniband.rate: 200")


NODES = ("worker0", "worker1", "worker2")


def facts(**kernels: str | None) -> Record:
    """A record over all nodes, with each one's kernel; None: the node did not say."""
    ranks = []
    for k, node in enumerate(NODES):
        kernel = kernels.get(node, "6.1")
        found = Measurement(metric="fact", unit="facts", value=kernel, at={"fact": "kernel"})
        ranks.append(support.rank(k, node, *([] if kernel is None else [found])))
    return support.record(*ranks, workload="drift", placement="all")


def test_node_unlike_the_majority_is_named_with_the_fact(limits: Thresholds) -> None:
    assert verdict(limits, "drift.fact", facts(), NODES).outcome is Outcome.PASS
    found = verdict(limits, "drift.fact", facts(worker0="5.15"), NODES)
    assert (found.outcome, found.value) == (Outcome.FAIL, 1)
    assert found.worst is not None
    assert (found.worst["node"], found.worst["part"]) == ("worker0", "kernel")
    assert found.notes == ["worker0 kernel: 5.15 (2 of 3 have 6.1)"]


def test_without_a_majority_it_says_so(limits: Thresholds) -> None:
    found = verdict(limits, "drift.fact", facts(worker1="5.15", worker2="4.18"), NODES)
    assert (found.outcome, found.value) == (Outcome.FAIL, 2)
    assert "no majority" in found.notes[0]


def test_fact_that_a_node_does_not_have_is_not_measured(limits: Thresholds) -> None:
    found = verdict(limits, "drift.fact", facts(worker2=None), NODES)
    assert found.outcome is Outcome.NOT_MEASURED
    assert found.reason == "kernel was not found on worker2"


# --- sysfs under another root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The tree that the sandbox emulates: four InfiniBand ports."""
    emulation.make_hardware(platforms.find(""), tmp_path / "sys" / "class")
    return tmp_path


def port(root: Path, nic: str = "mlx5_0") -> Path:
    return root / "sys" / "class" / "infiniband" / nic / "ports" / "1"


def states(root: Path, nic: str = "mlx5_0") -> dict[str, Any]:
    return infiniband._states(root, port(root, nic))


def test_healthy_port(root: Path) -> None:
    assert list(nics.choose(root, order={}).ports(root)) == list(platforms.find("").ordered_nics)
    assert states(root) == {
        "fabric": "InfiniBand", "state": "ACTIVE", "physical_state": "LinkUp", "rate": 400.0,
        "verbs": "present",
    }  # fmt: skip


def test_roce_and_efa_are_told_apart_from_infiniband(root: Path) -> None:
    platforms.write_sysfs_file(port(root) / "link_layer", "Ethernet")
    assert states(root)["fabric"] == "RoCE"
    driver = root / "drivers" / "efa"
    driver.mkdir(parents=True)
    device = port(root, "mlx5_1").parents[1] / "device"
    (device / "driver").unlink()
    (device / "driver").symlink_to(driver)
    found = states(root, "mlx5_1")
    # EFA always says ACTIVE: without a network device nothing is known of its link.
    assert (found["fabric"], found["state"], found["physical_state"]) == ("EFA", None, None)
    platforms.write_sysfs_file(device / "net" / "eth0" / "carrier", "0")
    assert states(root, "mlx5_1")["state"] == "DOWN"


def test_port_that_says_nothing_leaves_no_measurement(root: Path) -> None:
    for name in platforms.port_files(platforms.NIC_KINDS["virtual"]):
        (port(root) / name).unlink()
    assert {k for k, v in states(root).items() if v is not None} == {"verbs"}


def test_virtual_functions_are_no_nics_and_no_nics_give_nothing(root: Path) -> None:
    (port(root).parents[1] / "device" / "physfn").mkdir()
    chosen = nics.choose(root, order={})
    assert "mlx5_0" not in chosen.ports(root)
    assert chosen.left_out == {"mlx5_0": "a virtual function of another device"}
    assert nics.choose(root / "nowhere", order={}).ports(root) == {}


def test_gpudirect_by_module_by_driver_or_not_at_all(root: Path) -> None:
    assert infiniband.gpudirect(root) is None
    platforms.write_sysfs_file(
        root / "proc/driver/nvidia/version", "NVIDIA UNIX Open Kernel Module  580.1"
    )
    assert infiniband.gpudirect(root) == "dma-buf"
    platforms.write_sysfs_file(root / "sys" / emulation.PEERMEM_FILE, "live")
    assert infiniband.gpudirect(root) == "nvidia_peermem"


def test_firmware_is_compared_over_all_nics_of_a_kind(root: Path) -> None:
    expected = list(platforms.find("").ordered_nics)
    found = drift.firmware(root, expected)
    assert [m.at["part"] for m in found] == expected
    assert {m.at["fact"] for m in found} == {"firmware of MT4129 EMULATED0001"}


# --- the driver


class Driver:
    """As much of pynvml as the choice of a GPU needs."""

    NVML_ERROR_NO_PERMISSION = 4

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            self.value = value

    def __init__(self, *errors: int) -> None:
        self.errors = errors

    def nvmlDeviceGetCount(self) -> int:
        return len(self.errors)

    def nvmlDeviceGetHandleByIndex(self, k: int) -> str:
        if self.errors[k]:
            raise self.NVMLError(self.errors[k])
        return f"gpu{k}"


def test_lost_gpu_keeps_its_seat_and_a_forbidden_one_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    monkeypatch.setattr(devices, "nvml", lambda: Driver(4, 0, 15, 0))
    assert devices.gpu_handle(0)[0] == "gpu1"
    assert devices.gpu_handle(1) == (None, "NVMLError")
    assert devices.gpu_handle(2)[0] == "gpu3"


def test_field_value_that_is_unsupported_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    pynvml = pytest.importorskip("pynvml")
    value = SimpleNamespace(nvmlReturn=pynvml.NVML_ERROR_NOT_SUPPORTED)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", lambda *_: [value])
    with pytest.raises(pynvml.NVMLError_NotSupported):
        nvml_fields.read_field(pynvml, None, nvml_fields.POWER_CAP_NS)


def test_sandbox_without_a_compiler_comes_up_without_a_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if refusal := Sandbox.refusal():
        pytest.skip(refusal)
    monkeypatch.setattr(emulation, "refusal", lambda: "gcc is not installed")
    with Sandbox.up(nodes=1, gpus=1) as up:
        assert not emulation.has_driver(up.state)
        assert (up.state.home / "emulation.log").read_text() == "gcc is not installed\n"
        assert up.node_states() == {"worker0": "idle"}


# --- around the others


AROUND = """\
from fixtures.records.model import Measurement, Result
from fixtures.workloads.runtime.spec import Workload
WORKLOAD = Workload(metrics=dict(order="ranks"), needs_torch=False, seconds=1, cpu_seconds=1,
                    deadline_s=30, spans_job=True)
def begin(ranks):
    if {broken}:
        raise OSError("no counters")
    return "began"
def run(ranks, metrics):
    return Result(facts=dict(begun=ranks.begin_notes["around"]))
"""


@pytest.fixture
def around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Job:
    """A job of `environment` and of a workload that goes around it."""
    (tmp_path / "around.py").write_text(AROUND.format(broken=request.param))
    job = Job(tmp_path)
    job.spec["workloads"] = [
        {"name": "around", "module": "around", "placement": "localhost", "metrics": ["order"]},
        {"name": "environment", "module": "fixtures.workloads.inventory.environment",
         "placement": "localhost", "metrics": ["versions"]},
    ]  # fmt: skip
    job.spec["directory"] = str(tmp_path / "job")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "around", raising=False)
    return job


def told(job: Job) -> list[dict[str, Any]]:
    text = (Path(job.spec["directory"]) / "rank0.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("around", [False], indirect=True)
def test_workload_around_the_others_begins_first_and_runs_last(around: Job) -> None:
    run_spec(around.spec)
    results = [line for line in told(around) if line["event"] == "result"]
    assert [line["workload"] for line in results] == ["environment", "around"]
    assert results[1]["facts"]["begun"] == "began"


@pytest.mark.parametrize("around", [True], indirect=True)
def test_workload_whose_beginning_fails_is_the_one_that_is_named(
    around: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A failed rank is ended for good after a while; this process is not a rank.
    monkeypatch.setattr(Watchdog, "force_exit_after", lambda *_: None)
    with pytest.raises(OSError, match="no counters"):
        run_spec(around.spec)
    last = told(around)[-1]
    assert (last["event"], last["workload"]) == ("error", "around")


# --- telemetry


def sample(t: float, **more: Any) -> dict[str, Any]:
    gpu = {"util": int(t), "reasons": 0x40 if t > 3 else 0, "nvlink_tx": int(t * 1e9)}
    return {"t": t, "gpus": {"GPU-1": gpu}, "nics": {"mlx5_0": [int(t * 2e9), 0]},
            "cpu": [int(10 * t), int(20 * t)], "cost": 0.01 * t} | more  # fmt: skip


def test_summary_has_mean_maximum_rates_and_cost() -> None:
    found = telemetry.summarize([sample(float(t)) for t in (1, 2, 3, 4)])
    gpu = found["gpus"]["GPU-1"]
    assert gpu["util"] == {"mean": 2.5, "max": 4}
    assert (gpu["nvlink_tx_gb_s"], gpu["thermal_percent"]) == (1.0, 25.0)
    assert found["nics"] == {"mlx5_0": {"tx_gb_s": 2.0, "rx_gb_s": 0.0}}
    assert (found["hz"], found["cpu_percent"], found["cost_percent_of_a_core"]) == (1.0, 50.0, 1.0)
    assert telemetry.summarize([sample(1.0)]) == {}


def test_a_sample_that_takes_longer_than_its_period_does_not_end_the_recording(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As a driver answers while processes start on its GPUs."""
    clock, waits, honest = itertools.count(step=2 * telemetry.PERIOD_S), [], select.select

    def wait(*until: Any) -> Any:
        waits.append(until)
        return ([0], [], []) if len(waits) == 3 else honest([], [], [], until[-1])

    monkeypatch.setattr(telemetry.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(telemetry.select, "select", wait)
    monkeypatch.setattr(telemetry.os, "nice", lambda _: 0)
    telemetry.record(tmp_path / "telemetry.jsonl", {})
    assert len((tmp_path / "telemetry.jsonl").read_text().splitlines()) == 3


def test_telemetry_records_until_it_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    recorder = telemetry.start(path)
    assert recorder is not None
    began = time.time()
    assert wait_until(lambda: recorder.summary(began - 1, time.time()), timeout_s=20)
    recorder.stop()
    assert recorder._process.returncode == 0


def test_telemetry_that_is_killed_costs_nothing_but_itself(tmp_path: Path) -> None:
    recorder = telemetry.start(tmp_path / "telemetry.jsonl")
    assert recorder is not None
    os.kill(recorder._process.pid, signal.SIGKILL)
    assert recorder.summary(0, time.time()) == {}
    recorder.stop()


def test_telemetry_with_half_a_line_is_read_without_it(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    lines = [json.dumps(sample(float(t))) for t in (1, 2, 3)]
    path.write_text("\n".join(lines) + '\n{"t": 4')
    assert len(list(telemetry._between(path, 2, 9))) == 2


def test_workload_runs_where_telemetry_cannot_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry.sys, "executable", "/nowhere/python")
    assert telemetry.start(tmp_path / "telemetry.jsonl") is None
