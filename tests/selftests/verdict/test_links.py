"""Links between the GPUs of a node: whether each was measured, and what slow ones share."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.verdict import links
from fixtures.verdict.causes import Cause
from fixtures.verdict.model import Outcome
from fixtures.verdict.samples import Invalid
from tests.selftests.verdict import made
from tests.selftests.verdict.made import criterion, measured, points, rank, record

pytestmark = pytest.mark.cpu


def node(
    *pairs: tuple[int, int], name: str = "worker0", gpus: int = 3, first: int = 0
) -> list[Any]:
    """The ranks of a node with these links, each of 100 GB/s."""
    return [
        rank(
            first + k, *(measured("rate", 100, at={"to": b}) for a, b in pairs if a == k),
            node=name, gpus=gpus,
        )
        for k in range(gpus)
    ]  # fmt: skip


ALL = [(a, b) for a in range(3) for b in range(3) if a != b]


def refusal(ranks: list[Any], devices: int = 3, nodes: tuple[str, ...] = ("worker0",)) -> Any:
    found = record(*ranks)
    try:
        links.check_links(made.case(criterion(), nodes, devices), found, points(found))
    except Invalid as error:
        return error
    return None


def test_every_link_must_have_been_measured_once():
    assert refusal(node(*ALL)) is None
    error = refusal(node(*ALL[:-1]))
    assert str(error) == "measured on 5 of 6 links; not from gpu2 to gpu1 of worker0"
    assert (error.cause, error.nodes) == (Cause.NODE, ["worker0"])
    error = refusal(node(*ALL, (0, 1)))
    assert str(error) == "the record holds 7 measurements of 6 links"
    assert error.cause is Cause.RECORD
    assert "of 0 links" in str(refusal(node(*ALL), 1)), "one GPU has no link"
    two = ("worker0", "worker1")
    both = [*node(*ALL), *node(*ALL[1:], name="worker1", first=3)]
    error = refusal(both, 6, two)
    assert str(error) == "measured on 11 of 12 links; not from gpu0 to gpu1 of worker1"
    assert refusal(node(*ALL), 6, two) is None, "the other node is no part of the record"


def slowest(ranks: list[Any], rates: dict[Any, float], outcome: Outcome = Outcome.FAIL) -> Any:
    """The verdict on links with these rates by (from, to), or by node and these; else 100 GB/s."""
    found = record(*ranks)
    case = made.case(criterion(over="links"), found.nodes, len(ranks))
    sheet = made.sheet(case, found)
    sheet.devices = [
        (r, [rates.get((r.local_rank, m.at["to"]), rates.get(r.node, 100.0))])
        for r, m in sheet.points
    ]
    return links.name_slowest_link(made.verdict(outcome=outcome, next_step="look"), sheet)


def named(*slow: tuple[int, int], outcome: Outcome = Outcome.FAIL, rate: float = 50) -> Any:
    return slowest(node(*ALL), dict.fromkeys(slow, rate), outcome)


def test_the_slowest_link_is_named_and_what_all_slow_ones_share():
    for slow, hint in (
        ([(1, 0), (1, 2)], "gpu1 (GPU-worker0-1) is part of all 2 slow links; look"),
        ([(0, 2), (1, 2)], "gpu2 (GPU-worker0-2) is part of all 2 slow links; look"),
        ([(0, 1), (1, 0)], "only the link between gpu0 and gpu1 is slow; look"),
        ([(0, 2)], "only the link between gpu0 and gpu2 is slow; look"),
        ([(0, 1), (1, 2), (2, 0)], "no GPU is part of all 3 slow links"),
    ):
        found = named(*slow)
        assert found.next_step.startswith(hint)
        assert (found.worst["node"], found.worst["value"]) == ("worker0", 50)
    passed = named((0, 1), outcome=Outcome.PASS)
    assert passed.next_step == "look"
    assert passed.worst["value"] == 50


def test_a_link_in_the_middle_between_slowest_and_best_is_slow():
    found = slowest(node(*ALL), {(0, 1): 50.0, (1, 2): 75.0})
    assert "gpu1 (GPU-worker0-1) is part of all 2" in found.next_step


def test_the_gpu_of_the_slowest_links_own_node_is_named():
    links_of_1 = [link for link in ALL if 1 in link]
    two = [*node(*ALL), *node(*links_of_1, name="worker1", first=3)]
    assert "gpu1 (GPU-worker1-1)" in slowest(two, {"worker1": 50.0}).next_step
