"""What an engineer asks of a run in the first minute, and the answers that its truth gives.

For each fault of the drills, each fault that can be planted in a record, each training that goes
wrong and each recorded failure: which node, which part of it, which number or meaning decides, and
what to do next. The answers come from what was broken, never from what a page says.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from fixtures.records.files import read_json
from fixtures.records.run_directory import RunDirectory
from fixtures.sandbox import emulation
from fixtures.verdict.model import Outcome, Verdict
from reports.console import terminal
from reports.facts.causes import UUID
from reports.pages import page
from reports.pages.artefacts import Artefacts
from tests.selftests import incidents, judged_runs, planted, support, training_faults
from tests.selftests.faults import Fault
from tests.tools.drills import fault_lists

WIDTH, HEIGHT = 80, 24
"""The terminal of an engineer on call."""
NODES = ("worker0", "worker1")
WHERE, PART, DECIDES, NEXT = "which node", "which part", "what decides", "what next"
HEALTHY = ("health.answers", "gemm.bf16", "memory.copy", "allreduce.node.1GiB", "nvlink.links")
"""Rows that pass beside the one that fails."""


@dataclass(frozen=True)
class Case:
    """A run with one thing wrong, and the answers that it must give."""

    name: str
    rows: Sequence[Verdict]
    answers: dict[str, str]
    nodes: tuple[str, ...] = NODES

    def missing(self, text: str) -> list[str]:
        """Return the questions that a text does not answer."""
        said = plain(text)
        return [asked for asked, answer in self.answers.items() if plain(answer) not in said]


def plain(text: str) -> str:
    """Return a text as it is read: in one line, without marks of code."""
    return " ".join(text.replace("`", "").split())


# --- the truths


def of_faults(rows: Iterable[Fault]) -> Iterator[Case]:
    """Yield a case for each fault of the drills, with the row that it must make red."""
    for fault in rows:
        where = fault.culprit.split()
        node = next((name for name in where if name in NODES), where[0])
        gpu = _gpu_of(fault.device)
        part = f"gpu{gpu}" if gpu is not None else fault.device
        found = {"gpu": gpu, "uuid": fault.device} if gpu is not None else {"part": part}
        note = f"{fault.device}: {fault.says}" if gpu is not None and fault.says else fault.says
        row = _row(fault.criterion, node, found if part else {}, [note] if note else [])
        also = [_row(key, node, found if part else {}, []) for key in fault.also]
        yield Case(
            f"{fault.criterion}: {fault.name}", [row, *also, *passed(fault.criterion)],
            {WHERE: node, PART: f"{node} {part}" if gpu is not None else part,
             DECIDES: fault.says or row.measured, NEXT: row.next_step},
        )  # fmt: skip


def of_trainings() -> Iterator[Case]:
    """Yield a case for each training that goes wrong, with all rows that it makes red."""
    for name, keys in training_faults.RED.items():
        worst = {"gpu": 1, "uuid": emulation.gpu_uuid("worker1", 1)}
        one = name in training_faults.NAMED
        rows = [_row(key, "worker1", worst if one else {}, []) for key in sorted(keys)]
        yield Case(
            f"training: {name}", [*rows, *passed(*keys)],
            {WHERE: "worker1", PART: "worker1 gpu1" if one else "", DECIDES: rows[0].measured,
             NEXT: rows[0].next_step},
        )  # fmt: skip


def of_records(keys: Iterable[str]) -> Iterator[Case]:
    """Yield a case for each criterion of which a record can be made bad."""
    for key in keys:
        try:
            found = planted.plant(key)
        except LookupError:
            continue
        yield _judged(f"planted: {key}", found.verdict, found.culprit)


def of_incidents() -> Iterator[Case]:
    """Yield a case for each incident of other clusters whose figure is planted in a record."""
    for incident in incidents.INCIDENTS:
        drill = incident.drill
        if isinstance(drill, incidents.Plant) and drill.outcome == "FAIL":
            _, row = incidents.judged(drill)
            yield _judged(f"incident: {incident.threads[0]}", row, "")


def _judged(name: str, row: Verdict, culprit: str) -> Case:
    worst = row.worst or {}
    node = str(worst.get("node") or culprit or row.subject)
    gpu = worst.get("gpu")
    part = worst.get("part") or ("" if gpu is None else f"{node} gpu{gpu}")
    nodes = NODES if row.subject not in ("node0", "login") else (row.subject,)
    answers = {WHERE: node, PART: "" if part == "the node" else str(part), DECIDES: row.measured,
               NEXT: row.next_step}  # fmt: skip
    return Case(name, [row, *passed(row.criterion, nodes=nodes)], answers, nodes)


RECORDED = {
    "h200-1x2-neighbour": {
        WHERE: "node0", PART: "gpu0", DECIDES: "23590 tokens/s",
        NEXT: "health.foreign_processes",
    },
    "h200-2x2-scaling": {
        WHERE: "all nodes", DECIDES: "NET/Socket", PART: "training_ddp.cluster.efficiency",
        NEXT: "allreduce.cluster.transport",
    },
    "h200-2x1-scaling": {
        WHERE: "all nodes", DECIDES: "NET/Socket", PART: "training_fsdp.cluster.efficiency",
        NEXT: "docs/tuning.md",
    },
    "h100-2x2-fsdp": {
        WHERE: "all nodes", DECIDES: "NET/Socket", PART: "training_fsdp.cluster.efficiency",
        NEXT: "docs/tuning.md",
    },
    "h100-1x4": {WHERE: "node0", PART: "cpu51", DECIDES: "4.031 %", NEXT: "host.cores"},
}  # fmt: skip
"""Recorded run -> what was wrong when it was recorded."""


def of_runs(names: Iterable[str], folder: Path) -> Iterator[tuple[Case, Path]]:
    """Yield a case for each recorded run that failed, and the directory in which it was judged."""
    for name in names:
        root = folder / name
        _, verdict = support.judged(support.DATA / name, root)
        rows = [Verdict.from_json(row) for row in verdict["criteria"]]
        nodes = tuple(verdict["scope"]["nodes"])
        yield Case(f"recorded: {name}", rows, RECORDED[name], nodes), root


def _gpu_of(device: str) -> int | None:
    if not UUID.fullmatch(device):
        return None
    known = {emulation.gpu_uuid(node, k): k for node in NODES for k in range(8)}
    return known.get(device, 0)


def _row(key: str, node: str, part: dict[str, Any], notes: list[str]) -> Verdict:
    """Return the red row of a fault as a run has it, except for what only the run knows."""
    criterion = planted.shipped().criteria[key]
    counted = criterion.statistic == "value"
    subject = node if criterion.per == "node" else "cluster"
    where = node if node in NODES else None
    step = f"look at {node}, then `pytest -m multinode --retest=/scratch/run -k {node}`"
    return Verdict(
        criterion=key, title=criterion.title, subject=subject, outcome=Outcome.FAIL,
        value=2 if counted else 41.5, unit=criterion.unit, limit="<= 0" if counted else ">= 605",
        margin=None if counted else -0.93,
        worst={"node": where, **part, "value": 2} if where or part else None,
        devices={"planned": 2, "measured": 2}, notes=notes, next_step=step,
        record=f"x@{node}.json", job="9",
    )  # fmt: skip


def passed(*but: str, nodes: Sequence[str] = NODES) -> list[Verdict]:
    """Return rows of a healthy run beside those of these criteria."""
    limits = planted.shipped().criteria
    return [
        Verdict(criterion=key, title=limits[key].title, subject=node, outcome=Outcome.PASS,
                value=641.2, unit=limits[key].unit, limit=">= 605", margin=0.06,
                devices={"planned": 2, "measured": 2})
        for node in nodes for key in HEALTHY if key not in but
    ]  # fmt: skip


# --- what an engineer sees


def run_of(root: Path, case: Case, **run: Any) -> Artefacts:
    """Write a run with the rows of a case, of a cluster that was ordered."""
    verdict = judged_runs.verdict_of(case.rows, nodes=list(case.nodes)) | {"schema": 2}
    known: dict[str, Any] = {
        "origin": "cluster", "planned": len(case.rows), "path": "/scratch/run",
        "created": "2026-11-20T14:15:00+00:00", "ended": "2026-11-20T14:41:00+00:00",
        "thresholds": {"sha256": "fe2a9ad1" * 8},
        "contract": {"customer": "Example AG", "supplier": "Example Systems", "site": "Frankfurt",
                     "order_number": "4711", "nodes": len(case.nodes), "gpus_per_node": 2,
                     "gpu_model": "H200 SXM"},
    }  # fmt: skip
    directory = judged_runs.written(root, verdict, **known | run)
    for name in ("report.html", "certificate.html", "bad-nodes.txt", "node-reasons.txt"):
        (root / name).touch()
    return Artefacts(directory, verdict)


def last_screen(artefacts: Artefacts) -> str:
    """Return the last lines that pytest prints, as a terminal shows them."""
    word = str(artefacts.verdict["verdict"]).center(WIDTH, "=")
    lines = [word, *terminal.summary(artefacts, WIDTH), "$"]
    shown = [line[k : k + WIDTH] for line in lines for k in range(0, max(1, len(line)), WIDTH)]
    return "\n".join(shown[-HEIGHT:])


def judged_here(root: Path) -> Artefacts:
    directory = RunDirectory(root)
    return Artefacts(directory, read_json(directory.verdict))


def first_page(artefacts: Artefacts) -> str:
    """Return the text of the report's first screen."""
    return first_screen(page.page(artefacts.directory, artefacts.verdict))


