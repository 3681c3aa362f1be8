"""Every GPU trains alone, all of them at the same time [I1 I6].

A small run in fp32 whose losses are known, its checkpoint read back bit by bit; then a model of the
size that a GPU holds, timed.
"""

from __future__ import annotations

import math
import shutil
import statistics
from typing import TYPE_CHECKING, Any

from fixtures.records.model import Measurement, Result
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.runtime.spec import Workload

if TYPE_CHECKING:
    from training.run import Timed
    from training.strategies import Team

WORKLOAD = Workload(
    metrics=("curve", "reload", "fall", "gradients", "tokens", "mfu"),
    needs_torch=True,
    training=True,
    seconds=90,
    cpu_seconds=12,
    deadline_s=600,
    cpu_deadline_s=300,
)

PRESET = "1b"
TOKENS = 16384
"""A GPU and step."""
BATCHES = (2, 1)
"""Sequences of a pass: the largest that fits."""


def run(
    ranks: Ranks, metrics: list[str], *, show: bool = False, checks: bool = True, **given: Any
) -> Result:
    """`given` are training.settings.Settings; `checks`: the small run as well."""
    from training import run as training_run
    from training.strategies import alone

    settings = training_run.defaults(ranks, "single", given, preset=PRESET)
    settings = training_run.held(ranks, settings, given, 1, BATCHES, TOKENS)
    team = alone(ranks)
    found = _exact(ranks, team) if checks and {"curve", "reload"} & set(metrics) else []
    runs = []
    if training_run.TIMED & set(metrics):
        runs.append(training_run.timed_run(ranks, team, settings))
        found += [*health(runs[0]), *rates(ranks, runs[0])]
    return Result(
        measurements=[m for m in found if m.metric in metrics],
        facts=training_run.facts(ranks, runs, show=show),
    )


def _exact(ranks: Ranks, team: Team) -> list[Measurement]:
    from training import checkpoint, exact
    from training.reference import LOSSES

    made = exact.settings("single")
    training = exact.begin(made, team)
    curve = training.run().losses
    directory = ranks.directory / f"checkpoint-rank{ranks.rank}"
    path = checkpoint.save(directory, training.step, training.state(), team=team)
    # Another seed: what is not read back differs.
    again = exact.begin(exact.settings("single", seed=made.seed + 1), team)
    again.load(path)
    changed = exact.differing(training.state(), again.state())
    shutil.rmtree(directory)
    return [
        Measurement(metric="curve", unit="%", value=exact.apart(curve, LOSSES)),
        Measurement(metric="reload", unit="tensors", value=changed),
    ]


LAST = 5
"""Steps at the end whose median the loss has fallen to: single ones jump at this learning rate."""


def health(timed: Timed) -> list[Measurement]:
    """Whether the loss fell, and whether a gradient was ever no number, or none at all."""
    first, last = timed.losses[0], statistics.median(timed.losses[-LAST:])
    at: dict[str, Any] = {"preset": timed.settings.preset}
    bad = [k for k, n in enumerate(timed.norms, start=1) if not 0 < n < math.inf]
    finite = all(map(math.isfinite, timed.losses))
    fall = max(0.0, 100 * (1 - last / first)) if finite else 0.0
    return [
        Measurement(metric="fall", unit="%", value=round(fall, 3), at=at),
        Measurement(
            metric="gradients", unit="steps", value=len(bad), at=at,
            notes=[f"first in step {bad[0]}"] if bad else [],
        ),
    ]  # fmt: skip


def rates(ranks: Ranks, timed: Timed, **more: Any) -> list[Measurement]:
    """Tokens/s a GPU, and on a known GPU the utilisation of its datasheet peak."""
    from training import metrics

    found = [timed.measurement("tokens", "tokens/s", timed.tokens_per_s, **more)]
    peak = metrics.peak_tflops(str(ranks.device_facts()["name"]))
    if peak is not None and timed.settings.dtype == "bf16":
        for metric, half in (("mfu", False), ("mfu_half", True)):
            a_token = metrics.flops_per_token(
                timed.settings.shape, timed.settings.tokens, causal_half=half
            )
            shares = [100 * r * a_token / 1e12 / peak for r in timed.tokens_per_s]
            found.append(timed.measurement(metric, "%", shares, **more))
    return found
