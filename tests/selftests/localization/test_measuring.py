"""How often a group is measured until it is certain whether it fails."""

from __future__ import annotations

import math

import pytest

from fixtures.localization import measuring as module
from fixtures.localization.culprits import Culprit
from fixtures.localization.measuring import Measurement, SequentialTest
from fixtures.localization.uplinks import Beside
from tests.selftests.localization.scripted import (
    FAILS,
    PASSES,
    Rounds,
    drive,
    each,
    in_turn,
    measuring,
)

pytestmark = pytest.mark.cpu

NODES = tuple("abcdefgh")
A, B = ("a", "b"), ("c", "d")
PLACES = dict(zip(NODES, "aabbccdd", strict=True))


def groups(rounds: Rounds) -> list[list[str]]:
    return [["".join(m.nodes) for m in asked] for asked in rounds]


def test_a_test_weighs_failures_against_passes():
    test = SequentialTest(wrong=0.05, bad=0.95)
    assert test.score(1, 1) == pytest.approx(math.log(19))
    assert test.score(0, 1) == pytest.approx(-math.log(19))
    assert test.score(2, 3) == pytest.approx(math.log(19))


def test_who_fails_on_all_judged_rails_is_a_node_and_on_some_a_nic():
    m = measuring(NODES, rails=3)
    assert m.judged_rails == {0, 1, 2}
    m.ignored_rails = frozenset([2])
    assert m.judged_rails == {0, 1}
    both, one = frozenset([0, 1]), frozenset([1])
    assert m.culprit("a", both) == Culprit(kind="node", nodes=("a",), rails=both)
    assert m.culprit("a", one, 0.4) == Culprit(kind="nic", nodes=("a",), rails=one, share=0.4)


def test_groups_that_share_a_node_are_measured_one_after_the_other():
    m = measuring(NODES, rails=2)
    m.ignored_rails = frozenset([1])
    asked = [("a", "b"), ("b", "c"), ("d", "e")]
    found, rounds = drive(
        m.measure(asked, True),
        lambda now: [frozenset([0, 1]) if "c" in x.nodes else frozenset([1]) for x in now],
    )
    assert found == [PASSES, FAILS, PASSES]  # rail 1 is bad on all nodes
    assert groups(rounds) == [["ab"], ["bc"], ["de"]]  # any two may share an uplink
    assert all(x.every_path for now in rounds for x in now)
    assert (m.measured, m.failed) == (3, 1)
    assert dict(m.partners.passes) == dict.fromkeys("abde", 1)


def test_groups_that_share_no_node_are_measured_together_as_far_as_no_uplink_is_crowded():
    asked = [("a", "b"), ("b", "c"), ("d", "e")]
    assert groups(drive(measuring(NODES).measure(asked), in_turn())[1]) == [["ab", "de"], ["bc"]]
    leaves = dict(zip(NODES, "xxxxyyyy", strict=True))
    across = [(a, b) for a, b in zip("abcd", "efgh", strict=True)]
    m = measuring(NODES, leaves)
    assert [len(now) for now in drive(m.measure(across), in_turn())[1]] == [2, 2]
    m = measuring(NODES, leaves)
    assert [len(now) for now in drive(m.measure(across, beside=Beside.ANY), in_turn())[1]] == [4]
    m = measuring(NODES, leaves)
    alone = drive(m.measure([("a", "b"), ("c", "d")], beside=Beside.ALONE), in_turn())[1]
    assert [len(now) for now in alone] == [1, 1]


def test_a_group_without_an_answer_is_asked_again_and_then_is_no_evidence():
    answers = iter([[None, PASSES], [FAILS]])
    m = measuring(NODES)
    found, rounds = drive(m.measure([A, B]), lambda _: next(answers))
    assert (found, groups(rounds)) == ([FAILS, PASSES], [["ab", "cd"], ["ab"]])
    m = measuring(NODES)
    found, rounds = drive(m.measure([A]), lambda _: [None])
    assert (found, len(rounds)) == ([None], module.ASKS)
    assert (m.measured, m.failed, dict(m.partners.passes)) == (0, 0, {})


def test_one_failure_of_two_measurements_is_a_failure():
    for answers, expected, times in (((False, True), False, 2), ((True,), False, 1), ((), True, 2)):
        found, rounds = drive(measuring(NODES).check(A), in_turn(*answers))
        assert (found, len(rounds)) == (expected, times)
    assert drive(measuring(NODES).check(A), lambda _: [None])[0] is None


def test_a_suspect_that_is_never_answered_is_not_accused_and_no_partner():
    m = measuring(NODES)
    found, rounds = drive(m.decide_nodes(["b"]), lambda _: [None])
    assert (found, len(rounds)) == ({"b": PASSES}, module.MOST_UNANSWERED)
    assert m.silent == {"b"}
    assert m.pair_up(["a"], {"a": set()}) == {"a": ("a", "c")}


@pytest.mark.parametrize("leaves", [None, dict(zip(NODES, "xxxxyyyy", strict=True))])
def test_who_fails_with_those_beyond_a_boundary_only_is_not_accused(leaves):
    near = set("abcd")
    m = measuring(NODES, leaves, good=True)
    found, _ = drive(m.decide_nodes(["d"]), each(lambda nodes: not set(nodes) <= near))
    assert found == {"d": PASSES}
    assert m.partners.accused == set()


