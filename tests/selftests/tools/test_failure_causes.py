"""Published failures: what is said to be seen has a criterion and a drill; the page says so."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tests.tools import failure_causes

pytestmark = pytest.mark.cpu

LISTS = failure_causes.read()
LLAMA3 = LISTS["llama3"]


def test_the_page_has_the_tables_of_the_file():
    assert failure_causes.PAGE.read_text(encoding="utf-8") == failure_causes.page(LISTS)


def test_every_claim_has_a_criterion_and_a_drill_that_provokes_it():
    assert list(failure_causes.wrong(LISTS)) == []


def test_the_list_of_llama_3_is_whole_and_covered():
    """419 interruptions (table 5), of which 86 are software and maintenance."""
    assert sum(c.count or 0 for c in LLAMA3.causes) == 419
    assert sum(c.count or 0 for c in LLAMA3.causes if c.seen == "outside") == 86
    found = failure_causes.coverage(LLAMA3)
    assert found.testable == 333
    assert found.share >= failure_causes.GOAL


def test_the_lists_of_the_others_stand_beside_it():
    assert {*LISTS} >= {"rsc", "gcm", "imbue", "ibm", "superbench", "bytedance"}
    for published in LISTS.values():
        names = [c.cause for c in published.causes]
        assert len(names) == len({*names})
        assert len(names) >= 8


def test_what_is_not_covered_does_not_count():
    less = [c.model_copy(update={"seen": "no"}) if c.count == 148 else c for c in LLAMA3.causes]
    assert failure_causes.coverage(LLAMA3.model_copy(update={"causes": less})).covered == (
        failure_causes.coverage(LLAMA3).covered - 148
    )


CLAIM = """
some:
  title: t
  source: s
  causes:
    - {{cause: c, seen: {seen}, by: {{{by}}}}}
"""


@pytest.mark.parametrize(
    ("by", "says"),
    [
        ("health.no_such: in a record", "no criterion health.no_such"),
        ("health.xid: a fault that nobody puts in", "no drill 'a fault that nobody puts in'"),
        ("gemm.bf16_best: in a record", "no drill"),  # recorded, never judged: cannot be red
    ],
)
def test_a_claim_without_criterion_or_drill_is_found(by, says):
    (problem,) = failure_causes.wrong(failure_causes.read(CLAIM.format(seen="cause", by=by)))
    assert says in problem


@pytest.mark.parametrize(
    ("seen", "by"), [("cause", ""), ("'no'", "health.xid: Xid during the run"), ("maybe", "")]
)
def test_a_claim_says_by_what_and_only_a_claim_does(seen, by):
    with pytest.raises(ValidationError):
        failure_causes.read(CLAIM.format(seen=seen, by=by))
