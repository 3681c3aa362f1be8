"""A leaf's loss in fabrics of few or uneven leaves: found at the stated size, or none is stated."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from fixtures.permutations.evidence import Evidence, gather
from fixtures.permutations.finding import find_in
from fixtures.permutations.observations import Observations, flow_rates
from fixtures.permutations.schedule import Ports, schedule
from fixtures.permutations.smallest import smallest_in
from fixtures.permutations.visible import judged, visible
from tests.tools.clos import rail_optimised, rank_rates

pytestmark = pytest.mark.cpu
RISK = 0.003
ROUNDS = 120


def slice_of(
    sizes: list[int], loss: float = 0.0, leaf: int = 0, *, noise: float = 0.01, seed: int = 0,
    by_rail: bool = False,
) -> list[Evidence]:  # fmt: skip
    """Return a slice of leaves of so many nodes with two rails, one of which loses on all flows."""
    of_node = [k for k, size in enumerate(sizes) for _ in range(size)]
    ports = rail_optimised(of_node, 2)
    if not by_rail:
        ports = Ports(ports.node, ports.rail, tuple(k for k in of_node for _ in range(2)))
    dice = np.random.default_rng([seed, 5])
    target = np.array(schedule(ports, 7, 0, ROUNDS))
    at = np.asarray(ports.leaf)
    to = at[np.maximum(target, 0)]
    rates = 40 * np.exp(dice.normal(0, noise, target.shape))
    rates[(to != at) & ((to == leaf) | (at == leaf))] *= 1 - loss
    rates[target < 0] = np.nan
    step = 600 / ROUNDS
    flows = flow_rates(rank_rates(rates, target), target)
    start = np.arange(ROUNDS) * step
    return [gather(Observations(ports, target, flows, start, np.full(ROUNDS, step), 40.0))]


@pytest.mark.parametrize(
    ("sizes", "by_rail"),
    [([4] * 4, False), ([4] * 5, False), ([4] * 6, False), ([4] * 3, True), ([4, 4], True),
     ([8, 8, 8, 7], False), ([4, 4, 4, 3], False),
     ([2] * 8, False), ([3, 4, 5], False), ([2, 4, 6, 8], False),
     ([4] * 3, False), ([4, 4], False)],
)  # fmt: skip
def test_a_leaf_is_found_at_the_stated_size_or_none_is_stated(sizes, by_rail):
    stated = smallest_in(slice_of(sizes, by_rail=by_rail), RISK).uplinks
    leaves = len(sizes) * (2 if by_rail else 1)
    assert (stated is not None) == (leaves > 3 and max(sizes) - min(sizes) < 2)
    for size in (stated, 0.1, 0.3) if stated else ():
        named = [
            [(d.leaf, d.other_leaf) for d in
             find_in(slice_of(sizes, size, leaf, seed=leaf + 1, by_rail=by_rail), RISK)]
            for leaf in range(leaves)
        ]  # fmt: skip
        hits = sum(names == [(leaf, None)] for leaf, names in enumerate(named))
        assert hits >= leaves - (size == stated)


@pytest.mark.parametrize("sizes", [[3, 4, 5], [2, 4, 6, 8], [4] * 3, [6, 6, 3, 3]])
def test_where_no_size_is_stated_no_healthy_leaf_is_accused(sizes):
    for leaf in range(len(sizes)):
        for found in find_in(slice_of(sizes, 0.3, leaf, seed=9), RISK):
            assert leaf in {found.leaf, found.other_leaf}


def test_what_is_seen_of_a_loss_is_what_a_slice_shows():
    (one,) = slice_of([4] * 6)
    assert judged(one).tolist() == list(range(6))
    found = visible(one, 2, 0.02, one.leaf_flows)
    assert np.all((found.seen > 0.014) & (found.seen < 0.02))
    assert found.unexplained < 1e-4


def test_without_noise_nothing_is_divided_by_it():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_in(slice_of([4] * 4, noise=0.0), RISK) == []
        stated = smallest_in(slice_of([4] * 4, noise=0.0), RISK)
        (one,) = find_in(slice_of([4] * 4, 0.1, 2, noise=0.0), RISK)
    assert one.leaf == 2
    assert stated.uplinks is not None
    assert stated.uplinks > 0.01
