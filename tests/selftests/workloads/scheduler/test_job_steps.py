"""Attached steps of a job, on a made-up srun."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from fixtures.workloads.scheduler import job_steps
from fixtures.workloads.scheduler.job_steps import StepError

pytestmark = pytest.mark.cpu


def answers(monkeypatch: pytest.MonkeyPatch, *found: Any) -> list[tuple[list[str], dict[str, Any]]]:
    """Make the next commands end so, or raise; return what was called."""
    called: list[tuple[list[str], dict[str, Any]]] = []
    rest = list(found)

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        called.append((list(command), options))
        answer = rest.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return subprocess.CompletedProcess(command, *answer)

    monkeypatch.setattr(job_steps.subprocess, "run", run)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    return called


def test_a_step_does_not_inherit_the_variables_of_this_one(monkeypatch: pytest.MonkeyPatch):
    for name in ("SLURM_CONF", "SLURM_NTASKS", "SRUN_X", "PMIX_RANK", "CUDA_VISIBLE_DEVICES", "OK"):
        monkeypatch.setenv(name, "1")
    kept = job_steps.clean_environment()
    assert {"SLURM_CONF", "OK", "PATH"} <= kept.keys()
    assert not {"SLURM_NTASKS", "SRUN_X", "PMIX_RANK", "CUDA_VISIBLE_DEVICES"} & kept.keys()


def test_a_step_that_fails_says_srun_s_first_line_and_keeps_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
):
    slow = subprocess.TimeoutExpired("srun", 30)
    called = answers(
        monkeypatch, (0, "out", ""), (1, "some", "\n srun: busy\nmore"), (3, "", ""),
        FileNotFoundError(), slow,
    )  # fmt: skip
    assert job_steps.attach("--nodes=1", program=["true"]) == "out"
    assert called[0][0][:2] == ["srun", "--jobid=17"]
    assert called[0][0][-2:] == ["--nodes=1", "true"]
    assert called[0][1]["timeout"] == job_steps.TIMEOUT_S == 30
    for says, output in (
        ("`srun -n1` failed:  srun: busy", "some\n\n srun: busy\nmore"),
        ("`srun -n1` failed: exit 3", "\n"), ("srun is not on the PATH where the ranks run", ""),
        ("did not end in 30 s", ""),
    ):  # fmt: skip
        with pytest.raises(StepError) as failed:
            job_steps.attach("-n1", program=["true"])
        assert says in str(failed.value)
        assert failed.value.output == output
    monkeypatch.delenv("SLURM_JOB_ID")
    with pytest.raises(StepError, match="in no Slurm job"):
        job_steps.attach(program=["true"])


def test_what_tasks_see_is_in_the_order_of_their_ranks(monkeypatch: pytest.MonkeyPatch):
    lines = ["a greeting", "[]", *(json.dumps({"SLURM_PROCID": k}) for k in ("10", "2", None))]
    answers(monkeypatch, (0, "\n".join(lines), ""))
    seen = job_steps.observe_tasks("-n3")
    assert [task["SLURM_PROCID"] for task in seen] == [None, "2", "10"]


def test_a_command_that_does_not_answer_prints_nothing(monkeypatch: pytest.MonkeyPatch):
    answers(monkeypatch, (0, "n0\n", ""), OSError(), subprocess.TimeoutExpired("scontrol", 30))
    assert [job_steps.query("scontrol") for _ in range(3)] == ["n0\n", "", ""]
