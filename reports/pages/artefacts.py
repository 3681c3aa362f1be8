"""The files of a run for users and tools, each made from the run directory alone (login side).

A run, `python -m reports render` and `verify` make these files by the same functions: what verify
compares is what the run wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fixtures.conclusion.node_lists import NodeLists
from fixtures.records.files import replace_file
from fixtures.records.run_directory import RunDirectory
from fixtures.run.reader import RunReader
from reports.evidence import statement
from reports.exports import export, junit
from reports.facts import blame
from reports.pages import certificate, page

CERTIFIED_ORIGINS = ("cluster", "sandbox", "local")
"""Origins of runs with certificate and statement: not replays, nor workloads started by hand."""


@dataclass(frozen=True)
class Artefacts:
    """The files that are made of one run."""

    directory: RunDirectory
    verdict: Mapping[str, Any]
    thresholds: Path | None = None
    """The run's file of limits, where it is no longer at the path that run.json names."""

    @cached_property
    def run(self) -> Mapping[str, Any]:
        run: Mapping[str, Any] = self.directory.read_run()
        return run

    @cached_property
    def reader(self) -> RunReader:
        """One reader of the records for all files."""
        return RunReader.of(self.directory, self.run)

    @property
    def names(self) -> list[str]:
        """What a run of this origin has."""
        names = list(NAMES)
        if self.run.get("origin") not in CERTIFIED_ORIGINS:
            names.remove(certificate.NAME)
            names.remove(statement.NAME)
        return names

    def make(self, name: str, now: statement.Listing | None = None) -> bytes:
        """Return the bytes of a file; `now`: what is in the directory, where that was read."""
        if name == statement.NAME:
            return statement.page(self.directory, self.verdict, now).encode()
        return _MAKERS[name](self).encode("utf-8", "replace")

    def write(self, name: str) -> None:
        """Write a file; a signature on another certificate or statement is removed."""
        if name == certificate.NAME:
            certificate.write(self.directory, self.verdict, self.reader)
        elif name == statement.NAME:
            statement.write(self.directory, self.verdict)
        elif name == export.NAME:
            export.write_results(self.directory, self.verdict)
        else:
            replace_file(self.directory.root / name, (self.make(name),), durable=False)

    @cached_property
    def ledger(self) -> page.Ledger:
        return page.read_ledger(self.directory, self.verdict["criteria"])

    @cached_property
    def lists(self) -> NodeLists:
        return blame.lists_of(self.directory, self.verdict, self.run, self.reader)


def _report(artefacts: Artefacts) -> str:
    return page.page(
        artefacts.directory, artefacts.verdict, thresholds=artefacts.thresholds,
        run=artefacts.run, ledger=artefacts.ledger, lists=artefacts.lists, reader=artefacts.reader,
    )  # fmt: skip


def _junit(artefacts: Artefacts) -> str:
    tests = artefacts.ledger.tests.values()
    return junit.text(artefacts.verdict, tests, created=str(artefacts.run.get("created") or ""))


_MAKERS: dict[str, Callable[[Artefacts], str]] = {
    page.NAME: _report,
    certificate.NAME: lambda a: certificate.page(a.directory, a.verdict, a.reader),
    junit.NAME: _junit,
    export.NAME: lambda a: export.results(a.verdict),
    "good-nodes.txt": lambda a: a.lists.text("good"),
    "bad-nodes.txt": lambda a: a.lists.text("bad"),
    "node-reasons.txt": lambda a: a.lists.text("reasons"),
}

NAMES = (*_MAKERS, statement.NAME)
"""All of them; the statement is the last, because it lists the others."""
NODE_LISTS = ("good-nodes.txt", "bad-nodes.txt", "node-reasons.txt")
"""Those that the run itself writes when it ends, so that they are there whatever reports do."""
