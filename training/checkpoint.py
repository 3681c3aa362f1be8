"""Checkpoints through torch.distributed.checkpoint: whole or not there, for any number of ranks.

`<directory>/step-000020` comes into being by a rename, after every rank has written and hashed its
files. What lacks its manifest, or a file of it, or whose sizes or hashes differ, is torn: it is
passed over for the one before. Sharded tensors stay sharded; another number of ranks reads them.
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

from fixtures.records.files import read_json, write_json
from training import whole
from training.strategies import Team
from training.whole import MANIFEST
from training.whole import newest as newest
from training.whole import wrong as wrong


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be read; the message names it and says what is wrong."""


def state_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Model and optimizer by parameter name, the same for every strategy."""
    model, optim = get_state_dict(module, optimizer)
    return {"model": model, "optimizer": optim}


def save(directory: Path, step: int, state: dict[str, Any], *, team: Team) -> Path:
    """Write a checkpoint of a step; every rank of the team must call it."""
    final = directory / f"step-{step:06}"
    partial = directory / f".{final.name}.partial"
    if team.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed while it wrote
        partial.mkdir(parents=True)
    _meet(team)
    with _quiet():
        dcp_save(state, checkpoint_id=partial, process_group=team.group, no_dist=team.group is None)
    _meet(team)
    # Each rank hashes a part of the files: one alone would take longer than all took to write.
    files = sorted(p for p in partial.iterdir() if p.is_file())
    own = {p.name: [p.stat().st_size, whole.digest(p)] for p in files[team.rank :: team.size]}
    gathered = _gather(team, own)
    if team.rank == 0:
        hashes = {name: entry for part in gathered for name, entry in part.items()}
        write_json(partial / MANIFEST, {"step": step, "ranks": team.size, "files": hashes})
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        _flush(directory)
    _meet(team)
    return final


def load(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, *, team: Team) -> int:
    """Read a checkpoint into model and optimizer; the number of steps done."""
    # One rank's reading decides for all of them, so that they do not part ways.
    reasons = _gather(team, whole.wrong(path) if team.rank == 0 else None)
    if reasons[0] is not None:
        raise CheckpointError(f"{reasons[0]}: not a whole checkpoint, use the one before")
    state = state_of(module, optimizer)
    with _quiet():
        dcp_load(state, checkpoint_id=path, process_group=team.group, no_dist=team.group is None)
    set_state_dict(
        module, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    return int(read_json(path / MANIFEST)["step"])


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warning that a process without a group saves alone, which it is told to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _flush(directory: Path) -> None:
    """A rename is on the disk when its directory is."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _meet(team: Team) -> None:
    if team.group is not None:
        _gather(team, None)


def _gather(team: Team, item: Any) -> Sequence[Any]:
    """Every member's item, in the order of the team; items must be plain JSON."""
    if team.group is None or team.size == 1:
        return [item]
    found: list[Any] = [None] * team.size
    dist.all_gather_object(found, json.dumps(item), group=team.group)
    return [json.loads(text) for text in found]
