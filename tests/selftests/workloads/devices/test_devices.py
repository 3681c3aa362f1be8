"""Which GPU a rank has and what it says of itself, on a made-up NVML."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fixtures.gpu_parts import MIG_INSTANCE, VGPU
from fixtures.workloads.devices import devices
from tests.selftests.workloads.health import made_up_nvml

pytestmark = pytest.mark.cpu


class Driver(made_up_nvml.Driver):
    """As much of pynvml as devices.py asks."""

    NVML_ERROR_NO_PERMISSION = 4
    NVML_NVLINK_MAX_LINKS = 3
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2


def install(monkeypatch: pytest.MonkeyPatch, driver: Driver | None) -> None:
    monkeypatch.setattr(devices, "nvml", lambda: driver)


def by_index(*errors: int) -> dict[str, Any]:
    """GPUs by their index; those with an error do not open."""

    def handle(k: int) -> str:
        if errors[k]:
            raise Driver.NVMLError(errors[k])
        return f"gpu{k}"

    return {"nvmlDeviceGetCount": len(errors), "nvmlDeviceGetHandleByIndex": handle}


def bus(address: bytes | str) -> SimpleNamespace:
    return SimpleNamespace(busId=address)


def test_nvml_is_there_where_the_package_is_and_the_driver_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unpatched = devices.nvml.__wrapped__
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    assert unpatched() is None
    package = ModuleType("pynvml")
    package.NVMLError = Driver.NVMLError  # type: ignore[attr-defined]
    package.nvmlInit = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", package)
    assert unpatched() is package

    def fails() -> None:
        raise Driver.NVMLError(9)

    package.nvmlInit = fails  # type: ignore[attr-defined]
    assert unpatched() is None


def test_a_query_that_is_refused_or_unknown_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(nvmlA=b"text", nvmlB=7, nvmlC=Driver.NVMLError(3), nvmlD=TypeError())
    install(monkeypatch, driver)
    asked = {name: devices.query_nvml(f"nvml{name}") for name in "ABCDE"}
    assert asked == {"A": "text", "B": 7, "C": None, "D": None, "E": None}


def test_only_gpus_that_open_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None)
    assert devices.open_handles() == []
    install(monkeypatch, Driver(nvmlDeviceGetCount=Driver.NVMLError(1)))
    assert devices.open_handles() == []
    addresses = {"gpu0": bus(b"00000000:0A:00.0"), "gpu2": bus("00000000:0C:00.0"), "gpu3": None}
    install(monkeypatch, Driver(**by_index(0, 4, 0, 0), nvmlDeviceGetPciInfo=addresses.get))
    assert devices.open_handles() == ["gpu0", "gpu2", "gpu3"]
    assert devices.gpu_addresses() == ["00000000:0A:00.0", "00000000:0C:00.0"]


def test_visible_devices_are_those_of_cuda_before_slurm_s(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE")
    for given, found in (
        (("2,GPU-a,", "5", "8"), ["2", "GPU-a"]), (("", "5,6", "8"), ["5", "6"]),
        (("", "", "gpu:3"), ["0", "1", "2"]), (("", "", "2"), ["0", "1"]), (("", "", "x"), []),
        (("", "", ""), []),
    ):  # fmt: skip
        for name, text in zip(names, given, strict=True):
            monkeypatch.setenv(name, text)
        assert devices.visible_devices() == found, given


FACTS = {
    "nvmlDeviceGetPciInfo": bus(b"00000000:0A:00.0"),
    "nvmlDeviceGetPowerManagementLimit": 700_000,
    "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
    "nvmlDeviceGetCudaComputeCapability": (9, 0),
    "nvmlDeviceGetMemoryInfo": lambda *_: SimpleNamespace(total=1000, reserved=100),
    "nvmlDeviceGetNvLinkState": lambda _, k: (1, 0, 1)[k],
    "nvmlDeviceGetName": b"NVIDIA H200", "nvmlDeviceGetUUID": "GPU-1",
    "nvmlDeviceGetMaxClockInfo": lambda _, kind: {1: 1980, 2: 3201}[kind],
    "nvmlDeviceGetMemoryBusWidth": 6144, "nvmlDeviceGetVbiosVersion": "96.00",
}  # fmt: skip


def test_facts_of_a_gpu_are_what_nvml_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver(**FACTS))
    assert devices.nvml_facts("gpu0") == {
        "name": "NVIDIA H200", "model": "NVIDIA H200", "uuid": "GPU-1", "pci": "00000000:0A:00.0",
        "compute_capability": 9.0, "max_sm_clock_mhz": 1980, "memory_clock_mhz": 3201,
        "memory_bus_bits": 6144, "memory_bytes": 1000, "memory_usable_bytes": 900,
        "power_limit_w": 700, "power_default_w": 700, "power_limit": "default", "nvlinks": 2,
        "vbios": "96.00",
    }  # fmt: skip
    install(monkeypatch, Driver())
    assert devices.nvml_facts("gpu0") == {"nvlinks": 0}


def test_a_power_limit_more_than_a_percent_below_the_default_is_lowered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "nvmlDeviceGetPowerManagement"
    for limit, default, found in (
        (692_999, 700_000, "lowered"), (693_000, 700_000, "default"), (800_000, 700_000, "default"),
        (0, 700_000, None), (700_000, 0, None),
    ):  # fmt: skip
        answers = {f"{name}Limit": limit, f"{name}DefaultLimit": default}
        install(monkeypatch, Driver(**answers))
        assert devices.nvml_facts("gpu0").get("power_limit") == found, limit


def test_a_fabric_over_several_nodes_has_a_cluster_and_a_clique(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver()
    answers: list[Any] = []
    monkeypatch.setattr(devices.nvml_fields, "fabric", lambda *_: answers.pop()())
    for state, cluster, found in (
        (3, "ab00", "ab00/7"), (2, "ab00", None), (3, "0000", None),
    ):  # fmt: skip
        info = SimpleNamespace(state=state, cluster=cluster, clique=7)
        answers.append(lambda info=info: info)
        assert devices._fabric(driver, "gpu0") == found

    def refused() -> None:
        raise Driver.NVMLError(3)

    answers.append(refused)
    assert devices._fabric(driver, "gpu0") is None


def test_a_lost_gpu_keeps_its_index_and_a_forbidden_one_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    install(monkeypatch, Driver(**by_index(4, 0, 15, 0)))
    assert devices.gpu_handle(0) == ("gpu1", "")
    assert devices.gpu_handle(1) == (None, "NVMLError")
    assert devices.gpu_handle(2) == ("gpu3", "")
    assert devices.gpu_handle(3) == (None, "GPU 3 is missing")


def test_the_gpu_of_a_rank_is_chosen_by_index_or_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0,9,GPU-x")
    install(monkeypatch, Driver(**by_index(0, 0, 0), nvmlDeviceGetHandleByUUID=lambda u: f"<{u}>"))
    found = [devices.gpu_handle(k) for k in range(4)]
    # 9 is the number on the host, and three are seen: numbered anew, it is the rank's own.
    assert found == [("gpu2", ""), ("gpu0", ""), ("gpu2", ""), ("<GPU-x>", "")]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert devices.gpu_handle(0) == ("gpu0", "")
    install(monkeypatch, None)
    assert devices.gpu_handle(0) == (None, "no NVML")
    install(monkeypatch, Driver(nvmlDeviceGetCount=Driver.NVMLError(1)))
    assert devices.gpu_handle(0) == (None, "NVMLError")


def test_first_facts_of_a_record_say_whether_the_driver_is_emulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    install(monkeypatch, None)
    assert not devices.emulated()
    with pytest.raises(RuntimeError, match="n0: no NVML"):
        devices.gpu_handle_and_facts("n0", 0)
    for version, emulated in (("580.1-emulated", True), ("580.1", False)):
        driver = Driver(**by_index(0), **FACTS, nvmlSystemGetDriverVersion=version)
        install(monkeypatch, driver)
        assert devices.emulated() is emulated
        library, handle, reason, facts = devices.gpu_handle_and_facts("n0", 0)
        assert (library, handle, reason) == (driver, "gpu0", "")
        assert facts.get("emulated", False) is emulated
        assert (facts["own"]["index"], facts["own"]["uuid"]) == (0, "GPU-1")


def test_a_gpu_that_is_missing_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    install(monkeypatch, Driver(**by_index()))
    found = devices.nvml_facts_of_rank(0)
    assert found == {"index": 0, "name": "unknown", "model": "unknown", "uuid": "", "pci": ""}
    assert devices.pci_of_rank(0) == ""
    for address in (b"00000000:0A:00.0", "00000000:0A:00.0"):
        install(monkeypatch, Driver(**by_index(0), nvmlDeviceGetPciInfo=bus(address)))
        assert devices.pci_of_rank(0) == "00000000:0A:00.0"


def test_a_part_of_a_gpu_is_named_as_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,MIG-1,2")
    modes = {"gpu0": 0, "gpu1": 0, "gpu2": devices.VGPU_MODE}
    install(monkeypatch, Driver(**by_index(0, 0, 0), nvmlDeviceGetVirtualizationMode=modes.get))
    assert devices.VGPU_MODE == 2, "nvml.h: NVML_GPU_VIRTUALIZATION_MODE_VGPU"
    assert devices.named_whole(0, "NVIDIA H200") == ("NVIDIA H200", "")
    assert devices.named_whole(1, "NVIDIA H200") == (f"NVIDIA H200 ({MIG_INSTANCE})", MIG_INSTANCE)
    assert devices.named_whole(2, "NVIDIA H200") == (f"NVIDIA H200 ({VGPU})", VGPU)
    assert devices.named_whole(3, "NVIDIA H200") == ("NVIDIA H200", "")
    already = "NVIDIA H200 MIG 1g.18gb"
    assert devices.named_whole(0, already) == (already, MIG_INSTANCE)
    monkeypatch.setattr(devices, "gpu_handle", lambda _: (None, "GpuIsLost"))
    assert devices.named_whole(2, "NVIDIA H200") == ("NVIDIA H200", "")


def properties(uuid: str) -> SimpleNamespace:
    return SimpleNamespace(
        name="NVIDIA H200", uuid=uuid, multi_processor_count=132, major=9, minor=5,
        total_memory=5000,
    )  # fmt: skip


def test_torch_s_facts_of_a_gpu_are_joined_with_nvml_s(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    device = torch.device("cuda", 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    given = {"uuid": "abc"}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties(given["uuid"]))
    install(monkeypatch, None)
    for uuid, found in (("abc", "GPU-abc"), ("GPU-abc", "GPU-abc"), ("MIG-abc", "MIG-abc")):
        given["uuid"] = uuid
        assert devices.gpu_facts(device) == {
            "index": 1, "name": "NVIDIA H200", "model": "NVIDIA H200", "uuid": found,
            "sm_count": 132, "compute_capability": 9.5, "memory_bytes": 5000,
        }, uuid  # fmt: skip
    handles = {"GPU-abc": "gpu1"}
    given["uuid"] = "abc"
    install(monkeypatch, Driver(**FACTS, nvmlDeviceGetHandleByUUID=handles.get))
    joined = devices.gpu_facts(device)
    assert (joined["sm_count"], joined["memory_bus_bits"]) == (132, 6144)


def cpu(monkeypatch: pytest.MonkeyPatch, info: str, most_khz: str | None) -> dict[str, Any]:
    def read(path: Path, **_: Any) -> str:
        if path.name == "cpuinfo":
            return info
        if most_khz is None:
            raise FileNotFoundError(path)
        return most_khz

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", read)
        return devices.cpu_facts(1, "n0")


def test_the_cpu_in_place_of_a_gpu_is_that_of_proc_cpuinfo(monkeypatch: pytest.MonkeyPatch) -> None:
    info = (
        "model name\t: Xeon 1\nflags\t\t: sse avx2 amx_bf16 x\ncpu MHz\t\t: 2000.5\n"
        "cpu MHz\t\t: 2500.0\n"
    )
    install(monkeypatch, None)
    found = cpu(monkeypatch, info, "3500000\n")
    assert (found["index"], found["name"], found["uuid"], found["pci"]) == (1, "cpu", "n0-cpu1", "")
    assert (found["cpu_name"], found["cpu_max_ghz"]) == ("Xeon 1", 3.5)
    assert found["cpu_flags"] == ["amx_bf16", "avx2"]
    assert cpu(monkeypatch, info, None)["cpu_max_ghz"] == 2.5
    bare = cpu(monkeypatch, "", None)
    assert (bare["cpu_name"], bare["cpu_max_ghz"], bare["cpu_flags"]) == (
        devices.platform.machine(), 0, [],
    )  # fmt: skip
    assert devices.cpu_flags("Features\t: sve fp bf16") == ["bf16", "sve"]
    monkeypatch.setattr(devices, "emulated", lambda: True)
    monkeypatch.setattr(devices, "nvml_facts_of_rank", lambda k: {"uuid": "GPU-e", "pci": "0:1"})
    found = cpu(monkeypatch, info, None)
    assert (found["uuid"], found["pci"]) == ("GPU-e", "0:1")


def test_provenance_has_torch_s_versions_once_it_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, Driver(nvmlSystemGetDriverVersion=b"580.1"))
    monkeypatch.setattr(devices.metadata, "version", lambda _: "2.9.0")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    python = devices.platform.python_version()
    assert devices.provenance() == {"python": python, "torch": "2.9.0", "driver": "580.1"}
    cuda = SimpleNamespace(nccl=SimpleNamespace(version=lambda: (2, 27, 3)))
    for version, more in (("12.9", {"cuda": "12.9", "nccl": "2.27.3"}), (None, {})):
        torch = SimpleNamespace(
            __version__="2.9.1", version=SimpleNamespace(cuda=version), cuda=cuda
        )
        monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]
        install(monkeypatch, None)
        assert devices.provenance() == {"python": python, "torch": "2.9.1", **more}

    def none(_: str) -> str:
        raise devices.metadata.PackageNotFoundError

    monkeypatch.setattr(devices.metadata, "version", none)
    monkeypatch.delitem(sys.modules, "torch")
    assert devices.provenance() == {"python": python}


def test_a_pcie_link_shows_what_the_driver_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None)
    assert devices.pcie_link("GPU-1") == {}
    install(monkeypatch, Driver())
    assert devices.pcie_link("GPU-1") == {}
    answers = {
        "nvmlDeviceGetHandleByUUID": lambda u: f"<{u}>", "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetMaxPcieLinkWidth": lambda h: 16 if h == "<GPU-1>" else 1,
        "nvmlDeviceGetCurrPcieLinkGeneration": 4, "nvmlDeviceGetCurrPcieLinkWidth": 0,
    }  # fmt: skip
    install(monkeypatch, Driver(**answers))
    assert devices.pcie_link("GPU-1") == {"max_gen": 5, "max_width": 16, "gen": 4}
