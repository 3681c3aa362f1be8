"""Coverage: what was driven, for how long; what was not is never counted."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.permutations.coverage import SHARE, added, coverage
from fixtures.permutations.observations import Observations, joined
from fixtures.permutations.schedule import RESTS, schedule
from tests.selftests.permutations import fabrics
from tests.tools.clos import Defects, rail_optimised

pytestmark = pytest.mark.cpu

PORTS = rail_optimised([0, 0, 0, 1, 1, 1, 2, 2, 2], 2)
CELLS = {(a * 2 + r, b * 2 + r, r) for a in range(3) for b in range(3) for r in range(2) if a != b}


def observed(first: int, count: int, alive: frozenset[int] | None = None) -> Observations:
    target = np.array(schedule(PORTS, 1, first, count, alive), dtype=int).reshape(count, len(PORTS))
    return Observations(
        ports=PORTS, target=target, rates=np.where(target == RESTS, np.nan, 10.0),
        start=(first + np.arange(count)) * 2.0, seconds=np.full(count, 2.0), expected=10.0,
    )  # fmt: skip


def by_hand(obs: Observations) -> dict[tuple[int, int, int], float]:
    """Hours in which three ports (the planned ones) carry 0.9 of the expected rate together."""
    hours = dict.fromkeys(sorted(CELLS), 0.0)
    for targets, rates, seconds in zip(obs.target, obs.rates, obs.seconds, strict=True):
        carried = dict.fromkeys(hours, 0.0)
        for p, q in enumerate(targets):
            cell = (PORTS.leaf[p], PORTS.leaf[q], PORTS.rail[p])
            if q != RESTS and np.isfinite(rates[p]) and cell in carried:
                carried[cell] += rates[p]
        for cell, rate in carried.items():
            hours[cell] += seconds / 3600 if rate >= SHARE * 3 * 10.0 else 0
    return hours


def test_a_whole_cycle_covers_all_pairs_rails_and_directions():
    found = coverage(observed(0, 40))
    assert set(found.hours) == CELLS
    assert (found.cells, found.covered, found.missing) == (12, 12, [])
    assert not found.unreachable


def test_a_rate_below_the_share_is_no_coverage():
    obs = observed(0, 40)
    assert coverage(dataclasses.replace(obs, rates=obs.rates * 0.89)).covered == 0


@given(
    killed=st.integers(0, 60), resumed=st.integers(0, 40), dead=st.integers(0, 8),
    dies=st.integers(0, 60), down=st.sampled_from([None, 0, 1]),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_coverage_stays_true_when_killed_and_resumed_with_a_dead_node_and_a_rail_down(
    killed, resumed, dead, dies, down
):
    up = frozenset(p for p in range(len(PORTS)) if PORTS.rail[p] != down)
    first = observed(0, killed, up)
    gone = np.array([n == dead for n in PORTS.node])
    late = np.arange(killed) >= dies
    first.rates[np.ix_(late, gone)] = np.nan
    first.rates[np.isin(first.target, np.nonzero(gone)[0]) & late[:, np.newaxis]] = np.nan
    alive = up - set(np.nonzero(gone)[0]) if dies < killed else up
    second = observed(100, resumed, alive)
    whole = coverage(joined([first, second]))
    assert {c: pytest.approx(h) for c, h in whole.hours.items()} == by_hand(joined([first, second]))
    parts = added([coverage(first), coverage(second)])
    assert {c: pytest.approx(h) for c, h in parts.hours.items()} == whole.hours
    assert parts.unreachable == whole.unreachable
    if down is not None:
        lost = {cell for cell in CELLS if cell[2] == down}
        assert lost <= whole.unreachable
        assert lost <= set(whole.missing)


def test_the_cells_of_a_dead_node_are_not_covered_without_it():
    alive = frozenset(p for p in range(len(PORTS)) if PORTS.node[p] != 4)
    found = coverage(observed(0, 80, alive))
    with_leaf = {cell for cell in CELLS if {cell[0] // 2, cell[1] // 2} & {1}}
    assert set(found.missing) == with_leaf  # two of three ports are below 0.9
    assert not found.unreachable


def test_a_lost_uplink_does_not_hide_in_the_coverage():
    (obs,) = fabrics.slices(Defects(leaf={3: 0.5}))
    assert {cell for cell in coverage(obs).missing if 3 not in cell[:2]} == set()
    assert {cell[:2] for cell in coverage(obs).missing} == {(a, b) for a in (1, 3, 5, 7)
                                                            for b in (1, 3, 5, 7)
                                                            if a != b and 3 in (a, b)}  # fmt: skip


def test_without_leaves_no_cell_is_claimed():
    ports = rail_optimised([-1] * 4, 2)
    target = np.array(schedule(ports, 1, 0, 10))
    obs = Observations(ports, target, np.ones(target.shape), np.arange(10.0), np.ones(10), 1.0)
    assert coverage(obs).cells == 0
