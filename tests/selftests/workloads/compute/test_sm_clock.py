"""The SM clock while a block runs."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.workloads.compute import sm_clock

pytestmark = pytest.mark.cpu


class FakeNvml:
    NVML_CLOCK_SM = 1


def test_the_clock_is_sampled_while_the_block_runs_and_by_its_time(monkeypatch):
    asked = threading.Semaphore(0)

    def ask(call: str, *arguments: Any) -> Any:
        if call == "nvmlDeviceGetHandleByUUID":
            return "handle"
        asked.release()
        return 1455

    monkeypatch.setattr(sm_clock.devices, "nvml", FakeNvml)
    monkeypatch.setattr(sm_clock.devices, "query_nvml", ask)
    with sm_clock.ClockSampler("GPU-0") as found:
        for _ in range(3):
            assert asked.acquire(timeout=30)
    assert set(found.between(0, 1e12)) == {1455.0}
    assert found.between(0, 1) == [], "of another window"
    assert not [t for t in threading.enumerate() if t.name == "clocks"]


def test_without_nvml_or_on_a_cpu_there_is_no_clock(monkeypatch):
    monkeypatch.setattr(sm_clock.devices, "nvml", lambda: None)
    with sm_clock.ClockSampler("GPU-0") as found:
        pass
    assert found.between(0, 1e12) == []
    monkeypatch.setattr(sm_clock.devices, "nvml", FakeNvml)
    with sm_clock.ClockSampler(None) as found:
        pass
    assert found.between(0, 1e12) == []


def test_twenty_samples_a_second_are_taken_and_ends_belong_to_a_window(monkeypatch):
    sampler = sm_clock.ClockSampler(None)
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) > 4

    clocks = iter([1000, None, 1500, 2000])
    times = iter([10.0, 20.0, 30.0])
    monkeypatch.setattr(sm_clock.devices, "nvml", FakeNvml)
    monkeypatch.setattr(sm_clock.devices, "query_nvml", lambda *given: next(clocks))
    monkeypatch.setattr(sm_clock.time, "time", lambda: next(times))
    monkeypatch.setattr(sampler, "_stopped", SimpleNamespace(wait=wait))
    sampler._sample()
    assert set(waits) == {0.05}
    assert sampler.between(0, 99) == [1000.0, 1500.0, 2000.0]
    assert sampler.between(10, 20) == [1000.0, 1500.0]
    assert sampler.between(10.1, 19.9) == []
