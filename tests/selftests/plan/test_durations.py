"""How long workloads take, as recorded runs say."""

from __future__ import annotations

import pytest

from fixtures.plan import durations
from fixtures.records.files import read_json

pytestmark = pytest.mark.cpu


def test_recorded_times_are_looked_up_by_workload_and_device():
    known = read_json(durations.DURATIONS_FILE)["devices"]["cuda"]
    assert durations.recorded()["cuda"] == known
    assert durations.seconds("gemm", "cuda") == known["workloads"]["gemm"]
    assert durations.seconds("nothing", "cuda") is None
    assert durations.seconds("gemm", "abacus") is None
    assert durations.start_s("cuda", small=True) == known["start_s"]["small"]
    assert durations.start_s("cuda", small=False) == known["start_s"]["exclusive"]
    assert durations.sources("cuda") == known["sources"]
