"""Training by hand: what its command line refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.selftests.support import CHECKOUT
from training import __main__ as program
from training.settings import SettingsError

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
        timeout=900,
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
        timeout=900, env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )  # fmt: skip
    assert run.returncode == 2, run.stderr
    assert run.stdout == ""
    (line,) = run.stderr.splitlines()
    assert said in line


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Starts the program in this process, up to the ranks; returns what it asks of them."""

    def start(*arguments: str, start: Any = None) -> Any:
        asked: list[Any] = []
        monkeypatch.setattr(sys, "argv", ["training", *arguments])
        monkeypatch.setattr(program.standalone, "start", start or asked.append)
        program.main()
        return asked[0]

    return start


def test_only_what_was_given_is_asked_of_the_ranks(by_hand, tmp_path):
    arguments = ["--strategy", "ddp", "--batch", "4", "--no-reshard", "--out", str(tmp_path)]
    request = by_hand(*arguments)
    assert request.names == ["training_ddp"]
    assert request.params == {"batch": 4, "reshard": False, "show": True, "checks": False}
    assert (request.cpu, request.deadline_s) == (False, None)
    request = by_hand(*arguments, "--cpu", "--checks", "--deadline", "9")
    assert (request.cpu, request.params["checks"], request.deadline_s) == (True, True, 9.0)


def test_the_help_names_the_choices(by_hand, capsys):
    with pytest.raises(SystemExit):
        by_hand("--help")
    said = capsys.readouterr().out
    assert "--dtype bf16|fp32" in said
    assert "--batch BATCH" in said


@pytest.mark.parametrize(("rank", "lines"), [(None, 1), ("0", 1), ("1", 0)])
def test_of_all_ranks_one_says_what_is_wrong(rank, lines, by_hand, monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)

    def refuse(request: Any) -> None:
        raise SettingsError("the data: 2 samples")

    with pytest.raises(SystemExit) as ended:
        by_hand("--strategy", "single", "--out", str(tmp_path), start=refuse)
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == lines
    assert all("the data: 2 samples" in line for line in said)
