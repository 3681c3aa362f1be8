"""The node side's questions to the driver, of GPUs that answer as a file says (emulated NVML).

The ranks are a process of its own (emulated_ranks.py), because a library is found by an environment
from before it started: two ranks, as threads, begin `under_load`, ask the driver of idle GPUs
(`health`, `nvlink`), then the lines of what breaks are written, and `under_load` ends. The job can
have begun long before, and the telemetry can have seen anything since.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fixtures.records.absence import Absence
from fixtures.records.model import Measurement, RankResult, Record
from fixtures.sandbox import emulation
from fixtures.thresholds import loader
from fixtures.thresholds.limits import Limit
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Case, Verdict
from fixtures.workloads.telemetry import telemetry
from tests.selftests import emulated_ranks
from tests.selftests.emulated_ranks import LIMIT_S, NODE, UUIDS, WORKLOADS
from tests.selftests.rank_job import clean_environment
from tests.selftests.support import CHECKOUT, NONCE, SHIPPED

LIMITS = loader.load(SHIPPED)
KEYS = [
    key
    for key, c in LIMITS.criteria.items()
    if c.workload in WORKLOADS and "rack" not in c.when  # an H200's NVLink ends at the node
]

Seen = tuple[float, dict[str, Any], dict[str, Any]]
"""A sample of the telemetry: seconds since the job began, and what it says of each GPU."""


def seen(
    start: float, end: float, gpu: dict[str, Any] | None = None, **both: Any
) -> Iterator[Seen]:
    """The telemetry's samples between two times: healthy, but for `both` GPUs, or the second."""
    healthy_gpu = {"answer_us": 20.0, "reasons": 0, **both}
    for k in range(round((end - start) / telemetry.PERIOD_S)):
        yield start + telemetry.PERIOD_S * k, healthy_gpu, {**healthy_gpu, **(gpu or {})}


def compile_driver(folder: Path) -> None:
    library = folder / emulation.LIBRARY
    command = ["gcc", "-O1", "-shared", "-fPIC", "-o", str(library), str(emulation.SOURCE), "-ldl"]
    subprocess.run(command, check=True, timeout=emulation.COMPILE_TIMEOUT_S)


def healthy(driver: str) -> list[str]:
    """The lines of two healthy GPUs."""
    lines = ["count=2", f"driver={driver}"]
    for k, uuid in enumerate(UUIDS):
        lines += [f"{k}.device=/dev/null", f"{k}.uuid={uuid}", f"{k}.serial={k}"]
        lines += [f"{k}.pci=00000000:{0x18 + k:02X}:00.0"]
    return lines


def measured(
    library: Path, folder: Path, breaks: Sequence[str] = (), *,
    driver: str = emulation.DRIVER_VERSION, before: Sequence[str] = (),
    seconds: float = 0, sampled: Iterable[Seen | str] = (),
) -> dict[str, Record]:  # fmt: skip
    """The records of a node whose GPUs have the lines `before`, and `breaks` while it works.

    The job began so many `seconds` ago; `sampled` is what the telemetry wrote since.
    """
    (folder / emulation.LIBRARY).symlink_to(library / emulation.LIBRARY)
    (folder / "nvml.state").write_text("\n".join([*healthy(driver), *before, ""]))
    (folder / "breaks").write_text("".join(f"{line}\n" for line in breaks))
    (folder / "earlier").write_text(json.dumps({"seconds": seconds, "telemetry": [*sampled]}))
    said = subprocess.run(
        [sys.executable, "-W", "error", "-m", emulated_ranks.__name__, str(folder)],
        cwd=CHECKOUT, capture_output=True, text=True, timeout=LIMIT_S,
        env=clean_environment() | {"LD_LIBRARY_PATH": str(folder), "CUDA_VISIBLE_DEVICES": "0,1"},
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    return {
        name: Record(
            run_id="run", nonce=NONCE, workload=name, placement=NODE, attempt=1, nodes=[NODE],
            world_size=2, job={}, provenance={"driver": driver},
            ranks=[
                RankResult(
                    rank=k, local_rank=k, node=NODE, start=0.0, end=1.0,
                    device={"index": k, "model": "H200 SXM", "uuid": UUIDS[k]},
                    measurements=[Measurement.from_json(m) for m in rank["measurements"]],
                    facts=rank["facts"],
                    absent=[Absence.from_json(a) for a in rank["absent"]],
                )
                for k, rank in enumerate(ranks)
            ],
        )
        for name, ranks in json.loads(said.stdout).items()
    }  # fmt: skip


def verdicts(
    records: dict[str, Record], own: Mapping[str, Any] | None = None, model: str = "H200 SXM"
) -> dict[str, Verdict]:
    """What the shipped limits say of all that was asked of the driver, and `own` limits of keys."""
    facts = {"model": model, "nodes": 1, "gpus": 2, "gpus_per_node": 2, "domains": 1}
    criteria = dict(LIMITS.criteria)
    for key, limit in (own or {}).items():
        limits = (Limit.model_validate(limit),)
        criteria[key] = replace(criteria[key], limits=limits)
    return {
        key: judge(
            Case(
                criterion=criteria[key], subject=NODE, nodes=(NODE,), record_nodes=(NODE,),
                devices=2, facts=facts, record=records[criteria[key].workload],
            ),
            LIMITS,
        )
        for key in KEYS
    }  # fmt: skip
