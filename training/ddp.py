"""DistributedDataParallel: correctness, throughput and scaling efficiency.

Scaling is relative to the parts of the job: each GPU alone in a job on one node, each node alone in
a job over all nodes. The parts train at the same time, so that temperature and power are equal.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fixtures.records.model import Measurement, Result
from fixtures.wording import counted
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.runtime.spec import Workload
from training import single

if TYPE_CHECKING:
    from training.run import TimedRun
    from training.settings import Settings
    from training.strategies import Team

WORKLOAD = Workload(
    metrics={
        "ranks": "ranks",
        "coverage": "samples",
        "replicas": "ranks",
        "curve": "%",
        "accumulation": "%",
        "fall": "%",
        "gradients": "steps",
        "tokens": "tokens/s",
        "mfu": "%",
        "mfu_half": "%",
        "efficiency": "%",
        "efficiency_slowest": "%",
        "pace": "%",
    },
    of_one_rank=("pace",),
    needs_torch=True,
    synchronous=True,
    training=True,
    judges_devices=True,
    seconds=140,
    cpu_seconds=18,
    deadline_s=1800,
    cpu_deadline_s=300,
)

PRESET = "1b"
TOKENS_PER_STEP = 65536
"""Tokens per GPU and step: many, because gradients are communicated once per step."""
BATCH_SIZES = (8, 4, 2, 1)
"""Sequences per pass to try: the first that fits; the other tokens by accumulation."""


def run(
    ranks: Ranks, metrics: list[str], *, show: bool = False, checks: bool = True, **overrides: Any
) -> Result:
    """Measure; `overrides` are values of Settings; `checks`: the reference run as well."""
    from training import batch_search
    from training import run as training_run
    from training.strategies import one_team

    settings = training_run.complete_settings(ranks, "ddp", overrides, preset=PRESET)
    team = one_team(ranks)
    settings = training_run.fit_to_memory(
        ranks, settings, overrides, team.size, BATCH_SIZES, TOKENS_PER_STEP
    )
    settings = batch_search.by_hand(ranks, team, settings, overrides, show=show)
    measurements: list[Measurement] = []
    if checks and {"ranks", "coverage", "replicas", "curve", "accumulation"} & set(metrics):
        measurements = _correctness(ranks, team, metrics)
    runs: list[TimedRun] = []
    if training_run.TIMED_METRICS & set(metrics):
        runs, efficiencies = scaling_runs(ranks, team, settings, metrics)
        network = network_notes(ranks, team)
        measurements += [
            *single.health(runs[-1]),
            *single.throughput(ranks, runs[-1], notes=network),
            *single.pace(ranks, runs[-1]),
        ]
        for metric, samples in efficiencies.items():
            measurements.append(runs[-1].measurement(metric, "%", samples, notes=network))
    return Result(
        measurements=[m for m in measurements if m.metric in metrics],
        absent=[a for run in runs for a in run.absent],
        facts=training_run.facts(ranks, runs, show=show),
    )


def scaling_runs(
    ranks: Ranks, team: Team, settings: Settings, metrics: list[str]
) -> tuple[list[TimedRun], dict[str, list[float]]]:
    """Time the parts, if scaling is measured and they have the memory, then all together.

    A part is one GPU (without DDP) in a job on one node, else one node. Return the runs, that of
    all ranks last, and the samples of each efficiency metric in %.
    """
    from training import run as training_run
    from training.strategies import one_team_per_node, one_team_per_rank

    own_steps = "pace" in metrics
    if not {"efficiency", "efficiency_slowest"} & set(metrics) or team.size == 1:
        return [training_run.timed_run(ranks, team, settings, own_steps=own_steps)], {}
    part_settings = settings
    if len(ranks.nodes) > 1:
        part_team = one_team_per_node(ranks)
    else:
        fsdp = settings.strategy == "fsdp"
        part_settings = part_settings if fsdp else replace(part_settings, strategy="single")
        part_team = one_team_per_rank(ranks, make_groups=fsdp)
    part_settings = settings_of_part(part_settings, team.size, part_team.size)
    if not training_run.fits(ranks, part_settings, part_team.size):
        return [training_run.timed_run(ranks, team, settings, own_steps=own_steps)], {}
    parts_run = training_run.timed_run(ranks, part_team, part_settings)
    whole_run = training_run.timed_run(ranks, team, settings, own_steps=own_steps)
    of_median, of_slowest = training_run.efficiency(ranks, whole_run, parts_run)
    return [parts_run, whole_run], {"efficiency": of_median, "efficiency_slowest": of_slowest}


def settings_of_part(settings: Settings, team_size: int, part_size: int) -> Settings:
    """Return settings for a part: as many sequences and passes per rank, no checkpoint."""
    global_batch = settings.passes_per_step(team_size) * settings.batch * part_size
    return replace(settings, checkpoint="", resume=False, global_batch=global_batch)


def network_notes(ranks: Ranks, team: Team) -> list[str]:
    """Return a note on the transport of the gradients: the slowest that NCCL logs; or none."""
    from fixtures.workloads.nccl import nccl_log

    if team.size == 1:
        return []
    conditions, _ = nccl_log.conditions(ranks, team.members)
    where = "between the nodes" if len(ranks.nodes) > 1 else "in the node"
    return [f"network {where}: {conditions['transport']}"] if "transport" in conditions else []


def _correctness(ranks: Ranks, team: Team, metrics: list[str]) -> list[Measurement]:
    from training import reference_run
    from training.strategies import one_team_per_rank

    global_batch = reference_run.global_batch_for(team.size)
    settings = reference_run.settings_for("ddp", global_batch=global_batch, team_size=team.size)
    training = reference_run.new_training(settings, team)
    losses = training.run().losses
    digest = reference_run.parameter_digest(training)
    majority_digest = reference_run.majority(ranks, digest)
    seen_samples = training.batch_loader.seen_samples
    reference = reference_run.losses(
        reference_run.settings_for("single", global_batch=global_batch), one_team_per_rank(ranks)
    )
    measurements = [
        Measurement(metric="ranks", unit="ranks", value=misplaced(ranks, team)),
        Measurement(
            metric="replicas",
            unit="ranks",
            value=int(digest != majority_digest),
            notes=[f"rank {ranks.rank} has other parameters"] if digest != majority_digest else [],
        ),
        Measurement(
            metric="curve", unit="%", value=reference_run.max_difference_percent(losses, reference)
        ),
        coverage(ranks, seen_samples, reference_run.STEPS * global_batch),
    ]
    if "accumulation" in metrics:
        # With two passes per step: the same samples, divided differently among the ranks.
        settings = reference_run.settings_for(
            "ddp", global_batch=global_batch, team_size=team.size, batch=settings.batch // 2
        )
        difference = reference_run.max_difference_percent(
            reference_run.losses(settings, team), losses
        )
        measurements.append(Measurement(metric="accumulation", unit="%", value=difference))
    return measurements


def coverage(ranks: Ranks, seen_samples: list[int], samples: int) -> Measurement:
    """Count the samples that were not seen exactly once over all ranks; equal on every rank."""
    counts = Counter(index for part in ranks.gather(seen_samples) for index in part)
    wrong_samples = [k for k in range(samples) if counts[k] != 1]
    notes = [f"sample {k} was seen {counted(counts[k], 'time')}" for k in wrong_samples[:1]]
    return Measurement(metric="coverage", unit="samples", value=len(wrong_samples), notes=notes)


def misplaced(ranks: Ranks, team: Team) -> int:
    """Return 1 if this rank's number, world size or device is not the job's, else 0."""
    import torch
    import torch.distributed as dist

    rank_sum = torch.tensor(float(dist.get_rank(team.group)), device=team.device)
    dist.all_reduce(rank_sum, group=team.group)
    devices = ranks.gather_node(str(ranks.device_facts()["uuid"]))
    correct = (
        dist.get_rank(team.group) == ranks.rank
        and dist.get_world_size(team.group) == ranks.world_size
        and team.size == len(ranks.nodes) * ranks.ranks_per_node
        and float(rank_sum) == team.size * (team.size - 1) / 2
        and devices.count(devices[ranks.local_rank]) == 1
        and len(devices) == ranks.ranks_per_node
    )
    return int(not correct)
