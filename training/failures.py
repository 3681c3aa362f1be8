"""What a job that failed left behind, seen by the next one on its nodes [J1 to J6].

A rank a node. It looks for the victim's processes, files in /dev/shm, GPU memory and lock, reads
what the victim's ranks wrote and, in `seen`, what the login side saw of its end; and puts all of
it into the record. What it finds is no verdict.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fixtures.records.files import read_lines
from fixtures.records.model import Measurement, Result, Scalar
from fixtures.workloads.runtime import devices
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.runtime.spec import Small, Workload
from training import whole
from training.victim import CHECKPOINTS, LOCK, gpu_memory, shared_memory

WORKLOAD = Workload(
    metrics=("end", "named", "left", "kept", "lost", "curve"),
    needs_torch=False,
    seconds=30,
    cpu_seconds=12,
    deadline_s=120,
    destructive=True,
    small=Small(pair=True, memory_mib=1024),
)

PATIENCE_S = 5.0
"""A driver may take a moment to give memory back."""
SLACK_MIB = 64
"""GPU memory in use differs by so much without anybody holding it."""


def run(
    ranks: Ranks, metrics: list[str], *, way: str, victim: str, seen: Mapping[str, Any]
) -> Result:
    """One measurement a metric, of this node; `victim` is the directory of the job that failed."""
    folder = Path(victim)
    lines = [n for path in sorted(folder.glob("rank*.jsonl")) for n in read_lines(path)]
    lines = [n for n in lines if n.get("nonce") == ranks.spec["nonce"]]
    at: dict[str, Scalar] = {"way": way}
    found: list[Measurement] = []
    if "end" in metrics:
        found.append(_end(ranks, seen, at))
    if "named" in metrics:
        found.append(_named(ranks, seen, at))
    if "left" in metrics:
        found.append(_left(ranks, folder, lines, str(seen["job"]), at))
    if "kept" in metrics:
        found.append(_kept(folder, lines, at))
    if ranks.rank == 0:
        notes = [str(n) for n in seen["notes"]]
        if "lost" in metrics:
            found.append(
                Measurement(metric="lost", unit="s", value=seen["lost_s"], at=at, notes=notes)
            )
        if "curve" in metrics:
            found.append(_curve(lines, at, notes))
    return Result(measurements=found, facts={"seen": dict(seen), "victim": folder.name})


def _end(ranks: Ranks, seen: Mapping[str, Any], at: dict[str, Scalar]) -> Measurement:
    """From the fault until Slurm had this node back, by the clock of the login side."""
    notes = [*seen["notes"], *([f"{seen['failure']['reason']}"] if seen["failure"] else [])]
    value = seen["end_s"].get(ranks.node)
    return Measurement(metric="end", unit="s", value=value, at=at, notes=notes)


def _named(ranks: Ranks, seen: Mapping[str, Any], at: dict[str, Scalar]) -> Measurement:
    """Whether what the suite says of the failure is right, as far as it is about this node."""
    said, truth = seen["failure"] or {}, seen["truth"]
    wrong = []
    if truth["node"] in (None, ranks.node):
        for what in ("kind", "node", "rank"):
            if truth[what] is not None and said.get(what) != truth[what]:
                wrong.append(f"{what} {said.get(what)}, expected {truth[what]}")
    elif said.get("node") == ranks.node:
        wrong.append(f"accused this node, and it was {truth['node']}")
    notes = [f"{'; '.join(wrong)}: {said.get('reason')}"] if wrong else []
    if not wrong and said.get("reason"):
        notes = [str(said["reason"])]
    return Measurement(
        metric="named", unit="state", value="wrong" if wrong else "named", at=at, notes=notes
    )


def _left(
    ranks: Ranks, folder: Path, lines: list[dict[str, Any]], job: str, at: dict[str, Scalar]
) -> Measurement:
    """Everything of the victim that is still there; a driver has a moment to give memory back."""
    places = [n for n in lines if n.get("event") == "place" and n.get("node") == ranks.node]
    if not places:
        notes = [f"the victim said nothing of what was on {ranks.node} before it"]
        return Measurement(metric="left", unit="leftovers", at=at, notes=notes)
    before, unlocked = places[0], any(n.get("event") == "unlocked" for n in lines)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        left = [*processes_of(job), *_files(before["shm"])]
        gpus, unseen = _gpus(before["gpus"])
        left += gpus
        if not unlocked and _is_locked(folder / LOCK):
            left.append(f"the lock on {LOCK} is still held")
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    value = None if unseen and not left else len(left)
    return Measurement(metric="left", unit="leftovers", value=value, at=at, notes=left + unseen)


def processes_of(job: str) -> list[str]:
    """Living processes of a Slurm job on this node; of this user, those of others are closed."""
    mark = f"SLURM_JOB_ID={job}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            name = (entry / "comm").read_text().strip()
        except OSError:
            continue  # gone meanwhile, or somebody else's
        if state not in "ZX":
            found.append(f"process {entry.name} ({name}) of job {job} is there, state {state}")
    return found


def _files(before: list[str]) -> list[str]:
    """Files in /dev/shm that were not there before the victim and that no process uses."""
    new = sorted(set(shared_memory()) - set(before))
    if not new:
        return []
    used = _used_files()
    return [f"/dev/shm/{name} is there" for name in new if f"/dev/shm/{name}" not in used]


def _used_files() -> set[str]:
    used = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            used |= {str(handle.readlink()) for handle in (entry / "fd").iterdir()}
            for line in (entry / "maps").read_text(errors="replace").splitlines():
                used.add(line.partition("/")[1] + line.partition("/")[2])
        except OSError:
            continue
    return used


def _gpus(before: Mapping[str, int | None]) -> tuple[list[str], list[str]]:
    """GPUs with more memory in use than before the victim, and those that cannot be seen."""
    now = dict(gpu_memory(h) for h in devices.open_handles()) if before else {}
    held, unseen = [], []
    for uuid, had in before.items():
        has = now.get(uuid)
        if has is None or had is None:
            unseen.append(f"{uuid}, a GPU of the victim, cannot be looked at from here")
        elif has > had + SLACK_MIB:
            held.append(f"{uuid} has {has} MiB in use, {had} before")
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


def _kept(folder: Path, lines: list[dict[str, Any]], at: dict[str, Scalar]) -> Measurement:
    """Whether the last checkpoint that was whole before the fault still is, and is taken."""
    steps = [int(n["step"]) for n in lines if n.get("event") == "saved"]
    if not steps:
        notes = ["no checkpoint was whole before the fault"]
        return Measurement(metric="kept", unit="state", at=at, notes=notes)
    chosen = whole.newest(folder / CHECKPOINTS)
    step = int(chosen.name.removeprefix("step-")) if chosen else None
    # The next one may have become whole just before its line was written.
    good = step is not None and step >= max(steps)
    notes = [f"step {max(steps)} was whole, {f'step {step}' if step else 'none'} is taken now"]
    return Measurement(
        metric="kept", unit="state", value="intact" if good else "lost", at=at, notes=notes
    )


def _curve(lines: list[dict[str, Any]], at: dict[str, Scalar], notes: list[str]) -> Measurement:
    """How far the losses of the run that was resumed are from those of one that was not."""
    measured = [
        m
        for n in lines
        if n.get("event") == "result"
        for m in n.get("measurements", [])
        if m.get("metric") == "curve"
    ]
    values = [float(m["value"]) for m in measured]
    said = [str(note) for m in measured for note in m.get("notes", [])]
    return Measurement(
        metric="curve", unit="%", value=max(values) if values else None, at=at,
        notes=list(dict.fromkeys([*said, *notes])) or ["it was never resumed"],
    )  # fmt: skip
