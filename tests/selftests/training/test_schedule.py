"""The learning rate over a run."""

from __future__ import annotations

import pytest

from training.schedule import learning_rate_at

pytestmark = pytest.mark.cpu


def test_the_learning_rate_rises_and_ends_at_its_share():
    rates = [learning_rate_at(k, peak=1.0, steps=20, warm_up=5, final_share=0.1) for k in range(20)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[5] == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(0.1)
    assert rates[5:] == sorted(rates[5:], reverse=True)
