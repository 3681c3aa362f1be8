"""Timed training runs of a team: settings, tokens/s, utilisation, memory, table of steps."""

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

from fixtures.records.absence import Absence, Kind, of_metrics
from fixtures.records.model import Measurement
from fixtures.wording import counted
from fixtures.workloads.timing.timing import Batches, synchronize
from training import metrics, stragglers
from training.attention import Kernel, fastest_kernel
from training.data import BatchLoader, dataset
from training.loop import Training, time_steps
from training.settings import Settings, SettingsError, settings_of
from training.strategies import Team

if TYPE_CHECKING:
    from fixtures.workloads.runtime.ranks import Ranks

TIMED_METRICS = {
    "fall", "gradients", "tokens", "mfu", "mfu_half", "gemm", "memory", "efficiency",
    "efficiency_slowest", "pace",
}  # fmt: skip
"""Metrics that need a timed run."""

SIZE_SETTINGS = {
    "preset",
    "batch",
    "global_batch",
    "recompute",
    "sequence",
    "dtype",
    "compile",
    "data",
}
"""Settings of the size of model, batch and data: if one of them is given, none of them is fitted
to the GPU's memory."""

EXCLUDED_STEPS = 10
"""Steps before the first timed one: for compiling, allocating and connecting."""
GPU_STEPS = 30
CPU_STEPS = 10
"""Timed steps."""
MAX_TIMED_S = 90.0
"""Longest timing over several nodes: on a slow network fewer steps are enough."""

SMALLER_PRESET = "160m"
DDP_GRADIENT_COPIES = 2
"""Copies of the gradients that DDP holds besides them: 11.2 GiB for the 1B shape on H200. One more
if a step has several passes."""

MEMORY_SHARE = 0.92
"""Largest share of a GPU's memory that a run may need by the estimate."""


@dataclass(frozen=True, kw_only=True)
class TimedRun:
    """One rank's timings, losses and memory of a training run."""

    settings: Settings
    team: Team
    seconds: list[float]
    """Seconds of each timed step."""
    started: float
    """Epoch seconds at the start of the first timed step."""
    ended: list[float]
    """Epoch seconds at the end of each timed step."""
    tokens: int
    """Tokens per rank and step."""
    first_step: int
    """Steps done before this run, if it was resumed."""
    overlap: float
    """Share of the timed steps in which all ranks were training; see overlap()."""
    losses: list[float]
    norms: list[float]
    learning_rates: list[float]
    """Of all steps, as losses and norms: those that are not timed included."""
    state_bytes: dict[str, int]
    peak_gib: float | None
    """Peak memory of this rank's GPU; None on a CPU."""
    facts: dict[str, Any] = field(default_factory=dict)
    own_rounds: list[stragglers.Round] = field(default_factory=list)
    """What shows who makes the others wait, if that was asked for."""
    absent: list[Absence] = field(default_factory=list)
    """Why this run has none of a metric."""

    @property
    def tokens_per_s(self) -> list[float]:
        """Tokens/s of this rank in each timed step."""
        return [self.tokens / s for s in self.seconds]

    @property
    def excluded(self) -> int:
        return len(self.losses) - len(self.seconds)

    def tflops(self, *, causal_half: bool) -> float:
        """Return the model TFLOPS of this rank in the median step."""
        token_flops = metrics.flops_per_token(
            self.settings.shape, self.settings.tokens, causal_half=causal_half
        )
        return statistics.median(self.tokens_per_s) * token_flops / 1e12

    def measurement(
        self, metric: str, unit: str, samples: list[float], **fields: Any
    ) -> Measurement:
        """Return a measurement with one sample per timed step, and the checks of its validity."""
        checks = {
            "steps": float(len(self.seconds)), "excluded": float(self.excluded),
            "overlap": round(self.overlap, 4),
        }  # fmt: skip
        at: dict[str, Any] = {"preset": self.settings.preset}
        token_flops = metrics.flops_per_token(
            self.settings.shape, self.settings.tokens, causal_half=True
        )
        return Measurement(
            metric=metric, unit=unit, samples=[float(f"{x:.6g}") for x in samples], at=at,
            checks=checks, started=self.started, ended=[round(e, 4) for e in self.ended],
            conditions={"dtype": self.settings.dtype, "flops_per_token": token_flops}, **fields,
        )  # fmt: skip


def complete_settings(
    ranks: Ranks, strategy: str, overrides: dict[str, Any], *, preset: str
) -> Settings:
    """Return a run's settings: defaults, overridden; SettingsError if they are invalid."""
    requested = settings_of({**overrides, "strategy": strategy})
    if ranks.on_gpu:
        defaults = Settings(
            strategy=strategy, preset=preset, dtype="bf16", compile=True, batch=2,
            steps=EXCLUDED_STEPS + GPU_STEPS,
        )  # fmt: skip
    else:
        defaults = Settings(
            strategy=strategy, preset="tiny", dtype="fp32", batch=4,
            steps=EXCLUDED_STEPS + CPU_STEPS, learning_rate=1e-2, wrap="root",
        )  # fmt: skip
    settings = replace(defaults, **{name: getattr(requested, name) for name in overrides})
    settings_of({k: v for k, v in vars(settings).items() if v != getattr(Settings, k)})
    team_size = 1 if strategy == "single" else ranks.world_size
    settings.passes_per_step(team_size)
    if settings.data:
        # Read here, before a GPU is used: broken lines are the most common error.
        BatchLoader(dataset(settings, 0), settings, rank=0, team_size=team_size)
    return settings


