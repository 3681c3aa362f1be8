"""What a search found: its words, its form in JSON, and which nodes are left without it."""

from __future__ import annotations

import pytest

from fixtures.localization.culprits import Culprit, Finding, unique, without_culprits

pytestmark = pytest.mark.cpu

AB = ("a", "b")


def test_every_kind_says_what_to_repair():
    two = frozenset([3, 1])
    said = {
        Culprit(kind="rail", rails=two): "rail 1, 3 on all nodes",
        Culprit(kind="fabric"): "the whole fabric: no pair of nodes is fast",
        Culprit(kind="link", nodes=AB): "the path between a and b, not the nodes",
        Culprit(kind="switch", nodes=AB): "what a, b share on the way to the others",
        Culprit(kind="node", nodes=("a",), rails=two): "a",
        Culprit(kind="nic", nodes=("a",), rails=two): "a, rail 1, 3",
        Culprit(kind="uplink", place="s7", nodes=AB):
            "the uplink of leaf switch s7, not its nodes (a, b)",
        Culprit(kind="leaf", place="s7", nodes=AB):
            "leaf switch s7: half of its nodes or more are slow (a, b)",
        Culprit(kind="spine"):
            "what joins the leaf switches (the spine or uplinks), not the nodes",
        Culprit(kind="spine", nodes=AB):
            "what joins the leaf switches (the spine or uplinks), not the nodes, "
            "seen between a and b",
    }  # fmt: skip
    assert {c: c.line for c in said} == said


def test_what_fails_at_times_says_how_often():
    at_times = Culprit(kind="node", nodes=("a",), share=0.3)
    assert at_times.line == "a, at times (30 % of its measurements)"
    assert "at times" not in Culprit(kind="node", nodes=("a",), share=1.0).line


def test_a_finding_has_plain_lists_in_json():
    found = Finding(culprits=(Culprit(kind="nic", nodes=("a",), rails=frozenset([3, 1])),))
    assert found.culprits_json() == [
        {"kind": "nic", "nodes": ["a"], "rails": [1, 3], "place": "", "share": 1.0,
         "line": "a, rail 1, 3"}
    ]  # fmt: skip


def test_of_a_bad_link_one_end_stays_and_of_all_others_nobody():
    nodes = tuple("abcdef")
    link, node = Culprit(kind="link", nodes=AB), Culprit(kind="switch", nodes=("d", "e"))
    assert without_culprits(nodes, [link]) == tuple("bcdef")
    assert without_culprits(nodes, [link, node]) == tuple("bcf")
    assert without_culprits(nodes, [Culprit(kind="spine")]) == nodes


def test_a_culprit_is_named_once():
    a, b = (Culprit(kind="node", nodes=(n,)) for n in AB)
    assert unique([a, b, a]) == (a, b)


def test_many_nodes_are_a_host_list():
    nodes = tuple(f"gpu{k:04}" for k in range(449, 513))
    said = Culprit(kind="uplink", nodes=nodes, place="leaf7").line
    assert said == "the uplink of leaf switch leaf7, not its nodes (gpu[0449-0512])"
