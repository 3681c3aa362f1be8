"""Whether this host belongs to a Slurm cluster: asked of sinfo alone."""

from __future__ import annotations

import os
import subprocess

import pytest

from fixtures.errors import RunError
from fixtures.slurm import membership
from tests.selftests.fake_commands import command

__all__ = ["command"]

pytestmark = pytest.mark.cpu


def test_a_host_with_partitions_belongs_to_a_cluster(command):
    command("sinfo", "gpu*\n")
    assert membership.slurm_answers() is True


NOTHING = (
    "sinfo: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
    "sinfo: error: fetch_config: DNS SRV lookup failed\n"
    "sinfo: error: _establish_config_source: failed to fetch config\n"
    "sinfo: fatal: Could not establish a configuration source"
)
"""What sinfo 22.05 says on a host of no cluster."""
OUTAGE = (
    "sinfo: error: _fetch_child: failed to fetch remote configs: Unable to contact slurm "
    "controller (connect failure)\n"
    "sinfo: error: _establish_config_source: failed to fetch config\n"
    "sinfo: fatal: Could not establish a configuration source"
)
"""And where the controller that keeps the configuration is away (case configless-outage)."""


@pytest.fixture(autouse=True)
def nothing_here(monkeypatch, tmp_path):
    """This host tells of no cluster."""
    monkeypatch.setattr(membership, "CONFIGURATIONS", (tmp_path / "cached" / "slurm.conf",))
    monkeypatch.setattr(membership.service_record, "domain_with_controller", lambda: None)
    for name in membership.TELLING:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["variable", "servers", "clusters", "cached", "beside", "dns"])
def told(request, monkeypatch, tmp_path):
    """Each thing that tells of a cluster, by itself."""
    if request.param in ("variable", "servers", "clusters"):
        (tmp_path / "slurm.conf").touch()
        names = {"servers": "SLURM_CONF_SERVER", "clusters": "SLURM_CLUSTERS"}
        monkeypatch.setenv(names.get(request.param, "SLURM_CONF"), str(tmp_path / "slurm.conf"))
        return "SLURM_C"
    if request.param == "dns":
        found = "_slurmctld._tcp.hpc.example"
        monkeypatch.setattr(membership.service_record, "domain_with_controller", lambda: found)
        return found
    folder = tmp_path / ("cached" if request.param == "cached" else "etc")
    folder.mkdir()
    (folder / "slurm.conf").touch()
    return str(folder)


def test_a_host_of_which_nothing_tells_belongs_to_no_cluster(command, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert membership.slurm_answers() is False
    for said in (
        NOTHING, "sinfo: error: /etc/slurm/slurm.conf: No such file or directory",
        "sinfo: error: no such file: slurm.conf", "sinfo: fatal: Unable to open slurm.conf",
    ):  # fmt: skip
        command("sinfo", err=said, status=1)
        assert membership.slurm_answers() is False, said


@pytest.mark.parametrize("said", [NOTHING, "sinfo: fatal: Unable to open slurm.conf", OUTAGE])
def test_the_words_of_an_error_make_no_host_one_of_no_cluster(command, told, said):
    command("sinfo", err=said, status=1)
    with pytest.raises(RunError, match="tells of a cluster") as error:
        membership.slurm_answers()
    assert told in str(error.value)


@pytest.mark.parametrize(
    "told", ["variable", "servers", "clusters", "cached", "dns"], indirect=True
)  # fmt: skip
def test_a_cluster_without_its_commands_is_an_error(command, told, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "no-bin"))
    with pytest.raises(RunError, match="sinfo is not on the PATH: load the site"):
        membership.slurm_answers()


def test_what_a_command_says_of_a_controller_tells_of_a_cluster(command):
    command("sinfo", err=OUTAGE, status=1)
    with pytest.raises(RunError, match="gives no partitions"):
        membership.slurm_answers()
    assert membership.of_no_cluster(NOTHING)
    assert not membership.of_no_cluster(OUTAGE)


