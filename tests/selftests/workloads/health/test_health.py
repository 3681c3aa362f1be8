"""What is asked of an idle GPU, and what each answer of the driver is taken for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.absence import Kind
from fixtures.records.model import Measurement
from fixtures.workloads.devices import devices, nvml_fields
from fixtures.workloads.health import health
from tests.selftests.support import whys
from tests.selftests.workloads.health.made_up_nvml import (
    Driver,
    NVMLError,
    NVMLError_GpuIsLost,
    NVMLError_NotSupported,
)

pytestmark = pytest.mark.cpu

GPU = "gpu0"


def ask(metric: str, **answers: Any) -> tuple[Any, str]:
    return health.QUERIES[metric][1](Driver(**answers), GPU)


def pids(*numbers: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=n) for n in numbers]


def running(compute: list[Any], graphics: list[Any], used: int = 0) -> dict[str, Any]:
    return {
        "nvmlDeviceGetComputeRunningProcesses_v3": compute,
        "nvmlDeviceGetGraphicsRunningProcesses_v3": graphics,
        "nvmlDeviceGetMemoryInfo": lambda _, version: SimpleNamespace(used=used),
    }


def test_processes_and_memory_without_one_are_told():
    assert ask("foreign_processes", **running([], [])) == (0, "")
    assert ask("foreign_processes", **running(pids(7), pids(9))) == (2, "processes 7, 9")
    assert ask("leaked_memory", **running([], [], (1 << 20) - 1)) == (0, "")
    mib, note = ask("leaked_memory", **running([], [], 5 << 20))
    assert (mib, note[:5]) == (5, "5 MiB")
    with pytest.raises(NVMLError) as in_use:
        ask("leaked_memory", **running(pids(7), []))
    assert in_use.value.value == Driver.NVML_ERROR_IN_USE


def test_modes_that_change_at_the_next_reset_are_pending():
    for metric, function in (("ecc_mode", "EccMode"), ("mig", "MigMode")):
        name = f"nvmlDeviceGet{function}"
        assert ask(metric, **{name: (1, 1)}) == ("enabled", "")
        assert ask(metric, **{name: (0, 0)}) == ("disabled", "")
        for now, later, says in (
            (1, 0, "enabled, and disabled"), (0, 1, "disabled, and enabled"),
        ):  # fmt: skip
            state, note = ask(metric, **{name: (now, later)})
            assert state == "pending"
            assert says in note


def test_errors_of_the_memory_are_counted_by_kind_since_and_place():
    asked: list[tuple[Any, ...]] = []

    def count(_: Any, *which: int) -> int:
        asked.append(which)
        return 4

    for metric in ("ecc_uncorrected", "ecc_corrected"):
        assert ask(metric, nvmlDeviceGetTotalEccErrors=count) == (4, "")
    for metric in ("ecc_sram", "ecc_sram_corrected"):
        assert ask(metric, nvmlDeviceGetMemoryErrorCounter=count) == (4, "")
    # nvml.h: uncorrected 1, corrected 0; since the last reset 0, ever 1; SRAM 7.
    assert asked == [(1, 0), (0, 0), (1, 1, 7), (0, 0, 7)]


def test_remapped_rows_are_pending_or_failed():
    for rows, pending, failed in (
        ((1, 2, 0, 0), "none", "none"), ((1, 2, 1, 0), "pending", "none"),
        ((1, 2, 0, 1), "none", "failed"),
    ):  # fmt: skip
        for metric, state in (("remap_pending", pending), ("remap_failed", failed)):
            found, note = ask(metric, nvmlDeviceGetRemappedRows=rows)
            assert found == state
            assert note.startswith("rows remapped: 1 after corrected, 2") is (state != "none")
    for banks in (0, 3):
        histogram = SimpleNamespace(none=banks)
        found, note = ask("remap_headroom", nvmlDeviceGetRowRemapperHistogram=histogram)
        assert (found, note[:7]) == (banks, "3 banks" if banks else "")


def test_actions_and_modes_are_named_and_new_ones_by_number(monkeypatch: pytest.MonkeyPatch):
    action = [0]
    monkeypatch.setattr(nvml_fields, "read_field", lambda *_: action[0])
    for number, name in (
        (0, "none"), (1, "reset the GPU"), (7, "reboot the system"), (8, "action 8"),
    ):  # fmt: skip
        action[0] = number
        assert ask("recovery_action") == (name, "")
    for number, name in (
        (0, "default"), (2, "prohibited"), (3, "exclusive process"), (4, "mode 4"),
    ):  # fmt: skip
        assert ask("compute_mode", nvmlDeviceGetComputeMode=number) == (name, "")
    assert ask("persistence", nvmlDeviceGetPersistenceMode=1) == ("enabled", "")
    assert ask("persistence", nvmlDeviceGetPersistenceMode=0) == ("disabled", "")


def test_a_power_limit_beside_the_default_is_shown():
    name = "nvmlDeviceGetPowerManagement"
    for limit, found in ((700_000, "default"), (650_000, "650 of 700 W")):
        answers = {f"{name}Limit": limit, f"{name}DefaultLimit": 700_000}
        assert ask("power_limit", **answers) == (found, "")


def test_application_clocks_are_unset_where_they_are_the_default():
    def clocks(reasons: int, now: Any, default: int = 1980) -> str:
        answers = {
            "nvmlDeviceGetCurrentClocksEventReasons": reasons,
            "nvmlDeviceGetApplicationsClock": now if isinstance(now, Exception) else (
                lambda _, kind: {1: now}[kind]
            ),
            "nvmlDeviceGetDefaultApplicationsClock": lambda _, kind: {1: default}[kind],
        }  # fmt: skip
        value, note = ask("application_clocks", **answers)
        assert note == ""
        return str(value)

    assert clocks(0, 1980) == "unset"
    assert clocks(2, 1200) == "1200 of 1980 MHz"
    assert clocks(0x10, 1980) == "sync boost"
    assert clocks(2, NVMLError_NotSupported()) == "set"
    with pytest.raises(NVMLError_NotSupported):
        clocks(4, NVMLError_NotSupported())


def answer(us: float = 20.0, error: str = "", refused: int = 0) -> SimpleNamespace:
    gaps = [SimpleNamespace(why="NotSupported")] * refused
    return SimpleNamespace(us=us, error=error, call="power" if error else "", refused=gaps)


def test_a_gpu_that_answers_one_question_is_there(monkeypatch: pytest.MonkeyPatch):
    for given, found in (
        (answer(), ("yes", "")), (answer(refused=2), ("yes", "")),
        (answer(error="GpuIsLost"), ("GpuIsLost", "power: GpuIsLost")),
    ):  # fmt: skip
        monkeypatch.setattr(health, "ask", lambda *_, given=given: given)
        assert ask("answers") == found
    monkeypatch.setattr(health, "ask", lambda *_: answer(refused=3))
    with pytest.raises(nvml_fields.NotOffered, match="NotSupported to all 3 questions"):
        ask("answers")


def test_twenty_answers_are_timed_and_an_error_is_no_time(monkeypatch: pytest.MonkeyPatch):
    paused: list[float] = []
    monkeypatch.setattr(health.time, "sleep", paused.append)
    monkeypatch.setattr(health, "ask", lambda *_: answer())
    found = health._answer_times(Driver(), GPU)
    assert isinstance(found, Measurement)
    assert (found.metric, found.unit, found.samples) == ("answer_time", "us", [20.0] * 20)
    assert len(found.ended) == 20
    assert paused == [0.002] * 20
    monkeypatch.setattr(health, "ask", lambda *_: answer(error="GpuIsLost"))
    why = health._answer_times(Driver(), GPU)
    assert isinstance(why, str)
    assert "GpuIsLost" in why


def run(monkeypatch: pytest.MonkeyPatch, *metrics: str, gpu: Any = GPU, **answers: Any) -> Any:
    driver, facts = Driver(**answers), {"own": {"uuid": "GPU-1"}}
    monkeypatch.setattr(
        devices, "gpu_handle_and_facts", lambda *_: (driver, gpu, "GpuIsLost", dict(facts))
    )
    ranks: Any = SimpleNamespace(node="n0", local_rank=0)
    return health.run(ranks, list(metrics))


def test_every_metric_has_its_value_or_why_it_has_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(health, "ask", lambda *_: answer())
    monkeypatch.setattr(health.time, "sleep", lambda _: None)
    found = run(
        monkeypatch, "leaked_memory", "answer_time", "mig", "persistence", "ecc_mode",
        nvmlDeviceGetMigMode=NVMLError_NotSupported(), nvmlDeviceGetNumaNodeId=1,
        nvmlDeviceGetPersistenceMode=NVMLError_GpuIsLost(), nvmlDeviceGetEccMode=(1, 1),
        **running([], [], 5 << 20),
    )  # fmt: skip
    assert [(m.metric, m.value, m.unit) for m in found.measurements] == [
        ("leaked_memory", 5, "MiB"), ("answer_time", None, "us"), ("ecc_mode", "enabled", "state"),
    ]  # fmt: skip
    assert found.measurements[0].notes[0].startswith("GPU-1 5 MiB in use")
    assert found.measurements[0].conditions == {"memory_owner": "system"}
    assert (found.measurements[2].notes, found.measurements[2].conditions) == ([], {})
    assert whys(found, Kind.NOT_THERE) == {"mig": "NotSupported"}
    assert whys(found, Kind.FAULT) == {"persistence": "GpuIsLost"}
    found = run(monkeypatch, "leaked_memory", **running([], []))
    assert found.measurements[0].conditions == {}
    monkeypatch.setattr(health, "ask", lambda *_: answer(error="GpuIsLost"))
    found = run(monkeypatch, "answer_time")
    assert found.measurements == []
    assert "GpuIsLost" in whys(found, Kind.FAULT)["answer_time"]


def test_a_gpu_that_is_gone_answers_with_the_driver_s_error(monkeypatch: pytest.MonkeyPatch):
    found = run(monkeypatch, "answers", "mig", gpu=None)
    assert [(m.metric, m.value) for m in found.measurements] == [("answers", "GpuIsLost")]
    assert whys(found, Kind.FAULT) == {"mig": "GpuIsLost"}
    assert run(monkeypatch, "mig", gpu=None).measurements == []
