"""A fine-tuning by hand: what is refused before torch is imported, and what is asked of ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.selftests import support
from tests.selftests.finetuning_cases import ROW
from tests.selftests.rank_job import clean_environment
from training.finetune import __main__ as program

pytestmark = pytest.mark.cpu


def by_hand(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "training.finetune", *map(str, arguments)]
    env = clean_environment() | environment
    return subprocess.run(
        command, capture_output=True, text=True, cwd=support.CHECKOUT, env=env, timeout=900
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


# --- what is asked of the ranks


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Starts the program in this process, up to the ranks; returns what it asks of them."""

    def start(*arguments: str) -> Any:
        requests: list[Any] = []
        command = ["finetune", *arguments, "--out", str(tmp_path / "out")]
        monkeypatch.setattr(sys, "argv", command)
        monkeypatch.setattr(program.standalone, "start", requests.append)
        program.main()
        return requests[0]

    monkeypatch.setattr(program, "check_packages", lambda strategy: checked.append(strategy))
    checked: list[str] = []
    start.checked = checked  # type: ignore[attr-defined]
    return start


def test_without_settings_it_runs_what_the_suite_runs(asked, monkeypatch):
    for installed, more in ((None, set()), ("deepspeed", {"zero3_loss"})):
        monkeypatch.setattr(program.importlib.util, "find_spec", lambda name, i=installed: i)
        request = asked()
        assert (request.params, request.deadline_s) == ({}, None)
        assert set(request.metrics) == {m for m in program.WORKLOAD.metrics
                                        if m != "zero3_loss"} | more  # fmt: skip
    assert asked.checked == ["plain"] * 2


def test_with_settings_a_training_may_take_a_week(asked, tmp_path, monkeypatch):
    (tmp_path / "data.jsonl").write_text(f"{json.dumps(ROW)}\n")
    monkeypatch.setenv("WORLD_SIZE", "2")
    request = asked("--config", "small", "--data", str(tmp_path / "data.jsonl"),
                    "--strategy", "fsdp")  # fmt: skip
    assert request.params == {
        "configs": ["small"], "model_path": None, "data_path": str(tmp_path / "data.jsonl"),
        "strategy": "fsdp",
    }  # fmt: skip
    assert (request.metrics, request.deadline_s) == ([], 7 * 86400)
    assert asked.checked == ["fsdp", "fsdp"]


@pytest.mark.parametrize("option", ["--model", "--data", "--strategy"])
def test_options_of_a_file_need_one(option, asked, capsys):
    value = "fsdp" if option == "--strategy" else "x"
    with pytest.raises(SystemExit):
        asked(option, value)
    assert "go with --config" in capsys.readouterr().err


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
def test_of_all_ranks_one_says_what_is_wrong(rank, lines, asked, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("RANK", rank)
    (tmp_path / "data.jsonl").write_text("{\n")
    with pytest.raises(SystemExit) as ended:
        asked("--config", "small", "--data", str(tmp_path / "data.jsonl"))
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == lines
    assert all("conversations are broken" in line for line in said)
