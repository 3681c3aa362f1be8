"""What submitit is asked for, on Slurm and on this host."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.errors import RunError
from fixtures.jobs import launcher
from fixtures.jobs.launcher import (
    JobRequest,
    LocalLauncher,
    SlurmBusy,
    SlurmLauncher,
    SlurmOptions,
    SlurmRefused,
)
from fixtures.paths import CHECKOUT
from fixtures.records.files import read_json
from fixtures.slurm.allocation import Allocation

pytestmark = pytest.mark.cpu


@pytest.fixture
def request_(tmp_path: Path) -> JobRequest:
    return JobRequest(
        name="node-n1", directory=tmp_path, nodes=("n1", "n2"), ranks_per_node=2,
        time_limit_min=9, gpus_per_node=1,
    )  # fmt: skip


class Executor:
    """Remembers how it was made and what it was told."""

    def __init__(self, folder: Path, **made: Any) -> None:
        self.made = made
        self.told: dict[str, Any] = {}

    def update_parameters(self, **told: Any) -> None:
        self.told = told


def told(
    monkeypatch: pytest.MonkeyPatch,
    request: JobRequest,
    *,
    no_memory: bool = False,
    **options: Any,
) -> dict[str, Any]:
    monkeypatch.setattr(launcher, "Executor", Executor)
    slurm = SlurmLauncher("r", SlurmOptions(**options))
    made: Any = slurm.executor(request, no_memory=no_memory)
    return {**made.told, **made.made}


def test_slurm_is_asked_for_whole_nodes_with_all_that_they_have(monkeypatch, request_):
    found = told(monkeypatch, request_, gpus_per_node=8, allocation=Allocation(cpus=64))
    assert found["job_name"] == "accept-r-node-n1"
    assert (found["nodes"], found["nodelist"], found["exclusive"]) == (2, "n1,n2", True)
    assert (found["gpus_per_node"], found["cpus_per_task"], found["mem"]) == (8, 32, "0")
    assert (found["time"], found["exclude"], found["signal_delay_s"]) == (9, None, 30)
    assert found["python"] == shlex.quote(sys.executable)
    assert told(monkeypatch, request_)["gpus_per_node"] is None
    assert told(monkeypatch, request_, node_python="/py")["python"] == "/py"
    path = f"export PYTHONPATH={CHECKOUT}${{PYTHONPATH:+:$PYTHONPATH}}"
    assert found["setup"] == [path]


def test_a_time_limit_of_the_site_holds_for_all_jobs_but_victims(monkeypatch, request_):
    assert told(monkeypatch, request_, time_limit_min=4)["time"] == 4
    victim = replace(request_, victim=True, requeue=True, exclude=("n3", "n4"))
    found = told(monkeypatch, victim, time_limit_min=4)
    assert (found["time"], found["signal_delay_s"], found["exclude"]) == (9, 0, "n3,n4")
    assert (found["nodes"], found["nodelist"]) == (1, None)
    assert found["additional_parameters"] == {"requeue": True}


def test_a_small_job_asks_for_a_part_and_its_batch_script_may_fail(monkeypatch, request_):
    small = replace(request_, memory_mib=256, batch="some.module", part=1)
    found = told(monkeypatch, small, gpus_per_node=8, allocation=Allocation(cpus=64))
    assert (found["gpus_per_node"], found["cpus_per_task"], found["mem"]) == (1, 1, "256M")
    assert found["exclusive"] is None
    line = found["setup"][-1]
    assert line.startswith(f"{shlex.quote(sys.executable)} -m some.module ")
    assert line.endswith("batch1.json || true")
    assert "python3 -m" not in line
    # The interpreter of an image is not where a batch script runs.
    (*_, line) = told(monkeypatch, small, node_python="/app/py")["setup"]
    first, second, last = line.split(" || ")
    assert (first.partition(" ")[0], last) == ("/app/py", "true")
    assert second.partition(" ")[::2] == ("python3", first.partition(" ")[2])


@pytest.mark.parametrize(
    ("site", "asked"),
    [
        (Allocation(cpus=64, gpus=False), {"gpus_per_node": None, "exclusive": True}),
        (Allocation(cpus=64, memory_mib=2000), {"mem": "2000M", "gpus_per_node": 8}),
        (Allocation(cpus=64, memory_per_cpu_mib=100), {"mem": "6400M", "cpus_per_task": 32}),
        (Allocation(cpus=65, memory_per_cpu_mib=100), {"mem": "6400M", "cpus_per_task": 32}),
        (Allocation(cpus=6, exclusive=False), {"exclusive": None, "mem": "0", "cpus_per_task": 3}),
    ],
)  # fmt: skip
def test_a_node_is_asked_for_as_the_site_can_give_it(monkeypatch, request_, site, asked):
    found = told(monkeypatch, request_, gpus_per_node=8, allocation=site)
    assert {name: found[name] for name in asked} == asked


class Sbatch:
    """Answers a submission, by whether it asks for memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, with_mem: str, without: str = "") -> None:
        self.said = {True: with_mem, False: without}
        self.asked: list[bool] = []
        monkeypatch.setattr(SlurmLauncher, "executor", self.executor)

    def executor(self, request: JobRequest, *, no_memory: bool) -> Any:
        def submit(*_: Any) -> Any:
            self.asked.append(not no_memory)
            if said := self.said[not no_memory]:
                raise launcher.submitit.core.utils.FailedJobError(f"sbatch: error: {said}")
            return SimpleNamespace(job_id="7")

        return SimpleNamespace(submit=submit)


