"""Seeded attacks: no exception but an answer in one line, no hang, and a bound of the memory."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from fixtures.records.absence import JobKind
from tests.selftests import hostile, support

pytestmark = pytest.mark.cpu

LINES, DIRECTORIES = 2000, 200
"""`make soak` takes 50,000 and 5,000: tests/tools/soak_hostile.py."""


@pytest.fixture(autouse=True)
def not_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is busy takes longer than all attacks together."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def test_lines_of_a_rank_are_taken_or_cost_its_own_result(tmp_path: Path) -> None:
    assert hostile.fuzz_lines(LINES, seed=27, folder=tmp_path) == []


def test_a_malformed_line_names_rank_and_node(tmp_path: Path) -> None:
    line = b'{"schema": 1, "nonce": "%s", "event": "note", "time": "soon", "rank": 0}'
    _, missing = hostile.collected([line % support.NONCE.encode()], tmp_path)
    assert [(m["kind"], m["node"], m["rank"]) for m in missing] == [
        (JobKind.MALFORMED, "worker0", 0)
    ]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile.base_run(support.DATA / hostile.SOURCE, tmp_path_factory.mktemp("base") / "run")


def test_hostile_run_directories_are_answered_in_one_line(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = hostile.fuzz_directories(
        DIRECTORIES, base, tmp_path, seed=27, monkeypatch=monkeypatch, output=capsys.readouterr
    )
    assert found == []


@pytest.mark.parametrize("command", hostile.COMMANDS)
def test_the_base_of_the_attacks_is_read_by_every_command(
    command: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run = tmp_path / "run"
    shutil.copytree(base, run, symlinks=True)
    hostile.read_by_command(command, run, tmp_path / "into", monkeypatch)
    said = "".join(capsys.readouterr())
    assert "Traceback" not in said
    assert "holds what no run has" not in said


def test_a_seed_gives_the_same_attack() -> None:
    lines = [[hostile.attack_line(random.Random(k)) for k in range(50)] for _ in range(2)]
    assert lines[0] == lines[1]
