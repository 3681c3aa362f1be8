"""What patrol asks of Slurm: idle nodes, jobs that wait, its own jobs; and how it submits them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from fixtures.errors import ConfigError, RunError
from fixtures.paths import CHECKOUT
from fixtures.patrol import queue
from fixtures.slurm import client
from fixtures.slurm.client import SlurmNode

pytestmark = pytest.mark.cpu


@pytest.fixture
def asked(monkeypatch) -> list[tuple[str, ...]]:
    """Commands that were given to Slurm."""
    return []


def answers(
    monkeypatch: pytest.MonkeyPatch, asked: list[tuple[str, ...]], **texts: str
) -> None:  # fmt: skip
    def query(*command: str) -> str:
        asked.append(command)
        return texts[command[0]]

    for module in (queue, client):
        monkeypatch.setattr(module, "slurm_query", query)


def test_only_idle_nodes_are_named_and_all_are_counted(monkeypatch):
    def nodes(partition: str | None) -> list[SlurmNode]:
        return [
            SlurmNode(name=f"{partition}{k}", state=state, reason="", address="", cpus=1, gpus=8,
                      partitions=())
            for k, state in enumerate(("IDLE", "idle", "IDLE+DRAIN", "ALLOCATED"))
        ]  # fmt: skip

    monkeypatch.setattr(queue, "slurm_nodes", nodes)
    assert queue.idle_nodes("gpu") == (["gpu0", "gpu1"], 4)


def test_only_jobs_that_a_node_would_help_are_waited_for(monkeypatch, asked):
    reasons = ["Resources", "Priority", "None", "(Nodes required for job are DOWN)", "Dependency",
               "JobHeldUser", "BeginTime", "AssocGrpGRES", "QOSMaxJobsPerUserLimit",
               "job requeued in held state", "MaxMemPerLimit", "Reservation"]  # fmt: skip
    lines = [f"{k}|a|b|{reason}\n" for k, reason in enumerate(reasons)]
    own = f"99|{queue.JOB_NAME}|Priority\n\n|no id|Priority\n"
    answers(monkeypatch, asked, squeue="".join(lines) + own)
    assert queue.waiting_jobs() == ["0", "1", "2", "3"]
    assert "--states=PENDING" in asked[0]


def test_own_jobs_are_those_of_the_name_of_patrol(monkeypatch, asked):
    answers(monkeypatch, asked, squeue="7|RUNNING\n8|PENDING\n\n")
    assert queue.own_jobs() == {"7": "RUNNING", "8": "PENDING"}
    answers(monkeypatch, asked, squeue="7\n9\n")
    assert queue.preempted_jobs() == {"7", "9"}
    assert all({"--me", f"--name={queue.JOB_NAME}"} <= {*command} for command in asked)
    assert "--states=PREEMPTED" in asked[1]


def test_where_jobs_are_hidden_and_slurm_does_not_preempt_patrol_is_refused(monkeypatch, asked):
    hidden = "PrivateData             = accounts,jobs\n"
    for text in ("", "PrivateData = none\n", "PrivateData = accounts\n"):
        answers(monkeypatch, asked, scontrol=text)
        queue.refuse_hidden(None)
    answers(monkeypatch, asked, scontrol=hidden)
    with pytest.raises(ConfigError, match="PrivateData=jobs hides"):
        queue.refuse_hidden(None)
    for mode, allowed in (("CANCEL", True), ("requeue", True), ("OFF", False), (None, False)):
        fields = {} if mode is None else {"PreemptMode": mode}
        monkeypatch.setattr(queue, "slurm_partition", lambda _, found=fields: found)
        if allowed:
            queue.refuse_hidden("patrol")
            continue
        with pytest.raises(ConfigError, match="--partition with PreemptMode=CANCEL"):
            queue.refuse_hidden("patrol")


def test_a_visit_is_a_job_on_one_node_behind_all_others(monkeypatch, asked, tmp_path: Path):
    answers(monkeypatch, asked, sbatch="42;cluster\n")
    options = queue.Options(partition="gpu", qos="low", sbatch_args=("--reservation=x",))
    directory = tmp_path / "a visit"
    assert queue.submit("n0", directory, ["sleep", "a b"], options) == "42"
    (command,) = asked
    assert {"--nodelist=n0", "--nodes=1", "--exclusive", "--time=1", "--nice=10000",
            f"--output={directory}/output.txt", "--partition=gpu", "--qos=low",
            "--reservation=x"} <= {*command}  # fmt: skip
    assert not [argument for argument in command if argument.startswith("--account")]
    script = Path(command[-1]).read_text()
    assert f"cd {CHECKOUT}" in script
    assert script.endswith("exec sleep 'a b'\n")


def test_jobs_are_killed_and_then_cancelled(monkeypatch):
    ran: list[tuple[tuple[str, ...], dict[str, Any]]] = []
    monkeypatch.setattr(queue, "run_command", lambda *c, **more: ran.append((c, more)))
    queue.cancel([])
    assert ran == []
    queue.cancel(iter(["7", "8"]))
    assert [command[1:] for command, _ in ran] == [
        ("--quiet", "--signal=KILL", "--full", "7", "8"), ("--quiet", "7", "8")
    ]  # fmt: skip
    assert {more["timeout_s"] for _, more in ran} == {30}, "as long as a Slurm that is slow needs"


def test_a_slurm_that_does_not_cancel_is_named(monkeypatch):
    for error in (OSError("no scancel"), subprocess.TimeoutExpired("scancel", 30)):

        def run(*_: Any, found: Exception = error, **__: Any) -> None:
            raise found

        monkeypatch.setattr(queue, "run_command", run)
        with pytest.raises(RunError, match="scancel: "):
            queue.cancel(["7"])