def test_who_fails_with_one_partner_only_is_not_accused():
    m = measuring(tuple("abc"), good=True)
    m.partners.accused.add("c")
    found, _ = drive(m.decide_nodes(["a"]), each(lambda _: True))
    assert found == {"a": PASSES}


def test_many_accused_are_measured_once_more_where_they_do_not_load_one_another():
    """Of eight nodes of a leaf seven are suspects: their pairs crowd the uplink."""
    nodes = tuple("abcdefghijklmnop")
    leaves = dict(zip(nodes, "x" * 8 + "y" * 8, strict=True))
    m = measuring(nodes, leaves, good=True)

    def crowded(asked):
        return [FAILS if len(asked) > 4 else PASSES for _ in asked]

    found, rounds = drive(m.decide_nodes(list("abcdefgh")), crowded)
    assert set(found.values()) == {PASSES}
    assert len(rounds[0]) > 4 >= len(rounds[-1])


def test_four_more_failures_than_passes_accuse_a_group_and_two_more_passes_clear_it():
    found, rounds = drive(
        measuring(NODES, PLACES).decide_groups([A, B], True), each(lambda nodes: nodes == B)
    )
    assert found == [PASSES, FAILS]
    assert groups(rounds) == [["ab", "cd"], ["ab", "cd"], ["cd"], ["cd"]]
    assert rounds[0][0] == Measurement(A, every_path=True)


def test_each_rail_is_judged_by_itself():
    m = measuring(NODES, rails=2)
    found, rounds = drive(m.decide_groups([A]), lambda asked: [frozenset([1]) for _ in asked])
    assert found == [frozenset([1])]
    assert len(rounds) == 4
    assert m.partners.accused == set()  # a group is not a node


def test_who_passes_three_times_does_not_always_fail():
    found, rounds = drive(measuring(NODES).decide_groups([A]), in_turn(*[True, False] * 100))
    assert found == [PASSES]
    assert len(rounds) == 2 * module.MOST_PASSES == 6


def test_a_suspect_is_measured_with_another_partner_each_time_and_accused_at_once():
    m = measuring(NODES)
    found, rounds = drive(m.decide_nodes(["b"]), each(lambda nodes: "b" in nodes))
    assert found == {"b": FAILS}
    assert groups(rounds) == [["bc"], ["ba"], ["bd"], ["be"]]
    assert m.partners.accused == {"b"}
    cleared = measuring(NODES)
    assert drive(cleared.decide_nodes(["b"]), in_turn())[0] == {"b": PASSES}
    assert cleared.partners.accused == set()


def test_suspects_have_one_partner_each_as_far_as_there_are_any():
    m = measuring(tuple("abc"))
    used: dict[str, set[str]] = {n: set() for n in "ab"}
    assert m.pair_up(["a", "b"], used) == {"a": ("a", "c")}
    assert measuring(NODES).pair_up(["a", "b"], {n: set() for n in "ab"}) == {
        "a": ("a", "c"), "b": ("b", "d"),
    }  # fmt: skip
    # Where nobody is left, nobody is accused.
    alone = measuring(tuple("ab"))
    assert drive(alone._decide(["a", "b"], lambda _: {}, False), in_turn())[0] == {
        "a": PASSES, "b": PASSES,
    }  # fmt: skip


def test_where_fewer_than_four_others_are_left_suspects_are_first_measured_with_each_other():
    def left(nodes: str, suspects: str, fails) -> tuple[str, list[list[str]]]:
        steps = measuring(tuple(nodes))._drop_passing(list(suspects))
        found, rounds = drive(steps, each(fails))
        return "".join(found), groups(rounds)

    assert left("abcdefgh", "abcd", lambda _: True) == ("abcd", [])  # four others
    assert left("abcdefg", "abcd", lambda nodes: "a" in nodes)[1][0] == ["ab", "cd"]
    assert left("abcdefg", "abcd", lambda nodes: "a" in nodes)[0] in ("ba", "ab")
    assert left("ab", "a", lambda _: True) == ("a", [])  # nobody to be measured with
    # Each time with another one, and three times at most.
    found, rounds = left("abcd", "abcd", lambda _: True)
    assert sorted(found) == list("abcd")
    assert rounds == [["ab", "cd"], ["bc"], ["da"], ["cd", "ab"]]
    assert left("abcd", "aabb", lambda _: False) == ("", [["ab"]])


def test_units_of_nodes_are_measured_on_all_paths_with_each_partner_unit_in_turn():
    units = {"x": A, "y": B, "u": ("e", "f"), "v": ("g", "h")}
    leaves = {node: unit for unit, of in units.items() for node in of}
    found, rounds = drive(
        measuring(NODES, leaves).decide_units(units, ["x"], every_path=True),
        each(lambda nodes: "a" in nodes),
    )
    assert found == {"x": FAILS}
    assert groups(rounds)[:2] == [["abcdef"], ["abghcd"]]  # two partners, as all are so small
    assert all(m.every_path for asked in rounds for m in asked)
    steps = measuring(NODES, leaves).decide_units(units, ["x", "y"], every_path=False)
    found, rounds = drive(steps, each(lambda nodes: "a" in nodes))
    assert found == {"x": FAILS, "y": PASSES}
    assert groups(rounds)[:2] == [["abef", "cdgh"], ["abef", "cdgh"]]
    assert drive(measuring(NODES).decide_units(units, list(units), True), in_turn())[0] == {}
