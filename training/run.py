"""One timed training run of a team: tokens/s, utilisation, memory, and the table of its steps."""

from __future__ import annotations

import gc
import math
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend

from fixtures.records.model import Measurement
from fixtures.workloads.runtime.timing import Batches, synchronize
from training import metrics
from training.attention import Kernel, fastest
from training.data import Feed, dataset
from training.loop import Training, timed
from training.settings import Settings, SettingsError, settings_of
from training.strategies import Team

if TYPE_CHECKING:
    from fixtures.workloads.runtime.ranks import Ranks

TIMED = {
    "fall", "gradients", "tokens", "mfu", "mfu_half", "gemm", "memory", "efficiency",
    "efficiency_slowest",
}  # fmt: skip
"""The metrics that need a timed run."""

SIZED = {"preset", "batch", "global_batch", "recompute", "sequence", "dtype", "compile", "data"}
"""Settings that say what must fit into a GPU, or how much there is to read: who gives one is not
helped with the others."""

EXCLUDED = 10
"""Steps before the first that is timed: compiling, allocating, connecting."""
GPU_STEPS = 30
CPU_STEPS = 10
"""Steps that are timed."""
LONGEST_S = 90.0
"""Of timing where nodes train together: over a slow network fewer steps say the same."""

SMALLER = "160m"
REDUCED = 2
"""Copies of the gradients that DDP holds beside them: 11.2 GiB of the 1B shape on H200. One more
where a step has several passes."""

ROOM = 0.92
"""Share of a GPU's memory that a run may be planned to take."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """What one rank saw of a run."""

    settings: Settings
    team: Team
    seconds: list[float]
    """Of each timed step."""
    started: float
    """Epoch seconds."""
    ended: list[float]
    tokens: int
    """A rank and step."""
    first: int
    """Steps that were done before, where the run was resumed."""
    overlap: float
    """As overlap() says."""
    losses: list[float]
    norms: list[float]
    rates: list[float]
    """Learning rates; these three of all steps, those that are not timed included."""
    state_bytes: dict[str, int]
    peak_gib: float | None
    """Of this rank's GPU."""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens_per_s(self) -> list[float]:
        """Of this rank, step by step."""
        return [self.tokens / s for s in self.seconds]

    @property
    def excluded(self) -> int:
        return len(self.losses) - len(self.seconds)

    def tflops(self, *, causal_half: bool) -> float:
        """Model TFLOPS of this rank, median step."""
        a_token = metrics.flops_per_token(
            self.settings.shape, self.settings.tokens, causal_half=causal_half
        )
        return statistics.median(self.tokens_per_s) * a_token / 1e12

    def measurement(self, metric: str, unit: str, samples: list[float], **more: Any) -> Measurement:
        """A figure a step, with what shows that it is valid."""
        checks = {
            "steps": float(len(self.seconds)), "excluded": float(self.excluded),
            "overlap": round(self.overlap, 4),
        }  # fmt: skip
        at: dict[str, Any] = {"preset": self.settings.preset}
        a_token = metrics.flops_per_token(
            self.settings.shape, self.settings.tokens, causal_half=True
        )
        return Measurement(
            metric=metric, unit=unit, samples=[float(f"{x:.6g}") for x in samples], at=at,
            checks=checks, started=self.started, ended=[round(e, 4) for e in self.ended],
            conditions={"dtype": self.settings.dtype, "flops_per_token": a_token}, **more,
        )  # fmt: skip


def defaults(ranks: Ranks, strategy: str, given: dict[str, Any], *, preset: str) -> Settings:
    """What a run is made of where nothing else was asked for; SettingsError for nonsense."""
    asked = settings_of({**given, "strategy": strategy})
    if ranks.on_gpu:
        usual = Settings(
            strategy=strategy, preset=preset, dtype="bf16", compile=True, batch=2,
            steps=EXCLUDED + GPU_STEPS,
        )  # fmt: skip
    else:
        usual = Settings(
            strategy=strategy, preset="tiny", dtype="fp32", batch=4, steps=EXCLUDED + CPU_STEPS,
            learning_rate=1e-2, wrap="root",
        )  # fmt: skip
    made = replace(usual, **{name: getattr(asked, name) for name in given})
    settings_of({k: v for k, v in vars(made).items() if v != getattr(Settings, k)})
    team_size = 1 if strategy == "single" else ranks.world_size
    made.accumulation(team_size)
    if made.data:
        # Read here, before a GPU is used: broken lines are the commonest of all.
        Feed(dataset(made, 0), made, rank=0, ranks=team_size)
    return made


