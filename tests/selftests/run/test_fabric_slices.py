"""From the record of a slice to its flows: the rounds that are stated have to fit its ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fixtures.permutations.named_leaves import ports_of
from fixtures.permutations.schedule import RESTS, schedule
from fixtures.records.model import Void
from fixtures.run.fabric_slices import NotUsable, leaves_of, observed, recovered, schedule_of
from tests.selftests import support
from tests.selftests.loaded_fabrics import RATE, SEED, LoadedFabric, in_leaves

pytestmark = pytest.mark.cpu

FABRIC = LoadedFabric(in_leaves(2, 3), noise=0.0, rounds=20)
LEAF = leaves_of(FABRIC.nodes, 2, FABRIC.leaf_of, False, "order")


@pytest.mark.parametrize(
    "more",
    [
        {"nodes": ["n00"]}, {"rails": [0] * 12}, {"started": [1.0]}, {"started": []},
        {"seconds": [float("nan")] * 20}, {"seed": "7"}, {"leaves": []}, {"first": None},
        {"nodes": ["n01"] * 12}, {"nodes": [["n00"]] * 12},
        # Rounds of another slice, of none, more than there are, hours that the rank did not run.
        {"first": 20}, {"first": -20}, {"seed": True}, {"planned": 19}, {"planned": 1e9},
        {"seconds": [3600.0] * 20}, {"started": [1000.0] * 20}, {"started": [0.0] * 20},
        {"started": [1000.0 + 20 * k for k in range(20)], "seconds": [20.9] * 20},
        {"started": [1600.0 - 30 * k for k in range(20)]}, {"started": [1e10] * 20},
        {"leaves": {n: ["x"] for n in FABRIC.nodes}}, {"leaves": dict.fromkeys(FABRIC.nodes)},
    ],
)  # fmt: skip
def test_rounds_that_do_not_fit_the_ranks_are_refused(more):
    with pytest.raises(NotUsable):
        schedule_of(replace(FABRIC, more=more).record())


def test_rounds_of_another_seed_are_refused_before_they_hide_a_leaf():
    """By another seed others sent to each other, and what is slow is spread over all leaves."""
    with pytest.raises(NotUsable, match="not those of the record"):
        schedule_of(replace(FABRIC, more={"seed": SEED + 1}).record())


def test_who_sent_to_whom_is_what_every_rank_has_computed():
    fabric = LoadedFabric(in_leaves(2, 2), rails=3, rounds=20)
    names, rails = [n for n in fabric.nodes for _ in range(3)], [0, 1, 2] * len(fabric.nodes)
    ports = ports_of(names, rails, dict(fabric.leaf_of), by_rail=False)
    planned = schedule(ports, SEED, 20, 20)
    assert any(RESTS in targets for targets in planned)  # between two ports of a node
    seen = observed(fabric.record(2), fabric.nodes, 3, ports.leaf, None, ordered=True)
    assert seen.target.tolist() == planned


def test_rounds_that_were_planned_for_other_leaves_are_refused():
    made = FABRIC.record()
    of_port = np.array(LEAF.of_port)
    observed(made, FABRIC.nodes, 2, (1 - of_port).tolist(), None, ordered=True)  # only renamed
    others = np.roll(of_port, 2).tolist()
    for ordered, said in ((True, "the order has"), (False, "are known")):
        with pytest.raises(NotUsable, match=said):
            observed(made, FABRIC.nodes, 2, others, None, ordered=ordered)
    unknown = replace(FABRIC, stated="").record()
    observed(unknown, FABRIC.nodes, 2, LEAF.of_port, None)  # as the wiring has found them
    with pytest.raises(NotUsable, match="the order has"):
        observed(unknown, FABRIC.nodes, 2, LEAF.of_port, None, ordered=True)


def test_a_slice_that_is_void_as_a_whole_says_why():
    made = FABRIC.record()
    void = made.without({n: Void(f"{n}: its samples are those of another") for n in FABRIC.nodes})
    with pytest.raises(NotUsable, match="its samples are those of another"):
        schedule_of(void)


def test_without_a_word_on_its_rounds_a_slice_says_nothing():
    made = FABRIC.record()
    silent = replace(made, ranks=[replace(r, facts={}) for r in made.ranks])
    with pytest.raises(NotUsable, match="no rank says"):
        schedule_of(silent)


def test_flows_are_those_of_the_ports_of_all_nodes():
    made = FABRIC.record(without=["n01"])
    seen = observed(made, FABRIC.nodes, 2, LEAF.of_port, None)
    assert seen.target.shape == seen.rates.shape == (20, 12)
    gone = [FABRIC.nodes.index("n01") * 2 + rail for rail in (0, 1)]
    assert (seen.target[:, gone] == RESTS).all()
    assert not np.isin(seen.target, gone).any()
    known = np.isfinite(seen.rates)
    assert (known == (seen.target != RESTS)).all()
    assert np.allclose(seen.rates[known], RATE)
    assert seen.expected == pytest.approx(RATE)
    assert seen.start[0] == 0.0


def test_a_rank_with_another_number_of_rates_than_rounds_has_none():
    made = FABRIC.record()
    first = made.ranks[0]
    short = [replace(m, samples=m.samples[:-1]) if m.metric == "rate" else m
             for m in first.measurements]  # fmt: skip
    made.ranks[0] = replace(first, measurements=short)
    seen = observed(made, FABRIC.nodes, 2, LEAF.of_port, None)
    assert np.isnan(seen.rates[:, 0]).all()
    assert np.isfinite(seen.rates[:, 1]).any()


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), 1e300, 10**400])
def test_a_rank_with_a_rate_that_no_port_has_has_none(rate):
    made = FABRIC.record()
    last = made.ranks[-1]
    changed = [replace(m, samples=[rate, *list(m.samples)[1:]]) if m.metric == "rate" else m
               for m in last.measurements]  # fmt: skip
    made.ranks[-1] = replace(last, measurements=changed)
    seen = observed(made, FABRIC.nodes, 2, LEAF.of_port, None)
    assert np.isnan(seen.rates[:, -1]).all()
    nothing = [replace(r, measurements=changed) for r in made.ranks]
    with pytest.raises(NotUsable, match="no flow"):
        observed(replace(made, ranks=nothing), FABRIC.nodes, 2, LEAF.of_port, None)


def test_more_ports_of_a_node_than_the_run_has_are_not_those_of_the_next_node():
    with pytest.raises(NotUsable, match="nodes of the run have"):
        observed(FABRIC.record(), FABRIC.nodes, 1, LEAF.of_port[::2], None)


def wiring(*groups):
    made = support.record(support.rank(0, "a"), workload="wiring", placement="all")
    return replace(made, ranks=[replace(made.ranks[0], facts={"groups": groups})])


def test_leaves_that_the_wiring_found_count_where_all_rails_agree():
    nodes = ("a", "b", "c")

    def rail(gpu, **leaf):
        return {"ports": f"gpu{gpu}", "recovered": {f"{n} gpu{gpu}": x for n, x in leaf.items()}}

    alike = wiring(rail(0, a="x", b="x", c="y"), rail(1, a="q", b="q", c="p"))
    found = recovered(alike, nodes, 2)
    assert found["a"] == found["b"] != found["c"]
    assert (
        recovered(wiring(rail(0, a="x", b="x", c="y"), rail(1, a="q", b="p", c="p")), nodes, 2)
        == {}
    )
    assert recovered(wiring(rail(0, a="x", b="x", c="y")), nodes, 2) == {}
    assert recovered(wiring(rail(0, a="x", b="x")), nodes, 1) == {}
    assert recovered(wiring({"recovered": 3}, "x"), nodes, 1) == {}
    assert recovered(None, nodes, 1) == {}
