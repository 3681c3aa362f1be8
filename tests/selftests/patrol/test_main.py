"""`python -m fixtures.patrol`: what each command calls, and its exit status."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fixtures.errors import RunError
from fixtures.patrol import __main__ as command
from fixtures.patrol import queue, visits

pytestmark = pytest.mark.cpu


@pytest.fixture
def called(monkeypatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(visits, "stop", lambda state: found.append(("stop", state)) or 2)
    monkeypatch.setattr(visits, "start", lambda state: found.append(("start", state)))
    monkeypatch.setattr(visits.Patrol, "round", lambda self: found.append(("visit", self)))
    return found


def main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["patrol", *arguments])
    return command.main()


def test_each_command_is_about_the_state_directory(monkeypatch, called, capsys, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    assert main(monkeypatch, "stop", "state") == 0
    assert capsys.readouterr().out == "stopped; 2 visits ended\n"
    assert main(monkeypatch, "start", "state") == 0
    assert called == [("stop", tmp_path / "state"), ("start", tmp_path / "state")]


def test_a_visit_has_the_options_of_its_jobs(monkeypatch, called, tmp_path: Path):
    given = ["--share=0.1", "--gpus=4", "--partition=gpu", "--sbatch-args=--x", "--sbatch-args=--y"]
    assert main(monkeypatch, "visit", str(tmp_path), *given) == 0
    ((name, patrol),) = called
    assert (name, patrol.state, patrol.share) == ("visit", tmp_path, 0.1)
    assert patrol.options == queue.Options(partition="gpu", sbatch_args=("--x", "--y"))
    assert "--nproc-per-node=4" in patrol.command_of(tmp_path)


def test_what_is_wrong_is_one_line_and_a_status(monkeypatch, called, capsys, tmp_path: Path):
    for error in (RunError("no Slurm"), OSError("disk"), ValueError("share")):

        def broken(self: Any, found: Exception = error) -> None:
            raise found

        monkeypatch.setattr(visits.Patrol, "round", broken)
        assert main(monkeypatch, "visit", str(tmp_path)) == 4
        assert capsys.readouterr().err == f"patrol: {error}\n"
