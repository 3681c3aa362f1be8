"""What the node side asks two emulated GPUs (NVML), as a process.

    python -m tests.selftests.emulated_ranks FOLDER    what emulated_gpus.measured starts

It imports what a rank imports and nothing of the judge: many tests start it.
"""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fixtures.sandbox import emulation
from fixtures.workloads.health import health, nvlink, under_load
from fixtures.workloads.telemetry import telemetry

NODE = "worker0"
UUIDS = [emulation.gpu_uuid(NODE, k) for k in range(2)]
WORKLOADS = {"health": health, "nvlink": nvlink, "under_load": under_load}
LIMIT_S = 600


def began_earlier(folder: Path, notes: dict[str, Any], leads: bool) -> dict[str, Any]:
    """What the beginning of a job found, moved back in time, with the telemetry's file since."""
    earlier = json.loads((folder / "earlier").read_text())
    if "clock" not in notes:
        return notes
    notes["clock"] -= earlier["seconds"]
    if leads and earlier["telemetry"]:
        lines = [
            line if isinstance(line, str) else json.dumps(
                {"m": notes["clock"] + line[0], "gpus": dict(zip(UUIDS, line[1:], strict=True))}
            )
            for line in earlier["telemetry"]
        ]  # fmt: skip
        telemetry.path_of(folder, NODE).write_text("\n".join(lines) + "\n")
    return notes


def main(folder: Path) -> None:
    barrier, seats = threading.Barrier(2, timeout=LIMIT_S), [None, None]

    def gather(k: int, item: Any) -> list[Any]:
        seats[k] = item
        barrier.wait()
        everyone = [*seats]
        barrier.wait()
        return everyone

    results: dict[str, list[Any]] = {name: [None, None] for name in WORKLOADS}

    def rank(k: int) -> None:
        ranks: Any = SimpleNamespace(
            local_rank=k, node=NODE, ranks_per_node=2, on_gpu=False, directory=folder,
            leads_node=k == 0,
            gather_node=lambda item: gather(k, item), begin_notes={},
        )  # fmt: skip
        ranks.begin_notes["under_load"] = began_earlier(folder, under_load.begin(ranks), k == 0)
        for name, module in WORKLOADS.items():
            if name == "under_load":
                gather(k, None)
                if k == 0 and (breaks := (folder / "breaks").read_text()):
                    new = folder / "nvml.state.new"
                    new.write_text((folder / "nvml.state").read_text() + breaks)
                    new.replace(folder / "nvml.state")
                gather(k, None)
            result = module.run(ranks, list(module.WORKLOAD.metrics))
            measurements = [m.to_json() for m in result.measurements]
            absent = [a.to_json() for a in result.absent]
            results[name][k] = {
                "measurements": measurements, "facts": result.facts, "absent": absent,
            }  # fmt: skip

    def rank_or_none(k: int) -> None:
        try:
            rank(k)
        except BaseException:
            barrier.abort()  # the other one need not wait
            raise

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(rank_or_none, range(2)))
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
