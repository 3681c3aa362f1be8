"""Facts that should be the same on every node, and their text."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.sandbox import emulation, platforms
from fixtures.sandbox.platforms import write_sysfs_file
from fixtures.workloads.devices import devices, nics
from fixtures.workloads.inventory import drift, environment

pytestmark = pytest.mark.cpu


def test_firmware_is_compared_over_all_nics_of_a_kind(tmp_path: Path) -> None:
    emulation.make_hardware(platforms.find(""), tmp_path / "sys" / "class")
    expected = list(platforms.find("").ordered_nics)
    found = drift.firmware(tmp_path, expected)
    assert [m.at["part"] for m in found] == expected
    assert {m.at["fact"] for m in found} == {"firmware of MT4129 EMULATED0001"}
    (tmp_path / nics.NICS / expected[0] / "fw_ver").unlink()
    assert [m.at["part"] for m in drift.firmware(tmp_path, expected)] == expected[1:]


def test_every_fact_has_a_text_on_every_node():
    bare = drift.facts_of({})
    assert {bare[name] for name in drift.PLAIN} == {"unknown"}
    assert [bare[n] for n in ("GPU model", "VBIOS", "GPU topology", "NIC kinds")] == [
        "none", "none", "[]", "none",
    ]  # fmt: skip
    assert bare["run directory"].strip() == ""
    full = drift.facts_of(
        {
            "cpus": 8, "gpus": [{"name": "B", "nvlinks": 0}, {"name": "A"}, {"name": "B"}],
            "topology": [["self"]], "run_directory": {"source": "nfs:/x", "type": "nfs4"},
            "nics": [{"hca_type": "MT1", "board_id": "b"}, {"hca_type": "MT0"}],
        }
    )  # fmt: skip
    assert (full["cpus"], full["GPU model"], full["VBIOS"]) == ("8", "A, B", "none")
    assert (full["GPU topology"], full["NIC kinds"]) == ('[["self"]]', "MT0 , MT1 b")
    assert full["run directory"] == "nfs:/x nfs4 "
    assert drift.facts_of({"gpus": [{"nvlinks": 18}]})["GPU topology"] == "NVLink"


def test_the_first_rank_reports_facts_memory_and_firmware(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for path, text in {
        "sys/class/dmi/id/bios_version": "1.4",
        "sys/devices/system/node/node0/meminfo": f"Node 0 MemTotal:  {64 << 20} kB",
        "sys/devices/system/node/node0/cpulist": "0-7",
        "sys/class/infiniband/mlx5_0/fw_ver": "28.1",
        "sys/class/infiniband/mlx5_0/hca_type": "MT4129",
        "sys/bus/pci/devices/0000:01:00.0/class": "0x010802",
    }.items():
        write_sysfs_file(tmp_path / path, text)
    monkeypatch.setattr(environment, "facts", lambda _: {"kernel": "6.1"})
    monkeypatch.setattr(devices, "nvml", lambda: None)
    ranks = SimpleNamespace(leads_node=True, spec={}, node="n0", begin_notes={}, local_rank=0)

    def run(*metrics: str) -> Any:
        return drift.run(ranks, list(metrics), root=str(tmp_path))  # type: ignore[arg-type]

    found = run("fact", "numa_memory", "firmware")
    facts = {m.at["fact"]: m.value for m in found.measurements if m.metric == "fact"}
    assert facts == found.facts["facts"]
    assert (facts["kernel"], facts["BIOS"], facts["NVMe drives"]) == ("6.1", "1.4", "1")
    assert (facts["BMC"], facts["microcode"], facts["board"]) == ("not shown",) * 3
    assert facts["errors counted"]
    others = [(m.metric, m.value, dict(m.at)) for m in found.measurements if m.metric != "fact"]
    assert others == [
        ("numa_memory", 64 << 10, {"fact": "memory of NUMA node0"}),
        ("firmware", "28.1", {"fact": "firmware of MT4129", "part": "mlx5_0"}),
    ]
    assert "emulated" not in found.facts
    assert run().measurements == []
    monkeypatch.setattr(devices, "emulated", lambda: True)
    write_sysfs_file(tmp_path / "sys/devices/platform/ipmi_bmc.0/firmware_revision", "7.1")
    write_sysfs_file(tmp_path / "proc/cpuinfo", "microcode\t: 0x2b")
    found = run("fact")
    assert found.facts["emulated"] is True
    assert (found.facts["facts"]["BMC"], found.facts["facts"]["microcode"]) == ("7.1", "0x2b")
    ranks.leads_node = False
    assert run("fact").measurements == []
