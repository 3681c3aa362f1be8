"""The kinds of criteria, and over what their rows extend."""

from __future__ import annotations

import pytest

from fixtures.thresholds import loader
from fixtures.thresholds.kinds import KINDS, OVER, SPANS, STATISTICS, Of
from tests.selftests.support import SHIPPED

pytestmark = pytest.mark.cpu


def test_every_kind_is_in_use_and_consistent():
    criteria = loader.load(SHIPPED).criteria.values()
    assert {(c.statistic, c.over) for c in criteria} == KINDS.keys()
    assert set(STATISTICS) == {"median", "spread", "dip", "value", "alike"}
    assert len(OVER) == len(set(OVER)) == 8
    for key, kind in KINDS.items():
        assert not kind.rate or (kind.by_round and kind.together and kind.bounded), key
        assert not (kind.rate and kind.state), key
        assert not kind.over_ranks or kind.rate, key
        assert kind.bounded is (kind.rate or kind.state), key
        assert (kind.unit is None) is kind.bounded, key
        assert not kind.ranks_owe or kind.of in (Of.NODE, Of.ROW), key


def test_a_row_extends_over_nodes_and_their_gpus():
    for per, nodes, gpus, one in (
        ("node", 1, 8, True), ("pair", 2, 8, False), ("rail", None, 1, False),
        ("cluster", None, 8, False),
    ):  # fmt: skip
        span = SPANS[per]
        assert (span.nodes, span.gpus(8), span.of_one_node) == (nodes, gpus, one)
