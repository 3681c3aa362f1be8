"""What the tier `fabric` proves, in words."""

from __future__ import annotations

import pytest

from fixtures.conclusion.run_verdict import demonstration_text
from reports.facts import fabric_load as module
from tests.selftests.fabric_loads import fabric_load

pytestmark = pytest.mark.cpu


def said(load, **basis):
    return module.sentences({"fabric_load": load, "basis": basis})


def test_coverage_and_the_smallest_defect_stand_beside_what_was_not_covered():
    load = fabric_load(8, never=3)
    assert said(load)[:2] == [
        f"L{load['sentence'].removeprefix('l')}.", "Not covered: 3 of 56 not driven."
    ]  # fmt: skip
    assert len(said(fabric_load(8))) == 2
    assert said(load | {"not_covered": "leaf 3 is dead."})[1] == "Not covered: leaf 3 is dead."


@pytest.mark.parametrize(
    ("origin", "words"),
    [("order", "those of the order"), ("topology", "Slurm's topology"),
     ("wiring", "by the distance found in wiring"), ("unknown", "Leaves not known"),
     ("", "Leaves not known"), ("a guess", "Leaves not known")],
)  # fmt: skip
def test_where_the_leaves_are_from_is_said(origin, words):
    assert words in said(fabric_load(2, origin=origin))[-1]


def test_a_demonstration_says_that_it_is_about_no_cluster():
    (*_, last) = said(fabric_load(2), demonstration=True, origin="sandbox")
    assert last == f"{demonstration_text('sandbox')}."
    assert demonstration_text("cluster") not in "".join(
        said(fabric_load(2), demonstration=False, origin="cluster")
    )


def test_nothing_is_said_where_the_tier_did_not_run():
    assert module.sentences({}) == []
    assert module.of({}) is None


def test_that_nothing_was_measured_is_said_where_the_tier_was_planned():
    assert module.sentences({"fabric_load": None}) == [module.NOTHING]
    assert "was not loaded" in module.NOTHING


def test_a_defect_that_no_size_would_show_is_named():
    load = fabric_load(8) | {"smallest": {"port": 2.1, "port_ten_minutes": None, "uplinks": None}}
    assert said(load)[1] == (
        "Not found with 95 %, whatever its size: a port slower for ten minutes, "
        "a leaf that carries less."
    )


def test_leaves_that_are_not_known_are_told_once():
    load = fabric_load(0, origin="unknown") | {"not_covered": "the leaf switches are not known: x"}
    assert said(load)[1:] == ["Not covered: the leaf switches are not known: x."]


def test_what_was_never_driven_is_listed_by_leaf_rail_and_direction():
    load = {"cells": 9, "covered": 2, "missing": [["a", "b", 2, "out"], ["b", 5, 0, "both"]]}
    assert module.missing(load) == [("a", "b", "2", "this way"), ("b", "5", "0", "both ways")]
    assert module.not_listed(load) == 4
    assert module.not_listed({**load, "covered": 6}) == 0
