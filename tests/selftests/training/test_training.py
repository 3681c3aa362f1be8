"""Training in this process: its settings, its data and its checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.selftests.support import CHECKOUT
from training.settings import Settings, SettingsError, settings_of

pytestmark = pytest.mark.cpu


# --- settings: one clear line before a GPU is used


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"preset": "8b-shrt"}, "no preset '8b-shrt', did you mean '8b-short'?"),
        ({"strategy": "fsdpp"}, "no strategy 'fsdpp'"),
        ({"dtype": "fp8"}, "no dtype 'fp8'"),
        ({"presett": "tiny"}, "no setting 'presett', did you mean 'preset'?"),
        ({"batch": 0}, "batch is 0, expected more than 0"),
        ({"batch": "2"}, "batch is '2', expected a int"),
        ({"steps": True}, "steps is True, expected a int"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"warm_up": -1}, "warm_up is -1, expected 0 or more"),
        ({"wrap": "size", "compile": True}, "switch compile off"),
        ({"resume": True}, "needs a directory of checkpoints"),
        ({"data": "/no/such/file.txt"}, "data file /no/such/file.txt is not on the node"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(given, said):
    with pytest.raises(SettingsError) as error:
        settings_of(given)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("batch", "whole", "ranks"), [(2, 9, 2), (4, 4, 2), (3, 16, 1)])
def test_a_batch_that_does_not_divide_is_refused(batch, whole, ranks):
    with pytest.raises(SettingsError, match=f"global batch {whole} is not divisible by {ranks}"):
        Settings(batch=batch, global_batch=whole).passes_per_step(ranks)


def test_what_is_left_of_a_batch_is_accumulated():
    assert Settings(batch=2, global_batch=16).passes_per_step(4) == 2
    assert Settings(batch=2).passes_per_step(4) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--strategy", "fsdp", "--preset", "9b"), "no preset '9b'"),
        (("--strategy", "ddp", "--data", "/no/file"), "data file /no/file is not on the node"),
        (("--strategy", "pipeline"), "invalid choice: 'pipeline'"),
        (("--strategy", "ddp", "--batch", "two"), "invalid int value: 'two'"),
    ],
)
def test_the_command_line_refuses_before_torch_is_imported(arguments, said, tmp_path):
    command = [sys.executable, "-X", "importtime", "-m", "training", *arguments]
    run = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], cwd=CHECKOUT, capture_output=True, text=True,
        timeout=200,
    )  # fmt: skip
    assert run.returncode == 2
    assert said in run.stderr.splitlines()[-1]
    assert "| torch\n" not in run.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--global-batch", "9"), "global batch 9 is not divisible by 1 rank x 4 sequences"),
        (("--data", "broken.jsonl"), "broken.jsonl: 1 broken lines: line 2: "),
        (("--data", "short.txt"), "the data: 2 samples; a step takes 4"),
    ],
)
def test_what_only_a_rank_can_know_is_one_line_too(arguments, said, tmp_path):
    (tmp_path / "broken.jsonl").write_text('{"text": "' + "x" * 999 + '"}\nnonsense\n')
    (tmp_path / "short.txt").write_text("x" * 130)
    command = [sys.executable, "-m", "training", "--strategy", "single", "--cpu", *arguments]
    run = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], cwd=tmp_path, capture_output=True, text=True,
        timeout=200, env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )  # fmt: skip
    assert run.returncode == 2, run.stderr
    assert run.stdout == ""
    (line,) = run.stderr.splitlines()
    assert said in line


# --- data


def test_broken_lines_of_a_data_file_are_named_by_number(tmp_path):
    from training.data import Text

    path = tmp_path / "broken.jsonl"
    good = json.dumps({"text": "x" * 100})
    path.write_text(f'{good}\n{{"text": 1}}\n\n{good[:-3]}\n[1]\n{good}\n')
    with pytest.raises(SettingsError) as error:
        Text(path, 16)
    said = str(error.value)
    assert "3 broken lines" in said
    assert [f"line {n}:" in said for n in (1, 2, 3, 4, 5, 6)] == [0, 1, 0, 1, 1, 0]
    assert "\n" not in said


def test_many_broken_lines_are_counted(tmp_path):
    from training.data import Text

    path = tmp_path / "broken.jsonl"
    path.write_text("{\n" * 40)
    with pytest.raises(SettingsError, match=r"40 broken lines: line 1: .*; and 35 more"):
        Text(path, 16)


def test_a_data_file_without_a_sequence_in_it_is_refused(tmp_path):
    from training.data import Text

    path = tmp_path / "short.txt"
    path.write_text("short")
    with pytest.raises(SettingsError, match=r"5 bytes, fewer than a sequence of 16 \+ 1 tokens"):
        Text(path, 16)


def test_text_is_cut_into_sequences_that_overlap_by_the_target(tmp_path):
    from training.data import Text

    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(33)))
    data = Text(path, 16)
    assert len(data) == 2
    assert data[1][1].tolist() == list(range(16, 33))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_step_is_the_same_samples_for_any_number_of_ranks(ranks):
    from training.data import BatchLoader, Synthetic

    data = Synthetic(256, 8, 96, seed=3)

    def steps(n: int, begin: int = 0) -> list[list[int]]:
        made = Settings(batch=8 // n, global_batch=8, sequence=8)
        batch_loaders = [BatchLoader(data, made, rank=k, team_size=n, step=begin) for k in range(n)]
        found = []
        iterators = [iter(batch_loader) for batch_loader in batch_loaders]
        for _ in range(14):
            before = [len(f.seen_samples) for f in batch_loaders]
            for iterator in iterators:
                next(iterator)
            at = [
                b if b < len(f.seen_samples) else 0
                for b, f in zip(before, batch_loaders, strict=True)
            ]
            found.append(
                sorted(
                    i for f, a in zip(batch_loaders, at, strict=True) for i in f.seen_samples[a:]
                )
            )
        return found

    whole = steps(ranks)
    assert whole == steps(1)
    assert sorted(i for step in whole[:12] for i in step) == list(range(96))
    assert whole[12] != whole[0], "the next epoch has another order"
    assert steps(ranks, begin=5)[:7] == whole[5:12]


def test_too_little_data_for_a_step_is_refused():
    from training.data import BatchLoader, Synthetic

    with pytest.raises(SettingsError, match="the data: 4 samples; a step takes 8"):
        BatchLoader(Synthetic(256, 8, 4, 0), Settings(batch=4), rank=0, team_size=2)


# --- checkpoints


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
