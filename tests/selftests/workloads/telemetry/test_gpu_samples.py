"""Samples of a GPU and counters of time judge what they cover; what is left out is not measured."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.absence import Kind
from fixtures.verdict.model import Outcome, Verdict
from fixtures.workloads.devices.known import Known, Missing
from fixtures.workloads.telemetry import gpu_counters, gpu_samples
from fixtures.workloads.telemetry.gpu_samples import THROTTLING, GpuSamples, Sample, throttled
from tests.selftests import emulated_gpus
from tests.selftests.emulated_gpus import seen
from tests.selftests.emulated_ranks import UUIDS

pytestmark = pytest.mark.cpu

FAIL, PASS, NOT_MEASURED = Outcome.FAIL, Outcome.PASS, Outcome.NOT_MEASURED
JOB_S = 600
COUNTS, COUNTS_NOT = "580.159.04", "550.127.05"
"""Drivers with and without counters of the time that a GPU was slowed down."""
HEAT, LOST = 0x40, {"answer_us": 20.0, "reasons": None, "error": "GpuIsLost"}
KEYS = {
    "time": "health.answer_time_load", "late": "health.answer_late", "heat": "health.thermal",
    "brake": "health.power_brake",
}  # fmt: skip


def judged(library: Path, folder: Path, sampled: Iterable[Any], **how: Any) -> dict[str, Verdict]:
    """The verdicts on a job of ten minutes, of which the telemetry wrote this."""
    records = emulated_gpus.measured(library, folder, seconds=JOB_S, sampled=sampled, **how)
    return emulated_gpus.verdicts(records)


def outcomes(found: dict[str, Verdict]) -> dict[str, Outcome]:
    return {name: found[key].outcome for name, key in KEYS.items()}


def of(time: Outcome, late: Outcome, heat: Outcome, brake: Outcome) -> dict[str, Outcome]:
    return {"time": time, "late": late, "heat": heat, "brake": brake}


def hang() -> Iterable[Any]:
    return chain(seen(0, 5), seen(JOB_S - 100, JOB_S))


@pytest.mark.parametrize("driver", [COUNTS, COUNTS_NOT])
def test_a_telemetry_of_the_whole_job_passes_also_with_pauses(
    library: Path, tmp_path: Path, driver: str
) -> None:
    whole = chain(seen(2, 100), seen(104, 300), seen(301, JOB_S))
    assert set(outcomes(judged(library, tmp_path, whole, driver=driver)).values()) == {PASS}


@pytest.mark.parametrize(
    ("sampled", "says"),
    [
        (lambda: seen(0, 5), "samples cover"),
        (hang, "the largest gap between them has 495 s"),
        (lambda: (), "samples cover"),
        (lambda: chain(seen(0, 5), ((t, a, {}) for t, a, _ in seen(5, JOB_S))), "samples cover"),
    ],
    ids=["died", "hung", "never began", "one GPU vanished"],
)
def test_what_the_telemetry_did_not_see_is_not_measured(
    library: Path, tmp_path: Path, sampled: Any, says: str
) -> None:
    found = judged(library, tmp_path, sampled(), driver=COUNTS_NOT)
    assert set(outcomes(found).values()) == {NOT_MEASURED}
    assert all(says in found[key].reason for key in KEYS.values())


def test_counters_tell_the_heat_where_the_telemetry_does_not(library: Path, tmp_path: Path) -> None:
    found = judged(library, tmp_path, seen(0, 5), driver=COUNTS)
    assert outcomes(found) == of(NOT_MEASURED, NOT_MEASURED, PASS, PASS)


@pytest.mark.waits("the emulated driver answers slowly, which is what is judged")
@pytest.mark.parametrize("until", [5, JOB_S])
def test_a_driver_that_is_slow_at_the_end_is_red_whatever_was_before(
    library: Path, tmp_path: Path, until: int
) -> None:
    # The slow end takes its time: a telemetry that is alive sees all of it.
    sampled = seen(0, until + 60 if until == JOB_S else until)
    found = judged(library, tmp_path, sampled, breaks=["1.delay=120"])
    red = {key: v for key, v in found.items() if v.outcome is FAIL}
    # Where the telemetry died the other GPU has no time of its answers, and the row is not whole.
    assert red.keys() == {KEYS["late"]} | ({KEYS["time"]} if until == JOB_S else set())
    assert [v.worst["uuid"] for v in red.values() if v.worst] == [UUIDS[1]] * len(red)


def test_a_torn_line_costs_that_line_only(library: Path, tmp_path: Path) -> None:
    hot = chain(seen(0, 300, reasons=HEAT), ['{"m": 12', "[]", "7"], seen(300, JOB_S, reasons=HEAT))
    found = judged(library, tmp_path, hot, driver=COUNTS_NOT)
    assert outcomes(found) == of(PASS, PASS, FAIL, PASS)
    assert found[KEYS["heat"]].value == pytest.approx(100, abs=1)


@pytest.mark.parametrize("at", [1, 2000])
def test_the_state_of_the_clocks_in_one_sample_is_not_that_of_the_job(
    library: Path, tmp_path: Path, at: int
) -> None:
    """Neither for the GPU nor against it."""
    silent = ["1.fail.nvmlDeviceGetCurrentClocksEventReasons=3"]
    for name, reasons in (("clean", 0), ("hot", HEAT)):
        folder = tmp_path / name
        folder.mkdir()
        lines = [
            (t, a, {**b, "reasons": reasons if k == at else None})
            for k, (t, a, b) in enumerate(seen(0, JOB_S))
        ]
        found = judged(library, folder, lines, driver=COUNTS_NOT, breaks=silent)
        assert outcomes(found) == of(PASS, PASS, NOT_MEASURED, NOT_MEASURED)
        assert "; 1 sample in 60" in found[KEYS["heat"]].reason


def test_three_samples_with_one_of_heat_accuse_nobody(library: Path, tmp_path: Path) -> None:
    lines = [(t, a, {**b, "reasons": HEAT * (t == 0.2)}) for t, a, b in seen(0, 0.6)]
    assert outcomes(judged(library, tmp_path, lines, driver=COUNTS_NOT))["heat"] is NOT_MEASURED


@pytest.mark.parametrize(("reasons", "outcome"), [(HEAT, FAIL), (0, PASS), (None, NOT_MEASURED)])
def test_a_counter_of_heat_that_was_reset_is_replaced_by_the_samples_of_the_job(
    library: Path, tmp_path: Path, reasons: int | None, outcome: Outcome
) -> None:
    found = judged(
        library, tmp_path, seen(0, JOB_S, {"reasons": reasons}), driver=COUNTS,
        before=["1.field.270=9000000000000"], breaks=["1.field.270=0"],
    )  # fmt: skip
    verdict = found[KEYS["heat"]]
    assert verdict.outcome is outcome
    assert any("reset during the run" in text for text in [verdict.reason, *verdict.notes])


@pytest.mark.parametrize(
    "breaks",
    [["1.lost=1"], ["1.fail.nvmlDeviceGetHandleByIndex_v2=15"], ["count=1"]],
    ids=["lost", "does not open", "count drops"],
)
def test_a_gpu_that_is_lost_in_mid_run_is_red_by_name(
    library: Path, tmp_path: Path, breaks: list[str]
) -> None:
    """However late: ten minutes of answers do not outweigh that there is none at the end."""
    found = judged(library, tmp_path, seen(0, JOB_S), breaks=breaks)
    red = {key for key, v in found.items() if v.outcome is FAIL}
    assert red == {"health.answer_late"}
    verdict = found["health.answer_late"]
    assert verdict.worst is not None
    assert verdict.worst["uuid"] == UUIDS[1]
    assert any(UUIDS[1] in note for note in verdict.notes)
    assert found["health.answer_time_load"].outcome is NOT_MEASURED
    assert found["health.xid"].outcome is NOT_MEASURED


def test_an_error_is_no_fast_answer(library: Path, tmp_path: Path) -> None:
    """Lost for most of the job, and back for the end of it."""
    lines = chain(seen(0, 50), seen(50, JOB_S - 50, LOST), seen(JOB_S - 50, JOB_S))
    found = judged(library, tmp_path, lines)
    assert outcomes(found) == of(NOT_MEASURED, FAIL, PASS, PASS)
    assert "GpuIsLost instead of an answer, 2,500 of 3,0" in found[KEYS["time"]].reason
    assert found[KEYS["late"]].value == pytest.approx(83, abs=1)


def test_a_single_error_is_named_and_no_verdict(library: Path, tmp_path: Path) -> None:
    lines = [(t, a, LOST if k == 700 else b) for k, (t, a, b) in enumerate(seen(0, JOB_S))]
    found = judged(library, tmp_path, lines)
    assert set(outcomes(found).values()) == {PASS}
    for name in ("time", "late"):
        assert any("1 of 3,0" in note for note in found[KEYS[name]].notes)


def test_a_gpu_that_was_lost_before_has_no_answer_time(library: Path, tmp_path: Path) -> None:
    found = emulated_gpus.verdicts(
        emulated_gpus.measured(library, tmp_path, before=["1.lost=1"])
    )  # fmt: skip
    assert found["health.answers"].outcome is FAIL
    assert found["health.answer_late"].outcome is FAIL
    for key in ("health.answer_time", "health.answer_time_load"):
        assert found[key].outcome is NOT_MEASURED
        assert "GpuIsLost instead of an answer, 20 of 20 times" in found[key].reason


def test_slow_answers_of_a_part_of_the_job_are_not_its_median(
    library: Path, tmp_path: Path
) -> None:
    """Ten slow seconds of ten minutes, of which the rest was not seen."""
    found = judged(library, tmp_path, seen(0, 10, answer_us=150_000))
    assert outcomes(found) == of(NOT_MEASURED, NOT_MEASURED, PASS, PASS)
    assert "at least" in found[KEYS["late"]].reason


def test_what_a_sample_saw_is_not_what_happened_in_the_gap_behind_it() -> None:
    """Two hot samples, each the last before a gap, say nothing of the seconds after them."""
    clocks = [*range(20), *range(60, 80), *range(120, 140)]
    hot = [Sample(100 + t, 20.0, "", HEAT * (t in (19, 79))) for t in clocks]
    assert GpuSamples(100, 240, hot).least_percent(lambda s: bool(s.reasons)) == 0
    both = [Sample(100 + t, 20.0, "", HEAT * (t < 15)) for t in clocks]
    least = GpuSamples(100, 240, both).least_percent(lambda s: bool(s.reasons))
    assert least == pytest.approx(100 * 14 / 140)


# --- by itself


def line(at: float, gpu: Any) -> str:
    return json.dumps({"m": at, "gpus": {"GPU-1": gpu}})


def test_samples_are_read_in_their_window_and_damaged_ones_left_out(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    good = {"answer_us": 20.0, "reasons": 0x40}
    lines = [line(k, good) for k in range(100, 105)]
    lines[1] = '{"m": 101'
    lines[2] = line(102, {"answer_us": float("nan"), "reasons": 0})
    lines[3] = line(103, {"answer_us": 20.0, "reasons": None, "error": "GpuIsLost"})
    path.write_text("\n".join(lines) + '\n{"m": 9')
    found = gpu_samples.recorded(path, "GPU-1", 100.0, 200.0)
    assert found.samples == [
        Sample(100, 20.0, "", 0x40), Sample(103, 20.0, "GpuIsLost"), Sample(104, 20.0, "", 0x40)
    ]  # fmt: skip
    assert gpu_samples.recorded(path, "GPU-1", 100.0, 103.5).samples == found.samples[:2]
    assert not gpu_samples.recorded(path, "GPU-2", 100.0, 200.0).samples
    assert not gpu_samples.recorded(tmp_path / "none", "GPU-1", 0, 1).samples


def test_a_wall_clock_that_is_set_back_moves_no_sample_and_no_share(tmp_path: Path) -> None:
    """After 300 late answers the clock of the node goes back by 50 s."""
    path = tmp_path / "telemetry.jsonl"
    lines = [
        json.loads(line(100 + 0.2 * k, {"answer_us": 15e4 if k < 300 else 20.0}))
        for k in range(900)
    ]
    for k, written in enumerate(lines):
        written["t"] = 1_000_000 + written["m"] - (50 if k >= 300 else 0)
    path.write_text("".join(json.dumps(written) + "\n" for written in lines))
    found = gpu_samples.recorded(path, "GPU-1", 100.0, 280.0)
    assert len(found.samples) == 900
    assert found.percent(lambda sample: sample.late) == pytest.approx(33.3, abs=0.1)
    before, after = readings(power_brake_ns=5)
    assert gpu_counters.percent_of_time(
        "power_brake_ns", {**before, "time": 9e9}, {**after, "time": 0}
    ) == Known(50)


def every(pause: float, *answers_us: float, end: float | None = None) -> GpuSamples:
    samples = [Sample(100 + pause * k, us) for k, us in enumerate(answers_us)]
    return GpuSamples(100, 100 + pause * len(samples) if end is None else end, samples)


def test_late_answers_count_by_the_time_that_they_take() -> None:
    found = every(0.2, *[20.0] * 30, *[150_000.0] * 10, *[20.0] * 60)
    assert found.percent(lambda sample: sample.late) == pytest.approx(10, abs=0.1)


def test_the_last_sample_can_be_late() -> None:
    """A driver that hangs to the end of the job answers one question: the last."""
    found = every(0.2, *[20.0] * 100, 30e6, end=150.0)
    assert found.gap == ""
    assert found.percent(lambda sample: sample.late) == pytest.approx(60, abs=0.1)


@pytest.mark.parametrize(
    ("samples", "gap"),
    [
        (every(0.2, *[20.0] * 3000), ""),
        (every(2.0, *[20.0] * 300), ""),
        (every(0.2, *[20.0] * 19), "19 samples in 3.8 s, at least 20 are needed"),
        (every(0.2, *[20.0] * 20), ""),
        (every(0.2, *[20.0] * 25, end=3700.0),
         "samples cover 7 of 3600 s, the largest gap between them has 3595 s"),
        (every(0.2, *[20.0] * 3000, end=711.7), ""),
        (every(0.2, *[20.0] * 3000, end=713.0),
         "samples cover 602 of 613 s, the largest gap between them has 13 s"),
        (GpuSamples(0, 5), "no samples in 5.0 s"),
    ],
)  # fmt: skip
def test_samples_speak_for_a_window_that_they_cover(samples: GpuSamples, gap: str) -> None:
    assert samples.gap == gap


def readings(**rises: float | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two readings ten seconds apart, in which these counters of time rose by so many seconds."""
    refused = Missing("NotSupported", Kind.NOT_THERE)
    silent = {name: refused for name, rise in rises.items() if rise is None}
    known = {name: rise for name, rise in rises.items() if rise is not None}
    before = {"clock": 100.0, "silent": silent, "totals": {k: {"total": 0} for k in known}}
    totals = {name: {"total": round(1e9 * rise)} for name, rise in known.items()}
    return before, {"clock": 110.0, "silent": silent, "totals": totals}


