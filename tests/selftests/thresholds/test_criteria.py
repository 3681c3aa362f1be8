"""Which limit of a criterion holds, and what else follows from its definition."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.errors import ConfigError
from fixtures.hardware import MissingFact
from fixtures.thresholds import criteria as schema
from fixtures.thresholds import limits
from fixtures.thresholds.contract import Contract
from fixtures.thresholds.criteria import DEPTHS, TIERS, CriterionBody, ValidWhere
from fixtures.thresholds.limits import Limit
from tests.selftests.small_thresholds import SMALL, load
from tests.selftests.verdict.made import criterion

pytestmark = pytest.mark.cpu

GIB = 2**30


def row(**given: Any) -> Limit:
    return Limit.model_validate({"source": "x", "fail_below": 1, **given})


def upper(**given: Any) -> Limit:
    return Limit.model_validate({"source": "x", "fail_above": 1, **given})


def test_a_criterion_says_what_it_measures_and_how_it_compares():
    found = criterion(row(when={"gpus": 8}), row(model="L40S"), upper(when={"nodes": 2}))
    assert found.measure == "own.rate"
    assert found.comparisons == (">=", "<=")
    assert found.conditions == {"gpus", "model", "nodes"}
    assert criterion(Limit(calibrate=True)).comparisons == ()
    assert TIERS[: len(DEPTHS)] == DEPTHS


def test_what_depends_on_the_gpu_model():
    for given, rows, depends in (
        ({"statistic": "value"}, (row(),), False),
        ({"statistic": "value"}, (row(model="L40S"),), True),
        ({"statistic": "value", "ceiling": 5.0}, (row(),), True),
        ({"statistic": "median"}, (row(),), True),
        ({"statistic": "spread"}, (row(),), True),
        ({"statistic": "dip"}, (row(),), False),
    ):
        assert criterion(*rows, **given).depends_on_model is depends, given


def test_which_of_two_values_is_the_worse_one():
    open_ = Limit(calibrate=True)
    for given, rows, higher in (
        ({}, (row(),), False),
        ({}, (upper(),), True),
        ({}, (row(), upper()), True),
        ({"unit": "us"}, (row(),), False),
        ({}, (open_,), False),
        ({"unit": "us"}, (open_,), True),
        ({"unit": "s"}, (open_,), True),
        ({"ceiling": "latency"}, (open_,), True),
        ({"ceiling": "hbm"}, (open_,), False),
    ):
        assert criterion(*rows, **given).higher_is_worse is higher, (given, rows)


def test_the_limit_is_chosen_by_all_facts_and_by_those_of_the_point():
    small, large = row(when={"size": "1MiB"}), row(when={"size": {"min": "1GiB"}})
    found = criterion(small, large, at={"size": GIB})
    assert found.limit_for({}) == large
    assert found.with_derived({"gpus": 8}) == {"size": GIB, "gpus": 8}
    bound = row(when={"bandwidth_bound": True})
    collective = criterion(bound, ceiling="all_gather", at={"size": 8 * GIB})
    facts = {"model": "H100 SXM", "gpus": 8, "nodes": 1, "gpus_per_node": 8}
    assert collective.with_derived(facts)["bandwidth_bound"] is True
    assert collective.limit_for(facts) == bound


def test_the_model_of_nccl_is_asked_only_where_a_limit_refers_to_it():
    facts = {"model": "H100 SXM", "gpus": 8, "nodes": 1, "gpus_per_node": 8}
    of_model = row(fail_below="0.8 of model")
    found = criterion(of_model, row(), ceiling="all_gather", at={"size": 8 * GIB})
    # 0.85 of the 450 GB/s of NVLink is what is attained of a large size
    assert found.model_for(of_model, facts) == pytest.approx(382, abs=3)
    assert found.model_for(row(), facts) is None
    assert found.model_for(upper(), facts) is None
    assert found.model_for(of_model, facts | {"model": "cpu"}) is None
    with pytest.raises(MissingFact, match="gpus"):
        found.model_for(of_model, {"model": "H100 SXM"})


def test_a_row_that_refers_to_the_order_holds_where_the_order_says_it():
    ordered, usual = row(fail_below="0.9 of cluster.host_memory_gbs"), row()
    other = row(when={"gpus": 8})
    found = criterion(ordered, usual, other)
    silent = Contract(nodes=2, gpus_per_node=8, gpu_model="H200 SXM")
    said = Contract(nodes=2, gpus_per_node=8, gpu_model="H200 SXM", host_memory_gbs=400)
    assert found.under(said).limits == (ordered, other)
    assert found.under(silent).limits == (usual, other)
    assert found.under(None).limits == (usual, other)
    alone = criterion(ordered, other)
    for contract in (None, silent, said):
        assert alone.under(contract) is alone, "it stays, to say what is missing"
    alike = criterion(row(), row(fail_below=2))
    assert alike.under(said) is alike


def test_limits_that_no_record_can_need_or_that_tie_are_found_before_the_run():
    ring, nvls = row(when={"algorithm": "ring"}), row(when={"nvls": True})
    with pytest.raises(ConfigError, match="equally specific"):
        criterion(ring, nvls).check_limits({})
    criterion(nvls).check_limits({})  # without NVLS there is none; with it there is one
    with pytest.raises(limits.NoLimit):
        criterion(row(model="L40S")).check_limits({"model": "L40"})
    criterion(row(model="L40S")).check_limits({"model": "L40S"})
    criterion(row(when={"gpus": 8})).check_limits({})
    criterion(row(when={"size": "1GiB"}), at={"size": GIB}).check_limits({})


def test_bounds_on_checks_are_the_criterions_those_of_conditions_and_the_rows():
    where = ValidWhere.model_validate(
        {"when": {"size": {"min": "1GiB"}}, "bounds": {"a": [2, None], "c": [0, 1]}}
    )
    limit = row(valid={"b": [None, 9]})
    valid = {"a": (1, None), "b": (None, 5)}
    found = criterion(limit, valid=valid, valid_where=(where,), at={"size": GIB})
    assert found.valid_for(limit, {}) == {"a": (2, None), "b": (None, 9), "c": (0, 1)}
    assert found.valid_for(limit, {"size": 1}) == {"a": (1, None), "b": (None, 9)}
    assert found.valid == valid


def test_the_bound_is_a_number_or_follows_from_the_hardware():
    assert criterion(row(), ceiling=100.0).bound({}) == 100.0
    assert criterion(row()).bound({}) is None
    facts = {"model": "H100 SXM", "compute_capability": 9.0, "memory_clock_mhz": 2619.0,
             "memory_bus_bits": 5120}  # fmt: skip
    assert criterion(row(), ceiling="hbm").bound(facts) == pytest.approx(3352, rel=0.001)
    gemm = {"model": "H200 SXM", "compute_capability": 9.0, "sm_count": 132,
            "max_sm_clock_mhz": 1980}  # fmt: skip
    found = criterion(row(), ceiling="gemm", metric="bf16").bound(gemm)
    assert found == pytest.approx(1070.5, abs=1)


def test_values_are_only_recorded_where_that_is_certain_before_the_run():
    record, judged = Limit(recorded="no figure"), row(when={"nvls": True})
    assert criterion(record).recorded_reason({}) == "no figure"
    assert criterion(record, judged).recorded_reason({}) is None
    assert criterion(record, row(when={"nvls": False})).recorded_reason({}) is None
    assert criterion(record, judged).recorded_reason({"nvls": False}) == "no figure"
    assert criterion(judged).recorded_reason({"nvls": False}) is None
    assert criterion(row()).recorded_reason({}) is None
    at_size = Limit.model_validate({"recorded": "large", "when": {"size": "1GiB"}})
    assert criterion(at_size, at={"size": GIB}).recorded_reason({}) == "large"


def test_conditions_of_a_file_of_limits_choose_its_row(tmp_path: Path):
    found = load(tmp_path, SMALL).criteria["allreduce.node.1GiB"]
    h200 = {"model": "H200 SXM", "gpus": 8, "nodes": 1}
    assert found.limit_for(h200 | {"nvls": True}).fail_below == limits.Value(445)
    with pytest.raises(limits.UnknownFact, match="depends on nvls"):
        found.limit_for(h200)
    found.check_limits(h200)


def test_points_and_ranges_of_sizes_are_read_in_bytes():
    assert schema._sweep_points({"size": ["1KiB", "1MiB"], "to": 1, "a": ["x", 2]}) == {
        "size": (1024, 2**20), "to": (1,), "a": ("x", 2),
    }  # fmt: skip
    for given_, found in (
        (["1KiB", "1MiB"], (1024, 2**20)), ([None, "1MiB"], (None, 2**20)),
        (["1KiB", None], (1024, None)),
    ):  # fmt: skip
        assert schema._size_range(given_) == found
    for wrong in ("1KiB", ["1KiB"], ["1KiB", "1MiB", "1GiB"], [None, None]):
        with pytest.raises(ValueError, match=r"expected \[low, high\]"):
            schema._size_range(wrong)
    for wrong in (["1MiB", "1MiB"], ["1GiB", "1MiB"]):
        with pytest.raises(ValueError, match="is not below the high end"):
            schema._size_range(wrong)


def test_bounds_under_conditions_hold_unless_one_is_false():
    bounds = ValidWhere.model_validate(
        {"model": "L40S", "when": {"gpus": 8}, "bounds": {"a": [1, None]}}
    )
    for given_, held in (
        ({}, True), ({"model": "L40S"}, True), ({"model": "L40S", "gpus": 8}, True),
        ({"model": "L40"}, False), ({"gpus": 4}, False),
    ):  # fmt: skip
        assert bounds.hold(given_) is held
    assert ValidWhere.model_validate({"bounds": {"a": [1, None]}}).hold({"model": "L40"}) is True


def test_only_kinds_that_are_judged_are_read():
    body = {"title": "x", "unit": "GB/s", "per": "node", "limits": [{"calibrate": True}]}
    for given_, refused in (
        ({}, ""), ({"over": "links"}, ""), ({"statistic": "value", "over": "half"}, ""),
        ({"over": "nics"}, "median has no 'over: nics' (but slowest, ranks, links, nodes)"),
        ({"statistic": "dip", "over": "ranks"}, "dip has no 'over: ranks' (but slowest)"),
    ):  # fmt: skip
        expected = pytest.raises(ValueError) if refused else contextlib.nullcontext()
        with expected as caught:
            CriterionBody.model_validate({**body, **given_})
        assert caught is None or refused in str(caught.value), given_


def test_devices_are_compared_where_their_spread_is_known(tmp_path):
    gemm = load(tmp_path).criteria["gemm.bf16"]
    for changed, compared in (
        ({}, True), ({"per": "rail"}, True), ({"per": "pair"}, False), ({"per": "cluster"}, False),
        ({"spread": None}, False), ({"statistic": "spread"}, False),
    ):  # fmt: skip
        assert replace(gemm, **changed).compares_with_fleet is compared, changed
