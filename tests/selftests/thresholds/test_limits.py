"""Which limit of thresholds.yaml holds, what it says, and the limits that are shipped."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures import hardware
from fixtures.errors import ConfigError
from fixtures.thresholds import limits
from fixtures.thresholds.conditions import RECORD_ONLY
from fixtures.thresholds.contract import Contract
from fixtures.thresholds.lint import lint_row
from fixtures.thresholds.loader import Criterion, Thresholds
from fixtures.workloads.timing import rates
from tests.selftests.small_thresholds import SMALL, load

pytestmark = pytest.mark.cpu

SHIPPED = Path(__file__).parents[3] / "thresholds.yaml"


@pytest.fixture
def small(tmp_path: Path) -> Thresholds:
    return load(tmp_path)


# --- which limit holds

H200 = {"model": "H200 SXM", "gpus": 8, "nodes": 1, "power_limit": "default"}


def test_the_most_specific_row_wins(small):
    criterion = small.criteria["allreduce.node.1GiB"]
    assert criterion.limit_for(H200 | {"nvls": True}).fail_below.number == 445
    assert criterion.limit_for(H200 | {"nvls": False}).fail_below.of_ceiling
    assert criterion.limit_for(H200 | {"gpus": 4}).fail_below.of_ceiling


def test_a_weaker_row_never_stands_in_for_one_that_an_unknown_fact_may_select(small):
    criterion = small.criteria["allreduce.node.1GiB"]
    with pytest.raises(limits.UnknownFact, match="depends on nvls, which is not known"):
        criterion.limit_for(H200)
    criterion.check_limits(H200)


def test_no_row_is_an_error_that_prints_the_conditions(small):
    with pytest.raises(limits.NoLimit, match=r"no limit for model=L40S \(rows: model=H200 SXM\)"):
        small.criteria["gemm.bf16"].limit_for({"model": "L40S"})
    with pytest.raises(limits.NoLimit):
        small.criteria["gemm.bf16"].check_limits({"model": "L40S"})


TIE = SMALL.replace(
    "      - {expect: 0.72 of ceiling",
    "      - {model: H200 SXM, when: {gpus: {min: 4}, algorithm: ring}, expect: 366,"
    " fail_below: 345, source: x}\n      - {expect: 0.72 of ceiling",
)


def test_two_equally_specific_are_an_error_before_the_run(tmp_path):
    criterion = load(tmp_path, TIE).criteria["allreduce.node.1GiB"]
    said = r"equally specific for .*\(model=H200 SXM, gpus>=4, algorithm=ring\) and \(model=.*nvls"
    with pytest.raises(ConfigError, match=said):
        criterion.limit_for(H200 | {"nvls": True, "algorithm": "ring"})
    with pytest.raises(ConfigError, match=said):
        criterion.check_limits(H200)
    criterion.check_limits(H200 | {"gpus": 2})
    assert criterion.limit_for(H200 | {"nvls": True}).fail_below.number == 445
    assert criterion.limit_for(H200 | {"gpus": 4, "algorithm": "ring"}).fail_below.number == 345


MODELS = ["H200 SXM", "H100 SXM"]
CONDITIONS = st.fixed_dictionaries(
    {},
    optional={
        "gpus": st.sampled_from([4, 8, {"min": 4}, {"min": 2, "max": 8}]),
        "nodes": st.sampled_from([1, 2, {"max": 3}]),
        "nvls": st.booleans(),
        "algorithm": st.just("ring"),
        "power_limit": st.sampled_from(["default", "lowered"]),
    },
)
ROWS = st.lists(
    st.tuples(st.sampled_from([None, *MODELS, MODELS]), CONDITIONS), min_size=1, max_size=6
)
FACTS = st.fixed_dictionaries(
    {
        "model": st.sampled_from(MODELS),
        "gpus": st.sampled_from([2, 4, 8, 16]),
        "nodes": st.sampled_from([1, 2, 4]),
        "power_limit": st.sampled_from(["default", "lowered"]),
        "nvls": st.booleans(),
    },
    optional={"algorithm": st.just("ring")},
)


def rows_of(drawn) -> list[limits.Limit]:
    rows = []
    for number, (model, when) in enumerate(drawn):
        data = {"when": when, "fail_below": number + 1.0, "source": "x"}
        rows.append(limits.Limit.model_validate(data | ({"model": model} if model else {})))
    return rows


def outcome(rows, facts):
    try:
        return limits.choose("x", rows, facts)
    except limits.NoLimit:
        return "none"
    except limits.UnknownFact:
        return "open"
    except ConfigError:
        return "tie"


@settings(deadline=None)
@given(ROWS, FACTS, st.randoms(use_true_random=False))
def test_the_order_of_rows_never_matters(drawn, facts, random):
    rows = rows_of(drawn)
    shuffled = rows.copy()
    random.shuffle(shuffled)
    assert outcome(rows, facts) == outcome(shuffled, facts)


@settings(deadline=None)
@given(ROWS, FACTS)
def test_the_chosen_row_holds_and_no_other_says_more(drawn, facts):
    rows = rows_of(drawn)
    chosen = outcome(rows, facts)
    fitting = [row for row in rows if row.unresolved(facts) == []]
    if chosen == "none":
        assert not fitting
    elif chosen == "tie":
        most = max(len(row.conditions()) for row in fitting)
        assert sum(len(row.conditions()) == most for row in fitting) > 1
    else:
        assert chosen in fitting
        others = [row for row in fitting if row is not chosen]
        assert all(len(row.conditions()) < len(chosen.conditions()) for row in others)


@settings(deadline=None)
@given(ROWS, FACTS)
def test_a_plan_that_is_accepted_never_ends_in_a_tie(drawn, facts):
    rows = rows_of(drawn)
    known = {k: v for k, v in facts.items() if k not in RECORD_ONLY}
    outcomes = {outcome(rows, more) if isinstance(outcome(rows, more), str) else "one"
                for more in limits.possible_facts(rows, known)}  # fmt: skip
    if "tie" not in outcomes:
        assert outcome(rows, facts) != "tie"
    assert "open" not in outcomes


# --- what a limit says


def test_limits_resolve_to_numbers_and_text(small, shipped):
    contract = Contract(nodes="gpu[01-32]", gpus_per_node=8, gpu_model="H200 SXM")
    fixed = small.criteria["gemm.bf16"].limit_for(H200).resolve(1070, None)
    assert (fixed.kind, fixed.value, fixed.expect, fixed.text) == ("below", 605, 660, ">= 605")
    share = small.criteria["allreduce.node.1GiB"].limit_for(H200 | {"gpus": 4})
    assert share.resolve(450, None).value == pytest.approx(270)
    assert share.resolve(450, None).text == ">= 270 (0.6 of ceiling 450)"
    with pytest.raises(ConfigError, match="no ceiling"):
        share.resolve(None, None)
    count = small.criteria["inventory.gpus"].limit_for({})
    assert count.resolve(None, contract).value == 8
    assert count.resolve(None, contract).text == "= 8"
    with pytest.raises(ConfigError, match="cluster: is empty"):
        count.resolve(None, None)
    nodes = shipped.criteria["inventory.nodes"].limit_for({}).resolve(None, contract)
    assert nodes.value == 32
    errors = shipped.criteria["allreduce.node.errors"].limit_for({}).resolve(None, None)
    assert (errors.kind, errors.value, errors.text) == ("above", 0, "<= 0")
    with pytest.raises(ConfigError, match="does not say nics_per_node"):
        shipped.criteria["inventory.nics"].limit_for({}).resolve(None, contract)


def test_a_row_that_a_person_must_fill_in_has_no_number(shipped):
    limit = shipped.criteria["gemm.bf16"].limit_for({"model": "L40", "power_limit": "default"})
    assert limit.resolve(300, None).kind == "calibrate"
    assert limit.resolve(300, None).value is None


def test_a_lowered_power_limit_leaves_no_limit(shipped):
    with pytest.raises(limits.NoLimit, match="power_limit=lowered"):
        shipped.criteria["gemm.bf16"].limit_for(H200 | {"power_limit": "lowered"})


def test_rows_replace_the_criterions_bounds_of_the_same_name(shipped):
    criterion = shipped.criteria["gemm.fp32"]
    cpu = criterion.valid_for(criterion.limit_for({"model": "cpu"}), {"model": "cpu"})
    gpu = criterion.valid_for(criterion.limit_for(H200), H200)
    assert gpu == criterion.valid | {"clock_ceiling": (None, 1.05)}
    assert cpu == criterion.valid | {"batches": (5, None), "overlap": (0.1, None)}
    assert gpu["batches"] == (20, None)
    assert gpu["relative_error"] == (None, 2e-5)


# --- what is not judged


def test_a_size_without_a_figure_is_recorded_and_not_judged(shipped):
    criterion = shipped.criteria["allreduce.node.256MiB"]
    assert shipped.not_applicable(criterion, H200, {"multigpu"}) is None
    reason = criterion.recorded_reason(H200)
    assert reason.startswith("recorded, not judged")
    assert criterion.recorded_reason(H200 | {"gpus": 4}) is None
    resolved = criterion.limit_for(H200).resolve(450, None)
    assert (resolved.kind, resolved.source) == ("recorded", reason)


# --- fractions of what was ordered


def of_contract(**row: object) -> limits.Limit:
    return limits.Limit.model_validate({"source": "the order", **row})


def test_limit_is_a_fraction_of_what_was_ordered():
    row = of_contract(fail_below="0.95 of cluster.shared_tb")
    order = Contract(nodes=1, gpus_per_node=1, gpu_model="cpu", shared_tb=200)
    resolved = row.resolve(None, order)
    assert resolved.value == pytest.approx(190)
    assert resolved.text == ">= 190 (0.95 of cluster.shared_tb)"
    assert lint_row(row, [], None) is None


@pytest.mark.parametrize(
    ("order", "says"),
    [
        (None, "cluster: is empty"),
        (Contract(nodes=1, gpus_per_node=1, gpu_model="cpu"), "does not say shared_tb"),
    ],
)
def test_fraction_of_what_was_not_ordered_is_no_limit(order, says: str):
    with pytest.raises(ConfigError, match=says):
        of_contract(fail_below="0.95 of cluster.shared_tb").resolve(None, order)


def test_fraction_of_an_unknown_field_is_refused():
    with pytest.raises(ValueError, match="no field 'shared_tbb'"):
        of_contract(fail_below="0.95 of cluster.shared_tbb")


# --- the shipped file


def situations(model: str, gpus: int, nodes: int):
    """Facts before the run, and what a record may add."""
    plan = {
        "model": model, "gpus_per_node": gpus, "nics_per_node": 8, "nic_gbps": 400,
        "cpu_cores": 2, "cpu_max_ghz": 3.0,
    }  # fmt: skip
    for nvls in (True, False):
        for ring in ({}, {"algorithm": "ring"}):
            yield plan, {"nvls": nvls, "sharp": False, "power_limit": "default", **ring}


def around(criterion: Criterion, gpus: int, nodes: int):
    count = {"node": 1, "pair": 2}.get(criterion.per, nodes)
    return {
        "gpus": gpus * count, "nodes": count, "domains": count, "gpus_per_domain": gpus,
    }  # fmt: skip


@pytest.mark.parametrize("model", hardware.MODELS)
@pytest.mark.parametrize(("gpus", "nodes"), [(1, 1), (2, 2), (4, 1), (8, 2), (8, 3), (8, 64)])
def test_every_criterion_has_one_possible_limit_or_a_reason_for_every_model(
    shipped, model, gpus, nodes
):
    gpu = hardware.GPUS.get(model)
    contract = Contract(
        nodes=nodes, gpus_per_node=gpus, gpu_model=model, nics_per_node=8, nic_gbps=400
    )
    holds = {"order", "nics", "own_host"} | ({"gpu"} if gpu else set())
    holds |= {"fp8"} if gpu and gpu.fp8 else set()
    holds |= ({"multigpu"} if gpus > 1 else set()) | ({"multinode"} if nodes > 1 else set())
    holds |= {"several"} if gpus * nodes > 1 else set()
    device = {"flops_per_token": 5e10 if gpu else 6e5}
    if gpu:
        device |= {
            "compute_capability": gpu.compute_capability,
            "sm_count": gpu.sm_count or 150,
            "max_sm_clock_mhz": gpu.max_sm_clock_mhz or 2000,
            "memory_clock_mhz": 2000,
            "memory_bus_bits": 5120,
            "pcie_gen": gpu.pcie_gen,
            "pcie_width": 16,
            "alone_gbps": 50,
        }
    judged = set()
    for criterion in shipped.criteria.values():
        for plan, record in situations(model, gpus, nodes):
            plan = plan | around(criterion, gpus, nodes)
            if shipped.not_applicable(criterion, plan, holds):
                continue
            criterion.check_limits(plan)
            if criterion.recorded_reason(plan):
                assert "1GiB" not in criterion.key
                continue
            facts = plan | device | record
            row = criterion.limit_for(facts)
            expected = criterion.model_for(row, facts)
            resolved = row.resolve(criterion.bound(facts), contract, expected)
            judged.add(criterion.key)
            bound = criterion.bound(facts)
            if resolved.kind == "below" and bound is not None:
                assert 0 < resolved.value <= (resolved.expect or resolved.value) <= bound
    assert {"environment.versions", "gemm.bf16", "inventory.gpus"} <= judged


def test_the_shipped_keys(shipped):
    keys = set(shipped.criteria)
    assert {f"gemm.{d}" for d in ("bf16", "fp16", "tf32", "fp32", "fp8", "spread")} <= keys
    for where, sizes in (("node", "256MiB 1GiB 4GiB 8GiB"), ("pair", "256MiB 1GiB 8GiB")):
        assert {f"allreduce.{where}.{size}" for size in sizes.split()} <= keys
    assert shipped.cluster is None
    assert shipped.waivers == ()
    assert shipped.criteria["gemm.spread"].measure == "gemm.bf16"
    assert shipped.criteria["allreduce.node.1GiB"].title.endswith("at 1GiB")


def test_every_source_means_something_to_a_customer(shipped):
    for criterion in shipped.criteria.values():
        for row in criterion.limits:
            source = row.source or ""
            assert ".md" not in source or "ml-engineering" in source or row.published
            assert "/work" not in source
            assert "section" not in source


@pytest.mark.parametrize(
    ("model", "links"), [("A100 SXM 80", 12), ("H200 SXM", 18)], ids=["A100", "H200"]
)
def test_a_gpu_that_lost_one_nvlink_is_below_the_floor_of_its_copies(shipped, model, links):
    """5.6 % with 18 links; the other GPUs of a node may have lost one each."""
    keys = ["p2p.write", "p2p.both"] if links == 18 else ["p2p.write"]
    for key in keys:
        limit = shipped.criteria[key].limit_for({"model": model, "gpus": 8, "nodes": 1})
        assert limit.fail_below.number > limit.expect.number * (links - 1) / links


@pytest.mark.parametrize(
    ("errors", "seconds", "fine"),
    [(0, 20, True), (1, 1, True), (120, 3600, True), (121, 3600, False), (4, 60, False),
     (10, 20, False), (600, 3600, False)],
)  # fmt: skip
def test_symbol_errors_are_judged_by_the_hour_whatever_the_window(shipped, errors, seconds, fine):
    limit = shipped.criteria["infiniband.symbol_error"].limit_for({"model": "H200 SXM"})
    assert (rates.per_minute(errors, seconds) <= limit.fail_above.number) is fine
