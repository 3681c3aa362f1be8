"""Which rail a NIC belongs to, by what its node showed."""

from __future__ import annotations

import json

import pytest

from fixtures.records.rails_of_nics import rail_of

pytestmark = pytest.mark.cpu


def write(directory, facts, attempt=1):
    path = directory.record("infiniband", "n1", attempt)
    path.write_text(json.dumps({"ranks": [{"facts": {}}, {"facts": facts}]}))


def test_a_nic_has_the_rail_of_the_gpu_that_is_nearest_to_it(directory):
    write(directory, {"rails": {"gpu0": ["mlx5_7"], "gpu10": ["mlx5_0", "mlx5_1"]}})
    assert rail_of(directory, "n1", "mlx5_7") == 0
    assert rail_of(directory, "n1", "mlx5_1") == 10
    write(directory, {"rails": {"gpu3": ["mlx5_7"]}}, attempt=2)
    assert rail_of(directory, "n1", "mlx5_7") == 3


def test_a_nic_that_several_gpus_share_or_none_shows_has_no_rail(directory):
    assert rail_of(directory, "n1", "mlx5_0") is None
    for facts in (
        {"rails": {"gpu0": ["mlx5_0"], "gpu1": ["mlx5_0"]}}, {}, {"rails": {"gpu0": []}},
        {"rails": {"other": ["mlx5_0"]}}, {"rails": 5}, {"rails": {"gpu0": None}},
    ):  # fmt: skip
        write(directory, facts)
        assert rail_of(directory, "n1", "mlx5_0") is None, facts
    directory.record("infiniband", "n1").write_text("{")
    assert rail_of(directory, "n1", "mlx5_0") is None
