"""Leftovers of a failed job (the victim), measured by the next job on its nodes.

One rank per node. It looks for the victim's processes, files in /dev/shm, GPU memory and lock, and
reads the lines that the victim's ranks wrote. `seen` holds the login side's observations of the
victim's end. All of it goes into the record; nothing is judged here.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fixtures.records.fields import Scalar
from fixtures.records.files import is_visible, read_lines
from fixtures.records.model import Measurement, Result
from fixtures.records.run_directory import rank_files
from fixtures.workloads.devices import devices
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.runtime.spec import SmallJob, Workload
from training import checkpoint_integrity
from training.victim import CHECKPOINT_DIRECTORY, LOCK_FILE, gpu_memory, shared_memory

WORKLOAD = Workload(
    metrics={
        "end": "s",
        "named": "state",
        "left": "leftovers",
        "kept": "state",
        "lost": "s",
        "curve": "%",
    },
    needs_torch=False,
    seconds=30,
    cpu_seconds=12,
    deadline_s=120,
    destructive=True,
    small=SmallJob(pair=True, memory_mib=1024),
)

VISIBLE_S = 30.0
"""Wait for the files of the victim's ranks on other nodes; below this workload's own deadline."""
LEFTOVER_GRACE_S = 5.0
"""Wait for leftovers to disappear: a driver may free memory with a delay."""
MEMORY_SLACK_MIB = 64
"""Difference of GPU memory in use that is not a leftover: it varies this much by itself."""


def run(
    ranks: Ranks, metrics: list[str], *, way: str, victim: str, seen: Mapping[str, Any]
) -> Result:
    """Measure each metric on this node; `victim` is the directory of the job that failed."""
    folder = Path(victim)
    paths = [p for p in rank_files(folder) if is_visible(p, VISIBLE_S)]
    lines = [line for path in paths for line in read_lines(path)]
    lines = [line for line in lines if line.get("nonce") == ranks.spec["nonce"]]
    at: dict[str, Scalar] = {"way": way}
    measurements: list[Measurement] = []
    if "end" in metrics:
        measurements.append(_node_release_time(ranks, seen, at))
    if "named" in metrics:
        measurements.append(_diagnosis(ranks, seen, at))
    if "left" in metrics:
        measurements.append(_leftovers(ranks, folder, lines, str(seen["job"]), at))
    if "kept" in metrics:
        measurements.append(_checkpoint_state(folder, lines, at))
    if ranks.rank == 0:
        notes = [str(note) for note in seen["notes"]]
        if "lost" in metrics:
            measurements.append(
                Measurement(metric="lost", unit="s", value=seen["lost_s"], at=at, notes=notes)
            )
        if "curve" in metrics:
            measurements.append(_resumed_curve(lines, at, notes))
    return Result(measurements=measurements, facts={"seen": dict(seen), "victim": folder.name})


def _node_release_time(ranks: Ranks, seen: Mapping[str, Any], at: dict[str, Scalar]) -> Measurement:
    """Seconds from the fault until Slurm had released this node, by the login side's clock."""
    notes = [*seen["notes"], *([f"{seen['failure']['reason']}"] if seen["failure"] else [])]
    value = seen["end_s"].get(ranks.node)
    return Measurement(metric="end", unit="s", value=value, at=at, notes=notes)


def _diagnosis(ranks: Ranks, seen: Mapping[str, Any], at: dict[str, Scalar]) -> Measurement:
    """Whether the suite's diagnosis of the failure is right, as far as it concerns this node."""
    failure, truth = seen["failure"] or {}, seen["truth"]
    wrong = []
    if truth["node"] in (None, ranks.node):
        for field in ("kind", "node", "rank"):
            if truth[field] is not None and failure.get(field) != truth[field]:
                wrong.append(f"{field} {failure.get(field)}, expected {truth[field]}")
    elif failure.get("node") == ranks.node:
        wrong.append(f"named this node, but it was {truth['node']}")
    notes = [f"{'; '.join(wrong)}: {failure.get('reason')}"] if wrong else []
    if not wrong and failure.get("reason"):
        notes = [str(failure["reason"])]
    return Measurement(
        metric="named", unit="state", value="wrong" if wrong else "named", at=at, notes=notes
    )


