"""What is said of the load on the whole fabric, and what keeps an answer from being one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.permutations.smallest import Smallest
from fixtures.run import fabric_answers
from tests.selftests.loaded_fabrics import LoadedFabric, in_leaves, of_node, value

pytestmark = pytest.mark.cpu

LEAVES = in_leaves(5, 4)


def slow_port(rates, targets, nodes):
    """Rail 1 of n12 sends more slowly."""
    for k, node in enumerate(nodes):
        if node == "n12" and k % 2:
            rates[:, k] *= 0.85


def slow_leaf(rates, targets, nodes):
    """The uplinks of leaf 2 carry less, in both directions."""
    for row, targets_of_round in enumerate(targets):
        for k, to in enumerate(targets_of_round):
            if to >= 0 and (nodes[k][1] == "2") != (nodes[to][1] == "2"):
                rates[row, k] *= 0.9


def summary(fabric, *slices, **more):
    load = fabric.load(**more)
    newest = fabric.decided(*(slices or (fabric.record(),)), load=load)
    found = load.summary()
    assert found is not None
    return newest, found


def test_a_slow_port_is_on_the_row_of_its_node_with_its_part_and_no_leaf_is_accused():
    newest, found = summary(LoadedFabric(LEAVES, slow=slow_port))
    assert {n: value(newest, n, "ports") for n in LEAVES} == {n: int(n == "n12") for n in LEAVES}
    (measured,) = [m for m in of_node(newest, "n12").measurements if m.metric == "ports"]
    assert measured.at == {"part": "gpu1"}
    assert "node n12, rail 1" in measured.notes[0]
    assert (value(newest, "n00", "uplinks"), value(newest, "n00", "pairs")) == (0, 0)
    assert found["findings"] == [f"slow port: {measured.notes[0]}"]


def test_a_leaf_is_named_and_none_of_its_nodes():
    newest, found = summary(LoadedFabric(LEAVES, slow=slow_leaf))
    assert value(newest, "n00", "uplinks") == 1
    assert {value(newest, n, "ports") for n in LEAVES} == {0}
    (line,) = found["findings"]
    assert line.startswith("lost uplink capacity: leaf leaf2: ")


def test_what_would_not_be_found_is_not_measured_and_how_much_it_takes_is_said(monkeypatch):
    coarse = Smallest(port=0.2, port_ten_minutes=None, uplinks=None)
    monkeypatch.setattr(fabric_answers, "smallest_in", lambda slices, risk: coarse)
    newest, _ = summary(LoadedFabric(LEAVES))
    assert value(newest, "n00", "ports") == (
        "after 120 rounds in 1 slice a loss of 20 % of a port would be found with 95 %, and 10 % "
        "has to be: about 3 slices more"
    )
    assert "more slices are needed" in value(newest, "n00", "uplinks")
    # What was found stands all the same.
    newest, _ = summary(LoadedFabric(LEAVES, slow=slow_port))
    assert value(newest, "n12", "ports") == 1


def test_without_leaves_nothing_is_said_of_them_and_ports_are_judged():
    newest, found = summary(LoadedFabric(LEAVES, stated=""))
    assert value(newest, "n00", "ports") == 0
    for metric in ("uplinks", "pairs", "coverage"):
        assert value(newest, "n00", metric) == fabric_answers.UNKNOWN_LEAVES
    assert (found["leaves_from"], found["cells"], found["matrix"]) == ("unknown", 0, [])
    assert found["not_covered"] == fabric_answers.UNKNOWN_LEAVES


def test_of_one_leaf_there_are_no_uplinks():
    newest, found = summary(LoadedFabric(in_leaves(1, 6)))
    assert "all nodes are on one leaf switch" in value(newest, "n00", "uplinks")
    assert found["leaves_from"] == "topology"


def two_leaves(loss: float) -> LoadedFabric:
    def slow(rates, targets, nodes):
        for row, targets_of_round in enumerate(targets):
            for k, to in enumerate(targets_of_round):
                if to >= 0 and nodes[k][1] != nodes[to][1]:
                    rates[row, k] *= 1 - loss

    return LoadedFabric(in_leaves(2, 6), slow=slow)


def test_two_leaves_are_slow_between_them_only_where_the_order_says_how_fast_they_are():
    newest, _ = summary(two_leaves(0.4))
    assert "cluster.oversubscription" in value(newest, "n00", "pairs")
    newest, found = summary(two_leaves(0.4), oversubscription=1.0)
    assert value(newest, "n00", "pairs") == 1
    assert "between leaf leaf0 and leaf leaf1" in found["findings"][0]
    newest, _ = summary(two_leaves(0.4), oversubscription=2.0)
    assert value(newest, "n00", "pairs") != 1
    newest, _ = summary(two_leaves(0.02))
    assert "oversubscription" not in str(value(newest, "n00", "pairs"))


def test_a_slice_that_does_not_fit_its_ranks_says_nothing_and_is_named():
    fabric = LoadedFabric(LEAVES)
    broken = replace(fabric, more={"rails": [0]}).record(1)
    newest, found = summary(fabric, broken)
    assert "permutations@all.json" in value(newest, "n00", "ports")
    assert (found["slices"], found["cells"]) == (0, 0)
    assert found["sentence"].startswith("the fabric was not loaded")
    newest, found = summary(fabric, broken, fabric.record(2))
    assert found["slices"] == 1
    assert "permutations@all.json" in found["not_covered"]


def test_figures_have_two_digits():
    _, found = summary(LoadedFabric(LEAVES), *(LoadedFabric(LEAVES).record(k) for k in (1, 2)))
    assert found["sentence"].startswith("loaded for 0.33 h in 2 slices: ")
    for word in found["sentence"].split():
        if (figure := word.strip(";,")).replace(".", "").isdigit() and "." in figure:
            assert len(figure.lstrip("0.").replace(".", "")) <= 2, word
