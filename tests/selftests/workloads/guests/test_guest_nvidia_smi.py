"""Results of nvidia-smi: what is read, and what is refused with its line."""

from __future__ import annotations

import time

import pytest

from fixtures.workloads.guests import guest_nvidia_smi
from fixtures.workloads.guests.guest_files import GuestError
from tests.selftests import guest_samples

pytestmark = pytest.mark.cpu

UUIDS = ("GPU-0badcafe-0000-1111-2222-333333333333", "GPU-0badcafe-0000-1111-2222-333333333334")


def test_nvidia_smi_is_read_with_its_doctype():
    log = guest_nvidia_smi.parse(guest_samples.smi(UUIDS, uncorrected=3, serials=("12", "13")))
    assert log.driver == "580.126.09"
    assert [(g.uuid, g.serial, g.uncorrected) for g in log.gpus] == [
        (UUIDS[0], "12", 3), (UUIDS[1], "13", 3),
    ]  # fmt: skip
    assert log.time == pytest.approx(time.time(), abs=60)
    unknown = guest_nvidia_smi.parse(guest_samples.smi(UUIDS, uncorrected="N/A"))
    assert unknown.gpus[0].uncorrected is None


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


def log(gpu: str = "", *, head: str = "", count: str = "1", doctype: str = "") -> str:
    return (
        f"{doctype}<nvidia_smi_log>{head}<driver_version>580.1</driver_version>"
        f"<attached_gpus>{count}</attached_gpus>\n<gpu id='0:1'><uuid>{UUIDS[0]}</uuid>"
        f"<product_name>H200</product_name>{gpu}</gpu></nvidia_smi_log>"
    )


def refused(text: str) -> str:
    with pytest.raises(GuestError) as error:
        guest_nvidia_smi.parse(text)
    return str(error.value)


def test_what_a_driver_does_not_show_is_empty():
    bare = guest_nvidia_smi.parse(log())
    (gpu,) = bare.gpus
    assert (bare.time, bare.driver, gpu.pci, gpu.name) == (None, "580.1", "0:1", "H200")
    assert (gpu.serial, gpu.vbios, gpu.uncorrected, gpu.line) == ("", "", None, 2)
    text = log("<serial>N/A</serial><vbios_version>96.00</vbios_version>")
    (gpu,) = guest_nvidia_smi.parse(text).gpus
    assert (gpu.serial, gpu.vbios) == ("", "96.00")
    (gpu,) = guest_nvidia_smi.parse(log("<serial>[N/A]</serial>")).gpus
    assert gpu.serial == ""


def test_errors_of_all_memories_are_summed_where_each_is_known():
    def count(*given: tuple[str, str]) -> int | None:
        inner = "".join(f"<{name}>{text}</{name}>" for name, text in given)
        errors = f"<ecc_errors><aggregate>{inner}</aggregate></ecc_errors>"
        (gpu,) = guest_nvidia_smi.parse(log(errors)).gpus
        return gpu.uncorrected

    assert count(("sram_uncorrectable", "2"), ("dram_uncorrectable", "3")) == 5
    assert count(("sram_uncorrectable", "0"), ("sram_correctable", "9")) == 0
    assert count(("sram_uncorrectable", "2"), ("dram_uncorrectable", "N/A")) is None
    assert count(("dram_correctable", "2")) is None


def test_the_number_of_gpus_is_one_and_right():
    for count, says in (
        ("2", "attached_gpus is 2, and 1 are described"), ("one", "is not a number of GPUs"),
        ("\u0661", "is not a number of GPUs"), ("00001", "and 1 are described"),
    ):  # fmt: skip
        assert says in refused(log(count=count))
    assert guest_nvidia_smi.parse(log(count="0001")).gpus


def test_the_time_is_read_or_refused():
    when = "<timestamp>Fri Nov 27 10:00:00 2026</timestamp>"
    seconds = guest_nvidia_smi.parse(log(head=when)).time
    assert time.localtime(seconds)[:4] == (2026, 11, 27, 10)
    assert "is not a time like" in refused(log(head="<timestamp>now</timestamp>"))


def test_what_is_missing_twice_or_of_another_tool_is_refused():
    assert "<other> where <nvidia_smi_log>" in refused("<other/>")
    for text, says in (
        (log().replace("580.1", ""), "has no <driver_version>"),
        (log().replace(UUIDS[0], "GPU-x"), "is not the UUID of a GPU"),
        (log("<serial>1</serial><serial>2</serial>"), "<serial> is there twice in <gpu>"),
        (log("<ecc_errors><aggregate><dram_uncorrectable>-1</dram_uncorrectable></aggregate>"
             "</ecc_errors>"), "cannot be counted"),
    ):  # fmt: skip
        assert says in refused(text)


def test_elements_may_be_nested_forty_deep():
    def nested(depth: int) -> str:
        return log("<a>" * depth + "</a>" * depth)

    assert guest_nvidia_smi.parse(nested(38)).gpus
    assert "nested too deeply" in refused(nested(39))


def test_only_the_dtd_of_nvidia_smi_may_be_named():
    for version in ("nvsmi_device.dtd", "nvsmi_device_v13.dtd"):
        doctype = f'<!DOCTYPE nvidia_smi_log SYSTEM "{version}">'
        assert guest_nvidia_smi.parse(log(doctype=doctype)).gpus
    assert "not nvidia-smi's" in refused(log(doctype="<!DOCTYPE nvidia_smi_log>"))