def fits(ranks: Ranks, settings: Settings, team_size: int) -> bool:
    """Whether a run fits into all GPUs, by estimate; always on CPUs. All ranks must call it."""
    if not ranks.on_gpu:
        return True
    gpu_gib = min(ranks.gather(float(ranks.device_facts()["memory_bytes"]))) / 2**30
    if settings.offload:
        return True  # offloading was requested explicitly, to fit into memory
    gradient_copies = 0
    if settings.strategy == "ddp":
        gradient_copies = DDP_GRADIENT_COPIES + (settings.passes_per_step(team_size) > 1)
    needed_gib = metrics.needed_gib(
        settings.shape, tokens=settings.batch * settings.tokens, team_size=team_size,
        fsdp=settings.strategy == "fsdp", recompute=settings.recompute == "block",
        gradient_copies=gradient_copies,
    )  # fmt: skip
    return bool(needed_gib <= MEMORY_SHARE * gpu_gib)


def largest_batch(
    ranks: Ranks, settings: Settings, team_size: int, batches: Sequence[int]
) -> Settings | None:
    """Return the settings with the first of `batches` that fits; None if none does."""
    for batch in batches:
        candidate = replace(settings, batch=batch)
        if fits(ranks, candidate, team_size):
            return candidate
    return None


def fit_to_memory(
    ranks: Ranks, settings: Settings, overrides: Iterable[str], team_size: int,
    batches: Sequence[int], tokens_per_step: int,
) -> Settings:  # fmt: skip
    """Return settings for `tokens_per_step` on each GPU, with the first of `batches` that fits.

    With the preset's shape, or that of SMALLER_PRESET if it does not fit into a GPU. Unchanged on
    CPUs, and if `overrides` has one of SIZE_SETTINGS.
    """
    if not ranks.on_gpu or not SIZE_SETTINGS.isdisjoint(overrides):
        return settings
    for preset in (settings.preset, SMALLER_PRESET):
        candidate = replace(settings, preset=preset)
        candidate = replace(candidate, global_batch=tokens_per_step // candidate.tokens * team_size)
        if fitting := largest_batch(ranks, candidate, team_size, batches):
            return fitting
    return replace(candidate, batch=batches[-1])


def timed_run(ranks: Ranks, team: Team, settings: Settings, *, own_steps: bool = False) -> TimedRun:
    """Train all steps of the settings, timing those after the first EXCLUDED_STEPS.

    All ranks of the job must call it at the same time, each with its team. With `own_steps`, and
    all ranks in one team, go on with steps that show who makes the others wait (stragglers.py).
    """
    if settings.checkpoint and team.size < ranks.world_size:
        directory = Path(settings.checkpoint) / f"rank{team.members[0]}"
        settings = replace(settings, checkpoint=str(directory))
    kernel = agreed_kernel(ranks, settings)
    if team.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    training = Training(settings, team, kernel=kernel)
    steps_before = training.step
    if steps_before >= settings.steps:
        raise SettingsError(
            f"{steps_before} of {counted(settings.steps, 'step')} already done: give more steps"
        )
    excluded = min(EXCLUDED_STEPS, settings.steps - steps_before - 1)
    ranks.barrier()
    batches, extra_steps = time_steps(
        ranks, training, settings.steps - steps_before - excluded, excluded=excluded,
        max_timed_s=MAX_TIMED_S if len(ranks.nodes) > 1 else None,
    )  # fmt: skip
    history = training.history
    losses, norms, learning_rates = history.losses, history.norms, history.learning_rates[:]
    trained_until = batches.ended[-1]
    if settings.checkpoint:
        training.save()
    elif extra_steps:
        training.run(extra_steps)
        synchronize(ranks)
        trained_until = time.time()
    trained_overlap = overlap(ranks, batches, trained_until)
    state_bytes, peak = training.model.state_bytes(training.optimizer), peak_gib(team.device)
    own_rounds: list[stragglers.Round] = []
    absent: list[Absence] = []
    if own_steps and team.size == ranks.world_size > 1:
        step_s = statistics.median(batches.seconds)
        try:
            own_rounds = stragglers.measure(ranks, training, step_s=step_s)
        except stragglers.CommunicationMissed as error:
            absent += of_metrics(Kind.FAULT, {"pace": str(error)})
    done = TimedRun(
        settings=settings,
        team=team,
        seconds=batches.seconds,
        started=batches.started,
        ended=batches.ended,
        tokens=training.tokens_per_step,
        first_step=steps_before,
        overlap=trained_overlap,
        losses=losses,
        norms=norms,
        learning_rates=learning_rates,
        state_bytes=state_bytes,
        peak_gib=peak,
        facts={"attention": kernel.name},
        own_rounds=own_rounds,
        absent=absent,
    )
    del training
    free_memory(team.device)
    return done


def overlap(ranks: Ranks, batches: Batches, trained_until: float) -> float:
    """Return the share of this rank's timed steps in which all ranks of the job were training.

    `trained_until`: epoch seconds; later than its last timed step if it trained extra steps.
    """
    began, ended = batches.started, batches.ended[-1]
    windows: list[list[float]] = ranks.gather([began, trained_until])
    starts, ends = zip(*windows, strict=True)
    return float(max(0.0, (min(ended, *ends) - max(starts)) / (ended - began)))


def agreed_kernel(ranks: Ranks, settings: Settings) -> Kernel:
    """Return the attention kernel that is the fastest on the job's first rank, for all ranks."""
    own_kernel = fastest_kernel(settings, ranks.device)
    backend, repeat_kv = ranks.gather(
        [own_kernel.backend.name if own_kernel.backend else None, own_kernel.repeat_kv]
    )[0]
    return Kernel(
        backend=getattr(SDPBackend, backend) if backend else None, repeat_kv=repeat_kv,
        seconds=own_kernel.seconds,
    )  # fmt: skip


def peak_gib(device: torch.device) -> float | None:
    """Return the peak of allocated memory since the last reset; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None


def free_memory(device: torch.device) -> None:
    """Free the memory of models that are no longer referenced."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def efficiency(
    ranks: Ranks, whole_run: TimedRun, parts_run: TimedRun
) -> tuple[list[float], list[float]]:
    """Return each step's tokens/s per GPU of all ranks together in % of that of the parts.

    `parts_run` is the same work in smaller teams, all at the same time. Two lists: relative to the
    median of those teams, and to the slowest, which a synchronous run cannot exceed.
    """
    rate = statistics.median(parts_run.tokens_per_s)
    by_team: dict[tuple[int, ...], float] = {}
    for members, member_rate in ranks.gather([list(parts_run.team.members), rate]):
        team = tuple(members)
        by_team[team] = min(member_rate, by_team.get(team, member_rate))
    median_rate, slowest_rate = statistics.median(by_team.values()), min(by_team.values())
    rates = whole_run.tokens_per_s
    return [100 * r / median_rate for r in rates], [100 * r / slowest_rate for r in rates]


