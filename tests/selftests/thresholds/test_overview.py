"""The limits that hold for an order, one row each."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from fixtures.thresholds import overview
from fixtures.thresholds.contract import Contract
from fixtures.thresholds.limits import Limit
from fixtures.thresholds.loader import Thresholds
from fixtures.thresholds.overview import LimitRow, OrderedSite, limit_rows
from tests.selftests.support import load

pytestmark = pytest.mark.cpu

FILE = """\
schema: 1
cluster: {cluster}
criteria:
  own.fast:
    title: Fast
    per: node
    unit: GB/s
    ceiling: hbm
    loose: a small test
    limits:
      - {model: H200 SXM, expect: 660, fail_below: 605, source: measured, loose: new}
      - {model: L40S, recorded: "recorded, not judged: nobody knows"}
      - {model: B200, calibrate: true}
  own.state:
    title: Right
    per: node
    unit: state
    statistic: value
    limits:
      - {equals: default, source: the order}
  own.tb:
    title: Large
    per: cluster
    unit: TB
    statistic: value
    limits:
      - {fail_below: 0.95 of cluster.shared_tb, source: the order}
  own.errors:
    title: Quiet
    per: node
    unit: errors
    statistic: value
    when: nics
    limits:
      - {fail_above: 0, source: exact}
  own.sweep:
    title: Sent at {size}
    per: node
    unit: GB/s
    at: {size: [1MiB, 1GiB, 2GiB]}
    ceiling: all_gather
    loose: a small test
    limits:
      - {expect: 0.9 of model, fail_below: 0.8 of model, source: model,
         when: {nodes: 1, size: {min: 1GiB}, gpus_per_node: 8, nvls: true}}
      - {expect: 2, fail_below: 1, source: small, when: {nvls: false}, loose: x}
      - {expect: 3, fail_below: 2, source: wide, loose: x,
         when: {gpus_per_node: 8, nics_per_node: 8, nic_gbps: 400}}
  own.single:
    title: Sent at {size}
    per: node
    unit: GB/s
    at: {size: 1GiB}
    loose: a small test
    limits:
      - {expect: 3, fail_below: 2, source: measured}
  own.counted:
    title: Counted
    per: node
    unit: GB/s
    at: {messages: [1024, 2048]}
    loose: a small test
    limits:
      - {expect: 3, fail_below: 2, source: measured}
  own.cluster:
    title: All
    per: cluster
    unit: us
    loose: a small test
    limits:
      - {expect: 5, fail_above: 9, source: measured, when: {nodes: 4}}
      - {fail_above: 7, loose: short, source: measured, when: {nodes: 2}}
