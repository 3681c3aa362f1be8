"""DistributedDataParallel: is it right, and how much of the rate of one is left [I2 I6].

In a job on one node against every GPU alone, in a job over all nodes against every node alone; the
parts train at the same time, so that heat and power are the same.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fixtures.records.model import Measurement, Result
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.runtime.spec import Workload
from training import single

if TYPE_CHECKING:
    from training.run import Timed
    from training.settings import Settings
    from training.strategies import Team

WORKLOAD = Workload(
    metrics=(
        "ranks", "coverage", "replicas", "curve", "accumulation", "fall", "gradients", "tokens",
        "mfu", "mfu_half", "efficiency", "efficiency_slowest",
    ),
    needs_torch=True,
    training=True,
    seconds=130,
    cpu_seconds=18,
    deadline_s=1800,
    cpu_deadline_s=300,
)  # fmt: skip

PRESET = "1b"
TOKENS = 65536
"""A GPU and step: what a step pays for communication is paid once for all of them."""
BATCHES = (8, 4, 2, 1)
"""Sequences of a pass: the largest that fits; the rest of the tokens by accumulation."""


def run(
    ranks: Ranks, metrics: list[str], *, show: bool = False, checks: bool = True, **given: Any
) -> Result:
    """`given` are training.settings.Settings; `checks`: the small run as well."""
    from training import run as training_run
    from training.strategies import together

    settings = training_run.defaults(ranks, "ddp", given, preset=PRESET)
    team = together(ranks)
    settings = training_run.held(ranks, settings, given, team.size, BATCHES, TOKENS)
    found: list[Measurement] = []
    if checks and {"ranks", "coverage", "replicas", "curve", "accumulation"} & set(metrics):
        found = _exact(ranks, team, metrics)
    runs: list[Timed] = []
    if training_run.TIMED & set(metrics):
        runs, efficiencies = scaled(ranks, team, settings, metrics)
        network = through(ranks, team)
        found += [*single.health(runs[-1]), *single.rates(ranks, runs[-1], notes=network)]
        for metric, samples in efficiencies.items():
            found.append(runs[-1].measurement(metric, "%", samples, notes=network))
    return Result(
        measurements=[m for m in found if m.metric in metrics],
        facts=training_run.facts(ranks, runs, show=show),
    )


def scaled(
    ranks: Ranks, team: Team, settings: Settings, metrics: list[str]
) -> tuple[list[Timed], dict[str, list[float]]]:
    """The run of the parts, where it is asked for and they can hold it, and that of all together.

    A part is one GPU in a job on one node, without what it does not need (DDP), else one node.
    """
    from training import run as training_run
    from training.strategies import alone, by_node

    if not {"efficiency", "efficiency_slowest"} & set(metrics) or team.size == 1:
        return [training_run.timed_run(ranks, team, settings)], {}
    smaller = settings
    if len(ranks.nodes) > 1:
        part = by_node(ranks)
    else:
        fsdp = settings.strategy == "fsdp"
        smaller = smaller if fsdp else replace(smaller, strategy="single")
        part = alone(ranks, groups=fsdp)
    smaller = of_part(smaller, team.size, part.size)
    if not training_run.fits(ranks, smaller, part.size):
        return [training_run.timed_run(ranks, team, settings)], {}
    parts = training_run.timed_run(ranks, part, smaller)
    whole = training_run.timed_run(ranks, team, settings)
    usual, slowest = training_run.efficiency(ranks, whole, parts)
    return [parts, whole], {"efficiency": usual, "efficiency_slowest": slowest}


def of_part(settings: Settings, ranks: int, part: int) -> Settings:
    """The settings for `part` of the ranks: as many sequences and passes a rank, no checkpoint."""
    whole = settings.accumulation(ranks) * settings.batch * part
    return replace(settings, checkpoint="", resume=False, global_batch=whole)


def through(ranks: Ranks, team: Team) -> list[str]:
    """What gradients travel through, as a note; the slowest of what NCCL says it uses."""
    from fixtures.workloads.runtime import nccl_log

    if team.size == 1:
        return []
    found, _ = nccl_log.conditions(ranks, team.members)
    where = "between the nodes" if len(ranks.nodes) > 1 else "in the node"
    return [f"network {where}: {found['transport']}"] if "transport" in found else []


def _exact(ranks: Ranks, team: Team, metrics: list[str]) -> list[Measurement]:
    from training import exact
    from training.strategies import alone

    whole = exact.global_batch(team.size)
    made = exact.settings("ddp", whole=whole, ranks=team.size)
    training = exact.begin(made, team)
    curve = training.run().losses
    own = exact.digest(training)
    usual = exact.majority(ranks, own)
    seen = training.feed.seen
    reference = exact.losses(exact.settings("single", whole=whole), alone(ranks))
    found = [
        Measurement(metric="ranks", unit="ranks", value=misplaced(ranks, team)),
        Measurement(
            metric="replicas",
            unit="ranks",
            value=int(own != usual),
            notes=[f"rank {ranks.rank} has other parameters"] if own != usual else [],
        ),
        Measurement(metric="curve", unit="%", value=exact.apart(curve, reference)),
        coverage(ranks, seen, exact.STEPS * whole),
    ]
    if "accumulation" in metrics:
        # In two passes a step: the same samples, of which each rank sees others.
        made = exact.settings("ddp", whole=whole, ranks=team.size, batch=made.batch // 2)
        apart = exact.apart(exact.losses(made, team), curve)
        found.append(Measurement(metric="accumulation", unit="%", value=apart))
    return found


def coverage(ranks: Ranks, seen: list[int], samples: int) -> Measurement:
    """Samples that no rank saw, or that were seen more than once; the first rank says it."""
    counted = Counter(index for part in ranks.gather(seen) for index in part)
    wrong = [k for k in range(samples) if counted[k] != 1]
    notes = [f"sample {wrong[0]} was seen {counted[wrong[0]]} times"] if wrong else []
    return Measurement(metric="coverage", unit="samples", value=len(wrong), notes=notes)


def misplaced(ranks: Ranks, team: Team) -> int:
    """1 where this rank is not who the job says: its number, the world's size, its device."""
    import torch
    import torch.distributed as dist

    total = torch.tensor(float(dist.get_rank(team.group)), device=team.device)
    dist.all_reduce(total, group=team.group)
    devices = ranks.gather_node(str(ranks.device_facts()["uuid"]))
    right = (
        dist.get_rank(team.group) == ranks.rank
        and dist.get_world_size(team.group) == ranks.world_size
        and team.size == len(ranks.nodes) * ranks.ranks_per_node
        and float(total) == team.size * (team.size - 1) / 2
        and devices.count(devices[ranks.local_rank]) == 1
        and len(devices) == ranks.ranks_per_node
    )
    return int(not right)
