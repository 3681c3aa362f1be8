"""What releases of Slurm printed (tests/tools/slurm_capture.py), and what is read of it."""

from __future__ import annotations

import re
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from fixtures.cluster import slurm_survey
from fixtures.errors import RunError
from fixtures.jobs import own_jobs, watcher
from fixtures.patrol import queue
from fixtures.records.model import Measurement
from fixtures.slurm import allocation, client, membership, node_states
from fixtures.slurm.client import SlurmNode

pytestmark = pytest.mark.cpu

FOLDER = Path(__file__).with_name("captured")
RELEASES = sorted(path.stem for path in FOLDER.glob("*.txt"))
RIGHT: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("captured.yaml").read_text(encoding="utf-8")
)
ACCOUNTED = {"minutes-used-up", "group-cpus", "qos-wall", "qos-second"}
"""Jobs that need accounts: there are none where Debian's slurmdbd and MariaDB do not fit."""
HOSTILE = "x JobState=FAILED Reason=None ExitCode=9:9 |y|z"
"""The name of a job that runs."""


@cache
def transcript(release: str) -> dict[str, subprocess.CompletedProcess[str]]:
    """Return each command of a capture, with its occasion, and what it printed."""
    found: dict[str, subprocess.CompletedProcess[str]] = {}
    for part in (FOLDER / f"{release}.txt").read_text(encoding="utf-8").split("\n$ ")[1:]:
        command, *lines = part.splitlines()
        said = {
            mark: "".join(f"{x[2:]}\n" for x in lines if x.startswith(f"{mark} ")) for mark in ">!"
        }
        status = int(next(x for x in lines if x.startswith("= "))[2:])
        found[command] = subprocess.CompletedProcess(command, status, said[">"], said["!"])
    return found


class Slurm:
    """A Slurm that answers what it answered then."""

    def __init__(self, release: str) -> None:
        self.release = release.rpartition(".")[0]
        self.said = transcript(release)

    def __call__(self, *command: str, **_: object) -> subprocess.CompletedProcess[str]:
        if command[:4] == ("scontrol", "show", "partition", "-o"):
            lines = self.said["scontrol show partition -o"].stdout.splitlines()
            wanted = [x for x in lines if x.startswith(f"PartitionName={command[4]} ")]
            return subprocess.CompletedProcess(command, 0, "\n".join([*wanted, ""]), "")
        if command == ("scontrol", "show", "nodes", "--json"):
            (name,) = (k for k in self.said if k.endswith(" --json"))
            return self.said[name]
        return self.said[shlex.join(command)]

    def nodes_of_text(self) -> dict[str, SlurmNode]:
        return {n.name: n for n in client.nodes_of_text(self.said["scontrol show node -o"].stdout)}

    def right(self, node: str) -> list[Any]:
        """Return what is right of a node, which may be otherwise in one release."""
        release = RIGHT["nodes_otherwise"].get(self.release, {})
        return release.get(node, RIGHT["nodes"][node])

    def sacct(self) -> str:
        (command,) = (name for name in self.said if name.startswith("sacct "))
        return command

    def accounts(self) -> bool:
        return self.said[self.sacct()].returncode == 0

    def ids(self) -> dict[str, str]:
        return {text.split()[0].removeprefix("JobId="): k for k, text in self.shown().items()}

    def shown(self) -> dict[str, str]:
        """Return what scontrol says of jobs, by their names."""
        texts = [
            done.stdout for command, done in self.said.items()
            if command.startswith("scontrol show job -o ") and not done.returncode
        ]  # fmt: skip
        names = [re.search(r" JobName=(.*?) (?:UserId|HetJobIdSet)=", text) for text in texts]
        return {name[1]: text for name, text in zip(names, texts, strict=True) if name}


@pytest.fixture(params=RELEASES)
def slurm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """The Slurm of one release, for every query, and an ordinary user without its groups."""
    then = Slurm(request.param)
    for module in (client, watcher, own_jobs, membership):
        monkeypatch.setattr(module, "run_command", then)
    monkeypatch.setattr(client.os, "geteuid", lambda: 20_417)
    monkeypatch.setattr(client, "_own_groups", lambda: {"alice"})
    monkeypatch.setattr(watcher, "QUERY_INTERVAL_S", 0.0)
    return then


def row(node: SlurmNode) -> list[Any]:
    takes = node_states.available(node.state)
    return [takes, node.gpus, node.cpus, node.memory_mib, node.reason]


def test_each_release_of_debian_was_captured():
    releases = ["20.11", "22.05", "24.11", "26.05"]
    assert [version.rpartition(".")[0] for version in RELEASES] == releases


def test_nodes_are_read_as_they_were(slurm):
    found = slurm.nodes_of_text()
    assert set(RIGHT["nodes"]) - {"d01"} <= set(found)
    assert {n: row(node) for n, node in found.items()} == {n: slurm.right(n) for n in found}
    assert found["c18"].partitions[:1] == ("main",)


def test_nodes_in_json_are_those_of_the_text(slurm):
    done = slurm("scontrol", "show", "nodes", "--json")
    if done.returncode:
        assert client._nodes_from_json() is None
        return
    nodes = client.nodes_of_json(done.stdout)
    assert nodes
    assert {n.name: row(n) for n in nodes} == {n.name: slurm.right(n.name) for n in nodes}
    assert {n.name: n.partitions for n in nodes} == {
        n.name: slurm.nodes_of_text()[n.name].partitions for n in nodes
    }


