"""Samples of devices: their checks, their figures, and the comparison with a limit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from fixtures.records.model import WHOLE_NODE as NODE
from fixtures.records.model import Void
from fixtures.verdict import samples
from fixtures.verdict.causes import Cause
from fixtures.verdict.model import Case
from fixtures.verdict.samples import ALL_NODES, Invalid
from tests.selftests.verdict import made
from tests.selftests.verdict.made import criterion, measured, points, rank, record, resolved, state

pytestmark = pytest.mark.cpu

TWO = ("worker0", "worker1")


def refusal(check: Any, *arguments: Any, **more: Any) -> Invalid | None:
    """What a check says against measurements; None where it lets them pass."""
    try:
        check(*arguments, **more)
    except Invalid as error:
        return error
    return None


def node(name: str, *values: float, first: int = 0, **facts: Any) -> list[Any]:
    """The ranks of a node, each with one sample."""
    return [rank(first + k, measured("rate", v), node=name, **facts) for k, v in enumerate(values)]


# --- whose measurements


def test_the_measurements_of_a_subject_are_of_its_nodes_its_rail_or_all():
    found = record(*node("worker0", 1, 2), *node("worker1", 3, 4, first=2))

    def of(subject: str, nodes: tuple[str, ...] = TWO, **given: Any) -> list[float]:
        chosen = samples.points_of(criterion(**given), found, nodes, subject)
        return [m.samples[0] for _, m in chosen]

    assert of("worker1", ("worker1",)) == [3, 4]
    assert of("rail1", per="rail") == [2, 4]
    assert of("cluster", ("worker0",), per="cluster") == [1, 2, 3, 4]
    assert of("worker0", per="node", at={"size": 1}) == []


def test_each_measurement_is_of_whom_it_is_meant_for():
    """Whoever reports it: a GPU, its node, or all nodes, of which one has the value for all."""
    both = record(*node("worker0", 1, 2), *node("worker1", 3, 4, first=2))
    each = record(*node("worker0", 1), *node("worker1", 2, first=1))
    one = record(*node("worker0", 1), rank(1, node="worker1"))
    value = {"statistic": "value"}
    for found, given, parts in (
        (both, {}, {None}), (both, {"over": "links"}, {None}), (both, {"over": "nodes"}, {NODE}),
        (both, {"over": "devices", **value}, {None}), (both, {"over": "nics", **value}, {NODE}),
        (both, value, {None}), (each, value, {NODE}), (each, {"per": "cluster", **value}, {NODE}),
        (both, {"over": "tasks", **value}, {NODE}),
        (one, {"per": "cluster", **value}, {ALL_NODES}), (one, {"per": "cluster"}, {None}),
        (both, {"per": "pair", "over": "half", **value}, {ALL_NODES}),
        (one, {"per": "cluster", "over": "nodes"}, {NODE}), (one, value, {NODE}),
        (replace(one, workload="slurm"), {"per": "cluster", **value}, {NODE}),
    ):  # fmt: skip
        chosen = samples.points_of(criterion(**given), found, TWO, "rail0")
        assert {r.device.get("part") for r, _ in chosen} == parts, given
        assert [(r.rank, m) for r, m in chosen] == [(r.rank, m) for r, m in points(found)]


# --- figures


def test_a_device_has_the_median_of_its_rounds():
    r = rank(0)
    assert samples.round_medians(r, measured("rate", 1, 2, 9)) == [2]
    several = measured("rate", 1, 2, 9, rounds=[[4, 4], [7]])
    assert samples.round_medians(r, several) == [2, 4, 7]
    assert samples.device_value(r, several) == 4
    for wrong, says in (
        ((), "no samples"), ((1, math.inf), "not finite"), ((1, math.nan), "not finite"),
        ((1, 0), "not positive"), ((1, -1), "not positive"),
    ):  # fmt: skip
        for m in (measured("rate", *wrong), measured("rate", 1, rounds=[list(wrong)])):
            error = refusal(samples.round_medians, r, m)
            assert error is not None
            assert says in str(error)
            assert str(error).startswith("worker0 gpu0: ")
            assert (error.cause, error.nodes) == (Cause.RECORD, ["worker0"])
    assert samples.round_medians(r, measured("rate", 0.5)) == [0.5]


def test_over_ranks_times_are_averaged_and_not_rates():
    rates, times = criterion(unit="GB/s"), criterion(unit="us")
    batches = [[100.0, 100.0, 90.0], [50.0, 100.0, 90.0]]
    assert samples.means_over_ranks(rates, batches) == pytest.approx([200 / 3, 100, 90])
    assert samples.means_over_ranks(times, batches) == [75, 100, 90]
    assert samples.harmonic_mean([1, 1, 4]) == pytest.approx(4 / 3)
    with pytest.raises(ValueError):
        samples.means_over_ranks(rates, [[1.0], [1.0, 2.0]])


COMPARED: list[tuple[str, Any, Any, tuple[bool, float]]] = [
    # kind of limit, limit, value, whether it is satisfied and by how much
    ("below", 100, 110, (True, 0.1)),
    ("below", 100, 100, (True, 0.0)),
    ("below", 100, 90, (False, -0.1)),
    ("below", 100, math.nan, (False, math.nan)),
    ("below", 0, 5, (True, math.inf)),
    ("above", 100, 90, (True, 0.1)),
    ("above", 100, 100, (True, 0.0)),
    ("above", 100, 110, (False, -0.1)),
    ("above", 0, 0, (True, 0.0)),
    ("above", 0, 3, (False, -3.0)),
    ("equals", 8, 8, (True, 0.0)),
    ("equals", 8, 7, (False, 0.0)),
    ("recorded", None, 7, (True, 0.0)),
]


def test_a_value_is_compared_with_its_limit():
    for kind, limit, value, (ok, distance) in COMPARED:
        found = samples.compare(resolved(kind, limit), value)
        assert found == (ok, pytest.approx(distance, nan_ok=True)), (kind, limit, value)
        assert isinstance(found[0], bool)
    for limit in (resolved("calibrate"), resolved("below"), resolved("below", "default")):
        error = refusal(samples.compare, limit, 5)
        assert error is not None
        assert "the limit is not set yet" in str(error)
        assert error.cause is Cause.LIMIT


# --- completeness


def complete(found: Any, devices: int = 4, nodes: tuple[str, ...] = TWO, **given: Any) -> Any:
    case = made.case(criterion(**given), nodes, devices)
    return refusal(samples.check_complete, case, found, points(found))


def test_every_planned_device_must_have_measured_once():
    both = [*node("worker0", 1, 2), *node("worker1", 3, 4, first=2)]
    assert complete(record(*both)) is None
    error = complete(record(*both[:3], nodes=TWO))
    assert str(error) == "measured on 3 of 4 devices"
    assert (error.cause, error.nodes) == (Cause.NODE, ["worker1"])
    # A node that is no part of the record is judged as such elsewhere.
    assert complete(record(*both[:2])) is None
    error = complete(record(rank(0), rank(1), nodes=["worker0"]))
    assert (str(error), error.nodes) == ("measured on 0 of 2 devices", ["worker0"])
    error = complete(record(rank(0), nodes=["other"]), 4)
    assert str(error) == "measured on 0 of 0 devices"
    twice = [rank(0, measured("rate", 1), measured("rate", 2)), *both[1:]]
    error = complete(record(*twice))
    assert str(error) == "the record holds 5 measurements of 4 devices"
    assert (error.cause, error.nodes) == (Cause.RECORD, ["worker0"])


def test_one_rank_speaks_for_a_node():
    one = record(*node("worker0", 1), *node("worker1", 3, first=2))
    assert complete(one, 2, over="nodes") is None
    two = record(*node("worker0", 1), *node("worker1", 3, 4, first=2))
    error = complete(two, 2, over="nodes")
    assert str(error) == "2 ranks of worker1 measured what one measures for the node"
    assert (error.cause, error.nodes) == (Cause.RECORD, ["worker1"])
    assert complete(two, 2, over="slowest") is None


def owed(found: Any, over: str, devices: int = 4, nodes: tuple[str, ...] = TWO) -> Any:
    case: Case = made.case(criterion(statistic="value", over=over), nodes, devices)
    return refusal(samples.check_owed, case, found, points(found))


def nics(k: int, *parts: str, name: str = "worker0") -> Any:
    return rank(k, *(state(1, at={"part": part}) for part in parts), node=name)


def test_every_ordered_nic_must_be_reported():
    full = [nics(0, "a"), nics(1, "b"), nics(2, "a", "b", name="worker1"), rank(3, node="worker1")]
    assert owed(record(*full), "nics") is None
    error = owed(record(*full[1:]), "nics")
    assert (str(error), error.nodes) == ("reported by 3 of 4 NICs", ["worker0"])
    assert error.cause is Cause.NODE
    more = record(nics(0, "b", "c", "d"), nics(2, "a", name="worker1"))
    assert str(owed(more, "nics")) == "reported by 3 of 4 NICs", "of one node more are of no use"
    same = record(nics(0, "a", "a"), nics(2, "a", "b", name="worker1"))
    assert owed(same, "nics").nodes == ["worker0"]
    assert owed(record(*full[:2], nodes=["worker0"]), "nics") is None


def test_every_device_task_or_half_of_the_ranks_must_report():
    def ranks(*silent: int) -> list[Any]:
        names = ("worker0", "worker0", "worker1", "worker1")
        return [
            rank(k, *([] if k in silent else [state(1)]), node=name) for k, name in enumerate(names)
        ]

    assert owed(record(*ranks()), "devices") is None
    assert str(owed(record(*ranks(3)), "devices")) == "measured on 3 of 4 devices"
    assert owed(record(*ranks()), "tasks") is None
    error = owed(record(*ranks(1, 3)), "tasks")
    assert (str(error), error.nodes) == ("reported by 2 of 4 ranks", ["worker0", "worker1"])
    error = owed(record(*ranks(1, 2, 3)), "half")
    assert (str(error), error.nodes) == ("reported by 1 of 2 ranks", ["worker0"])
    assert owed(record(*ranks(3)), "half") is None
    # Of others a single rank of each node is enough, and where one node speaks for all, it alone.
    assert owed(record(*ranks(1, 3)), "slowest") is None
    assert owed(record(*ranks(1, 2, 3)), "slowest") is None
    three = record(*ranks(), rank(4, node="worker2"))
    error = owed(three, "slowest", 6, (*TWO, "worker2"))
    assert (str(error), error.nodes) == ("worker2 reported no rate", ["worker2"])
    assert error.cause is Cause.NODE
    other = record(*ranks(), rank(4, node="other"))
    assert owed(other, "tasks") is None, "not a node of the subject"


# --- what a measurement claims


def test_all_is_measured_in_one_unit():
    found = points(record(*node("worker0", 1, 2)))
    assert refusal(samples.check_unit, criterion(), found) is None
    error = refusal(samples.check_unit, criterion(measured_unit="us"), found)
    assert str(error) == "worker0 gpu0: measured in GB/s, the contract says us"
    assert error is not None
    assert error.cause is Cause.RECORD
    assert refusal(samples.check_unit, criterion(measured_unit=None), found) is None
    mixed = points(record(rank(0, measured("rate", 1)), rank(1, measured("rate", 1, unit="us"))))
    assert "worker0 gpu1" in str(refusal(samples.check_unit, criterion(measured_unit=None), mixed))


CLAIMS: list[tuple[dict[str, Any], str]] = [
    # what a measurement of three samples says of them, and what is wrong
    ({}, ""),
    ({"checks": {"batches": 3, "other": 9}}, ""),
    ({"checks": {"batches": 4}}, "3 samples of 4 batches"),
    ({"checks": {"steps": 2}}, "3 samples of 2 steps"),
    ({"checks": {"batches": 2}, "rounds": [[1, 1], [1, 1, 1]]}, ""),
    ({"checks": {"batches": 3}, "rounds": [[1, 1]]}, "2 samples of 3 batches"),
    ({"ended": [1, 2, 2]}, ""),
    ({"ended": [1, 13, 2]}, "ends before the one before it"),
    ({"ended": [1, 3, 2]}, ""),
    ({"ended": [1, 2]}, "3 samples of 2 times"),
]


def test_a_measurement_has_as_many_samples_as_it_states():
    for given, says in CLAIMS:
        error = refusal(samples.check_claims, rank(0), measured("rate", 1, 2, 3, **given))
        assert (error is None) == (says == ""), (given, error)
        if error is not None:
            assert says in str(error)
            assert (error.cause, error.nodes) == (Cause.RECORD, ["worker0"])
    assert refusal(samples.check_claims, rank(0), state(3, checks={"batches": 5})) is None


def test_a_check_is_within_its_bounds():
    for bounds, value, says in (
        ((1, 5), 1, ""), ((1, 5), 5, ""), ((1, 5), 0.9, "is 0.9, a valid measurement has 1 to 5"),
        ((1, 5), 5.1, "1 to 5"), ((None, 5), -9, ""), ((None, 5), 6, "at most 5"),
        ((1, None), 99, ""), ((1, None), 0, "at least 1"), ((1, None), math.nan, "at least 1"),
    ):  # fmt: skip
        m = measured("rate", 1, checks={"overlap": value})
        error = refusal(samples.check_valid, {"overlap": bounds}, rank(1), m)
        assert (error is None) == (says == ""), (bounds, value, error)
        assert says in str(error or "")
    absent = refusal(samples.check_valid, {"overlap": (1, None)}, rank(1), measured("rate", 1))
    assert str(absent) == "worker0 gpu1: overlap was not recorded"
    assert absent is not None
    assert (absent.cause, absent.nodes) == (Cause.MEASUREMENT, [])


def test_a_value_beyond_physics_is_an_error_of_the_measurement():
    rate, latency = criterion(ceiling="hbm"), criterion(ceiling="latency")
    r = rank(0)
    for of, ceiling, value, fine in (
        (rate, 100, 102, True), (rate, 100, 102.1, False), (rate, 100, math.nan, False),
        (rate, None, 1e9, True), (latency, 100, 98.1, True), (latency, 100, 98, False),
        (latency, 100, 1e9, True), (criterion(ceiling=100.0), 100, 103, False),
    ):  # fmt: skip
        error = refusal(samples.check_ceiling, of, ceiling, r, value)
        assert (error is None) is fine, (of.ceiling, ceiling, value)
        assert error is None or "measurement error" in str(error)
    for of, found, fine in (
        (rate, (50, 120), True), (rate, (50, 121), False), (latency, (84, 500), True),
        (latency, (83, 500), False),
    ):  # fmt: skip
        for m in (measured("rate", *found), measured("rate", 100, rounds=[list(found)])):
            assert (refusal(samples.check_sample_ceilings, of, 100, r, m) is None) is fine


# --- the outcome and who is named


def test_where_ranks_wait_for_each_other_none_of_them_is_the_culprit():
    together = criterion(synchronous=True)
    for of, expected in (
        (together, True), (criterion(synchronous=True, statistic="dip"), True),
        (criterion(synchronous=True, statistic="value"), False), (criterion(), False),
    ):  # fmt: skip
        assert samples.is_synchronous(of) is expected
    r = rank(1)
    gpu = {"node": "worker0", "gpu": 1, "uuid": "GPU-worker0-1", "value": 5}
    nobody = {"gpu": None, "uuid": None, "value": 5}
    every = {**nobody, "node": "worker0", "part": "all GPUs"}
    assert samples.culprit(criterion(), r, 5) == gpu
    assert samples.culprit(together, r, 5) == every
    cluster = criterion(synchronous=True, per="cluster")
    everywhere = {**nobody, "node": None, "part": "all nodes"}
    assert samples.culprit(cluster, r, 5) == everywhere
    states = criterion(statistic="value")
    assert samples.culprit(states, r, 5) == gpu
    assert samples.culprit(states, r, 5, of_all=True) == every
    assert samples.culprit(criterion(per="pair"), r, 5, of_all=True) == everywhere
    named = {**nobody, "node": "worker0", "part": "mlx5_0"}
    assert samples.culprit(states, r, 5, "mlx5_0") == named
    assert samples.culprit(together, r, 5, "mlx5_0") == named
    spoken = r.as_node
    assert samples.culprit(states, spoken, 5) == {**nobody, "node": "worker0", "part": NODE}
    assert samples.culprit(states, spoken, 5, "mlx5_0", of_all=True) == named
    for_all = replace(r, device={**r.device, "part": ALL_NODES})
    assert samples.culprit(states, for_all, 5) == everywhere
    assert samples.culprit(states, for_all, 5, "a") == {**everywhere, "part": "a"}
    assert samples.device_label(spoken) == "worker0"
    assert samples.device_label(r) == "worker0 gpu1"
    assert (r.device.get("part"), spoken.device["index"]) == (None, 1)


def test_what_to_do_next_depends_on_who_is_named():
    r = rank(1)
    whole = r.as_node
    plain = rank(1)
    del plain.device["uuid"]
    for of, who, says in (
        (criterion(per="cluster"), r, "compare the rows of nodes and pairs"),
        (criterion(per="pair", statistic="dip"), r, "compare the rows of nodes and pairs"),
        (criterion(per="cluster", statistic="value"), r, "check GPU-worker0-1 on worker0, then"),
        (criterion(per="cluster", of_one_rank=True), r, "check GPU-worker0-1 on worker0"),
        (criterion(), r, "check GPU-worker0-1 on worker0"),
        (criterion(), plain, "check gpu1 on worker0"),
        (criterion(), whole, "compare it with the other nodes, then"),
        (criterion(synchronous=True), r, "compare nvlink.*, p2p.* of worker0"),
        (criterion(synchronous=True, workload="training"), r, "compare allreduce.* and gemm.*"),
    ):
        text = samples.next_step_for(of, who)
        assert text.startswith(says), text
        assert "pytest -m multinode --retest=RUN -k " in text


def test_texts_are_joined_without_empty_ones():
    assert samples.number_list([1.0, 2.5]) == "1, 2.5"
    assert samples.join_texts("a", "", "b") == "a; b"
    void = {"worker1": Void("broken")}
    assert record(rank(0), rank(2, node="worker1")).without(void).node_set == {"worker0"}
