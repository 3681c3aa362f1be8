"""The verdicts of one criterion on all its subjects, as the certificate shows them (login side)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fixtures.verdict.model import device_of
from fixtures.wording import counted, margin_text, quantity
from reports.facts.rows import low_is_bad, split_limit


@dataclass
class CriterionRow:
    """The verdicts of one criterion on all its subjects: a row of the page's table."""

    key: str
    title: str
    area: str
    unit: str
    outcomes: Counter[str] = field(default_factory=Counter)
    limits: Counter[str] = field(default_factory=Counter)
    worst: Mapping[str, Any] | None = None
    """The verdict to show: failed before waived before others, then by the smallest margin, or by
    the value where it is not judged."""
    subject: str = ""
    """Subject of `worst`, else the first one: for the command that measures it again."""

    def add(self, v: Mapping[str, Any]) -> None:
        """Add the verdict on one subject."""
        self.outcomes[str(v["outcome"])] += 1
        if v["outcome"] == "NOT_APPLICABLE":
            return
        self.subject = self.subject or str(v["subject"])
        if v["limit"]:
            self.limits[split_limit(str(v["limit"]))[0]] += 1
        rank = {"FAIL": 0, "WAIVED": 1}.get(str(v["outcome"]), 2), _margin(v), _recorded_rank(v)
        if v["value"] is not None and (self.worst is None or rank < self._worst_rank):
            self.worst, self.subject = v, str(v["subject"])
            self._worst_rank = rank

    _worst_rank: tuple[int, float, float] = (9, 0.0, 0.0)

    @property
    def planned(self) -> int:
        """Number of verdicts on subjects to which the criterion applies."""
        return sum(self.outcomes.values()) - self.outcomes["NOT_APPLICABLE"]

    @property
    def passed(self) -> str:
        """How many of those to be judged passed; "" where none is judged."""
        to_judge = self.planned - self.outcomes["RECORDED"]
        return f"{self.outcomes['PASS']} of {to_judge}" if to_judge else ""

    @property
    def limit(self) -> str:
        """The most common limit, and how many others there are."""
        first, *others = [text for text, _ in self.limits.most_common()] or [""]
        return f"{first} (and {counted(len(others), 'other')})" if others else first

    @property
    def value(self) -> str:
        """The worst value with its unit."""
        value = (self.worst or {}).get("value")
        if value is None or isinstance(value, str):
            return value or ""
        return quantity(value, self.unit)

    @property
    def margin(self) -> str:
        """The smallest margin in per cent."""
        return margin_text((self.worst or {}).get("margin"))

    @property
    def worst_device(self) -> str:
        """Subject, node, part or GPU, and UUID of the worst verdict, as far as it has them."""
        if self.worst is None:
            return ""
        worst = self.worst.get("worst") or {}
        parts = dict.fromkeys((self.subject, str(worst.get("node") or ""), device_of(worst)))
        return " ".join(filter(None, parts))

    @property
    def result(self) -> str:
        """The outcomes in words, without those that passed."""
        words = {"FAIL": "failed", "NOT_MEASURED": "not measured", "WAIVED": "waived"}
        if self.outcomes["RECORDED"] < self.planned:
            words["RECORDED"] = "recorded"
        parts = [f"{self.outcomes[name]} {word}" for name, word in words.items()
                 if self.outcomes[name]]  # fmt: skip
        return ", ".join(parts) or ("passed" if self.outcomes["PASS"] else "recorded")

    @property
    def outcome(self) -> str:
        """The most urgent outcome."""
        for name in ("FAIL", "NOT_MEASURED", "WAIVED", "PASS", "RECORDED"):
            if self.outcomes[name]:
                return name
        return "NOT_APPLICABLE"


def _margin(v: Mapping[str, Any]) -> float:
    return float("inf") if v["margin"] is None else float(v["margin"])


def _recorded_rank(v: Mapping[str, Any]) -> float:
    """Return what is the least for the worst of recorded values, which have no margin; else 0."""
    value = v["value"]
    if v["outcome"] != "RECORDED" or isinstance(value, (str, bool)) or value is None:
        return 0.0
    return float(value) if low_is_bad(str(v["unit"])) else -float(value)
