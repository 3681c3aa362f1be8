"""A small training job of the suite that fails on purpose in a given way.

The last rank is the culprit: it writes a line (`event: fault`), which the failure diagnosis must
not read, and then causes the fault. Faults from outside (the job is cancelled, a node is lost, a
filesystem fails) are caused by the login side when it sees that line. The job succeeds only in the
way `node`, where it is resumed.
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
from fixtures.workloads.devices import devices
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.runtime.spec import Workload

if TYPE_CHECKING:
    from training.loop import Training
    from training.strategies import Team

WORKLOAD = Workload(
    metrics={"curve": "%"},
    needs_torch=True,
    training=True,
    seconds=30,
    cpu_seconds=15,
    deadline_s=400,
    cpu_deadline_s=300,
)

STEP_TIMEOUT_S = 12.0
"""Deadline of a step, which takes milliseconds: after it the watchdog reports a hang."""
MEMORY_TIMEOUT_S = 40.0
"""Deadline where memory is exhausted: on a large node a rank may need longer for it."""
STEP_PAUSE_S = 0.05
"""Pause between steps: leaves the cores to other jobs while the victim waits to be ended."""
STEPS_BEFORE_FAULT = 4
"""Steps before the fault: all one-time initialization is done by then."""
SAVE_EVERY = 5
KEPT_CHECKPOINTS = 3
NODE_LOST_AT_STEP = 6
"""The step after which the node is lost, two steps after the checkpoint."""
CHECKPOINT_DIRECTORY = "checkpoints"
LOCK_FILE = "lock"


def run(ranks: Ranks, metrics: list[str], *, way: str) -> Result:
    """Train until the job fails in the given way; return only where the job is resumed."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _report_node_state(ranks)
    import torch

    from training.strategies import one_team

    team = one_team(ranks)
    if way == "node":
        return _train_through_node_loss(ranks, team)
    _hold_lock(ranks)
    training, loader_blocked = _endless_training(ranks, team, way)
    fault_step = SAVE_EVERY + 1 if way.startswith("storage") else STEPS_BEFORE_FAULT
    while True:
        if training.step == fault_step and ranks.rank == ranks.world_size - 1:
            ranks.write_line({"event": "fault", "way": way, "step": training.step})
            _inject_fault(ranks, way, loader_blocked)
        training.run(1)
        if ranks.on_gpu:
            torch.cuda.synchronize()  # the host runs ahead of a GPU that waits in a collective
        ranks.extend_deadline(MEMORY_TIMEOUT_S if way.endswith("memory") else STEP_TIMEOUT_S)
        if way.startswith("storage") and training.step % SAVE_EVERY == 0:
            _save(ranks, training)
        time.sleep(STEP_PAUSE_S)


def _report_node_state(ranks: Ranks) -> None:
    """Report files and GPU memory in use on the node beforehand, for failures.py to compare."""
    if not ranks.leads_node:
        return
    handles = devices.open_handles() if ranks.on_gpu else []
    ranks.write_line(
        {
            "event": "place",
            "slurm_job": os.environ.get("SLURM_JOB_ID"),
            "shm": shared_memory(),
            "gpus": {uuid: used for h in handles for uuid, used in [gpu_memory(h)]},
        }
    )


def shared_memory() -> list[str]:
    """Return the names of this user's files in /dev/shm."""
    names = []
    for path in Path("/dev/shm").iterdir():
        try:
            if path.lstat().st_uid == os.getuid():
                names.append(path.name)
        except OSError:
            continue  # gone meanwhile
    return sorted(names)


def gpu_memory(handle: Any) -> tuple[str, int | None]:
    """Return the UUID of a GPU and the MiB in use on it; None if NVML does not report it."""
    info = devices.query_nvml("nvmlDeviceGetMemoryInfo", handle)
    return str(devices.query_nvml("nvmlDeviceGetUUID", handle)), info and int(info.used) >> 20


