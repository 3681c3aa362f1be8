"""FSDP (fully_shard): correctness, sharding, throughput and scaling efficiency.

Scaling is relative to every GPU, or every node, alone, as in training/ddp.py. On one node it also
times the shapes whose utilisation is judged: the 8B shape with 16 layers and with all 32, each with
the largest batch that fits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fixtures.records.model import Measurement, Result
from fixtures.wording import counted, plain
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.runtime.spec import Workload
from training import ddp, single

if TYPE_CHECKING:
    from training.run import TimedRun
    from training.settings import Settings
    from training.strategies import Team

WORKLOAD = Workload(
    metrics={
        "curve": "%",
        "sharded": "%",
        "memory": "%",
        "fall": "%",
        "gradients": "steps",
        "tokens": "tokens/s",
        "mfu": "%",
        "mfu_half": "%",
        "gemm": "%",
        "efficiency": "%",
        "efficiency_slowest": "%",
        "pace": "%",
    },
    of_one_rank=("pace",),
    needs_torch=True,
    synchronous=True,
    training=True,
    seconds=372,
    cpu_seconds=22,
    deadline_s=2400,
    cpu_deadline_s=300,
)

PRESET = "8b-short"
FULL_PRESET = "8b"
SCALING_PRESETS = (PRESET, "8b-mini", "1b")
"""Presets to measure scaling with: the first that fits into one GPU, or one node."""
BATCH_SIZES = (4, 2, 1)
"""Sequences per pass to try: utilisation is measured with the first that fits."""
POLICIES = ("block", "root", "size")


def run(
    ranks: Ranks, metrics: list[str], *, show: bool = False, checks: bool = True, **overrides: Any
) -> Result:
    """Measure; `overrides` are values of Settings; `checks`: the reference run as well."""
    from training import batch_search
    from training import run as training_run
    from training.strategies import one_team

    settings = training_run.complete_settings(ranks, "fsdp", overrides, preset=PRESET)
    team = one_team(ranks)
    judged_shapes = training_run.SIZE_SETTINGS.isdisjoint(overrides)
    if not judged_shapes:
        settings = batch_search.by_hand(ranks, team, settings, overrides, show=show)
    measurements: list[Measurement] = []
    if checks and {"curve", "sharded"} & set(metrics):
        measurements = _correctness(ranks, team)
    runs: list[TimedRun] = []
    if training_run.TIMED_METRICS & set(metrics):
        runs, timed_measurements = _timed_measurements(
            ranks, team, settings, metrics, judged_shapes=judged_shapes, by_hand=show
        )
        measurements += timed_measurements
    return Result(
        measurements=[m for m in measurements if m.metric in metrics],
        absent=[a for run in runs for a in run.absent],
        facts=training_run.facts(ranks, runs, show=show),
    )


def _timed_measurements(
    ranks: Ranks, team: Team, settings: Settings, metrics: list[str], *, judged_shapes: bool,
    by_hand: bool,
) -> tuple[list[TimedRun], list[Measurement]]:  # fmt: skip
    """Return timed runs and measurements; `judged_shapes`: of the presets that criteria judge."""
    from training import batch_search
    from training import run as training_run

    def fitted(candidate: Settings) -> Settings | None:
        if by_hand and ranks.on_gpu:
            return batch_search.fastest(ranks, team, candidate)
        return training_run.largest_batch(ranks, candidate, team.size, BATCH_SIZES)

    runs: list[TimedRun] = []
    scaling_settings = _scaling_settings(ranks, team, settings) if judged_shapes else settings
    judge_utilisation = judged_shapes and ranks.on_gpu and len(ranks.nodes) == 1
    if judge_utilisation and (short := fitted(settings)) not in (None, scaling_settings):
        runs.append(training_run.timed_run(ranks, team, short))
    scaling, efficiencies = ddp.scaling_runs(ranks, team, scaling_settings, metrics)
    last = scaling[-1]
    measurements = [*single.health(last), *single.pace(ranks, last)]
    if "gemm" in metrics and ranks.on_gpu:
        measurements.append(_share_of_gemm(ranks, (*runs, last)[0]))
    if len(scaling) > 1 and last.peak_gib and scaling[0].peak_gib:
        share = 100 * last.peak_gib / scaling[0].peak_gib
        measurements.append(Measurement(metric="memory", unit="%", value=round(share, 2)))
    if judge_utilisation and (full := fitted(replace(settings, preset=FULL_PRESET))):
        runs.append(training_run.timed_run(ranks, team, full))
    # NCCL logs its transport only after it has used it.
    network = ddp.network_notes(ranks, team)
    run_of_preset = {run.settings.preset: run for run in (last, *runs)}
    for run in run_of_preset.values():
        measurements += single.throughput(ranks, run, notes=network)
    for metric, samples in efficiencies.items():
        measurements.append(last.measurement(metric, "%", samples, notes=network))
    return [*scaling, *runs], measurements


def _scaling_settings(ranks: Ranks, team: Team, settings: Settings) -> Settings:
    """Return settings with the largest shape that fits into a part, to compare with."""
    from training.run import fits

    if not ranks.on_gpu:
        return settings
    part_size = 1 if len(ranks.nodes) == 1 else ranks.ranks_per_node
    for preset in SCALING_PRESETS:
        candidate = replace(settings, preset=preset)
        if fits(ranks, candidate, part_size):
            return candidate
    # GPUs of 40 GB: the smallest shape, one sequence at a time, with recomputation.
    smallest = replace(settings, preset=SCALING_PRESETS[-1], batch=1, recompute="block")
    return replace(smallest, global_batch=settings.global_batch or settings.batch * team.size)


def _share_of_gemm(ranks: Ranks, timed_run: TimedRun) -> Measurement:
    """Model TFLOPS (causal half) in % of a plain matrix product's on the same hot GPU."""
    from training import metrics

    gemm_tflops = metrics.gemm_tflops(ranks)
    token_flops = metrics.flops_per_token(
        timed_run.settings.shape, timed_run.settings.tokens, causal_half=True
    )
    shares = [100 * rate * token_flops / 1e12 / gemm_tflops for rate in timed_run.tokens_per_s]
    return timed_run.measurement("gemm", "%", shares, notes=[f"product: {gemm_tflops:.0f} TFLOPS"])