def _leftovers(
    ranks: Ranks, folder: Path, lines: list[dict[str, Any]], job: str, at: dict[str, Scalar]
) -> Measurement:
    """Count what the victim left on this node after LEFTOVER_GRACE_S."""
    node_states = [
        line for line in lines if line.get("event") == "place" and line.get("node") == ranks.node
    ]
    if not node_states:
        notes = [f"the victim did not report what was on {ranks.node} before it"]
        return Measurement(metric="left", unit="leftovers", at=at, notes=notes)
    before, unlocked = node_states[0], any(line.get("event") == "unlocked" for line in lines)
    deadline = time.monotonic() + LEFTOVER_GRACE_S
    while True:
        leftovers = [*job_processes(job), *_leftover_files(before["shm"])]
        gpus, unseen = _leftover_gpu_memory(before["gpus"])
        leftovers += gpus
        if not unlocked and _is_locked(folder / LOCK_FILE):
            leftovers.append(f"the lock on {LOCK_FILE} is still held")
        if not leftovers or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    value = None if unseen and not leftovers else len(leftovers)
    return Measurement(
        metric="left", unit="leftovers", value=value, at=at, notes=leftovers + unseen
    )


def job_processes(job: str) -> list[str]:
    """Return the living processes of a Slurm job here; other users' cannot be inspected."""
    job_variable = f"SLURM_JOB_ID={job}".encode()
    processes = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if job_variable not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            name = (entry / "comm").read_text().strip()
        except OSError:
            continue  # ended meanwhile, or another user's
        if state not in "ZX":
            processes.append(f"process {entry.name} ({name}) of job {job} is there, state {state}")
    return processes


def _leftover_files(before: list[str]) -> list[str]:
    """Return the files in /dev/shm that are new since the victim and that no process uses."""
    new = sorted(set(shared_memory()) - set(before))
    if not new:
        return []
    open_files = _open_files()
    return [f"/dev/shm/{name} is there" for name in new if f"/dev/shm/{name}" not in open_files]


def _open_files() -> set[str]:
    paths = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            paths |= {str(handle.readlink()) for handle in (entry / "fd").iterdir()}
            for line in (entry / "maps").read_text(errors="replace").splitlines():
                paths.add(line.partition("/")[1] + line.partition("/")[2])
        except OSError:
            continue
    return paths


def _leftover_gpu_memory(before: Mapping[str, int | None]) -> tuple[list[str], list[str]]:
    """Return the GPUs with more memory in use than before, and those that are not accessible."""
    mib_by_gpu = dict(gpu_memory(h) for h in devices.open_handles()) if before else {}
    held, unseen = [], []
    for uuid, mib_before in before.items():
        mib_now = mib_by_gpu.get(uuid)
        if mib_now is None or mib_before is None:
            unseen.append(f"{uuid}, a GPU of the victim, is not accessible from this job")
        elif mib_now > mib_before + MEMORY_SLACK_MIB:
            held.append(f"{uuid} has {mib_now} MiB in use, {mib_before} before")
    return held, unseen


def _is_locked(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _checkpoint_state(
    folder: Path, lines: list[dict[str, Any]], at: dict[str, Scalar]
) -> Measurement:
    """Whether the newest intact checkpoint is at least as new as the last before the fault."""
    steps = [int(line["step"]) for line in lines if line.get("event") == "saved"]
    if not steps:
        notes = ["no checkpoint was complete before the fault"]
        return Measurement(metric="kept", unit="state", at=at, notes=notes)
    newest = checkpoint_integrity.awaited_intact(
        folder / CHECKPOINT_DIRECTORY, max(steps), VISIBLE_S
    )
    step = checkpoint_integrity.step_of(newest) if newest else None
    # A newer one may have been completed just before the line on it was written.
    intact = step is not None and step >= max(steps)
    notes = [f"step {max(steps)} was complete, {f'step {step}' if step else 'none'} is taken now"]
    return Measurement(
        metric="kept", unit="state", value="intact" if intact else "lost", at=at, notes=notes
    )


def _resumed_curve(
    lines: list[dict[str, Any]], at: dict[str, Scalar], notes: list[str]
) -> Measurement:
    """Return the victim's own measurement: losses of the resumed run against an unbroken one."""
    curves = [
        m
        for line in lines
        if line.get("event") == "result"
        for m in line.get("measurements", [])
        if m.get("metric") == "curve"
    ]
    values = [float(m["value"]) for m in curves]
    curve_notes = [str(note) for m in curves for note in m.get("notes", [])]
    return Measurement(
        metric="curve", unit="%", value=max(values) if values else None, at=at,
        notes=list(dict.fromkeys([*curve_notes, *notes])) or ["it was never resumed"],
    )  # fmt: skip
