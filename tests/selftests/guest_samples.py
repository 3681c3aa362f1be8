"""Results of other tools in the forms that they are documented in, made up for a node."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def dcgm3(fail: str = "", *, gpus: int = 2) -> str:
    """`dcgmi diag -r 2 -j` of DCGM 3.3; `fail`: the test that fails on GPU 1."""

    def test(name: str, by_gpu: bool) -> dict[str, Any]:
        if not by_gpu:
            status = "Fail" if name == fail else "Pass"
            ids = ",".join(map(str, range(gpus)))
            return {"name": name, "results": [{"gpu_ids": ids, "status": status}]}
        results = []
        for k in range(gpus):
            bad = name == fail and k == 1
            result: dict[str, Any] = {"gpu_id": str(k), "status": "Fail" if bad else "Pass"}
            if bad:
                result["warnings"] = [f"GPU {k} is not well"]
            results.append(result)
        return {"name": name, "results": results}

    return json.dumps({
        "DCGM GPU Diagnostic": {
            "test_categories": [
                {"category": "Deployment", "tests": [test("Denylist", False), None]},
                {"category": "Integration", "tests": [test("PCIe", True)]},
                {"category": "Hardware", "tests": [test("GPU Memory", True), None]},
            ],
            "version": "3.3.8", "Driver Version Detected": "550.127.05",
            "GPU Device IDs Detected": ["2330", "2330"],
        }
    }, indent=1)  # fmt: skip


def dcgm4(
    fail: str = "", *, gpus: int = 2, skip: Sequence[str] = (), serials: Sequence[str] = (),
    host: str = "",
) -> str:  # fmt: skip
    """`dcgmi diag -r 3 -j` of DCGM 4.5; `fail`: the test that fails on GPU 1."""

    def test(name: str) -> dict[str, Any]:
        results = []
        for k in range(gpus):
            bad = name == fail and k == 1
            status = "Skip" if name in skip else "Fail" if bad else "Pass"
            entry: dict[str, Any] = {
                "entity_group": "GPU", "entity_group_id": 1, "entity_id": k, "status": status,
            }  # fmt: skip
            if bad:
                entry["warnings"] = [{
                    "warning": f"GPU {k} is not well", "error_id": 38, "error_category": 7,
                    "error_severity": 2,
                }]  # fmt: skip
            results.append(entry)
        whole = "Skip" if name in skip else "Fail" if name == fail else "Pass"
        return {"name": name, "results": results, "test_summary": {"status": whole}}

    categories = {
        "Deployment": ["software"], "Hardware": ["memory", "diagnostic"], "Integration": ["pcie"],
        "Stress": ["targeted_stress", "targeted_power"],
    }  # fmt: skip
    return json.dumps({
        "DCGM Diagnostic": {
            "test_categories": [
                {"category": name, "tests": [test(t) for t in tests]}
                for name, tests in categories.items()
            ]
        },
        "entity_groups": [{
            "entity_group": "GPU", "entity_group_id": 1,
            "entities": [
                {"entity_id": k, "device_id": "2330"}
                | ({"serial_num": serials[k]} if serials else {})
                for k in range(gpus)
            ],
        }],
        "metadata": {
            "version": "4.5.3", "Driver Version Detected": "580.126.09",
            **({"Hostname": host} if host else {}),
        },
    }, indent=1)  # fmt: skip


def fio(error: int = 0, when: float | None = None, host: str = "") -> str:
    """`fio --output-format=json` of fio 3.39; `host`: of a server, as with --client."""
    sides = {
        side: {"io_bytes": 1, "io_kbytes": 1, "bw_bytes": rate, "bw": rate // 1024, "iops": 1.5}
        for side, rate in (("read", 6_500_000_000), ("write", 2_000_000_000), ("trim", 0))
    }
    return json.dumps({
        "fio version": "fio-3.39", "timestamp": int(time.time() if when is None else when),
        "timestamp_ms": 0, "time": "Wed Mar  5 22:04:36 2025", "global options": {"direct": "1"},
        "jobs": [{"jobname": "seq", "groupid": 0, "error": error, "eta": 0, "elapsed": 2, **sides}],
        "disk_util": [],
        **({"client_stats": [{"jobname": "seq", "hostname": host}]} if host else {}),
    }, indent=1)  # fmt: skip


def smi(
    uuids: Sequence[str], *, driver: str = "580.126.09", uncorrected: int | str = 0,
    serials: Sequence[str] = (), when: float | None = None, doctype: str = "",
    name: str = "NVIDIA H200",
) -> str:  # fmt: skip
    """`nvidia-smi -q -x` of a 580 driver, with the elements that are read and some that are not."""
    at = time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(when))
    gpus = "".join(
        f"""\t<gpu id="00000000:{0x18 + k:02X}:00.0">
\t\t<product_name>{name}</product_name>
\t\t<serial>{serials[k] if serials else "N/A"}</serial>
\t\t<uuid>{uuid}</uuid>
\t\t<vbios_version>N/A</vbios_version>
\t\t<utilization><gpu_util>0 %</gpu_util></utilization>
\t\t<ecc_errors>
\t\t\t<volatile><dram_uncorrectable>0</dram_uncorrectable></volatile>
\t\t\t<aggregate>
\t\t\t\t<sram_correctable>0</sram_correctable>
\t\t\t\t<sram_uncorrectable_parity>0</sram_uncorrectable_parity>
\t\t\t\t<sram_uncorrectable_secded>0</sram_uncorrectable_secded>
\t\t\t\t<dram_correctable>0</dram_correctable>
\t\t\t\t<dram_uncorrectable>{uncorrected}</dram_uncorrectable>
\t\t\t</aggregate>
\t\t</ecc_errors>
\t</gpu>
"""
        for k, uuid in enumerate(uuids)
    )
    doctype = doctype or '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">'
    return (
        f'<?xml version="1.0" ?>\n{doctype}\n<nvidia_smi_log>\n\t<timestamp>{at}</timestamp>\n'
        f"\t<driver_version>{driver}</driver_version>\n\t<cuda_version>13.0</cuda_version>\n"
        f"\t<attached_gpus>{len(uuids)}</attached_gpus>\n{gpus}</nvidia_smi_log>\n"
    )


def write(directory: Path, **files: str) -> Path:
    """Write files named NODE__dcgmi, NODE__smi or NODE__fio."""
    directory.mkdir(parents=True, exist_ok=True)
    endings = {"dcgmi": "dcgmi.json", "smi": "nvidia-smi.xml", "fio": "fio.json"}
    for name, text in files.items():
        node, _, kind = name.rpartition("__")
        (directory / f"{node}.{endings[kind]}").write_text(text, encoding="utf-8")
    return directory
