"""The slices of a load on the whole fabric: what all of them show is what the judge is given."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.permutations.named_leaves import ports_of
from fixtures.permutations.schedule import RESTS, schedule
from fixtures.records.model import Measurement, Void
from fixtures.run.fabric_load import Bare
from tests.selftests.loaded_fabrics import LEFT_OPEN, RATE, SEED, LoadedFabric, in_leaves, value

pytestmark = pytest.mark.cpu

LEAVES = in_leaves(3, 4)
ENOUGH = in_leaves(4, 4)


def test_what_ranks_left_open_is_answered_in_the_record_that_is_judged():
    fabric = LoadedFabric(ENOUGH)
    raw = fabric.record()
    found = fabric.decided(raw)
    assert [value(found, "n00", metric) for metric in LEFT_OPEN] == [0, 0, 0, 0, 100.0]
    assert {a.metric for r in found.ranks for a in r.absent} == set()
    # What is on the disk stays as it is, and other ranks than the node's first say nothing.
    assert {a.metric for r in raw.ranks for a in r.absent} == {*LEFT_OPEN}
    assert not [m for r in found.ranks if r.local_rank for m in r.measurements
                if m.metric in LEFT_OPEN]  # fmt: skip


def slow_in(attempt: int, made: list[int]):
    """A port that is slow in one slice only."""

    def slow(rates, targets, nodes):
        made.append(1)
        if len(made) == attempt:
            rates[:, 4] *= 0.7  # n02, rail 0

    return slow


def test_slices_count_together_whichever_is_the_newest():
    made: list[int] = []
    fabric = LoadedFabric(LEAVES, slow=slow_in(1, made))
    first, second = fabric.record(1), fabric.record(2)
    assert value(fabric.decided(first, second), "n02", "ports") == 1
    assert value(fabric.decided(second), "n02", "ports") == 0


def test_wrong_words_of_an_earlier_slice_are_not_forgotten_nor_is_a_slow_window():
    fabric = LoadedFabric(LEAVES)
    first = fabric.record(1)
    for r in first.ranks[:1]:
        changed = {"errors": 3, "steadiness": 40.0}
        found = [replace(m, value=changed.get(m.metric, m.value)) for m in r.measurements]
        first.ranks[0] = replace(r, measurements=found)
    newest = fabric.decided(first, fabric.record(2))
    assert value(newest, "n00", "errors") == 3
    assert value(newest, "n01", "errors") == 0
    assert value(newest, "n23", "steadiness") == 40.0


def test_wrong_words_of_a_slice_whose_rounds_are_not_known_count_all_the_same():
    fabric = LoadedFabric(LEAVES)
    newest = fabric.record(2)
    for k, words in ((0, 4), (2, 2.0)):
        errors = Measurement(metric="errors", unit="words", value=words)
        newest.ranks[k] = replace(newest.ranks[k], measurements=[errors], facts={})
    found = fabric.decided(fabric.record(1), newest)
    assert [value(found, node, "errors") for node in ("n00", "n01", "n02")] == [4, 2, 0]


def test_what_stands_in_the_place_of_an_earlier_slice_is_said():
    fabric = LoadedFabric(LEAVES)
    load = fabric.load()
    cut = {"kind": "unusable record", "reason": "records/x.json: it is cut short"}
    load.decided(fabric.record(2), lambda number: cut, lambda: None)
    summary = load.summary()
    assert summary is not None
    assert summary["slices"] == 1
    assert "slice 1: records/x.json: it is cut short" in summary["not_covered"]


def test_an_earlier_slice_without_a_record_is_said():
    """A slice that was taken away is not one that never was."""
    fabric = LoadedFabric(LEAVES)
    load = fabric.load()
    fabric.decided(fabric.record(1), fabric.record(3), load=load)
    summary = load.summary()
    assert summary is not None
    assert summary["slices"] == 2
    assert summary["not_covered"] == "slice 2: it left no record"


def test_a_slice_of_which_nothing_counts_knows_of_no_leaves():
    fabric = LoadedFabric(LEAVES)
    load, made = fabric.load(), fabric.record()
    load.decided(made.without({n: Void("replaced") for n in LEAVES}), {}.get, lambda: None)
    summary = load.summary()
    assert summary is not None
    assert "the leaf switches are not known" in summary["not_covered"]
    assert "wiring measured" not in summary["not_covered"].partition("neither")[0]


def test_no_port_makes_up_for_its_leaf_by_a_rate_that_no_port_has():
    """A leaf at 0.8 of the load: what one of its nodes says of its own flows counts as a healthy
    port's at most."""

    def short_of_uplinks(rates, targets, nodes):
        leaf = np.array([LEAVES[n] for n in nodes])
        crossing = (targets != RESTS) & (leaf != leaf[targets])
        rates[crossing & ((leaf == "leaf1") | (leaf[targets] == "leaf1"))] *= 0.8

    fabric = LoadedFabric(LEAVES, slow=short_of_uplinks, stated="order")
    covered = []
    for boast in (RATE, 9e4):
        made = fabric.record()
        for k, rank in enumerate(made.ranks):
            if rank.node == "n10":
                fast = [replace(m, samples=[boast] * len(m.samples)) if m.metric == "rate" else m
                        for m in rank.measurements]  # fmt: skip
                made.ranks[k] = replace(rank, measurements=fast)
        found = fabric.decided(made, load=fabric.load(oversubscription=1))
        covered.append(value(found, "n00", "coverage"))
    assert covered == [covered[0]] * 2
    assert covered[0] < 100


