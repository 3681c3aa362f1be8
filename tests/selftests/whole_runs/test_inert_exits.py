"""What a node writes acts nowhere: every text of a recorded run is replaced, every exit is read."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.run_directory import RunDirectory
from fixtures.records.verdict_file import read_verdict
from fixtures.thresholds import loader
from fixtures.verdict.model import Verdict
from reports.__main__ import main, tables
from reports.console import terminal, tour
from reports.exports import compare, energy, export, github
from reports.pages import dossier
from reports.pages.artefacts import Artefacts
from tests.selftests import support
from tests.selftests.support import DATA, SHIPPED

pytestmark = pytest.mark.cpu

RUN = DATA / "sandbox-2x2-cpu-failures"
PAYLOADS = (
    "\x1b[2J\x1b]0;title\x07",
    "\u202egnp.exe\u2066",
    "\n::error::owned\r\n##[error]owned",
    "::stop-commands::x",
    "\u2028::warning::owned\u2029\x85\x0b::error::x",
    "zero\u200bwidth\ufeff\U000e0041\ufe0f",
    "\x00\x7f\x9b31m",
    "\ud800\ue000",
    "long" * 3000,
)
ACTS = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
FORM = {"node", "workload", "placement", "nonce", "run_id", "metric", "unit", "model", "kind", "at"}
"""Names under which another text makes the record one of something else, or unusable."""


class Poison:
    """Puts a payload behind each text of JSON data, in turn."""

    def __init__(self, kept: set[str] = FORM) -> None:
        self._kept = kept
        self.count = 0

    def __call__(self, data: Any) -> Any:
        if isinstance(data, str):
            self.count += 1
            payload = PAYLOADS[self.count % len(PAYLOADS)]
            return payload + data if self.count % 2 else data + payload
        if isinstance(data, list):
            return [self(value) for value in data]
        if isinstance(data, dict):
            return {k: v if k in self._kept else self(v) for k, v in data.items()}
        return data


def poisoned(source: Path, into: Path) -> Path:
    """A copy of a run in which every free text of the nodes has a payload, and the records of some
    workloads have one in every text whatever."""
    shutil.copytree(source, into)
    free, every = Poison(), Poison(set())
    for k, path in enumerate(sorted((into / "records").glob("*.json"))):
        with support.edited(path) as data:
            data["ranks"] = (every if k % 5 == 4 else free)(data["ranks"])
            data["provenance"] = free(data["provenance"])
    missing = into / "jobs" / "missing.jsonl"
    lines = [json.loads(line) for line in missing.read_text().splitlines()]
    missing.write_text("".join(json.dumps(free(line)) + "\n" for line in lines))
    with support.edited(into / "run.json") as run:
        for name in ("versions", "commands", "commit"):
            run[name] = free(run.get(name))
    assert min(free.count, every.count) > 100
    return into


def acting(text: str) -> list[str]:
    """What in a text acts: characters, and lines that a CI runner obeys."""
    found = [ascii(c) for c in {*text} if c != "\n" and unicodedata.category(c) in ACTS]
    found += [line for line in text.split("\n") if re.match(r"\s*(::|##\[)", line)]
    return found + [f"{len(w)} characters" for w in re.findall(r"(?:long){1500,}", text)]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run directory, and what pytest printed."""
    folder = tmp_path_factory.mktemp("exits")
    source = poisoned(RUN, folder / "source")
    run = support.run_pytest(
        "--cluster", "replay", f"--from={source}", f"--run-dir={folder / 'run'}", "-v"
    )
    return folder / "run", run.stdout + run.stderr


def test_a_payload_is_seen_to_act():
    for payload in PAYLOADS:
        assert acting(f"a\n{payload}"), payload


def test_nothing_acts_on_the_terminal_and_in_the_log_of_ci(ran):
    _, printed = ran
    assert acting(printed) == []
    shown = [
        escape
        for escape in (
            r"\x1b[2J",
            r"\u202egnp",
            r"\n\x3a:error::",
            r"\u200b",
            r"\x00",
            r"\x3a:stop-commands",
            r"\ud800",
        )
        if escape in printed
    ]
    assert len(shown) > 4, "an honest reader sees what was sent"


def test_nothing_acts_in_any_file_of_the_run(ran):
    root, _ = ran
    names = {path.name for path in root.rglob("*") if path.is_file()}
    assert {"report.html", "results.csv", "junit.xml", "node-reasons.txt", "verdict.json"} <= names
    evidence = {"jobs", "records"}  # copies of what was sent, byte for byte
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.relative_to(root).parts[0] not in evidence:
            assert acting(path.read_text(encoding="utf-8")) == [], path


EXITS: dict[str, Callable[[RunDirectory, Any], object]] = {
    "tables": lambda run, verdict: tables(run.root),
    "energy": lambda run, verdict: energy.show(run.root),
    "tour": lambda run, verdict: tour.show(tour.Console(width=200), run),
    "watch": lambda run, verdict: main(["watch", str(run.root), "--once"]),
    "compare": lambda run, verdict: compare.show(
        run.root, run.root, SHIPPED, include_unchanged=True
    ),
    "rejudge": lambda run, verdict: main(["rejudge", str(run.root)]),
    "summary": lambda run, verdict: print(github.markdown(verdict)),
    "prometheus": lambda run, verdict: export.write(verdict, "prometheus", None),
    "csv": lambda run, verdict: export.write(verdict, "csv", None),
    "lines": lambda run, verdict: print(
        *(Verdict.from_json(row).line for row in verdict["criteria"]), sep="\n"
    ),
    "end of the terminal": lambda run, verdict: print(
        *terminal.summary(Artefacts(run, verdict), 100), sep="\n"
    ),
    "certificate": lambda run, verdict: print(Artefacts(run, verdict).make("certificate.html")),
    "statement": lambda run, verdict: print(
        Artefacts(run, verdict).make("statement.intoto.json").decode()
    ),
}


@pytest.mark.parametrize("show", EXITS.values(), ids=EXITS)
def test_nothing_acts_in_what_is_made_of_the_run(ran, capsys, show):
    run = RunDirectory(ran[0])
    show(run, read_verdict(run))
    printed = capsys.readouterr()
    assert printed.out
    assert acting(printed.out + printed.err) == []


def test_nothing_acts_in_an_annotation(ran, capsys):
    verdict = read_verdict(RunDirectory(ran[0]))
    for line in github.annotate(verdict):
        assert re.match(r"::(error|warning|notice) title=", line)
        assert acting(line[2:]) == []


def test_nothing_acts_in_a_dossier(ran, tmp_path, capsys):
    run = RunDirectory(ran[0])
    options = argparse.Namespace(
        node="worker0", gpu=None, bug_report=None, out=tmp_path, audience="vendor",
        without_host_names=False,
    )  # fmt: skip
    dossier.write(run.root, read_verdict(run), loader.load(SHIPPED), options)
    for path in tmp_path.iterdir():
        assert acting(path.read_text(encoding="utf-8")) == [], path
    assert acting(capsys.readouterr().out) == []
