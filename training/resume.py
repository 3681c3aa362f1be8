"""Checkpoints in the middle of training, and going on from them, with fewer ranks too [I1 I3]."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fixtures.records.model import Measurement, Result
from fixtures.records.run_directory import RunDirectory
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.runtime.spec import Workload

if TYPE_CHECKING:
    from training.settings import Settings
    from training.strategies import Team

WORKLOAD = Workload(
    metrics=("resume", "other_ranks", "torn"),
    needs_torch=True,
    training=True,
    seconds=60,
    cpu_seconds=14,
    deadline_s=300,
    cpu_deadline_s=300,
)

TORN = 3
"""Bytes that are cut from a file of the newest checkpoint."""


def run(ranks: Ranks, metrics: list[str]) -> Result:
    """An FSDP run with two checkpoints, of which the second is torn afterwards."""
    from training import checkpoint, exact
    from training.strategies import teams_of, together

    team = together(ranks)
    whole = exact.global_batch(team.size)
    directory = RunDirectory(ranks.directory.parent.parent).job(
        f"{ranks.directory.name}/checkpoints"
    )
    made = exact.settings("fsdp", whole=whole, ranks=team.size, checkpoint=str(directory))
    training = exact.begin(made, team)
    half = exact.STEPS // 2
    training.run(half)
    begun = time.perf_counter()
    path = training.save()
    facts: dict[str, Any] = {"save_s": round(time.perf_counter() - begun, 4)}
    training.run()
    curve = training.history.losses[half:]
    last = training.save()
    ranks.barrier()
    if ranks.rank == 0:
        facts["bytes"] = sum(p.stat().st_size for p in path.iterdir())
        _tear(last)
    ranks.barrier()
    found = []
    chosen = checkpoint.newest(directory)
    # Everybody has looked before the first begins to train: nothing changes here any more.
    torn = Measurement(
        metric="torn", unit="state", value="passed over" if chosen == path else "taken",
        notes=[] if chosen == path else [f"{chosen} was taken for whole"],
    )  # fmt: skip
    found.append(torn)
    if chosen == path:
        found.append(_resumed("resume", team, made, curve))
        # An odd rank out could not have an equal part of the batch.
        fewer = team.size // 2
        if fewer and whole % fewer == 0:
            small = teams_of(ranks, [list(range(fewer))])
            if small is not None:
                other = replace(made, batch=whole // fewer)
                found.append(_resumed("other_ranks", small, other, curve))
    ranks.barrier()
    if ranks.rank == 0:
        shutil.rmtree(directory)
    return Result(measurements=[m for m in found if m.metric in metrics], facts=facts)


def _resumed(metric: str, team: Team, made: Settings, curve: list[float]) -> Measurement:
    """How far the losses after a resumption are from those of the run that went on."""
    from training import exact

    training = exact.begin(replace(made, resume=True), team)
    begun = training.step
    losses = training.run().losses
    if len(losses) != len(curve):
        raise RuntimeError(f"resumed at step {begun}, expected {len(curve)} more to come")
    notes = [f"{team.size} ranks, from step {begun}"]
    return Measurement(metric=metric, unit="%", value=exact.apart(losses, curve), notes=notes)


def _tear(path: Any) -> None:
    """What a full disk or a killed rank leaves: a file that ends too early."""
    largest = max(
        (p for p in path.iterdir() if p.suffix == ".distcp"), key=lambda p: p.stat().st_size
    )
    with largest.open("r+b") as file:
        file.truncate(largest.stat().st_size - TORN)
