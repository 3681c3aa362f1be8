"""judge() over any numbers and any text of a record: what is wrong never passes."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.records.files import RecordError
from fixtures.records.model import Measurement, Record
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.model import Outcome
from tests.selftests import support
from tests.selftests.judging import judged
from tests.selftests.support import bf16, busbw, latency, node_record, rank, record, value

pytestmark = pytest.mark.cpu


# --- properties

RATE = st.floats(min_value=1e-3, max_value=1000, allow_nan=False)
RATES = st.lists(st.lists(RATE, min_size=1, max_size=6), min_size=2, max_size=2)
BAD_NUMBERS = st.sampled_from([math.nan, math.inf, -math.inf])
quick = settings(deadline=None, max_examples=60)


def of_samples(samples: list[list[float]]) -> Record:
    return record(*[rank(k, "worker0", bf16(s)) for k, s in enumerate(samples)])


@quick
@given(good=st.floats(605, 1000), bad=st.floats(-1e6, math.nextafter(605, 0)))
def test_a_value_on_the_bad_side_never_passes(limits, good, bad):
    assert not judged(limits, "gemm.bf16", node_record(good, bad)).ok
    assert not judged(limits, "gemm.bf16", node_record(bad, good)).ok


@quick
@given(bad=st.floats(math.nextafter(84, 100), 1e9))
def test_a_latency_on_the_bad_side_never_passes(limits, bad):
    found = record(rank(0, "worker0", latency(42)), rank(1, "worker0", latency(bad)))
    assert not judged(limits, "allreduce.latency", found).ok


@quick
@given(samples=RATES, factor=st.floats(1e-6, 1))
def test_slowing_everything_down_never_turns_a_failure_into_a_pass(limits, samples, factor):
    if judged(limits, "gemm.bf16", of_samples(samples)).outcome is not Outcome.FAIL:
        return
    slower = [[s * factor for s in rank_samples] for rank_samples in samples]
    assert not judged(limits, "gemm.bf16", of_samples(slower)).ok


@quick
@given(
    samples=st.lists(st.lists(st.just(650.0), min_size=3, max_size=3), min_size=2, max_size=2),
    k=st.integers(0, 1), j=st.integers(0, 2), bad=BAD_NUMBERS,
)  # fmt: skip
def test_a_number_that_is_not_finite_never_passes(limits, samples, k, j, bad):
    samples[k][j] = bad
    for key in ("gemm.bf16", "gemm.spread"):
        assert judged(limits, key, of_samples(samples)).outcome is Outcome.NOT_MEASURED


# --- a record as text: any change of its shape

WHOLE = {
    "gemm.bf16": node_record(650, 650),
    "allreduce.nvls": record(
        *[rank(k, "worker0", busbw(120, 120, nvls=True)) for k in range(2)], workload="allreduce"
    ),
    "allreduce.errors": record(
        *[rank(k, "worker0", value("errors", "elements", 0)) for k in range(2)],
        workload="allreduce",
    ),
    "inventory.gpu_model": record(
        *[rank(k, "worker0", value("gpu_model", "model", "NVIDIA H200")) for k in range(2)],
        workload="inventory",
    ),
}
OTHER_TYPES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 0.5, 10**400, "", "x", [], ["x"], [[]], {}, {"x": 1}, math.nan,
    math.inf,
)  # fmt: skip
FREE = ("facts", "provenance", "job")
"""Objects whose contents are the reader's, not the judge's; their own type is checked."""


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything in a JSON document that the judge may look at."""
    if path:
        yield path
    if isinstance(data, dict) and not (path and path[-1] in FREE):
        for name, inside in data.items():
            yield from places(inside, (*path, name))
    if isinstance(data, list):
        for k, inside in enumerate(data):
            yield from places(inside, (*path, k))


def outcome_of(limits: Thresholds, key: str, data: Any) -> Outcome | None:
    """The outcome of a record's text; None where it is refused with a RecordError."""
    try:
        found = Record.from_json(json.loads(json.dumps(data)), nonce=support.NONCE)
    except RecordError:
        return None
    verdict = judged(limits, key, found)
    assert isinstance(verdict.line, str)
    json.dumps(verdict.to_json(), allow_nan=False)
    return verdict.outcome


def kind_of(data: Any) -> str:
    if isinstance(data, bool):
        return "flag"
    return "number" if isinstance(data, (int, float)) else type(data).__name__


