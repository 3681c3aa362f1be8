"""Every port is on the leaf switch where it was planned."""

import pytest

pytestmark = [pytest.mark.multinode, pytest.mark.gpu]


@pytest.mark.criterion("wiring.leaf", "wiring.rail")
def test_every_port_is_on_the_leaf_switch_where_it_was_planned(measured, agreed):
    assert measured <= agreed