def _correctness(ranks: Ranks, team: Team) -> list[Measurement]:
    """Compare losses under every wrapping policy with DDP's, and measure each rank's shard."""
    from training import reference_run

    global_batch = reference_run.global_batch_for(team.size)
    reference = reference_run.losses(
        reference_run.settings_for("ddp", global_batch=global_batch, team_size=team.size), team
    )
    measurements = []
    # Across nodes the communication is the same as within one: one policy is enough.
    policies = POLICIES if len(ranks.nodes) == 1 else POLICIES[:1]
    variants: list[tuple[str, dict[str, Any]]] = [(name, {"wrap": name}) for name in policies]
    if ranks.on_gpu:  # a CPU has nothing to offload to
        variants.append(("offload", {"offload": True}))
    for name, overrides in variants:
        training = reference_run.new_training(
            reference_run.settings_for(
                "fsdp", global_batch=global_batch, team_size=team.size, **overrides
            ),
            team,
        )
        losses = training.run().losses
        at: dict[str, Any] = {"policy": name}
        measurements.append(
            Measurement(
                metric="curve",
                unit="%",
                value=reference_run.max_difference_percent(losses, reference),
                at=at,
            )
        )
        state_bytes = training.model.state_bytes(training.optimizer)
        equal_share = 4 * training.settings.shape.parameters / team.size
        share = 100 * state_bytes["parameters"] / equal_share
        notes = [
            f"{counted(training.model.units, 'unit')}; bytes on rank {ranks.rank}: "
            f"{plain(state_bytes)}"
        ]
        measurements.append(
            Measurement(metric="sharded", unit="%", value=round(share, 2), at=at, notes=notes)
        )
    return measurements
