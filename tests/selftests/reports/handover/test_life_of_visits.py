"""What links counted between the visits of a patrol, beside their siblings."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.patrol import visits
from fixtures.records.ledger import LIFE
from reports.handover.life_of_visits import is_counter, life_lines

pytestmark = pytest.mark.cpu

DAY_S = 86400.0
MANY = {str(link): 7 for link in range(2000)}
"""Links that no GPU has."""


def rows(counts: dict[int, tuple[int, int]], *, nodes: int = 2, days: float = 4.0) -> list[Any]:
    """Two visits of nodes of eight GPUs; `counts`: GPU of the first -> first and last count."""
    found = []
    for node in range(nodes):
        for gpu in range(8):
            pair = counts.get(gpu, (0, 0)) if node == 0 else (0, 0)
            for visit, count in enumerate(pair):
                found.append({
                    "node": f"n{node}", "gpu": gpu, "uuid": f"GPU-{node}-{gpu}",
                    "end": 1000 + visit * days * DAY_S, "metric": f"{LIFE}nvlink_errors",
                    "value": float(count),
                })  # fmt: skip
    return found


def test_what_rose_over_days_is_named_with_its_link():
    link = {"node": "n0", "gpu": 3, "uuid": "GPU-0-3", "end": 2000.0, "value": 300.0,
            "metric": f"{LIFE}nvlink_errors/link 7 recoveries"}  # fmt: skip
    (line,) = life_lines([*rows({3: (5, 305)}), link])
    assert line.startswith(
        "life counter: n0 gpu3 (link 7 recoveries): nvlink_errors rose by 300 in 4.0 days, of "
        "7 siblings by at most 0"
    )


def test_what_stands_high_and_still_or_was_reset_low_is_not():
    assert list(life_lines(rows({3: (505, 505)}))) == []
    assert list(life_lines(rows({3: (505, 4)}))) == []
    assert len(list(life_lines(rows({3: (505, 90)})))) == 1, "reset, and 90 since"
    assert list(life_lines([])) == []


def test_who_was_visited_once_is_no_sibling_that_counted_nothing():
    seen = rows({0: (0, 60)}, nodes=1)
    assert list(life_lines([r for r in seen if r["gpu"] == 0 or r["end"] == 1000])) == []
    assert len(list(life_lines(seen))) == 1


def test_only_counters_are_taken_for_counters():
    assert is_counter({"metric": f"{LIFE}nvlink_errors"})
    assert not is_counter({"metric": "gemm.bf16_per_ghz"})
    assert not is_counter({"metric": None})
    assert LIFE == "life.", "logs of earlier patrols are read, too"


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({"after": {"nvlink_errors": 3, "pcie_replays": 0}},
         {"nvlink_errors": 3, "pcie_replays": 0}),
        ({"after": {"nvlink_errors": 7}, "life": {"nvlink_errors": {"counts": {"link 1": 7}}}},
         {"nvlink_errors": 7, "nvlink_errors/link 1": 7}),
        ({"after": {"nvlink_errors": True, "pcie_replays": -1}}, {}),
        ({"after": {"nvlink_errors": 2**60}}, {}),
        ({"after": 3}, {}),
        ({"after": {"nvlink_errors": 7}, "life": {"nvlink_errors": {"counts": [7]}}},
         {"nvlink_errors": 7}),
        ({"after": {}, "life": {"nvlink_errors": {"counts": MANY}}}, {}),
        (None, {}),
    ],
)  # fmt: skip
def test_a_visit_has_what_its_counters_stand_at(facts, found):
    line = {"device": {"uuid": "GPU-1"}, "local_rank": 2, "facts": facts}
    got = {row["metric"]: row["value"] for row in visits._life_of(line)}
    assert got == {f"{LIFE}{name}": float(count) for name, count in found.items()}
