"""Training by hand: what its command line refuses."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.selftests.support import CHECKOUT

pytestmark = pytest.mark.cpu


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
