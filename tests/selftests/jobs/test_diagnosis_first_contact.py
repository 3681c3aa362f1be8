"""Slurm sites that nobody here set up: their texts, limits, defaults and what their nodes lack."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.backends import choose as backends
from fixtures.errors import ConfigError, RunError
from fixtures.jobs import diagnosis, own_jobs, watcher
from fixtures.jobs.error_texts import kind_of_text
from fixtures.records.absence import JobKind
from fixtures.run.options import RunOptions
from fixtures.slurm import client, membership
from fixtures.verdict.absence import of_missing
from fixtures.verdict.causes import Cause
from fixtures.workloads.devices import numa
from tests.selftests import support
from tests.selftests.fake_commands import command

__all__ = ["command"]

pytestmark = pytest.mark.cpu


# --- auto: a Slurm that does not answer is not a reason to measure the login node

UNREACHABLE = "slurm_load_partitions: Unable to contact slurm controller (connect failure)"
DENIED = "slurm_load_partitions: Access/permission denied"
NOT_CONFIGURED = (
    "sinfo: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
    "sinfo: error: fetch_config: DNS SRV lookup failed\n"
    "sinfo: fatal: Could not establish a configuration source"
)


@pytest.mark.parametrize("said", [UNREACHABLE, DENIED])
def test_a_slurm_that_does_not_answer_is_an_error_in_its_own_words(said, command):
    command("sinfo", err=f"{said}\n", status=1)
    with pytest.raises(RunError, match="gives no partitions") as error:
        backends.choose(RunOptions())
    assert said in str(error.value)
    assert "--cluster local" in str(error.value)


def test_a_slurm_without_a_visible_partition_is_an_error(command):
    command("sinfo")
    with pytest.raises(RunError, match="no partition is visible"):
        membership.slurm_answers()


def test_a_host_of_no_cluster_may_have_slurm_s_commands(command):
    command("sinfo", err=NOT_CONFIGURED, status=1)
    assert membership.slurm_answers() is False


def test_a_slurm_that_answers_is_taken(command):
    command("sinfo", "gpu*\n")
    assert membership.slurm_answers() is True


OUTAGE = (
    "sinfo: error: _fetch_child: failed to fetch remote configs: Unable to contact slurm "
    "controller (connect failure)\n"
    "sinfo: error: _establish_config_source: failed to fetch config\n"
    "sinfo: fatal: Could not establish a configuration source"
)
"""Of a login node with SLURM_CONF_SERVER while the controller is down (configless-outage)."""


def test_a_configless_cluster_whose_controller_is_away_is_exit_4(command, tmp_path):
    command("sinfo", err=f"{OUTAGE}\n", status=1)
    run = support.run_pytest("-m", "multinode", f"--run-dir={tmp_path / 'run'}", process=True)
    assert run.returncode == 4, run.stdout + run.stderr
    assert "failed to fetch remote configs: Unable to contact slurm controller" in run.stderr
    assert not (tmp_path / "run").exists()


def test_the_error_is_one_line_and_exit_4(command, tmp_path):
    command("sinfo", err=f"{UNREACHABLE}\n", status=1)
    run = support.run_pytest("-m", "multinode", f"--run-dir={tmp_path / 'run'}", process=True)
    assert run.returncode == 4, run.stdout + run.stderr
    assert UNREACHABLE in run.stderr
    assert "Traceback" not in run.stdout + run.stderr
    assert not (tmp_path / "run").exists()


# --- what a user's environment and the site's defaults change


def test_variables_that_format_slurm_s_answers_reach_no_query(command, monkeypatch, tmp_path):
    for name in ("SQUEUE_PARTITION", "SINFO_PARTITION", "SACCT_FORMAT"):
        monkeypatch.setenv(name, "batch")
    (site := tmp_path / "site.conf").touch()
    monkeypatch.setenv("SLURM_CONF", str(site))
    for name in ("sinfo", "squeue"):
        command(name, "gpu*\n")
    membership.slurm_answers()
    client.slurm_query("sinfo")
    for kind in ("sinfo", "squeue"):
        watcher._output(kind)
        seen = (tmp_path / "bin" / f"{kind}.env").read_text()
        assert "=batch" not in seen
        assert f"SLURM_CONF={site}" in seen
    own_jobs.own_jobs()
    assert "=batch" not in (tmp_path / "bin" / "squeue.env").read_text()


def test_a_cluster_that_is_gone_is_not_this_host(command, monkeypatch, tmp_path):
    """After `sandbox down` in the same shell: not the laptop instead, and no half minute of DNS."""
    command("sinfo", err=NOT_CONFIGURED, status=1)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "gone.conf"))
    with pytest.raises(RunError, match=r"gone\.conf: no such file; `unset SLURM_CONF`"):
        backends.choose(RunOptions())


def test_without_a_default_partition_none_is_guessed(command):
    command("sinfo", "batch\ngpu\n")
    with pytest.raises(ConfigError, match=r"no default partition: give --partition .*batch, gpu"):
        client.default_partition()
    command("sinfo", "batch\ngpu*\n")
    assert client.default_partition() == "gpu"


# --- what can never start


@pytest.mark.parametrize(
    "kind", [JobKind.REFUSED, JobKind.NOT_VISIBLE, JobKind.INTERPRETER, JobKind.MEMLOCK]
)
def test_what_the_site_does_not_allow_or_provide_blames_no_node(kind):
    cause, nodes = of_missing({"kind": kind.value, "placement": "n1"}, ["n1"])
    assert cause in (Cause.SCHEDULER, Cause.SETUP)
    assert nodes == []


# --- options for sbatch


# --- what nodes do not see, and how long they may take to start


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ModuleNotFoundError: No module named 'fixtures'", JobKind.NOT_VISIBLE),
        ("slurmstepd: error: execve(): /home/u/.venv/bin/python: No such file or directory",
         JobKind.NOT_VISIBLE),
        ("slurmstepd: error: couldn't chdir to `/home/u/suite': No such file or directory",
         JobKind.NOT_VISIBLE),
        ("slurmstepd: error: Could not open stdout file /x/1_log.out", JobKind.NOT_VISIBLE),
        ("RuntimeError: Waited for 60 seconds but could not find submitted jobs in path:\n/x.pkl",
         JobKind.NOT_VISIBLE),
        ("ModuleNotFoundError: No module named 'torch'", JobKind.IMPORT_FAILURE),
        ("pyxis: failed to import docker image", JobKind.CONTAINER),
        ("pyxis: couldn't start container", JobKind.CONTAINER),
        ("enroot-aufs2ovlfs: failed to set capabilities: not permitted", JobKind.CONTAINER),
        ("srun: error: Task launch failed on node n3: Invalid job credential", JobKind.CREDENTIAL),
        ("NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory", JobKind.MEMLOCK),
        ("RuntimeError: [enforce fail] ... Cannot allocate memory", JobKind.HOST_OUT_OF_MEMORY),
        ("NCCL WARN NET/IB: Got completion from peer 10.0.0.2 with status=12 opcode=0 len=0 vendor "
         "err 129 (Recv) hca mlx5_3", JobKind.FABRIC),
    ],
)  # fmt: skip
def test_a_text_of_the_site_has_its_kind(text, kind):
    assert kind_of_text(text) is kind


def test_a_transport_error_is_named_by_its_nic_before_the_lost_peers():
    def line(k: int, event: str, **more: object) -> dict[str, object]:
        return {"event": event, "rank": k, "node": f"n{k}", "workload": "allreduce", "time": 10 + k,
                **more}  # fmt: skip

    lost = "ncclRemoteError: remote process exited or there was a network error"
    stack = "NET/IB : Got completion from peer 10.0.0.2 with status=12 vendor err 129 hca mlx5_3"
    lines = [
        line(0, "started"), line(1, "started"),
        line(0, "error", kind="peer_lost", error=lost),
        line(1, "error", kind="peer_lost", error=lost, stack=stack),
    ]  # fmt: skip
    failure = diagnosis.diagnose(lines, state="FAILED", job="7", world_size=2)
    assert failure.kind is JobKind.FABRIC
    assert "hca mlx5_3" in failure.reason
    assert (failure.node, failure.rank, failure.workload) == ("n1", 1, "allreduce")


@pytest.mark.parametrize(
    ("config", "prolog", "seconds"),
    [
        ("Prolog = (null)\nBatchStartTimeout = 10 sec\nPrologEpilogTimeout = 65534", False, 180),
        ("Prolog = /p.sh\nBatchStartTimeout = 10 sec\nPrologEpilogTimeout = 900 sec", True, 970),
        ("Prolog[0] = /p.sh\nBatchStartTimeout = 300 sec\nPrologEpilogTimeout = 65534", True, 360),
    ],
)  # fmt: skip
def test_jobs_may_take_as_long_to_start_as_slurm_lets_prologs_take(
    config, prolog, seconds, command
):
    command("scontrol", config)
    settings = client.startup_settings()
    assert (settings.has_prolog, settings.longest_s) == (prolog, seconds)


def test_a_kernel_without_numa_is_one_node(tmp_path):
    (tmp_path / "devices/system/cpu").mkdir(parents=True)
    (tmp_path / "devices/system/cpu/online").write_text("0-5\n")
    assert numa.nodes(tmp_path) == [0]
    assert numa.node_of("00000000:18:00.0", tmp_path) == 0
    assert numa.cores(0, tmp_path) == set(range(6))


# --- whose checkout, which interpreter


def plain_pytest(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    outer = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], cwd=cwd, env=outer | env,
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip


def test_a_checkout_without_a_writable_cache_ends_as_any_other(tmp_path):
    from tests.selftests.sandboxes import copy_checkout

    checkout = copy_checkout(tmp_path / "checkout", selftests=False)
    (checkout / ".pytest_cache").write_text("a file, where pytest wants a folder")
    source = support.DATA / "h200-1x2-training"
    run = plain_pytest(
        "-m", "multinode", "--cluster", "replay", f"--from={source}", "-q",
        f"--run-dir={tmp_path / 'run'}", cwd=checkout,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert (tmp_path / "run" / "report.html").exists()


def test_another_interpreter_s_pytest_says_so_in_one_line(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'pydantic' else find(name, *more)\n"
    )
    run = plain_pytest("--collect-only", "-q", cwd=support.CHECKOUT, PYTHONPATH=str(tmp_path))
    assert run.returncode == 4, run.stdout + run.stderr
    assert run.stderr.strip().startswith(f"ERROR: {sys.executable} lacks pydantic")
    assert ".venv/bin/pytest" in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1
