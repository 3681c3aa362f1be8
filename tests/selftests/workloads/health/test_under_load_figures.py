"""What is made of two readings of a GPU and of the samples between them."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.absence import Kind
from fixtures.workloads.devices import devices
from fixtures.workloads.devices.known import Findings, Known, Missing
from fixtures.workloads.health import under_load
from fixtures.workloads.health.final_load import Load
from fixtures.workloads.telemetry.gpu_samples import LATE_US, GpuSamples, Sample
from tests.selftests.support import whys
from tests.selftests.workloads.health.made_up_nvml import (
    Driver,
    NVMLError_GpuIsLost,
    NVMLError_Timeout,
)

pytestmark = pytest.mark.cpu

GAP = Missing("GpuIsLost")
COUNTERS = (
    "dram_volatile", "dram_aggregate", "sram_volatile", "sram_aggregate", "pcie_replays",
    "ecc_volatile", "ecc_aggregate", "nvlink_errors", "remapped_rows", "remap_pending",
    "remap_failed", "power_cap_ns", "sw_thermal_ns", "hw_thermal_ns", "power_brake_ns",
)  # fmt: skip


def reading(clock: float, **parts: Any) -> Any:
    """All counters at 0, but for those that are given."""
    totals = {name: {"total": 0} for name in COUNTERS}
    totals |= {n: p if isinstance(p, dict) else {"total": p} for n, p in parts.items()}
    return {"clock": clock, "totals": totals, "silent": {}, "clocks": []}


def findings() -> Findings:
    return Findings("GPU-1", under_load.WORKLOAD.metrics)


def errors(**after: Any) -> dict[str, tuple[Any, list[str]]]:
    found = findings()
    before = {n: dict.fromkeys(p, 0) for n, p in after.items() if isinstance(p, dict)}
    under_load._add_errors(found, reading(0.0, **before), reading(120.0, **after))
    return {m: (row.value, row.notes) for m, row in found.measurements.items()}


def test_counters_that_stand_still_have_no_note():
    assert all(found == (0, []) for found in errors().values())
    assert set(errors()) == {
        "ecc_rate", "ecc_sram_rate", "pcie_replays", "ecc_new", "nvlink_errors", "remap_new",
    }  # fmt: skip


def test_a_rise_is_told_with_its_counter():
    assert errors(dram_aggregate=8)["ecc_rate"] == (
        4, ["GPU-1 dram_aggregate: 8 more in 2 min"],
    )  # fmt: skip
    assert errors(ecc_volatile=3)["ecc_new"] == (3, ["GPU-1 ecc_volatile: 3"])
    links = {f"link {k} replays": 2 for k in range(5)}
    value, (note,) = errors(nvlink_errors=links)["nvlink_errors"]
    assert value == 10
    assert note.startswith("GPU-1 10 replays and recoveries, 5 a minute (link 0 replays: 2, ")
    assert "link 3" in note
    assert "link 4" not in note


def test_replaced_rows_and_states_that_are_new_are_events():
    for after, value, says in (
        ({"remapped_rows": 2}, 2, "2 rows remapped during the run"),
        ({"remap_pending": 1}, 1, "a reset is due"),
        ({"remapped_rows": 1, "remap_pending": 1, "remap_failed": 1}, 2, "one failed"),
    ):  # fmt: skip
        found, (note,) = errors(**after)["remap_new"]
        assert found == value
        assert says in note


def test_a_power_cap_is_noted_beside_the_heat_from_one_percent_of_the_time_on():
    def thermal(capped: int, heat: int = 0) -> list[str]:
        found = findings()
        after = reading(100.0, power_cap_ns=capped, sw_thermal_ns=heat)
        load = Load(reading(50.0))
        samples = [GpuSamples(0.0, 100.0), GpuSamples(50.0, 100.0)]
        under_load._add_throttling(found, reading(0.0), load, after, samples)
        assert set(found.measurements) == {"thermal", "power_brake"}
        assert found.measurements["power_brake"].notes == []
        return found.measurements["thermal"].notes

    assert thermal(10**9 - 1) == []
    assert thermal(10**9) == ["GPU-1 power cap 1 % of the time"]


def test_states_that_were_seen_once_are_not_missing():
    found = findings()
    load = Load(reading(0.0), states={"pcie_width": (16, "")}, silent={"pcie_width": GAP})
    load.silent["pcie_generation"] = GAP
    under_load._add_states(found, load)
    assert found.measurements["pcie_width"].value == 16
    assert found.missing == {"pcie_generation": GAP}


def test_figures_for_the_other_ranks_have_the_gpu_s_name_where_they_are_not_known():
    found = findings()
    found.add("ecc_rate", 3)
    found.missing["pcie_replays"] = GAP
    load = Load(reading(0.0), temperature=61)
    figures = under_load._own_figures(found, load)
    assert figures == {
        "ecc_siblings": Known(3), "pcie_siblings": Known(0, gap=Missing("GPU-1 GpuIsLost")),
        "thermal_siblings": Known(61),
    }  # fmt: skip
    load.temperature = GAP
    assert under_load._own_figures(found, load)["thermal_siblings"].gap is not None
    found.measurements["ecc_rate"] = replace(found.measurements["ecc_rate"], value=None)
    assert under_load._own_figures(found, load)["ecc_siblings"] == Known(0)


def test_a_gpu_that_is_alone_has_no_siblings():
    found = findings()
    own = {metric: {"value": 5, "gap": None} for metric in under_load.SIBLINGS}
    under_load._add_siblings(found, [own], 0)
    assert found.measurements == {}
    assert "no two GPUs of the node show a temperature" in found.missing["thermal_siblings"].why
    assert found.missing["thermal_siblings"].of_node
    other = {metric: {"value": 2, "gap": None} for metric in under_load.SIBLINGS}
    under_load._add_siblings(found, [own, other], 0)
    row = found.measurements["thermal_siblings"]
    assert (row.value, row.notes) == (
        3, ["GPU-1 5 C, the other GPUs of the node 2 C (median)"],
    )  # fmt: skip
    found = findings()
    under_load._add_siblings(found, [own, own], 1)
    assert (found.measurements["thermal_siblings"].value, found.missing) == (0, {})
    assert found.measurements["thermal_siblings"].notes == []
    gap = {"why": "GpuIsLost", "kind": "fault of the node"}
    found = findings()
    for value, measured in ((0, False), (5, True)):
        lower = {metric: {"value": value, "gap": gap} for metric in under_load.SIBLINGS}
        under_load._add_siblings(found, [lower, other], 0)
        assert ("ecc_siblings" in found.measurements) is measured
        assert "GpuIsLost" in found.missing["ecc_siblings"].why


def samples(*answers: float | str, end: float = 100.0) -> GpuSamples:
    """A sample a second; a text is an error in place of an answer."""
    made = [
        Sample(float(k), 20.0, a) if isinstance(a, str) else Sample(float(k), a)
        for k, a in enumerate(answers)
    ]
    return GpuSamples(0.0, end, made)


def test_answers_are_those_of_the_slower_span_and_every_nth_of_many():
    found = findings()
    whole, end = samples(*[20.0] * 101, end=101), samples(*[50.0] * 30, end=30)
    under_load._add_answer_time(found, whole, end)
    row = found.measurements["answer_time"]
    assert (row.samples, row.notes) == ([50.0] * 30, [])
    under_load._add_answer_time(found, whole, samples(*[5.0] * 30, end=30))
    assert len(found.measurements["answer_time"].samples) == 51
    under_load._add_answer_time(found, samples(*[20.0] * 100), samples(*[5.0] * 30, end=30))
    assert len(found.measurements["answer_time"].samples) == 100
    broken = samples(*[20.0] * 50, "GpuIsLost", *[20.0] * 49)
    under_load._add_answer_time(found, broken, samples(*[5.0] * 30, end=30))
    (note,) = found.measurements["answer_time"].notes
    assert note.startswith("GPU-1 GpuIsLost instead of an answer")
    for whole, end, says in (
        (samples(20.0), samples(5.0), "1 sample in"),
        (samples(*[20.0] * 100), samples("GpuIsLost"), "no answer in the final load"),
    ):
        found = findings()
        under_load._add_answer_time(found, whole, end)
        assert found.measurements == {}
        assert says in found.missing["answer_time"].why


def test_late_answers_are_a_share_of_the_time_or_of_the_final_load():
    def late(whole: GpuSamples, end: GpuSamples) -> Findings:
        found = findings()
        under_load._add_answer_late(found, whole, end)
        return found

    fine, slow = samples(*[20.0] * 100), LATE_US + 1.0
    found = late(fine, samples(*[20.0] * 10, end=10))
    row = found.measurements["answer_late"]
    assert (row.value, row.notes, found.missing) == (0, [], {})
    row = late(samples(*[20.0] * 99, slow), samples(20.0)).measurements["answer_late"]
    assert row.value == 1
    assert row.notes[0].startswith(f"GPU-1 up to {slow / 1e6:.2g} s for three questions")
    half = late(fine, samples("GpuIsLost", 20.0, end=2)).measurements["answer_late"]
    assert half.value == 50, "half of the answers in the final load"
    most = late(fine, samples(slow, slow, 20.0, end=3)).measurements["answer_late"]
    assert most.value == pytest.approx(66.667)
    few = late(fine, samples(slow, 20.0, 20.0, end=3)).measurements["answer_late"]
    assert few.value == 0, "single late ones are usual"
    edge = late(fine, samples(float(LATE_US), float(LATE_US), end=2)).measurements["answer_late"]
    assert edge.value == 0
    seldom = late(samples(2e6, 20.0), samples(20.0))
    assert seldom.measurements["answer_late"].value == 2, "two of a hundred seconds"
    assert "2 samples" in seldom.missing["answer_late"].why
    with_error = late(samples(*[20.0] * 99, "GpuIsLost"), samples(20.0))
    assert with_error.measurements["answer_late"].notes[0].startswith("GPU-1 GpuIsLost instead")


def xids(*numbers: int, error: Exception | None = None, gap: Missing | None = None) -> Findings:
    events = iter(numbers)

    def wait(_: Any, timeout_ms: int) -> Any:
        number = next(events, None)
        if number is None:
            raise error or NVMLError_Timeout()
        return SimpleNamespace(eventData=number)

    found = findings()
    driver = Driver(nvmlEventSetWait_v2=wait)
    under_load._add_xids(found, driver, {"events": "set"}, gap)
    return found


def test_xids_are_counted_but_for_those_of_programs():
    row = xids(79, 43, 79).measurements["xid"]
    assert row.value == 2
    assert row.notes[0].index("Xid 43") < row.notes[0].index("Xid 79")
    assert xids().measurements["xid"].notes == []
    lost = xids(79, error=NVMLError_GpuIsLost())
    assert (lost.measurements["xid"].value, lost.missing["xid"]) == (1, GAP)
    assert xids(gap=GAP).missing == {"xid": GAP}
    assert xids(*[79] * 1500).measurements["xid"].value == 1000
    found = findings()
    under_load._add_xids(found, None, {"events": None, "events_why": GAP})
    assert found.missing == {"xid": GAP}


def test_events_are_registered_before_the_first_workload(monkeypatch: pytest.MonkeyPatch):
    registered: list[Any] = []
    driver = Driver(
        nvmlEventSetCreate="set", nvmlDeviceRegisterEvents=lambda *given: registered.append(given)
    )
    monkeypatch.setattr(devices, "nvml", lambda: driver)
    monkeypatch.setattr(devices, "gpu_handle", lambda _: ("h", ""))
    monkeypatch.setattr(devices, "query_nvml", lambda *_: "GPU-1")
    monkeypatch.setattr(under_load.gpu_counters, "read", lambda *_: {"clock": 1.0})
    ranks: Any = SimpleNamespace(local_rank=0)
    assert under_load.begin(ranks) == {"events": "set", "uuid": "GPU-1", "clock": 1.0}
    assert registered == [("h", 8, "set")]
    driver.answers["nvmlEventSetCreate"] = NVMLError_GpuIsLost()
    monkeypatch.setattr(devices, "query_nvml", lambda *_: None)
    notes = under_load.begin(ranks)
    assert (notes["events"], notes["events_why"], notes["uuid"]) == (None, GAP, "")
    monkeypatch.setattr(devices, "gpu_handle", lambda _: (None, "GpuIsLost"))
    assert under_load.begin(ranks) == {"why": "GpuIsLost"}
    monkeypatch.setattr(devices, "gpu_handle", lambda _: ("h", "no NVML"))
    monkeypatch.setattr(devices, "nvml", lambda: None)
    assert under_load.begin(ranks) == {"why": "no NVML"}


def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, *metrics: str, **begun: Any) -> Any:
    """The result of a rank that is alone, and what it sent to the others of its node."""
    sent: list[Any] = []

    def gather(item: Any) -> list[Any]:
        sent.append(item)
        return [item]

    monkeypatch.setattr(devices, "nvml_facts_of_rank", lambda _: {"uuid": "GPU-own"})
    monkeypatch.setattr(devices, "emulated", lambda: True)
    ranks: Any = SimpleNamespace(
        local_rank=0, node="n0", directory=tmp_path, gather_node=gather,
        begin_notes={"under_load": begun} if begun else {},
    )  # fmt: skip
    return under_load.run(ranks, list(metrics)), sent


def test_a_gpu_that_was_lost_is_told_and_the_others_do_not_wait(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
):
    driver = Driver(nvmlEventSetWait_v2=NVMLError_Timeout())
    monkeypatch.setattr(devices, "nvml", lambda: driver)
    monkeypatch.setattr(devices, "gpu_handle", lambda _: (None, "GpuIsLost"))
    begun = {**reading(0.0), "events": "set", "uuid": "GPU-1"}
    asked = ("answer_late", "xid", "thermal", "ecc_siblings")
    found, sent = job(monkeypatch, tmp_path, *asked, **begun)
    assert [(m.metric, m.value) for m in found.measurements] == [("answer_late", 100)]
    assert set(whys(found, Kind.FAULT)) == {"xid", "thermal", "ecc_siblings"}
    assert sent[0]["ecc_siblings"]["gap"]["why"] == "GPU-1 GpuIsLost"
    found, sent = job(monkeypatch, tmp_path, "thermal", why="it was never there")
    assert (found.measurements, sent) == ([], [])
    assert whys(found, Kind.FAULT) == {"thermal": "GpuIsLost"}
    monkeypatch.setattr(devices, "gpu_handle", lambda _: ("h", ""))
    for begun, why in (({"why": "it was not there"}, "it was not there"), ({}, "no reading")):
        found, sent = job(monkeypatch, tmp_path, "thermal_siblings", **begun)
        assert whys(found, Kind.FAULT) == {"thermal_siblings": why}
        assert sent[0]["thermal_siblings"]["gap"]["why"] == f"GPU-own {why}"
    monkeypatch.setattr(devices, "nvml", lambda: None)
    with pytest.raises(RuntimeError, match="n0: no NVML"):
        job(monkeypatch, tmp_path, "thermal")


def test_a_rank_measures_between_two_readings_half_a_second_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
):
    waited: list[float] = []
    driver = Driver(nvmlEventSetWait_v2=NVMLError_Timeout())
    monkeypatch.setattr(devices, "nvml", lambda: driver)
    monkeypatch.setattr(devices, "gpu_handle", lambda _: ("h", ""))
    monkeypatch.setattr(under_load.time, "sleep", waited.append)
    monkeypatch.setattr(under_load.time, "monotonic", lambda: 100.125)
    monkeypatch.setattr(under_load.gpu_counters, "read", lambda *_: reading(220.0, pcie_replays=4))
    load = Load(reading(210.0), temperature=61)
    monkeypatch.setattr(under_load.final_load, "run", lambda *_: load)
    begun = {**reading(100.0), "events": "set", "uuid": "GPU-1"}
    found, sent = job(monkeypatch, tmp_path, "pcie_replays", "xid", **begun)
    assert waited == [0.375]
    assert [(m.metric, m.value) for m in found.measurements] == [("pcie_replays", 2), ("xid", 0)]
    assert (found.facts["minutes"], found.facts["samples"], sent) == (2, 0, [])
    assert found.facts["after"]["pcie_replays"] == 4
    assert set(found.facts["clocks"]) == {"before", "during", "after"}
    _, sent = job(monkeypatch, tmp_path, "pcie_siblings", **begun)
    assert (sent[0]["pcie_siblings"]["value"], sent[0]["thermal_siblings"]["value"]) == (2, 61)
    assert math.isclose(sent[0]["ecc_siblings"]["value"], 0)