def test_a_run_that_goes_on_a_year_later_or_with_a_clock_that_was_set_is_one_run():
    fabric = LoadedFabric(LEAVES, slow=slow_in(1, []))
    first, second = fabric.record(1), fabric.record(2)
    for later in (365 * 86400.0, -1e6):
        facts = dict(second.ranks[0].facts["schedule"])
        facts["started"] = [at + 2e6 + later for at in facts["started"]]
        moved = [replace(r, start=r.start + 2e6 + later, end=r.end + 2e6 + later)
                 for r in second.ranks]  # fmt: skip
        moved[0] = replace(moved[0], facts={"schedule": facts})
        load = fabric.load()
        newest = fabric.decided(first, replace(second, ranks=moved), load=load)
        summary = load.summary()
        assert summary is not None
        assert (summary["slices"], summary["hours"]) == (2, 0.3333)
        assert value(newest, "n02", "ports") == 1


def test_a_link_that_went_down_during_a_slice_is_a_flap_of_its_node():
    fabric = LoadedFabric(LEAVES)
    first = fabric.record(1)
    (own,) = [k for k, r in enumerate(first.ranks) if (r.node, r.local_rank) == ("n11", 0)]
    links = {"mlx5_3": {"link_downed": 2}, "mlx5_4": {"link_downed": "x"}, "mlx5_5": 3}
    first.ranks[own] = replace(first.ranks[own], facts={"links": links})
    load = fabric.load()
    newest = fabric.decided(first, fabric.record(2), load=load)
    assert {n: value(newest, n, "flaps") for n in LEAVES} == {n: int(n == "n11") for n in LEAVES}
    summary = load.summary()
    assert summary is not None
    assert summary["findings"] == ["flapping port: node n11, mlx5_3: link_downed rose by 2"]


def test_a_slice_is_read_once_and_again_when_it_is_another():
    fabric, asked = LoadedFabric(LEAVES), []
    load, first = fabric.load(), fabric.record(1)

    def attempt(number):
        asked.append(number)
        return first

    load.decided(fabric.record(2), attempt, lambda: None)
    load.decided(fabric.record(3), {2: fabric.record(2)}.get, lambda: None)
    assert asked == [1]
    load.forget()
    load.decided(fabric.record(2), attempt, lambda: None)
    assert asked == [1, 1]


def kept_of(record, file=(1, 2, 3)):
    return Bare(file, record, SimpleNamespace(), None, {}, has_facts=True)


def test_what_is_kept_of_a_slice_is_its_own_and_kept_once_where_it_is_equal():
    fabric = LoadedFabric(LEAVES)
    load, first, second = fabric.load(), fabric.record(1), fabric.record(2)
    fabric.decided(first, second, load=load)
    other = second.ranks[0]
    second.ranks[0] = replace(
        other, device={**other.device, "vbios": "other"}, facts={**other.facts, "note": 1}
    )
    for record in (first, second):
        load.keep(kept_of(record))
    one, two = (load.bare(number, (1, 2, 3)) for number in (1, 2))
    assert one is not None
    assert two is not None
    for bare, record in ((one, first), (two, second)):
        assert [r.rank for r in bare.record.ranks] == [r.rank for r in record.ranks]
        assert [r.device for r in bare.record.ranks] == [r.device for r in record.ranks]
        facts = [{n: f for n, f in r.facts.items() if n != "schedule"} for r in record.ranks]
        assert [r.facts for r in bare.record.ranks] == facts
        assert not any(r.measurements or r.absent for r in bare.record.ranks)
    same = [a.device is b.device for a, b in zip(one.record.ranks, two.record.ranks, strict=True)]
    assert same == [False, *[True] * (len(same) - 1)]


def test_a_slice_whose_file_is_another_is_read_again():
    fabric = LoadedFabric(LEAVES)
    load, first, second = fabric.load(), fabric.record(1), fabric.record(2)
    fabric.decided(first, second, load=load)
    load.keep(kept_of(first))
    load.keep(kept_of(first))
    assert load.bare(1, (1, 2, 3)) is not None
    assert load.bare(1, (1, 2, 4)) is None
    assert load.bare(1, None) is None
    assert load.decided_before(2, with_facts=False) is not None
    load.keep(kept_of(first, file=(1, 2, 4)))
    assert load.bare(1, (1, 2, 4)) is None, "it has to be taken before"
    assert load.decided_before(2, with_facts=False) is None


