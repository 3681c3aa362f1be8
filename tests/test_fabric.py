"""The whole fabric under load: no port, leaf or pair of leaves is slower than its like."""

import pytest

pytestmark = [pytest.mark.multinode, pytest.mark.gpu]


@pytest.mark.criterion("fabric.ports", "fabric.flaps", "fabric.errors")
def test_no_port_is_slow_flaps_or_errs_while_the_whole_fabric_is_loaded(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("fabric.uplinks", "fabric.pairs")
def test_no_leaf_switch_carries_less_than_its_like(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("fabric.coverage", "fabric.steadiness")
def test_every_pair_of_leaves_carries_the_expected_load(measured, agreed):
    assert measured >= agreed
