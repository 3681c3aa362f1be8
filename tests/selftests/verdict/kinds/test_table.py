"""Every kind of criterion has its rule, and every rule a kind."""

from __future__ import annotations

import pytest

from fixtures.thresholds.kinds import KINDS
from fixtures.verdict.kinds.table import RULES

pytestmark = pytest.mark.cpu


def test_every_kind_is_judged_by_one_rule():
    assert RULES.keys() == KINDS.keys()
    for key, kind in KINDS.items():
        rule = RULES[key]
        # What is absent of a state is asked for after a bad value, of all else before.
        assert (rule.owes is None) is not kind.by_round, key
        assert bool(rule.further) is kind.rate, key
