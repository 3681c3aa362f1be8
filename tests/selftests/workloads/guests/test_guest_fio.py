"""Results of fio: what is read, and what is refused with its line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fixtures.workloads.guests import guest_fio
from fixtures.workloads.guests.guest_files import GuestError
from tests.selftests import guest_samples

pytestmark = pytest.mark.cpu


def test_fio_is_read_in_bytes_and_in_old_versions_in_kib():
    run = guest_fio.parse(guest_samples.fio(when=1_700_000_000))
    assert (run.version, run.time) == ("3.39", 1_700_000_000)
    assert [(j.read, j.write, j.error) for j in run.jobs] == [(6.5, 2.0, 0)]
    old = json.loads(guest_samples.fio())
    for side in ("read", "write"):
        del old["jobs"][0][side]["bw_bytes"]
    assert guest_fio.parse(json.dumps(old)).jobs[0].read == pytest.approx(6.5, rel=1e-6)


@pytest.mark.parametrize(
    ("sample", "change", "says"),
    [
        (guest_samples.fio(), ('"fio-3.39"', '"iperf"'), "is not a version of fio"),
        (guest_samples.fio(), ('"error": 0', '"error": -5'), "-5 where a number"),
        (guest_samples.fio(), ('"error": 0', '"error": NaN'), "NaN is not a number"),
        (guest_samples.fio(), ('"read"', '"reads"'), "has no 'read'"),
    ],
    ids=map(str, range(4)),
)  # fmt: skip
def test_json_that_is_not_known_is_refused_with_its_line(sample, change, says):
    changed = sample.replace(*change, 1)
    assert changed != sample
    with pytest.raises(GuestError) as refused:
        guest_fio.parse(changed)
    assert says in str(refused.value)
    assert str(refused.value).startswith("line ")


def parsed(read: Any, **more: Any) -> guest_fio.FioRun:
    job = {"jobname": "a", "error": 5, "read": read, "write": {"bw_bytes": 10**9}}
    return guest_fio.parse(json.dumps({"fio version": "fio-3.1", "jobs": [job], **more}))


def test_rates_are_gb_a_second_of_bytes_or_kib():
    (job,) = parsed({"bw_bytes": 2 * 10**9}).jobs
    assert job == guest_fio.Job("a", 5, 2.0, 1.0)
    assert parsed({"bw": 10**6}).jobs[0].read == 1.024
    with pytest.raises(GuestError, match="has neither 'bw_bytes' nor 'bw'"):
        parsed({})
    with pytest.raises(GuestError, match="jobs: no job"):
        parsed({}, jobs=[])


def test_the_time_is_that_of_the_result_where_it_says_one():
    assert parsed({"bw": 1}).time is None
    assert parsed({"bw": 1}, timestamp=0).time == 0
    with pytest.raises(GuestError, match="timestamp"):
        parsed({"bw": 1}, timestamp="now")
