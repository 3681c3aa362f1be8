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
from collections.abc import Collection, Iterable, Mapping, Sequence
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
MAX_NOTES = 4
"""Most notes on a row that failed; the table has all."""
MAX_MEANING = 160
"""Most characters of a note that stands before the figure: two lines of a terminal."""
ALL = "cluster"
"""The subject of rows over all nodes, which is not a name."""
_WORD = re.compile(r"\w+(?:[.-]+\w+)*")
"""A name as nodes, pairs of nodes and rails have it."""
UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PLACE = "\0"
"""Stands in a template for the name of a node."""
_METRIC = re.compile(
    r"(?P<device>\S+(?: gpu\d+)?): (?:no \S+(?: at \w+=\S+)*: )?(?P<why>.*?)"
    r"(?:; measured \d+ values? of \d+ devices?)?"
)
"""A reason as an absence gives it (fixtures/verdict/absence.py): of a lost GPU that of each metric
differs in the metric alone."""
OF_WHOLE_NODE = ("scheduler.node_state", "inventory.gpus", "inventory.nics")
"""Criteria that fail where a node, or a GPU or NIC that it does not show, gives no value."""


@dataclass
class Reason:
    """Rows that were not measured for one reason."""

    template: str
    """The reason, with a place for the names of each node in it."""
    whole: dict[str, None] = field(default_factory=dict)
    """The templates of its rows as they stand there, each with its metric."""
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
        only = len(self.whole) == 1
        parts = (next(iter(self.whole)) if only else self.template).split(_PLACE)
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
    def text(self) -> str:
        return self.line

    criterion = ""
    """No criterion failed."""

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
        whole, named = places.of(str(row["reason"]))
        # Only the metric is left out, never a name: the names are those of the whole text.
        short = _METRIC.fullmatch(whole)
        template = f"{short['device']}: {short['why']}" if short else whole
        if template.count(_PLACE) != whole.count(_PLACE):
            template = whole
        reason = found.get(template)
        if reason is None:
            reason = found[template] = Reason(template, names=[{} for _ in named])
        reason.whole[whole] = None
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


@dataclass
class Failure:
    """Rows that failed together: those of an area in one place, or of a criterion in many."""

    rows: Sequence[Row]
    """The worst first."""
    lost: list[Reason] = field(default_factory=list)
    """Why rows of the same device or node were not measured."""

    @property
    def text(self) -> str:
        """The worst row, and which others failed with it or were not measured."""
        return f"{self.where} {self.criterion}: {self.said}"

    @property
    def where(self) -> str:
        """The device, or the nodes, that failed."""
        if not self._of_many:
            return where(self.rows[0])
        return _names(list(dict.fromkeys(map(_node_of, self.rows))))

    @property
    def said(self) -> str:
        """What decides in the worst row, and what else failed or was not measured."""
        text = _said(self.rows[0])
        if self._of_many:
            text = f"{counted(len(self.rows), 'check')} failed; worst {where(self.rows[0])}: {text}"
        elif len(self.rows) > 1:
            others = [f"{r['criterion']} {Verdict.from_json(r).measured}" for r in self.rows[1:]]
            text += f"; also {abbreviated(others, MAX_SUBJECTS)}"
        if self.lost:
            checks = counted(sum(reason.count for reason in self.lost), "check")
            text += f"; {checks} not measured there"
        return text

    @property
    def _of_many(self) -> bool:
        """Whether one criterion failed at several places."""
        return len(self.rows) > 1 and len({row["criterion"] for row in self.rows}) == 1

    @property
    def criterion(self) -> str:
        return str(self.rows[0]["criterion"])

    @property
    def next_step(self) -> str:
        return str(self.rows[0]["next_step"])

    @property
    def is_state(self) -> bool:
        """Whether something is missing, wrong or in a wrong state, and not only slow."""
        return _is_state(self.rows[0])

    def has(self, reason: Reason) -> bool:
        """Whether what was not measured for this reason was not on the very device that failed."""
        row = self.rows[0]
        node, part = _node_of(row), part_of(row.get("worst"))
        if not self.is_state or not reason.in_node:
            return False
        if self.criterion in OF_WHOLE_NODE:
            named = {name for names in reason.names for name in names}
            return named == {node} or (not named and {*reason.subjects} == {node})
        return part.startswith("gpu") and reason.reason.startswith(f"{node} {part}: ")


Found = Failure | Reason


def found(rows: Iterable[Row]) -> list[Found]:
    """Return what is wrong, causes before what may follow from them.

    A state that is wrong comes before a node that gave no value, and both before what is slow: it
    may only wait for them. What was not measured on a device that failed is told with its failure.
    """
    rows = list(rows)
    failed, rest = failures(rows), []
    for reason in reasons(rows):
        told = next((failure for failure in failed if failure.has(reason)), None)
        if told is None:
            rest.append(reason)
        else:
            told.lost.append(reason)
    return sorted([*failed, *rest], key=_rank)


def _rank(cause: Found) -> int:
    if isinstance(cause, Reason):
        return 1 if cause.in_node else 3
    return 0 if cause.is_state else 2


def _said(row: Row) -> str:
    """Return what decides in a row that failed: its figure, and its notes.

    A count says little; what was counted, as the meaning of an Xid, comes before it. The GPU is
    named by its index: whoever shows its UUID shows it last.
    """
    verdict = Verdict.from_json(row)
    figure = verdict.but(reason="", notes=[], worst=None, record=None, job=None, next_step="").line
    figure = figure.removeprefix(f"{verdict.subject} {verdict.criterion}: ")
    said = [_without_own(text, row) for text in (verdict.reason, *verdict.notes) if text]
    if more := len(said[MAX_NOTES:]):
        said[MAX_NOTES:] = [counted(more, "more note")]
    first = type(verdict.value) is int and said and len(said[0]) <= MAX_MEANING
    return "; ".join([said[0], figure, *said[1:]] if first else [figure, *said])


def where(row: Row) -> str:
    """Return the node and part that a row is about, and its subject where that is another."""
    subject, node = str(row["subject"]), str((row.get("worst") or {}).get("node") or "")
    of_other = node not in ("", subject)
    text = f"{node if of_other else subject} {part_of(row.get('worst'))}"
    return " ".join(f"{text} ({subject})".split()) if of_other else text.strip()


def _without_own(text: str, row: Row) -> str:
    """Return a note without the UUID of the row's own GPU, which the index names."""
    worst = row.get("worst") or {}
    own = str(worst.get("uuid") or "")
    if not UUID.fullmatch(own) and worst.get("gpu") is not None:
        own = first[0] if (first := UUID.match(text)) else ""
    if not UUID.fullmatch(own) or own not in text:
        return text
    return re.sub(rf"\s*\({own}\)|{own}(?:: | |$)", "", text).strip()


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
    return [Failure(sorted((every[k] for k in group), key=_urgency)) for group in found]


def _urgency(row: Row) -> tuple[bool, float]:
    return not _is_state(row), _margin(row)


def _is_state(row: Row) -> bool:
    """Whether a row has no distance from its limit: it is missing, wrong, or there at all."""
    return row.get("margin") is None


def _margin(row: Row) -> float:
    margin = row.get("margin")
    return 0.0 if margin is None else float(margin)


def _place_of(row: Row) -> str:
    """Return the device, or the nodes, that a row is about."""
    return f"{_node_of(row)} {part_of(row.get('worst'))}"


def _node_of(row: Row) -> str:
    return str((row.get("worst") or {}).get("node") or row["subject"])
