"""Runs that are there already: what of them is trusted, and which of them can be continued."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.errors import ConfigError
from fixtures.paths import commit
from fixtures.records.evidence_digest import last_line
from fixtures.records.files import append_line, read_json
from fixtures.records.run_directory import RunDirectory
from fixtures.records.run_schema import RUN_SCHEMA
from fixtures.run import previous_runs
from tests.selftests import support
from tests.selftests.support import NONCE, result_line

pytestmark = pytest.mark.cpu

RUN = {"schema": RUN_SCHEMA, "id": "r", "nonce": NONCE, "population": {}}


def written(root: Path, data: Any) -> Path:
    root.mkdir(exist_ok=True)
    (root / "run.json").write_text(data if isinstance(data, str) else json.dumps(data))
    return root


# --- run.json


def test_a_run_json_is_read_as_it_is(tmp_path):
    assert previous_runs.load_run_json(written(tmp_path, RUN)) == RUN
    assert previous_runs.load_resumed(tmp_path) == RUN


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("{", "run.json"), ({**RUN, "schema": 99999}, "run.json"),
        *(({k: v for k, v in RUN.items() if k != name}, f"{name} is missing")
          for name in ("id", "nonce", "population")),
    ],
)  # fmt: skip
def test_a_run_json_that_cannot_be_relied_on_is_refused(tmp_path, data, why):
    with pytest.raises(ConfigError, match=why):
        previous_runs.load_run_json(written(tmp_path, data))


def test_a_directory_without_a_run_is_none(tmp_path):
    with pytest.raises(ConfigError, match="is not a run directory"):
        previous_runs.load_run_json(tmp_path)


def test_a_run_by_hand_is_judged_and_not_resumed(tmp_path):
    written(tmp_path, {**RUN, "origin": "by-hand"})
    assert previous_runs.load_run_json(tmp_path)["id"] == "r"
    with pytest.raises(ConfigError, match="made by hand"):
        previous_runs.load_resumed(tmp_path)


def test_a_verdict_is_read_where_there_is_one(tmp_path):
    with pytest.raises(ConfigError, match=r"verdict\.json"):
        previous_runs.read_verdict(tmp_path)
    (tmp_path / "verdict.json").write_text('{"verdict": "ACCEPTED"}')
    assert previous_runs.read_verdict(tmp_path) == {"verdict": "ACCEPTED"}


# --- going on with a run


def test_a_run_goes_on_only_with_what_it_began_with(tmp_path):
    limits, people = support.load(tmp_path), support.population(2)
    run: Any = SimpleNamespace(
        thresholds=limits, population=people, directory=RunDirectory(tmp_path)
    )
    then = {
        "contract": previous_runs.contract_json(limits.cluster), "commit": commit(),
        "thresholds": {"sha256": limits.sha256},
        "population": {**people.to_json(), "addresses": {"worker0": "x"}, "installed": ["y"]},
    }  # fmt: skip
    previous_runs.refuse_changed(then, run)
    changed = {
        "contract": {"contract": {}}, "limits": {"thresholds": {"sha256": "0"}},
        "commit": {"commit": "0"}, "population": {"population": {**people.to_json(), "nodes": []}},
    }  # fmt: skip
    for name, other in changed.items():
        with pytest.raises(ConfigError, match=f": {name} changed since"):
            previous_runs.refuse_changed({**then, **other}, run)


def owner(**more: Any) -> dict[str, Any]:
    return {"owner": {"host": socket.gethostname(), "pid": 4242, "start": 7, **more}}


def test_the_owner_of_a_run_is_alive_dead_or_unknown(monkeypatch):
    running: list[tuple[int, Any]] = []
    monkeypatch.setattr(previous_runs, "is_running", lambda pid, start: (pid, start) in running)
    state = previous_runs.owner_state
    assert state(owner()) == "dead"
    running.append((4242, 7))
    assert state(owner()) == "alive"
    assert state(owner(start=8)) == "dead"
    running.append((os.getpid(), 7))
    assert state(owner(pid=os.getpid())) == "dead"  # the number is ours now
    assert state(owner(host="elsewhere")) == "unknown"
    assert state(owner(pid="4242")) == "unknown"
    assert state({}) == state({"owner": 3}) == "unknown"
    with pytest.raises(ConfigError, match="still being run by process 4242"):
        previous_runs.refuse_owned(owner(), Path("/run"))
    for other in (owner(start=8), owner(host="elsewhere"), {}):
        previous_runs.refuse_owned(other, Path("/run"))


def test_leave_to_destroy_holds_for_one_session():
    with pytest.raises(ConfigError, match="--allow-destructive again"):
        previous_runs.refuse_destructive({"destructive": True}, Path("/run"), allowed=False)
    previous_runs.refuse_destructive({"destructive": True}, Path("/run"), allowed=True)
    previous_runs.refuse_destructive({"destructive": False}, Path("/run"), allowed=False)
    previous_runs.refuse_destructive({}, Path("/run"), allowed=True)


@pytest.mark.parametrize(
    ("run_json", "lines", "why"),
    [
        ({"origin": "by-hand"}, None, ""),
        ({}, None, "was killed"),
        ({"owner": {}}, ["verdict", "end"], "was killed"),
        ({"owner": {}, "ended": "2026"}, None, ""),
        ({"owner": {}, "ended": "2026"}, ["verdict", "end"], ""),
        ({"owner": {}, "ended": "2026"}, ["end", "verdict"], "ledger.jsonl that it was killed"),
        ({"owner": {}, "ended": "2026"}, ["end", "test"], "ledger.jsonl that it was killed"),
    ],
)
def test_a_run_has_ended_by_its_description_and_its_ledger(run_json, lines, why, tmp_path):
    source = RunDirectory(tmp_path)
    if lines is not None:
        source.ledger.write_text("".join(json.dumps({"event": e}) + "\n" for e in lines))
    said = previous_runs.why_unfinished(run_json, last_line(source))
    assert why in said
    assert bool(said) == bool(why)


# --- records from lines


def ranks_said(run: RunDirectory, job: str, *lines: dict[str, Any]) -> None:
    folder = run.job(job)
    folder.mkdir(parents=True, exist_ok=True)
    for line in lines:
        append_line(folder / f"rank{line.get('rank')}.jsonl", line)


@pytest.fixture
def source(tmp_path: Path) -> RunDirectory:
    return support.run_directory(tmp_path / "source")


@pytest.fixture
def into(tmp_path: Path) -> RunDirectory:
    return support.run_directory(tmp_path / "into")


def salvaged(source: RunDirectory, into: RunDirectory) -> tuple[int, list[str]]:
    made = previous_runs.salvage(source, run_id="r", nonce=NONCE, into=into)
    return made, sorted(p.name for p in into.records.iterdir())


def test_what_ranks_began_is_known_by_their_lines(source):
    ranks_said(
        source, "a", {**result_line(0), "event": "started"}, {**result_line(1), "workload": "copy"},
        {**result_line(2), "nonce": "f" * 32, "workload": "foreign"},
        {k: v for k, v in result_line(3).items() if k != "placement"},
        {k: v for k, v in result_line(4).items() if k != "workload"},
    )  # fmt: skip
    assert previous_runs.started_records(source, NONCE) == {
        ("gemm", "worker0"), ("copy", "worker0"),
    }  # fmt: skip


def test_a_complete_set_of_lines_becomes_a_record_once(source, into):
    ranks_said(source, "a", result_line(0), result_line(1))
    (source.job("a") / "job.json").write_text('{"id": "42"}')
    assert salvaged(source, into) == (1, ["gemm@worker0.json"])
    record = read_json(into.record("gemm", "worker0"))
    assert record["job"] == {"name": "a", "id": "42"}
    assert record["attempt"] == 1
    assert salvaged(source, into) == (0, ["gemm@worker0.json"])


def test_a_later_attempt_stands_beside_the_first(source, into):
    ranks_said(source, "a", result_line(0), result_line(1))
    salvaged(source, into)
    second = [{**result_line(k), "attempt": 2} for k in range(2)]
    ranks_said(source, "b", *second)
    made, names = salvaged(source, into)
    assert (made, len(names)) == (1, 2)
    assert read_json(into.record("gemm", "worker0", 2))["attempt"] == 2


def test_of_a_job_with_a_malformed_line_nothing_is_salvaged(source, into):
    ranks_said(source, "a", *({**result_line(k), "attempt": "x"} for k in range(2)))
    assert salvaged(source, into)[0] == 0


def test_results_of_two_workloads_become_two_records(source, into):
    lines = [{**result_line(k), "workload": w} for w in ("gemm", "copy") for k in range(2)]
    lines[2] = {**lines[2], "attempt": 1}
    ranks_said(source, "a", *lines)
    assert salvaged(source, into) == (2, ["copy@worker0.json", "gemm@worker0.json"])


def test_a_rank_that_failed_in_its_part_has_no_result_in_it(source, into):
    failed = {**result_line(1), "event": "error"}
    ranks_said(source, "a", result_line(0), result_line(1), failed)
    assert salvaged(source, into) == (0, [])
    # An error in another workload, or of another rank's part, is nothing to this one.
    other = {**result_line(1), "event": "error", "workload": "copy"}
    ranks_said(source, "b", result_line(0), result_line(1), other)
    assert salvaged(source, into)[0] == 1


@pytest.mark.parametrize(
    "wrong",
    [{"event": "started"}, {"workload": "../x"}, {"placement": "a/b"}, {"workload": "a b"}],
)
def test_lines_that_are_no_results_or_name_no_file_make_no_record(source, into, wrong):
    ranks_said(source, "a", *({**result_line(k), **wrong} for k in range(2)))
    assert salvaged(source, into) == (0, [])


def test_half_of_the_ranks_is_no_record(source, into):
    ranks_said(source, "a", result_line(0))
    assert salvaged(source, into) == (0, [])


# --- a copy for a replay


def test_a_replay_has_a_copy_of_all_evidence(source, into):
    source.guests.mkdir()
    files = {
        source.records / "a@b.json": b"{}", source.missing: b"m\n", source.located: b"l\n",
        source.guests / "n1.x": b"g",
    }  # fmt: skip
    for path, data in files.items():
        path.write_bytes(data)
    source.drills.write_bytes(b"d")
    (source.records / "folder.json").mkdir()
    previous_runs.copy_for_replay(source, into)
    for path, data in {**files, source.drills: b"d"}.items():
        assert (into.root / path.relative_to(source.root)).read_bytes() == data
    assert (into.records / "folder.json").is_dir()


def test_a_replay_of_nothing_has_no_records(source, into):
    previous_runs.copy_for_replay(source, into)
    assert list(into.records.iterdir()) == []
