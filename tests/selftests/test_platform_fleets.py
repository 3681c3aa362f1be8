"""Fleets of several platforms and sizes: healthy ones accuse nobody, a defect is named by place.

What all nodes reach together is what NCCL's model says of the platform (tests/tools/fleet_run.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.selftests.fleets import Data, FleetRun
from tests.tools.fleet_run import PLATFORMS, Fleet

pytestmark = pytest.mark.cpu

SIZES = (2, 4, 16, *(pytest.param(n, marks=pytest.mark.slow) for n in (32, 128, 1024)))
NETWORKS = ("hgx", "four-nics", "roce", "efa")


def fleet_of(name: str, nodes: int, folder: Path) -> FleetRun:
    platform = PLATFORMS[name]
    root = folder / "run"
    Fleet(root, nodes, platform.gpus, platform).write()
    return FleetRun(root)


def failures(found: Data) -> set[tuple[str, str]]:
    return {
        (v["criterion"].rpartition(".")[0], v["subject"])
        for v in found["criteria"]
        if v["outcome"] == "FAIL"
    }


@pytest.mark.parametrize("nodes", SIZES)
@pytest.mark.parametrize("platform", NETWORKS)
def test_a_healthy_fleet_is_accepted(platform: str, nodes: int, tmp_path: Path) -> None:
    found, _ = fleet_of(platform, nodes, tmp_path).judged(tmp_path / "out")
    assert found["verdict"] == "ACCEPTED", [
        (v["criterion"], v["subject"], v["reason"])
        for v in found["criteria"]
        if v["outcome"] in ("FAIL", "NOT_MEASURED")
    ]


def slower(factor: float, chosen: Callable[[Data], bool]) -> Callable[[Data], None]:
    """Return a change of a record: rates of the ranks that are chosen, times the factor."""

    def change(record: Data) -> None:
        for rank in filter(chosen, record["ranks"]):
            for m in rank["measurements"]:
                if m["unit"] == "GB/s":
                    m["samples"] = [factor * s for s in m["samples"]]

    return change


@pytest.mark.parametrize("platform", NETWORKS)
def test_a_slow_node_rail_or_nic_is_named_and_nobody_else(platform: str, tmp_path: Path) -> None:
    """A node whose NVLink is slow, a rail whose leaf is slow, a NIC that trained at half rate."""
    fleet = fleet_of(platform, 4, tmp_path)
    fleet.change("allreduce@gpu0002.json", slower(0.8, lambda rank: True))
    fleet.change("rails@all.json", slower(0.7, lambda rank: rank["local_rank"] == 3))

    def half_rate(record: Data) -> None:
        for m in record["ranks"][0]["measurements"]:
            if (m["metric"], m["at"].get("part")) == ("rate", "mlx5_3"):
                m["value"] /= 2

    fleet.change("infiniband@gpu0003.json", half_rate)
    found, rows = fleet.judged(tmp_path / "out")
    assert found["verdict"] == "REJECTED"
    assert failures(found) == {
        ("allreduce.node", "gpu0002"), ("rails.sendrecv", "rail3"), ("infiniband", "gpu0003"),
    }  # fmt: skip
    assert rows["infiniband.rate", "gpu0003"]["worst"]["part"] == "mlx5_3"
