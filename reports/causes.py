"""What is wrong in a run, each cause once with all of its nodes (login side). Pure.

A dead node costs a row for each criterion, and one for each criterion of all nodes together; a
hundred dead nodes cost a hundred times as many. Texts that differ only in the names of their nodes
are one reason. One that lies in a node comes before those that follow from it. A slow GPU fails
every rate of its area: that is one failure; so is what fails alike on many nodes.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fixtures.slurm.hostlist import hostlist
from fixtures.verdict.causes import IN_NODE
from fixtures.verdict.model import Verdict, part_of
from fixtures.wording import abbreviated, counted

Row = Mapping[str, Any]
MAX_HOSTLIST = 120
"""Most characters of a host list in a reason; node-reasons.txt has each node."""
MAX_SUBJECTS = 4
ALL = "cluster"
"""The subject of rows over all nodes, which is not a name."""
_WORD = re.compile(r"\w+(?:[.-]+\w+)*")
"""A name as nodes, pairs of nodes and rails have it."""
UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PLACE = "\0"
"""Stands in a template for the name of a node."""


@dataclass
class Reason:
    """Rows that were not measured for one reason."""

    template: str
    """The reason, with a place for the names of each node in it."""
    names: list[dict[str, None]] = field(default_factory=list)
    """By place: the names, in the order of the rows."""
    steps: Counter[tuple[bool, str]] = field(default_factory=Counter)
    """Whether the reason lies in the node of a row, and its next step -> the rows."""
    subjects: Counter[str] = field(default_factory=Counter)
    """Subject -> its rows."""
    subjects_by_criterion: dict[str, list[str]] = field(default_factory=dict)

    @cached_property
    def reason(self) -> str:
        """The reason, with the names of all of its nodes."""
        parts = self.template.split(_PLACE)
        named = [_names([*names]) for names in self.names]
        found = parts[0] + "".join(n + p for n, p in zip(named, parts[1:], strict=True))
        return found or "no reason given"

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.subjects.total()

    @property
    def in_node(self) -> bool:
        """Whether it lies in the nodes of some of its rows."""
        return any(in_node for in_node, _ in self.steps)

    @property
    def next_step(self) -> str:
        """That of most rows, of those in whose node the reason lies if there are any."""
        return max(self.steps, key=lambda key: (key[0], self.steps[key]))[1]

    @property
    def where(self) -> str:
        """The subjects with most rows: "gpu0002 (304), cluster (73), gpu[0003-0512] (29 each)"."""
        if len(self.subjects) == 1:
            return next(iter(self.subjects))
        alike: dict[int, list[str]] = {}
        for name, count in self.subjects.most_common():
            alike.setdefault(count, []).append(name)
        parts = [f"{_names(names)} ({count}{' each' if len(names) > 1 else ''})"
                 for count, names in alike.items()]  # fmt: skip
        return abbreviated(parts, MAX_SUBJECTS)

    @property
    def line(self) -> str:
        """All of it in a line, what happened first."""
        return f"{self.reason} ({counted(self.count, 'check')} not measured: {self.where})"


def reasons(rows: Iterable[Row]) -> list[Reason]:
    """Return why the rows that were not measured were not, the most important first."""
    lost = [row for row in rows if row["outcome"] == "NOT_MEASURED"]
    names = {str(name) for row in lost for name in (row["subject"], *row.get("cause_nodes", ()))}
    places = _Places(names - {ALL})
    found: dict[str, Reason] = {}
    for row in lost:
        template, named = places.of(str(row["reason"]))
        reason = found.setdefault(template, Reason(template, [{} for _ in named]))
        for known, name in zip(reason.names, named, strict=True):
            known[name] = None
        subject = str(row["subject"])
        reason.subjects[subject] += 1
        reason.subjects_by_criterion.setdefault(str(row["criterion"]), []).append(subject)
        reason.steps[row.get("cause") in IN_NODE, str(row["next_step"])] += 1
    return sorted(found.values(), key=lambda reason: (not reason.in_node, -reason.count))


@dataclass
class _Places:
    """Finds names in texts, each text once: of a dead node all rows have the same."""

    names: Collection[str]
    _found: dict[str, tuple[str, list[str]]] = field(default_factory=dict)

    def of(self, text: str) -> tuple[str, list[str]]:
        """Return a text with a place for each name in it, and those names."""
        if text not in self._found:
            named: list[str] = []

            def place(word: re.Match[str]) -> str:
                if word[0] not in self.names and not UUID.fullmatch(word[0]):
                    return word[0]
                named.append(word[0])
                return _PLACE

            self._found[text] = _WORD.sub(place, text.replace(_PLACE, "")), named
        return self._found[text]


def _names(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    if any(map(UUID.fullmatch, names)):
        return counted(len(names), "GPU")
    text = hostlist(names)
    return text if len(text) <= MAX_HOSTLIST else counted(len(names), "node")


# --- failures


@dataclass(frozen=True)
class Failure:
    """Rows that failed together: those of an area in one place, or of a criterion in many."""

    rows: Sequence[Row]
    """The worst first."""

    @property
    def text(self) -> str:
        """The worst row, and which others failed with it."""
        fact = Verdict.from_json(self.rows[0]).line.partition("\n")[0]
        if len(self.rows) == 1:
            return fact
        criteria = {str(row["criterion"]) for row in self.rows}
        if len(criteria) == 1:
            nodes = list(dict.fromkeys(_node_of(row) for row in self.rows))
            return f"{_names(nodes)}: {counted(len(self.rows), 'check')} failed; worst {fact}"
        others = [str(row["criterion"]) for row in self.rows[1:]]
        return f"{fact}; also {abbreviated(others, MAX_SUBJECTS)}"

    @property
    def criterion(self) -> str:
        return str(self.rows[0]["criterion"])

    @property
    def next_step(self) -> str:
        return str(self.rows[0]["next_step"])


def failures(rows: Iterable[Row]) -> list[Failure]:
    """Return what failed, the failure of most rows first; each row is in one of them."""
    every = [row for row in rows if row["outcome"] == "FAIL"]
    together: dict[tuple[str, ...], list[int]] = {}
    for k, row in enumerate(every):
        criterion = str(row["criterion"])
        together.setdefault((_place_of(row), criterion.partition(".")[0]), []).append(k)
        together.setdefault((criterion,), []).append(k)
    largest = [(-len(group), group) for group in together.values()]
    heapq.heapify(largest)
    found: list[list[int]] = []
    told: set[int] = set()
    while largest:
        size, group = heapq.heappop(largest)
        left = [k for k in group if k not in told]
        if len(left) == -size and left:
            found.append(left)
            told.update(left)
        elif left:  # some are in a larger one: it is looked at again by its size now
            heapq.heappush(largest, (-len(left), left))
    return [Failure(sorted((every[k] for k in group), key=_margin)) for group in found]


def _margin(row: Row) -> float:
    margin = row.get("margin")
    return 0.0 if margin is None else float(margin)


def _place_of(row: Row) -> str:
    """Return the device, or the nodes, that a row is about."""
    return f"{_node_of(row)} {part_of(row.get('worst'))}"


def _node_of(row: Row) -> str:
    return str((row.get("worst") or {}).get("node") or row["subject"])


def lines(found: Iterable[Reason]) -> Iterator[str]:
    """Yield each reason with what to do about it, and no step twice."""
    said: set[str] = set()
    for reason in found:
        yield reason.line
        if reason.next_step and reason.next_step not in said:
            said.add(reason.next_step)
            yield f"  next: {reason.next_step}"
