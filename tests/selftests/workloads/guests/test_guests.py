"""What is made of other tools' results on a node: values, findings, and why there are none."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.absence import Kind
from fixtures.records.run_directory import guest_file
from fixtures.workloads.devices import devices
from fixtures.workloads.guests import guest_dcgmi, guest_fio, guest_nvidia_smi, guests
from fixtures.workloads.guests.guest_dcgmi import Diagnostic
from fixtures.workloads.guests.guest_files import GuestError
from fixtures.workloads.guests.guest_fio import FioRun
from fixtures.workloads.guests.guest_nvidia_smi import SmiLog
from tests.selftests.support import whys

pytestmark = pytest.mark.cpu


def facts() -> dict[str, Any]:
    return {"versions": {}, "findings": {}}


# --- the file of a node


def rank_of(folder: Path, leads: bool = True, **given: str) -> Any:
    return SimpleNamespace(
        node="n0", leads_node=leads,
        spec={"run_directory": str(folder), "guests": {f"n0.{n}": why for n, why in given.items()}},
    )  # fmt: skip


def test_the_text_of_a_node_s_file_is_read_where_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(guests.shutil, "which", lambda _: None)
    monkeypatch.setattr(guests, "boot_time", lambda: 0.0)
    monkeypatch.setattr(guests, "is_visible", lambda path: path.exists())
    for rank, says in (
        (rank_of(tmp_path), "no such file was given"),
        (rank_of(tmp_path, **{"fio.json": "too large"}), "too large"),
        (rank_of(tmp_path, **{"fio.json": ""}), "this node does not see"),
    ):
        with pytest.raises(GuestError, match=says):
            guests._text(rank, "fio")
    with pytest.raises(GuestError, match="no such file was given"):
        guests._text(rank_of(tmp_path), "nvidia_smi")
    path = guest_file(tmp_path, "n0.fio.json")
    path.parent.mkdir(parents=True)
    path.write_text("text")
    given = rank_of(tmp_path, **{"fio.json": ""})
    assert guests._text(given, "fio") == "text"
    monkeypatch.setattr(guests, "boot_time", lambda: path.stat().st_mtime + 1)
    with pytest.raises(GuestError, match="before this node booted"):
        guests._text(given, "fio")


LOST = "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot it\n"


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        (LOST, ["GPU0000:3B:00.0: GPU is lost. Reboot it"]),
        (
            '<?xml version="1.0" ?>\n<nvidia_smi_log>\nUnable to determine the device handle for '
            "GPU3: 0000:5F:00.0: Unknown Error\nUnable to determine the device handle for GPU 4: "
            "Not Found\nNo devices were found\n",
            ["GPU3: 0000:5F:00.0: Unknown Error", "GPU 4: Not Found"],
        ),
        ("Unable to determine the device handle for GPU2: Unknown Error",
         ["GPU2: Unknown Error"]),
    ],
)  # fmt: skip
def test_a_gpu_that_nvidia_smi_names_as_out_of_reach_is_what_it_found(text, notes):
    known = facts()
    row = guests._nvidia_smi(text, known)
    assert row.value == len(notes)
    assert row.notes == [f"nvidia-smi does not reach {note}" for note in notes]
    assert known["findings"] == {"nvidia_smi": {"gpus": "fail"}}


def test_nvidia_smi_is_run_where_it_is_installed_and_no_file_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    answers: list[Any] = [
        SimpleNamespace(returncode=0, stdout="<xml/>"),
        SimpleNamespace(returncode=9, stdout="", stderr="no driver"),
        SimpleNamespace(returncode=15, stdout=LOST, stderr=""),
        subprocess.TimeoutExpired("nvidia-smi", 30), OSError("no memory"),
    ]  # fmt: skip

    def run(command: list[str], *, timeout: float, **_: Any) -> Any:
        assert (command, timeout) == (["nvidia-smi", "-q", "-x"], 30)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(guests.subprocess, "run", run)
    monkeypatch.setattr(guests.shutil, "which", lambda name: f"/bin/{name}")
    assert guests._text(rank_of(tmp_path), "nvidia_smi") == "<xml/>"
    for says in ("exit 9: no driver", "", "timed out", "no memory"):
        if not says:
            assert guests._run_nvidia_smi().startswith(LOST)
            continue
        with pytest.raises(GuestError, match=says):
            guests._run_nvidia_smi()
    with pytest.raises(GuestError, match="no such file was given"):
        guests._text(rank_of(tmp_path), "dcgmi")


def test_the_boot_time_is_that_of_proc_stat(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guests.Path, "read_text", lambda _: "cpu 1\nbtime 1234\n")
    assert guests.boot_time() == 1234
    monkeypatch.setattr(guests.Path, "read_text", lambda _: "cpu 1\n")
    with pytest.raises(GuestError, match="does not say when"):
        guests.boot_time()


def test_tools_without_a_value_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def text(_: Any, tool: str) -> str:
        if tool == "fio":
            raise GuestError("line 3: why")
        return "text"

    monkeypatch.setattr(guests, "_text", text)
    monkeypatch.setattr(guest_dcgmi, "parse", lambda _: Diagnostic("4.1", "580", []))
    found = guests.run(rank_of(tmp_path), ["dcgmi", "fio"])
    assert [(m.metric, m.value) for m in found.measurements] == [("dcgmi", 0)]
    assert whys(found, Kind.GUEST) == {"fio": "n0.fio.json: line 3: why"}
    assert not guests.run(rank_of(tmp_path), ["dcgmi"]).absent
    assert guests.run(rank_of(tmp_path, leads=False), ["dcgmi"]).facts == {}


# --- dcgmi


def test_failed_tests_of_dcgmi_are_counted_and_their_families_found(
    monkeypatch: pytest.MonkeyPatch,
):
    tests = [
        guest_dcgmi.Test(name, "Hardware", status, failed)
        for name, status, failed in (
            ("PCIe", "pass", []), ("pcie", "fail", ["GPU 0: a", "b", "c", "d"]),
            ("PCIE", "pass", []), ("memory", "pass", []), ("unheard of", "fail", ["x"]),
            ("nvlink", "warn", []), ("diagnostic", "skip", []),
        )
    ]  # fmt: skip
    monkeypatch.setattr(guest_dcgmi, "parse", lambda _: Diagnostic("4.1", "580", tests))
    known = facts()
    row = guests._dcgmi("", known)
    assert (row.value, row.unit, row.checks) == (2, "tests", {"judged": 5})
    assert known == {
        "versions": {"dcgmi": "4.1"}, "findings": {"dcgmi": {"pcie": "fail", "memory": "pass"}},
    }  # fmt: skip
    assert row.notes == [
        "dcgmi diag 4.1: passed 3 of 7 tests", "pcie failed: GPU 0: a / b / c",
        "unheard of failed: x", "warns: nvlink", "skipped: diagnostic",
    ]  # fmt: skip


def test_tests_of_both_versions_have_a_family():
    for name, family in (
        ("GPU Memory", "memory"), ("memory_bandwidth", "memory"), ("PCIe", "pcie"),
        ("nvbandwidth", "nvlink"), ("NCCL Tests", "nvlink"), ("Targeted Stress", "compute"),
        ("EUD Test", "compute"), ("Denylist", "software"), ("NVML Library", "software"),
        ("something else", ""), ("pcie x", ""),
    ):  # fmt: skip
        assert guests.family_of(name) == family, name


# --- nvidia-smi


def gpu(uuid: str, **more: Any) -> guest_nvidia_smi.Gpu:
    given = {"name": "H200", "serial": "1", "vbios": "96", "pci": "0:1", "uncorrected": 0}
    return guest_nvidia_smi.Gpu(line=1, uuid=uuid, **{**given, **more})


def own(uuid: str, **more: Any) -> dict[str, Any]:
    given = {"uuid": uuid, "name": "H200", "serial": "1", "vbios": "96", "uncorrected": 0}
    return {**given, **more}


def test_other_gpus_and_other_drivers_than_nvml_s_are_differences():
    def differs(log_gpus: list[Any], mine: list[Any], driver: str = "580") -> list[Any]:
        return guests.compare(SmiLog("580", None, log_gpus), driver, mine)

    assert differs([gpu("a")], [own("a")]) == []
    assert differs([gpu("a")], [own("a")], "570") == [("driver", "driver 580, NVML 570")]
    assert differs([gpu("a")], [own("a")], "") == []
    assert differs([gpu("a"), gpu("b")], [own("a"), own("c")]) == [
        ("gpus", "b is not found by NVML"), ("gpus", "c is not in nvidia-smi's list"),
    ]  # fmt: skip
    for theirs, ours, found in (
        ({"serial": "2"}, {}, [("gpus", "a: serial 2, NVML 1")]), ({"serial": ""}, {}, []),
        ({"serial": "2"}, {"serial": None}, []), ({}, {"serial": 1}, []),
        ({"name": "H100"}, {}, [("gpus", "a: name H100, NVML H200")]),
        ({"vbios": "95"}, {}, [("gpus", "a: vbios 95, NVML 96")]),
        ({"uncorrected": 3}, {"uncorrected": 2},
         [("ecc", "a: uncorrected ECC errors 3, NVML later 2")]),
        ({"uncorrected": 3}, {"uncorrected": 3}, []), ({"uncorrected": None}, {}, []),
        ({"uncorrected": 3}, {"uncorrected": None}, []),
        ({"uncorrected": 1}, {"uncorrected": 2}, []),
    ):  # fmt: skip
        assert differs([gpu("a", **theirs)], [own("a", **ours)]) == found


def test_nvidia_smi_is_compared_with_nvml(monkeypatch: pytest.MonkeyPatch):
    log = SmiLog("580", None, [gpu("a"), gpu("b")])
    asked: list[tuple[Any, ...]] = []

    def query(*given: Any) -> Any:
        asked.append(given)
        return "580" if given[0] == "nvmlSystemGetDriverVersion" else 0

    monkeypatch.setattr(guest_nvidia_smi, "parse", lambda _: log)
    monkeypatch.setattr(devices, "nvml", lambda: object())
    monkeypatch.setattr(devices, "open_handles", lambda: ["a"])
    monkeypatch.setattr(devices, "nvml_facts", own)
    monkeypatch.setattr(devices, "query_nvml", query)
    known = facts()
    row = guests._nvidia_smi("", known)
    assert (row.value, row.notes) == (
        1, ["nvidia-smi of driver 580: 2 GPUs", "b is not found by NVML"],
    )  # fmt: skip
    assert known == {
        "versions": {"nvidia_smi": "580"}, "findings": {"nvidia_smi": {"gpus": "fail"}},
    }  # fmt: skip
    assert ("nvmlDeviceGetTotalEccErrors", "a", 1, 1) in asked
    monkeypatch.setattr(devices, "query_nvml", lambda *_: None)
    assert guests._nvidia_smi("", facts()).value == 1, "a driver that NVML does not tell"
    monkeypatch.setattr(devices, "nvml", lambda: None)
    with pytest.raises(GuestError, match="no NVML"):
        guests._nvidia_smi("", facts())


def test_results_that_say_their_time_are_of_this_boot(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guests, "boot_time", lambda: 1e9)
    monkeypatch.setattr(guest_nvidia_smi, "parse", lambda _: SmiLog("580", 5.0, []))
    monkeypatch.setattr(guest_fio, "parse", lambda _: FioRun("3", 5.0, []))
    for read in (guests._nvidia_smi, guests._fio):
        with pytest.raises(GuestError, match="before this node booted"):
            read("", facts())


# --- fio


def test_jobs_of_fio_with_an_error_are_counted(monkeypatch: pytest.MonkeyPatch):
    jobs = [guest_fio.Job("a", 0, 1.5, 0.5), guest_fio.Job("b", 5, 2.0, 1.0)]
    monkeypatch.setattr(guest_fio, "parse", lambda _: FioRun("3.39", None, jobs))
    known = facts()
    row = guests._fio("", known)
    assert (row.value, row.unit) == (1, "jobs")
    assert row.notes == ["fio 3.39: read 3.5 GB/s, wrote 1.5 GB/s", "b: error 5"]
    assert known == {"versions": {"fio": "3.39"}, "findings": {"fio": {"storage": "fail"}}}
    jobs.pop()
    known = facts()
    assert (guests._fio("", known).value, known["findings"]["fio"]) == (0, {"storage": "pass"})


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("fio: pid=7, got signal=11", 1),
        ("fio: job 'seq' (state=5) hasn't exited in 60 seconds, it appears to be stuck. Doing "
         "forceful exit of this job.", 1),
        ("fio: pid=7, err=5/file:io_u.c:1889, func=io_u error, error=Input/output error", 1),
        ("fio: file hash not empty on exit", 0),
    ],
)  # fmt: skip
def test_a_job_that_died_fails_though_its_json_has_no_error(
    monkeypatch: pytest.MonkeyPatch, line: str, error: int
):
    jobs = [guest_fio.Job("seq", 0, 1.0, 1.0)]
    monkeypatch.setattr(guest_fio, "parse", lambda _: FioRun("3.39", None, jobs, [line]))
    assert guests._fio("", facts()).value == error
    jobs[:] = [guest_fio.Job("seq", 5, 1.0, 1.0)]
    assert guests._fio("", facts()).value == 1


def test_a_fio_that_was_ended_by_a_signal_measured_nothing_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
):
    jobs = [guest_fio.Job("seq", 0, 1.0, 1.0)]
    said = ["fio: terminating on signal 2"]
    monkeypatch.setattr(guest_fio, "parse", lambda _: FioRun("3.39", None, jobs, said))
    with pytest.raises(GuestError, match="on signal 2: its jobs did not run to their end"):
        guests._fio("", facts())
    jobs[:] = [guest_fio.Job("seq", 5, 1.0, 1.0)]
    assert guests._fio("", facts()).value == 1
