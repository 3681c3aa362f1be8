"""Who is in no visit any more: news, and no accusation."""

from __future__ import annotations

from typing import Any

import pytest

from reports.facts.silence import Silence, silence, until

pytestmark = pytest.mark.cpu

HOUR = 3600.0
NODES = ("n0", "n1", "n2")
METRICS = ("gemm.bf16_per_ghz", "memory.triad")
EXPECTED = {
    (f"GPU-{node}-{gpu}", metric): (node, gpu)
    for node in NODES for gpu in range(2) for metric in METRICS
}  # fmt: skip


def visit(node: str, hour: int, *without: str, outcome: str = "done", name: str = "") -> list[Any]:
    """Rows of a visit; `without`: UUIDs or metrics that it lacks, `name`: the node's new one."""
    head = {"node": name or node, "start": hour * HOUR, "end": hour * HOUR + 30, "outcome": outcome}
    rows = [
        {**head, "uuid": uuid, "metric": metric, "value": 1.0}
        for (uuid, metric), (of, _) in EXPECTED.items()
        if of == node and outcome == "done" and not {uuid, metric} & {*without}
    ]
    return rows or [{**head, "uuid": "", "metric": "", "value": None}]


def found(*visits: list[Any], days: float = 0.0) -> Silence:
    rows = [row for one in visits for row in one]
    now = max((row["end"] for row in rows), default=0.0) + days * 86400
    return silence(rows, NODES, EXPECTED, now)


def everybody(hours: range, *nodes: str) -> list[list[Any]]:
    return [visit(node, hour) for hour in hours for node in nodes or NODES]


def test_whoever_is_visited_is_not_silent():
    assert found(*everybody(range(5))) == Silence()
    assert found(*everybody(range(2))[:-1]) == Silence(), "a round goes on"
    assert found(*everybody(range(5)), days=6) == Silence()


@pytest.mark.parametrize(
    ("visits", "said"),
    [
        ([], "n0: never visited"),
        (everybody(range(3), "n1", "n2"), "n0: never visited: the others were visited 3 times"),
        ([*everybody(range(2)), *everybody(range(2, 12), "n1", "n2")],
         "n0: in no visit since 1970-01-01 01:00 UTC: the others were visited 10 times"),
        ([*everybody(range(2)), *(visit("n0", k, outcome="failed") for k in range(2, 5))],
         "n0: in no visit since 1970-01-01 01:00 UTC: 3 visits failed"),
        ([*everybody(range(2)), *everybody(range(2, 4), "n1", "n2"), visit("n0", 5, "GPU-n0-1")],
         "n0 gpu1 GPU-n0-1: in no visit since 1970-01-01 01:00 UTC"),
        ([*everybody(range(2)), visit("n0", 5, "memory.triad")],
         "n0 gpu0 GPU-n0-0 memory.triad: in no visit since 1970-01-01 01:00 UTC"),
        ([visit("n0", 0, "GPU-n0-0"), *everybody(range(1), "n1", "n2")],
         "n0 gpu0 GPU-n0-0: in no visit"),
    ],
    ids=["nobody", "never", "not any more", "in vain", "a GPU", "a figure", "a GPU never"],
)  # fmt: skip
def test_who_is_in_no_visit_any_more_is_named(visits, said):
    assert any(line.startswith(said) for line in found(*visits).lines), found(*visits).lines


def test_a_patrol_that_stopped_makes_all_silent():
    lines = found(*everybody(range(3)), days=8).lines
    assert [line.partition(":")[0] for line in lines] == [*NODES]


def test_a_node_that_its_owner_renamed_is_named_as_that():
    later = [visit("n0", hour, name="gpu-a01") for hour in range(2, 30)]
    seen = found(*everybody(range(1), "n1", "n2"), *later, *everybody(range(2, 30), "n1", "n2"))
    assert seen == Silence([], ["n0: its GPUs are visited as gpu-a01: it was renamed"])


def test_a_gpu_that_was_moved_to_another_node_is_not_silent():
    moved = [dict(row, node="n1") for row in visit("n0", 3) if row["uuid"] == "GPU-n0-1"]
    assert (
        found(*everybody(range(3)), visit("n0", 3, "GPU-n0-1"), moved, visit("n1", 3)).lines == []
    )


NOW = 20 * HOUR


@pytest.mark.parametrize(
    ("visits", "lines"),
    [
        (everybody(range(20)), []),
        # A host's clock that differs a little from the one before is not news.
        ([*everybody(range(20)), visit("n0", 20)], []),
        ([*everybody(range(20)), visit("n0", 2000)],
         ["n0: 1 visit dated in the future, up to 1970-03-25 08:00 UTC"]),
        ([*everybody(range(2)), *(visit("n1", k) for k in (300, 400)), visit("n0", 10**9)],
         ["n1: 2 visits dated in the future, up to 1970-01-17 16:00 UTC",
          "n0: 1 visit dated in the future, up to 9999-12-31 23:59 UTC"]),
    ],
    ids=["none", "by some seconds", "one", "of several nodes"],
)  # fmt: skip
def test_a_visit_that_is_dated_in_the_future_shows_nothing(visits, lines):
    rows = [row for one in visits for row in one]
    past, said = until(rows, NOW)
    assert [line.partition(", not counted")[0] for line in said] == lines
    assert all(row["end"] <= NOW + 300 for row in past)
    # It makes nobody else silent, and does not hide that its own node is.
    assert silence(past, NODES, EXPECTED, NOW) == silence(
        [row for row in rows if row["end"] <= NOW + 300], NODES, EXPECTED, NOW
    )


def test_a_future_visit_hides_no_silent_node():
    rows = [row for one in (*everybody(range(2)), *everybody(range(2, 15), "n1", "n2"),
                            visit("n0", 3000)) for row in one]  # fmt: skip
    lines = silence(until(rows, NOW)[0], NODES, EXPECTED, NOW).lines
    assert [line.partition(" since")[0] for line in lines] == ["n0: in no visit"]
