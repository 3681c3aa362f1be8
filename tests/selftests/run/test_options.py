"""Options of the command line, and those that a later session has to repeat."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.errors import ConfigError
from fixtures.run.options import (
    NEEDED_AGAIN,
    RunOptions,
    changed_options,
    marks_of_removed,
    needed_again,
    refuse_removed,
)

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
        "--time-limit=90", "--sbatch-args=--comment=[removed]", "--sbatch-args=--wckey=y",
    )  # fmt: skip
    assert needed_again(RunOptions()) == ()


def test_what_has_to_be_given_again_is_an_option():
    assert {*NEEDED_AGAIN} <= {*RunOptions.__dataclass_fields__}


def test_an_option_from_the_papers_of_a_run_is_refused_where_its_secret_was_removed():
    refuse_removed(RunOptions(setup=("export A=1",), node_python="py"))
    for options in (
        RunOptions(setup=("true", "export A=[removed]")),
        RunOptions(node_loss_command="curl [removed]"),
    ):
        with pytest.raises(ConfigError, match=r"\[removed\] stands for what is not stored"):
            refuse_removed(options)


def test_a_later_session_is_told_which_options_it_lacks_or_has_otherwise():
    before = RunOptions(setup=("export A=1", "module load x"), srun_args=("--mpi=pmix",))
    stored, marks = needed_again(before), marks_of_removed(before, "n")
    assert set(marks) == {"--setup"}
    assert changed_options(before, stored, marks, "n") == []
    assert changed_options(RunOptions(), (), {}, "n") == []
    lacks = changed_options(RunOptions(srun_args=("--mpi=pmix",)), stored, marks, "n")
    assert lacks == [
        "--setup is not given, and the session before had '--setup=export A=[removed]' "
        "'--setup=module load x': give it again if the nodes need it"
    ]
    other = RunOptions(setup=("export A=2", "module load x"), srun_args=("--mpi=none",))
    assert changed_options(other, stored, marks, "n") == [
        "--setup differs from that of the session before",
        "--srun-args differs from that of the session before",
    ]
    assert changed_options(RunOptions(setup=("true",)), (), {}, "n") == [
        "--setup differs from that of the session before"
    ]
