"""The driver's state of a GPU under the load that a job ends with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fixtures.records.absence import Kind
from fixtures.workloads.devices import devices
from fixtures.workloads.devices.known import Missing
from fixtures.workloads.health import final_load
from tests.selftests.workloads.health.made_up_nvml import Driver, NVMLError, NVMLError_NotSupported

pytestmark = pytest.mark.cpu

ANSWERS: dict[str, Any] = {
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": 5, "nvmlDeviceGetCurrPcieLinkGeneration": 5,
    "nvmlDeviceGetCurrPcieLinkWidth": 16, "nvmlDeviceGetMarginTemperature": 30,
    "nvmlDeviceGetTemperature": lambda _, kind: {0: 61}[kind],
}  # fmt: skip


def load(**answers: Any) -> final_load.Load:
    found = final_load.Load({})  # type: ignore[arg-type]
    final_load._read_states(found, Driver(**{**ANSWERS, **answers}), "gpu")
    return found


def test_link_and_temperature_are_read():
    found = load()
    assert found.states == {
        "pcie_generation": (5, ""), "pcie_width": (16, ""), "thermal_headroom": (30, "61 C"),
    }  # fmt: skip
    assert (found.temperature, found.silent) == (61, {})
    generation, note = load(nvmlDeviceGetCurrPcieLinkGeneration=4).states["pcie_generation"]
    assert (generation, note) == (4, "generation 4, the GPU is able to do 5")


def test_without_a_margin_the_headroom_is_the_distance_to_the_slowdown():
    threshold = {"nvmlDeviceGetTemperatureThreshold": lambda _, kind: {1: 90}[kind]}
    refused = load(nvmlDeviceGetMarginTemperature=NVMLError(), **threshold)
    assert refused.states["thermal_headroom"] == (29, "61 C")
    assert load(nvmlDeviceGetMarginTemperature=-3).states["thermal_headroom"] == (0, "61 C")


def test_what_the_driver_refuses_has_its_reason():
    found = load(
        nvmlDeviceGetCurrPcieLinkWidth=NVMLError_NotSupported(),
        nvmlDeviceGetTemperature=NVMLError_NotSupported(),
    )
    gap = Missing("NotSupported", Kind.NOT_THERE)
    assert found.silent == {"pcie_width": gap, "thermal_headroom": gap}
    assert found.temperature == gap


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A driver that is sampled without being asked; how long was paused."""
    paused: list[float] = []
    monkeypatch.setattr(final_load.time, "sleep", paused.append)
    monkeypatch.setattr(final_load, "take", lambda *_: "sample")
    monkeypatch.setattr(final_load.gpu_counters, "read", lambda *_: {"clock": 1})
    return paused


def test_without_a_gpu_twenty_samples_are_taken(
    driver: list[float], monkeypatch: pytest.MonkeyPatch
):
    for on_gpu, emulated in ((False, False), (True, True)):
        driver.clear()
        monkeypatch.setattr(devices, "emulated", lambda emulated=emulated: emulated)
        ranks: Any = SimpleNamespace(on_gpu=on_gpu)
        found = final_load.run(ranks, Driver(**ANSWERS), "gpu")
        assert (found.before, found.samples) == ({"clock": 1}, ["sample"] * 20)
        assert driver == [0.0025] * 20
        assert found.states["pcie_width"] == (16, "")


def test_a_gpu_is_sampled_while_products_are_queued_for_two_seconds(
    driver: list[float], monkeypatch: pytest.MonkeyPatch
):
    now, products, edges = [10.0], [0], []

    class Event:
        """Done after the third question."""

        def __init__(self) -> None:
            self.asked = 0

        def record(self) -> None:
            now[0] += 0.5

        def query(self) -> bool:
            self.asked += 1
            return self.asked > 3

    def product(*_: Any, out: Any) -> None:
        products[0] += 1

    def matrix(*shape: int, **_: Any) -> Any:
        edges.append(shape)
        return torch.zeros(1)

    monkeypatch.setattr(devices, "emulated", lambda: False)
    monkeypatch.setattr(final_load.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(torch, "randn", matrix)
    monkeypatch.setattr(torch, "mm", product)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    ranks: Any = SimpleNamespace(on_gpu=True, device="cpu")
    found = final_load.run(ranks, Driver(**ANSWERS), "gpu")
    assert products == [4 * 40], "40 products in each of four half seconds"
    assert found.samples == ["sample"] * 12
    assert driver == [0.005] * 12
    assert edges == [(8192, 8192)]
    assert found.temperature == 61
