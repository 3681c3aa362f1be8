"""Nodes that fail at times: how many measurements tell them from innocent ones."""

from __future__ import annotations

import math
import random

import pytest

from fixtures.localization import intermittent
from fixtures.localization.culprits import Culprit
from tests.selftests.localization.scripted import FAILS, PASSES, drive, each, in_turn, measuring
from tests.tools.simulated_fabric import in_leaves, names

pytestmark = pytest.mark.cpu

NODES = names(9)
PAIR = NODES[:2]


def found_in(answer, unexplained=(("n0000", "elsewhere"),), nodes=NODES, rails=1):
    m = measuring(nodes, rails=rails)
    return drive(intermittent.find(m, nodes, list(unexplained)), answer)


def test_the_bounds_are_those_of_a_fault_of_30_percent():
    assert intermittent.LEAST_SHARE == 0.3
    missed = (1 - intermittent.LEAST_SHARE) ** intermittent.TURNS
    assert missed < 0.001 < missed / 0.7  # no turn more than it takes


def test_the_share_of_wrong_answers_is_estimated_between_1_and_10_percent():
    assert intermittent._test(0, 0).wrong == pytest.approx(0.05)
    assert intermittent._test(0, 10_000).wrong == 0.01
    assert intermittent._test(100, 100).wrong == 0.1
    assert intermittent._test(0, 40).wrong == pytest.approx(0.03)
    assert intermittent._test(0, 0).bad == 0.3


def test_a_suspect_is_accused_after_three_measurements_with_each_partner():
    found, rounds = found_in(in_turn(then=True))
    assert found == [Culprit(kind="node", nodes=("n0000",), rails=FAILS)]
    # Each failure is six times as likely of a culprit; 1 / 0.003 is beyond 6^3.
    assert 6**3 < 1 / intermittent.ACCUSED_BY_CHANCE < 6**4
    assert len(rounds) == intermittent.EACH * (intermittent.MEMBERS - 1) == 21


def test_a_suspect_that_passes_is_cleared_after_eighteen():
    found, rounds = found_in(in_turn())
    assert found == []
    assert len(rounds) == math.ceil(math.log(0.005) / math.log(0.7 / 0.95)) == 18


def test_who_stays_in_doubt_is_measured_90_times_and_not_accused():
    found, rounds = found_in(in_turn(*([False] * 5 + [True, False]) * 20))
    assert found == []
    assert len(rounds) == 90


def test_what_fails_at_times_has_its_share_and_its_rails():
    answers = iter([frozenset([1]), frozenset()] * 50)
    found, _ = found_in(lambda asked: [next(answers) for _ in asked], rails=2)
    (culprit,) = found
    assert (culprit.kind, culprit.nodes, culprit.rails) == ("nic", ("n0000",), {1})
    assert 0.5 <= culprit.share < 0.7


def test_small_groups_are_suspects_themselves_as_far_as_they_are_left():
    group = (*NODES[:2], "n9999")
    found, rounds = found_in(each(lambda nodes: NODES[0] in nodes), [group])
    assert [c.nodes for c in found] == [(NODES[0],)]
    assert {m.nodes[0] for m in rounds[0]} == set(NODES[:2])


def test_in_larger_groups_those_are_suspects_that_fail_twice_in_a_part():
    found, rounds = found_in(each(lambda nodes: NODES[4] in nodes), [NODES[:4]])
    assert [m.nodes for m in rounds[0]] == [NODES[:3], NODES[3:6], NODES[6:]]
    assert [len(asked) for asked in rounds[:3]] == [3, 3, 3]
    assert {m.nodes[0] for m in rounds[2]} == set(NODES[3:6])
    assert [c.nodes for c in found] == [(NODES[4],)]


def test_parts_have_the_size_of_the_root_and_none_is_a_single_node():
    for count, sizes in ((9, [3, 3, 3]), (10, [3, 3, 4]), (11, [3, 3, 3, 2]), (3, [3])):
        nodes = names(count)
        found, rounds = drive(intermittent._suspects(measuring(nodes), nodes), in_turn())
        assert [len(m.nodes) for m in rounds[0]] == sizes
        assert found == []
        assert len(rounds) == 20


def test_failures_of_different_parts_are_no_reason_to_stop():
    steps = intermittent._suspects(measuring(NODES), NODES)
    found, rounds = drive(
        steps, in_turn(True, False, False, False, True, False, True, False, False)
    )
    assert len(rounds) == 3
    assert found == [NODES[:3], NODES[3:6]]


def test_failures_with_some_partners_only_are_not_those_of_the_node():
    """Each node on one side of a boundary fails with each on the other, whichever is measured."""
    left = set(NODES[:4])
    found, _ = found_in(each(lambda nodes: len(left & set(nodes)) == 1), [NODES[:4], NODES[4:8]])
    assert found == []


def test_three_nodes_of_a_leaf_that_fail_at_times_are_the_leaf():
    leaves = in_leaves(NODES, 8)
    m = measuring(NODES, leaves)
    answers = random.Random(5)
    bad = set(NODES[:3])

    def answer(asked):
        return [FAILS if bad & set(x.nodes) and answers.random() < 0.4 else PASSES for x in asked]

    found, _ = drive(intermittent.find(m, NODES, [NODES[:3]]), answer)
    assert [(c.kind, c.place, set(c.nodes)) for c in found] == [("leaf", "leaf0", bad)]
    assert found[0].line.startswith("leaf switch leaf0: 3 of its nodes are slow at times (")
