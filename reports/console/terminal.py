"""The end of a run in the terminal: the verdict, the failures, and the files (login side).

All of it fits on a screen of 80 x 24 and is the last thing that pytest prints. Pure but for the
files of the run directory.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fixtures import wording
from fixtures.conclusion.run_verdict import counts_rows, demonstration_note, judged_of
from fixtures.records.run_directory import RunDirectory
from fixtures.slurm.hostlist import hostlist
from fixtures.thresholds.definitions import shipped
from reports.facts import blame, causes, fabric_load, groups
from reports.pages.artefacts import Artefacts
from reports.pages.cluster import Cluster

MAX_PROBLEMS = 3
MAX_LINES = 22
"""Lines below the verdict's own: with it and the shell's prompt they are a screen of 24."""
MAX_REASONS = 8
MAX_HOSTLIST = 200
"""Most characters of nodes in a command; bad-nodes.txt has them all."""
_HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_RUN_ID = re.compile(r"[A-Za-z0-9-]{1,64}")
MAX_WHY = 3
"""Most criteria in the reason for which nodes are drained."""
MAX_GROUPS = 2
"""Most reasons why checks do not apply, one line each."""
COLOURS = {"REJECTED": "red", "INCOMPLETE": "yellow", "PARTIAL": "cyan", "DEMONSTRATION": "cyan"}
"""Verdict -> colour of its line; any other is green."""


@dataclass(frozen=True)
class Problem:
    """A failure, or a reason why rows were not measured."""

    text: str
    red: str
    next_step: str

    @staticmethod
    def of(cause: causes.Found) -> Problem:
        red = blame.red_of(cause.criterion) if cause.criterion else ""
        return Problem(blame.named(cause.text, cause.criterion), red, cause.next_step)

    def lines(self, number: int, width: int, *, text: int, red: bool, step: bool) -> Iterator[str]:
        """Yield it: `text` 2 is all of the fact, 1 at most two lines of it, and 0 one line."""
        indent = "   "
        said = _fact_lines(f"{number}. {self.text}", indent, width)
        if text == 0:
            said = [_cut(" ".join(said), width)]
        elif text == 1 and len(said) > 2:
            said = [said[0], _cut(f"{indent}{said[1].strip()} ...", width)]
        yield from said
        if red and self.red:
            yield from _wrapped(self.red, indent, width)
        if step and self.next_step:
            yield from _step_lines(f"next: {self.next_step}", indent, width)


def not_applicable(criteria: Iterable[Mapping[str, Any]], width: int) -> list[str]:
    """Return a line for each reason why checks do not apply, the most frequent first."""
    counted = Counter(str(v["reason"]) for v in criteria if v["outcome"] == "NOT_APPLICABLE")
    if not counted:
        return []
    lines = [f"{wording.counted(sum(counted.values()), 'check')} that do not apply here:"]
    for reason, count in counted.most_common(MAX_REASONS):
        lines.append(f"{count:6d}  {_cut(reason or 'no reason given', width - 8)}")
    if (more := len(counted) - MAX_REASONS) > 0:
        rest = sum(n for _, n in counted.most_common()[MAX_REASONS:])
        lines.append(f"{rest:6d}  for {wording.counted(more, 'other reason')}: in the report")
    return lines


def summary(artefacts: Artefacts, width: int) -> list[str]:
    """Return the lines below the verdict: at most MAX_LINES, none wider than `width` characters.

    Paths and commands are not cut: they are to be pasted.
    """
    verdict, run, directory = artefacts.verdict, artefacts.run, artefacts.directory
    lists, scope = artefacts.lists, artefacts.verdict.get("scope") or {}
    head = [_cut(Cluster.of(directory, run, scope, artefacts.reader).headline, width)]
    head += _wrapped(blame.blame(verdict, lists).sentence, "", width)
    wrong = causes.found(verdict["criteria"])
    # What is slower and within its limits gives way to what is wrong.
    shared = [g.sentence for g in groups.groups(verdict)] if wrong else groups.sentences(verdict)
    for sentence in shared[:MAX_GROUPS]:
        head += _wrapped(sentence, "", width)
    if note := demonstration_note(verdict):
        head += _wrapped(note, "", width)
    head.append(_counts(verdict["counts"]))
    reasons = [reason for reason in map(str, verdict["reasons"]) if not counts_rows(reason)][:2]
    found = [Problem.of(cause) for cause in wrong]
    files = list(_files(directory, len(lists.good), len(lists.bad)))
    of_run = lists.bad, str(verdict.get("run_id", "")), str(scope.get("origin"))
    for short in (False, True):
        # Where there is no room for the causes, what was located and the drain line are shorter.
        told = [
            line for reason in reasons for line in (
                [_cut(reason, width)] if short or not reason.startswith("located:")
                else _fact_lines(reason, "", width)
            )
        ]  # fmt: skip
        for k, sentence in enumerate(fabric_load.sentences(verdict)):
            if sentence.rstrip(".") not in (*head, *told):
                text = sentence if k else f"Fabric under load: {sentence}"
                told += [_cut(text, width)] if short else _wrapped(text, "", width)
        why = [] if short else [cause.criterion for cause in wrong]
        tail = [*files, *filter(None, [drain_line(*of_run, why)])]
        # A path or command that is wider than the terminal takes several lines of it.
        room = MAX_LINES - sum(-(-len(line) // width) for line in (*head, *told, *tail))
        if room >= _fewest(found):
            break
    if not found and (step := blame.what_to_do(str(verdict["verdict"]))):
        tail += _wrapped(f"next: {step.replace('RUN', str(directory.root))}", "", width)
    return [*head, *told, *_fitting(found, width, room), *tail]


def _fewest(found: Sequence[Problem]) -> int:
    """Return the lines of the first problems, of a next step and of how many more there are."""
    return min(len(found), MAX_PROBLEMS) + bool(found) + (len(found) > MAX_PROBLEMS)


def drain_line(bad: Iterable[str], run_id: str, origin: str, why: Iterable[str] = ()) -> str:
    """Return the command that takes the bad nodes out of service, to be pasted; "" for none.

    Beside host names no text of a node is in it; of `why`, criteria that failed, those that the
    suite knows. The suite itself drains nothing.
    """
    names = [name for name in bad if _HOST_NAME.fullmatch(name)]
    if origin != "cluster" or not names or not _RUN_ID.fullmatch(run_id):
        return ""
    nodes = hostlist(names)
    if len(nodes) > MAX_HOSTLIST:
        return ""
    known = [key for key in dict.fromkeys(why) if shipped().kind_of(key) is not None]
    text = ": ".join(filter(None, (f"Reason=acceptance {run_id}", ", ".join(known[:MAX_WHY]))))
    of_nodes, reason = shlex.quote(f"NodeName={nodes}"), shlex.quote(text)
    return f"{'to drain':<12} scontrol update {of_nodes} State=DRAIN {reason}"


def problems(criteria: Iterable[Mapping[str, Any]]) -> list[Problem]:
    """Return what is wrong, causes before what follows from them."""
    return [Problem.of(cause) for cause in causes.found(criteria)]


LEVELS = (
    (2, 2, 2, True), (2, 2, 1, True), (2, 2, 0, True), (2, 1, 0, True), (1, 1, 0, True),
    (1, 0, 0, True), (0, 0, 0, True), (0, 0, 0, False),
)  # fmt: skip
"""How much is told, as much as fits: of the fact of the first problem and of the others, of how
many what they mean (2: all), and whether there is a next step."""


def _fitting(found: Sequence[Problem], width: int, room: int) -> list[str]:
    """Return the first problems with as much about each as fits into `room` lines.

    One next step is enough for a run: that of the first cause.
    """
    shown = found[:MAX_PROBLEMS]
    with_step = next((k for k, problem in enumerate(shown) if problem.next_step), 0)
    for of_first, of_others, meant, stepped in LEVELS:
        lines = [
            line
            for k, problem in enumerate(shown)
            for line in problem.lines(
                k + 1, width, text=of_others if k else of_first, red=meant > min(k, 1),
                step=stepped and k == with_step,
            )
        ]  # fmt: skip
        if more := len(found) - len(shown):
            lines.append(f"   and {more} more: in the report")
        if sum(-(-len(line) // width) for line in lines) <= room:
            return lines
    return lines[: max(0, room)]


def _counts(counts: Mapping[str, int]) -> str:
    _, to_judge = judged_of(counts)
    words = {"fail": "failed", "not_measured": "not measured", "waived": "waived", "pass": "passed"}
    first = "fail" if counts.get("fail") else "pass"
    head = f"{counts.get(first, 0)} of {wording.counted(to_judge, 'check')} {words.pop(first)}"
    parts = [head, *(f"{counts[name]} {text}" for name, text in words.items() if counts.get(name))]
    recorded = counts.get("recorded", 0)
    rest = f"; {wording.counted(recorded, 'figure')} recorded" if recorded else ""
    return ", ".join(parts) + rest


def _files(directory: RunDirectory, good: int, bad: int) -> Iterator[str]:
    """Yield where report, certificate and node lists are, as far as they were written."""
    names = {
        "report": "report.html", "certificate": "certificate.html", "verdict": "verdict.json",
    }  # fmt: skip
    for title, name in names.items():
        if (directory.root / name).exists():
            yield f"{title:<12} {_short(directory.root / name)}"
    counts = {"bad-nodes.txt": bad, "good-nodes.txt": good, "node-reasons.txt": None}
    there = [
        f"{name} ({count})" if count is not None else name
        for name, count in counts.items()
        if (directory.root / name).exists()
    ]
    if there:
        yield f"{'node lists':<12} same folder: {', '.join(there)}"


def _short(path: Path) -> str:
    """Return a path below the current directory relative to it, any other in full."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _step_lines(text: str, indent: str, width: int) -> Iterator[str]:
    """Yield a next step; a command that does not fit beside the text is a line of its own, whole.

    The terminal breaks a line that is too long without a line break in what is copied.
    """
    before, _, rest = text.partition("`")
    command, closed, after = rest.partition("`")
    if not closed or len(indent) + len(text) <= width:
        yield from _wrapped(text, indent, width)
        return
    yield from _wrapped(before, indent, width)
    yield f"{indent}`{command}`"
    if after.strip(" .,;"):
        yield from _step_lines(after.strip(" ,;"), indent, width)


def _wrapped(text: str, indent: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _fact_lines(text: str, indent: str, width: int) -> list[str]:
    text = " ".join(text.split())
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)


def _cut(text: str, width: int) -> str:
    """Return text on one line of `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 3]}..."
