"""What a node says that it lacks: neither the order nor its like are outvoted by its word."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.thresholds import loader
from fixtures.thresholds.contract import Contract
from fixtures.verdict import like_nodes as module
from fixtures.verdict.causes import Cause
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Outcome, Verdict
from tests.selftests.support import SHIPPED, Kind, absent, case, rank, record
from tests.selftests.verdict.made import row_on

pytestmark = pytest.mark.cpu

ORDER: dict[str, Any] = {"nodes": 2, "gpus_per_node": 2, "gpu_model": "H200 SXM"}
ASKED = [
    ("host.mounts", {"mounts": {"/scratch": "ext4"}}, "mounts"),
    ("host.firmware", {"firmware": {"nic": "1"}}, "firmware"),
    ("host.scratch_size", {"scratch": {"path": "/s", "size_gb": 100}}, "scratch_size_gb"),
    ("host.scratch_write", {"scratch": {"path": "/s", "write_gbs": 1}}, "scratch_write_gbs"),
    ("host.scratch_read", {"scratch": {"path": "/s", "read_gbs": 1}}, "scratch_read_gbs"),
    ("host.memory_bandwidth", {"host_memory_gbs": 300}, "host_memory_gbs"),
]


def judged(key: str, order: dict[str, Any] | None):
    """The verdict on a node that says that it has no such thing."""
    contract = Contract.model_validate({**ORDER, **order}) if order is not None else None
    limits = replace(loader.load(SHIPPED), cluster=contract)
    criterion = limits.criteria[key]
    said = rank(0, "worker0", absent(Kind.NOT_THERE, criterion.metric, "no such file"))
    found = record(said, workload=criterion.workload)
    return judge(case(limits, key, found), limits)


@pytest.mark.parametrize(("key", "order", "field"), ASKED)
def test_no_word_of_a_node_releases_what_is_ordered(key, order, field):
    found = judged(key, order)
    assert (found.outcome, found.cause, found.cause_nodes) == (
        Outcome.NOT_MEASURED, Cause.DRIVER, [],
    )  # fmt: skip
    assert found.reason.endswith(f"no such file; ordered: cluster.{field}")
    for other in ({}, None):
        assert judged(key, other).outcome is Outcome.NOT_APPLICABLE


def test_what_no_node_can_tell_is_not_asked_for_by_an_order():
    limits = loader.load(SHIPPED)
    contract = Contract.model_validate({**ORDER, "leaves": {"leaf1": "n[1-2]"}})
    assert module.ordered_as(limits.criteria["wiring.leaf"], contract) == ""
    assert module.ordered_as(limits.criteria["gemm.bf16"], contract) == ""


# --- like nodes


def row(
    node: str, outcome: Outcome, found: Any = None, key: str = "host.edac_corrected"
) -> Verdict:
    given = {"value": found, "reason": "no driver", "record": f"host_errors@{node}.json"}
    return row_on(node, outcome, criterion=key, **given)


def held(*rows: Verdict) -> dict[str, Verdict]:
    return {v.subject: v for v in module.held_to_their_like(rows, {"host.edac_corrected"})}


N_A, PASS, FAIL = Outcome.NOT_APPLICABLE, Outcome.PASS, Outcome.FAIL


@pytest.mark.parametrize(
    ("rows", "changed"),
    [
        ([row("a", FAIL, 5), row("b", N_A)], {"b"}),
        ([row("a", PASS, 0), row("b", N_A)], {"b"}),
        ([row("a", Outcome.WAIVED, 9), row("b", N_A), row("c", N_A)], {"b", "c"}),
        ([row("a", PASS, 0), row("b", N_A), row("c", N_A)], set()),
        ([row("a", N_A), row("b", N_A)], set()),
        ([row("a", PASS, 0), row("b", PASS, 0)], set()),
        ([row("a", Outcome.RECORDED, 4), row("b", N_A)], set()),
        ([row("a", FAIL, 5), replace(row("b", N_A), record=None)], set()),
        ([row("a", FAIL, 5, "other"), row("b", N_A, key="other")], set()),
        ([row("a", PASS, 0), row("b", N_A), row("c", Outcome.NOT_MEASURED)], set()),
    ],
)
def test_a_node_lacks_nothing_that_half_of_its_like_have_or_one_fails_by(rows, changed):
    found = held(*rows)
    assert found.keys() == changed
    for verdict in found.values():
        assert (verdict.outcome, verdict.cause, verdict.cause_nodes) == (
            Outcome.NOT_MEASURED, Cause.DRIVER, [],
        )  # fmt: skip
        assert "says that it has none: no driver" in verdict.reason
        assert verdict.next_step


def test_the_words_of_nodes_count_for_what_they_read_and_not_for_latencies():
    keys = module.judged_by_word(loader.load(SHIPPED).criteria.values())
    assert {"host.edac_corrected", "host.machine_checks", "host.firmware"} <= keys
    assert not {key for key in keys if key.startswith("wiring.")}
    assert module.judged_by_word([]) == frozenset()


def test_the_order_may_name_a_field_that_it_does_not_state():
    limit = SimpleNamespace(fail_below=SimpleNamespace(of_contract="host_memory_gbs"),
                            fail_above=None)  # fmt: skip
    criterion: Any = SimpleNamespace(
        may_lack=True, limits=[limit], workload="host_speed", metric="memory"
    )
    assert module.ordered_as(criterion, Contract.model_validate(ORDER)) == ""
