"""What a sample of the telemetry holds, and what is summed up of the samples."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.sandbox.platforms import write_sysfs_file
from fixtures.workloads.devices import devices, nics, nvml_fields
from fixtures.workloads.telemetry import gpu_samples, telemetry
from fixtures.workloads.telemetry.telemetry import Recorder

pytestmark = pytest.mark.cpu


def gpu(**more: Any) -> dict[str, Any]:
    return dict.fromkeys(telemetry.GAUGES) | more


def sample(t: float, gpus: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"t": t, "gpus": gpus, "nics": {}, "cpu": [0, 0], "cost": 0.0, **more}


def test_gauges_counters_and_reasons_of_a_gpu_are_summed_up():
    rows = [
        gpu(util=10, power_w=100.0, nvlink_tx=0, reasons=0x20),
        gpu(util=21, nvlink_tx=None, reasons=0x80 | 0x4), gpu(util=20, nvlink_tx=4 * 10**9),
    ]  # fmt: skip
    assert telemetry._summarize_gpu(rows, 2.0) == {
        "util": {"mean": 17.0, "max": 21}, "power_w": {"mean": 100.0, "max": 100.0},
        "nvlink_tx_gb_s": 2.0, "thermal_percent": 50.0, "brake_percent": 50.0,
        "power_cap_percent": 50.0,
    }  # fmt: skip
    assert telemetry._summarize_gpu([gpu(nvlink_tx=5)], 2.0) == {}


def test_a_summary_is_of_what_the_last_sample_has():
    first = sample(10.0, {"a": gpu(util=1)}, nics={"x": [0, 0]}, cpu=[10, 100], cost=1.0)
    last = sample(
        14.0, {"a": gpu(util=3), "b": gpu(util=5)},
        nics={"x": [4 * 10**9, 8 * 10**9], "y": [1, 1]}, cpu=[20, 150], cost=1.02,
    )  # fmt: skip
    found = telemetry.summarize([first, sample(12.0, {"a": gpu(util=2)}), last])
    assert (found["samples"], found["hz"]) == (3, 0.5)
    assert found["gpus"]["a"]["util"] == {"mean": 2.0, "max": 3}
    assert found["gpus"]["b"]["util"] == {"mean": 5.0, "max": 5}
    assert found["nics"] == {"x": {"tx_gb_s": 1.0, "rx_gb_s": 2.0}}
    assert found["cpu_percent"] == 20.0
    assert found["cost_percent_of_a_core"] == 0.5
    assert found["cost_percent_of_the_node"] == round(0.5 / telemetry.os.cpu_count(), 4)
    assert telemetry.summarize([first, {**first, "t": 11.0}])["cpu_percent"] is None
    assert telemetry.summarize([first]) == {}


def recorder(path: Path, process: Any = None) -> Recorder:
    return Recorder(process, path)


def test_samples_between_two_times_are_read_and_half_a_line_is_not(tmp_path: Path):
    path = telemetry.path_of(tmp_path, "n0")
    assert path == tmp_path / "telemetry-n0.jsonl"
    lines = [json.dumps(sample(float(t), {})) for t in range(5)]
    path.write_text("\n".join(lines) + "\n" + lines[0][:9])
    for start, end, count in ((1, 3, 3), (0.5, 3.5, 3), (0, 9, 5)):
        assert recorder(path).summary(start, end)["telemetry"]["samples"] == count
    assert recorder(path).summary(4, 9) == {}
    assert recorder(tmp_path / "none").summary(0, 9) == {}


def test_a_recording_is_stopped_or_killed_after_two_seconds(tmp_path: Path):
    done: list[Any] = []

    def wait(timeout: float | None = None) -> None:
        done.append(timeout)
        if timeout is not None and hangs:
            raise subprocess.TimeoutExpired("telemetry", timeout)

    process = SimpleNamespace(
        stdin=SimpleNamespace(close=lambda: done.append("close")), wait=wait,
        kill=lambda: done.append("kill"),
    )  # fmt: skip
    for waits, expected in ((False, ["close", 2]), (True, ["close", 2, "kill", None])):
        hangs = waits
        done.clear()
        recorder(tmp_path, process).stop()
        assert done == expected


def test_a_recording_is_started_with_the_order_of_nics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[list[str]] = []
    monkeypatch.setattr(telemetry.subprocess, "Popen", lambda argv, **_: asked.append(argv))
    for order, text in (({"number": 2}, '{"number": 2}'), (None, "{}")):
        assert isinstance(telemetry.start(tmp_path / "a", order), Recorder)
        assert asked[-1][-2:] == [str(tmp_path / "a"), text]

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(telemetry.subprocess, "Popen", fails)
    assert telemetry.start(tmp_path / "a") is None


def test_one_gpu_of_each_sample_is_asked_for_its_pcie_traffic_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rounds = iter([[], [], [0]])
    parents = iter([7] * 9)
    monkeypatch.setattr(telemetry.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(telemetry.os, "nice", lambda _: 0)
    monkeypatch.setattr(telemetry.select, "select", lambda *_: [next(rounds)])
    monkeypatch.setattr(telemetry, "_gpu", lambda *_: {"util": 1})
    monkeypatch.setattr(telemetry, "_pcie", lambda _, handle: {"pcie": handle})
    monkeypatch.setattr(devices, "open_handles", lambda: ["a", "b"])
    monkeypatch.setattr(devices, "query_nvml", lambda _, handle: f"GPU-{handle}")
    monkeypatch.setattr(nics, "of_node", lambda *_: SimpleNamespace(ports=lambda _: {}))
    path = tmp_path / "telemetry"
    telemetry.record(path, {})
    samples = [json.loads(line) for line in path.read_text().splitlines()]
    assert [[*s["gpus"].values()] for s in samples] == [
        [{"util": 1, "pcie": "a"}, {"util": 1}], [{"util": 1}, {"util": 1, "pcie": "b"}],
        [{"util": 1, "pcie": "a"}, {"util": 1}],
    ]  # fmt: skip
    parents = iter([7, 7, 1])
    rounds = iter([[]] * 9)
    telemetry.record(tmp_path / "orphan", {})
    assert len((tmp_path / "orphan").read_text().splitlines()) == 1
    assert telemetry.PERIOD_S == 0.2, "five samples per second"


class Library:
    NVMLError = OSError
    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0


def test_a_sample_of_a_gpu_has_what_the_driver_answers(monkeypatch: pytest.MonkeyPatch):
    answers: dict[tuple[Any, ...], Any] = {
        ("nvmlDeviceGetUtilizationRates", "h"): SimpleNamespace(gpu=0),
        ("nvmlDeviceGetPowerUsage", "h"): 0, ("nvmlDeviceGetClockInfo", "h", 1): 1980,
        ("nvmlDeviceGetTemperature", "h", 0): 40,
        ("nvmlDeviceGetMemoryInfo", "h", None): SimpleNamespace(used=3 << 20),
        ("nvmlDeviceGetPcieThroughput", "h", 0): 10**6, ("nvmlDeviceGetPcieThroughput", "h", 1): 0,
    }  # fmt: skip
    driver: Any = SimpleNamespace(
        nvml=lambda: Library, query_nvml=lambda *asked: answers.get(asked)
    )
    error = ""
    monkeypatch.setattr(gpu_samples, "ask", lambda *_: SimpleNamespace(us=20.0, error=error))
    monkeypatch.setattr(nvml_fields, "clock_reasons", lambda *_: 4)
    monkeypatch.setattr(
        nvml_fields, "read_field", lambda _, __, field, links: 2 if links == 2**32 - 1 else 0
    )
    assert telemetry._gpu(driver, "h") == {
        "util": 0, "sm_mhz": 1980, "power_w": 0, "temp_c": 40, "mem_mib": 3, "reasons": 4,
        "answer_us": 20.0, "nvlink_tx": 2048, "nvlink_rx": 2048,
    }  # fmt: skip
    assert telemetry._pcie(driver, "h") == {"pcie_tx_gb_s": 1.024, "pcie_rx_gb_s": 0}
    answers.clear()
    error = "GpuIsLost"

    def refused(*_: Any) -> int:
        raise nvml_fields.NotOffered("why")

    monkeypatch.setattr(nvml_fields, "clock_reasons", refused)
    monkeypatch.setattr(nvml_fields, "read_field", refused)
    assert telemetry._gpu(driver, "h") == {
        "util": None, "sm_mhz": None, "power_w": None, "temp_c": None, "mem_mib": None,
        "reasons": None, "answer_us": 20.0, "error": "GpuIsLost",
    }  # fmt: skip
    assert telemetry._pcie(driver, "h") == {}


def test_traffic_is_counted_in_words_or_by_efa_in_bytes(tmp_path: Path):
    assert telemetry.traffic(tmp_path) == [0, 0]
    write_sysfs_file(tmp_path / "hw_counters/tx_bytes", "7")
    write_sysfs_file(tmp_path / "counters/port_rcv_data", "10")
    assert telemetry.traffic(tmp_path) == [7, 40]
    write_sysfs_file(tmp_path / "counters/port_xmit_data", "5")
    assert telemetry.traffic(tmp_path) == [20, 40]


def test_ticks_without_those_of_waiting_are_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "stat").write_text("cpu  1 2 3 40 50 6 7 8 900 900\ncpu0 1\n")
    monkeypatch.setattr(telemetry, "Path", lambda _: tmp_path / "stat")
    assert telemetry._cpu() == [27, 117]
