"""FSDP (fully_shard): is it right, is it sharded, and what does it reach [I3 I6].

As training/ddp.py against every GPU, or every node, alone. On one node also what utilisation is
judged with: the 8B shape with 16 layers and whole, with the largest batch that fits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fixtures.records.model import Measurement, Result
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.runtime.spec import Workload
from training import ddp, single

if TYPE_CHECKING:
    from training.run import Timed
    from training.settings import Settings
    from training.strategies import Team

WORKLOAD = Workload(
    metrics=(
        "curve", "sharded", "memory", "fall", "gradients", "tokens", "mfu", "mfu_half", "gemm",
        "efficiency", "efficiency_slowest",
    ),
    needs_torch=True,
    training=True,
    seconds=360,
    cpu_seconds=22,
    deadline_s=2400,
    cpu_deadline_s=300,
)  # fmt: skip

PRESET = "8b-short"
WHOLE = "8b"
SCALED = (PRESET, "8b-mini", "1b")
"""What scaling is measured with: the first that one GPU, or one node, can hold."""
BATCHES = (4, 2, 1)
"""Sequences a pass: utilisation is that of the largest that fits."""
POLICIES = ("block", "root", "size")


def run(
    ranks: Ranks, metrics: list[str], *, show: bool = False, checks: bool = True, **given: Any
) -> Result:
    """`given` are training.settings.Settings; `checks`: the small run as well."""
    from training import run as training_run
    from training.strategies import together

    settings = training_run.defaults(ranks, "fsdp", given, preset=PRESET)
    team = together(ranks)
    found: list[Measurement] = []
    if checks and {"curve", "sharded"} & set(metrics):
        found = _exact(ranks, team)
    runs: list[Timed] = []
    if training_run.TIMED & set(metrics):
        shapes = training_run.SIZED.isdisjoint(given)
        runs, timed = _timed(ranks, team, settings, metrics, shapes=shapes)
        found += timed
    return Result(
        measurements=[m for m in found if m.metric in metrics],
        facts=training_run.facts(ranks, runs, show=show),
    )


def _timed(
    ranks: Ranks, team: Team, settings: Settings, metrics: list[str], *, shapes: bool
) -> tuple[list[Timed], list[Measurement]]:
    """The runs that are timed, and what they say; `shapes`: those that criteria ask for."""
    from training import run as training_run

    def largest(made: Settings) -> Settings | None:
        return training_run.largest_batch(ranks, made, team.size, BATCHES)

    runs: list[Timed] = []
    scaled = _scalable(ranks, team, settings) if shapes else settings
    judged = shapes and ranks.on_gpu and len(ranks.nodes) == 1
    if judged and (short := largest(settings)) not in (None, scaled):
        runs.append(training_run.timed_run(ranks, team, short))
    pair, efficiencies = ddp.scaled(ranks, team, scaled, metrics)
    last = pair[-1]
    found = single.health(last)
    if "gemm" in metrics and ranks.on_gpu:
        found.append(_over_gemm(ranks, (*runs, last)[0]))
    if len(pair) > 1 and last.peak_gib and pair[0].peak_gib:
        share = 100 * last.peak_gib / pair[0].peak_gib
        found.append(Measurement(metric="memory", unit="%", value=round(share, 2)))
    if judged and (whole := largest(replace(settings, preset=WHOLE))):
        runs.append(training_run.timed_run(ranks, team, whole))
    # NCCL says what it goes through once it has gone through it.
    network = ddp.through(ranks, team)
    of_shapes = {run.settings.preset: run for run in (last, *runs)}
    for run in of_shapes.values():
        found += single.rates(ranks, run, notes=network)
    for metric, samples in efficiencies.items():
        found.append(last.measurement(metric, "%", samples, notes=network))
    return [*pair, *runs], found


def _scalable(ranks: Ranks, team: Team, settings: Settings) -> Settings:
    """The largest shape that a part can hold by itself: without one there is nothing to compare."""
    from training.run import fits

    if not ranks.on_gpu:
        return settings
    part = 1 if len(ranks.nodes) == 1 else ranks.ranks_per_node
    for preset in SCALED:
        made = replace(settings, preset=preset)
        if fits(ranks, made, part):
            return made
    # 40 GB: the smallest of them, one sequence at a time, activations computed again.
    smallest = replace(settings, preset=SCALED[-1], batch=1, recompute="block")
    return replace(smallest, global_batch=settings.global_batch or settings.batch * team.size)


def _over_gemm(ranks: Ranks, timed: Timed) -> Measurement:
    """Model TFLOPS (causal half) over what a plain product reaches on the same hot GPU."""
    from training import metrics

    product = metrics.gemm_tflops(ranks)
    a_token = metrics.flops_per_token(timed.settings.shape, timed.settings.tokens, causal_half=True)
    shares = [100 * rate * a_token / 1e12 / product for rate in timed.tokens_per_s]
    return timed.measurement("gemm", "%", shares, notes=[f"product: {product:.0f} TFLOPS"])


def _exact(ranks: Ranks, team: Team) -> list[Measurement]:
    """Every wrapping policy against DDP, and what a rank holds of the model under each."""
    from training import exact

    whole = exact.global_batch(team.size)
    reference = exact.losses(exact.settings("ddp", whole=whole, ranks=team.size), team)
    found = []
    # Across nodes the same is sent as within one, further: one policy shows it.
    policies = POLICIES if len(ranks.nodes) == 1 else POLICIES[:1]
    variants: list[tuple[str, dict[str, Any]]] = [(name, {"wrap": name}) for name in policies]
    if ranks.on_gpu:  # a CPU has nothing to offload to
        variants.append(("offload", {"offload": True}))
    for name, chosen in variants:
        training = exact.begin(exact.settings("fsdp", whole=whole, ranks=team.size, **chosen), team)
        curve = training.run().losses
        at: dict[str, Any] = {"policy": name}
        found.append(
            Measurement(metric="curve", unit="%", value=exact.apart(curve, reference), at=at)
        )
        held = training.spread.state_bytes(training.optimizer)
        fair = 4 * training.settings.shape.parameters / team.size
        share = 100 * held["parameters"] / fair
        notes = [f"{training.spread.units} units; {held} bytes on rank {ranks.rank}"]
        found.append(
            Measurement(metric="sharded", unit="%", value=round(share, 2), at=at, notes=notes)
        )
    return found
