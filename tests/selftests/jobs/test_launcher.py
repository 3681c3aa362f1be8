"""What sbatch gets, what reaches the jobs, and that nothing of theirs is ever unpickled."""

# Length: launcher and watcher are tested on the same commands.

from __future__ import annotations

import ast
import itertools
import os
import pickle
import stat
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.errors import ConfigError, RunError
from fixtures.jobs import deadlines, launcher
from fixtures.jobs.launcher import (
    JobRequest,
    LocalLauncher,
    SlurmBusy,
    SlurmLauncher,
    SlurmOptions,
    parsed_sbatch_args,
    scrub_environment,
)
from fixtures.jobs.watcher import TERMINAL, JobState, LocalWatcher, SlurmWatcher
from fixtures.processes import PROOF, has_proof, proof_of
from fixtures.slurm.allocation import Allocation
from tests.selftests.hostile import Hostile
from tests.selftests.support import CHECKOUT, DATA, NONCE

pytestmark = pytest.mark.cpu

GOLDEN = DATA / "golden"
RUN_ID = "20261120-120000-0000"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts fake commands of Slurm on the PATH; each notes how it was called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    called = tmp_path / "called"
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")

    def put(**scripts: str) -> Path:
        for name, script in scripts.items():
            path = folder / name
            path.write_text(f'#!/bin/sh\necho "{name} $*" >> {called}\n{script}\n')
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return called

    put(srun="exit 0")
    return put


def request(tmp_path: Path, *nodes: str, name: str = "node-worker0", ranks: int = 2) -> JobRequest:
    return JobRequest(
        name=name, directory=tmp_path / "run" / "jobs" / name, nodes=nodes or ("worker0",),
        ranks_per_node=ranks, time_limit_min=12,
    )  # fmt: skip


FULL = SlurmOptions(
    partition="gpu", account="proj", qos="high", reservation="acceptance", constraint="h200&ib",
    time_limit_min=45, setup=("module load cuda/13", "export NCCL_DEBUG=INFO"),
    node_python="/shared/venv/bin/python", gpus_per_node=8, allocation=Allocation(cpus=192),
    srun_args=("--container-image=/shared/torch.sqsh", "--container-mounts=/shared:/shared"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options", "nodes", "ranks"),
    [
        ("node-worker0", SlurmOptions(allocation=Allocation(cpus=8)), ("worker0",), 2),
        ("cluster", FULL, ("gpu01", "gpu02", "gpu03", "gpu04"), 8),
        ("pair-a--b", SlurmOptions(gpus_per_node=2), ("a", "b"), 2),
    ],
)
def test_the_batch_script_is_the_golden_one(tmp_path, commands, name, options, nodes, ranks):
    executor = SlurmLauncher(RUN_ID, options).executor(
        request(tmp_path, *nodes, name=name, ranks=ranks)
    )
    text = executor._make_submission_file_text(executor._submitit_command_str, "uid")
    for found, shown in (
        (str(tmp_path / "run"), "RUN"), (sys.executable, "PYTHON"), (str(CHECKOUT), "CHECKOUT"),
    ):  # fmt: skip
        text = text.replace(found, shown)
    assert text == (GOLDEN / f"{name}.sbatch").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.sbatch")), ids=lambda path: path.stem)
def test_every_script_keeps_what_must_hold_of_all_jobs(path):
    """Said once in words, so that a golden file is not renewed without thought."""
    text = path.read_text(encoding="utf-8")
    given = [line.removeprefix("#SBATCH --") for line in text.splitlines() if "#SBATCH --" in line]
    flags = {name: value for name, _, value in (one.partition("=") for one in given)}
    (srun,) = [line for line in text.splitlines() if line.startswith("srun ")]
    assert "no-requeue" in flags
    assert "requeue" not in flags
    assert "exclusive" in flags
    assert "wckey" not in flags
    assert flags["mem"] == "0"
    assert flags["job-name"].startswith(f"accept-{RUN_ID}-")
    assert len(flags["nodelist"].strip("'").split(",")) == int(flags["nodes"])
    assert "--kill-on-bad-exit=1" in srun
    assert f"--cpus-per-task={flags['cpus-per-task']}" in srun
    assert text.index("export PYTHONPATH=CHECKOUT") < text.index("srun ")
    assert "array" not in flags


def test_options_that_were_not_given_are_left_to_the_site(tmp_path, commands):
    text = (GOLDEN / "node-worker0.sbatch").read_text(encoding="utf-8")
    for name in ("partition", "account", "qos", "reservation", "constraint", "gpus-per-node"):
        assert f"--{name}" not in text


def test_sbatch_is_called_once_with_a_fresh_folder_and_gives_the_job_id(tmp_path, commands):
    called = commands(sbatch="echo Submitted batch job 4711")
    launcher = SlurmLauncher(RUN_ID, SlurmOptions())
    assert launcher.submit(request(tmp_path), tmp_path / "spec.json") == "4711"
    lines = called.read_text().splitlines()
    assert len([line for line in lines if line.startswith("sbatch")]) == 1
    assert f"{tmp_path}/run/jobs/node-worker0/submitit" in lines[0]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1",
         "Invalid account"),
        ("echo nonsense", "nonsense"),
    ],
)  # fmt: skip
def test_a_refusal_is_one_line_with_what_sbatch_said(tmp_path, commands, script, said):
    commands(sbatch=script)
    with pytest.raises(RunError, match=said) as caught:
        SlurmLauncher(RUN_ID, SlurmOptions()).submit(request(tmp_path), tmp_path / "spec.json")
    assert "sbatch refused node-worker0" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_cancelling_kills_and_then_cancels_all_jobs_at_once(commands):
    called = commands(scancel="exit 0")
    launcher = SlurmLauncher(RUN_ID, SlurmOptions())
    launcher.cancel([])
    assert not called.exists(), "nothing to cancel, nothing called"
    launcher.cancel(["1", "2"])
    assert called.read_text().splitlines() == [
        "scancel --quiet --signal=KILL --full 1 2", "scancel --quiet 1 2",
    ]  # fmt: skip


