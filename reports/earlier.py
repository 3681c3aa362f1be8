"""A verdict of today in the words of a verdict.json of schema 1, without RECORDED (login side).

Schema 1 called a row that is not judged NOT_APPLICABLE, without a value, and required no
measurement of it. The verdict of the run is concluded again from such rows, by the rules of today.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fixtures.conclusion.run_verdict import conclude
from fixtures.thresholds.limits import RECORDED_TEXT
from fixtures.verdict.model import Verdict

COMPARED = ("outcome", "value", "unit", "limit", "ceiling", "margin", "worst", "devices", "record")
"""Fields of a verdict that judging again must reproduce; reasons and notes are only text."""


def in_words_of(stated: Mapping[str, Any], rejudged: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `rejudged` as the version that wrote `stated` would have put it."""
    if stated.get("schema") != 1:
        return rejudged
    before = {(v["criterion"], v["subject"]): v for v in stated["criteria"]}
    rows = [
        _in_schema_1(before.get((now["criterion"], now["subject"])), now)
        for now in rejudged["criteria"]
    ]
    concluded = conclude(
        map(Verdict.from_json, rows), planned=rejudged["counts"]["planned"], **rejudged["basis"]
    )
    counts = {name: n for name, n in concluded.counts.items() if n or name != "recorded"}
    return {
        **rejudged, "criteria": rows, "counts": counts, "verdict": concluded.verdict,
        "exit_status": concluded.exit_status,
    }  # fmt: skip


def _in_schema_1(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return today's row; as NOT_APPLICABLE if it is not judged and was called that."""
    nobody_judges = now["limit"] == RECORDED_TEXT or now["outcome"] == "NOT_APPLICABLE"
    claimed = before is None or any(before.get(n) is not None for n in ("value", "margin", "worst"))
    if before is None or before["outcome"] != "NOT_APPLICABLE" or claimed or not nobody_judges:
        return now
    return {**now, **{name: before.get(name) for name in COMPARED}}
