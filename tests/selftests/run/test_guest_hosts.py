"""A file of another tool counts for the host that it is of, by that host's inventory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fixtures.records.model import Measurement
from fixtures.records.run_directory import RunDirectory
from fixtures.run import guest_hosts
from fixtures.run.devices_of_record import DeviceIndex
from fixtures.thresholds import loader
from fixtures.verdict.causes import Cause
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Case, Outcome, Verdict
from fixtures.workloads.guests import guest_identity
from tests.selftests import guest_samples
from tests.selftests.support import NONCE, SHIPPED, rank, record, save

pytestmark = pytest.mark.cpu

NODE = "worker0"
LIMITS = loader.load(SHIPPED)
OWN = ("GPU-0badcafe-0000-1111-2222-333333333333", "GPU-0badcafe-0000-1111-2222-333333333334")
OTHER = ("GPU-0badcafe-0000-1111-2222-444444444443", "GPU-0badcafe-0000-1111-2222-444444444444")


@pytest.fixture
def directory(tmp_path) -> RunDirectory:
    made = RunDirectory(tmp_path / "run")
    made.records.mkdir(parents=True)
    return made


def record_of(directory: RunDirectory, tool: str, text: str, value: float = 0, **more: Any):
    """The record of a node with a file of a tool, read with the node's inventory."""
    uuids = more.pop("uuids", OWN)
    devices = [{"uuid": u, "serial": s, "name": "NVIDIA H200", "pci": f"0000:{k}"}
               for k, (u, s) in enumerate(zip(uuids, ("165", "166"), strict=True))]  # fmt: skip

    def of(k: int, *measured: Measurement) -> Any:
        made = rank(k, NODE, *measured)
        return replace(made, device={**made.device, **devices[k]})

    save(record(of(0), of(1), workload="inventory"), directory)
    unit = {"dcgmi": "tests", "nvidia_smi": "differences", "fio": "jobs"}[tool]
    said = Measurement(metric=tool, unit=unit, value=value, checks={"judged": 3.0})
    tied = {"own": ["host-of-worker0.example"], tool: guest_identity.identities(text)}
    findings = {tool: {"memory": "fail" if value else "pass"}}
    lead = replace(of(0, said), facts={"tied": tied, "findings": findings, "versions": {}})
    found = record(lead, of(1), workload="guests")
    save(found, directory)
    return DeviceIndex(directory, NONCE).check(found)


def verdict_of(found: Any, tool: str) -> Verdict:
    case = Case(
        criterion=LIMITS.criteria[f"guests.{tool}"], subject=NODE, nodes=(NODE,),
        record_nodes=(NODE,), devices=1, record=found,
        facts={"model": "H200 SXM", "nodes": 1, "gpus": 2, "gpus_per_node": 2},
    )  # fmt: skip
    return judge(case, LIMITS)


OF_OTHERS = [
    ("nvidia_smi", guest_samples.smi(OTHER), "uuids"),
    ("dcgmi", guest_samples.dcgm4(serials=["999", "998"]), "serials 99"),
    ("dcgmi", guest_samples.dcgm4(host="worker7"), "written on worker7"),
    ("fio", guest_samples.fio(host="worker7.example"), "written on worker7.example"),
    ("fio", "Rank 0 Group 0 Pid 5 on worker7 device 0\n", "written on worker7"),
    ("dcgmi", guest_samples.dcgm4(serials=["999", "998"], host=NODE), "no longer there"),
]


@pytest.mark.parametrize(("tool", "text", "says"), OF_OTHERS, ids=map(str, range(6)))
@pytest.mark.parametrize("value", [0, 3])
def test_a_file_of_another_host_is_no_result_of_this_one(directory, tool, text, says, value):
    found = record_of(directory, tool, text, value)
    verdict = verdict_of(found, tool)
    assert (verdict.outcome, verdict.cause) == (Outcome.NOT_MEASURED, Cause.GUEST)
    assert "the file is of another host" in verdict.reason
    assert says in verdict.reason
    assert verdict.cause_nodes == [], "neither well nor accused by it"
    assert found.ranks[0].facts["findings"] == {}, "it contradicts nothing either"


@pytest.mark.parametrize(
    ("tool", "text", "note"),
    [
        ("nvidia_smi", guest_samples.smi(OWN), ""),
        ("nvidia_smi", guest_samples.smi((OWN[0], OTHER[1])), ""),
        ("nvidia_smi", guest_samples.smi([u.replace("cafe", "CAFE") for u in OWN]), ""),
        ("dcgmi", guest_samples.dcgm4(serials=["165", "166"]), ""),
        ("dcgmi", guest_samples.dcgm4(host="WORKER0.cluster"), ""),
        ("dcgmi", guest_samples.dcgm4(host="host-of-worker0"), ""),
        ("dcgmi", guest_samples.dcgm4(serials=["165", "166"], host="old-name"),
         "written on old-name: by its GPUs it is this host"),
        ("fio", guest_samples.fio(), "nothing in the file ties it to this host"),
        ("dcgmi", guest_samples.dcgm4(), "nothing in the file ties it to this host"),
    ],
    ids=map(str, range(9)),
)  # fmt: skip
def test_a_file_of_this_host_counts_and_says_what_ties_it(directory, tool, text, note):
    verdict = verdict_of(record_of(directory, tool, text), tool)
    assert verdict.outcome is Outcome.PASS
    assert [n for n in verdict.notes if note and note in n] == verdict.notes
    assert bool(verdict.notes) == bool(note)


def test_parts_of_gpus_have_no_uuid_that_a_tool_of_the_host_shows(directory):
    parts = tuple(u.replace("GPU", "MIG") for u in OWN)
    verdict = verdict_of(record_of(directory, "nvidia_smi", guest_samples.smi(OTHER), uuids=parts),
                         "nvidia_smi")  # fmt: skip
    assert verdict.outcome is Outcome.PASS
    assert "there is no inventory of whole GPUs" in verdict.notes[0]


def test_records_of_before_say_nothing_of_it_and_broken_facts_tie_nothing():
    for facts in ({}, {"tied": None}, {"tied": {"fio": 5}}, {"tied": {"fio": {"hosts": "x"}}}):
        said = Measurement(metric="fio", unit="jobs", value=0)
        found = record(replace(rank(0, NODE, said), facts=facts), workload="guests")
        held = guest_hosts.held(found, OWN, ())
        assert [m.value for m in held.ranks[0].measurements] == [0]
        assert "nothing in the file ties it" in held.ranks[0].measurements[0].notes[0]
    silent = record(rank(0, NODE), workload="guests")
    assert guest_hosts.held(silent, OWN, ()) is silent
