"""Samples of a GPU in a window of time: what they are, cover and add up to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

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
        gpu_samples.known, "of_error", lambda error: Missing(str(error), offered=False)
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


def test_a_sample_has_the_answer_and_the_state_of_the_clocks_where_it_is_shown(monkeypatch):
    monkeypatch.setattr(gpu_samples.nvml_fields, "refusals", lambda nvml: (NVMLError,))
    monkeypatch.setattr(gpu_samples.nvml_fields, "clock_reasons", lambda nvml, gpu: 0x40)
    found = gpu_samples.take(driver(monkeypatch, nvmlDeviceGetPowerUsage="GpuIsLost"), "gpu")
    assert (found.error, found.reasons, found.late) == ("GpuIsLost", 0x40, True)

    def refuse(nvml: Any, gpu: Any) -> int:
        raise NVMLError

    monkeypatch.setattr(gpu_samples.nvml_fields, "clock_reasons", refuse)
    found = gpu_samples.take(driver(monkeypatch), "gpu")
    assert (found.error, found.reasons, found.late) == ("", None, False)


def test_an_answer_is_late_after_a_tenth_of_a_second():
    assert not Sample(0, 100_000.0).late
    assert Sample(0, 100_000.1).late
    assert Sample(0, 5.0, "GpuIsLost").late


def test_samples_are_merged_chosen_and_counted():
    some = GpuSamples(0, 10, [Sample(1, 20.0), Sample(5, 40.0, "GpuIsLost")])
    more = some.merged([Sample(3, 90.0)])
    assert [s.clock for s in more.samples] == [1, 3, 5]
    assert (more.start, more.end) == (0, 10)
    assert [s.clock for s in more.answered.samples] == [1, 3]
    assert more.errors == "GpuIsLost instead of an answer, 1 of 3 times"
    assert more.answered.errors == ""
    assert (some.percent_failed, more.median_us) == (50.0, 40.0)
    none = GpuSamples(0, 10)
    assert (none.percent_failed, none.median_us) == (0, 0)


def test_late_answers_take_their_share_of_the_window():
    window = GpuSamples(0, 10, [Sample(1, 2e6), Sample(4, 100_000.0), Sample(5, 500_000.0)])
    assert window.least_percent_late == pytest.approx(25.0)
    assert GpuSamples(0, 1, [Sample(0, 2e6)]).least_percent_late == 100.0


def test_bad_time_is_the_time_until_the_next_sample_two_seconds_at_most():
    window = GpuSamples(0, 10, [Sample(1, 0.0, reasons=1), Sample(2, 0.0), Sample(9, 0.0)])
    # They cover 1, 2 and 1 s.
    assert window.percent(lambda s: s.reasons == 1) == pytest.approx(25.0)


@pytest.mark.parametrize(("count", "step", "least"), [(20, 2.0, 95.0), (19, 2.0, 0.0),
                                                      (20, 2.001, 0.0)])  # fmt: skip
def test_between_two_bad_samples_next_to_each_other_all_is_bad(count, step, least):
    samples = [Sample(k * step, 0.0) for k in range(count)]
    window = GpuSamples(0, count * step, samples)
    assert window.least_percent(lambda s: True) == pytest.approx(least)
    assert window.least_percent(lambda s: s.clock > 0 and s.clock < 3 * step) == pytest.approx(
        least and 5.0
    )


@pytest.mark.parametrize(
    ("first", "end", "says"),
    [(12.0, 112.0, ""), (12.1, 112.1, "samples cover 102 of 112 s"), (42.0, 4042.0, ""),
     (43.0, 4043.0, "the largest gap between them has 43 s")],
)  # fmt: skip
def test_ten_seconds_or_a_hundredth_of_the_window_may_lack_samples(first, end, says):
    """A sample covers two seconds, and the first two are those before it."""
    count = int(end - first)
    samples = [Sample(first + k, 0.0) for k in range(count)]
    gap = GpuSamples(0, end, samples).gap
    assert gap == "" if not says else says in gap


def test_too_few_samples_leave_a_gap():
    assert GpuSamples(0, 8).gap == "no samples in 8.0 s"
    few = GpuSamples(0, 4, [Sample(k * 0.2, 0.0) for k in range(19)])
    assert few.gap == "19 samples in 4.0 s, at least 20 are needed"
    assert few.merged([Sample(3.8, 0.0)]).gap == ""
