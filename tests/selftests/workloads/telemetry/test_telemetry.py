"""What the hardware workloads read, how it is judged, and that telemetry never costs a workload."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.model import Measurement, Record
from fixtures.sandbox import Sandbox, emulation
from fixtures.sandbox.processes import wait_until
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Outcome, Verdict
from fixtures.workloads.telemetry import telemetry
from tests.selftests import support

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


# --- the sandbox


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
