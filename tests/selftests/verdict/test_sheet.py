"""The facts that select a limit: of the plan, of the devices and of the measurement."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.model import Void
from fixtures.verdict import sheet as module
from fixtures.verdict.causes import Cause
from fixtures.verdict.model import Outcome, Verdict
from fixtures.verdict.samples import Invalid
from fixtures.verdict.sheet import Terms, collect_facts, terms_of, values_by_nodes
from tests.selftests.fleets import fleet, whole_fleet
from tests.selftests.support import edited
from tests.selftests.verdict import made
from tests.selftests.verdict.made import criterion, measured, points, rank, record, resolved, row

__all__ = ["fleet", "whole_fleet"]

pytestmark = pytest.mark.cpu

PLAN = {"model": "H200 SXM", "nodes": 1, "gpus": 2}
NVLS = criterion(row(when={"nvls": True}, fail_below=1), workload="gemm")


def ranks(*conditions: dict[str, Any], node: str = "worker0", first: int = 0) -> list[Any]:
    return [
        rank(first + k, measured("rate", 1, conditions=c), node=node)
        for k, c in enumerate(conditions)
    ]


def facts(
    *conditions: dict[str, Any], of: Any = NVLS, plan: Any = PLAN, device: Any = None
) -> dict[str, Any]:
    found = record(*ranks(*conditions))
    for r in found.ranks:
        r.device.update(device or {})
    return collect_facts(made.case(of, facts=plan), found, points(found))


def test_facts_of_plan_device_and_measurement_are_merged():
    found = facts({"nvls": True}, {"nvls": True})
    assert found["metric"] == "rate"
    assert {k: found[k] for k in PLAN} == PLAN
    assert (found["nvls"], found["sm_count"]) == (True, 132)
    assert "uuid" not in found
    assert facts({}, {}, plan={**PLAN, "sm_count": 7})["sm_count"] == 7, "the plan's stay"


def test_a_fact_is_said_by_its_values_and_their_nodes():
    two = record(*ranks({"a": 1}, {"a": 1}), *ranks({"a": 2}, node="worker1", first=2))
    assert values_by_nodes(points(two), "a") == "1 on worker0; 2 on worker1"
    assert values_by_nodes(points(two), "b") == values_by_nodes(points(two), "sm_count") == ""


@pytest.mark.parametrize("fact", ["max_sm_clock_mhz", "sm_count"])
def test_a_ceiling_by_a_fact_that_differs_was_recorded_and_accuses_nobody(fact, fleet, tmp_path):
    for path in (fleet.root / "records").glob("*.json"):
        with edited(path) as data:
            for r in data["ranks"]:
                if r["node"] == "gpu0002" and fact in r["device"]:
                    r["device"][fact] -= 20
    _, rows = fleet.judged(tmp_path / "judged")
    v = rows["finetune.rate", "cluster"]
    assert (v["outcome"], v["cause"]) == (Outcome.NOT_MEASURED, Cause.MEASUREMENT)
    assert f"{fact} differs between nodes: " in v["reason"]
    assert v["reason"].count(" on gpu000") == 2
    assert "was not recorded" not in "".join(v["reason"] for v in rows.values())


def test_a_fact_that_differs_is_none_unless_a_limit_depends_on_it():
    with pytest.raises(Invalid, match=r"nvls differs between devices: \['False', 'True'\]"):
        facts({"nvls": True}, {"nvls": False})
    with pytest.raises(Invalid, match="nvls differs"):
        facts({"nvls": True}, {"nvls": 1})
    other = criterion(row(fail_below=1))
    assert "nvls" not in facts({"nvls": True}, {"nvls": False}, of=other)
    gpus = criterion(row(when={"dtype": "a"}, fail_below=1))
    assert "dtype" not in facts({"dtype": "a"}, {"dtype": "b"}, of=gpus)
    known = facts({"nvls": True}, {"nvls": False}, plan={**PLAN, "nvls": True})
    assert known["nvls"] is True
    assert facts({"nvls": None}, {"nvls": False})["nvls"] is False, "one device does not say it"
    assert facts({"nvls": False}, {})["nvls"] is False


def test_the_model_is_that_of_the_device_where_nothing_was_ordered():
    plan = {"nodes": 1, "gpus": 2}
    assert facts({}, {}, plan=plan)["model"] == "H200 SXM"
    with pytest.raises(Invalid) as caught:
        facts({}, {}, plan=plan, device={"name": "never heard of"})
    assert caught.value.cause is Cause.LIMIT
    of = criterion(row(equals=1), statistic="value", workload="gemm")
    assert "model" not in facts({}, {}, plan=plan, of=of)
    assert facts({}, {}, device={"name": "never heard of"})["model"] == "H200 SXM"


def test_where_fewer_nodes_measured_they_are_counted_anew():
    names = ("worker0", "worker1", "worker2")
    plan = {"model": "H200 SXM", "nodes": 3, "gpus": 6}
    found = record(*ranks({}, {}), *ranks({}, {}, node="worker1", first=2))
    for per, gpus in (("cluster", 4), ("rail", 2)):
        case = made.case(criterion(row(fail_below=1), per=per), names, 6, facts=plan)
        counted = collect_facts(case, found, points(found))
        assert (counted["nodes"], counted["gpus"]) == (2, gpus)
    both = made.case(criterion(row(fail_below=1), per="cluster"), names[:2], 4, facts=plan)
    assert collect_facts(both, found, points(found))["nodes"] == 3
    voided = found.without({"worker1": Void("broken")})
    assert collect_facts(both, voided, points(voided))["nodes"] == 3, "it measured, and is void"


def test_terms_are_found_once_and_anew_where_anything_that_they_depend_on_differs():
    limits: Any = SimpleNamespace(cluster=None)
    plain = {"dtype": "a", "nvls": True}

    def found(
        *conditions: Any, of: Any = NVLS, plan: Any = PLAN, device: Any = None, by: Any = limits,
        nodes: Any = ("worker0",), per: Any = None,
    ) -> Terms:  # fmt: skip
        made_record = record(*ranks(*(conditions or (plain, plain))))
        for r in made_record.ranks:
            r.device.update(device or {})
        case = made.case(per or of, nodes, facts=plan)
        terms = terms_of(case, made_record, points(made_record), by)
        assert terms.facts == collect_facts(case, made_record, points(made_record))
        assert (terms.criterion, terms.thresholds) == (case.criterion, by)
        return terms

    first = found()
    assert found() is first
    assert found(plain, dict(plain)) is first, "equal conditions, equal devices"
    assert first.row is NVLS.limits[0]
    unordered = {"nodes": 1, "gpus": 2}
    others = [
        found(of=criterion(*NVLS.limits, workload="gemm")),
        found(by=SimpleNamespace(cluster=None)),
        found(plan={**PLAN, "gpus": 4}),
        found(plan={**PLAN, "gpus": True}),
        found(plan=unordered),
        found(plan=unordered, device={"name": "NVIDIA H100 80GB HBM3"}),
        found(device={"sm_count": 7}),
        found({**plain, "nvls": 1}, {**plain, "nvls": 1}),
        found(plain, {**plain, "dtype": "b"}),
        found(plain),
        found(nodes=("worker0", "worker1")),
    ]
    different = [terms for terms in others if terms is not first]
    assert len({id(terms) for terms in different}) == len(others) - 1
    assert others[9] is first, "one device of a kind says as much as two"
    assert [t.facts["model"] for t in others[4:6]] == ["H200 SXM", "H100 SXM"]
    assert (others[10].facts["nodes"], first.facts["nodes"]) == (1, 1)


def test_the_memory_of_terms_is_bounded_and_keeps_no_failure(monkeypatch):
    monkeypatch.setattr(module, "MOST_TERMS", 3)
    monkeypatch.setattr(module, "_TERMS", {})
    found, limits = record(*ranks({}, {})), SimpleNamespace(cluster=None)
    for gpus in range(10):
        terms_of(made.case(NVLS, facts={**PLAN, "gpus": gpus}), found, points(found), limits)  # type: ignore[arg-type]
        assert len(module._TERMS) <= 3
    unlike = record(*ranks({"nvls": True}, {"nvls": False}))
    before = list(module._TERMS)
    for _ in range(2):
        with pytest.raises(Invalid, match="nvls differs"):
            terms_of(made.case(NVLS, facts=PLAN), unlike, points(unlike), limits)  # type: ignore[arg-type]
    assert list(module._TERMS) == before


def test_a_row_that_was_chosen_by_all_shapes_stays_that_of_one():
    other = row(recorded="no figure")
    assert Terms(NVLS, {}, SimpleNamespace(cluster=None), other).row is other


def test_a_verdict_gets_its_outcome_and_a_next_step_only_where_it_fails():
    def of(limit: Any, ok: bool, **given: Any) -> Verdict:
        case = made.case(criterion(), devices=2)
        return made.sheet(case, record(), limit).verdict(ok, next_step="look", **given)

    good = of(resolved("below", 5, text=">= 5"), True, value=6)
    assert (good.outcome, good.limit, good.next_step, good.value) == (Outcome.PASS, ">= 5", "", 6)
    assert good.devices == {"planned": 2, "measured": 2}
    bad = of(resolved("below", 5, text=">= 5", loose="new"), False, measured=0)
    assert (bad.outcome, bad.limit) == (Outcome.FAIL, ">= 5 (loose: new)")
    assert (bad.next_step, bad.devices["measured"]) == ("look", 0)
    only = resolved("recorded", source="recorded, not judged: no figure")
    noted = of(only, True, value=6, margin=0.5, measured=1)
    assert (noted.outcome, noted.value, noted.margin) == (Outcome.RECORDED, 6, None)
    assert (noted.reason, noted.next_step) == ("no figure", "")
    assert (noted.limit, noted.devices["measured"]) == ("recorded, not judged", 1)


def test_a_row_without_a_ceiling_has_none_where_its_kind_is_not_bounded():
    for statistic, ceiling in (("median", 9.0), ("value", 9.0), ("spread", None), ("dip", None)):
        of = criterion(row(fail_above=1), statistic=statistic, ceiling=9.0)
        demanded = Terms(of, {}, SimpleNamespace(cluster=None))
        assert (demanded.ceiling, demanded.limit.value) == (ceiling, 1)
        assert demanded.sigmas is None
