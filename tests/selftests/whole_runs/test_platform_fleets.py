"""Fleets of several platforms and sizes: healthy ones accuse nobody, a defect is named by place.

What all nodes reach together is what NCCL's model says of the platform (tests/tools/fleet_run.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.records.run_directory import RunDirectory
from reports.facts import groups
from reports.pages.artefacts import Artefacts
from tests.selftests.fleets import Data, FleetRun
from tests.tools import bench_fleet, published_limits
from tests.tools.fleet_run import Fleet
from tests.tools.platforms import PLATFORMS

pytestmark = pytest.mark.cpu


def soaked(*cases: object) -> list[object]:
    """Sizes and platforms that `make soak` has alone."""
    return [pytest.param(case, marks=pytest.mark.slow) for case in cases]


LARGE = (32, 128, 1024)
NETWORKS = ["hgx", "efa", *soaked("four-nics", "roce")]


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


@pytest.mark.parametrize("nodes", [2, *soaked(4, 16, *LARGE)])
@pytest.mark.parametrize("platform", NETWORKS)
def test_a_healthy_fleet_is_accepted(platform: str, nodes: int, tmp_path: Path) -> None:
    found, _ = fleet_of(platform, nodes, tmp_path).judged(tmp_path / "out")
    assert found["verdict"] == "ACCEPTED", [
        (v["criterion"], v["subject"], v["reason"])
        for v in found["criteria"]
        if v["outcome"] in ("FAIL", "NOT_MEASURED")
    ]


@pytest.mark.parametrize("nodes", [2, 20, *soaked(16, 36, 128, 1024)])
def test_a_healthy_rack_is_accused_of_nothing(nodes: int, tmp_path: Path) -> None:
    """What no source gives has no limit: exactly that is not judged, all else is green.

    Up to 18 nodes are one NVLink domain without a NIC in use, 20 are two racks.
    """
    found, rows = fleet_of("nvl72", nodes, tmp_path).judged(tmp_path / "out")
    red = {v["criterion"]: v for v in found["criteria"] if v["outcome"] == "FAIL"}
    assert red == {}
    silent = [v for v in found["criteria"] if v["outcome"] == "NOT_MEASURED"]
    assert [v["reason"] for v in silent if "calibrate" not in v["reason"]] == []
    without = published_limits.reasons("GB200")
    assert {v["criterion"] for v in silent} == {key for key in without if key in found_keys(found)}
    assert any(re.match(r"[4-9]\d limits are published figures", r) for r in found["reasons"])
    within = nodes <= PLATFORMS["nvl72"].domain_nodes
    transport = rows["allreduce.cluster.transport", "cluster"]
    assert (transport["outcome"], transport["value"]) == ("PASS", "MNNVL" if within else "NET/IB")
    for key in ("gdr", "nics"):
        row = rows[f"allreduce.cluster.{key}", "cluster"]
        assert row["outcome"] == ("RECORDED" if within else "PASS"), row


def found_keys(found: Data) -> set[str]:
    return {v["criterion"] for v in found["criteria"]}


@pytest.mark.parametrize("nodes", [2, *soaked(18, *LARGE)])
def test_a_fleet_of_b200_is_judged_by_published_figures(nodes: int, tmp_path: Path) -> None:
    """Healthy it lacks what the page of limits names; one slow GPU and NIC are named alone."""
    fleet = fleet_of("hgx-b200", nodes, tmp_path)
    found, rows = fleet.judged(tmp_path / "out")
    assert failures(found) == set()
    silent = {v["criterion"] for v in found["criteria"] if v["outcome"] == "NOT_MEASURED"}
    assert silent == set(published_limits.reasons("B200"))
    assert found["verdict"] == "INCOMPLETE"
    assert any(re.match(r"[23]\d limits are published figures", r) for r in found["reasons"])
    assert rows["gemm.bf16", "gpu0001"]["limit"].startswith(">= 1300 (published figure)")
    fleet.change("gemm@gpu0001.json", slower(0.8, lambda rank: rank["local_rank"] == 5, "TFLOPS"))
    found, rows = fleet.judged(tmp_path / "sick")
    assert failures(found) == {("gemm", "gpu0001")}
    assert rows["gemm.bf16", "gpu0001"]["worst"]["gpu"] == 5


@pytest.mark.parametrize("nodes", [4, *soaked(36, *LARGE)])
def test_a_slow_gpu_and_a_slow_nic_of_a_rack_are_named_and_nobody_else(
    nodes: int, tmp_path: Path
) -> None:
    fleet = fleet_of("nvl72", nodes, tmp_path)
    fleet.change("memory@gpu0002.json", slower(0.8, lambda rank: rank["local_rank"] == 1))

    def half_rate(record: Data) -> None:
        for m in record["ranks"][0]["measurements"]:
            if (m["metric"], m["at"].get("part")) == ("rate", "mlx5_3"):
                m["value"] /= 2

    fleet.change("infiniband@gpu0003.json", half_rate)
    found, rows = fleet.judged(tmp_path / "out")
    assert failures(found) == {("memory", "gpu0002"), ("infiniband", "gpu0003")}
    assert rows["memory.copy", "gpu0002"]["worst"]["gpu"] == 1
    assert rows["infiniband.rate", "gpu0003"]["worst"]["part"] == "mlx5_3"


@pytest.mark.parametrize("nodes", [20, *soaked(4, 36, *LARGE)])
def test_a_slow_tray_and_a_slow_rail_of_a_rack_are_named_and_nobody_else(
    nodes: int, tmp_path: Path
) -> None:
    """Within one NVLink domain, and between two, where the rails go over NICs."""
    fleet = fleet_of("nvl72", nodes, tmp_path)
    fleet.change("allreduce@gpu0002.json", slower(0.8, lambda rank: True))
    fleet.change("rails@all.json", slower(0.7, lambda rank: rank["local_rank"] == 3))
    found, rows = fleet.judged(tmp_path / "sick")
    assert failures(found) == {("allreduce.node", "gpu0002"), ("rails.sendrecv", "rail3")}
    assert rows["allreduce.node.8GiB", "gpu0001"]["outcome"] == "PASS"


def test_a_rack_whose_nodes_do_not_share_their_nvlink_is_red(tmp_path: Path) -> None:
    """IMEX is down: every node is a domain, and NCCL takes what it finds; here that is TCP."""
    fleet = fleet_of("nvl72", 2, tmp_path)

    def over_tcp(record: Data) -> None:
        for rank in record["ranks"]:
            for m in rank["measurements"]:
                if "domains" in m.get("conditions", {}):
                    m["conditions"] |= {"domains": 2, "gpus_per_domain": 4}
                    m["conditions"] |= {"transport": "NET/Socket"}
                if m["metric"] == "transport":
                    m["value"] = "NET/Socket"

    fleet.change("allreduce@all.json", over_tcp)
    _, rows = fleet.judged(tmp_path / "out")
    assert rows["allreduce.cluster.transport", "cluster"]["outcome"] == "FAIL"


def test_a_slow_rack_and_a_slow_slot_are_said_as_groups(tmp_path: Path) -> None:
    fleet = fleet_of("hgx", 20, tmp_path)
    for k in range(9, 14):
        fleet.change(f"memory@gpu{k:04d}.json", slower(0.8, lambda rank: True))
    for k in range(2, 20, 3):
        fleet.change(f"hostcopy@gpu{k:04d}.json", slower(0.7, lambda rank: rank["local_rank"] == 3))
    found, _ = fleet.judged(tmp_path / "out")
    said = {(g.kind, g.where): g.keys for g in groups.groups(found)}
    assert set(said) == {
        ("place", "5 nodes next to each other, gpu[0009-0013], fail together"),
        ("slot", "GPU 3 is the only one that fails on 6 of 20 nodes"),
    }
    assert all(
        key.startswith({"place": "memory.", "slot": "hostcopy."}[kind])
        for (kind, _), keys in said.items() for key in keys
    )  # fmt: skip
    for name in ("report.html", "certificate.html"):
        text = Artefacts(RunDirectory(tmp_path / "out"), found).make(name).decode()
        assert "5 nodes next to each other, gpu[0009-0013], fail together: memory." in text


@pytest.mark.slow
def test_the_benchmark_takes_no_healthy_fleet_that_is_not_accepted(tmp_path: Path) -> None:
    fleet_of("hgx", 2, tmp_path)
    bench_fleet.accepted(tmp_path / "run", tmp_path / "healthy")
    fleet = fleet_of("hgx", 2, tmp_path / "sick")
    fleet.change("allreduce@gpu0002.json", slower(0.8, lambda rank: True))
    with pytest.raises(RuntimeError, match=r"REJECTED.*FAIL allreduce\.node.* gpu0002"):
        bench_fleet.accepted(tmp_path / "sick" / "run", tmp_path / "judged")


def slower(
    factor: float, chosen: Callable[[Data], bool], unit: str = "GB/s"
) -> Callable[[Data], None]:
    """Return a change of a record: rates of the ranks that are chosen, times the factor."""

    def change(record: Data) -> None:
        for rank in filter(chosen, record["ranks"]):
            for m in rank["measurements"]:
                if m["unit"] == unit:
                    m["samples"] = [factor * s for s in m["samples"]]

    return change


@pytest.mark.parametrize("nodes", [4, *soaked(2, 16, *LARGE)])
@pytest.mark.parametrize("platform", NETWORKS)
def test_a_slow_node_rail_or_nic_is_named_and_nobody_else(
    platform: str, nodes: int, tmp_path: Path
) -> None:
    """A node whose NVLink is slow, a rail whose leaf is slow, a NIC that trained at half rate."""
    fleet = fleet_of(platform, nodes, tmp_path)
    fleet.change("allreduce@gpu0002.json", slower(0.8, lambda rank: True))
    fleet.change("rails@all.json", slower(0.7, lambda rank: rank["local_rank"] == 3))

    def half_rate(record: Data) -> None:
        for m in record["ranks"][0]["measurements"]:
            if (m["metric"], m["at"].get("part")) == ("rate", "mlx5_3"):
                m["value"] /= 2

    fleet.change("infiniband@gpu0001.json", half_rate)
    found, rows = fleet.judged(tmp_path / "out")
    assert found["verdict"] == "REJECTED"
    assert failures(found) == {
        ("allreduce.node", "gpu0002"), ("rails.sendrecv", "rail3"), ("infiniband", "gpu0001"),
    }  # fmt: skip
    assert rows["infiniband.rate", "gpu0001"]["worst"]["part"] == "mlx5_3"
