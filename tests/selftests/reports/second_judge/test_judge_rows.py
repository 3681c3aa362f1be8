"""The second judge: single rows on made-up records, who owes a value, and the ladder."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from reports.second_judge import absences, judge, samples
from reports.second_judge.physics import Cannot, Unknown

pytestmark = pytest.mark.cpu


def limit(kind: str = "below", value: Any = 10, **more) -> dict:
    return {"when": {}, "kind": kind, "value": value, "of_ceiling": False, "of_model": False,
            "valid": {}} | more  # fmt: skip


def row_of(nodes="a", *, subject="a", applies=True, place="a", facts=None, **c) -> Any:
    known = {
        "key": "k", "per": "node", "over": "devices", "statistic": "median", "metric": "m",
        "at": {}, "rows": [limit()], "may_lack": False, "ceiling": None, "measured_unit": "",
        "unit": "GB/s", "valid": {}, "valid_where": [], "within": None, "sweep": (None, None),
        "spread": {}, "tail": None, "workload": "w",
    }  # fmt: skip
    return SimpleNamespace(
        c=known | c, subject=subject, nodes=tuple(nodes), place=place, unknown=[], owed=0,
        applies=applies, facts={"model": "H200 SXM"} if facts is None else facts,
    )  # fmt: skip


def of(*samples: float, **more) -> dict:
    return {"metric": "m", "unit": "GB/s", "samples": list(samples) or [20.0]} | more


def stated(value: Any, **more) -> dict:
    return {"metric": "m", "unit": "GB/s", "value": value} | more


def rank(k: int, node: str, *found: dict, **more) -> dict:
    return {"rank": k, "local_rank": k % 2, "node": node, "device": {}, "facts": {},
            "absent": [], "measurements": list(found)} | more  # fmt: skip


def record_of(*ranks: dict, nodes: str = "a", left: str | None = None) -> dict:
    return {
        "nodes": list(nodes), "left": set(nodes if left is None else left), "ranks": list(ranks),
        "world_size": len(ranks), "of_node": {n: [r for r in ranks if r["node"] == n]
                                              for n in nodes},
    }  # fmt: skip


def both(*samples: float) -> dict:
    return record_of(rank(0, "a", of(*samples)), rank(1, "a", of(*samples)))


def judge_of(
    *rows, attempts=(), run=None, waivers=(), order=None, demo=False, failed=None, **p
) -> Any:
    people = {
        "nodes": ("a",), "gpus_per_node": 2, "nics_per_node": 2, "origin": "cluster",
        "ordered": False, "virtual": False, "on_cpu": False, "measured": set(),
    } | p  # fmt: skip
    records = SimpleNamespace(
        population=SimpleNamespace(**people), attempts=lambda *_: list(attempts),
        newest=lambda *_: attempts[0], is_demonstration=lambda *_: demo, failed=failed or {},
    )  # fmt: skip
    limits = {
        "criteria": [],
        "order": None,
        "not_applicable": [],
        "waivers": list(waivers),
        "compared": 1,
    }
    made = judge.SecondJudge(run or {}, limits, records)
    limits["order"], made.p.ordered = order, people["ordered"]
    made.plan = {(row.c["key"], row.subject): row for row in rows}
    return made


def said(row, record, **more) -> tuple:
    return judge_of(row, **more)._judge(row, record)


VALUE = {"statistic": "value", "over": "tasks"}
RECORDED = {"rows": [limit("recorded", None)]}
ABOVE = {"rows": [limit("above", 10)]}
ALIKE = {"statistic": "alike", "rows": [limit("above", 0)]}
NO = ("NOT_MEASURED", None)


@pytest.mark.parametrize(
    ("c", "measured", "expected"),
    [
        ({}, [of(10.0), of(20.0)], ("PASS", 10.0)), ({}, [of(9.9), of(20.0)], ("FAIL", 9.9)),
        ({}, [of(9.0), of(8.0)], ("FAIL", 8.0)), (ABOVE, [of(9.0), of(10.0)], ("PASS", 10.0)),
        (ABOVE, [of(11.0), of(12.0)], ("FAIL", 12.0)),
        ({}, [of(20.0, rounds=[[5.0]]), of(20.0, rounds=[[20.0]])], NO),
        ({}, [of(20.0), of(20.0, unit="us")], NO),
        ({"measured_unit": "us"}, [of(20.0), of(20.0)], NO),
        ({"ceiling": 15}, [of(15.0), of(15.2)], ("PASS", 15.0)),
        ({"ceiling": 15}, [of(15.0), of(15.4)], NO),
        ({"ceiling": 15, "rows": [limit(of_ceiling=True, value=0.9)]}, [of(13.6)] * 2, ("PASS",
         13.6)),
        ({"rows": [limit(of_ceiling=True, value=0.9)]}, [of(13.6)] * 2, NO),
        ({"rows": [limit(value=None)]}, [of(13.6)] * 2, NO),
        (RECORDED, [of(1.0), of(2.0)], ("RECORDED", None)),
        (RECORDED | {"ceiling": 1}, [of(1.0), of(2.0)], NO),
        (RECORDED | {"ceiling": "pcie"}, [of(1.0), of(2.0)], ("RECORDED", None)),
        ({"ceiling": "pcie"}, [of(20.0), of(20.0)], NO),
        ({"valid": {"x": (1, None)}}, [of(20.0, checks={"x": 1})] * 2, ("PASS", 20.0)),
        ({"valid": {"x": (1, None)}}, [of(20.0, checks={"x": 0})] * 2, NO),
        ({"valid_where": [{"when": {"y": 1}, "bounds": {"x": (1, None)}}]}, [of(20.0,
         conditions={"y": 1})] * 2, NO),
        ({"valid_where": [{"when": {"y": 1}, "bounds": {"x": (1, None)}}]}, [of(20.0,
         conditions={"y": 2})] * 2, ("PASS", 20.0)),
        ({"statistic": "spread", **ABOVE}, [of(100.0), of(90.0)], ("FAIL", 1000 / 95)),
        ({"statistic": "spread", **ABOVE}, [of(100.0), of(100.0)], ("PASS", 0.0)),
        ({"over": "ranks"}, [of(8.0), of(24.0)], ("PASS", 12.0)),
        ({"over": "ranks"}, [of(8.0), of(24.0, rounds=[[24.0]])], NO),
        ({"over": "ranks"}, [of(8.0), of(24.0, 24.0)], NO), ({}, [of(20.0)], NO),
        ({"over": "nodes"}, [of(20.0)], ("PASS", 20.0)), ({"over": "nodes"}, [of(20.0)] * 2, NO),
        (VALUE, [stated(12), stated(10)], ("PASS", 10)),
        (VALUE, [stated(12), stated(9)], ("FAIL", 9)),
        (VALUE | ABOVE, [stated(12), stated(9)], ("FAIL", 12)),
        (VALUE | ABOVE, [stated(0), stated(9)], ("PASS", 9)),
        (VALUE | ABOVE, [stated(-1), stated(9)], NO),
        (VALUE | ABOVE, [stated(True), stated(9)], NO),
        (VALUE | ABOVE, [stated("x"), stated(9)], NO),
        (VALUE | {"ceiling": 12}, [stated(12), stated(11)], ("PASS", 11)),
        (VALUE | {"ceiling": 12}, [stated(12.5), stated(11)], NO),
        (VALUE | {"rows": [limit("equals", "x")]}, [stated("x"), stated("x")], ("PASS", None)),
        (VALUE | {"rows": [limit("equals", "x")]}, [stated("x"), stated("y")], ("FAIL", None)),
        (VALUE | {"rows": [limit("equals", 3)]}, [stated("3")] * 2, NO),
        (VALUE | RECORDED, [stated(3), stated(4)], ("RECORDED", None)),
        (VALUE | RECORDED, [stated("x"), stated(4)], NO),
        (VALUE | RECORDED | {"unit": "state"}, [stated("x")] * 2, ("RECORDED", None)),
        (VALUE | RECORDED | {"unit": "model"}, [stated("x")] * 2, ("RECORDED", None)),
        (VALUE | {"rows": [limit(value=0)], "unit": "state"}, [stated(True)] * 2, NO),
        (VALUE, [stated(12), stated(None)], NO), (VALUE, [stated(9), stated(None)], ("FAIL", 9)),
        (ALIKE | {"over": "tasks"}, [stated(12), stated(12)], ("PASS", 0)),
        (ALIKE | {"over": "tasks"}, [stated(12), stated(13)], ("FAIL", 1)),
        (ALIKE | {"over": "nics"}, [stated(12, at={"part": k}) for k in "xy"], ("PASS", 0)),
        (ALIKE | {"over": "nics"}, [stated(12, at={"part": "x"})] * 2, NO),
    ],
)  # fmt: skip
def test_a_row_is_judged_by_its_statistic_and_limit(c, measured, expected):
    record = record_of(*(rank(k, "a", m) for k, m in enumerate(measured)))
    outcome, value = said(row_of(**c), record)
    assert (outcome, value) == (expected[0], pytest.approx(expected[1]))


def looks(first: dict[int, float], second: dict[int, float], **more) -> dict:
    """A record of two ranks with a curve, size -> rate, and a second look at its ends."""
    curves = {"m": first, "m_again": second}
    found = [
        of(rate, metric=metric, at={"size": size}, checks={"sizes": 3}) | more
        for metric, curve in curves.items() for size, rate in curve.items()
    ]  # fmt: skip
    return record_of(rank(0, "a", *found), rank(1, "a", *found))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({1: 10, 2: 20, 4: 18}, {2: 20, 4: 18}, ("PASS", 10.0)),
        ({1: 10, 2: 20, 4: 17}, {2: 20, 4: 17}, ("FAIL", 15.0)),
        ({1: 10, 2: 20, 4: 17}, {2: 20, 4: 20}, ("PASS", 0.0)),
        ({1: 10, 2: 20, 4: 17}, {1: 10, 2: 20}, ("FAIL", 15.0)),
        ({1: 10, 2: 20}, {1: 10, 2: 20}, NO),
        ({1: 10, 2: 20, 8: 20}, {1: 10, 2: 20}, NO),
        ({1: 10, 2: 20, 4: 20}, {2: 22.5}, NO), ({1: 10, 2: 20, 4: 20}, {2: 21.5}, ("PASS", 0.0)),
        ({1: 10, 2: 20, 4: 20}, {}, ("PASS", 0.0)),
    ],
)  # fmt: skip
def test_the_largest_fall_of_a_curve_is_that_of_the_better_look(first, second, expected):
    row = row_of(statistic="dip", unit="%", over="ranks", sweep=(None, 4), **ABOVE)
    outcome, value = said(row, looks(first, second))
    assert (outcome, value) == (expected[0], pytest.approx(expected[1]))


def test_half_a_curve_has_no_fall():
    row = row_of(statistic="dip", unit="%", over="ranks", **ABOVE)
    assert said(row, looks({1: 10, 2: 20, 4: 20}, {}, checks={"sizes": 4})) == NO


def test_an_unknown_rule_is_not_covered():
    with pytest.raises(Unknown):
        said(row_of(rows=[limit(of_model=True)]), both())
    bound = row_of(rows=[limit(when={"bandwidth_bound": True})])
    with pytest.raises(Unknown):
        said(bound, both())
    bound.facts["model"] = "cpu"
    assert said(bound, both()) == ("PASS", 20.0)


@pytest.mark.parametrize(
    ("per", "nodes", "left", "expected"),
    [("pair", "ab", "ab", "PASS"), ("pair", "ab", "a", "NOT_MEASURED"),
     ("pair", "ab", "", "NOT_MEASURED"), ("node", "ab", "a", "PASS")],
)  # fmt: skip
def test_what_a_lost_node_leaves(per, nodes, left, expected):
    ranks = [rank(k, n, of()) for k, n in enumerate("aabb") if n in left]
    row = row_of("a" if per == "node" else nodes, per=per, place="all")
    assert said(row, record_of(*ranks, nodes=nodes, left=left), nodes=tuple("ab"))[0] == expected


def test_a_waiver_holds_for_its_node_and_criterion_until_it_expires():
    bad, day = both(5.0), {"ended": "2096-11-20T10:00:00+00:00"}
    for key, node, expires, expected in (
        ("k", "a", "2096-11-20", "WAIVED"), ("k", "a", "2096-11-19", Unknown),
        ("k", "b", "2096-11-20", "FAIL"), ("x", "a", "2096-11-20", "FAIL"),
    ):  # fmt: skip
        waiver = {"criterion": key, "node": node, "expires": expires}
        if expected is Unknown:
            with pytest.raises(Unknown):
                said(row_of(), bad, waivers=[waiver], run=day)
        else:
            assert said(row_of(), bad, waivers=[waiver], run=day) == (expected, 5.0)
        assert said(row_of(), both(), waivers=[waiver], run=day)[0] == "PASS"
    today = {"criterion": "k", "node": "a", "expires": "9999-12-31"}
    assert said(row_of(), bad, waivers=[today])[0] == "WAIVED"
    past, early = {**today, "expires": "2026-11-20"}, {"ended": "2020-01-01T00:00:00+00:00"}
    with pytest.raises(Unknown):  # a run that claims to have ended before revives none
        said(row_of(), bad, waivers=[past], run=early)


def test_a_failure_that_only_the_ledger_has_is_not_covered():
    """What it means, where a device was replaced, only the first judge knows."""
    good = [{**both(), "attempt": k} for k in (4, 3, 2)]
    bad = {**both(5.0), "attempt": 1}
    told = {("k", "a"): {1: {5.0}}}
    assert judge_of(row_of(), attempts=[*good, bad], failed=told).outcome(("k", "a"))[0] == "PASS"
    for shown in (good, [None], [None, bad], [*good, {**both(), "attempt": 1}]):
        judge = judge_of(row_of(), attempts=shown, failed={("k", "a"): {1: {5.0}, 9: {5.0}}})
        with pytest.raises(Unknown, match="no usable record"):
            judge.outcome(("k", "a"))
    assert judge_of(row_of(), attempts=[bad], failed=told).outcome(("k", "a"))[0] == "FAIL"


def test_a_pass_after_a_failure_needs_three_passes():
    good, bad, none = both(), both(5.0), None
    for attempts, expected in (
        ((good,), "PASS"), ((good, bad), "NOT_MEASURED"), ((good, good, bad), "NOT_MEASURED"),
        ((good, good, good, bad), "PASS"), ((good, none, good, bad), "NOT_MEASURED"),
        ((good, none), "PASS"), ((bad, good), "FAIL"), ((none, good), "NOT_MEASURED"),
    ):  # fmt: skip
        found = judge_of(row_of(), attempts=attempts).outcome(("k", "a"))
        assert found[0] == expected, attempts
    assert judge_of().outcome(("k", "a")) == ("NOT_MEASURED", None)
    assert judge_of(row_of(applies=False)).outcome(("k", "a")) == ("NOT_APPLICABLE", None)
    unknown = row_of()
    unknown.unknown = ["per"]
    with pytest.raises(Unknown):
        judge_of(unknown).outcome(("k", "a"))


def test_a_value_that_no_device_has_is_not_owed():
    lacking = {"absent": [{"metric": "m", "kind": absences.NONE}]}
    one, all_ = ([rank(k, "a", **(lacking if k in which else {})) for k in (0, 1)]
                 for which in ((0,), (0, 1)))  # fmt: skip
    mixed = {"rows": [limit("recorded", None), limit()]}
    elsewhere = {"rows": [limit("recorded", None), limit(when={"model": "B200"})]}
    for c, ranks, expected in (
        (RECORDED, all_, True), (RECORDED, one, False), (mixed, all_, False),
        (elsewhere, all_, True), ({"rows": []}, all_, False),
        (RECORDED | {"over": "nics"}, one, True), (RECORDED | {"over": "nics"}, all_, False),
        ({"may_lack": True}, one, True), ({"may_lack": True}, [rank(0, "a")], False),
    ):  # fmt: skip
        row = row_of(**c)
        assert judge.has_none(row, record_of(*ranks)) is expected, c
        assert (said(row, record_of(*ranks))[0] == "NOT_APPLICABLE") is expected
    row = row_of("ab", per="pair", **RECORDED)
    assert not judge.has_none(row, record_of(*all_, nodes="ab", left="a"))


@pytest.mark.parametrize(
    ("rates", "by_word", "expected"),
    [
        ((), True, "NOT_APPLICABLE"), ((20.0,), True, "NOT_APPLICABLE"),
        ((20.0, 20.0), True, "NOT_MEASURED"), ((20.0, 20.0), False, "NOT_APPLICABLE"),
        ((5.0,), True, "NOT_MEASURED"), ((5.0,), False, "NOT_APPLICABLE"),
    ],
)  # fmt: skip
def test_a_node_that_lacks_what_half_of_its_like_have_owes_it(rates, by_word, expected):
    """So it does where one of them fails by it."""
    lacking = {"absent": [{"metric": "m", "kind": absences.NONE}]}
    c = row_of(may_lack=True, by_word=by_word).c
    rows = [row_of(node, subject=node, place=node) for node in "abcd"]
    records = {}
    for row, rate in zip(rows, [*rates, *[None] * (4 - len(rates))], strict=True):
        row.c, node = c, row.subject
        found = [rank(k, node, **(lacking if rate is None else {})) for k in (0, 1)]
        for r in found if rate is not None else ():
            r["measurements"] = [of(rate)]
        records[node] = record_of(*found, nodes=node)
    made = judge_of(*rows, nodes=tuple("abcd"))
    made.records.newest = lambda _, place: records[place]
    made.records.attempts = lambda _, place: [records[place]]
    assert made.outcome(("k", "d")) == (expected, None)
    assert made.outcome(("k", "d")) == (expected, None), "and says so again"


def test_facts_come_from_the_record_where_all_agree():
    def facts(row, *conditions, device=None, nodes="a"):
        ranks = [rank(k, "a", of(conditions=c), device=device or {})
                 for k, c in enumerate(conditions)]  # fmt: skip
        return judge.facts_of_record(row, record_of(*ranks, nodes=nodes),
                                     samples.points_of(row, record_of(*ranks)))  # fmt: skip

    assert facts(row_of(), {"x": 1}, {"x": 1})["x"] == 1
    assert "x" not in facts(row_of(), {"x": 1}, {"x": True})
    assert "y" not in facts(row_of(), {"y": [1]})
    assert "nodes" not in facts(row_of(), {})
    lost = facts(row_of("ab"), {}, {}, {})
    assert (lost["nodes"], lost["gpus"]) == (1, 3)
    assert facts(row_of("ab", per="rail", subject="rail0"), {}, {}, {})["gpus"] == 1
    asked = {"rows": [limit(when={"nvls": True})]}
    for c, expected in ((asked, True), ({}, False)):
        if expected:
            with pytest.raises(Cannot, match="nvls differs"):
                facts(row_of(**c), {"nvls": True}, {"nvls": False})
        else:
            assert "nvls" not in facts(row_of(**c), {"nvls": True}, {"nvls": False})
    by_model = {"rows": [limit(when={"model": "x"})], "statistic": "value"}
    for c, expected in (
        ({}, True), ({"statistic": "spread"}, True), ({"statistic": "value"}, False),
        ({"statistic": "value", "ceiling": 1}, True), (by_model, True),
    ):  # fmt: skip
        found = facts(row_of(facts={}, **c), {}, device={"name": "NVIDIA H200"})
        assert found.get("model") == ("H200 SXM" if expected else None), c
    with pytest.raises(Cannot, match="data sheet"):
        facts(row_of(facts={}), {}, device={"name": "unknown"})


def test_the_ladder():
    passed = {("k", "a"): "PASS"}
    whole = {"ordered": True, "order": {"count": 1, "names": ["a"]}}
    for outcomes, more, expected in (
        ({("k", "a"): "FAIL"}, whole, "REJECTED"), (passed, whole, "ACCEPTED"),
        ({("k", "a"): "NOT_MEASURED"}, whole, "INCOMPLETE"), ({}, whole, "INCOMPLETE"),
        ({("k", "a"): "WAIVED"}, whole, "ACCEPTED"), (passed, {}, "INCOMPLETE"),
        (passed, {"origin": "sandbox"}, "PARTIAL"),
        (passed, whole | {"virtual": True}, "DEMONSTRATION"),
        (passed, whole | {"on_cpu": True}, "DEMONSTRATION"),
        (passed, whole | {"demo": True}, "DEMONSTRATION"),
        (passed, whole | {"origin": "by-hand"}, "PARTIAL"),
        (passed, whole | {"run": {"tier": "probe"}}, "PARTIAL"),
        (passed, {"ordered": True, "order": {"count": 2, "names": None}}, "PARTIAL"),
        (passed, {"ordered": True, "order": {"count": 1, "names": None}}, "ACCEPTED"),
        (passed, {"ordered": True, "order": {"count": 1, "names": ["b"]}}, "PARTIAL"),
        (passed, {"ordered": True, "order": None}, "ACCEPTED"),
    ):  # fmt: skip
        assert judge_of(row_of(), **more).conclude(outcomes, False) == expected, more
    assert judge_of(row_of(), **whole).conclude(passed, True) == "INCOMPLETE"
    for applies, expected in ((True, "PARTIAL"), (False, "ACCEPTED")):
        rows = row_of(), row_of(subject="other", applies=applies)
        assert judge_of(*rows, **whole).conclude(passed, False) == expected
