"""Outputs that people published, of tools that found a fault or have a habit: what is read of them.

The files are in tests/selftests/data/public_cases, made up with the property of the published one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.slurm import node_states
from fixtures.slurm.client import nodes_of_text
from fixtures.workloads.devices import devices
from fixtures.workloads.guests import guest_dcgmi, guest_fio, guest_nvidia_smi, guests
from fixtures.workloads.guests.guest_files import GuestError
from fixtures.workloads.health import imex, xids
from fixtures.workloads.nccl import nccl_log
from tests.selftests import guest_samples

pytestmark = pytest.mark.cpu

CASES = Path(__file__).parents[2] / "data" / "public_cases"
UUID = "GPU-0badcafe-0000-1111-2222-33333333333"


def case(name: str) -> str:
    (path,) = CASES.glob(f"{name}.*")
    return path.read_text(encoding="utf-8")


def facts() -> dict[str, Any]:
    return {"versions": {}, "findings": {}}


@pytest.fixture(autouse=True)
def _booted_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "boot_time", lambda: 0.0)
    monkeypatch.setattr(guests.time, "time", lambda: 2e9)


# --- fio


def test_a_fio_that_failed_fails_by_the_error_that_it_wrote_before_its_json():
    known = facts()
    row = guests._fio(case("fio-error-on-stdout"), known)
    assert (row.value, known["findings"]["fio"]) == (1, {"storage": "fail"})
    assert "seq: error 28" in row.notes
    assert any("err=28" in note and "No space left" in note for note in row.notes)


def test_a_note_of_fio_is_shown_and_refuses_nothing():
    row = guests._fio(case("fio-note-on-stdout"), facts())
    assert row.value == 0
    assert any("note: both iodepth >= 1" in note for note in row.notes)


@pytest.mark.parametrize(
    ("before", "behind", "lines"),
    [
        ("fio: file hash not empty on exit\n", "", 1),
        ("", "\nfio: terminating on signal 15\n", 1),
        ("note: a\n\nfio: b\n", "\nc\n", 3),
    ],
)
def test_lines_on_both_sides_of_the_json_are_kept(before: str, behind: str, lines: int):
    assert len(guest_fio.parse(before + guest_samples.fio() + behind).said) == lines


@pytest.mark.parametrize(
    ("line", "failed"),
    [
        ("fio: pid=7, err=5/file:io_u.c:1876, func=io_u error, error=Input/output error", 1),
        ("fio: pid=7, err=28/file:filesetup.c:240, func=write, error=No space left on device", 1),
        ("fio: pid=7, err=121/file:io_u.c:1, func=io_u error, error=Remote I/O error", 1),
        ("fio: pid=7, err=0/file:io_u.c:1, func=io_u error, error=Success", 0),
        ("note: err=5 is not an error of a job", 0),
    ],
)
def test_an_error_that_no_job_of_the_json_has_still_fails(line: str, failed: int):
    assert guests._fio(f"{line}\n{guest_samples.fio()}", facts()).value == failed


@pytest.mark.parametrize(
    "text",
    [
        guest_samples.fio(5) + "\n" + guest_samples.fio(),  # two runs
        guest_samples.fio(5)[:200] + "\n" + guest_samples.fio(),  # one cut off, and another
        guest_samples.fio() + '\n{"fio version": ',
        "note: nothing else\n",
        'note: {"fio version": "fio-3.39", "jobs": []}\n',
        '{"a": 1}\n',
    ],
    ids=("two runs", "one cut off", "another begins", "only a note", "in a line", "other"),
)
def test_anything_but_one_whole_object_of_fio_is_refused(text: str):
    with pytest.raises(GuestError, match=r"^line \d+: "):
        guest_fio.parse(text)


def test_an_option_that_is_there_twice_is_read():
    (job,) = guest_fio.parse(case("fio-option-twice")).jobs
    assert (job.name, job.error) == ("seq", 0)


@pytest.mark.parametrize(
    ("line", "again"),
    [
        ('"error": 28,', '"error": 0,'),
        ('"jobname": "seq",', '"jobname": "other",'),
        ('"bw_bytes": 0,', '"bw_bytes": 9000000000,'),
        ('"jobs": [', '"jobs": [],\n "jobs": ['),
    ],
)
def test_a_judged_key_that_is_there_twice_is_refused_at_its_own_line(line: str, again: str):
    text = case("fio-error-on-stdout")
    two = again if line in again else f"{line}\n{again}"
    changed = text.replace(line, two, 1)
    key = line.split('"')[1]
    own = changed[: changed.index(two)].count("\n") + 2
    with pytest.raises(GuestError, match=rf"line {own}: an object has '{key}' twice"):
        guest_fio.parse(changed)


def test_what_is_no_number_is_refused_at_its_own_line():
    text = case("fio-note-on-stdout")
    for digits in ("NaN", "-Infinity", "1e999", "9" * 5000):
        changed = text.replace('"elapsed": 1', f'"elapsed": {digits}', 1)
        own = text[: text.index('"elapsed"')].count("\n") + 1
        with pytest.raises(GuestError, match=rf"line {own}: jobs\[0\]\.elapsed: "):
            guest_fio.parse(changed)


# --- dcgmi


def test_a_test_of_dcgmi_that_has_only_a_summary_fails_by_it():
    row = guests._dcgmi(case("dcgmi-summary-only"), facts())
    assert row.value == 1
    assert "software failed: Fabric manager has not started" in row.notes


def one_test(**given: Any) -> str:
    body = {"test_categories": [{"category": "Hardware", "tests": [{"name": "memory", **given}]}]}
    return json.dumps({"DCGM Diagnostic": body})


@pytest.mark.parametrize(
    "given",
    [
        {"results": [{"status": "Pass", "entity_id": 0, "entity_group": "GPU",
                      "warnings": [{"warning": "could not allocate", "error_id": 3}]}]},
        {"results": [{"status": "Pass", "gpu_id": 0, "warnings": ["could not allocate"]}]},
        {"test_summary": {"status": "Pass", "warnings": [{"warning": "could not allocate"}]}},
        {"results": [{"status": "Skip", "warnings": ["could not allocate"]}]},
    ],
)  # fmt: skip
def test_warnings_of_a_test_that_did_not_fail_are_shown(given: dict[str, Any]):
    row = guests._dcgmi(one_test(**given), facts())
    assert row.value == 0
    assert any("could not allocate" in note for note in row.notes)


def test_the_same_warning_of_a_result_and_of_its_summary_is_shown_once():
    text = one_test(
        results=[{"status": "Pass", "gpu_id": 0, "warnings": ["a"]}],
        test_summary={"status": "Pass", "warnings": ["a"]},
    )
    (test,) = guest_dcgmi.parse(text).tests
    assert test.warned == ["GPU 0: a"]


def test_what_dcgmi_says_instead_of_json_is_quoted():
    said = "Error: unable to establish a connection to the specified host: localhost"
    with pytest.raises(GuestError, match=f"is not JSON: .*{said}"):
        guest_dcgmi.parse(said + "\n")


# --- nvidia-smi


def own(k: int) -> dict[str, Any]:
    return {"uuid": f"{UUID}{k}", "uncorrected": 0}


def test_a_lost_gpu_is_named_by_its_bus_and_is_a_difference():
    log = guest_nvidia_smi.parse(case("smi-lost-gpu"))
    assert [gpu.lost for gpu in log.gpus] == ["", "GPU is lost"]
    ((kind, text),) = guests.compare(log, "", [own(0), own(1)])
    assert (kind, text) == ("gpus", f"GPU 00000000:02:00.0 {UUID}1: GPU is lost")
    ((_, text),) = guests.compare(log, "", [own(0)])
    assert "00000000:02:00.0" in text, "and also where NVML does not find it any more"


@pytest.mark.parametrize(
    "change",
    [
        ("<gpu_temp>31 C</gpu_temp>", "<gpu_temp>GPU is lost</gpu_temp>"),
        (f"<uuid>{UUID}0</uuid>", "<uuid>GPU is lost</uuid>"),
        ("<serial>1650000000000</serial>", "<serial>[GPU requires reset]</serial>"),
    ],
)
def test_any_value_of_a_gpu_may_say_that_it_is_lost(change: tuple[str, str]):
    text = case("smi-lost-gpu").replace("GPU is lost", "N/A")
    assert change[0] in text
    log = guest_nvidia_smi.parse(text.replace(*change, 1))
    found = guests.compare(log, "", [own(0), own(1)])
    assert any("GPU 00000000:01:00.0" in text for _, text in found)


def test_counters_without_a_value_beside_others_are_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(devices, "nvml", lambda: object())
    monkeypatch.setattr(devices, "open_handles", lambda: [0, 1])
    monkeypatch.setattr(devices, "nvml_facts", lambda k: {"uuid": f"{UUID}{k}"})
    monkeypatch.setattr(devices, "query_nvml", lambda *_: None)
    row = guests._nvidia_smi(case("smi-lost-gpu").replace("GPU is lost", "0"), facts())
    assert row.value == 0
    (said,) = [note for note in row.notes if "not available" in note]
    assert said.startswith(f"{UUID}1: sram_uncorrectable_parity, sram_uncorrectable_secded ")


def test_what_nvidia_smi_says_instead_of_xml_is_quoted():
    said = "Unable to determine the device handle for GPU0000:02:00.0: GPU is lost."
    with pytest.raises(GuestError, match=f"line 1: is not XML; it says '{said}"):
        guest_nvidia_smi.parse(said + "  Reboot the system to recover this GPU\n")


# --- tables of Slurm, NVIDIA and NCCL


def test_a_cloud_node_that_is_powered_up_is_available():
    (node,) = nodes_of_text(case("cloud-node-booting"))
    assert node_states.available(node.state)
    assert node.gpus == 8


def test_slices_of_gpus_are_told_by_their_type():
    (node,) = nodes_of_text(case("mig-type-names"))
    assert node.gpus == 6


def test_reduction_in_the_switch_is_the_ordered_network():
    (path,) = CASES.glob("collnet-transport.*")
    found = nccl_log.read_nccl_log([path])
    families = {nccl_log.transport_family(name) for name in found["transports"]}
    assert (nccl_log.slowest(families), found["collnet"]) == ("NET/IB", True)


def test_xid_109_counts():
    assert xids.counted([109]) == [109]


def test_the_channel_of_a_job_is_one(tmp_path: Path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/devices").write_text("234 nvidia-caps-imex-channels\n")
    folder = tmp_path / "dev" / imex.CHANNELS
    folder.mkdir(parents=True)
    (folder / "channel7").touch()
    with pytest.raises(imex.NotOffered, match="state of the domain is unknown"):
        imex.state(tmp_path, command="no-such-imex-ctl")
