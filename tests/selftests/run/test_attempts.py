"""The ledger is the list of the attempts: what it says of one that no record shows holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.backends.replay import ReplayBackend
from fixtures.run import previous_runs
from fixtures.run.options import RunOptions
from fixtures.run.run import Run
from fixtures.verdict.causes import Cause
from fixtures.verdict.model import Outcome
from tests.selftests.run.attempts_story import GEMM, Story
from tests.selftests.support import change, edited

pytestmark = pytest.mark.cpu

PASS, FAIL, NOT_MEASURED = Outcome.PASS, Outcome.FAIL, Outcome.NOT_MEASURED


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def _emptied(path: Path) -> None:
    path.write_text("")


def _torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def _unreadable(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _of_another_run(path: Path) -> None:
    change(path, nonce="f" * 32)


def _replaced(path: Path) -> None:
    """By one that passes, and says that it is of the same job."""
    with edited(path) as data:
        for entry in data["ranks"]:
            for m in entry["measurements"]:
                m["samples"] = [650.0] * len(m["samples"])


def _without_the_slow_gpu(path: Path) -> None:
    with edited(path) as data:
        del data["ranks"][1]["measurements"][0]


LOST: dict[str, Callable[[Path], None]] = {
    "lost": Path.unlink, "emptied": _emptied, "torn": _torn, "unreadable": _unreadable,
    "of another run": _of_another_run, "replaced": _replaced, "cut": _without_the_slow_gpu,
}  # fmt: skip


@pytest.mark.parametrize("how", LOST)
def test_a_failure_is_not_washed_out_by_losing_its_record(story, how):
    story.measured(1, 650, 500)
    LOST[how](story.path(1))
    story.measured(2)
    found = story.judged()
    assert (found.outcome, found.cause) == (NOT_MEASURED, Cause.REPETITION)
    assert "passed 1 of 3 times in a row since attempt 1 failed" in found.reason
    assert any(note.startswith("attempt 1: FAIL 500") for note in found.notes)
    story.measured(3)
    assert story.judged().outcome is NOT_MEASURED
    story.measured(4)
    assert story.judged().outcome is PASS


@pytest.mark.parametrize("how", LOST)
def test_the_attempt_that_counts_keeps_its_failure(story, how):
    story.measured(1)
    story.measured(2, 500, 650)
    LOST[how](story.path(2))
    found = story.judged()
    assert (found.outcome, found.attempt, found.value) == (FAIL, 2, 500.0)
    assert "ledger.jsonl says so of attempt 2" in found.reason
    assert "--retest=" in story.run.command.in_verdict(found).next_step


@pytest.mark.parametrize("how", ["lost", "torn", "emptied"])
def test_a_pass_that_nothing_shows_counts_for_nothing(story, how):
    story.measured(1, 500, 500)
    for attempt in (2, 3, 4):
        story.measured(attempt)
    assert story.judged().outcome is PASS
    LOST[how](story.path(3))
    assert "passed 2 of 3" in story.judged().reason
    LOST[how](story.path(4))
    found = story.judged()
    assert found.outcome is NOT_MEASURED
    assert "gemm@worker0.attempt4.json" in found.reason


def test_lines_without_a_record_make_no_pass(story):
    story.measured(1, 500, 500)
    story.measured(2)
    passed = {**story.lines()[-1], "outcome": "PASS"}
    more = [{**passed, "attempt": n, "record": f"gemm@worker0.attempt{n}.json"} for n in (3, 4)]
    story.rewrite(*story.lines(), *more)
    assert story.judged().outcome is NOT_MEASURED


def test_a_record_that_was_lost_before_it_was_judged_is_no_attempt(story):
    story.measured(1, ledger=False)
    story.path(1).unlink()
    assert story.judged().outcome is NOT_MEASURED
    story.measured(2)
    assert story.judged().outcome is PASS


def test_a_record_that_could_not_be_judged_before_is_no_failure(story):
    story.measured(1, 650, 0)
    assert story.judged().outcome is NOT_MEASURED
    story.path(1).unlink()
    story.measured(2)
    assert story.judged().outcome is PASS


def test_a_failure_that_was_judged_again_by_another_fleet_is_none(story):
    story.measured(1)
    line = story.lines()[-1]
    by_fleet = {**line, "outcome": "FAIL", "margin": 0.02}
    story.rewrite(by_fleet)
    assert story.judged().outcome is PASS  # its record shows that it is above the limit
    by_limit = {**line, "outcome": "FAIL", "margin": -0.2, "value": 500.0}
    story.rewrite(by_limit)
    assert story.judged().outcome is FAIL  # no fleet makes that of it
    story.rewrite(by_limit, line)
    assert story.judged().outcome is FAIL  # another value is of another record
    story.rewrite(by_fleet, line)
    assert story.judged().outcome is PASS  # the fleet was measured again


@pytest.mark.parametrize(
    ("field", "other"), [("suite_version", "0.1"), ("limits_sha256", "0" * 64)]
)
def test_what_other_limits_or_another_version_said_is_judged_by_its_record(story, field, other):
    story.measured(1)
    failed = {**story.lines()[-1], "outcome": "FAIL", "margin": -0.2, field: other}
    story.rewrite(failed)
    assert story.first().outcome is PASS
    story.path(1).unlink()
    assert story.first().outcome is FAIL


def test_a_lost_failure_of_a_gpu_that_is_gone_is_of_nobody(story):
    story.inventory(1, "GPU-worker0-0", "GPU-worker0-1", at=50.0)
    story.measured(1, 650, 500)
    story.path(1).unlink()
    story.inventory(2, "GPU-worker0-0", "GPU-new", at=150.0)
    made = story.measured(2, ledger=False)
    made.ranks[1].device["uuid"] = "GPU-new"
    story.path(2).write_text(json.dumps(made.to_json()))
    assert story.judged().outcome is PASS
    story.inventory(3, "GPU-new", "GPU-worker0-1", at=150.0)  # the one that failed is back
    made.ranks[0].device["uuid"], made.ranks[1].device["uuid"] = "GPU-new", "GPU-worker0-1"
    story.path(2).write_text(json.dumps(made.to_json()))
    assert story.judged().outcome is NOT_MEASURED


@pytest.mark.parametrize("of", ["the slow one", "both", "none"])
@pytest.mark.parametrize("inventories", [(150.0,), (50.0, 150.0)])
def test_a_failed_record_that_names_another_gpu_is_no_repair(story, of, inventories):
    """The GPU that failed, by the ledger, is still in its node."""
    for k, at in enumerate(inventories, 1):
        story.inventory(k, "GPU-worker0-0", "GPU-worker0-1", at=at)
    story.measured(1, 650, 500)
    with edited(story.path(1)) as data:
        for k, entry in enumerate(data["ranks"]):
            if of == "both" or (k == 1 and of == "the slow one"):
                entry["device"]["uuid"] = f"GPU-before-{k}"
    story.measured(2)
    found = story.judged()
    assert (found.outcome, found.cause) == (NOT_MEASURED, Cause.REPETITION)
    assert any(note.startswith("attempt 1: FAIL 500") for note in found.notes)


@pytest.mark.parametrize("broken", [
    {"worst": 3}, {"value": [1]}, {"margin": "x"}, {"limit": None}, {"reason": 7},
    {"devices": {"planned": "x"}},
])  # fmt: skip
def test_a_line_of_other_types_is_a_failure_all_the_same(story, broken):
    story.measured(1, 500, 500)
    story.rewrite({**story.lines()[0], **broken})
    story.path(1).unlink()
    assert story.first().outcome is FAIL


# --- going on with a run


def test_a_new_attempt_does_not_take_the_number_of_a_lost_one(story):
    story.measured(1)
    story.measured(2, 500, 500)
    story.path(2).unlink()
    story.run.retest = True
    story.run.select([GEMM])
    assert story.run.expected["gemm", "worker0"] == 3
    story.run.retest = False
    story.run.select([GEMM])
    assert story.run.expected["gemm", "worker0"] == 2  # a failure is not measured again unasked


def replayed(story: Story, into: Path) -> Story:
    """The replay of a run, as `judge`, `verify` and `rejudge` make it."""
    data = previous_runs.load_run_json(story.root)
    data["ended"] = "1970-01-01T01:00:00+00:00"
    into.mkdir()
    made = Story(into, replayed=story.root, earlier=data)
    backend = ReplayBackend(RunOptions(cluster="replay", from_run=story.root, run_dir=into / "run"))
    backend.start(made.run)
    return made


@pytest.mark.parametrize("lost", [1, 4])
def test_a_replay_and_the_replay_of_a_replay_know_the_attempts(story, lost, tmp_path):
    story.measured(1, 500, 500)
    for attempt in (2, 3, 4):
        story.measured(attempt)
    story.measured(5, 500, 500) if lost == 4 else None
    story.path(5 if lost == 4 else 1).unlink()
    if lost == 1:
        story.path(3).unlink()
    expected = story.judged()
    assert expected.outcome is (FAIL if lost == 4 else NOT_MEASURED)
    one = replayed(story, tmp_path / "one")
    assert one.judged() == expected
    one.run.record_verdicts(one.first())
    two = replayed(one, tmp_path / "two")
    assert two.judged() == expected


def test_the_line_of_a_recertified_run_counts_too(story):
    story.measured(1, 500, 500)
    for attempt in (2, 3, 4):
        story.measured(attempt)
    kept = story.root / "recertified" / "before"
    kept.mkdir(parents=True)
    story.run.directory.ledger.rename(kept / "ledger.jsonl")
    story.run.write_heartbeat(recertifies=[{"run": "before", "nodes": [], "told": []}])
    story.path(1).unlink()
    assert story.judged().outcome is PASS
    story.path(3).unlink()
    assert story.judged().outcome is NOT_MEASURED


def test_a_run_without_a_ledger_is_judged_by_its_records(story):
    for attempt, rate in enumerate((500, 650, 650, 650), 1):
        story.measured(attempt, rate, rate, ledger=False)
    assert not story.run.directory.ledger.exists()
    assert story.judged().outcome is PASS


def test_a_finished_run_keeps_what_it_lost(story):
    story.measured(1, 500, 500)
    story.path(1).unlink()
    run: Run = story.run
    run.earlier = previous_runs.load_run_json(story.root)
    run.earlier["scope"] = [list(item.key) for item in run.items]
    run.load_ledger()
    run.finish()
    assert run.verdicts[GEMM].outcome is FAIL
