"""What Slurm 20.11 to 26.05 prints of nodes, partitions, its configuration and jobs, as a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fixtures.jobs.watcher import JobState
from fixtures.records.absence import JobKind
from fixtures.slurm import client, node_states
from fixtures.slurm.hostlist import expand_hostlist
from tests.selftests.fake_commands import command
from tests.selftests.job_failures import diagnosed

__all__ = ["command"]

pytestmark = pytest.mark.cpu

TEXTS: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("slurm_texts.yaml").read_text(encoding="utf-8")
)


def test_there_are_enough_texts_of_every_release():
    kinds = ("nodes", "json_nodes", "partitions", "configs", "jobs")
    assert sum(len(TEXTS[kind]) for kind in kinds) >= 60
    assert {row[0] for row in TEXTS["nodes"]} == set(TEXTS["shapes"])
    assert len({json.dumps(row) for row in TEXTS["nodes"]}) == len(TEXTS["nodes"])


@pytest.mark.parametrize("row", TEXTS["nodes"], ids=map(str, range(len(TEXTS["nodes"]))))
def test_a_node_is_read_as_its_release_prints_it(row: list[Any]):
    release, gres, state, cpus, tail, (takes, gpus, reason) = row
    text = TEXTS["shapes"][release].format(name="n1", gres=gres, state=state, cpus=cpus, tail=tail)
    (node,) = client.nodes_of_text(text + "\n")
    assert (node.name, node.state, node.address) == ("n1", state, "n1")
    assert (node.gpus, node.cpus, node.reason) == (gpus, cpus, reason)
    assert node_states.available(node.state) is takes
    assert node.partitions[0] == "gpu"


@pytest.mark.parametrize("row", TEXTS["json_nodes"], ids=map(str, range(len(TEXTS["json_nodes"]))))
def test_a_node_in_json_is_read_or_left_to_the_text(row: list[Any]):
    given, expected = row
    found = client.nodes_of_json(json.dumps({"nodes": [given], "errors": [], "warnings": []}))
    if expected is None:
        assert found is None
        return
    (node,) = found or []
    assert [node_states.available(node.state), node.gpus, node.cpus, node.reason] == expected


@pytest.mark.parametrize("row", TEXTS["partitions"], ids=map(str, range(len(TEXTS["partitions"]))))
def test_a_partition_is_read_as_its_release_prints_it(row: list[Any], command):
    command("scontrol", row[0] + "\n")
    fields = client.slurm_partition("gpu")
    whole = client.allocates_whole_nodes(fields)
    assert [fields["State"], whole, fields["MaxCPUsPerNode"]] == row[1]


@pytest.mark.parametrize("row", TEXTS["configs"], ids=map(str, range(len(TEXTS["configs"]))))
def test_the_configuration_says_how_long_a_start_takes(row: list[Any], command):
    command("scontrol", row[0])
    found = client.startup_settings()
    assert [found.has_prolog, found.longest_s] == row[1]


@pytest.mark.parametrize("row", TEXTS["jobs"], ids=map(str, range(len(TEXTS["jobs"]))))
def test_a_job_s_reason_says_whether_waiting_helps(row: list[Any]):
    _, state, reason, useless = row
    assert (JobState(state, reason).unstartable_reason is not None) is useless


@pytest.mark.parametrize(("text", "names"), TEXTS["hostlists"])
def test_a_host_list_is_expanded(text: str, names: list[str]):
    assert expand_hostlist(text) == names


@pytest.mark.parametrize(
    "log",
    [
        "srun: error: Task launch for StepId=42.0 failed on node n1: Protocol authentication error",
        "slurmstepd-n1: error: Munge decode failed: Expired credential",
        "srun: error: Task launch for 42.0 failed on node n1: Invalid job credential",
    ],
)
def test_what_munge_refuses_is_a_matter_of_credentials(log: str):
    assert diagnosed(log_tail=log).kind is JobKind.CREDENTIAL
