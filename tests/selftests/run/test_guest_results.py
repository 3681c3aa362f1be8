"""Results of other tools: read strictly, rows of their own, and what they contradict is said."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from fixtures.conclusion.contradictions import OURS, TOOLS, with_contradictions
from fixtures.errors import ConfigError
from fixtures.records.run_directory import RunDirectory
from fixtures.run import guest_results as run_guests
from fixtures.run.judge_item import unplanned_verdict
from fixtures.thresholds import loader
from fixtures.verdict.causes import Cause
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Case, Outcome, Verdict
from fixtures.workloads.guests import guest_files, guest_nvidia_smi, guests
from fixtures.workloads.guests.guest_files import GuestError
from tests.selftests import guest_samples, support
from tests.selftests.rank_job import Job

pytestmark = pytest.mark.cpu

NODE = "worker0"
LIMITS = loader.load(support.SHIPPED)
UUIDS = ("GPU-0badcafe-0000-1111-2222-333333333333", "GPU-0badcafe-0000-1111-2222-333333333334")


# --- files


def test_only_files_of_known_names_are_taken(tmp_path):
    directory = guest_samples.write(tmp_path / "d", n0__dcgmi=guest_samples.dcgm4())
    found = run_guests.find(directory)
    assert found.keys == ("guests.dcgmi",)
    assert found.strangers(["n0"]) == []
    assert found.strangers(["n1"]) == [("guests.dcgmi", "n0")]
    (directory / "n0.dcgm.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"n0\.dcgm\.json is not named like one of NODE\.dcgmi"):
        run_guests.find(directory)
    for missing, says in ((tmp_path / "none", "No such file"), (tmp_path / "empty", "no file")):
        if missing.name == "empty":
            missing.mkdir()
        with pytest.raises(ConfigError, match=says):
            run_guests.find(missing)


def test_no_link_and_no_special_file_is_copied(tmp_path):
    source, secret = tmp_path / "d", tmp_path / "key"
    source.mkdir()
    secret.write_text("secret")
    (source / "n0.fio.json").symlink_to(secret)
    (source / "n1.fio.json").symlink_to("/dev/zero")
    os.mkfifo(source / "n2.fio.json")
    (source / "n3.fio.json").touch()
    os.truncate(source / "n3.fio.json", 20 << 30)
    directory = RunDirectory(tmp_path / "run")
    directory.root.mkdir()
    run_guests.find(source).copy_into(directory)
    names = run_guests.names_for_nodes(directory)
    assert {name: why.partition(",")[0] for name, why in names.items()} == {
        "n0.fio.json": f"cannot be read: is a link to {secret}",
        "n1.fio.json": "cannot be read: is a link to /dev/zero",
        "n2.fio.json": "cannot be read: is a FIFO",
        "n3.fio.json": "cannot be read: 21",
    }
    assert not any(b"secret" in path.read_bytes() for path in directory.guests.iterdir())


def test_the_files_are_evidence_with_their_times(tmp_path):
    source = guest_samples.write(tmp_path / "d", n0__fio="{}", n1__fio="{}")
    os.utime(source / "n0.fio.json", (1_000_000, 1_000_000))
    (source / "n1.fio.json").unlink()
    (source / "n1.fio.json").symlink_to("nowhere")
    directory = RunDirectory(tmp_path / "run")
    directory.root.mkdir()
    run_guests.find(source).copy_into(directory)
    copied = directory.guests / "n0.fio.json"
    assert copied.stat().st_mtime == 1_000_000
    assert copied in directory.evidence()[0]
    names = run_guests.names_for_nodes(directory)
    assert names == {
        "n0.fio.json": "",
        "n1.fio.json": "cannot be read: is a link to nowhere, expected a regular file",
    }


def test_a_result_of_before_the_boot_or_of_the_future_is_refused():
    guest_files.check_age(200, boot=100, now=300)
    with pytest.raises(GuestError, match="before this node booted"):
        guest_files.check_age(99, boot=100, now=300)
    with pytest.raises(GuestError, match="clock"):
        guest_files.check_age(1e6, boot=100, now=300)
    assert 0 < guests.boot_time() < time.time()


# --- the workload


def _measured(tmp_path: Path, names: dict[str, str], **files: str) -> Any:
    job = Job(tmp_path)
    guest_samples.write(tmp_path / "guests", **files)
    job.spec["guests"] = names
    job.add("guests", list(guests.WORKLOAD.metrics))
    assert job.run() == [0], job.output()
    return job.record("guests")


def _verdict(record: Any, key: str) -> Verdict:
    case = Case(
        criterion=LIMITS.criteria[key], subject=NODE, nodes=(NODE,), record_nodes=(NODE,),
        devices=1, facts={"model": "cpu", "nodes": 1, "gpus": 1, "gpus_per_node": 1}, record=record,
    )  # fmt: skip
    return judge(case, LIMITS)


def test_what_the_files_of_a_node_say_is_judged(tmp_path):
    names = {f"{NODE}.dcgmi.json": "", f"{NODE}.fio.json": ""}
    files = {f"{NODE}__dcgmi": guest_samples.dcgm4("memory", skip=["targeted_power"]),
             f"{NODE}__fio": guest_samples.fio()}  # fmt: skip
    record = _measured(tmp_path, names, **files)
    found = {key: _verdict(record, key) for key in LIMITS.criteria if key.startswith("guests.")}
    dcgmi = found["guests.dcgmi"]
    assert (dcgmi.outcome, dcgmi.value) == (Outcome.FAIL, 1)
    assert "dcgmi diag 4.5.3: passed 4 of 6 tests" in dcgmi.line
    assert "memory failed: GPU 1: GPU 1 is not well; skipped: targeted_power" in dcgmi.line
    assert dcgmi.worst is not None
    assert dcgmi.worst["node"] == NODE
    assert found["guests.fio"].outcome is Outcome.PASS
    assert "fio 3.39: read 6.5 GB/s, wrote 2 GB/s" in found["guests.fio"].line
    smi = found["guests.nvidia_smi"]
    assert (smi.outcome, smi.cause) == (Outcome.NOT_MEASURED, Cause.GUEST)
    assert "no such file was given" in smi.reason
    assert smi.cause_nodes == []  # the node is not taken out of service for it
    assert "is made again on the node as docs/guests.md says" in smi.next_step


@pytest.mark.parametrize(
    ("names", "text", "says"),
    [
        ({f"{NODE}.fio.json": "cannot be read: Permission denied"}, None, "Permission denied"),
        ({f"{NODE}.fio.json": ""}, guest_samples.fio(when=1000), "before this node booted"),
        ({f"{NODE}.fio.json": ""}, "fio: note\n" + guest_samples.fio()[:-3], "is not JSON"),
    ],
    ids=map(str, range(3)),
)
def test_a_file_that_says_nothing_is_not_measured_with_the_reason(names, text, says, tmp_path):
    files = {} if text is None else {f"{NODE}__fio": text}
    verdict = _verdict(_measured(tmp_path, names, **files), "guests.fio")
    assert (verdict.outcome, verdict.cause) == (Outcome.NOT_MEASURED, Cause.GUEST)
    assert f"{NODE}.fio.json: " in verdict.reason
    assert says in verdict.reason


def test_a_diagnostic_that_skipped_everything_is_not_a_pass(tmp_path):
    everything = ["software", "memory", "diagnostic", "pcie", "targeted_stress", "targeted_power"]
    record = _measured(
        tmp_path, {f"{NODE}.dcgmi.json": ""},
        **{f"{NODE}__dcgmi": guest_samples.dcgm4(skip=everything)},
    )  # fmt: skip
    verdict = _verdict(record, "guests.dcgmi")
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert "judged" in verdict.reason


def _own(**more: Any) -> list[dict[str, Any]]:
    return [{"uuid": uuid, "name": "NVIDIA H200", "uncorrected": 2, **more} for uuid in UUIDS]


@pytest.mark.parametrize(
    ("text", "driver", "own", "kinds"),
    [
        (guest_samples.smi(UUIDS, uncorrected=2), "580.126.09", _own(), []),
        (guest_samples.smi(UUIDS, uncorrected=1), "580.126.09", _own(), []),
        (guest_samples.smi(UUIDS), "570.1", _own(), ["driver"]),
        (guest_samples.smi(UUIDS[:1]), "580.126.09", _own(), ["gpus"]),
        (guest_samples.smi((UUIDS[0], UUIDS[1][:-1] + "9")), "580.126.09", _own(), ["gpus"] * 2),
        (guest_samples.smi(UUIDS, serials=("1", "2")), "580.126.09", _own(serial="1"), ["gpus"]),
        (guest_samples.smi(UUIDS, name="NVIDIA H100"), "580.126.09", _own(), ["gpus"] * 2),
        (guest_samples.smi(UUIDS, uncorrected=3), "580.126.09", _own(), ["ecc"] * 2),
        (guest_samples.smi(UUIDS, uncorrected=3), "", _own(uncorrected=None), []),
    ],
    ids=map(str, range(9)),
)
def test_nvidia_smi_is_held_against_the_driver(text, driver, own, kinds):
    found = guests.compare(guest_nvidia_smi.parse(text), driver, own)
    assert [kind for kind, _ in found] == kinds


# --- contradictions


def _row(criterion: str, outcome: Outcome, subject: str = "n0") -> Verdict:
    return Verdict(criterion=criterion, title="", subject=subject, outcome=outcome)


def test_what_contradicts_is_said_on_both_rows_and_once():
    rows = [
        _row("guests.dcgmi", Outcome.FAIL), _row("memory.errors", Outcome.PASS),
        _row("memory.copy", Outcome.FAIL), _row("hostcopy.h2d", Outcome.FAIL),
        _row("gemm.bf16", Outcome.PASS), _row("memory.errors", Outcome.PASS, "n1"),
    ]  # fmt: skip
    findings = {"n0": ({"dcgmi": {"memory": "fail", "pcie": "pass", "compute": "pass"}},
                       {"dcgmi": "4.5.3"})}  # fmt: skip
    found = {v.criterion: v for v in with_contradictions(rows, findings)}
    assert {k: v.notes for k, v in found.items()} == {
        "guests.dcgmi": ["contradicted on memory: ours pass: memory.errors",
                         "contradicted on pcie: ours fail: hostcopy.h2d"],
        "memory.errors": ["contradicted: dcgmi diag 4.5.3 fails on memory"],
        "hostcopy.h2d": ["contradicted: dcgmi diag 4.5.3 passes on pcie"],
    }  # fmt: skip
    assert {v.outcome for v in found.values()} == {Outcome.FAIL, Outcome.PASS}
    again = [found.get(v.criterion, v) if v.subject == "n0" else v for v in rows]
    assert with_contradictions(again, findings) == []


def test_every_family_has_criteria_of_ours_and_every_tool_a_row():
    for prefixes in OURS.values():
        for prefix in prefixes:
            assert any(key.startswith(prefix) for key in LIMITS.criteria), prefix
    assert {*guests.FAMILIES} < {*OURS}
    assert {*TOOLS.values()} <= {*LIMITS.criteria}


@pytest.mark.parametrize(
    ("test", "family"),
    [("GPU Memory", "memory"), ("memory_bandwidth", "memory"), ("PCIe", "pcie"),
     ("nvbandwidth", "nvlink"), ("targeted_power", "compute"), ("Targeted Stress", "compute"),
     ("pulse_test", "compute"), ("EUD Test", "compute"), ("software", "software"),
     ("Page Retirement/Row Remap", "software"), ("a new test", "")],
)  # fmt: skip
def test_the_tests_of_dcgmi_belong_to_a_part(test, family):
    assert guests.family_of(test) == family


def test_a_result_of_a_node_that_is_not_in_the_run_is_not_measured():
    verdict = unplanned_verdict(("guests.dcgmi", "n9"), LIMITS)
    assert (verdict.outcome, verdict.cause) == (Outcome.NOT_MEASURED, Cause.GUEST)
    assert "not a node of this run" in verdict.reason
