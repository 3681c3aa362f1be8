"""What a run ended on is in its ledger: one changed source is seen whatever else was made anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.evidence_digest import STATED, evidence_sha256, last_line
from fixtures.records.evidence_digest import other_evidence as differing
from fixtures.records.files import append_line
from fixtures.records.run_directory import RunDirectory

pytestmark = pytest.mark.cpu

CHANGED = "not that on which the run ended"


def other_evidence(run: RunDirectory) -> str:
    return differing(run, last_line(run))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path)
    for folder in (directory.records, directory.missing.parent, directory.guests):
        folder.mkdir(parents=True)
    for name in ("gemm@n1.json", "gemm@n2.json"):
        (directory.records / name).write_text(json.dumps({"of": name}))
    directory.missing.write_text("{}\n")
    directory.located.write_text('{"culprits": ["n2"]}')
    (directory.guests / "fio.json").write_text("{}")
    stated = {name: [name] for name in STATED}
    directory.run_json.write_text(json.dumps({"id": "r1", "ended": "later", **stated}))
    end(directory)
    assert other_evidence(directory) == ""
    return directory


def end(directory: RunDirectory, **more: Any) -> None:
    append_line(directory.ledger, {"event": "verdict", "criterion": "gemm"})
    digest = evidence_sha256(directory)
    append_line(directory.ledger, {"event": "end", "evidence_sha256": digest, **more})


def _exchange(run: RunDirectory) -> None:
    one, other = sorted(run.records.iterdir())
    texts = one.read_text(), other.read_text()
    one.write_text(texts[1])
    other.write_text(texts[0])


def _state(name: str) -> Callable[[RunDirectory], None]:
    def change(run: RunDirectory) -> None:
        run.run_json.write_text(json.dumps({**run.read_run(), name: ["other"]}))

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda run: (run.records / "gemm@n1.json").write_text("{}"),
        lambda run: (run.records / "gemm@n1.json").unlink(),
        lambda run: (run.records / "gemm@n3.json").write_text("{}"), _exchange,
        lambda run: run.missing.write_text(""), lambda run: run.missing.unlink(),
        lambda run: run.located.write_text("{}"), lambda run: run.located.unlink(),
        lambda run: (run.guests / "fio.json").write_text("[]"),
        lambda run: (run.guests / "other.json").write_text("{}"),
        *map(_state, STATED),
    ],
    ids=["changed", "removed", "added", "exchanged", "no reasons", "reasons removed", "located",
         "located removed", "guest", "guest added", *STATED],
)  # fmt: skip
def test_one_source_that_was_changed_is_seen(run, change):
    change(run)
    assert CHANGED in other_evidence(run)


def test_what_changes_while_a_run_goes_on_is_not_evidence(run):
    run.run_json.write_text(json.dumps({**run.read_run(), "owner": {"heartbeat": 1}, "ended": 7}))
    (run.records.parent / "report.html").write_text("page")
    (run.missing.parent / "rank0.jsonl").write_text("{}\n")
    assert other_evidence(run) == ""


@pytest.mark.parametrize(
    "last",
    [{"event": "verdict", "criterion": "gemm"}, {"event": "test", "text": "\"end\""},
     {"event": "end"}, {"event": "end", "evidence_sha256": None}],
    ids=["killed", "another event", "an earlier version", "could not be read"],
)  # fmt: skip
def test_where_no_end_says_what_it_was_on_nothing_is_compared(run, last):
    append_line(run.ledger, last)
    run.missing.unlink()
    assert other_evidence(run) == ""
    run.ledger.unlink()
    assert other_evidence(run) == ""


@pytest.mark.parametrize("text", ["\n", "srun: error\n", "{\n", "[]\n", "\n\n{}x\n"])
def test_a_line_that_no_suite_wrote_hides_no_end(run, text):
    with run.ledger.open("a") as file:
        file.write(text)
    assert other_evidence(run) == ""
    run.missing.unlink()
    assert CHANGED in other_evidence(run)


def test_the_last_end_counts(run):
    run.missing.write_text("{}\n{}\n")
    assert CHANGED in other_evidence(run)
    end(run)
    assert other_evidence(run) == ""
    with run.ledger.open("a") as file:
        file.write('{"event": "verdi')  # its writer died
    assert other_evidence(run) == ""