def summary(run: TimedRun) -> dict[str, Any]:
    """Return the aggregate of a run, for the record and the printed line."""
    s = run.settings
    aggregate: dict[str, Any] = {
        "strategy": s.strategy, "preset": s.preset, "layers": s.shape.layers,
        "ranks": run.team.size, "parameters": s.shape.parameters, "sequence": s.tokens,
        "batch": s.batch, "accumulation": s.passes_per_step(run.team.size), "dtype": s.dtype,
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
        aggregate["peak_gib"] = run.peak_gib
    return {k: _json_number(v) if isinstance(v, float) else v for k, v in aggregate.items()}


def _json_number(value: float) -> float | str:
    """Round to six digits; inf and NaN become text, because JSON has neither."""
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)


HEADINGS = ("step", "loss", "gradient norm", "learning rate", "tokens/s")


def table(run: TimedRun) -> list[list[float | str | None]]:
    """Return rows of HEADINGS; tokens/s is None in steps that were not timed."""
    tokens_per_s: list[float | str | None] = [None] * run.excluded
    tokens_per_s += [round(x, 1) for x in run.tokens_per_s]
    steps = zip(run.losses, run.norms, run.learning_rates, tokens_per_s, strict=True)
    return [
        [k, _json_number(loss), _json_number(norm), _json_number(learning_rate), tokens]
        for k, (loss, norm, learning_rate, tokens) in enumerate(steps, start=run.first_step + 1)
    ]


def facts(ranks: Ranks, runs: Sequence[TimedRun], *, show: bool) -> dict[str, Any]:
    """Return the record's facts on the runs; tables only from the first rank of each team."""
    if show and ranks.rank == 0:
        for run in runs:
            print_table(run)
    return {
        "runs": [
            summary(run)
            | ({"headings": HEADINGS, "table": table(run)} if run.team.rank == 0 else {})
            | ({"own_steps": [vars(r) for r in run.own_rounds]} if run.own_rounds else {})
            for run in runs
        ]
    }


def print_table(run: TimedRun) -> None:
    """Print the steps and the aggregate of a run that was started by hand."""
    out = sys.stdout.write
    out(" ".join(f"{name:>14}" for name in HEADINGS) + "\n")
    for row in table(run):
        out(" ".join(f"{'-' if x is None else x:>14}" for x in row) + "\n")
    out(" ".join(f"{k}={v}" for k, v in summary(run).items() if not isinstance(v, dict)) + "\n")