def test_of_an_enclosing_job_only_what_says_which_cluster_it_is_is_kept():
    kept = {
        "SLURM_CONF": "/etc/slurm/slurm.conf", "SLURM_CLUSTERS": "b", "PATH": "/bin",
        "HOME": "/root", "CUDA_VISIBLE_DEVICES": "0", "SLURM_CONF_SERVER": "ctl:6817",
        "SLURM_JWT": "a.b.c",
    }  # fmt: skip
    inherited = dict.fromkeys(
        ["SLURM_JOB_ID", "SLURM_CPU_BIND", "SLURM_TIME_FORMAT", "SBATCH_PARTITION", "SRUN_DEBUG",
         "PMI_RANK", "PMIX_SERVER_URI", "SUBMITIT_EXECUTOR", "SLURM_NODELIST"], "x",
    )  # fmt: skip
    environment = kept | inherited
    scrub_environment(environment)
    assert environment == kept


# --- nothing is unpickled


def test_a_hostile_result_is_never_loaded(tmp_path):
    """A job that cannot read its spec; its result is replaced before and after it ends."""
    (spec := tmp_path / "no-spec.json").write_text("{")  # one that is absent is waited for
    trace = tmp_path / "trace"
    poison = pickle.dumps(("success", Hostile(trace)))
    ask = request(tmp_path, "here", ranks=1)
    ask.directory.mkdir(parents=True)
    launcher = LocalLauncher(RUN_ID, NONCE, gpus=0)
    watcher = LocalWatcher(launcher)
    job_id = launcher.submit(ask, spec)
    assert has_proof(int(job_id), proof_of(NONCE, ask.directory)), "a later run may end it"
    assert PROOF not in os.environ
    planted = ask.directory / "submitit" / f"{job_id}_0_result.pkl"
    planted.write_bytes(poison)
    tick = threading.Event()
    while not watcher.states([job_id])[job_id].ended:
        tick.wait(0.05)
    planted.write_bytes(poison)
    assert watcher.states([job_id])[job_id].ended
    (log,) = deadlines.log_parts(ask.directory)
    assert "no-spec.json" in log.text, "the rank said why it ended"
    launcher.cancel([job_id])
    del launcher, watcher
    assert not trace.exists()
    pickle.loads(poison)
    assert trace.exists(), "it would have left its trace"


def calls_of(tree: ast.AST) -> list[str]:
    return [ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)]