def _hold_lock(ranks: Ranks) -> None:
    """Lock a file in the shared directory until the job ends: it must be free afterwards."""
    if ranks.rank:
        return
    handle = os.open(ranks.directory / LOCK_FILE, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:  # no locks on this filesystem: none can be left behind
        ranks.write_line({"event": "unlocked", "error": str(error)})


def _endless_training(ranks: Ranks, team: Team, way: str) -> tuple[Training, Any]:
    """Return a training that does not end by itself, and an event that blocks its data loader."""
    import multiprocessing

    from training import reference_run
    from training.data import BatchLoader, Synthetic
    from training.loop import Training

    loader_blocked = multiprocessing.Event()

    class BlockingData(Synthetic):
        """Data that blocks once `loader_blocked` is set, as storage that does not respond."""

        def __getitem__(self, index: int) -> Any:
            while loader_blocked.is_set():
                signal.pause()
            return super().__getitem__(index)

    global_batch = reference_run.global_batch_for(team.size)
    strategy = "fsdp" if way.startswith("storage") else "ddp"
    settings = reference_run.settings_for(
        strategy, global_batch=global_batch, team_size=team.size, steps=1_000_000, workers=1,
        checkpoint=str(ranks.directory / CHECKPOINT_DIRECTORY),
    )  # fmt: skip
    training = Training(settings, team, samples=1000 * global_batch)
    data = BlockingData(
        settings.shape.vocabulary, settings.tokens, 1000 * global_batch, settings.seed
    )
    training.batch_loader = BatchLoader(data, settings, rank=team.rank, team_size=team.size)
    training.batches = iter(training.batch_loader)
    return training, loader_blocked


def _inject_fault(ranks: Ranks, way: str, loader_blocked: Any) -> None:
    """Cause the fault on this rank; return if it comes from outside, or takes effect later."""
    if way == "exit":
        os._exit(3)
    elif way == "raise":
        raise ValueError("made to fail: an exception in the training")
    elif way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif way == "segfault":
        ctypes.string_at(0)
    elif way == "collective":
        while True:  # the other ranks wait in the all-reduce of this step
            signal.pause()
    elif way == "loader":
        loader_blocked.set()
    elif way == "frozen":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif way == "host_memory":
        _exhaust_host_memory()
    elif way == "gpu_memory":
        _exhaust_gpu_memory(ranks)


def _exhaust_host_memory() -> None:
    """Allocate memory until the job's limit is exceeded."""
    allocations = []
    while True:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        allocations.append(mmap.mmap(-1, 64 << 20, flags=flags))


def _exhaust_gpu_memory(ranks: Ranks) -> None:
    import torch

    allocations = []
    while True:
        allocations.append(torch.empty(1 << 30, dtype=torch.uint8, device=ranks.device))


def _save(ranks: Ranks, training: Training) -> None:
    """Write a checkpoint, report that it is complete, and delete the oldest ones."""
    path = training.save()
    if ranks.rank == 0:
        ranks.write_line({"event": "saved", "step": training.step})
        for old in sorted(path.parent.glob("step-*"))[:-KEPT_CHECKPOINTS]:
            shutil.rmtree(old)


def _train_through_node_loss(ranks: Ranks, team: Team) -> Result:
    """Train until the node is lost; restarted, resume and compare losses with an unbroken run."""
    from dataclasses import replace

    from training import checkpoint, reference_run
    from training.strategies import one_team_per_rank

    directory = ranks.directory / CHECKPOINT_DIRECTORY
    global_batch = reference_run.global_batch_for(team.size)
    settings = reference_run.settings_for(
        "ddp", global_batch=global_batch, team_size=team.size, checkpoint=str(directory)
    )
    if int(os.environ.get("SLURM_RESTART_COUNT", "0")) == 0:
        training = reference_run.new_training(settings, team)
        training.run(STEPS_BEFORE_FAULT)
        training.save()
        training.run(NODE_LOST_AT_STEP - STEPS_BEFORE_FAULT)
        ranks.barrier()
        if ranks.rank == ranks.world_size - 1:
            ranks.write_line({"event": "fault", "way": "node", "step": training.step})
        while True:
            signal.pause()  # within its training, until the node is lost
    if checkpoint.awaited_intact(directory) is None:
        raise RuntimeError(f"started again, but there is no intact checkpoint in {directory}")
    training = reference_run.new_training(replace(settings, resume=True), team)
    first_step = training.step
    training.run(NODE_LOST_AT_STEP - first_step)
    ranks.barrier()
    if ranks.rank == 0:
        ranks.write_line({"event": "regained", "step": training.step})
    losses = training.run().losses
    reference = reference_run.losses(
        reference_run.settings_for("single", global_batch=global_batch), one_team_per_rank(ranks)
    )
    notes = [f"resumed from step {first_step} on {ranks.node}, lost after step {NODE_LOST_AT_STEP}"]
    difference = reference_run.max_difference_percent(losses, reference[first_step:])
    return Result(
        measurements=[Measurement(metric="curve", unit="%", value=difference, notes=notes)],
        facts={"losses": losses, "begun": first_step},
    )
