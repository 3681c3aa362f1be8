"""The rails of a rack over its NICs."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.workloads.collectives import rails, rails_nic

pytestmark = pytest.mark.cpu


def test_the_rails_are_measured_without_nvlink_between_nodes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rails, "run", lambda *given, **sweep: (given, sweep))
    ranks: Any = "ranks"
    assert rails_nic.run(ranks, ["rail"], size=8) == (("ranks", ["rail"]), {"size": 8})
    assert rails_nic.WORKLOAD.environment == {"NCCL_MNNVL_ENABLE": "0"}
    assert rails_nic.WORKLOAD.metrics == rails.WORKLOAD.metrics
