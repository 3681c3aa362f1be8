"""Slurm and the network carry jobs to every node [B5]."""

import pytest

pytestmark = pytest.mark.multinode


@pytest.mark.criterion("connectivity.peers")
def test_every_node_reaches_every_other_by_name_and_address(verdict):
    assert verdict.ok, verdict.line
