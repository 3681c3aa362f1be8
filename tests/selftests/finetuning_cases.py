"""A conversation to fine-tune on, and a criterion of the fine-tuning judged over two nodes."""

from __future__ import annotations

from typing import Any

from fixtures.records.model import Measurement, Record
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Case, Verdict
from tests.selftests import support

CALL = """<functioncall> {"name": "f", "arguments": '{"city": "Oslo", "n": 2}'}"""
ROW = {
    "system": "SYSTEM: You may call f.",
    "chat": f"USER: Call it.\n\n\nASSISTANT: {CALL} <|endoftext|>\n\n\n"
    'FUNCTION RESPONSE: {"ok": true}\n\n\nASSISTANT: Done. <|endoftext|>\n\n\n',
}


def judged(limits: Thresholds, key: str, *values: Any, **more: Any) -> Verdict:
    """A criterion of the fine-tuning over two nodes of two ranks, of which each has a value."""
    criterion = limits.criteria[key]
    each = values if len(values) == 4 else values * 4
    ranks = [
        support.rank(k, f"worker{k // 2}", Measurement(
            metric=criterion.metric, unit=criterion.unit, at=dict(criterion.at), value=value,
            **more,
        ), model="cpu", name="cpu")
        for k, value in enumerate(each)
    ]  # fmt: skip
    return decided(limits, key, support.record(*ranks, workload=criterion.workload))


def decided(limits: Thresholds, key: str, record: Record) -> Verdict:
    criterion = limits.criteria[key]
    nodes = tuple(record.nodes)
    whole = criterion.over == "devices" or criterion.statistic == "median"
    case = Case(
        criterion=criterion, subject="cluster", nodes=nodes, record_nodes=nodes,
        devices=record.world_size if whole else len(nodes), record=record,
        facts={"model": "cpu", "nodes": len(nodes), "gpus": record.world_size, **criterion.at},
    )  # fmt: skip
    return judge(case, limits)
