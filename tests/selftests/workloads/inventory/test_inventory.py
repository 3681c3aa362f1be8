"""What of the contract is there on a node, on a made-up driver."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.gpu_parts import PARTS_OF_GPUS, VGPU
from fixtures.workloads.devices import devices, gpu_visibility, nics
from fixtures.workloads.inventory import inventory

pytestmark = pytest.mark.cpu

ALL = list(inventory.WORKLOAD.metrics)


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the node shows; a test changes it."""
    shown: dict[str, Any] = {
        "nvml": object(), "emulated": False, "part": "",
        "nics": nics.Nics(counted=("a",), left_out={}),
        "own": {"model": "H200", "uuid": "GPU-1", "memory_bytes": 4 << 30,
                "memory_usable_bytes": 3 << 30},
    }  # fmt: skip
    monkeypatch.setattr(devices, "nvml", lambda: shown["nvml"])
    monkeypatch.setattr(devices, "emulated", lambda: shown["emulated"])
    monkeypatch.setattr(devices, "nvml_facts_of_rank", lambda _: shown["own"])
    monkeypatch.setattr(devices, "nvml_facts", lambda handle: {"uuid": handle})
    monkeypatch.setattr(devices, "open_handles", lambda: ["g0", "g1"])
    monkeypatch.setattr(devices, "visible_devices", lambda: ["0", "1", "2"])
    monkeypatch.setattr(devices, "named_whole", lambda _, name: (name, shown["part"]))
    monkeypatch.setattr(nics, "of_node", lambda *_: shown["nics"])
    return shown


def run(*, leads: bool = True, on_gpu: bool = True, metrics: list[str] = ALL) -> Any:
    ranks = SimpleNamespace(
        on_gpu=on_gpu, node="n0", local_rank=0, leads_node=leads, spec={},
        identity_facts=lambda: {"model": "cpu"},
    )  # fmt: skip
    return inventory.run(ranks, metrics, root=str(Path("/nowhere")))  # type: ignore[arg-type]


def test_gpus_model_memory_and_nics_are_measured(node: dict[str, Any]):
    found = run()
    assert [(m.metric, m.value, m.samples, m.notes) for m in found.measurements] == [
        ("gpus", 2, [], []), ("gpu_model", "H200", [], []), ("gpu_memory", None, [3.0], []),
        ("nics", 1, [], []),
    ]  # fmt: skip
    assert found.facts == {
        "gpus_from": "NVML", "own": node["own"], "gpus": [{"uuid": "g0"}, {"uuid": "g1"}],
        "visible": ["0", "1", "2"], "nics": ["a"],
    }  # fmt: skip
    assert [m.metric for m in run(metrics=["nics", "other"]).measurements] == ["nics"]
    assert [m.metric for m in run(leads=False).measurements] == ["gpu_model", "gpu_memory"]


def test_a_part_of_a_gpu_and_its_whole_memory_are_told(node: dict[str, Any]):
    node["part"] = VGPU
    del node["own"]["memory_usable_bytes"]
    node["emulated"] = True
    found = run()
    assert found.measurements[1].notes == [f"GPU-1 is {PARTS_OF_GPUS[VGPU]}"]
    assert found.measurements[2].samples == [4.0]
    assert found.facts["emulated"] is True
    node["nics"] = nics.Nics(counted=(), left_out={"b": "why"}, missing=("c",))
    facts = run().facts
    assert (facts["nics_left_out"], facts["nics_missing"]) == ({"b": "why"}, ["c"])


def test_without_nvml_the_devices_of_slurm_count_and_gpus_are_an_error(node: dict[str, Any]):
    node["nvml"] = None
    with pytest.raises(RuntimeError, match="n0: GPUs but no NVML"):
        run()
    found = run(on_gpu=False)
    assert {m.metric: m.value for m in found.measurements} == {
        "gpus": 3, "gpu_model": "cpu", "nics": 1,
    }  # fmt: skip
    assert (found.facts["gpus_from"], found.facts["emulated"]) == ("Slurm", True)


def test_where_slurm_names_no_device_those_that_open_count(
    node: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """A site without GPUs in Gres, or with select/linear."""
    node["nvml"] = None
    access = [{"device": f"1:{k}", "in": k > 0} for k in range(3)]
    monkeypatch.setattr(devices, "visible_devices", list)
    monkeypatch.setattr(gpu_visibility, "gpu_files", lambda: (["a", "b", "c"], True))
    monkeypatch.setattr(gpu_visibility, "gpu_access", lambda paths: access[: len(paths)])
    assert {m.metric: m.value for m in run(on_gpu=False).measurements}["gpus"] == 2
