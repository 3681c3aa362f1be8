"""The fastest batch that fits into memory: tried for a few steps each, for training by hand.

A rank that runs out of memory leaves the others alone with their collectives, so a batch is first
tried with collectives answered on the spot (stragglers.py): each rank then reports for itself
whether it fits. Only a batch that fits everywhere is timed with communication.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from training import stragglers
from training.loop import Training, seconds_per_step
from training.run import agreed_kernel, free_memory
from training.settings import Settings, SettingsError
from training.strategies import Team

if TYPE_CHECKING:
    from fixtures.workloads.runtime.ranks import Ranks

FITTING_STEPS = 2
"""Steps to see whether a batch fits: the optimizer's state exists from the first on."""
WARM_UP_STEPS = 2
TIMED_STEPS = 5
FREE_GIB = 1.0
"""GiB that must be left of a GPU's memory: NCCL and libraries of kernels take more as they run."""
CLEARLY_SLOWER = 0.99
"""A batch below this share of the best rate so far ends the search: larger ones are slower still,
or fragment memory."""
MEMORY_ERRORS = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def by_hand(
    ranks: Ranks, team: Team, settings: Settings, overrides: Iterable[str], *, show: bool
) -> Settings:
    """Return the settings with the fastest batch that fits, if they are by hand and name none.

    Unchanged on a CPU, whose memory does not limit it, and in a job of the suite, where the batch
    is part of what is compared. `show`: it is by hand. SettingsError if no batch fits.
    """
    if not show or not ranks.on_gpu or "batch" in overrides:
        return settings
    if found := fastest(ranks, team, settings):
        return found
    raise SettingsError(
        f"preset {settings.preset} does not fit into memory with batch 1: give "
        "--recompute block, a shorter --sequence, a smaller --preset, or more GPUs with fsdp"
    )


def fastest(ranks: Ranks, team: Team, settings: Settings) -> Settings | None:
    """Return the settings with the batch of 1, 2, 4, ... that trains the most tokens per second.

    Only batches that divide the global batch, if one is set. All ranks of the job must call it,
    each with its team; all get the same batch. None if no batch fits.
    """
    rates: dict[int, float] = {}
    for batch in (1 << k for k in itertools.count()):
        try:
            rate = _trial(ranks, team, _for_trial(settings, batch, team.size))
        except SettingsError as error:
            if not rates:
                raise
            _say(ranks, f"batch {batch}: {error}")
            break
        if rate is None:
            _say(ranks, f"batch {batch}: out of memory")
            break
        _say(ranks, f"batch {batch}: {rate:,.0f} tokens/s per rank")
        rates[batch] = rate
        if rate < CLEARLY_SLOWER * max(rates.values()):
            break
    if not rates:
        return None
    best = max(rates, key=lambda batch: rates[batch])
    _say(ranks, f"batch {best} is the fastest that fits")
    return replace(settings, batch=best)


def _for_trial(settings: Settings, batch: int, team_size: int) -> Settings:
    """Return the settings of a trial; SettingsError if the batch does not divide the global one."""
    trial = replace(
        settings, batch=batch, checkpoint="", resume=False, save_every=0,
        steps=FITTING_STEPS + WARM_UP_STEPS + TIMED_STEPS,
    )  # fmt: skip
    trial.passes_per_step(team_size)
    return trial


def _trial(ranks: Ranks, team: Team, settings: Settings) -> float | None:
    """Return tokens per second of a rank on the slowest one; None if some rank lacks the memory."""
    kernel = agreed_kernel(ranks, settings)
    if team.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    made: list[Training] = []
    fits = _all_have_memory(ranks, lambda: made.append(Training(settings, team, kernel=kernel)))
    rate = None
    if fits and _steps_fit(ranks, made[0]):
        made[0].run(WARM_UP_STEPS)
        step_s = ranks.agree(seconds_per_step(ranks, made[0], TIMED_STEPS), max)
        rate = made[0].tokens_per_step / step_s
    made.clear()
    if settings.compile:
        # Each batch is compiled anew, and the number of variants of a function is limited.
        torch._dynamo.reset()
    free_memory(team.device)
    return rate


def _steps_fit(ranks: Ranks, training: Training) -> bool:
    """Whether every rank has the memory for FITTING_STEPS, which no rank waits for another in.

    All agree after each: DDP orders its buckets anew at the start of the second step, together.
    """
    alone: AbstractContextManager[Any] = nullcontext()
    if training.team.size > 1:
        alone = stragglers.collectives_answered_here(training)
    fits = True
    # Where collectives are not seen the ranks did these steps with them, and that is enough here.
    with suppress(stragglers.CommunicationMissed), alone:
        for _ in range(FITTING_STEPS):
            fits = fits and _all_have_memory(ranks, partial(training.run, 1))
    return fits


def _all_have_memory(ranks: Ranks, work: Callable[[], object]) -> bool:
    """Do the work, and return whether no rank of the job ran out of memory in it."""
    try:
        work()
        fits = _memory_is_left(ranks.device)
    except RuntimeError as error:
        if not any(words in str(error) for words in MEMORY_ERRORS):
            raise
        fits = False
    return bool(ranks.agree(fits, all))


def _memory_is_left(device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    torch.cuda.synchronize()
    free, _ = torch.cuda.mem_get_info(device)
    reusable = torch.cuda.memory_reserved(device) - torch.cuda.max_memory_allocated(device)
    return free + max(0, reusable) >= FREE_GIB * 2**30


def _say(ranks: Ranks, text: str) -> None:
    if ranks.rank == 0:
        sys.stdout.write(text + "\n")
