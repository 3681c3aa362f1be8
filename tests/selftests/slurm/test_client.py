"""What Slurm's commands answer, on every version and of every cluster, and what is read of it."""

from __future__ import annotations

import json
import os

import pytest

from fixtures.cluster.slurm_survey import AVAILABLE_STATES
from fixtures.jobs import launcher, watcher
from fixtures.slurm import client
from tests.selftests.fake_commands import command

__all__ = ["command"]

pytestmark = pytest.mark.cpu

# --- scontrol show node

JSON_NODE = {
    "name": "n1", "state": ["IDLE", "DRAIN"], "reason": "was State=IDLE", "address": "n1.site",
    "cpus": 8, "effective_cpus": 6, "gres": "gpu:h200:8(S:0-1)", "partitions": ["gpu", "all"],
}  # fmt: skip
"""The fields that are read, as Slurm 24.11 writes them."""


def test_slurm_s_json_is_read_where_slurm_writes_it(command):
    command("scontrol", json.dumps({"nodes": [JSON_NODE], "errors": []}))
    (found,) = client.slurm_nodes("gpu")
    assert found == client.SlurmNode(
        name="n1", state="IDLE+DRAIN", reason="was State=IDLE", address="n1.site", cpus=6, gpus=8,
        partitions=("gpu", "all"),
    )  # fmt: skip
    assert client.slurm_nodes("batch") == []


@pytest.mark.parametrize(
    "text",
    [
        "", "not JSON", "{}", '{"nodes": [{}]}', '{"nodes": 3}',
        json.dumps({"nodes": [{**JSON_NODE, "state": "idle"}]}),
        json.dumps({"nodes": [{k: v for k, v in JSON_NODE.items() if k != "effective_cpus"}]}),
        json.dumps({"nodes": [JSON_NODE, {"name": "n2"}]}),
    ],
)  # fmt: skip
def test_json_of_another_structure_is_left_alone(text):
    assert client.nodes_of_json(text) is None


NODE = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=4 CPUAlloc=0 CPUEfctv=6 CPUTot=8 CPULoad=0.1 "
    "Gres={gres} NodeAddr=n1 NodeHostName=n1.site CoreSpecCount=1 CPUSpecList=6-7 State=IDLE+DRAIN "
    "Partitions=gpu BootTime=2026-11-01T00:00:00 {typed}\n"
)


def node(command, typed: str = "", gres: str = "gpu:h200:8(S:0-1)") -> client.SlurmNode:
    command("scontrol", NODE.format(gres=gres, typed=typed))
    (found,) = client.slurm_nodes()
    return found


def test_cores_kept_for_the_system_are_not_asked_for(command):
    assert node(command).cpus == 6


@pytest.mark.parametrize(
    "typed",
    [
        "Reason=ECC State=bad [root@2026-11-01T00:00:00]",
        "Reason=was State=IDLE [root@2026-11-01T00:00:00]",
        "Reason=Gres=gpu:1 lost, CPUTot=? CPUEfctv=? [root@2026-11-01T00:00:00]",
        "Comment=State=IDLE Gres=gpu:64 Extra=CPUTot=9",
    ],
)
def test_what_an_admin_typed_is_no_field(typed, command):
    found = node(command, typed)
    assert (found.state, found.cpus, found.gpus) == ("IDLE+DRAIN", 6, 8)


def test_slices_of_a_gpu_are_not_gpus(command):
    assert node(command, gres="gpu:h200:8,gpu:a100_1g.5gb:7").gpus == 8
    assert node(command, gres="gpu:a100_3g.20gb:2(S:0),gpu:a100_1g.5gb:1").gpus == 0


def test_the_partition_s_limit_of_cpus_holds(command, monkeypatch):
    monkeypatch.setattr(client, "slurm_partition", lambda name: {"MaxCPUsPerNode": "4"})
    command("scontrol", NODE.format(gres="gpu:8", typed=""))
    assert client.cpus_per_node(["n1"], "gpu") == 4
    monkeypatch.setattr(client, "slurm_partition", lambda name: {"MaxCPUsPerNode": "UNLIMITED"})
    assert client.cpus_per_node(["n1"], "gpu") == 6


@pytest.mark.parametrize(
    "state",
    ["IDLE+CLOUD+POWERED_DOWN", "IDLE+CLOUD+POWERING_UP", "IDLE+POWERING_DOWN",
     "IDLE+REBOOT_REQUESTED", "ALLOCATED+BLOCKED", "IDLE+PERFCTRS", "IDLE+EXTERNAL"],
)  # fmt: skip
def test_a_node_that_starts_with_its_job_is_available(state):
    assert {*state.split("+")} <= AVAILABLE_STATES


# --- one cluster of several


def test_every_command_of_slurm_reaches_the_cluster_that_is_named(command, monkeypatch, tmp_path):
    monkeypatch.setenv("SLURM_CLUSTERS", "a")
    launcher.reach_cluster(["--comment=x"])
    assert os.environ["SLURM_CLUSTERS"] == "a", "the user's own choice stays"
    launcher.reach_cluster(["--clusters=b"])
    command("sinfo", "CLUSTER: b\nn1 idle\n")
    command("squeue", "CLUSTER: b\n")
    command("sacct", "7|COMPLETED|0:0\n")
    nodes = watcher.SlurmWatcher().nodes()
    assert nodes == {"n1": "idle"}
    assert watcher.SlurmWatcher().states(["7"])["7"].state == "COMPLETED"
    for name in ("sinfo", "squeue"):
        assert "SLURM_CLUSTERS=b" in (tmp_path / "bin" / f"{name}.env").read_text()
    assert "--clusters=b" in (tmp_path / "bin" / "sacct.args").read_text()
    assert client.slurm_query("sinfo") == "n1 idle\n"


def test_a_job_on_another_cluster_starts_its_ranks_on_that_cluster(monkeypatch, tmp_path):
    options = launcher.SlurmOptions(sbatch_args=("--clusters=b",))
    asked = launcher.JobRequest(
        name="j", directory=tmp_path, nodes=("n1",), ranks_per_node=1, time_limit_min=1
    )
    monkeypatch.setenv("SLURM_CLUSTERS", "b")
    parameters = launcher.SlurmLauncher("r", options).executor(asked).parameters
    assert parameters["setup"][0] == "unset SLURM_CLUSTERS"
    assert "clusters" not in parameters["additional_parameters"]
    monkeypatch.delenv("SLURM_CLUSTERS")
    parameters = launcher.SlurmLauncher("r", options).executor(asked).parameters
    assert "unset SLURM_CLUSTERS" not in parameters["setup"]
