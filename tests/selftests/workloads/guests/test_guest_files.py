"""Parsers of other tools' results: what they know, and that they refuse everything else."""

from __future__ import annotations

import contextlib
import json
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fixtures.workloads.guests import guest_dcgmi, guest_fio, guest_nvidia_smi
from fixtures.workloads.guests.guest_files import GuestError
from tests.selftests import guest_samples

pytestmark = pytest.mark.cpu

UUIDS = ("GPU-0badcafe-0000-1111-2222-333333333333", "GPU-0badcafe-0000-1111-2222-333333333334")
PARSERS = (guest_dcgmi.parse, guest_fio.parse, guest_nvidia_smi.parse)
SAMPLES = (
    guest_samples.dcgm3("GPU Memory"), guest_samples.dcgm4("pcie"), guest_samples.fio(5),
    guest_samples.smi(UUIDS),
)  # fmt: skip


# --- what the parsers know


@pytest.mark.parametrize(
    ("text", "version", "tests", "failing", "gpu"),
    [
        (guest_samples.dcgm3(), "3.3.8", 3, [], ""),
        (guest_samples.dcgm3("GPU Memory"), "3.3.8", 3, ["GPU Memory"], "GPU 1"),
        (guest_samples.dcgm4(), "4.5.3", 6, [], ""),
        (guest_samples.dcgm4("pcie"), "4.5.3", 6, ["pcie"], "GPU 1"),
    ],
    ids=map(str, range(4)),
)
def test_dcgmi_of_both_forms_is_read(text, version, tests, failing, gpu):
    found = guest_dcgmi.parse(text)
    assert (found.version, len(found.tests)) == (version, tests)
    assert [t.name for t in found.of("fail")] == failing
    assert all(t.failed == [f"{gpu}: GPU 1 is not well"] for t in found.of("fail"))
    assert found.driver


def test_fio_is_read_in_bytes_and_in_old_versions_in_kib():
    run = guest_fio.parse(guest_samples.fio(when=1_700_000_000))
    assert (run.version, run.time) == ("3.39", 1_700_000_000)
    assert [(j.read, j.write, j.error) for j in run.jobs] == [(6.5, 2.0, 0)]
    old = json.loads(guest_samples.fio())
    for side in ("read", "write"):
        del old["jobs"][0][side]["bw_bytes"]
    assert guest_fio.parse(json.dumps(old)).jobs[0].read == pytest.approx(6.5, rel=1e-6)


def test_nvidia_smi_is_read_with_its_doctype():
    log = guest_nvidia_smi.parse(guest_samples.smi(UUIDS, uncorrected=3, serials=("12", "13")))
    assert log.driver == "580.126.09"
    assert [(g.uuid, g.serial, g.uncorrected) for g in log.gpus] == [
        (UUIDS[0], "12", 3), (UUIDS[1], "13", 3),
    ]  # fmt: skip
    assert log.time == pytest.approx(time.time(), abs=60)
    unknown = guest_nvidia_smi.parse(guest_samples.smi(UUIDS, uncorrected="N/A"))
    assert unknown.gpus[0].uncorrected is None


# --- what they refuse, with the line


