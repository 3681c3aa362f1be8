"""One criterion of the limits in support.py, judged over a record."""

from __future__ import annotations

from typing import Any

from fixtures.records.model import Record
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Verdict
from tests.selftests.support import case

PAIR = ("worker0", "worker1")


def judged(limits: Thresholds, key: str, found: Record | None = None, **more: Any) -> Verdict:
    return judge(case(limits, key, found, **more), limits)
