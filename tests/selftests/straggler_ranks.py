"""Two ranks whose steps take exactly as long as a test says: started by torchrun.

    torchrun --nproc-per-node=2 -m tests.selftests.straggler_ranks OUT

The training, its collectives and the measurement are the suite's; the clock is made up: a step adds
1 s to it, 1.1 s on a slowed rank, and who meets the other takes over the later time. In own steps
rank 1 begins only when rank 0 has ended its own, so a collective inside of a step would never end.
Each training leaves a run by hand in OUT/STRATEGY-CASE.

After each of them the rank prints how many trainings are still in memory.

OUT/STRATEGY-batches are trainings that search for the fastest batch, with a step of STEP_S seconds
by batch, where rank 1 alone has not the memory for more than MOST sequences.
"""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from fixtures.workloads.runtime import standalone
from tests.selftests import support

RANK = int(os.environ.get("RANK", "0"))
STRATEGIES = ("ddp", "fsdp")
CASES = {"healthy": (1.0, 1.0), "slowed": (1.0, 1.1), "accumulating": (1.0, 1.1)}
"""Seconds of a step on each rank."""

STEP_S = {1: 1.0, 2: 1.5, 4: 2.8, 8: 5.0}
MOST = 4


class Clock:
    """This rank's time."""

    def __init__(self, step_s: float) -> None:
        self.now = 1000.0
        self.step_s = step_s

    def read(self) -> float:
        return self.now


@contextlib.contextmanager
def made_up_time(step_s: float, store: Any) -> Iterator[None]:
    """Own steps last `step_s`, and no rank does one at the same time as the other."""
    import torch
    import torch.distributed as dist

    from training import stragglers
    from training.loop import Training

    clock, own_steps = Clock(step_s), [0]
    whole_step, answered = Training._train_step, stragglers.collectives_answered_here

    class Meeting(stragglers.Meeting):
        def __call__(self) -> None:
            now = torch.tensor([clock.now], dtype=torch.float64)
            self._all_reduce(now, op=dist.ReduceOp.MAX, group=self._group)
            clock.now = float(now)

    @contextlib.contextmanager
    def answered_here(training: Any) -> Iterator[Any]:
        with answered(training) as meet:
            own_steps[0] = 1
            yield meet
            own_steps[0] = 0

    def step(training: Any, batches: list[Any]) -> None:
        if own_steps[0] and RANK == 1:
            store.wait([f"ended/{own_steps[0]}"])
        whole_step(training, batches)
        clock.now += clock.step_s
        if own_steps[0]:
            if RANK == 0:
                store.set(f"ended/{own_steps[0]}", "")
            own_steps[0] += 1

    with (
        mock.patch.object(stragglers, "time", SimpleNamespace(perf_counter=clock.read)),
        mock.patch.object(stragglers, "Meeting", Meeting),
        mock.patch.object(stragglers, "collectives_answered_here", answered_here),
        mock.patch.object(Training, "_train_step", step),
    ):
        yield


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """Search for a batch although this is a CPU, with memory for MOST sequences on rank 1."""
    import torch

    from training import batch_search
    from training.model import Decoder

    forward = Decoder.forward

    def limited(model: Decoder, tokens: Any, targets: Any) -> Any:
        if RANK == 1 and tokens.shape[0] > MOST:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(model, tokens, targets)

    def search(ranks: Any, team: Any, settings: Any, overrides: Any, *, show: bool) -> Any:
        assert show
        return batch_search.fastest(ranks, team, settings)

    def made_up(ranks: Any, training: Any, steps: int) -> float:
        training.run(steps)
        return STEP_S[training.settings.batch]

    with (
        mock.patch.object(Decoder, "forward", limited),
        mock.patch.object(batch_search, "by_hand", search),
        mock.patch.object(batch_search, "seconds_per_step", made_up),
    ):
        yield


def trainings_in_memory() -> int:
    """Return how many trainings the garbage collector has left."""
    from training.loop import Training

    gc.collect()
    return sum(isinstance(thing, Training) for thing in gc.get_objects())


def start(out: Path) -> str:
    """One torchrun for all of them; return what they printed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    command += ["-m", "tests.selftests.straggler_ranks", str(out)]
    run = subprocess.run(command, cwd=support.CHECKOUT, capture_output=True, text=True, timeout=600)
    if run.returncode:
        raise RuntimeError(f"torchrun ended with {run.returncode}: {run.stderr[-3000:]}")
    return run.stdout


def main() -> None:
    out = Path(sys.argv[1])
    store = standalone.rendezvous(RANK, 2)
    for k, strategy in enumerate(STRATEGIES):
        for j, (case, seconds) in enumerate(CASES.items()):
            prefix = standalone.with_fresh_prefix(store, 10 * k + j)
            params: dict[str, Any] = {"steps": 12}
            if case == "healthy":
                params |= {"checkpoint": str(out / f"{strategy}-checkpoints"), "save_every": 6}
            if case == "accumulating":
                params |= {"batch": 2, "global_batch": 8}
            request = standalone.Request(
                names=[f"training_{strategy}"], out=out / f"{strategy}-{case}", params=params,
                metrics=["pace"], cpu=True,
            )  # fmt: skip
            with made_up_time(seconds[RANK], prefix):
                standalone.run_once(request, RANK, 2, prefix)
            # Lines and their ends are written apart where output is unbuffered: in one write, and
            # on a line of its own, this cannot be mixed with what the other rank prints.
            line = f"\ntrainings in memory on rank {RANK}: {trainings_in_memory()}\n"
            print(line, end="", flush=True)
        request = standalone.Request(
            names=[f"training_{strategy}"], out=out / f"{strategy}-batches", cpu=True,
            params={"preset": "tiny", "steps": 12, "show": True}, metrics=["gradients"],
        )  # fmt: skip
        with little_memory():
            prefix = standalone.with_fresh_prefix(store, 10 * k + 9)
            standalone.run_once(request, RANK, 2, prefix)


if __name__ == "__main__":
    main()
