"""A small training job of our own that fails in one of the ways in which jobs do [J1 to J6].

The last rank is the culprit: it says so in a line (`event: fault`), which nobody who looks for the
culprit may read, and then does it. What is done to the job from outside (cancelled, a node lost, a
filesystem broken) is done when that line is seen. It never ends well but where it is resumed.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import resource
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fixtures.records.model import Measurement, Result
from fixtures.workloads.runtime import devices
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.runtime.spec import Workload

if TYPE_CHECKING:
    from training.loop import Training
    from training.strategies import Team

WORKLOAD = Workload(
    metrics=("curve",),
    needs_torch=True,
    training=True,
    seconds=30,
    cpu_seconds=15,
    deadline_s=400,
    cpu_deadline_s=300,
)

STEP_S = 12.0
"""A step of a few milliseconds that has taken so long hangs: the node's watchdog says so."""
MEMORY_S = 40.0
"""Taking all of the memory may take a rank of a large node longer than that."""
PACE_S = 0.05
"""Between two steps: a victim that waits for its end leaves the cores to others."""
BEGUN = 4
"""Steps before the fault: everything that is made once has been made."""
SAVE_EVERY = 5
KEPT = 3
LOST_AT = 6
"""The step after which the node is lost; the checkpoint is of two steps before."""
CHECKPOINTS = "checkpoints"
LOCK = "lock"


def run(ranks: Ranks, metrics: list[str], *, way: str) -> Result:
    """Train until the job fails in this way; only the one that is resumed comes to an end."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _note_place(ranks)
    import torch

    from training.strategies import together

    team = together(ranks)
    if way == "node":
        return _resumed(ranks, team)
    _lock(ranks)
    training, held = _begin(ranks, team, way)
    due = SAVE_EVERY + 1 if way.startswith("storage") else BEGUN
    while True:
        if training.step == due and ranks.rank == ranks.world_size - 1:
            ranks.say({"event": "fault", "way": way, "step": training.step})
            _fail(ranks, way, held)
        training.run(1)
        if ranks.on_gpu:
            torch.cuda.synchronize()  # the host runs ahead of a GPU that waits for another
        ranks.allow(MEMORY_S if way.endswith("memory") else STEP_S)
        if way.startswith("storage") and training.step % SAVE_EVERY == 0:
            _save(ranks, training)
        time.sleep(PACE_S)


def _note_place(ranks: Ranks) -> None:
    """What is on the node before this job uses it; what the next job finds is compared with it."""
    if not ranks.leads_node:
        return
    handles = devices.open_handles() if ranks.on_gpu else []
    ranks.say(
        {
            "event": "place",
            "slurm_job": os.environ.get("SLURM_JOB_ID"),
            "shm": shared_memory(),
            "gpus": {uuid: used for h in handles for uuid, used in [gpu_memory(h)]},
        }
    )


def shared_memory() -> list[str]:
    """This user's files in /dev/shm."""
    found = []
    for path in Path("/dev/shm").iterdir():
        try:
            if path.lstat().st_uid == os.getuid():
                found.append(path.name)
        except OSError:
            continue  # gone meanwhile
    return sorted(found)


def gpu_memory(handle: Any) -> tuple[str, int | None]:
    """UUID of a GPU, and MiB in use on it."""
    info = devices.ask("nvmlDeviceGetMemoryInfo", handle)
    return str(devices.ask("nvmlDeviceGetUUID", handle)), info and int(info.used) >> 20