def imports_of(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
    return found


SOURCES = sorted(
    path for folder in ("fixtures", "reports") for path in (CHECKOUT / folder).rglob("*.py")
)


def test_no_module_of_the_suite_can_unpickle():
    assert len(SOURCES) > 30
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        loaders = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
        assert not imports_of(tree) & loaders, path
        for call in calls_of(tree):
            assert call not in ("torch.load", "numpy.load", "np.load", "pandas.read_pickle"), path
            if path.name == "launch.py":  # the only one that holds submitit's jobs
                assert call.rpartition(".")[2] not in ("result", "results", "exception"), call


def test_only_what_submits_knows_submitit():
    knowing = [
        path.relative_to(CHECKOUT).as_posix() for path in SOURCES
        if "submitit" in imports_of(ast.parse(path.read_text(encoding="utf-8")))
    ]  # fmt: skip
    assert knowing == ["fixtures/jobs/batch_script.py", "fixtures/jobs/launcher.py"]


# --- states


SQUEUE = (
    "1|COMPLETED |0:0 |worker0 |worker0 |None |a\n2|RUNNING |0:0 |worker1 | |None |b\n"
    "3|PENDING |0:0 | | |(Priority) |c"
)


def states(watcher: SlurmWatcher, *job_ids: str) -> dict[str, JobState]:
    watcher.invalidate()
    return dict(watcher.states(job_ids))


def test_one_query_serves_all_jobs(commands):
    called = commands(squeue=f"printf '{SQUEUE}'")
    found = states(SlurmWatcher(), "1", "2", "3")
    assert {k: s.state for k, s in found.items()} == {
        "1": "COMPLETED", "2": "RUNNING", "3": "PENDING",
    }  # fmt: skip
    assert found["1"].ended
    assert not found["2"].ended
    assert found["3"].unstartable_reason is None
    assert len(called.read_text().splitlines()) == 1


def test_slurmctld_is_asked_once_a_second_whatever_is_to_be_known(commands):
    reason = "(ReqNodeNotAvail, UnavailableNodes:worker0)"
    called = commands(
        squeue=f"date +%s.%N >> $0.times; echo '1|PENDING |0:0 | | |{reason} |a'",
        sinfo="date +%s.%N >> $0.times; echo worker0 idle",
    )
    watcher = SlurmWatcher()
    for _ in range(2):
        states(watcher, *map(str, range(500)))
        watcher.nodes()
    times = [
        float(line) for name in ("squeue", "sinfo")
        for line in (called.parent / "bin" / f"{name}.times").read_text().split()
    ]  # fmt: skip
    assert len(times) == 4
    gaps = [b - a for a, b in itertools.pairwise(sorted(times))]
    assert min(gaps) > 0.8  # of when they came to their work, not of when they were started


def test_jobs_are_found_by_name_only_in_an_answer_that_is_new_enough(commands):
    commands(squeue=f"printf '{SQUEUE}'")
    watcher = SlurmWatcher()
    watcher.states(["1"])
    assert watcher.find("b", 0.0) == ["2"]
    assert watcher.find("b", time.monotonic()) is None


@pytest.mark.parametrize(
    ("said", "busy"),
    [
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", 1),
        ("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying", 1),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", 1),
        ("sbatch: error: AssocMaxSubmitJobLimit", 1),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit", 1),
        ("sbatch: error: invalid partition specified: nowhere", 0),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not "
         "available", 0),
    ],
)  # fmt: skip
def test_a_refusal_for_the_moment_is_told_from_one_for_good(commands, tmp_path, said, busy):
    commands(sbatch=f"echo '{said}' >&2; exit 1")
    with pytest.raises(RunError) as refused:
        SlurmLauncher(RUN_ID, SlurmOptions()).submit(request(tmp_path), tmp_path / "spec.json")
    assert isinstance(refused.value, SlurmBusy) == bool(busy)


def test_asking_again_at_once_asks_nobody(commands):
    called = commands(squeue=f"printf '{SQUEUE}'")
    watcher = SlurmWatcher()
    for _ in range(5):
        watcher.states(["1", "2"])
    assert len(called.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("reason", "sinfo", "hopeless"),
    [
        ("(ReqNodeNotAvail, UnavailableNodes:worker0)", "echo worker0 mixed", False),
        ("(ReqNodeNotAvail, UnavailableNodes:worker0)", "echo 'worker0 idle*'", False),
        ("(ReqNodeNotAvail, UnavailableNodes:worker0)", "echo worker0 unknown", False),
        ("(ReqNodeNotAvail, UnavailableNodes:worker0)", "echo 'worker0 down*'", True),
        (
            "(ReqNodeNotAvail, UnavailableNodes:worker[0-1])",
            "printf 'worker0 idle\\nworker1 drained\\n'",
            True,
        ),
        ("(ReqNodeNotAvail, UnavailableNodes:worker0)", "exit 1", True),
        ("(ReqNodeNotAvail, UnavailableNodes:worker0)", "exit 0", True),
        ("(ReqNodeNotAvail, Reserved for maintenance)", "echo idle", True),
        ("(ReqNodeNotAvail, May be reserved for other job)", "echo idle", False),
    ],
)
def test_a_node_that_is_in_service_is_waited_for(commands, reason, sinfo, hopeless):
    """slurmctld says so for a moment of a node whose slurmd is slow to answer."""
    commands(squeue=f"echo '1|PENDING |0:0 | | |{reason} |a'", sinfo=sinfo)
    found = states(SlurmWatcher(), "1")["1"]
    assert (found.unstartable_reason is not None) == hopeless, found


def test_a_query_that_fails_leaves_what_was_known(commands):
    commands(squeue=f"printf '{SQUEUE}'")
    watcher = SlurmWatcher()
    before = states(watcher, "2")
    commands(squeue="echo 'slurm_load_jobs error: Unable to contact controller' >&2; exit 1")
    assert states(watcher, "2") == before


