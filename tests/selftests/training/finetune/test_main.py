"""A fine-tuning by hand: what is refused before torch is imported, and what is asked of ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.selftests import support
from tests.selftests.finetuning_cases import ROW
from tests.selftests.rank_job import clean_environment

pytestmark = pytest.mark.cpu


def by_hand(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "training.finetune", *map(str, arguments)]
    env = clean_environment() | environment
    return subprocess.run(
        command, capture_output=True, text=True, cwd=support.CHECKOUT, env=env, timeout=120
    )


def test_what_is_given_wrong_ends_a_run_by_hand_before_torch_is_there(tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text(f"{json.dumps(ROW)}\n{{\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    cases = [
        (["--config", "small.yaml", "--model", tmp_path / "none"], "none is not a directory"),
        (["--config", "small.yaml", "--model", tmp_path / "empty"], "holds no config.json"),
        (["--config", "small.yaml", "--data", tmp_path / "none"], "none is not a file"),
        (["--config", "small.yaml", "--data", data], "1 of 2 conversations are broken: line 2: "),
        (["--config", "smal.yaml"], "no such file of settings; shipped are default.yaml"),
        (["--model", tmp_path], "--model, --data and --strategy go with --config"),
    ]
    for arguments, said in cases:
        run = by_hand(*arguments, "--out", tmp_path / "out", PYTHONPATH=str(tmp_path))
        assert run.returncode == 2, run.stderr
        assert said in run.stderr.splitlines()[-1]
    run = by_hand(
        "--config", "small.yaml", "--out", tmp_path / "out", RANK="0", WORLD_SIZE="3",
        PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    assert run.returncode == 2
    assert run.stderr == (
        "python -m training.finetune: training.global_batch_size 16 is not divisible by"
        " batch_size x GPUs = 4 x 3; take a multiple of 12\n"
    )
    assert not (tmp_path / "out").exists()
