"""Checkpoints during training, and resumption from them, with fewer ranks too."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fixtures.records.model import Measurement, Result
from fixtures.records.run_directory import RunDirectory
from fixtures.wording import counted
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.runtime.spec import Workload

if TYPE_CHECKING:
    from training.settings import Settings
    from training.strategies import Team

WORKLOAD = Workload(
    metrics={"resume": "%", "other_ranks": "%", "torn": "state"},
    of_node=("other_ranks",),
    needs_torch=True,
    training=True,
    seconds=60,
    cpu_seconds=14,
    deadline_s=300,
    cpu_deadline_s=300,
)

TORN_BYTES = 3
"""Bytes to cut from the end of a file of the newest checkpoint."""


def run(ranks: Ranks, metrics: list[str]) -> Result:
    """Train with FSDP, write two checkpoints, tear the second, and resume from the first."""
    from training import checkpoint, reference_run
    from training.strategies import one_team, split_into_teams

    team = one_team(ranks)
    global_batch = reference_run.global_batch_for(team.size)
    directory = RunDirectory(ranks.directory.parent.parent).job(
        f"{ranks.directory.name}/checkpoints"
    )
    settings = reference_run.settings_for(
        "fsdp", global_batch=global_batch, team_size=team.size, checkpoint=str(directory)
    )
    training = reference_run.new_training(settings, team)
    half_steps = reference_run.STEPS // 2
    training.run(half_steps)
    save_started = time.perf_counter()
    intact = training.save()
    facts: dict[str, Any] = {"save_s": round(time.perf_counter() - save_started, 4)}
    training.run()
    expected_losses = training.history.losses[half_steps:]
    to_tear = training.save()
    ranks.barrier()
    if ranks.rank == 0:
        facts["bytes"] = sum(p.stat().st_size for p in intact.iterdir())
        _tear(to_tear)
    ranks.barrier()
    measurements = []
    newest = checkpoint.awaited_intact(directory, checkpoint.step_of(intact))
    # All ranks have chosen before any resumes: no checkpoint is written after this.
    torn = Measurement(
        metric="torn", unit="state", value="passed over" if newest == intact else "taken",
        notes=[] if newest == intact else [f"the torn {newest} was taken for intact"],
    )  # fmt: skip
    measurements.append(torn)
    if newest == intact:
        measurements.append(_resumed_curve("resume", team, settings, expected_losses))
        # Only if the batch divides equally among the fewer ranks.
        fewer_ranks = team.size // 2
        if fewer_ranks and global_batch % fewer_ranks == 0:
            smaller_team = split_into_teams(ranks, [list(range(fewer_ranks))])
            if smaller_team is not None:
                other_settings = replace(settings, batch=global_batch // fewer_ranks)
                measurements.append(
                    _resumed_curve("other_ranks", smaller_team, other_settings, expected_losses)
                )
    ranks.barrier()
    if ranks.rank == 0:
        shutil.rmtree(directory)
    return Result(measurements=[m for m in measurements if m.metric in metrics], facts=facts)


def _resumed_curve(
    metric: str, team: Team, settings: Settings, expected_losses: list[float]
) -> Measurement:
    """Measure the difference of losses after a resumption from those of the first run."""
    from training import reference_run

    training = reference_run.new_training(replace(settings, resume=True), team)
    first_step = training.step
    losses = training.run().losses
    if len(losses) != len(expected_losses):
        raise RuntimeError(
            f"resumed at step {first_step}, expected {len(expected_losses)} more to come"
        )
    notes = [f"{counted(team.size, 'rank')}, from step {first_step}"]
    return Measurement(
        metric=metric,
        unit="%",
        value=reference_run.max_difference_percent(losses, expected_losses),
        notes=notes,
    )


def _tear(path: Any) -> None:
    """Truncate a checkpoint's largest file, as a full disk or a killed rank would leave it."""
    largest = max(
        (p for p in path.iterdir() if p.suffix == ".distcp"), key=lambda p: p.stat().st_size
    )
    with largest.open("r+b") as file:
        file.truncate(largest.stat().st_size - TORN_BYTES)