def test_nodes_that_no_waiting_brings_back_are_told(slurm):
    """Of a node that has not answered yet (c04) it is not known."""
    seen = watcher.SlurmWatcher()
    states = seen.nodes()
    known = {name: watcher.OUT_OF_SERVICE.search(state) is None for name, state in states.items()}
    right = {name: slurm.right(name)[0] for name in known} | {"c04": True}
    right |= {"c09": False, "c10": False}  # reserved for others
    assert known == right
    assert {name: seen.reason(name) for name in known} == {n: slurm.right(n)[4] for n in known}


def test_the_controller_is_up(slurm):
    found = slurm_survey.controllers(slurm("scontrol", "ping").stdout)
    assert isinstance(found, Measurement)
    assert found.value == 0


def test_partitions_are_read_as_they_were(slurm):
    assert sorted(client.slurm_partitions()) == sorted(RIGHT["partitions"])
    assert client.slurm_partitions()[0] == client.default_partition() == "main"
    found = {}
    for name in RIGHT["partitions"]:
        fields = client.sharing_of(name)
        closed = client._closed_by(name, fields)
        found[name] = [fields["State"], client.allocates_whole_nodes(fields), closed]
    assert found == RIGHT["partitions"]


def test_limits_decide_how_a_whole_node_is_asked_for(slurm, monkeypatch):
    monkeypatch.setattr(client, "_nodes_from_json", lambda: None)
    found = {}
    for name in RIGHT["allocations"]:
        asked = allocation.whole_node(["c18"], name, ranks=2, reservation=None)
        found[name] = [asked.memory(16), asked.exclusive]
    assert found == RIGHT["allocations"]


def test_the_configuration_says_that_a_prolog_runs(slurm):
    found = client.startup_settings()
    # PrologEpilogTimeout 600, BatchStartTimeout 60, and a minute; newer ones say PrologTimeout too.
    assert found.has_prolog
    assert found.longest_s in (720, 1320)
    assert client.sandbox_form() is None


def test_jobs_are_read_as_they_were(slurm):
    seen = watcher.SlurmWatcher()
    states = seen.states(slurm.ids())
    found = {}
    for name in RIGHT["jobs"]:
        for job_id in seen.find(name, float("-inf")) or ():
            state = states[job_id]
            waits = [state.unstartable_reason is None] if state.state == "PENDING" else []
            found[name] = [state.state, *waits]
    accounts = slurm.accounts()
    assert found == {k: v for k, v in RIGHT["jobs"].items() if accounts or k not in ACCOUNTED}


def test_patrol_gives_way_to_jobs_that_a_node_would_help(slurm):
    seen = watcher.SlurmWatcher()
    seen.states(slurm.ids())
    for_nodes = ("planned", "behind", "on-drained", "on-down", "in-maintenance",
                 "reserved-for-others")  # fmt: skip
    ids = {job_id for name in for_nodes for job_id in seen.find(name, float("-inf")) or ()}
    assert len(ids) == len(for_nodes)
    assert set(queue.waiting_jobs()) == ids


def test_a_job_that_squeue_no_longer_shows_is_read_by_scontrol(slurm):
    shown = {name: watcher.state_of_text(text) for name, text in slurm.shown().items()}
    ended = {name: s.state for name, s in shown.items() if name in RIGHT["ended"]}
    assert ended == {name: state for name, (state, _) in RIGHT["ended"].items()}
    assert all(shown[name].exit_code in codes for name, (_, codes) in RIGHT["ended"].items())
    assert shown[HOSTILE] == watcher.JobState("RUNNING", "None", "0:0", "c24")
    assert shown["planned"].reason == "Resources"
    assert shown["exclusive"].nodes == "c05"


def test_accounting_has_the_same_states(slurm, monkeypatch):
    command = slurm.sacct()
    monkeypatch.setattr(watcher, "run_command", lambda *_: slurm.said[command])
    monkeypatch.setattr(watcher.shutil, "which", lambda name: name)
    ids = slurm.ids()
    seen = watcher.SlurmWatcher()
    found = seen._sacct([*ids])
    if not slurm.accounts():
        assert (found, seen._accounting) == ({}, False)
        return
    assert {ids[k]: state.state for k, state in found.items() if ids[k] in RIGHT["ended"]} == {
        name: state for name, (state, _) in RIGHT["ended"].items()
    }


def test_a_job_that_slurmctld_does_not_know_is_gone(slurm):
    found = watcher.SlurmWatcher()._confirmed(["999999"])
    assert found["999999"].state == "GONE"


def test_own_jobs_are_listed_with_names_of_any_form(slurm):
    found = {job.name: job.state for job in own_jobs.own_jobs() or []}
    assert found[HOSTILE] == "RUNNING"
    assert found["hidden"] == "RUNNING"


def test_a_controller_that_is_away_is_no_missing_cluster(slurm):
    away = slurm.said["sinfo --noheader -o %P  # slurmctld is away"]
    assert not membership.of_no_cluster(away.stderr, {})
    slurm.said = {**slurm.said, "sinfo --noheader -o %P": away}
    with pytest.raises(RunError, match=r"contact slurm controller|Connection reset"):
        client.slurm_partitions()


def test_a_host_of_no_cluster_is_told_from_it(slurm, monkeypatch):
    monkeypatch.setattr(membership, "cluster_told_by", lambda env=None: None)
    nowhere = slurm.said["sinfo --noheader -o %P  # no cluster"]
    assert nowhere.returncode
    assert membership.of_no_cluster(nowhere.stderr, {})
