"""What the shipped limits say of matrix products on one node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fixtures.records.model import Record
from fixtures.thresholds import loader
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Case, Verdict
from tests.selftests.support import SHIPPED

LIMITS = loader.load(SHIPPED)


def verdict_on(
    key: str, found: Record, *, model: str = "cpu", nodes: tuple[str, ...] = ("worker0",),
    **more: Any,
) -> Verdict:  # fmt: skip
    """What the shipped limits say of a record of these nodes."""
    criterion = LIMITS.criteria[key]
    # The copy has another name than the workload that it is a copy of.
    found = replace(found, workload=criterion.workload)
    count = len(found.ranks)
    facts = {
        "model": model,
        "gpus": count,
        "nodes": len(nodes),
        "gpus_per_node": count // len(nodes),
    }
    case = Case(
        criterion=criterion, subject="cluster" if len(nodes) > 1 else nodes[0], nodes=nodes,
        record_nodes=nodes,
        devices=count, facts=facts | {"dtype": "fp32" if key.endswith("fp32") else "bf16"},
        record=found, **more,
    )  # fmt: skip
    return judge(case, LIMITS)