def test_a_job_that_squeue_forgot_is_asked_of_accounting(commands):
    commands(squeue="exit 0", sacct="echo '2|CANCELLED by 0|0:9'")
    assert states(SlurmWatcher(), "2")["2"] == JobState("CANCELLED", "from sacct", "0:9")


def test_a_job_that_nobody_knows_is_gone(commands):
    called = commands(
        squeue="exit 0", sacct="echo 'no accounting' >&2; exit 1",
        scontrol="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
    )  # fmt: skip
    watcher = SlurmWatcher()
    assert states(watcher, "2")["2"].state == "GONE"
    assert states(watcher, "3")["3"].ended
    asked = [line for line in called.read_text().splitlines() if line.startswith("sacct")]
    assert len(asked) == 1, "accounting that is not there is asked once"


@pytest.mark.parametrize(
    "state", ["SIGNALING", "COMPLETING", "CONFIGURING", "REQUEUED", "SUSPENDED", "UNKNOWN", "NEW"]
)
def test_what_is_no_documented_end_is_not_an_end(state):
    assert not JobState(state).ended
    assert state not in TERMINAL


# --- options for sbatch, and what it says


def test_options_that_a_site_demands_reach_sbatch():
    given = ("--comment=project 7", "--wckey=w", "--licenses=fluent:1", "--no-bell")
    assert parsed_sbatch_args(given) == {
        "comment": "project 7", "wckey": "w", "licenses": "fluent:1", "no-bell": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("--nodelist=n1", "the suite itself sets --nodelist"),
        ("--output=x", "the suite itself sets --output"),
        ("--partition=gpu", "use the suite's option --partition"),
        ("--time=10", "use the suite's option --time-limit"),
        ("--clusters=a,b", "is not the name of one cluster"),
        ("-p gpu", "expected --NAME=VALUE"),
        ("comment", "expected --NAME=VALUE"),
    ],
)
def test_options_on_which_the_measurement_rests_are_refused(given, why):
    with pytest.raises(ConfigError, match=why):
        parsed_sbatch_args([given])


POLICY = (
    "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's "
    "size and/or time limits)"
)


@pytest.mark.parametrize(
    ("said", "busy", "of_a_node"),
    [
        (f"sbatch: error: {POLICY}", False, False),
        (f"sbatch: error: QOSMaxNodePerUserLimit\nsbatch: error: {POLICY}", False, False),
        (f"sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: {POLICY}", True, False),
        (f"sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: {POLICY}", True, False),
        (f"sbatch: error: AssocGrpSubmitJobsLimit\nsbatch: error: {POLICY}", True, False),
        ("sbatch: error: Requested node configuration is not available", False, False),
        ("sbatch: error: Invalid account or account/partition combination", False, False),
        ("sbatch: error: this site wants --comment=PROJECT", False, False),
        ("sbatch: error: Batch job submission failed: Invalid license specification", False, False),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", True, False),
        ("sbatch: error: Socket timed out on send/recv operation", True, False),
        ("sbatch: error: invalid node name specified", False, True),
    ],
)
def test_what_sbatch_says_is_busy_refused_or_of_a_node(said, busy, of_a_node):
    assert bool(launcher.BUSY_MESSAGES.search(said)) is busy
    assert bool(launcher.NODE_MESSAGES.search(said)) is of_a_node


@pytest.mark.parametrize(("nodes", "one_log"), [(2, False), (125, False), (126, True)])
def test_srun_writes_one_log_for_a_large_job(nodes: int, one_log: bool, tmp_path: Path) -> None:
    names = tuple(f"n{k}" for k in range(nodes))
    request = JobRequest(
        name="all", directory=tmp_path, nodes=names, ranks_per_node=8, time_limit_min=5
    )
    found = launcher._common_log(request)
    assert found == ([f"--output={tmp_path}/submitit/%j_0_log.out", "--label"] if one_log else [])


def test_the_cluster_that_is_asked_for_is_that_of_all_commands(monkeypatch):
    monkeypatch.delenv(launcher.CLUSTER_VARIABLE, raising=False)
    launcher.reach_cluster(["--comment=x"])
    assert launcher.CLUSTER_VARIABLE not in os.environ
    monkeypatch.setenv(launcher.CLUSTER_VARIABLE, "before")
    launcher.reach_cluster(["--clusters=alpha"])
    assert os.environ[launcher.CLUSTER_VARIABLE] == "alpha"


def test_a_job_is_small_where_it_asks_for_a_part_of_the_memory(tmp_path):
    request = JobRequest(
        name="x", directory=tmp_path, nodes=("n1",), ranks_per_node=1, time_limit_min=1
    )
    assert request.small is False
    assert replace(request, memory_mib=0).small is True