@pytest.mark.parametrize(
    "said", ["Do not request memory on this cluster", "--mem is not allowed",
             "Batch job submission failed: Memory required by task is not available"],
)  # fmt: skip
def test_a_filter_against_mem_is_given_the_job_without_it(monkeypatch, request_, tmp_path, said):
    sbatch = Sbatch(monkeypatch, said)
    slurm = SlurmLauncher("r", SlurmOptions())
    assert slurm.submit(request_, tmp_path) == "7"
    assert slurm.submit(request_, tmp_path) == "7"
    assert sbatch.asked == [True, False, False], "it is learned once"


def test_where_that_does_not_help_the_first_refusal_is_the_reason(monkeypatch, request_, tmp_path):
    sbatch = Sbatch(monkeypatch, "no memory for you", "Unspecified error")
    slurm = SlurmLauncher("r", SlurmOptions())
    with pytest.raises(SlurmRefused, match="no memory for you"):
        slurm.submit(request_, tmp_path)
    sbatch.said[False] = "Socket timed out"
    with pytest.raises(SlurmBusy, match="timed out"):
        slurm.submit(request_, tmp_path)
    sbatch.said[True] = "this site wants --comment=PROJECT"
    with pytest.raises(SlurmRefused, match="PROJECT"):
        slurm.submit(request_, tmp_path)
    assert sbatch.asked == [True, False, True, False, True]


def test_a_small_job_has_what_such_a_site_gives_it(monkeypatch, request_, tmp_path):
    """What it was refused says nothing of whole nodes, whose default may be tiny."""
    sbatch = Sbatch(monkeypatch, "do not ask for memory")
    slurm = SlurmLauncher("r", SlurmOptions())
    small = replace(request_, memory_mib=256)
    for request in (small, small, request_, request_):
        assert slurm.submit(request, tmp_path) == "7"
    assert sbatch.asked == [True, False, False, True, False, False]


def test_without_memory_no_job_names_any(monkeypatch, request_):
    for request in (request_, replace(request_, memory_mib=256)):
        assert told(monkeypatch, request, no_memory=True)["mem"] is None


def test_all_that_sbatch_said_is_kept():
    """A submit filter says its small talk first, and what it refuses after it."""
    said = RunError(
        "submitit failed\n sbatch: error: NOTE: maintenance on Friday \nsbatch: error: no --mem\n"
        "use --account=<project>\nsbatch: error: Batch job submission failed: Unspecified error"
    )
    assert launcher._words_of_sbatch(said) == (
        "sbatch: NOTE: maintenance on Friday; no --mem; use --account=<project>; "
        "Batch job submission failed: Unspecified error"
    )
    assert launcher._words_of_sbatch(RunError("\n one \ntwo")) == "one"
    assert launcher._words_of_sbatch(ValueError()) == "ValueError"


def test_of_the_environment_of_an_enclosing_job_only_the_cluster_is_kept():
    kept = "SLURM_CONF"
    gone = f"{launcher.SCRUBBED_PREFIXES[0]}JOB_ID"
    environment = {"HOME": "/h", kept: "x", gone: "7"}
    launcher.scrub_environment(environment)
    assert environment == {"HOME": "/h", kept: "x"}


@pytest.mark.parametrize("before", [None, "/own"])
@pytest.mark.parametrize("starts", [True, False])
def test_on_this_host_ranks_find_the_suite_and_our_path_stays(
    monkeypatch, request_, before, starts
):
    if before is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", before)
    seen: list[str] = []
    job = SimpleNamespace(job_id=str(os.getpid()), done=lambda: bool(seen[1:]))

    class Local(Executor):
        def submit(self, *_: Any) -> Any:
            seen.append(os.environ["PYTHONPATH"])
            if not starts:
                raise OSError("no more processes")
            assert (self.told["gpus_per_node"], self.told["tasks_per_node"]) == (4, 2)
            return job

    monkeypatch.setattr(launcher.submitit, "LocalExecutor", Local)
    local = LocalLauncher("r", "n", gpus=4)
    if starts:
        found = local.submit(request_, Path("spec.json"))
        assert found == str(os.getpid())
        assert read_json(request_.directory / "process.json")["pid"] == os.getpid()
        assert local.running(found) is True
        seen.append("ended")
        assert local.running(found) is False
    else:
        with pytest.raises(RunError, match="could not be started here: no more processes"):
            local.submit(request_, Path("spec.json"))
    assert seen[0] == (f"{CHECKOUT}{os.pathsep}/own" if before else str(CHECKOUT))
    assert os.environ.get("PYTHONPATH") == before
