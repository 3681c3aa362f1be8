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
    assert said(load)[:2] == [f"{load['sentence']}.", f"{load['not_covered']}."]
    assert len(said(fabric_load(8))) == 2
    assert said(load | {"not_covered": "Leaf 3: dead."})[1] == "Leaf 3: dead."


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


def test_a_missing_cell_is_named_by_its_leaves():
    load = {"leaves": ["a", "b"], "missing": [[0, 1, 2, "out"], ["b", 5, 0, "in"], [-1, "a", 1, 2]]}
    assert module.missing(load) == [
        ("a", "b", "2", "out"), ("b", "5", "0", "in"), ("-1", "a", "1", "2"),
    ]  # fmt: skip
