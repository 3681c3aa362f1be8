"""The plug-in that leaves the pages and files of a run: what it writes, removes and prints."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.run_directory import RunDirectory
from reports.console import plugin
from reports.console.plugin import Writer
from reports.pages.artefacts import NAMES, NODE_LISTS

pytestmark = pytest.mark.cpu

STATEMENT = "statement.intoto.json"


class Session:
    """A writer in a session of pytest, and what it printed and wrote."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, root: Path, *, reporter: bool = True,
        verbosity: int = 1, fails: bool = False, width: int = 300,
    ) -> None:  # fmt: skip
        self.lines: list[str] = []
        self.words: list[tuple[str, int]] = []
        self.written: list[str] = []
        self.directory = RunDirectory(root)
        self.directory.run_json.write_text('{"schema": 2, "id": "r"}')

        def write(artefacts: Any, name: str) -> None:
            if fails:
                raise ValueError("no")
            self.written.append(name)

        terminal = SimpleNamespace(
            _tw=SimpleNamespace(fullwidth=width), write_line=self.lines.append,
            write_sep=lambda sep, word, *, fullwidth, **_: self.words.append((word, fullwidth)),
        )  # fmt: skip
        config = SimpleNamespace(
            pluginmanager=SimpleNamespace(
                getplugin=lambda _: terminal if reporter else None, hasplugin=lambda _: True
            ),
            getoption=lambda *_: None, get_verbosity=lambda: verbosity,
        )  # fmt: skip
        monkeypatch.setattr(plugin.Artefacts, "write", write)
        monkeypatch.setattr(plugin.terminal, "summary", lambda artefacts, width: [f"at {width}"])
        monkeypatch.setattr(plugin.tables, "records_of", lambda _: ["one", "none"])
        monkeypatch.setattr(plugin.tables, "table", lambda r: f"table of {r}" * (r == "one"))
        self.terminal = terminal
        self.writer = Writer(config)

    def start(self) -> Writer:
        self.writer.pytest_acceptance_started(None, self.directory)
        return self.writer

    def conclude(self, word: str = "PARTIAL") -> Writer:
        verdict = {"verdict": word, "criteria": [], "counts": {}, "reasons": [], "scope": {}}
        self.writer.pytest_acceptance_concluded(None, self.directory, verdict)
        return self.writer


def test_what_an_earlier_session_left_is_removed(tmp_path, monkeypatch):
    for name in NAMES:
        (tmp_path / name).write_text("old")
    (tmp_path / "signatures").mkdir()
    (tmp_path / "signatures" / "a.sig").write_text("of what was there")
    Session(monkeypatch, tmp_path).start()
    assert not [name for name in (*NAMES, "signatures") if (tmp_path / name).exists()]


def test_all_but_the_pages_of_pytest_s_plug_ins_is_written_with_the_verdict(tmp_path, monkeypatch):
    session = Session(monkeypatch, tmp_path)
    session.start()
    session.conclude()
    later = {"report.html", "junit.xml"}
    assert session.written
    assert not {*later, *NODE_LISTS, STATEMENT} & set(session.written)
    session.written.clear()
    session.writer.pytest_sessionfinish()
    assert set(session.written) == later, "a run by hand has no statement"
    session.directory.run_json.write_text('{"schema": 2, "id": "r", "origin": "cluster"}')
    session.conclude()
    session.written.clear()
    session.writer.pytest_sessionfinish()
    assert session.written == ["report.html", "junit.xml", STATEMENT], "which lists both"


def test_a_session_without_a_run_writes_and_prints_nothing(tmp_path, monkeypatch):
    session = Session(monkeypatch, tmp_path)
    session.writer.pytest_sessionfinish()
    session.writer.pytest_terminal_summary(session.terminal)
    prefix: list[str] = []
    session.writer.pytest_html_results_summary(prefix)
    assert (session.written, session.lines, prefix) == ([], [], [])


def test_a_session_that_did_not_conclude_has_an_incomplete_report(tmp_path, monkeypatch):
    session = Session(monkeypatch, tmp_path)
    session.start()
    session.writer.pytest_sessionfinish()
    assert session.written == ["report.html", "junit.xml"]
    assert session.writer._shown(session.directory).verdict["verdict"] == "INCOMPLETE"
    session.conclude("PARTIAL")
    assert session.writer._shown(session.directory).verdict["verdict"] == "PARTIAL"
    prefix: list[str] = []
    session.writer.pytest_html_results_summary(prefix)
    assert len(prefix) == 2


def test_a_file_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    session = Session(monkeypatch, tmp_path, fails=True)
    session.start()
    session.conclude()
    assert session.lines
    assert all("was not written: ValueError('no')" in line for line in session.lines)
    silent = Session(monkeypatch, tmp_path, fails=True, reporter=False)
    silent.start()
    silent.conclude()
    silent.writer.print_verdict()
    assert silent.lines == []


def test_tables_are_printed_with_v(tmp_path, monkeypatch):
    for verbosity, printed in ((0, []), (1, ["\ntable of one"]), (2, ["\ntable of one"])):
        session = Session(monkeypatch, tmp_path, verbosity=verbosity)
        session.start().pytest_terminal_summary(session.terminal)
        assert session.lines == printed


def test_the_verdict_is_printed_last_in_at_most_100_characters(tmp_path, monkeypatch):
    for width, shown in ((300, 100), (80, 80)):
        session = Session(monkeypatch, tmp_path, width=width)
        session.start()
        session.writer.print_verdict()
        assert (session.words, session.lines) == ([], [])
        session.conclude().print_verdict()
        assert (session.words, session.lines) == ([("PARTIAL", shown)], [f"at {shown}"])


def test_a_verdict_that_does_not_hold_is_told_with_its_reasons(tmp_path, monkeypatch):
    session = Session(monkeypatch, tmp_path)
    session.start()
    session.conclude("ACCEPTED")
    held = SimpleNamespace(verdict="INCOMPLETE", reasons=["no space left"])
    session.writer.pytest_acceptance_unwritten(None, session.directory, held)
    session.writer.print_verdict()
    assert [word for word, _ in session.words] == ["INCOMPLETE"]
    assert session.lines[0] == "no space left"
