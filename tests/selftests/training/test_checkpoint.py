"""Checkpoints of a training: written, found, damaged and read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.cpu


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Any, Path, Path]:
    """A training run, and its checkpoints of steps 1 and 2."""
    import torch

    from training import reference_run
    from training.strategies import Team

    team = Team(members=(0,), rank=0, device=torch.device("cpu"), group=None)
    training = reference_run.new_training(
        reference_run.settings_for("single", checkpoint=str(tmp_path)), team
    )
    training.run(1)
    first = training.save()
    training.run(1)
    return training, first, training.save()


def test_the_newest_whole_checkpoint_is_taken(saved, tmp_path):
    from training import checkpoint

    _, first, second = saved
    assert checkpoint.newest_intact(tmp_path) == second
    assert checkpoint.defect_of(first) is None
    assert not list(tmp_path.glob(".*")), "nothing is left of the writing"


def torn_file(path: Path) -> Path:
    return max(path.glob("*.distcp"), key=lambda p: p.stat().st_size)


def shorten(path: Path) -> None:
    file = torn_file(path)
    file.write_bytes(file.read_bytes()[:-1])


def flip(path: Path) -> None:
    file = torn_file(path)
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


DAMAGE = {
    "a file is shorter": (shorten, "bytes, expected"),
    "one bit is another": (flip, "differs from what was written (sha256)"),
    "a file is gone": (lambda path: torn_file(path).unlink(), "is missing"),
    "no manifest": (lambda path: (path / "manifest.json").unlink(), "FileNotFoundError"),
    "half a manifest": (
        lambda path: (path / "manifest.json").write_text('{"step": 2, "fi'), "RecordError",
    ),
    "a manifest without files": (
        lambda path: (path / "manifest.json").write_text('{"step": 2}'), "KeyError",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_torn_checkpoint_is_passed_over_and_refused_by_name(damage, saved, tmp_path):
    from training import checkpoint

    training, first, second = saved
    harm, said = DAMAGE[damage]
    harm(second)
    assert checkpoint.newest_intact(tmp_path) == first
    with pytest.raises(checkpoint.CheckpointError) as error:
        training.load(second)
    assert second.name in str(error.value)
    assert said in str(error.value)


def test_what_a_killed_writer_leaves_is_no_checkpoint(saved, tmp_path):
    from training import checkpoint

    training, _, second = saved
    (tmp_path / ".step-000003.partial").mkdir()
    (tmp_path / ".step-000003.partial" / "__0_0.distcp").write_bytes(b"x")
    assert checkpoint.newest_intact(tmp_path) == second
    training.run(1)
    third = training.save()
    assert checkpoint.newest_intact(tmp_path) == third
    assert checkpoint.defect_of(third) is None