def fits(ranks: Ranks, settings: Settings, team_size: int) -> bool:
    """Whether all devices can hold a run, by estimate; CPUs can. All ranks must call it."""
    if not ranks.on_gpu:
        return True
    memory = min(ranks.gather(float(ranks.device_facts()["memory_bytes"]))) / 2**30
    if settings.offload:
        return True  # asked for by somebody who knows
    copies = 0
    if settings.strategy == "ddp":
        copies = REDUCED + (settings.accumulation(team_size) > 1)
    needed = metrics.needed_gib(
        settings.shape, tokens=settings.batch * settings.tokens, ranks=team_size,
        fsdp=settings.strategy == "fsdp", recompute=settings.recompute == "block", copies=copies,
    )  # fmt: skip
    return bool(needed <= ROOM * memory)


def largest_batch(
    ranks: Ranks, settings: Settings, team_size: int, batches: Sequence[int]
) -> Settings | None:
    """The settings with the first of `batches` that fits; None where none does."""
    for batch in batches:
        made = replace(settings, batch=batch)
        if fits(ranks, made, team_size):
            return made
    return None


def held(
    ranks: Ranks, settings: Settings, given: Iterable[str], team_size: int,
    batches: Sequence[int], tokens: int,
) -> Settings:  # fmt: skip
    """`tokens` a GPU and step, in the largest of `batches` sequences that fits.

    The preset's shape, or where a GPU cannot hold it that of SMALLER. The settings as they are on
    CPUs, and where one of SIZED was `given`.
    """
    if not ranks.on_gpu or not SIZED.isdisjoint(given):
        return settings
    for preset in (settings.preset, SMALLER):
        made = replace(settings, preset=preset)
        made = replace(made, global_batch=tokens // made.tokens * team_size)
        if found := largest_batch(ranks, made, team_size, batches):
            return found
    return replace(made, batch=batches[-1])


def timed_run(ranks: Ranks, team: Team, settings: Settings) -> Timed:
    """Train all steps of the settings, timing those after the first ten.

    Every rank of the job must call it at the same time, each with its team.
    """
    if settings.checkpoint and team.size < ranks.world_size:
        own = Path(settings.checkpoint) / f"rank{team.members[0]}"
        settings = replace(settings, checkpoint=str(own))
    kernel = agreed_kernel(ranks, settings)
    if team.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    training = Training(settings, team, kernel=kernel)
    before = training.step
    if before >= settings.steps:
        raise SettingsError(f"{before} of {settings.steps} steps are done: give more steps")
    excluded = min(EXCLUDED, settings.steps - before - 1)
    ranks.barrier()
    batches, spare = timed(
        ranks, training, settings.steps - before - excluded, excluded=excluded,
        longest_s=LONGEST_S if len(ranks.nodes) > 1 else None,
    )  # fmt: skip
    shown = training.history
    losses, norms, rates = shown.losses, shown.norms, shown.rates[:]
    loaded_until = batches.ended[-1]
    if settings.checkpoint:
        training.save()
    elif spare:
        training.run(spare)
        synchronize(ranks)
        loaded_until = time.time()
    done = Timed(
        settings=settings,
        team=team,
        seconds=batches.seconds,
        started=batches.started,
        ended=batches.ended,
        tokens=training.tokens_a_step,
        first=before,
        overlap=overlap(ranks, batches, loaded_until),
        losses=losses,
        norms=norms,
        rates=rates,
        state_bytes=training.spread.state_bytes(training.optimizer),
        peak_gib=peak_gib(team.device),
        facts={"attention": kernel.name},
    )
    del training
    free(team.device)
    return done


def overlap(ranks: Ranks, batches: Batches, loaded_until: float) -> float:
    """Share of what this rank timed in which all ranks of the job were training.

    `loaded_until`: epoch seconds; later than its last timed step where it went on for the others.
    """
    began, ended = batches.started, batches.ended[-1]
    windows: list[list[float]] = ranks.gather([began, loaded_until])
    starts, ends = zip(*windows, strict=True)
    return float(max(0.0, (min(ended, *ends) - max(starts)) / (ended - began)))


def agreed_kernel(ranks: Ranks, settings: Settings) -> Kernel:
    """The attention kernel that is the fastest on the job's first rank: the same for all."""
    own = fastest(settings, ranks.device)
    backend, repeat = ranks.gather([own.backend.name if own.backend else None, own.repeat_kv])[0]
    return Kernel(
        backend=getattr(SDPBackend, backend) if backend else None, repeat_kv=repeat,
        seconds=own.seconds,
    )  # fmt: skip


def peak_gib(device: torch.device) -> float | None:
    """Most memory that was allocated at a time since it was last reset; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None


def free(device: torch.device) -> None:
    """Give back what a model held that nobody refers to any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def efficiency(ranks: Ranks, whole: Timed, parts: Timed) -> tuple[list[float], list[float]]:
    """Per cent of the tokens/s a GPU that is left when all train together, step by step.

    `parts` are the same work in smaller teams, all of them at the same time: against the median of
    those teams, and against the slowest, which a synchronous run cannot outrun.
    """
    rate = statistics.median(parts.tokens_per_s)
    by_team: dict[tuple[int, ...], float] = {}
    for members, found in ranks.gather([list(parts.team.members), rate]):
        team = tuple(members)
        by_team[team] = min(found, by_team.get(team, found))
    usual, slowest = statistics.median(by_team.values()), min(by_team.values())
    rates = whole.tokens_per_s
    return [100 * r / usual for r in rates], [100 * r / slowest for r in rates]


def summary(run: Timed) -> dict[str, Any]:
    """The aggregate of a run, as its JSON and its printed line have it."""
    s = run.settings
    found: dict[str, Any] = {
        "strategy": s.strategy, "preset": s.preset, "layers": s.shape.layers,
        "ranks": run.team.size, "parameters": s.shape.parameters, "sequence": s.tokens,
        "batch": s.batch, "accumulation": s.accumulation(run.team.size), "dtype": s.dtype,
        "compile": s.compile,
        "recompute": s.recompute, "wrap": s.wrap, "reshard": s.reshard, "offload": s.offload,
        "steps": len(run.losses), "excluded": run.excluded,
        "first_loss": run.losses[0], "last_loss": run.losses[-1],
        "step_s": statistics.median(run.seconds),
        "tokens_per_s": statistics.median(run.tokens_per_s),
        "tflops_full": run.tflops(causal_half=False), "tflops_half": run.tflops(causal_half=True),
        "state_bytes": run.state_bytes, **run.facts,
    }  # fmt: skip
    if run.peak_gib is not None:
        found["peak_gib"] = run.peak_gib
    return {k: _plain(v) if isinstance(v, float) else v for k, v in found.items()}


def _plain(value: float) -> float | str:
    """Six digits; what is no number is text, because JSON has no NaN."""
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)


