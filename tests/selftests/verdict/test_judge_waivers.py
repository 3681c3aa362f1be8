"""A waiver holds for the fault that it names, and for no other."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from fixtures.errors import ConfigError
from fixtures.thresholds import loader
from tests.selftests import support
from tests.selftests.fleets import NODES, Data, fleet, whole_fleet

__all__ = ["fleet", "whole_fleet"]

pytestmark = pytest.mark.cpu

SICK = NODES[2]
SOON = (datetime.date.today() + datetime.timedelta(days=30)).isoformat()


def limits(folder: Path, *waivers: str, expires: str = SOON) -> Path:
    """thresholds.yaml with these waivers, each `criterion node`."""
    text = support.SHIPPED.read_text(encoding="utf-8")
    assert "\nwaivers: []\n" in text
    rows = "".join(
        f"\n  - {{criterion: {criterion}, node: {node}, owner: A, reason: RMA, "
        f'expires: "{expires}"}}'
        for criterion, node in (waiver.split() for waiver in waivers)
    )
    path = folder / "thresholds.yaml"
    path.write_text(text.replace("\nwaivers: []\n", f"\nwaivers:{rows}\n"), encoding="utf-8")
    return path


def wrong_elements(*nodes: str):
    def change(record: Data) -> None:
        for rank in record["ranks"]:
            for m in rank["measurements"]:
                if m["metric"] == "errors" and rank["node"] in nodes and rank["local_rank"] == 3:
                    m["value"] = 7

    return change


@pytest.mark.parametrize(
    ("waived", "faulty", "outcome"),
    [
        (NODES[0], [SICK], "FAIL"),  # H1: of another node
        (SICK, [SICK], "WAIVED"),
        (SICK, [SICK, NODES[0]], "FAIL"),  # it is not the only culprit
        ("cluster", [SICK], "WAIVED"),
        ("cluster", [SICK, NODES[0]], "WAIVED"),
    ],
)
def test_a_row_over_several_nodes_is_waived_for_its_culprit_only(
    waived, faulty, outcome, fleet, tmp_path
):
    fleet.change("allreduce@all.json", wrong_elements(*faulty))
    path = limits(tmp_path, f"allreduce.cluster.errors {waived}")
    _, verdict = support.judged(fleet.root, tmp_path / "judged", path)
    rows = {(v["criterion"], v["subject"]): v for v in verdict["criteria"]}
    row = rows["allreduce.cluster.errors", "cluster"]
    assert row["outcome"] == outcome
    assert verdict["exit_status"] == (1 if outcome == "FAIL" else 0)
    assert row["worst"]["node"] in faulty
    bad = [node for node in faulty if node != waived] if outcome == "FAIL" else []
    assert (tmp_path / "judged" / "bad-nodes.txt").read_text(encoding="utf-8").split() == bad


def test_a_rate_of_all_nodes_is_not_waived_by_the_name_of_one(fleet, tmp_path):
    def slow(record: Data) -> None:
        for rank in record["ranks"]:
            for m in rank["measurements"]:
                if m["metric"] == "busbw":
                    m["samples"] = [value / 10 for value in m["samples"]]

    fleet.change("allgather@all.json", slow)
    path = limits(tmp_path, f"allgather.cluster.1GiB {SICK}")
    _, verdict = support.judged(fleet.root, tmp_path / "judged", path)
    rows = {(v["criterion"], v["subject"]): v for v in verdict["criteria"]}
    assert rows["allgather.cluster.1GiB", "cluster"]["outcome"] == "FAIL"


@pytest.mark.parametrize(
    "waiver",
    [
        "gemm.bf16 gpu003",
        "gemm.bf16 cluster",
        "allreduce.cluster.errors gpu9",
        "rails.errors r9",
    ],
)
def test_a_waiver_that_matches_nothing_is_a_usage_error(waiver, fleet, tmp_path):
    with pytest.raises(ConfigError, match=rf"waived for '{waiver.split()[1]}'"):
        support.judged(fleet.root, tmp_path / "judged", limits(tmp_path, waiver))


def test_a_waiver_lasts_a_year_at_most(tmp_path):
    today = datetime.date.today()
    near = (today + datetime.timedelta(days=365)).isoformat()
    far = (today + datetime.timedelta(days=367)).isoformat()
    loader.load(limits(tmp_path, f"gemm.bf16 {SICK}", expires=near))
    for expires in (far, "9999-12-31"):
        with pytest.raises(ConfigError, match="more than a year ahead"):
            loader.load(limits(tmp_path, f"gemm.bf16 {SICK}", expires=expires))