SCREEN_PX = 900
LETTER_PX, LINE_PX, SMALL_LETTER_PX = 7.6, 25.0, 7.0
"""At most, in the body of the page: what a slow test measures in a browser."""
ROOM_PX = 1150
GAP_PX = 9.0
TALL = {"h1": 46.0, "h2": 62.0, "verdict": 58.0}
"""Blocks with their own height, margins included."""
BLOCKS = ("p", "li", "h1", "h2", "nav", "table", "caption", "tr", "figure", "summary", "div")
LINES_OF_THEIR_OWN = ("red", "next", "links")
"""Classes of parts of an item that begin on a new line."""


class _Text(HTMLParser):
    """The text of a page in blocks, each with the name that says how tall it is."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.blocks: list[tuple[str, str]] = []
        self._hidden = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        classes = dict(attrs).get("class") or ""
        if tag in ("script", "style", "title", "template", "noscript"):
            self._hidden += 1
        elif tag in BLOCKS or classes in LINES_OF_THEIR_OWN:
            kind = "verdict" if classes == "verdict" else tag
            self.blocks.append((kind, ""))

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style", "title", "template", "noscript"):
            self._hidden -= 1
        elif tag in BLOCKS:
            self.blocks.append(("rest", ""))

    def handle_data(self, data: str) -> None:
        if not self._hidden and self.blocks:
            kind, text = self.blocks[-1]
            self.blocks[-1] = kind, f"{text}{data}"


def first_screen(html: str, height: float = SCREEN_PX) -> str:
    """Return what stands in the first pixels of a page of 1280, by an estimate that is too tall."""
    body = html.partition("<body")[2] or html
    at, shown = 0.0, []
    for kind, text in _Text(f"<body{body}").blocks:
        words = " ".join(text.split())
        if not words:
            continue
        lines = math.ceil(len(words) * LETTER_PX / ROOM_PX)
        at += TALL.get(kind, 0.0) or lines * LINE_PX + GAP_PX
        if at > height:
            break
        shown.append(words)
    return "\n".join(shown)


@functools.cache
def of_drills() -> tuple[Case, ...]:
    """Return a case for each drill: faults of a node, trainings that go wrong, and incidents."""
    faults = [fault for _, rows in fault_lists() for fault in rows]
    return tuple(map(without_empty, (*of_faults(faults), *of_trainings(), *of_incidents())))


def without_empty(case: Case) -> Case:
    """Return a case with the questions that have an answer: a whole node has no part."""
    return replace(case, answers={k: v for k, v in case.answers.items() if v})
