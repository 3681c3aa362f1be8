"""How often a group is measured until it is certain whether it fails."""

from __future__ import annotations

import math

import pytest

from fixtures.localization import measuring as module
from fixtures.localization.culprits import Culprit
from fixtures.localization.measuring import Measurement, SequentialTest
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
    assert groups(rounds) == [["ab", "de"], ["bc"]]
    assert all(x.every_path for now in rounds for x in now)
    assert (m.measured, m.failed) == (3, 1)
    assert dict(m.partners.passes) == dict.fromkeys("abde", 1)


def test_one_failure_of_two_measurements_is_a_failure():
    for answers, expected, times in (((False, True), True, 2), ((True,), True, 1), ((), False, 2)):
        found, rounds = drive(measuring(NODES).fails(A), in_turn(*answers))
        assert (found, len(rounds)) == (expected, times)


def test_four_more_failures_than_passes_accuse_a_group_and_two_more_passes_clear_it():
    found, rounds = drive(
        measuring(NODES).decide_groups([A, B], True), each(lambda nodes: nodes == B)
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


def test_who_fails_and_passes_in_turn_is_given_up_after_40_measurements():
    found, rounds = drive(measuring(NODES).decide_groups([A]), in_turn(*[True, False] * 100))
    assert found == [PASSES]
    assert len(rounds) == module.MOST == 40


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
    assert rounds == [["ab", "cd"], ["bc", "da"], ["cd", "ab"]]
    assert left("abcd", "aabb", lambda _: False) == ("", [["ab"]])


def test_units_of_nodes_are_measured_on_all_paths_with_each_partner_unit_in_turn():
    found, rounds = drive(
        measuring(NODES).decide_units({"x": A, "y": B}, [("e", "f"), ("g", "h")]),
        each(lambda nodes: "a" in nodes),
    )
    assert found == {"x": FAILS, "y": PASSES}
    assert groups(rounds)[:3] == [["abgh", "cdef"], ["abef", "cdgh"], ["abgh"]]
    assert all(m.every_path for asked in rounds for m in asked)
