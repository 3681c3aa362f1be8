"""With whom a suspect is measured: the nearest node that is known to be good."""

from __future__ import annotations

import pytest

from fixtures.localization.partners import Partners, by_leaf, halves

pytestmark = pytest.mark.cpu

NODES = tuple("abcdef")


def partners(nodes: tuple[str, ...] = NODES, leaves: str = "", **passes: int) -> Partners:
    """`leaves`: one letter for the leaf of each node; `passes`: how often a node passed."""
    found = Partners(nodes, dict(zip(nodes, leaves, strict=False)))
    found.passes.update(passes)
    return found


def pick(p: Partners, node: str, used: set[str] | None = None, busy: str = "", suspected: str = ""):
    return p.pick(node, set() if used is None else used, set(busy), set(suspected))


def test_the_nearest_node_is_taken_at_both_ends_of_the_list():
    assert pick(partners(), "a") == "b"
    assert pick(partners(), "c") == "d"
    assert pick(partners(), "f") == "e"
    assert pick(partners(("a", "b")), "b") == "a"


def test_a_node_that_passed_twice_goes_before_a_nearer_one_and_more_passes_count_no_more():
    assert pick(partners(d=2), "a") == "d"
    assert pick(partners(b=1, d=2), "a") == "d"
    assert pick(partners(b=1), "a") == "b"
    assert pick(partners(b=2, d=9), "a") == "b"
    assert pick(partners(c=1, b=0), "a") == "c"


def test_of_equally_good_nodes_one_of_the_same_leaf_is_taken():
    assert pick(partners(leaves="xyyxyy"), "a") == "d"
    assert pick(partners(leaves="xyyxyy", b=2, c=2), "a") == "b"
    assert pick(partners(leaves="xyyxyy", b=2, d=2), "a") == "d"


def test_who_is_busy_suspected_or_accused_is_no_partner():
    assert pick(partners(), "a", busy="b", suspected="c") == "d"
    accused = partners()
    accused.accused.add("b")
    assert pick(accused, "a") == "c"
    assert pick(partners(), "a", suspected="bcdef") is None


def test_a_partner_is_taken_again_only_after_all_others():
    p, used = partners(("a", "b", "c")), set()
    assert [pick(p, "a", used) for _ in range(4)] == ["b", "c", "b", "c"]
    assert used == {"b", "c"}
    # One that is only busy is waited for; the used ones are not taken in its place.
    used = {"b"}
    assert pick(p, "a", used, busy="c") is None
    assert used == {"b"}


def test_a_node_is_known_by_its_name_and_good_after_one_pass_unless_it_is_accused():
    p = partners(b=1, c=1)
    p.accused.add("c")
    assert ("b" in p, "z" in p) == (True, False)
    assert [p.is_good(n) for n in "abc"] == [False, True, False]


def test_nodes_are_halved_in_the_middle_or_at_the_nearest_boundary_of_leaves():
    assert halves(NODES, {}) == (("a", "b", "c"), ("d", "e", "f"))
    assert halves(tuple("abc"), {}) == (("a",), ("b", "c"))
    leaves = dict(zip(NODES, "xyyyyz", strict=True))
    assert halves(NODES, leaves) == (("a",), ("b", "c", "d", "e", "f"))
    leaves = dict(zip(NODES, "xxyyyy", strict=True))
    assert halves(NODES, leaves) == (("a", "b"), ("c", "d", "e", "f"))


def test_nodes_are_filed_under_their_leaf_where_leaves_are_known():
    assert by_leaf(("a", "b", "c"), {"a": "x", "b": "y", "c": "x"}) == {
        "x": ("a", "c"),
        "y": ("b",),
    }
    assert by_leaf(("a", "b"), {}) == {}


def test_neighbours_are_good_nodes_of_the_leaf_or_one_of_each_side():
    nodes = tuple("abcdefgh")
    unknown = Partners(nodes, {})
    unknown.passes.update("abdefgh")
    assert unknown.neighbours("c") == ["d", "b"]
    unknown.accused.add("d")
    assert unknown.neighbours("c") == ["b", "e"]
    assert unknown.neighbours("a") == ["b"]  # at the end there is one side
    known = Partners(nodes, dict(zip(nodes, "xxxxyyyy", strict=True)))
    known.passes.update(nodes)
    assert known.neighbours("d") == ["c", "b"]
    assert known.neighbours("e") == ["f", "g"]