@pytest.mark.parametrize(
    ("sw", "hw", "brake", "reasons", "shares", "least"),
    [
        (0, 0, 0, [], {"thermal": 0, "power_brake": 0}, ()),
        (1, 5, 2, [0], {"thermal": 50, "power_brake": 20}, ()),
        (None, 5, 2, [0], {"thermal": 50, "power_brake": 20}, ()),
        (None, None, None, [0x20, 0x40, 0, 0x80], {"thermal": 50, "power_brake": 25}, ()),
        (0, 0, None, [], {"thermal": 0}, ()),
        (None, 0, None, [], {}, ()),
        (9, None, None, [], {"thermal": 90}, ("thermal",)),
        (0.5, None, None, [], {"thermal": 5}, ("thermal",)),
    ],
)
def test_shares_of_time_come_from_counters_or_from_samples_or_are_known_in_part(
    sw: float | None, hw: float | None, brake: float | None, reasons: list[int],
    shares: dict[str, float], least: tuple[str, ...],
) -> None:  # fmt: skip
    span = readings(sw_thermal_ns=sw, hw_thermal_ns=hw, power_brake_ns=brake)
    samples = [Sample(100 + 0.25 * k, 20.0, "", r) for k, r in enumerate(reasons * 40)][:40]
    found = {m: throttled(m, [span], [GpuSamples(100, 110, samples)]) for m in THROTTLING}
    known = {name: share.value for name, share in found.items() if share.gap is None}
    assert known == pytest.approx({name: shares[name] for name in shares if name not in least})
    in_part = {name: share.value for name, share in found.items() if share.gap and share.value}
    assert in_part == pytest.approx({name: shares[name] for name in least})
    assert all("NotSupported" in share.gap.why for share in found.values() if share.gap)


def test_a_counter_that_misses_one_of_two_spans_is_not_taken_for_both() -> None:
    whole, load = readings(power_brake_ns=0), readings(power_brake_ns=0)
    whole[0]["totals"]["power_brake_ns"] = {"total": 7}  # it was reset between the readings
    share = throttled("power_brake", [whole, load], [GpuSamples(100, 110)] * 2)
    assert share.gap is not None
    assert "reset during the run" in share.gap.why
    assert share.gap.of_node


@pytest.mark.parametrize(
    ("reasons", "errors", "count", "offered"),
    [(None, "", 40, False), (None, "GpuIsLost", 40, True), (0, "", 5, True)],
    ids=["not shown", "lost", "too few samples"],
)
def test_what_samples_could_have_shown_is_not_the_drivers(
    reasons: int | None, errors: str, count: int, offered: bool
) -> None:
    """A driver without counters does not answer for a telemetry that saw too little."""
    span = readings(power_brake_ns=None)
    samples = [Sample(100 + 0.25 * k, 20.0, errors, reasons) for k in range(count)]
    share = throttled("power_brake", [span], [GpuSamples(100, 110, samples)])
    assert share.gap is not None
    assert share.gap.of_node is offered