def test_a_part_that_is_void_is_not_covered():
    fabric = LoadedFabric(in_leaves(3, 1), rails=1)
    record = fabric.record()
    void = record.without({"n10": Void("n10: replaced")})
    load = fabric.load()
    fabric.decided(void, load=load)
    summary = load.summary()
    assert summary is not None
    assert (summary["cells"], summary["covered"]) == (6, 2)
    assert "n10" in summary["not_covered"]


def test_a_part_that_became_void_since_a_slice_was_read_counts_no_more():
    """The session has planned with it, and then found another device: `verify` knows only that."""
    fabric = LoadedFabric(in_leaves(3, 1), rails=1)
    first, load = fabric.record(1), fabric.load()
    fabric.decided(first, load=load)
    void = first.without({"n10": Void("n10: replaced")})
    assert load.take(1, void, lambda: None) is False
    fabric.decided(void, fabric.record(2, without=["n10"]), load=load)
    summary = load.summary()
    assert summary is not None
    assert (summary["cells"], summary["covered"]) == (6, 2)


def test_a_node_of_which_no_slice_knows_anything_is_on_no_leaf_and_not_covered():
    fabric = LoadedFabric(ENOUGH)
    load = fabric.load()
    newest = fabric.decided(fabric.record(without=["n11"]), load=load)
    summary = load.summary()
    assert summary is not None
    assert summary["leaves"] == ["leaf0", "leaf1", "leaf2", "leaf3", "no leaf known"]
    assert "no slice has n11" in value(newest, "n00", "coverage")
    assert value(newest, "n00", "ports") == 0
    assert value(newest, "n00", "uplinks") == "no slice has n11"
    assert value(newest, "n00", "pairs") == "no slice has n11"


def test_leaves_that_an_earlier_slice_names_hold_for_all():
    fabric = LoadedFabric(LEAVES)
    load = fabric.load()
    fabric.decided(fabric.record(1), fabric.record(2, without=["n11"]), load=load)
    summary = load.summary()
    assert summary is not None
    assert summary["leaves"] == ["leaf0", "leaf1", "leaf2"]
    assert (summary["slices"], summary["covered"]) == (2, 12)


# --- coverage stays true, whatever becomes of slices and nodes


@settings(max_examples=20, deadline=None)
@given(
    dead_from=st.dictionaries(st.sampled_from(["n00", "n11", "n22"]), st.integers(1, 4)),
    lost=st.sets(st.integers(1, 3)), down=st.sets(st.sampled_from([("n01", 0), ("n20", 1)])),
)  # fmt: skip
def test_coverage_is_that_of_the_flows_that_were_measured(dead_from, lost, down):
    """Killed slices, nodes that die in the middle, rails that are down from the start."""
    fabric = LoadedFabric(
        LEAVES, rounds=24, noise=0.002, down=frozenset(down), stated="order"
    )  # fmt: skip
    slices = [
        fabric.record(k, without=[n for n, first in dead_from.items() if k >= first])
        for k in range(1, 5) if k not in lost
    ]  # fmt: skip
    load = fabric.load()
    fabric.decided(*slices, load=load)
    summary = load.summary()
    assert summary is not None
    every = {(a, b, r) for a in (0, 1, 2) for b in (0, 1, 2) for r in (0, 1) if a != b}
    driven = set()
    for record in slices:
        driven |= driven_in(fabric, record, every)
    assert summary["cells"] == len(every)
    assert summary["covered"] == len(driven)
    missing = {(int(a[-1]), int(b[-1]), r, way) for a, b, r, way in summary["missing"]}
    both = {(b, a, r) for a, b, r, way in missing if way == "both"}
    assert {(a, b, r) for a, b, r, _ in missing} | both == every - driven
    assert summary["slices"] == len(slices)


def driven_in(fabric, record, every):
    """By hand: the cells of which the flows of one round reached 0.9 of what they can."""
    stated = record.ranks[0].facts["schedule"]
    ports = ports_of(stated["nodes"], stated["rails"], stated["leaves"], by_rail=False)
    driven = set()
    for targets in schedule(ports, SEED, stated["first"], fabric.rounds):
        flows: dict[tuple[int, int, int], int] = {}
        for k, to in enumerate(targets):
            ends = [(stated["nodes"][p], stated["rails"][p]) for p in (k, to)]
            if to != RESTS and not any(end in fabric.down for end in ends):
                cell = ports.leaf[k], ports.leaf[to], ports.rail[k]
                flows[cell] = flows.get(cell, 0) + 1
        driven |= {cell for cell, count in flows.items() if cell in every and count >= 0.9 * 4}
    return driven
