"""Which rank a process is, by its environment."""

from __future__ import annotations

import pytest

from fixtures.workloads.runtime.identity import first_node

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("worker0", "worker0"), ("worker[0,2]", "worker0"), ("gpu[08-10]-ib,x", "gpu08-ib"),
        ("a,b[1-2]", "a"), ("", ""),
        ("rack[2-3]n[07-08],x", "rack2n07"), ("r[1,3]n[2]-ib", "r1n2-ib"),
    ],
)  # fmt: skip
def test_the_first_node_of_a_host_list(nodelist, first):
    assert first_node(nodelist) == first
