"""What failing nodes have in common is said with its place and size, and chance is not."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from reports.facts import groups
from reports.pages import banner

pytestmark = pytest.mark.cpu

GPUS = 8


def nodes_of(count: int) -> list[str]:
    return [f"gpu{k:04d}" for k in range(1, count + 1)]


def verdict(count: int, failing: Mapping[str, Mapping[str, int | None]]) -> dict[str, Any]:
    """A run in which, by criterion, these nodes fail with these GPUs as the worst."""
    rows = [
        {
            "criterion": key, "subject": node, "outcome": "FAIL" if node in gpus else "PASS",
            "worst": {"node": node, "gpu": gpus.get(node)},
        }
        for key, gpus in failing.items() for node in nodes_of(count)
    ]  # fmt: skip
    return {"scope": {"nodes": nodes_of(count), "gpus_per_node": GPUS}, "criteria": rows}


def any_gpu(nodes: list[str], seed: int = 0) -> dict[str, int | None]:
    """Each of the nodes fails, with another GPU as its worst."""
    return {node: (seed + k) % GPUS for k, node in enumerate(nodes)}


@pytest.mark.parametrize(("count", "rack"), [(32, 8), (128, 16), (1024, 16)])
def test_a_rack_is_one_group_with_its_place_and_all_its_criteria(count: int, rack: int) -> None:
    bad = nodes_of(count)[count // 2 : count // 2 + rack]
    found = groups.groups(
        verdict(count, {"gemm.bf16": any_gpu(bad), "gemm.fp8": any_gpu(bad, 3), "memory.copy": {}})
    )
    (group,) = found
    assert (group.kind, group.failing) == ("place", rack)
    assert group.keys == ("gemm.bf16", "gemm.fp8")
    first, last = bad[0][3:], bad[-1][3:]
    assert group.sentence.startswith(
        f"{rack} nodes next to each other, gpu[{first}-{last}], fail together: gemm.bf16, gemm.fp8."
    )


def test_a_rack_with_a_good_node_and_a_single_node_elsewhere_is_still_the_rack() -> None:
    bad = [*nodes_of(128)[32:40], *nodes_of(128)[41:48], "gpu0100"]
    (group,) = groups.groups(verdict(128, {"gemm.bf16": any_gpu(bad)}))
    assert group.where == "15 of 16 nodes next to each other, gpu[0033-0048], fail together"


@pytest.mark.parametrize("count", [8, 32, 1024])
def test_a_slot_is_named_by_its_gpu(count: int) -> None:
    bad = dict.fromkeys(nodes_of(count)[::3] if count > 8 else nodes_of(8)[:6], 5)
    kinds = {g.kind: g for g in groups.groups(verdict(count, {"hostcopy.h2d": bad}))}
    assert kinds["slot"].where == f"GPU 5 is the only one that fails on {len(bad)} of {count} nodes"
    assert set(kinds) == {"slot"}, "the slot explains that half of the nodes fail"


def test_half_of_the_fleet_points_at_what_all_share() -> None:
    bad = nodes_of(16)[::2]
    (group,) = groups.groups(verdict(16, {"memory.copy": any_gpu(bad)}))
    assert (group.kind, group.failing) == ("part", 8)
    assert "check the limit, the measurement" in group.sentence


@pytest.mark.parametrize(
    ("count", "bad"),
    [
        (32, nodes_of(32)[:3]), (4, ["gpu0001", "gpu0002"]), (4, nodes_of(4)), (7, nodes_of(7)),
        (8, ["gpu0001", "gpu0002"]), (32, ["gpu0003", "gpu0004"]), (32, ["gpu0003"]),
        (32, nodes_of(32)[::4]), (1024, ["gpu0001", "gpu0500", "gpu0501"]),
    ],
)  # fmt: skip
def test_few_nodes_and_scattered_ones_are_no_group(count: int, bad: list[str]) -> None:
    assert groups.groups(verdict(count, {"gemm.bf16": any_gpu(bad)})) == []


def test_half_of_the_nodes_that_stand_together_are_a_place() -> None:
    bad = nodes_of(16)[8:]
    (group,) = groups.groups(verdict(16, {"memory.copy": any_gpu(bad)}))
    assert (group.kind, group.failing) == ("place", 8)
    (group,) = groups.groups(verdict(16, {"memory.copy": any_gpu(nodes_of(16))}))
    assert (group.kind, group.failing) == ("part", 16), "all of them are not a place"


def test_a_slot_needs_that_the_other_gpus_of_the_nodes_pass() -> None:
    """Nodes that are slow as a whole have a slowest GPU all the same."""
    bad = nodes_of(64)[::5]
    run = verdict(64, {"gemm.bf16": dict.fromkeys(bad, 3)})
    assert [g.kind for g in groups.groups(run)] == ["slot"]
    for row in run["criteria"]:
        row["worst"]["failing"] = 8
    assert groups.groups(run) == []


def test_a_slot_fails_on_most_of_the_nodes_that_fail() -> None:
    nodes = nodes_of(64)
    bad = {**dict.fromkeys(nodes[::8], 5), **dict.fromkeys(nodes[4::4])}
    assert groups._common_slot(bad, GPUS) is None
    assert groups._common_slot(dict.fromkeys(nodes[::8], 5), GPUS) == (5, 8)


def test_what_a_row_says_by_itself_is_the_advice() -> None:
    run = verdict(16, {"inventory.gpu_model": dict.fromkeys(nodes_of(16)[::2])})
    (sentence,) = groups.sentences(run)
    assert sentence.startswith("8 of 16 nodes fail, half of the nodes or more: inventory.gpu_model")
    assert "another GPU than ordered" in sentence
    assert "image" not in sentence
    run = verdict(32, {"scheduler.node_state": dict.fromkeys(nodes_of(32)[8:16])})
    (sentence,) = groups.sentences(run)
    assert "8 nodes next to each other" in sentence
    assert "`sinfo -R`" in sentence


def test_different_sets_of_failing_nodes_share_the_chance() -> None:
    """Four of 32 neighbours are chance in 0.16 %."""
    bad, other = any_gpu(nodes_of(32)[4:8]), any_gpu(nodes_of(32)[20:24])
    kinds = [g.kind for g in groups.groups(verdict(32, {"a": bad, "b": bad}))]
    assert kinds == ["place"]
    assert groups.groups(verdict(32, {"a": bad, "b": other})) == []
    single = {f"c{k}": any_gpu([node]) for k, node in enumerate(nodes_of(32))}
    assert len(groups.groups(verdict(32, {"a": bad, **single}))) == 1, "they cannot be a place"


def test_criteria_without_a_gpu_have_no_slot() -> None:
    bad: dict[str, int | None] = dict.fromkeys(nodes_of(64)[::5])
    assert groups.groups(verdict(64, {"infiniband.rate": bad})) == []


@pytest.mark.parametrize("count", [16, 128])
@pytest.mark.parametrize("share", [0.05, 0.2, 0.4])
def test_independent_failures_form_a_group_as_seldom_as_said(count: int, share: float) -> None:
    """1,000 runs; slots and places are two looks, each within CHANCE."""
    dice = random.Random(count)
    wrong = 0
    for _ in range(1000):
        bad = {n: dice.randrange(GPUS) for n in nodes_of(count) if dice.random() < share}
        found = groups.groups(verdict(count, {"gemm.bf16": bad}))
        wrong += any(g.kind in ("slot", "place") for g in found)
    assert wrong <= 10, "mean 6 at most; beyond 10 once in 20 such series"


def test_a_run_of_a_hundred_groups_names_the_largest() -> None:
    failing = {}
    for k in range(8):
        failing[f"row{k}"] = any_gpu(nodes_of(1024)[100 * k : 100 * k + 8 + k])
    found = groups.sentences(verdict(1024, failing))
    assert len(found) == groups.MAX_SENTENCES
    assert found[0].startswith("15 nodes next to each other, gpu[0701-0715], fail together: row7.")


def test_what_is_not_judged_is_no_neighbour() -> None:
    """A node that was not measured stands between them; the others are neighbours all the same."""
    run = verdict(64, {"gemm.bf16": any_gpu(nodes_of(64)[8:17])})
    run["criteria"][12] |= {"outcome": "NOT_MEASURED"}
    (group,) = groups.groups(run)
    assert group.where.startswith("8 nodes next to each other, gpu[0009-0012,0014-0017]")


def test_many_criteria_are_counted() -> None:
    bad = any_gpu(nodes_of(64)[8:16])
    (group,) = groups.groups(verdict(64, {f"row{k}": bad for k in range(5)}))
    assert "row0, row1, row2 and 2 more criteria." in group.sentence


def test_a_sentence_names_three_criteria_and_counts_the_others() -> None:
    def sentence(*keys: str) -> str:
        return groups.Group("place", "here", 8, keys).sentence

    assert sentence("a", "b", "c").startswith("here: a, b, c. Look at")
    assert sentence("a", "b", "c", "d").startswith("here: a, b, c and 1 more criterion. Look at")


def test_what_is_slower_than_the_rest_is_told_whether_anything_fails() -> None:
    def told(kind: str, count: int) -> str:
        rows = [{"kind": kind, "where": "here", "criterion": f"x{k}", "slower": 0.05}
                for k in range(count)]  # fmt: skip
        (sentence,) = groups.sentences({"criteria": [], "fleet": rows})
        return sentence

    assert "here: x0 5.0%, x1 5.0%, x2 5.0%. Look at what these nodes share" in told("place", 3)
    assert "x2 5.0% and 1 more criterion. Look at what this slot" in told("slot", 4)
    assert "x0 5.0%. Compare the part numbers" in told("gpus", 1)
    assert "Before any single node" in told("part", 1)


def test_a_common_slot_needs_two_slots_and_named_gpus() -> None:
    all_on_one: dict[str, int | None] = dict.fromkeys(nodes_of(20), 1)
    assert groups._common_slot(all_on_one, 2) == (1, 20)
    assert groups._common_slot(all_on_one, 1) is None
    assert groups._common_slot(dict.fromkeys(nodes_of(20)), 8) is None


def test_the_page_states_which_groups_a_run_of_this_size_can_show() -> None:
    assert groups.looked_for(4, 8) == groups.looked_for(0, 0) == ""
    assert groups.looked_for(8, 8) == "a GPU slot of all nodes; a quarter to half of the GPUs"
    assert groups.looked_for(16, 1) == "6 neighbours or more; a quarter to half of the nodes"
    assert groups.looked_for(32, 8) == (
        "a GPU slot of all nodes; 4 neighbours or more; a quarter to half of the nodes; "
        "a quarter to half of the GPUs"
    )
    facts = banner.facts({"run_id": "r", "scope": {"nodes": nodes_of(16), "gpus_per_node": 1}}, {})
    assert ("Groups looked for", groups.looked_for(16, 1)) in facts
    assert "Groups looked for" not in dict(
        banner.facts({"run_id": "r", "scope": {"nodes": ["a"], "gpus_per_node": 8}}, {})
    )
