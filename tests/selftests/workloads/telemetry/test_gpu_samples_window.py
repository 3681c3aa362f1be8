"""Samples of a GPU: what the driver is asked for one, and what those of a window add up to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.absence import Kind
from fixtures.workloads.devices.known import Missing
from fixtures.workloads.telemetry import gpu_samples
from fixtures.workloads.telemetry.gpu_samples import GpuSamples, Sample

pytestmark = pytest.mark.cpu


class NVMLError(Exception):
    """As pynvml has it."""


def driver(monkeypatch: pytest.MonkeyPatch, **refusals: str) -> Any:
    """A driver that answers all questions but those for which an error is given."""

    def answer(name: str) -> Any:
        def ask(handle: Any, *more: Any) -> int:
            if name in refusals:
                raise NVMLError(refusals[name])
            return 0

        return ask

    monkeypatch.setattr(
        gpu_samples.known, "of_error", lambda error: Missing(str(error), Kind.NOT_OFFERED)
    )
    return SimpleNamespace(NVMLError=NVMLError, **{q: answer(q) for q in gpu_samples.QUESTIONS})


def test_a_question_that_is_not_supported_is_answered_and_an_error_ends_the_questions(monkeypatch):
    whole = gpu_samples.ask(driver(monkeypatch), "gpu")
    assert (whole.error, whole.call, whole.refused) == ("", "", ())
    assert 0 <= whole.us < gpu_samples.LATE_US
    declined = gpu_samples.ask(driver(monkeypatch, nvmlDeviceGetMemoryInfo="NotSupported"), "gpu")
    assert (declined.error, declined.call) == ("", "")
    assert [refusal.why for refusal in declined.refused] == ["NotSupported"]
    lost = gpu_samples.ask(
        driver(monkeypatch, nvmlDeviceGetMemoryInfo="GpuIsLost", nvmlDeviceGetPowerUsage="Other"),
        "gpu",
    )
    assert (lost.error, lost.call, lost.refused) == ("GpuIsLost", "nvmlDeviceGetMemoryInfo", ())


def test_samples_are_merged_chosen_and_counted():
    some = GpuSamples(0, 10, [Sample(1, 20.0), Sample(5, 40.0, "GpuIsLost")])
    more = some.merged([Sample(3, 90.0)])
    assert [s.clock for s in more.samples] == [1, 3, 5]
    assert (more.start, more.end) == (0, 10)
    assert [s.clock for s in more.answered.samples] == [1, 3]
    assert more.errors == "GpuIsLost instead of an answer, 1 of 3 times"
    assert (some.percent_failed, more.median_us) == (50.0, 40.0)
    none = GpuSamples(0, 10)
    assert (none.percent_failed, none.median_us) == (0, 0)


def test_late_answers_take_their_share_of_the_window():
    window = GpuSamples(0, 10, [Sample(1, 2e6), Sample(4, 100_000.0), Sample(5, 500_000.0)])
    assert window.least_percent_late == pytest.approx(25.0)
    assert GpuSamples(0, 1, [Sample(0, 2e6)]).least_percent_late == 100.0
