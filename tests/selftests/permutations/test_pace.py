"""How many rounds a slice has."""

from __future__ import annotations

import pytest

from fixtures.permutations.pace import ON_CPU, ON_GPU, rounds_in

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(("ports", "rounds"), [(16, 600), (1024, 600), (8192, 122), (10**7, 1)])
def test_a_slice_has_as_many_rounds_as_a_record_may_hold(ports, rounds):
    assert rounds_in(ON_GPU, ports) == rounds
    assert rounds_in(ON_CPU, ports) <= ON_CPU.slice_s / ON_CPU.round_s
