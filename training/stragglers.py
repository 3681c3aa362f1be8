"""Who makes the others wait: each rank's time in compute and in waiting, by step.

In synchronous training all ranks have the same step time, that of the slowest, and where the others
wait for it depends on the strategy: DDP at the end of the backward pass, FSDP at every block. The
figures of the training itself therefore name no rank. So after the timed steps the same training
goes on for some *own steps*: whole training steps, with loader, host code, compiled kernels,
optimizer and the strategy's own copies and hooks, in which collectives are answered on the spot
(an all-gather takes this rank's shard for every rank's, a reduce-scatter and an all-reduce leave
what this rank has), so that no rank can wait for another inside of a step. After each step all
ranks meet in an all-reduce of one number. Marks around it (CUDA events on the compute stream, the
host clock on a CPU) part the time of a step:

* own: from the end of the meeting before to the arrival at this one. A slow GPU, a GPU shared with
  another process and a host thread that falls behind its GPU are all in it. The host waits for each
  meeting, so that every rank begins with an empty queue. Were it a step ahead, as in the timed
  steps, the rank that waits would queue work meanwhile, and the other never could: two equal ranks
  whose steps are bound by the host had own steps of 34 and 85 ms (H200, 160m, FSDP).
* waiting: from the arrival to the end of the meeting, which the slowest rank decides.

All ranks are loaded at the same time and begin each step together, so heat and power are those of
training. Nothing is hooked into the timed steps, no compiled code changes, and no memory is needed
beyond that of training. The parameters are useless afterwards: own steps come last.

The pace of a rank is the time that the others need for an own step (the median over the other
ranks) in % of its own: of two ranks each is compared with the other, of many with their median.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from training.loop import Training
from training.strategies import Team

if TYPE_CHECKING:
    from fixtures.workloads.runtime.ranks import Ranks

WARM_UP_STEPS = 1
"""Own steps before the first round, in which the clocks settle without communication."""
MIN_STEPS, MAX_STEPS = 5, 20
"""Steps of a round."""
GPU_ROUND_S, CPU_ROUND_S = 2.0, 0.3
"""Seconds of a round, within these steps."""
CLEAR_PACE = 97.0
"""If a rank is below it in the first round, EXTRA_ROUNDS more are measured on all ranks: no rank is
reported as slow on one round. A stopping rule and no verdict; equal H200 differ by 0.8 %."""
EXTRA_ROUNDS = 2

GATHERS = ("all_gather_into_tensor", "all_gather_single")
SCATTERS = ("reduce_scatter_tensor", "reduce_scatter_single")
"""What fully_shard calls, by version of torch."""


class CommunicationMissed(RuntimeError):
    """Collectives of a step were not seen, so ranks may have waited for each other inside of it."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """The own steps of one round on one rank."""

    own: list[float]
    """Seconds of each step until this rank had done its part."""
    waiting: list[float]
    """Seconds of each step that it then waited for the slowest."""
    reference: float
    """Median over the other ranks of the seconds that each needs for an own step, in its median."""

    @property
    def pace(self) -> list[float]:
        """The other ranks' time in % of this rank's, for each step."""
        return [100 * self.reference / seconds for seconds in self.own]


def measure(ranks: Ranks, training: Training, *, step_s: float) -> list[Round]:
    """Return this rank's rounds of own steps: one, or 1 + EXTRA_ROUNDS if a rank seems slow.

    `step_s`: seconds of a timed step. All ranks of the job must call it, as one team of two or
    more. The parameters are useless afterwards. CommunicationMissed: on this version of torch the
    collectives are not called where they are looked for.
    """
    training.settings = replace(training.settings, checkpoint="", save_every=0)
    round_s = GPU_ROUND_S if ranks.on_gpu else CPU_ROUND_S
    wanted = int(round_s / max(1e-6, ranks.agree(step_s, max)))
    steps = max(MIN_STEPS, min(MAX_STEPS, wanted))
    with collectives_answered_here(training) as meet:
        training.run(WARM_UP_STEPS)
        rounds = [_round(ranks, training, meet, steps)]
        if ranks.agree(statistics.median(rounds[0].pace), min) < CLEAR_PACE:
            rounds += [_round(ranks, training, meet, steps) for _ in range(EXTRA_ROUNDS)]
    return rounds


def _round(ranks: Ranks, training: Training, meet: Meeting, steps: int) -> Round:
    marks = StepMarks(training.team, meet)
    training.run(steps, marks=marks)
    own, waiting = marks.finish()
    medians = ranks.gather(statistics.median(own))
    return Round(own=own, waiting=waiting, reference=time_of_others(medians, ranks.rank))


def time_of_others(medians: list[float], rank: int) -> float:
    """Return the median over all ranks but this one of their median own step."""
    return statistics.median(medians[:rank] + medians[rank + 1 :])


class Meeting:
    """An all-reduce of one number over a team, which collectives_answered_here() leaves alone."""

    def __init__(self, team: Team) -> None:
        self._all_reduce = dist.all_reduce
        self._number = torch.ones(1, device=team.device)
        self._group = team.group

    def __call__(self) -> None:
        self._all_reduce(self._number, op=dist.ReduceOp.MAX, group=self._group)


class StepMarks:
    """Marks at the end of each step, before and after all ranks have met."""

    def __init__(self, team: Team, meet: Meeting) -> None:
        self._gpu = team.device.type == "cuda"
        self._meet = meet
        self._arrived: list[Any] = []
        self._met: list[Any] = []

    def mark(self) -> None:
        """Meet the other ranks, and wait until the device has."""
        self._arrived.append(self._now())
        self._meet()
        self._met.append(self._now())
        if self._gpu:
            self._met[-1].synchronize()

    def finish(self) -> tuple[list[float], list[float]]:
        """Return the seconds of each step until this rank arrived, and those that it waited."""
        own = [self._between(a, b) for a, b in zip(self._met, self._arrived[1:], strict=False)]
        pairs = zip(self._arrived[1:], self._met[1:], strict=True)
        return own, [self._between(a, b) for a, b in pairs]

    def _now(self) -> Any:
        if not self._gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _between(self, a: Any, b: Any) -> float:
        return float(a.elapsed_time(b) / 1000) if self._gpu else float(b - a)


@contextmanager
def collectives_answered_here(training: Training) -> Iterator[Meeting]:
    """Within it, no step of the training waits for another rank; yield where ranks may meet.

    DDP's gradients go through a communication hook that returns them as they are, and fully_shard's
    collectives through the functions of torch.distributed, which are replaced for the time being.
    The DDP module keeps its hook, which reduces as usual afterwards. CommunicationMissed at the end
    if no collective of the strategy's came by.
    """
    answered, within, group = [0], [True], training.team.group

    def gather(*given: Any, **named: Any) -> None:
        output, shard = _tensors(given, named)
        with torch.no_grad():
            output.view(-1, shard.numel()).copy_(
                shard.reshape(1, -1).expand(output.numel() // shard.numel(), -1)
            )
        answered[0] += 1

    def scatter(*given: Any, **named: Any) -> None:
        output, whole = _tensors(given, named)
        with torch.no_grad():
            output.copy_(whole.reshape(-1)[: output.numel()].view_as(output))
        answered[0] += 1

    def keep(bucket: Any) -> torch.futures.Future[Tensor]:
        # DDP's reducer keeps this hook out of reach of the garbage collector: whatever refers to
        # the training here would keep its memory for good.
        if not within[0]:
            assert group is not None
            return allreduce_hook(group, bucket)
        answered[0] += 1
        gradients = bucket.buffer()
        devices = [gradients.device] if gradients.device.type == "cuda" else []
        done: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
        done.set_result(gradients)
        return done

    meet = Meeting(training.team)
    replaced: dict[str, Any] = {name: gather for name in GATHERS if hasattr(dist, name)}
    replaced |= {name: scatter for name in SCATTERS if hasattr(dist, name)}
    replaced["all_reduce"] = lambda *given, **named: None
    if isinstance(training.model.module, DistributedDataParallel):
        training.model.module.register_comm_hook(None, lambda state, bucket: keep(bucket))
    originals = {name: getattr(dist, name) for name in replaced}
    try:
        for name, function in replaced.items():
            setattr(dist, name, function)
        yield meet
    finally:
        within[0] = False
        for name, function in originals.items():
            setattr(dist, name, function)
    if not answered[0]:
        raise CommunicationMissed(
            f"torch {torch.__version__}: no collective of {training.settings.strategy} came by "
            f"{', '.join(replaced)} or a communication hook"
        )


def _tensors(given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return output and input of a collective's call, which gives them in this order."""
    output, source = (x for x in (*given, *named.values()) if isinstance(x, Tensor))
    return output, source