def _lock(ranks: Ranks) -> None:
    """Hold a lock on the shared directory to the end: it must be free when the job has gone."""
    if ranks.rank:
        return
    handle = os.open(ranks.directory / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:  # no locks here: none can be left behind
        ranks.say({"event": "unlocked", "error": str(error)})


def _begin(ranks: Ranks, team: Team, way: str) -> tuple[Training, Any]:
    """Training that does not end by itself, and what makes its data loader stop."""
    import multiprocessing

    from training import exact
    from training.data import Feed, Synthetic
    from training.loop import Training

    held = multiprocessing.Event()

    class Holding(Synthetic):
        """Gives no further sample once `held` is set: storage that never answers."""

        def __getitem__(self, index: int) -> Any:
            while held.is_set():
                signal.pause()
            return super().__getitem__(index)

    whole = exact.global_batch(team.size)
    strategy = "fsdp" if way.startswith("storage") else "ddp"
    made = exact.settings(
        strategy, whole=whole, ranks=team.size, steps=1_000_000, workers=1,
        checkpoint=str(ranks.directory / CHECKPOINTS),
    )  # fmt: skip
    training = Training(made, team, samples=1000 * whole)
    data = Holding(made.shape.vocabulary, made.tokens, 1000 * whole, made.seed)
    training.feed = Feed(data, made, rank=team.rank, ranks=team.size)
    training.batches = iter(training.feed)
    return training, held


def _fail(ranks: Ranks, way: str, held: Any) -> None:
    """What the culprit does; returns where it is done from outside, or later."""
    if way == "exit":
        os._exit(3)
    elif way == "raise":
        raise ValueError("made to fail: an exception in the training")
    elif way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif way == "segfault":
        ctypes.string_at(0)
    elif way == "collective":
        while True:  # the others are in the all-reduce of this step
            signal.pause()
    elif way == "loader":
        held.set()
    elif way == "frozen":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif way == "host_memory":
        _take_memory()
    elif way == "gpu_memory":
        _take_gpu_memory(ranks)


def _take_memory() -> None:
    """All of the job's, page by page."""
    taken = []
    while True:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        taken.append(mmap.mmap(-1, 64 << 20, flags=flags))


def _take_gpu_memory(ranks: Ranks) -> None:
    import torch

    taken = []
    while True:
        taken.append(torch.empty(1 << 30, dtype=torch.uint8, device=ranks.device))


def _save(ranks: Ranks, training: Training) -> None:
    """A checkpoint; the line says which one is whole from here on."""
    path = training.save()
    if ranks.rank == 0:
        ranks.say({"event": "saved", "step": training.step})
        for old in sorted(path.parent.glob("step-*"))[:-KEPT]:
            shutil.rmtree(old)


def _resumed(ranks: Ranks, team: Team) -> Result:
    """Lose the node after a checkpoint; started again, go on from it and compare the losses."""
    from dataclasses import replace

    from training import checkpoint, exact
    from training.strategies import alone

    directory = ranks.directory / CHECKPOINTS
    whole = exact.global_batch(team.size)
    made = exact.settings("ddp", whole=whole, ranks=team.size, checkpoint=str(directory))
    if int(os.environ.get("SLURM_RESTART_COUNT", "0")) == 0:
        training = exact.begin(made, team)
        training.run(BEGUN)
        training.save()
        training.run(LOST_AT - BEGUN)
        ranks.barrier()
        if ranks.rank == ranks.world_size - 1:
            ranks.say({"event": "fault", "way": "node", "step": training.step})
        while True:
            signal.pause()  # in the middle of its training, until it is lost
    if checkpoint.newest(directory) is None:
        raise RuntimeError(f"started again, and no whole checkpoint in {directory}")
    training = exact.begin(replace(made, resume=True), team)
    begun = training.step
    training.run(LOST_AT - begun)
    ranks.barrier()
    if ranks.rank == 0:
        ranks.say({"event": "regained", "step": training.step})
    losses = training.run().losses
    reference = exact.losses(exact.settings("single", whole=whole), alone(ranks))
    notes = [f"resumed from step {begun} on {ranks.node}, lost after step {LOST_AT}"]
    apart = exact.apart(losses, reference[begun:])
    return Result(
        measurements=[Measurement(metric="curve", unit="%", value=apart, notes=notes)],
        facts={"losses": losses, "begun": begun},
    )