@pytest.mark.parametrize("key", WHOLE)
def test_the_whole_record_passes_as_text(limits, key):
    assert outcome_of(limits, key, WHOLE[key].to_json()) is Outcome.PASS


@pytest.mark.parametrize("key", WHOLE)
def test_a_record_without_any_one_of_its_keys_never_passes(limits, key):
    for name in WHOLE[key].to_json():
        data = WHOLE[key].to_json()
        del data[name]
        assert outcome_of(limits, key, data) is None, name


@pytest.mark.parametrize("key", WHOLE)
def test_a_record_with_any_value_of_another_type_never_passes(limits, key):
    """What a device says of itself beside its node only has to crash nothing: see below."""
    whole = WHOLE[key].to_json()
    tried = 0
    for path in places(whole):
        for other in OTHER_TYPES:
            data = copy.deepcopy(whole)
            *parents, last = path
            target = data
            for step in parents:
                target = target[step]
            was, target[last] = target[last], other
            outcome = outcome_of(limits, key, data)
            tried += 1
            same_type = kind_of(was) == kind_of(other) and math.isfinite(_number(other))
            optional = other is None and last == "started"
            if not same_type and not optional and "device" not in parents:
                assert outcome is not Outcome.PASS, (path, other)
    assert tried > 500


@pytest.mark.parametrize("name", ["compute_capability", "sm_count", "max_sm_clock_mhz"])
@pytest.mark.parametrize("wrong", [None, True, "9.0", [], -1, 0])
def test_a_ceiling_is_not_computed_from_nonsense(limits, name, wrong):
    data = WHOLE["gemm.bf16"].to_json()
    for one in data["ranks"]:
        one["device"][name] = wrong
    assert outcome_of(limits, "gemm.bf16", data) is Outcome.NOT_MEASURED


def _number(data: Any) -> float:
    return float(data) if isinstance(data, float) else 0.0


def test_null_or_nan_instead_of_the_samples_is_refused():
    data = WHOLE["gemm.bf16"].to_json()
    data["ranks"][0]["measurements"][0]["samples"] = [None]
    with pytest.raises(RecordError, match="None is not a number"):
        Record.from_json(data)
    data["ranks"][0]["measurements"][0]["samples"] = [math.nan]
    with pytest.raises(RecordError, match="nan is not finite"):
        Record.from_json(data)


def test_a_rank_missing_from_a_record_is_refused():
    data = WHOLE["gemm.bf16"].to_json()
    del data["ranks"][1]
    with pytest.raises(RecordError, match=r"ranks \[0\] are not the 2"):
        Record.from_json(data)


@quick
@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_record_with_any_byte_changed_is_judged_or_refused(limits, position, byte):
    raw = bytearray(json.dumps(WHOLE["gemm.bf16"].to_json()).encode())
    raw[position % len(raw)] = byte
    try:
        data = json.loads(raw)
    except ValueError:
        return  # Evidence reads this as "is not JSON"; test_evidence has it
    outcome = outcome_of(limits, "gemm.bf16", data)
    assert outcome in (None, Outcome.PASS, Outcome.FAIL, Outcome.NOT_MEASURED)


def test_a_measurement_of_unknown_fields_is_refused():
    with pytest.raises(RecordError, match="unknown fields"):
        Measurement.from_json({"metric": "bf16", "unit": "TFLOPS", "speed": 1})
    with pytest.raises(RecordError, match="lacks unit"):
        Measurement.from_json({"metric": "bf16"})


def test_a_record_from_before_there_were_rounds_is_judged_as_ever(limits):
    data = WHOLE["gemm.bf16"].to_json()
    for one in data["ranks"]:
        for m in one["measurements"]:
            m.pop("rounds", None)
    assert outcome_of(limits, "gemm.bf16", data) is Outcome.PASS


@pytest.mark.parametrize(
    "wrong", [650.0, [650.0], [[]], [["650"]], [[True]], [[None]], [[math.nan]], [{}]]
)
def test_rounds_that_are_no_lists_of_numbers_are_refused(wrong):
    data = WHOLE["gemm.bf16"].to_json()
    data["ranks"][0]["measurements"][0]["rounds"] = wrong
    with pytest.raises(RecordError):
        Record.from_json(data)


def test_rounds_without_samples_are_refused():
    with pytest.raises(RecordError, match="is not a further round of samples"):
        Measurement.from_json({"metric": "x", "unit": "s", "value": 1, "rounds": [[1.0]]})
