"""What is seen of a loss through the ends of flows, whatever their distribution."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from fixtures.permutations.blur import blurred, quantiles, seen_of, unblurred

pytestmark = pytest.mark.cpu


def drawn(kind: str) -> np.ndarray:
    dice = np.random.default_rng(2)
    if kind == "normal":
        return dice.normal(0, 0.03, (3, 300_000))
    return np.minimum(0.02, dice.normal(0, 0.03, (3, 300_000))) + dice.normal(
        0, 0.005, (3, 300_000)
    )


@pytest.mark.parametrize("kind", ["normal", "capped"])
@pytest.mark.parametrize("loss", [0.01, 0.03, 0.1])
@pytest.mark.parametrize("both", [False, True])
def test_a_loss_is_seen_as_it_is_by_simulation(kind, loss, both):
    a, b, c = drawn(kind)
    healthy = np.minimum(a, np.maximum(b, c))
    slow = np.minimum(a - loss, np.maximum(b - loss * both, c))
    measured = quantiles(healthy)
    seen = blurred(loss, measured, both=both, of_rates=False)
    assert seen == pytest.approx(healthy.mean() - slow.mean(), rel=0.02)
    of_rates = blurred(loss, measured, both=both, of_rates=True)
    assert of_rates == pytest.approx(
        -np.log(np.exp(slow).mean() / np.exp(healthy).mean()), rel=0.02
    )
    for way in (False, True):
        seen = blurred(loss, measured, both=both, of_rates=way)
        assert unblurred(seen, measured, both=both, of_rates=way) == pytest.approx(loss, rel=1e-3)


@pytest.mark.parametrize("kind", ["normal", "capped"])
@pytest.mark.parametrize("loss", [0.01, 0.1])
def test_what_is_seen_where_any_of_three_flows_lose_is_as_by_simulation(kind, loss):
    a, b, c = drawn(kind)
    healthy = np.minimum(a, np.maximum(b, c))
    seen = seen_of(loss, quantiles(healthy))
    assert seen.shape == (2, 2, 2)
    for own, before, after in product((0, 1), repeat=3):
        slow = np.minimum(a - loss * own, np.maximum(b - loss * before, c - loss * after))
        expected = -np.log(np.exp(slow).mean() / np.exp(healthy).mean())
        assert seen[own, before, after] == pytest.approx(expected, rel=0.02, abs=1e-6)


def test_without_flows_a_loss_is_taken_as_seen():
    nothing = quantiles(np.zeros(0))
    assert blurred(0.1, nothing, both=True, of_rates=True) == 0.1
    assert unblurred(0.1, nothing, both=True, of_rates=True) == pytest.approx(0.1)
