"""Critical losses: who looks as often as he likes accuses no more often than the risk."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures.permutations.sequential import LOSSES, critical, deviations, spending, student

pytestmark = pytest.mark.cpu


def test_looking_after_each_value_accuses_no_more_often_than_the_risk():
    dice = np.random.default_rng(1)
    risk, sigma, runs, values = 0.05, 0.01, 4000, 300
    mean = dice.normal(0, sigma, (runs, values)).cumsum(axis=1) / np.arange(1, values + 1)
    wall = critical(np.arange(1, values + 1) / sigma**2, risk)
    assert (mean > wall).any(axis=1).mean() <= risk


def test_the_mixture_reaches_one_over_the_risk_at_the_critical_loss():
    information = 1e5
    (at,) = critical(np.array([information]), 1e-4)
    ratio = np.exp(LOSSES * information * at - LOSSES**2 * information / 2).mean()
    assert ratio == pytest.approx(1e4, rel=1e-3)


def test_nothing_is_accused_without_information():
    assert critical(np.array([0.0, 1e6]), 1e-4).tolist() == [
        np.inf,
        pytest.approx(0.0051, abs=5e-4),
    ]


def test_all_windows_together_use_no_more_than_the_risk():
    rest = 1 / 2.2 / np.log(100_001)  # of the integral of 1 / (k ln^2 k) from there on
    assert 0.9 < sum(spending(k) for k in range(100_000)) + rest <= 1


def test_deviations_are_those_of_the_normal_distribution():
    assert deviations(0.05) == pytest.approx(1.645, abs=1e-3)


@pytest.mark.parametrize(
    ("probability", "freedom", "of_table"),
    [(0.05, 10, 1.812), (0.01, 10, 2.764), (0.001, 14, 3.787), (0.0005, 120, 3.373)],
)
def test_an_estimated_deviation_needs_student_s_t(probability, freedom, of_table):
    assert student(deviations(probability), freedom) == pytest.approx(of_table, rel=2e-3)
