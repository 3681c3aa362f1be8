"""Lines of --setup in a batch script, what jobs get of the shell, what is kept of a script."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fixtures.jobs.batch_script import Executor, checked, script_without_secrets
from fixtures.jobs.diagnosis import diagnose
from fixtures.records.absence import JobKind
from fixtures.redaction import REMOVED, shown_line

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("export X=1", 0, ""), ("exit 3", 3, "status 3: exit 3"), ("false # no", 1, "status 1"),
        ("printf '%s' \"it's\" 100%; false", 1, f"printf {REMOVED}"),
        ("nothing_of_this_name", 127, "127"),
    ],
)  # fmt: skip
def test_a_setup_line_that_fails_ends_the_script_and_says_so(line, status, said):
    script = "\n".join([*checked(line), "echo went on"])
    run = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=900)
    assert run.returncode == status
    assert ("went on" in run.stdout) == (status == 0)
    assert said in run.stderr
    if status:
        failure = diagnose([], state="FAILED", exit_code=f"{status}:0", log_tail=run.stderr,
                           job="8", world_size=1)  # fmt: skip
        assert (failure.kind, failure.node) == (JobKind.SETUP_LINE, None)
        assert shown_line(line).text in failure.shown


def test_a_script_is_kept_with_its_options_as_run_json_has_them():
    script = "\n".join([
        "#!/bin/bash", "#SBATCH --comment='one two'", "#SBATCH --licenses=a:1", "",
        "accept_line=x", "export X=1", "module load cuda", "curl -u a:b h", "",
        "srun --kill-on-bad-exit=1 --comment=three '--container-env=a b' env T=5 python -u", "",
    ])  # fmt: skip
    shown = script_without_secrets(
        script,
        ("export X=1", "module load cuda", "curl -u a:b h"),
        ("--comment=one two", "--licenses=a:1", "--comment=three", "--container-env=a b"),
        "env T='5' python",
    )
    for gone in ("one two", "X=1", "a:b", "three", "a b"):
        assert gone not in shown
    for kept in ("--licenses=a:1", "module load cuda", "curl", "--kill-on-bad-exit=1", "python -u"):
        assert kept in shown


def test_a_job_gets_no_secret_of_the_shell_that_pytest_was_started_in(monkeypatch):
    for name in ("GH_TOKEN", "SLURM_JWT"):
        monkeypatch.setenv(name, "x")
    executor = Executor.__new__(Executor)  # without asking for srun
    command = executor._make_submission_command(Path("/s.sh"))
    assert command[0] == "env"
    assert command[-2:] == ["sbatch", "/s.sh"]
    assert "--unset=GH_TOKEN" in command
    assert not [word for word in command if "SLURM_JWT" in word or word == "--unset=PATH"]
