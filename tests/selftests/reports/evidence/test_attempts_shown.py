"""`verify` says how many attempts the ledger has and how many records show, and names the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reports.evidence import attempts_shown
from reports.evidence.findings import Findings
from tests.selftests.run.attempts_story import Story

pytestmark = pytest.mark.cpu


@pytest.fixture
def story(tmp_path: Path) -> Story:
    """A failure, three passes, and the end of each session."""
    made = Story(tmp_path)
    for attempt, rate in enumerate((500, 650, 650, 650), 1):
        made.measured(attempt, rate, rate)
        made.run.files.append_end(made.run._conclude([made.judged()], interrupted=""))
    last = made.run._conclude([made.first()], interrupted="")
    made.run.extra["stated"] = {**vars(last), "criteria": [made.first().to_json()]}
    return made


def found(story: Story, *, sessions: int = 4, **more: Any) -> Findings:
    result = Findings()
    run = {"nonce": story.run.nonce, "commands": ["pytest"] * sessions, "ended": "2026",
           "owner": {"pid": 1}, **more}  # fmt: skip
    now = [story.first().to_json()]
    attempts_shown.check(story.run.directory, run, story.run.extra["stated"], now, result)
    return result


def changed(change: Callable[[dict[str, Any]], Any], at: int) -> Callable[[Story], None]:
    def apply(story: Story) -> None:
        lines = story.lines()
        verdicts = [line for line in lines if line["event"] == "verdict"]
        if change(verdicts[at]) == "drop":
            lines.remove(verdicts[at])
        story.rewrite(*lines)

    return apply


def test_one_line_says_how_many_attempts_there_were(story):
    assert found(story).confirmed == ["attempts: the ledger has 4, records show 4"]
    assert found(story).status == 0


@pytest.mark.parametrize(
    ("attempt", "outcome", "how"),
    [(1, "FAIL", Path.unlink), (2, "NOT_MEASURED", lambda p: p.write_text("{")),
     (3, "NOT_MEASURED", lambda p: p.write_text(p.read_text().replace("worker0", "worker1")))],
)  # fmt: skip
def test_an_attempt_that_no_record_shows_is_named_and_nothing_is_verified(
    story, attempt, outcome, how
):
    name = story.path(attempt).name
    how(story.path(attempt))
    result = found(story)
    assert result.unchecked == [
        f"attempts: the ledger has 4, records show 3: not {name} ({outcome})"
    ]
    assert "not that on which the run ended" in result.wrong[0]
    lines = [{k: v for k, v in line.items() if k != "evidence_sha256"} for line in story.lines()]
    story.rewrite(*lines)
    assert found(story).status == 2, "of a run of an earlier version"


@pytest.mark.parametrize(
    ("forged", "says"),
    [
        (changed(lambda line: "drop", 0), "does not name 1 attempt, as gemm@worker0.json"),
        (changed(lambda line: "drop", 1), "as gemm@worker0.attempt2.json"),
        (changed(lambda line: "drop", -1), "outcome of gemm.bf16 worker0 is 'NOT_MEASURED'"),
        (changed(lambda line: line.update(outcome="FAIL"), -1), "outcome of gemm.bf16 worker0"),
        (changed(lambda line: line.update(value=651.0), -1), "value of gemm.bf16 worker0 is 651.0"),
        (changed(lambda line: line.update(subject="worker1"), -1), "in verdict.json"),
        (lambda story: story.rewrite(), "has no line on gemm.bf16 worker0"),
    ],
)  # fmt: skip
def test_a_ledger_that_lacks_what_records_show_is_wrong(story, forged, says):
    ends = [line for line in story.lines() if line["event"] == "end"]
    forged(story)
    story.rewrite(*[n for n in story.lines() if n["event"] != "end"], *ends)
    assert any(says in line for line in found(story).wrong), found(story).wrong


def test_what_a_killed_session_measured_needs_no_line(story):
    lines = story.lines()
    story.rewrite(*[n for n in lines if n.get("attempt") != 2])
    assert found(story).wrong
    killed = found(story, sessions=5)
    assert killed.wrong == []
    assert "a session ended before it was judged" in killed.notes[0]
    ends = [n for n in lines if n["event"] == "end"]
    ends[1]["interrupted"] = "interrupted"
    story.rewrite(*[n for n in lines if n.get("attempt") != 2 and n["event"] != "end"], *ends)
    assert found(story).wrong == []


def test_a_run_of_the_suite_has_a_ledger_and_one_by_hand_has_none(story):
    story.run.directory.ledger.unlink()
    text = "attempts: there is no ledger.jsonl, which lists them"
    assert found(story).wrong == [text]
    by_hand = found(story, origin="by-hand")
    assert (by_hand.wrong, by_hand.notes) == ([], [text])


@pytest.mark.parametrize(
    ("forged", "says"),
    [({"ended": ""}, "has the end of the run, run.json has not"),
     ({"owner": None}, "does not say which process owned the run"),
     ({"owner": "me"}, "does not say which process owned the run")],
)  # fmt: skip
def test_whether_a_run_has_ended_is_not_the_word_of_run_json_alone(story, forged, says):
    lines = story.lines()
    story.rewrite(*[n for n in lines if n.get("attempt") != 2])
    wrong = found(story, **forged).wrong
    assert any(says in line for line in wrong), wrong
    assert any("does not name 1 attempt" in line for line in wrong), "and all else is compared"


def test_an_end_that_only_run_json_has_is_wrong(story):
    story.rewrite(*[n for n in story.lines() if n["event"] != "end"])
    assert any("has no line on the end of the run" in line for line in found(story).wrong)


@pytest.mark.parametrize(
    "forged",
    [
        {"event": "Verdict"},
        {"outcome": "fail"},
        {"record": "./x"},
        {"record": 7},
        {"outcome": None},
    ],
)
def test_a_line_that_no_suite_writes_is_wrong(story, forged):
    first, *others = story.lines()
    story.rewrite({**first, **forged}, *others)
    assert any(line.startswith("ledger.jsonl: a") for line in found(story).wrong)


@pytest.mark.parametrize(
    ("name", "value"),
    [("verdict", "REJECTED"), ("counts", {"pass": 0}), ("counts", None)],
)
def test_a_ledger_that_ended_with_another_verdict_is_wrong(story, name, value):
    ends = [line for line in story.lines() if line["event"] == "end"]
    story.rewrite(*story.lines()[:-1], {**ends[-1], name: value})
    assert [line for line in found(story).wrong if f"ended with another {name}" in line]


def test_a_verdict_that_was_made_of_a_killed_run_is_in_no_ledger(story):
    story.rewrite(*[n for n in story.lines() if n.get("attempt") != 4])
    assert found(story, sessions=5).wrong
    assert found(story, sessions=5, ended="").wrong == []
    assert json.loads(story.path(4).read_text())["attempt"] == 4
