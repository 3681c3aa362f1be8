"""What the login side measures of Slurm: controllers, the partition, and each ordered node."""

from __future__ import annotations

import pytest

from fixtures.cluster import slurm_survey
from fixtures.cluster.population import Population
from fixtures.records.absence import Absence, Kind
from fixtures.records.files import read_json
from fixtures.records.run_directory import RunDirectory
from fixtures.slurm.client import SlurmNode

pytestmark = pytest.mark.cpu


def node(name: str, state: str, reason: str = "", gpus: int = 8) -> SlurmNode:
    return SlurmNode(
        name=name, state=state, reason=reason, address=name, cpus=64, gpus=gpus,
        partitions=("gpu",),
    )  # fmt: skip


def test_controllers_that_are_not_up_are_counted_and_named():
    for ping, value, notes in (
        ("Slurmctld(primary) at a is UP\nSlurmctld(backup) at b is DOWN\n", 1,
         ["backup at b is DOWN"]),
        ("Slurmctld(primary) at a is UP\n", 0, []),
    ):  # fmt: skip
        found = slurm_survey.controllers(ping)
        assert (found.metric, found.value, found.notes) == ("controllers", value, notes)


def test_what_slurm_does_not_say_is_absent():
    for found in (slurm_survey.controllers("no answer\n"), slurm_survey.partition_state("p", {})):
        assert isinstance(found, Absence)
        assert found.kind is Kind.UNKNOWN


def test_a_partition_that_is_not_up_is_named():
    for fields, value, notes in (
        ({"State": "UP"}, "UP", []), ({"State": "DRAIN"}, "DRAIN", ["partition gpu"]),
    ):  # fmt: skip
        found = slurm_survey.partition_state("gpu", fields)
        assert (found.metric, found.value, found.notes) == ("partition", value, notes)


def test_a_node_is_available_where_every_part_of_its_state_is():
    for state, reason, value, notes in (
        ("IDLE", "", "available", []), ("MIXED+RESERVED", "", "available", []),
        ("IDLE+DRAIN", "ECC", "idle+drain", ["n1 is IDLE+DRAIN, reason: ECC"]),
        ("DOWN", "", "down", ["n1 is DOWN"]),
    ):  # fmt: skip
        found, gres = slurm_survey.node_measurements(node("n1", state, reason))
        assert (found.value, found.notes) == (value, notes)
        assert (gres.metric, gres.value) == ("gres", 8)


def test_the_record_has_a_rank_for_the_cluster_and_each_ordered_node(tmp_path, monkeypatch):
    listed = [node("n1", "IDLE"), node("n2", "DOWN", gpus=4), node("other", "IDLE")]
    asked: list[str] = []
    monkeypatch.setattr(slurm_survey, "slurm_nodes", lambda: listed)
    monkeypatch.setattr(slurm_survey, "default_partition", lambda: "standard")
    monkeypatch.setattr(
        slurm_survey, "slurm_query", lambda *argv: "Slurmctld(primary) at a is UP\n"
    )
    monkeypatch.setattr(
        slurm_survey, "sharing_of", lambda name: asked.append(name) or {"State": "UP"}
    )
    for k, (partition, nodes) in enumerate(
        (("", ("n1", "n2", "n3", "n4")), ("gpu", ("n2", "n1"))), 1
    ):
        directory = RunDirectory(tmp_path / f"run{k}")
        (directory.root / "jobs").mkdir(parents=True)
        directory.records.mkdir()
        people = Population(
            origin="cluster", nodes=nodes, gpus_per_node=8, gpu_model="H200 SXM",
            partition=partition,
        )  # fmt: skip
        slurm_survey.measure(directory, people, run_id="r", nonce="x", attempt=k)
        record = read_json(directory.record("slurm", "login", k))
        assert record["nodes"] == list(nodes)
        known = [n for n in nodes if n in ("n1", "n2")]
        assert [rank["node"] for rank in record["ranks"]] == ["login", *known]
        count = record["ranks"][0]["measurements"][0]
        absent = ["Slurm does not know n3, n4"] if k == 1 else []
        assert (count["value"], count.get("notes", [])) == (2, absent)
        assert record["attempt"] == k
    assert asked == ["standard", "gpu"]