"""
SWEEP = "own.sweep"


@pytest.fixture(scope="module")
def limits(tmp_path_factory: pytest.TempPathFactory) -> Thresholds:
    return load(tmp_path_factory.mktemp("limits"), FILE.replace("{cluster}", "{}"))


def site(model: str | None = "H200 SXM", **given: Any) -> OrderedSite:
    return OrderedSite(gpu_model=model, **given)


def rows(
    limits: Thresholds, key: str, where: OrderedSite | None = None, *, sized: bool = False
) -> list[LimitRow]:
    found = limit_rows(limits, where or site(), sized=sized)
    return [row for row in found if row.criterion.startswith(key)]


def test_a_limit_is_listed_with_its_numbers_and_its_source(limits):
    (fast,) = rows(limits, "own.fast")
    assert fast == LimitRow(
        criterion="own.fast", title="Fast", unit="GB/s", when="", limit=">= 605", expect="660",
        source="measured; lenient: new", not_judged="",
    )  # fmt: skip
    assert fast.shown_limit == ">= 605 GB/s"
    (state,) = rows(limits, "own.state")
    assert (state.limit, state.shown_limit, state.expect) == ("= default", "= default", "")
    (errors,) = rows(limits, "own.errors")
    assert (errors.limit, errors.source) == ("<= 0", "exact")


def test_what_is_not_judged_says_why(limits):
    for model, why in (
        ("L40S", "nobody knows"),
        ("B200", "to be calibrated"),
        ("A40", "no limit for this hardware"),
    ):
        (fast,) = rows(limits, "own.fast", site(model))
        assert why in fast.not_judged
        assert "recorded" not in fast.not_judged
        assert fast.limit == ""
    (errors,) = rows(limits, "own.errors", site(nics_per_node=0))
    assert errors.not_judged == "the order names no NICs"
    assert errors.limit == ""
    assert len(rows(limits, "own.fast", site(None))) == 3, "of every model"


def test_a_sweep_has_one_row_for_the_sizes_with_the_same_limit(limits):
    small, wide, model = (
        next(row for row in rows(limits, SWEEP) if row.source.startswith(source))
        for source in ("small", "wide", "model")
    )
    assert small.criterion == wide.criterion == model.criterion == SWEEP
    assert small.title == "Sent"
    assert small.when == "1MiB, 1GiB, 2GiB; nvls=false"
    assert wide.when == "1MiB, 1GiB, 2GiB; 8 GPUs and 8 x 400 Gbit/s per node"
    assert model.when == "1GiB, 2GiB; nodes=1; gpus_per_node=8; nvls=true"
    assert (model.limit, model.expect) == (">= 0.8 of model", "0.9 of model")
    (single,) = rows(limits, "own.single")
    assert (single.title, single.when) == ("Sent at 1GiB", ""), "one size is part of the title"


def test_of_an_order_with_known_numbers_the_fractions_are_computed(limits):
    ordered = site(nodes=("", "", "", ""), nic_gbps=400, nvls=True)
    found = rows(limits, SWEEP, ordered, sized=True)
    by_size = {row.when: row for row in found if "model" in row.limit}
    assert set(by_size) == {"1GiB", "2GiB"}, "the model gives another number at each size"
    assert all(row.limit.startswith(">= 3") for row in by_size.values())
    wide = [row for row in found if row.source.startswith("wide")]
    assert [row.when for row in wide] == ["1MiB"], "of larger sizes another row says more"
    assert not [row for row in found if row.source.startswith("small")], "NVLS is on"
    (cluster,) = rows(limits, "own.cluster", ordered, sized=True)
    assert (cluster.when, cluster.limit, cluster.expect) == ("", "<= 9", "5")
    (other,) = rows(limits, "own.cluster", site(nodes=("", ""), nic_gbps=400), sized=True)
    assert (other.limit, other.expect, other.source) == ("<= 7", "", "measured; lenient: short")


def test_a_number_of_the_order_is_shown_where_there_is_one(limits, tmp_path):
    (unknown,) = rows(limits, "own.tb")
    assert unknown.limit == ">= 0.95 of cluster.shared_tb"
    text = "{nodes: 2, gpus_per_node: 8, gpu_model: H200 SXM, shared_tb: 200}"
    ordered = load(tmp_path, FILE.replace("{cluster}", text))
    (known,) = rows(ordered, "own.tb")
    assert known.limit == ">= 190 (0.95 of cluster.shared_tb)"


def test_the_site_of_an_order_has_what_it_says():
    least = Contract(nodes=3, gpus_per_node=4, gpu_model="cpu")
    small = OrderedSite.of(least)
    assert (small.nodes, small.gpus_per_node, small.gpu_model) == (("",) * 3, 4, "cpu")
    assert (small.nics_per_node, small.nic_gbps, small.shared_tb) == (0, 0, 0)
    assert small.on_cpu
    assert not any((small.shared_directory, small.rail_optimized, small.nvls))
    ordered = Contract(
        nodes="n[1-2]", gpus_per_node=8, gpu_model="H200 SXM", nics_per_node=4, nic_gbps=400,
        nic_fabric="RoCE", shared_directory="/s", shared_tb=5, rail_optimized=True,
    )  # fmt: skip
    full = OrderedSite.of(ordered)
    assert (full.nics_per_node, full.nic_gbps, full.shared_tb) == (4, 400, 5)
    assert full.nic_fabric == "RoCE"
    assert full.shared_directory
    assert full.rail_optimized
    assert full.nvls
    assert not full.on_cpu


def test_the_facts_of_a_subject_are_those_of_its_nodes(limits):
    def facts(key: str, where: OrderedSite, sized: bool = True) -> dict[str, Any]:
        return overview._facts_at(limits.criteria[key], where, sized=sized)

    large = site(nodes=("",) * 4, nvls=True, nic_gbps=400)
    assert facts("own.fast", large) == {
        "model": "H200 SXM", "nodes": 1, "gpus": 8, "gpus_per_node": 8, "nics_per_node": 8,
        "nic_gbps": 400, "nic_fabric": "InfiniBand", "nvls": True,
    }  # fmt: skip
    assert facts("own.fast", large, sized=False) == {"model": "H200 SXM"}
    assert facts("own.fast", site(None), sized=False) == {}
    assert "nvls" not in facts("own.fast", site())
    whole = facts("own.cluster", large)
    assert (whole["nodes"], whole["gpus"]) == (4, 32)


def test_of_a_rail_one_gpu_of_each_node_takes_part(tmp_path):
    text = FILE.replace("{cluster}", "{}").replace(
        "title: All\n    per: cluster", "title: All\n    per: rail"
    )
    limits = load(tmp_path, text)
    large = site(nodes=("",) * 4, nvls=True)
    rail = overview._facts_at(limits.criteria["own.cluster"], large, sized=True)
    assert (rail["nodes"], rail["gpus"]) == (4, 4)
    assert "nvls" not in rail
    pair = overview._facts_at(
        load(tmp_path, text.replace("per: rail", "per: pair")).criteria["own.cluster"], large,
        sized=True,
    )  # fmt: skip
    assert (pair["nodes"], pair["gpus"]) == (2, 16)


def test_a_less_specific_row_is_left_out_only_where_a_better_one_is_certain():
    def row(**when: Any) -> Limit:
        return Limit.model_validate({"fail_below": 1, "source": "x", "when": when})

    any_, eight, both, nvls = row(), row(gpus=8), row(gpus=8, nodes=1), row(nvls=True)
    facts = {"gpus": 8}
    assert overview._not_beaten([any_, eight], facts) == [eight]
    assert overview._not_beaten([any_, both], facts) == [any_, both], "nodes is not known"
    assert overview._not_beaten([any_, eight, nvls, both], facts) == [eight, nvls, both]
    assert overview._may_hold(both, facts) is True
    assert overview._may_hold(both, {"gpus": 4}) is False


def test_the_key_of_a_point_is_that_of_its_sweep(limits):
    assert overview.file_key(limits.criteria["own.sweep.1GiB"]) == "own.sweep"
    assert overview.file_key(limits.criteria["own.fast"]) == "own.fast"
    assert overview.file_key(limits.criteria["own.counted.1024"]) == "own.counted"


def test_rows_survive_being_written_as_csv(limits):
    found = limit_rows(limits, site(), sized=False)
    text = overview.csv_text(found)
    assert overview.read_csv(text) == found
    assert next(csv.reader(io.StringIO(text))) == [
        "criterion", "title", "unit", "when", "limit", "expect", "source", "not_judged",
    ]  # fmt: skip
