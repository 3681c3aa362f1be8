"""One submission: its state, its lines, and jobs of more ranks than a folder should hold files."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from fixtures.jobs import submission as submission_module
from fixtures.jobs.submission import Submission
from fixtures.jobs.watcher import JobState
from fixtures.plan.jobs import Victim
from fixtures.records import run_directory
from fixtures.records.files import Tail, append_line
from fixtures.records.run_directory import (
    FILES_PER_FOLDER,
    RunDirectory,
    rank_files,
    rank_folder,
)
from fixtures.run import previous_runs
from fixtures.workloads.runtime.identity import Identity
from fixtures.workloads.runtime.ranks import Ranks
from tests.selftests import support

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize("ranks", [8, 1000, 1001, 8192, 81920])
def test_no_folder_gets_more_files_than_it_should(ranks: int, tmp_path: Path) -> None:
    folders = [rank_folder(tmp_path, k, ranks) for k in range(ranks)]
    assert max(folders.count(f) for f in set(folders)) <= FILES_PER_FOLDER
    assert len(set(folders)) == -(-ranks // FILES_PER_FOLDER)
    assert (folders[0] == tmp_path) == (ranks <= FILES_PER_FOLDER)


def test_a_rank_and_the_login_side_agree_where_its_file_is(tmp_path: Path) -> None:
    spec = {"nodes": ["n0"], "ranks_per_node": 8, "directory": str(tmp_path), "device": "cpu"}
    for world_size in (8, 8192):
        identity = Identity(rank=7, local_rank=7, world_size=world_size, node="n0")
        ranks = Ranks(spec, identity)
        assert ranks.folder == rank_folder(tmp_path, 7, world_size)
        assert ranks.directory == tmp_path


def test_records_are_made_again_of_the_lines_of_a_large_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_directory, "FILES_PER_FOLDER", 2)
    source, into = RunDirectory(tmp_path / "a"), RunDirectory(tmp_path / "b")
    record = json.loads((support.DATA / "h200-1x4" / "records" / "gemm@node0.json").read_text())
    about = {name: record[name] for name in ("nonce", "workload", "placement", "attempt")}
    for rank in record["ranks"]:
        folder = rank_folder(source.job("all"), rank["rank"], 4)
        folder.mkdir(parents=True, exist_ok=True)
        line = {
            "schema": 1,
            "event": "result",
            "world_size": 4,
            "job": "1",
            "time": 1.0,
            **about,
            **rank,
        }
        append_line(folder / f"rank{rank['rank']}.jsonl", line)
    assert len(rank_files(source.job("all"))) == len(source.rank_files()) == 4
    assert previous_runs.started_records(source, record["nonce"]) == {("gemm", "node0")}
    into.records.mkdir(parents=True)
    made = previous_runs.salvage(source, run_id="r", nonce=record["nonce"], into=into)
    assert made == 1
    again = json.loads(into.record("gemm", "node0").read_text())
    assert [r["rank"] for r in again["ranks"]] == [0, 1, 2, 3]


def submission(folder: Path, files: int, state: str) -> Submission:
    tails = []
    for k in range(files):
        append_line(folder / f"rank{k}.jsonl", {"rank": k})
        tails.append(Tail(folder / f"rank{k}.jsonl"))
    job = SimpleNamespace(victim=None)
    made = Submission(job=job, name="x", directory=folder, number=0, tails=tails)  # type: ignore[arg-type]
    made.parts["1"] = JobState(state)
    return made


def heard(s: Submission) -> list[int]:
    return [line["rank"] for _, tail in s.next_files(2) for line in tail.read()]


def test_of_one_large_job_all_files_take_their_turns(tmp_path: Path) -> None:
    s = submission(tmp_path, 5, "RUNNING")
    turns = [heard(s) for _ in range(4)]
    assert turns == [[0, 1], [2, 3], [4], []]
    append_line(tmp_path / "rank3.jsonl", {"rank": 3})
    late = [k for _ in range(3) for k in heard(s)]
    assert late == [3]


def test_of_a_large_job_that_has_ended_nothing_is_left_unread(tmp_path: Path) -> None:
    s = submission(tmp_path, 5, "FAILED")
    assert heard(s) == [0, 1, 2, 3, 4]


# --- what is known of a submission

NOW = 10_000.0


def submitted(*states: JobState | str, victim: Victim | None = None) -> Submission:
    """A submission of as many Slurm jobs, in these states."""
    job = SimpleNamespace(victim=victim)
    made = Submission(job=job, name="x", directory=Path(), number=1)  # type: ignore[arg-type]
    for k, state in enumerate(states, 1):
        made.parts[str(k)] = JobState(state) if isinstance(state, str) else state
    return made


def test_its_state_is_what_is_wrong_with_any_part_else_the_liveliest() -> None:
    held = JobState("PENDING", "(PartitionConfig)")
    for states, expected in (
        ((), "SUBMITTED"),
        (("PENDING", "RUNNING"), "RUNNING"),
        (("COMPLETING", "PENDING"), "COMPLETING"),
        (("COMPLETED", "PENDING"), "PENDING"),
        (("COMPLETED", "COMPLETED"), "COMPLETED"),
        (("RUNNING", "FAILED"), "FAILED"),
        (("RUNNING", held), "PENDING"),
        (("COMPLETED", "RUNNING", "CANCELLED"), "CANCELLED"),
    ):
        assert submitted(*states).state.state == expected, states
    assert submitted("RUNNING", "RUNNING").job_id == "1,2"


def test_its_parts_take_places_in_the_queue_until_they_have_ended_or_are_given_up() -> None:
    s = submitted("RUNNING", "FAILED", "PENDING")
    assert (s.queued, s.left_slurm) == (2, False)
    s.given_up = True
    assert (s.queued, s.left_slurm) == (0, False)
    assert (submitted("FAILED").queued, submitted("FAILED").left_slurm) == (0, True)


def test_a_part_keeps_its_state_where_slurm_says_nothing() -> None:
    s = submitted("RUNNING", "RUNNING")
    s.update({"1": JobState("FAILED"), "9": JobState("RUNNING")})
    assert [p.state for p in s.parts.values()] == ["FAILED", "RUNNING"]
    s.update({})
    assert [p.state for p in s.parts.values()] == ["FAILED", "RUNNING"]
    assert s.living == ["2"]
    assert list(s.parts) == ["1", "2"]


def test_nodes_of_a_victim_are_awaited_after_the_fault_and_after_the_end() -> None:
    s = submitted("RUNNING", victim=Victim(fault_timeout_s=60))
    assert s.nodes_awaited_until(5) == 60
    s.marks["fault"] = NOW
    assert s.nodes_awaited_until(5) == NOW + 60
    s.closed_since = NOW + 58
    assert s.nodes_awaited_until(5) == NOW + 63


def test_lines_give_the_first_marks_the_culprit_and_the_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=NOW)
    monkeypatch.setattr(submission_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    s = submitted("RUNNING")
    s.receive([{"event": "started", "rank": 0}])
    assert (s.first_line_since, s.marks, s.culprit, s.times) == (NOW, {}, None, None)
    clock.now += 1
    s.receive([
        {"event": "fault", "rank": "3", "node": "n1", "time": 20}, {"event": "x", "time": 10},
    ])  # fmt: skip
    clock.now += 1
    s.receive([{"event": "regained", "rank": 1, "node": "n2", "time": 15}])
    s.receive([{"event": "fault", "rank": 3, "node": "n1", "time": 30}])
    assert s.marks == {"fault": NOW + 1, "regained": NOW + 2}
    assert s.culprit == (3, "n1")
    assert s.times == (10, 30)
    assert s.first_line_since == NOW
    assert len(s.lines) == 5
    s.release()
    assert (s.lines, s.tails) == ([], [])


def test_of_a_settled_workload_only_who_wrote_is_kept() -> None:
    s = submitted("RUNNING")
    s.pending = {"gemm", "copy"}
    bulk = {"measurements": [1], "facts": {}, "device": {}, "provenance": {}}
    s.lines = [
        {"event": "result", "workload": "gemm", "rank": 0, **bulk},
        {"event": "result", "workload": "copy", "rank": 0, **bulk},
        {"event": "started", "workload": "gemm", "rank": 0, "facts": {"a": 1}},
    ]
    s.settle("gemm")
    assert s.pending == {"copy"}
    assert s.lines[0] == {"event": "result", "workload": "gemm", "rank": 0}
    assert "measurements" in s.lines[1]
    assert s.lines[2]["facts"] == {"a": 1}


def test_of_few_files_all_are_read_at_once(tmp_path: Path) -> None:
    s = submission(tmp_path, 2, "RUNNING")
    assert heard(s) == [0, 1]
    assert s.next_tail == 0
