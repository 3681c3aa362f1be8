"""Checkpoints through torch.distributed.checkpoint, written atomically, for any number of ranks.

`<directory>/step-000020` is created by a rename, after every rank has written and hashed its files.
A checkpoint without its manifest or one of its files, or whose sizes or hashes differ, is torn: the
one before it is used. Sharded tensors stay sharded; another number of ranks can read them.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from fixtures.records.files import is_visible, read_json, write_json
from training import checkpoint_integrity
from training.checkpoint_integrity import MANIFEST
from training.checkpoint_integrity import awaited_intact as awaited_intact
from training.checkpoint_integrity import defect_of as defect_of
from training.checkpoint_integrity import newest_intact as newest_intact
from training.checkpoint_integrity import step_of as step_of
from training.strategies import Team


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read; the message names it and what is wrong with it."""


def state_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the states of model and optimizer by parameter name, alike for all strategies."""
    model, optim = get_state_dict(module, optimizer)
    return {"model": model, "optimizer": optim}


def save(directory: Path, step: int, state: dict[str, Any], *, team: Team) -> Path:
    """Write a step's checkpoint and return its path; every rank of the team must call it."""
    final = directory / f"step-{step:06}"
    partial = directory / f".{final.name}.partial"
    if team.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)  # left by a run that was killed while it wrote
        partial.mkdir(parents=True)
    _barrier(team)
    with _dist_disabled_warning_ignored():
        dcp_save(state, checkpoint_id=partial, process_group=team.group, no_dist=team.group is None)
    _barrier(team)
    # Each rank hashes a part of the files: one rank would take longer than all took to write. What
    # one has written, others may see late.
    listings = _gather(team, [p.name for p in partial.iterdir()])
    files = [partial / name for name in sorted({n for names in listings for n in names})]
    own_hashes = {}
    for path in files[team.rank :: team.size]:
        is_visible(path)  # where it does not come, stat() says which it is
        own_hashes[path.name] = [path.stat().st_size, checkpoint_integrity.sha256_of(path)]
    gathered = _gather(team, own_hashes)
    if team.rank == 0:
        hashes = {name: entry for part in gathered for name, entry in part.items()}
        write_json(partial / MANIFEST, {"step": step, "ranks": team.size, "files": hashes})
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        _sync_directory(directory)
    _barrier(team)
    return final


def load(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, *, team: Team) -> int:
    """Read a checkpoint into model and optimizer and return the number of steps done."""
    # The first rank's check decides for all, so that no rank raises while others load.
    reasons = _gather(team, checkpoint_integrity.defect_of(path) if team.rank == 0 else None)
    if reasons[0] is not None:
        raise CheckpointError(f"{reasons[0]}: not an intact checkpoint, use the one before")
    state = state_of(module, optimizer)
    with _dist_disabled_warning_ignored():
        dcp_load(state, checkpoint_id=path, process_group=team.group, no_dist=team.group is None)
    set_state_dict(
        module, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    return int(read_json(path / MANIFEST)["step"])


@contextmanager
def _dist_disabled_warning_ignored() -> Iterator[None]:
    """Suppress the warning that a process without a group saves alone: that is intended."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _sync_directory(directory: Path) -> None:
    """Sync a directory to disk: only then is a rename in it durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _barrier(team: Team) -> None:
    if team.group is not None:
        _gather(team, None)


def _gather(team: Team, item: Any) -> Sequence[Any]:
    """Return every member's item, in the order of the team; items must be plain JSON."""
    if team.group is None or team.size == 1:
        return [item]
    texts: list[Any] = [None] * team.size
    dist.all_gather_object(texts, json.dumps(item), group=team.group)
    return [json.loads(text) for text in texts]
