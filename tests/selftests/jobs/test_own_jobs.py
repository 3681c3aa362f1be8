"""The Slurm jobs of a run, by name and by script, and the command that ends them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.jobs import own_jobs
from tests.selftests.fake_commands import command

__all__ = ["command"]

pytestmark = pytest.mark.cpu

ROOT = Path("/shared/runs/r1")
SCRIPT = f"{ROOT}/jobs/node-a/submitit/submission_file_1.sh"


def test_jobs_of_a_run_are_known_by_name_and_by_script(command):
    command(
        "squeue",
        "7|RUNNING||7|accept-r1-node a\n8\n9|RUNNING|/home/a/other.sh|9|other\n"
        f"10|PENDING|{SCRIPT}|10|renamed-by-a-filter\n11|COMPLETING|{SCRIPT}|11|a|b\n"
        "12|RUNNING|/x/jobs/a/submitit/s.sh|12|accept-r2-x\n"
        "13|RUNNING|jobs/a/submitit/s.sh|13|x\n",
    )
    assert own_jobs.living("r1", ROOT) == {"7": "RUNNING", "10": "PENDING"} | {"11": "COMPLETING"}
    assert own_jobs.living("r2", Path("/elsewhere")) == {"12": "RUNNING"}
    runs = {job.id: job.run for job in own_jobs.own_jobs() or ()}
    assert (runs["7"], runs["9"], runs["10"]) == (None, None, ROOT)
    assert (runs["12"], runs["13"]) == (Path("/x"), None)
    assert own_jobs.run_prefix("r2") == "accept-r2-"
    command("squeue", "7|RUNNING||7|accept-r1-x\n", status=1)
    assert own_jobs.own_jobs() is None
    assert own_jobs.living("r1", ROOT) is None


def test_the_command_that_ends_jobs_names_the_cluster_too(monkeypatch):
    monkeypatch.delenv(own_jobs.CLUSTER_VARIABLE, raising=False)
    assert own_jobs.scancel_line({"10", "9"}) == "scancel 9 10"
    monkeypatch.setenv(own_jobs.CLUSTER_VARIABLE, "alpha")
    assert own_jobs.scancel_line(["9"]) == "scancel --clusters=alpha 9"


def test_without_slurm_s_commands_the_jobs_are_unknown(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert own_jobs.own_jobs() is None


@pytest.mark.parametrize(
    ("state", "left"),
    [("RUNNING", True), ("PENDING", True), ("SUSPENDED", True), ("COMPLETING", False), ("", False)],
)
def test_a_job_that_completes_is_ended_by_slurm(state, left):
    assert own_jobs.to_be_ended(state) is left
