"""Ranks of a made-up fleet as JSON texts: written once for many devices, filled in for each.

Recorded ranks are of several runs and devices. Here they get the times of one run, and each device
has an identity and samples of its own.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from typing import Any

_UNIQUE = re.compile(r'"([0-9.]+)@UNIQUE@"')
_UUID_OF = re.compile("@UUID([0-9]+)@")


def gpu_uuid(node: str, k: int) -> str:
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{node}.{k}')}"


def text_of(rank: Mapping[str, Any], device: Mapping[str, Any], began: float) -> str:
    """Return a recorded rank as a text that filled() completes; `began`: when the fleet began.

    `device`: what all devices of the fleet share.
    """
    device_uuid = rank["device"].get("uuid") or "no uuid"
    own = {"index": "@K@", "uuid": "@UUID@", "serial": "1650@SERIAL@", "pci": "@PCI@"}
    made = {
        **rank, "rank": "@RANK@", "local_rank": "@K@", "node": "@NODE@",
        "device": {**device, **own},
    }  # fmt: skip
    made = _within_run(made, began)
    for m in made["measurements"]:
        if len(samples := m.get("samples", [])) > 1 and any(s % 1 for s in samples):
            digits = max(1, 6 - len(str(int(samples[0]))))
            m["samples"] = [f"{samples[0]:.{digits}f}@UNIQUE@", *samples[1:]]
    text = json.dumps(made, separators=(",", ":")).replace(device_uuid, "@UUID@")
    for name in ("RANK", "K"):
        text = text.replace(f'"@{name}@"', f"@{name}@")
    return _UNIQUE.sub(r"\1@UNIQUE@", text)


def filled(text: str, *, rank: int, k: int, node: str, number: int, written: int) -> str:
    """Return the text of GPU `k` of a node; `number`: of the node, `written`: ranks before it."""
    values = {
        "RANK": str(rank), "K": str(k), "NODE": node, "UUID": gpu_uuid(node, k),
        "PCI": f"00000000:{k + 6:02X}:00.0", "SERIAL": f"{number * 100 + k:07d}",
        "UNIQUE": f"{written:08d}1",  # no two measurements are equal to the last bit
    }  # fmt: skip
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return _UUID_OF.sub(lambda found: gpu_uuid(node, int(found[1])), text)


def _within_run(rank: dict[str, Any], began: float) -> dict[str, Any]:
    """Return a rank with its times moved into the run: recorded ones are of several."""
    later = began - rank["start"]
    first = min((t for m in rank["measurements"] for t in m.get("ended", ())), default=None)
    if first is not None and first < rank["start"]:  # samples of the whole job
        later = began - first + 1.0
    moved = []
    start, end = rank["start"] + later, rank["end"] + later
    for m in rank["measurements"]:
        times: dict[str, Any] = {"ended": [t + later for t in m["ended"]]} if m.get("ended") else {}
        if m.get("started") is not None:
            times["started"] = first = m["started"] + later
            # What is scaled to more nodes took longer than it did where it was recorded.
            slower = max(1.0, _least_s(m) / max(1e-6, m["ended"][-1] - m["started"]))
            times["ended"] = [first + (t - first) * slower for t in times["ended"]]
            end = max(end, times["ended"][-1])
        moved.append({**m, **times})
    return {**rank, "start": start, "end": end, "measurements": moved}


def _least_s(m: dict[str, Any]) -> float:
    """Return the seconds that the batches of a rate took at least."""
    size = m["at"].get("size") if m["unit"] == "GB/s" and m.get("at") else None
    return len(m["samples"]) * size / (min(m["samples"]) * 1e9) if size else 0.0
