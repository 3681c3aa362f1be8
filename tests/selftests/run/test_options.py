"""Options of the command line, and those that a later session has to repeat."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.run.options import NEEDED_AGAIN, RunOptions, needed_again

pytestmark = pytest.mark.cpu

A, B, C = Path("/a"), Path("/b"), Path("/c")


def test_a_run_is_continued_by_resume_or_retest_and_a_recertification_has_its_nodes():
    cases = {
        RunOptions(): (None, None),
        RunOptions(resume=A): (A, A),
        RunOptions(retest=B): (B, B),
        RunOptions(resume=A, retest=B): (A, A),
        RunOptions(recertify=C): (None, C),
        RunOptions(resume=A, recertify=C): (A, A),
    }
    assert {o: (o.resumed, o.earlier_run) for o in cases} == cases


def test_only_what_was_given_has_to_be_given_again(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    options = RunOptions(
        thresholds=Path("mine.yaml"), partition="gpu", time_limit=90, allow_destructive=True,
        sbatch_args=("--comment=x", "--wckey=y"), tier="probe", resume=A,
    )  # fmt: skip
    assert needed_again(options) == (
        f"--thresholds={tmp_path}/mine.yaml", "--allow-destructive", "--partition=gpu",
        "--time-limit=90", "--sbatch-args=--comment=x", "--sbatch-args=--wckey=y",
    )  # fmt: skip
    assert needed_again(RunOptions()) == ()


def test_what_has_to_be_given_again_is_an_option():
    assert {*NEEDED_AGAIN} <= {*RunOptions.__dataclass_fields__}
