"""The sweep of the all-reduce."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.workloads.collectives import allreduce, collective_sweep

pytestmark = pytest.mark.cpu


def test_the_sweep_is_that_of_the_all_reduce(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(collective_sweep, "run", lambda *given, **sweep: (given, sweep))
    ranks: Any = "ranks"
    assert allreduce.run(ranks, ["busbw"], max_size=8) == (
        ("ranks", ["busbw"], "all_reduce"), {"max_size": 8},
    )  # fmt: skip