HEADINGS = ("step", "loss", "gradient norm", "learning rate", "tokens/s")


def table(run: Timed) -> list[list[float | str | None]]:
    """Rows of HEADINGS; steps that were not timed have no tokens/s."""
    rates: list[float | str | None] = [None] * run.excluded
    rates += [round(x, 1) for x in run.tokens_per_s]
    shown = zip(run.losses, run.norms, run.rates, rates, strict=True)
    return [
        [k, _plain(loss), _plain(norm), _plain(learning_rate), tokens]
        for k, (loss, norm, learning_rate, tokens) in enumerate(shown, start=run.first + 1)
    ]


def facts(ranks: Ranks, runs: Sequence[Timed], *, show: bool) -> dict[str, Any]:
    """What a record says of its runs; the tables by the first rank of each team."""
    if show and ranks.rank == 0:
        for run in runs:
            print_table(run)
    return {
        "runs": [
            summary(run)
            | ({"headings": HEADINGS, "table": table(run)} if run.team.rank == 0 else {})
            for run in runs
        ]
    }


def print_table(run: Timed) -> None:
    """For people who train by hand."""
    out = sys.stdout.write
    out(" ".join(f"{name:>14}" for name in HEADINGS) + "\n")
    for row in table(run):
        out(" ".join(f"{'-' if x is None else x:>14}" for x in row) + "\n")
    out(" ".join(f"{k}={v}" for k, v in summary(run).items() if not isinstance(v, dict)) + "\n")
