"""Values that should be equal on all nodes."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.verdict.kinds.alike import judge
from fixtures.verdict.model import Outcome, Verdict
from fixtures.verdict.samples import Invalid
from tests.selftests.verdict import made
from tests.selftests.verdict.made import rank, record, resolved, state

pytestmark = pytest.mark.cpu

NO_OTHER = resolved("above", 0)


def alike(
    values: list[Any], limit: Any = NO_OTHER, within: float | None = None, **given: Any
) -> Verdict:
    """The verdict on one value of each of several nodes; `...` for a node without one."""
    ranks = [
        rank(k, *([] if v is ... else [v if hasattr(v, "at") else state(v)]), node=f"n{k}", gpus=1)
        for k, v in enumerate(values)
    ]
    found, nodes = record(*ranks), tuple(f"n{k}" for k in range(len(values)))
    of = made.criterion(statistic="alike", per="cluster", within=within, **given)
    case = made.case(of, nodes, len(nodes))
    return judge(made.sheet(case, found, limit))


ALIKE: list[tuple[list[Any], float | None, int, str]] = [
    # values, within, how many deviate, the first note
    (["a", "a", "a"], None, 0, ""),
    (["a", "b", "a"], None, 1, "n1 rate: b (2 of 3 have a)"),
    (["b", "a", "a"], None, 1, "n0 rate: b (2 of 3 have a)"),
    (["a", "b"], None, 1, "n1 rate: b (1 of 2 have a, no majority)"),
    (["a", "b", "c"], None, 2, "n1 rate: b (1 of 3 have a, no majority)"),
    (["a", "b", "b", "a"], None, 2, "n1 rate: b (2 of 4 have a, no majority)"),
    ([10.0, 10.5, 11.0], 0.5, 0, ""),
    ([10.0, 10.0, 10.6], 0.5, 1, "n2 rate: 10.6 (2 of 3 have 10.0)"),
    ([10.0, 10.6, 10.6], 0.5, 1, "n0 rate: 10.0 (2 of 3 have 10.6)"),
]


def test_values_that_differ_from_the_most_frequent_one_are_counted():
    for values, within, count, note in ALIKE:
        found = alike(values, within=within)
        assert found.value == count, values
        assert found.outcome is (Outcome.FAIL if count else Outcome.PASS), values
        assert (found.notes[0] if found.notes else "") == note, values
        assert found.devices == {"planned": len(values), "measured": len(values)}


def test_the_first_node_that_differs_is_named():
    found = alike(["a", "b", "a"])
    assert found.worst == {"node": "n1", "gpu": None, "uuid": None, "part": "rate", "value": "b"}
    assert found.next_step == "make n1 like the others, then run again"
    fact = [state(v, at={"fact": "kernel"}) for v in ("a", "b", "a")]
    worst = alike(fact).worst
    assert worst is not None
    assert worst["part"] == "kernel"
    assert alike(fact).notes == ["n1 kernel: b (2 of 3 have a)"]
    part = [state(v, at={"fact": "fw", "part": "mlx0"}) for v in ("a", "b", "a")]
    worst = alike(part).worst
    assert worst is not None
    assert worst["part"] == "mlx0"
    assert alike(part).notes == ["n1 mlx0 fw: b (2 of 3 have a)"]
    good = alike(["a", "a"])
    assert (good.worst, good.next_step) == (None, "")
    assert alike(["a", "b"], resolved("above", 1)).outcome is Outcome.PASS


def test_all_nodes_that_differ_from_a_majority_are_at_fault():
    for values, nodes in (
        (["a", "b", "a"], ["n1"]), (["b", "a", "a", "a", "c"], ["n0", "n4"]), (["a", "a"], []),
        (["a", "b", "b", "a"], []), (["a", "b"], []), (["a", "b", "c"], []),
    ):  # fmt: skip
        found = alike(values)
        assert found.cause_nodes == nodes, values
        no_majority = found.outcome is Outcome.FAIL and not nodes
        assert ("no majority for rate" in found.reason) is no_majority, values
        assert found.worst is None or (found.worst["node"] is None) is no_majority, values
    many = alike(["a"] * 7 + ["b"] * 6)
    assert len(many.cause_nodes) == 6
    assert many.next_step == "make n7, n8, n9, n10 and 2 more like the others, then run again"
    assert many.notes[0] == "6 nodes at fault: n7, n8, n9, n10 and 2 more"


def test_a_fact_without_a_majority_hides_no_node_that_differs_in_another():
    def both(k: int, kernel: str, bios: str) -> Any:
        return rank(k, *(state(v, at={"fact": f}) for f, v in (("kernel", kernel), ("BIOS", bios))),
                    node=f"n{k}", gpus=1)  # fmt: skip

    found = record(*(both(k, *v) for k, v in enumerate(("ax", "bx", "by", "ax"))))
    case = made.case(made.criterion(statistic="alike", per="cluster"), ("n0", "n1", "n2", "n3"), 4)
    verdict = judge(made.sheet(case, found, NO_OTHER))
    assert verdict.cause_nodes == ["n2"]
    assert verdict.worst is not None
    assert (verdict.worst["node"], verdict.worst["part"]) == (None, "kernel")
    assert verdict.reason == "no majority for kernel: no node can be named for that"


def test_a_value_that_a_node_lacks_is_no_success():
    for values, within, says in (
        (["a", None], None, "rate: a value is missing"),
        (["a", ..., ...], None, "rate was not found on n1, n2"),
        (["a", 1.0], 0.5, "'a' and 'a' are not both numbers"),
        ([1.0, "a"], 0.5, "are not both numbers"),
    ):
        with pytest.raises(Invalid) as caught:
            alike(values, within=within)
        assert says in str(caught.value), values
    nic = state("a", at={"part": "mlx0"})
    assert alike([nic, ...]).ok, "of parts each node has its own"
    with pytest.raises(Invalid, match="reported by 1 of 2 NICs"):
        alike([nic, ...], over="nics")
    assert alike([nic, nic], over="nics").ok
    assert alike([nic, nic, state("b", at={"part": "mlx0"}), ...], over="nics").value == 1