def test_a_cluster_that_does_not_answer_is_an_error_with_slurm_s_words(command, monkeypatch):
    command("sinfo", err="first\nslurm_load_partitions: Unable to contact controller\n", status=1)
    with pytest.raises(RunError, match=r"gives no partitions: slurm_load_.*; repair that, or say"):
        membership.slurm_answers()
    command("sinfo", "\n")
    with pytest.raises(RunError, match="no partition is visible to this user"):
        membership.slurm_answers()
    command("sinfo", "gpu*\n", status=1)
    with pytest.raises(RunError, match=r"gives no partitions: gpu\*"):
        membership.slurm_answers()

    def never(*argv, **more):
        raise subprocess.TimeoutExpired(argv, 1)

    monkeypatch.setattr(membership, "run_command", never)
    with pytest.raises(RunError, match="sinfo did not answer in 30 s"):
        membership.slurm_answers()


def test_a_configuration_that_is_gone_is_named(command, tmp_path, monkeypatch):
    command("sinfo", "gpu*\n")
    conf = tmp_path / "slurm.conf"
    monkeypatch.setenv("SLURM_CONF", str(conf))
    with pytest.raises(RunError, match=r"slurm\.conf: no such file; `unset SLURM_CONF`"):
        membership.slurm_answers()
    conf.touch()
    assert membership.slurm_answers() is True


def test_the_environment_that_is_given_is_the_one_that_is_asked(command, tmp_path, monkeypatch):
    command("sinfo", "gpu*\n")
    assert membership.slurm_answers({"PATH": str(tmp_path)}) is False
    monkeypatch.setenv("SLURM_CONF", "/nowhere")
    path = {"PATH": os.environ["PATH"]}
    assert membership.slurm_answers(path) is True
    assert "SLURM_CONF" not in (tmp_path / "bin" / "sinfo.env").read_text()


def test_a_users_formats_do_not_change_what_is_printed(monkeypatch):
    monkeypatch.setenv("SQUEUE_PARTITION", "x")
    monkeypatch.setenv("OF_MINE", "1")
    found = membership.query_environment()
    assert "SQUEUE_PARTITION" not in found
    assert found["OF_MINE"] == "1"
    given = {"SINFO_FORMAT": "x", "SACCT_FORMAT": "y", "SLURM_CONF": "z"}
    assert membership.query_environment(given) == {"SLURM_CONF": "z", **membership.SHOW_ALL}


@pytest.mark.parametrize(
    "name", ["SCANCEL_STATE", "SCONTROL_FEDERATION", "SLURM_TIME_FORMAT", "SLURM_JOB_ID",
             "SLURM_BITSTR_LEN", "SQUEUE_USERS", "SINFO_PARTITION"],
)  # fmt: skip
def test_nothing_of_the_user_s_environment_narrows_a_query(name):
    assert name not in membership.query_environment({name: "x"})


@pytest.mark.parametrize("name", ["SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT"])
def test_what_finds_the_cluster_is_kept(name):
    assert membership.query_environment({name: "x"})[name] == "x"


@pytest.mark.parametrize("given", [{}, {"SQUEUE_ALL": "0", "SINFO_ALL": ""}, {"SCONTROL_ALL": "x"}])
def test_every_query_sees_hidden_partitions(given):
    found = membership.query_environment(given)
    assert {found[f"{name}_ALL"] for name in ("SQUEUE", "SINFO", "SCONTROL")} == {"1"}


def test_a_command_runs_in_a_process_group_of_its_own(command):
    command("squeue", "out\n", err="err\n", status=3)
    run = membership.run_command("squeue", "-h")
    assert (run.returncode, run.stdout, run.stderr) == (3, "out\n", "err\n")
    run = membership.run_command("sh", "-c", "cut -d' ' -f5 /proc/$$/stat; echo $$")
    group, pid = run.stdout.split()
    assert group == pid


def test_what_slurm_prints_does_not_act(command):
    command("sinfo", "n1 Reason=\x1b[2Jbad\u202e\n::error::owned\n" + "n" * 9000 + "\n")
    said = membership.run_command("sinfo").stdout
    assert said == "n1 Reason=\\x1b[2Jbad\\u202e\n\\x3a:error::owned\n" + "n" * 9000 + "\n"


def test_no_secret_of_the_shell_is_inherited_and_slurm_s_own_token_is():
    given = {"GH_TOKEN": "x", "SLURM_JWT": "y", "PATH": "/bin", "PWD": "/tmp"}
    found = membership.query_environment(given)
    assert ("GH_TOKEN" in found, found["SLURM_JWT"], found["PATH"]) == (False, "y", "/bin")