def _line(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


@pytest.mark.parametrize(
    ("sample", "change", "says"),
    [
        (guest_samples.dcgm4("pcie"), ('"Fail"', '"Fehler"'), "'Fehler' is not one of"),
        (guest_samples.dcgm4(), ('"entity_id": 1', '"entity": 1'), "entity: is not known here"),
        (guest_samples.dcgm4(), ('"test_summary"', '"summary"'), "summary: is not known here"),
        (guest_samples.dcgm3(), ('"3.3.8"', '"3.3.8", "runtime_error": "no GPU"'), "no GPU"),
        (guest_samples.dcgm3(), ('"results"', '"result"'), "has no 'results'"),
        (guest_samples.dcgm3(), ('"PCIe"', '"Denylist"'), "2 times"),
        (guest_samples.fio(), ('"fio-3.39"', '"iperf"'), "is not a version of fio"),
        (guest_samples.fio(), ('"error": 0', '"error": -5'), "-5 where a number"),
        (guest_samples.fio(), ('"error": 0', '"error": NaN'), "NaN is not a number"),
        (guest_samples.fio(), ('"read"', '"reads"'), "has no 'read'"),
    ],
    ids=map(str, range(10)),
)  # fmt: skip
def test_json_that_is_not_known_is_refused_with_its_line(sample, change, says):
    parse = guest_fio.parse if "fio version" in sample else guest_dcgmi.parse
    changed = sample.replace(*change, 1)
    assert changed != sample
    with pytest.raises(GuestError) as refused:
        parse(changed)
    assert says in str(refused.value)
    assert str(refused.value).startswith("line ")


def test_the_line_is_that_of_the_value():
    text = guest_samples.dcgm4("pcie").replace('"Fail"', '"Fehler"', 1)
    with pytest.raises(GuestError, match=rf"line {_line(text, 'Fehler')}: .*\[2\]\.tests\[0\]"):
        guest_dcgmi.parse(text)


@pytest.mark.parametrize(
    ("doctype", "says"),
    [
        ('<!DOCTYPE nvidia_smi_log [<!ENTITY a "b">]>', "line 2: "),
        ('<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd" [<!ENTITY a "b">]>', "line 2: "),
        ('<!DOCTYPE nvidia_smi_log SYSTEM "file:///etc/passwd">', "not nvidia-smi's"),
        ('<!DOCTYPE nvidia_smi_log PUBLIC "x" "nvsmi_device_v13.dtd">', "not nvidia-smi's"),
        ('<!DOCTYPE html SYSTEM "nvsmi_device_v13.dtd">', "not nvidia-smi's"),
    ],
)
def test_a_dtd_or_entity_of_its_own_is_refused(doctype, says):
    with pytest.raises(GuestError, match=says):
        guest_nvidia_smi.parse(guest_samples.smi(UUIDS, doctype=doctype))


def test_entities_that_grow_are_refused_before_they_are_expanded():
    bomb = "".join(f'<!ENTITY e{k} "{f"&e{k - 1};" * 10}">' for k in range(1, 12))
    text = (
        f'<!DOCTYPE nvidia_smi_log [<!ENTITY e0 "x">{bomb}]><nvidia_smi_log>&e11;</nvidia_smi_log>'
    )
    with pytest.raises(GuestError, match="line 1"):
        guest_nvidia_smi.parse(text)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("<attached_gpus>2", "<attached_gpus>8"), "attached_gpus is 8, and 2 are described"),
        ((UUIDS[1], UUIDS[0]), "two GPUs have the UUID"),
        ((UUIDS[1], "N/A"), "is not the UUID of a GPU"),
        (("<dram_uncorrectable>0</dram_uncorrectable>\n", "<dram_uncorrectable>-1</dram_unco"
          "rrectable>\n"), "cannot be counted"),
        (("<driver_version>580.126.09</driver_version>", ""), "has no <driver_version>"),
        (("<cuda_version>13.0</cuda_version>", "<driver_version>1</driver_version>"), "twice"),
        (("</nvidia_smi_log>", ""), "is not XML"),
    ],
)  # fmt: skip
def test_xml_that_is_not_known_is_refused_with_its_line(change, says):
    text = guest_samples.smi(UUIDS)
    assert change[0] in text
    with pytest.raises(GuestError, match=rf"line \d+: .*{says}"):
        guest_nvidia_smi.parse(text.replace(*change, 1))


def _quiet(text: str) -> None:
    """No parser raises anything but its own error, and no noise is a result."""
    for parse in PARSERS:
        with contextlib.suppress(GuestError):
            parse(text)
            assert any(key in text for key in ("fio version", "DCGM", "nvidia_smi_log"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(
            ["DCGM Diagnostic", "test_categories", "tests", "results", "status", "name", "jobs",
             "fio version", "error", "read", "bw_bytes", "category"]
        ) | st.text(max_size=6),
        inner, max_size=5,
    ),
    max_leaves=20,
)  # fmt: skip


@given(st.text(max_size=200))
@example("")
@example("[" * 100_000)
@example('{"a":' * 100_000)
@example("<a>" * 100_000)
@example("9" * 5000)
@example('{"fio version": "fio-3", "jobs": [' + "9" * 5000 + "]}")
@example("<?xml version='1.0' encoding='utf-99'?><a/>")
@example("\ud800")
@example('{"a": "\\ud800", "fio version": 1e999}')
def test_noise_is_refused_and_nothing_else_is_raised(text):
    with pytest.raises(GuestError):
        guest_dcgmi.parse(text)
    with pytest.raises(GuestError):
        guest_fio.parse(text)
    with pytest.raises(GuestError):
        guest_nvidia_smi.parse(text)


@given(JSON)
def test_json_of_any_shape_raises_nothing_else(data):
    _quiet(json.dumps(data))


@given(st.sampled_from(SAMPLES), st.integers(0, 10_000), st.text(max_size=4), st.integers(0, 30))
def test_a_damaged_result_is_refused_or_says_what_is_left(sample, place, noise, cut):
    place %= len(sample)
    _quiet(sample[:place] + noise + sample[place + cut :])


@given(st.sampled_from(SAMPLES), st.integers(1, 10_000))
def test_a_result_that_was_cut_off_is_never_one(sample, place):
    cut = sample.rstrip()[: place % (len(sample.rstrip()) - 1) + 1]
    for parse in PARSERS:
        with pytest.raises(GuestError):
            parse(cut[:-1])
