"""A run whose evidence is not what its manifest says is not gone on with; a killed one is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.errors import ConfigError
from fixtures.records.files import append_line, append_lines
from fixtures.records.run_directory import RunDirectory
from fixtures.run.altered import added_records, refuse_altered
from tests.selftests.run.attempts_story import Story

pytestmark = pytest.mark.cpu

ENDED = {"ended": "2026-11-20T12:00:00+00:00"}
RANK = "jobs/node-worker0/rank0.jsonl"


def session(story: Story, *, ends: bool) -> None:
    """What a session writes at its start, while it measures, and at its end."""
    for name in ("report.html", "verdict.json", "statement.intoto.json"):
        (story.root / name).unlink(missing_ok=True)
    story.run.extra.pop("ended", None)
    story.run.write_heartbeat()
    attempt = story.run.directory.latest_attempt("gemm", "worker0") + 1
    story.measured(attempt, 650, 500 if attempt == 1 else 650)
    append_lines(story.root / "jobs" / "missing.jsonl", [{"event": "missing", "n": attempt}])
    (story.root / RANK).parent.mkdir(exist_ok=True)
    append_line(story.root / RANK, {"event": "result", "attempt": attempt})
    (story.root / "jobs" / "node-worker0" / "log.out").write_text(f"session {attempt}\n")
    if ends:
        story.run.write_heartbeat(**ENDED)
        (story.root / "verdict.json").write_text("{}")
        story.run.directory.write_manifest()
        for name in ("report.html", "statement.intoto.json"):
            (story.root / name).write_text("page")


@pytest.fixture
def story(tmp_path: Path) -> Story:
    made = Story(tmp_path)
    session(made, ends=True)
    return made


def asked(story: Story) -> None:
    data = json.loads((story.root / "run.json").read_text())
    refuse_altered(story.run.directory, data, "--resume")


# --- honest


def test_a_run_that_ended_goes_on_again_and_again(story):
    asked(story)
    for _ in range(2):
        session(story, ends=True)
        asked(story)


def test_a_first_session_that_was_killed_has_no_manifest(tmp_path):
    made = Story(tmp_path)
    session(made, ends=False)
    asked(made)


def test_a_later_session_that_was_killed_has_an_older_manifest(story):
    for _ in range(2):
        session(story, ends=False)
        asked(story)
    session(story, ends=True)
    asked(story)


@pytest.mark.parametrize("verdict", [False, True])
def test_a_session_that_died_while_it_wrote_its_end_is_gone_on_with(story, verdict):
    session(story, ends=False)
    story.run.write_heartbeat(**ENDED)
    if verdict:
        (story.root / "verdict.json").write_text("{}")
    asked(story)
    (story.root / "manifest.sha256").unlink()
    asked(story)


def test_logs_are_no_evidence_and_a_rank_may_outlive_its_session(story):
    (story.root / "jobs" / "node-worker0" / "log.out").unlink()
    append_line(story.root / RANK, {"event": "error", "kind": "ended"})
    asked(story)


# --- not honest


def _forged(path: Path) -> None:
    path.write_text(path.read_text().replace("500", "650"))


def _cut(path: Path) -> None:
    path.write_text(path.read_text()[:-30])


def _first_line_gone(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))


RECORD = "records/gemm@worker0.json"
ALWAYS: list[tuple[str, Callable[[Path], Any]]] = [
    (RECORD, Path.unlink), (RECORD, _forged), (RECORD, _cut), (RECORD, lambda p: p.write_text("")),
    ("ledger.jsonl", Path.unlink), ("ledger.jsonl", _forged), ("ledger.jsonl", _first_line_gone),
    ("jobs/missing.jsonl", _first_line_gone), (RANK, _first_line_gone),
]  # fmt: skip
OF_ENDED: list[tuple[str, Callable[[Path], Any]]] = [
    ("manifest.sha256", Path.unlink), ("run.json", lambda p: append_line(p, {})),
    ("limits.csv", _cut), ("ledger.jsonl", lambda p: append_line(p, {"event": "verdict"})),
    ("records/gemm@worker0.attempt2.json", lambda p: p.write_text("{}")),
    ("jobs/missing.jsonl", lambda p: append_line(p, {"event": "missing"})),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change"), [*ALWAYS, *OF_ENDED])
def test_an_ended_run_that_was_changed_is_refused(story, name, change):
    data = json.loads((story.root / "run.json").read_text())
    change(story.root / name)
    with pytest.raises(ConfigError) as raised:
        refuse_altered(story.run.directory, data, "--retest")
    said = str(raised.value)
    assert said.startswith(f"--retest {story.root}: the evidence is not what manifest.sha256 says")
    assert name in said
    assert "put it back from a copy, or start a new run" in said


@pytest.mark.parametrize(("name", "change"), ALWAYS)
def test_what_an_earlier_session_left_is_held_against_a_killed_one_too(story, name, change):
    session(story, ends=False)
    change(story.root / name)
    with pytest.raises(ConfigError, match=name.rpartition("/")[2]):
        asked(story)


def test_many_differences_are_counted(story):
    for attempt in range(2, 8):
        (story.root / "records" / f"gemm@worker0.attempt{attempt}.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"attempt4\.json was added and 3 more"):
        asked(story)
    assert len([*added_records(RunDirectory(story.root), {RECORD: ""})]) == 6


def test_a_manifest_that_cannot_be_read_is_a_reason(story):
    (story.root / "manifest.sha256").unlink()
    (story.root / "manifest.sha256").mkdir()
    with pytest.raises(ConfigError, match=r"manifest\.sha256"):
        asked(story)


def test_a_manifest_that_was_made_anew_does_not_hide_a_change(story):
    story.run.files.append_end(story.run._conclude([story.judged()], interrupted=""))
    session_files = story.run.directory
    session_files.write_manifest()
    asked(story)
    path = session_files.missing
    path.write_text("")
    session_files.write_manifest()
    with pytest.raises(ConfigError, match="not that on which the run ended"):
        asked(story)
