"""Training of every GPU alone, all of them at the same time.

The reference run in fp32, whose losses are known, with its checkpoint compared bit by bit after
reloading; then a timed run of a model that fills a GPU.
"""

from __future__ import annotations

import math
import shutil
import statistics
from typing import TYPE_CHECKING, Any

from fixtures.records.model import Measurement, Result
from fixtures.records.tuning_variables import CUDA, MATH
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.runtime.spec import Workload

if TYPE_CHECKING:
    from training.run import TimedRun
    from training.strategies import Team

WORKLOAD = Workload(
    metrics={
        "curve": "%",
        "reload": "tensors",
        "fall": "%",
        "gradients": "steps",
        "tokens": "tokens/s",
        "mfu": "%",
    },
    needs_torch=True,
    training=True,
    seconds=90,
    cpu_seconds=12,
    deadline_s=600,
    cpu_deadline_s=300,
    settings=(CUDA, MATH),
)

PRESET = "1b"
TOKENS_PER_STEP = 16384
"""Tokens per GPU and step."""
BATCH_SIZES = (2, 1)
"""Sequences per pass to try: the first that fits."""


def run(
    ranks: Ranks, metrics: list[str], *, show: bool = False, checks: bool = True, **overrides: Any
) -> Result:
    """Measure; `overrides` are values of Settings; `checks`: the reference run as well."""
    from training import batch_search
    from training import run as training_run
    from training.strategies import one_team_per_rank

    settings = training_run.complete_settings(ranks, "single", overrides, preset=PRESET)
    settings = training_run.fit_to_memory(
        ranks, settings, overrides, 1, BATCH_SIZES, TOKENS_PER_STEP
    )
    team = one_team_per_rank(ranks)
    settings = batch_search.by_hand(ranks, team, settings, overrides, show=show)
    measurements = (
        _correctness(ranks, team) if checks and {"curve", "reload"} & set(metrics) else []
    )
    runs = []
    if training_run.TIMED_METRICS & set(metrics):
        runs.append(training_run.timed_run(ranks, team, settings))
        measurements += [*health(runs[0]), *throughput(ranks, runs[0])]
    return Result(
        measurements=[m for m in measurements if m.metric in metrics],
        absent=[a for run in runs for a in run.absent],
        facts=training_run.facts(ranks, runs, show=show),
    )


def _correctness(ranks: Ranks, team: Team) -> list[Measurement]:
    from training import checkpoint, reference_run
    from training.reference import LOSSES

    settings = reference_run.settings_for("single")
    training = reference_run.new_training(settings, team)
    losses = training.run().losses
    directory = ranks.directory / f"checkpoint-rank{ranks.rank}"
    path = checkpoint.save(directory, training.step, training.state(), team=team)
    # Another seed: whatever is not reloaded differs.
    reloaded = reference_run.new_training(
        reference_run.settings_for("single", seed=settings.seed + 1), team
    )
    reloaded.load(path)
    changed = reference_run.count_differences(training.state(), reloaded.state())
    shutil.rmtree(directory)
    return [
        Measurement(
            metric="curve", unit="%", value=reference_run.max_difference_percent(losses, LOSSES)
        ),
        Measurement(metric="reload", unit="tensors", value=changed),
    ]


NOTED_PACE = 97.0
"""A rank whose pace is below this in % in every round reports how long its part of a step takes."""

FINAL_STEPS = 5
"""Last steps whose median is the final loss: single ones jump at this learning rate."""


def health(timed_run: TimedRun) -> list[Measurement]:
    """Measure the fall of the loss, and count steps whose gradient norm is zero or not finite."""
    first, last = timed_run.losses[0], statistics.median(timed_run.losses[-FINAL_STEPS:])
    at: dict[str, Any] = {"preset": timed_run.settings.preset}
    bad_steps = [k for k, n in enumerate(timed_run.norms, start=1) if not 0 < n < math.inf]
    finite = all(map(math.isfinite, timed_run.losses))
    fall = max(0.0, 100 * (1 - last / first)) if finite else 0.0
    return [
        Measurement(metric="fall", unit="%", value=round(fall, 3), at=at),
        Measurement(
            metric="gradients", unit="steps", value=len(bad_steps), at=at,
            notes=[f"first in step {bad_steps[0]}"] if bad_steps else [],
        ),
    ]  # fmt: skip


def throughput(ranks: Ranks, timed_run: TimedRun, **fields: Any) -> list[Measurement]:
    """Measure tokens/s per GPU, and on known GPUs the utilisation of the datasheet peak."""
    from training import metrics

    measurements = [timed_run.measurement("tokens", "tokens/s", timed_run.tokens_per_s, **fields)]
    peak = metrics.peak_tflops(str(ranks.device_facts()["name"]))
    if peak is not None and timed_run.settings.dtype == "bf16":
        for metric, causal_half in (("mfu", False), ("mfu_half", True)):
            token_flops = metrics.flops_per_token(
                timed_run.settings.shape, timed_run.settings.tokens, causal_half=causal_half
            )
            shares = [100 * r * token_flops / 1e12 / peak for r in timed_run.tokens_per_s]
            measurements.append(timed_run.measurement(metric, "%", shares, **fields))
    return measurements


def pace(ranks: Ranks, timed_run: TimedRun) -> list[Measurement]:
    """Measure the time of the others in % of this rank's own, if own steps were trained."""
    rounds = timed_run.own_rounds
    if not rounds:
        return []
    samples = [[float(f"{x:.6g}") for x in r.pace] for r in rounds]
    own, waiting, others = (
        1000 * statistics.median(values)
        for values in (
            [x for r in rounds for x in r.own],
            [x for r in rounds for x in r.waiting],
            [r.reference for r in rounds],
        )
    )
    device = ranks.device_facts()
    note = (
        f"{ranks.node} gpu{device.get('index', ranks.local_rank)} takes {own:.4g} ms for its part "
        f"of a step and waits {waiting:.3g} ms, the others take {others:.4g} ms"
    )
    return [
        Measurement(
            metric="pace", unit="%", samples=samples[0], rounds=samples[1:],
            at={"preset": timed_run.settings.preset},
            checks={"steps": float(min(map(len, samples)))},
            # Of those who are slow only: a row shows the notes of all ranks.
            notes=[note] if all(statistics.median(r) < NOTED_PACE for r in samples) else [],
        )
    ]  # fmt: skip
