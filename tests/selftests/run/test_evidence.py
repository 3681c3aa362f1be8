"""What a run directory must hold to be judged: everything else is NOT_MEASURED, with the reason."""

# Length: one short test for each thing that can be wrong with a run directory.

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.backends import sweep
from fixtures.errors import ConfigError
from fixtures.processes import PROOF, proof_of, start_time
from fixtures.records.files import RecordError, append_line, json_lines, read_lines
from fixtures.records.model import Record
from fixtures.records.run_directory import RunDirectory, assemble
from fixtures.run import evidence as evidence_module
from fixtures.run import previous_runs
from fixtures.run.evidence import Evidence
from fixtures.run.judge_item import judge_item, siblings_of
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.model import Outcome, Verdict
from tests.selftests import support
from tests.selftests.support import NONCE, bf16, line, node_record, rank, record, result_line

pytestmark = pytest.mark.cpu

PEOPLE = support.population(2, 2, "H200 SXM")


def judged(
    limits: Thresholds, directory: RunDirectory, node: str = "worker0", **more: Any
) -> Verdict:
    """gemm.bf16 of a node, read from the run directory as the tests read it."""
    evidence = Evidence(directory, NONCE, **more)
    item = support.item("gemm.bf16", limits, PEOPLE, node)
    found = evidence.wait(item.workload, item.placement, until=lambda: True)
    return judge_item(item, found, thresholds=limits, population=PEOPLE)


def test_a_whole_record_of_this_run_is_judged(limits, directory):
    support.save(node_record(650, 650), directory)
    assert judged(limits, directory).outcome is Outcome.PASS


def test_no_record_is_not_measured(limits, directory):
    verdict = judged(limits, directory)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert verdict.reason == "not run: the run ended before it was measured"


Change = Callable[[dict[str, Any]], Any]


def set_(*path: Any, to: Any) -> Change:
    def change(data: dict[str, Any]) -> None:
        target: Any = data
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (set_("nonce", to="f" * 32), "is of another run"),
        (set_("schema", to=3), "schema 3, expected 1 or 2"),
        (set_("schema", to=None), "schema None, expected 1"),
        (set_("schema", to=True), "schema True, expected 1"),
        (set_("workload", to="allreduce"), "it is a record of allreduce@worker0.json"),
        (set_("placement", to="worker1"), "it is a record of gemm@worker1.json"),
        (set_("attempt", to=2), "it is a record of gemm@worker0.attempt2.json"),
        (set_("ranks", 0, "measurements", 0, "samples", 1, to=float("nan")), "is not finite"),
        (set_("ranks", 0, "measurements", 0, "checks", "overlap", to=float("inf")),
         "overlap: inf"),
        (set_("ranks", 0, "facts", to={"deep": [{"x": float("nan")}]}), "facts.deep[0].x: nan"),
        (set_("ranks", to=[]), "are not the 2 that were started"),
        (set_("ranks", 1, "rank", to=0), "ranks [0, 0] are not the 2"),
        (set_("world_size", to=4), "ranks [0, 1] are not the 4"),
        (lambda data: data.pop("ranks"), "lacks ranks"),
        (set_("extra", to=1), "unknown fields ['extra']"),
    ],
)  # fmt: skip
def test_a_record_that_cannot_be_trusted_is_not_measured(limits, directory, change, reason):
    with support.edited(support.save(node_record(650, 650), directory)) as data:
        change(data)
    verdict = judged(limits, directory)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert verdict.reason.startswith("unusable record: records/gemm@worker0.json: ")
    assert reason in verdict.reason
    assert "--resume" in verdict.next_step


@pytest.mark.parametrize("keep", [0, 1, 100, -2])
def test_a_truncated_record_is_not_measured(limits, directory, keep):
    path = support.save(node_record(650, 650), directory)
    path.write_bytes(path.read_bytes()[:keep])
    verdict = judged(limits, directory)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert "gemm@worker0.json is not JSON" in verdict.reason


@pytest.mark.parametrize(
    "text", [b"", b"null", b"[]", b"3", b'"x"', b"\xff\xfe", b"{}", b"\x80\x04K\x01."]
)
def test_a_file_that_is_no_record_is_not_measured(limits, directory, text):
    directory.record("gemm", "worker0").write_bytes(text)
    assert judged(limits, directory).outcome is Outcome.NOT_MEASURED


def test_a_record_that_cannot_be_read_is_not_measured(limits, directory):
    directory.record("gemm", "worker0").mkdir()
    verdict = judged(limits, directory)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert "is a folder, expected a regular file" in verdict.reason


def test_a_record_under_another_s_name_is_not_measured(limits, directory):
    support.save(node_record(650, 650), directory, name="gemm@worker1.json")
    assert judged(limits, directory, "worker1").outcome is Outcome.NOT_MEASURED


# --- attempts and reasons


def missing(reason: str, **more: Any) -> dict[str, Any]:
    return {
        "schema": 1, "nonce": NONCE, "workload": "gemm", "placement": "worker0",
        "kind": "rank died", "reason": reason, "next_step": "read the log", **more,
    }  # fmt: skip


def test_what_is_missing_says_why(limits, directory):
    append_line(directory.missing, missing("job 42"))
    verdict = judged(limits, directory)
    assert (verdict.reason, verdict.next_step) == ("rank died: job 42", "read the log")


def test_reasons_of_another_run_or_session_do_not_count(limits, directory):
    append_line(directory.missing, missing("old"))
    append_line(directory.missing, missing("foreign", nonce="f" * 32))
    assert "the run ended" in judged(limits, directory, missing_from=1).reason


def test_a_reason_that_comes_later_is_seen_and_the_file_is_read_once_a_change(
    directory, monkeypatch
):
    reads: list[Path] = []
    real = read_lines
    monkeypatch.setattr(evidence_module, "read_lines", lambda p: (reads.append(p), real(p))[1])
    evidence = Evidence(directory, NONCE)
    assert evidence.get("gemm", "worker0") is None
    for said in ("job 42", "job 43"):
        append_line(directory.missing, missing(said))
        for _ in range(5):
            found = evidence.get("gemm", "worker0")
            assert isinstance(found, dict)
            assert found["reason"] == said
    assert len(reads) == 2


def test_the_newest_attempt_counts(limits, directory):
    support.save(node_record(100, 100), directory)
    support.save(node_record(650, 650, attempt=2), directory)
    verdict = judged(limits, directory)
    assert (verdict.outcome, verdict.attempt) == (Outcome.PASS, 2)


def test_an_earlier_attempt_does_not_stand_for_the_one_that_is_waited_for(limits, directory):
    support.save(node_record(650, 650), directory)
    verdict = judged(limits, directory, expected={("gemm", "worker0"): 2})
    assert verdict.outcome is Outcome.NOT_MEASURED


def test_waiting_ends_when_the_record_comes(directory):
    evidence = Evidence(directory, NONCE)
    asked = []

    def until() -> bool:
        asked.append(None)
        if len(asked) == 2:
            support.save(node_record(650, 650), directory)
        return False

    found = evidence.wait("gemm", "worker0", until=until)
    assert isinstance(found, Record)
    assert len(asked) == 2


def test_a_record_that_comes_with_the_end_of_the_run_is_still_seen(directory):
    def until() -> bool:
        support.save(node_record(650, 650), directory)
        return True

    assert isinstance(Evidence(directory, NONCE).wait("gemm", "worker0", until=until), Record)


# --- siblings


def siblings(limits: Thresholds, directory: RunDirectory) -> list[float]:
    items = [support.item("gemm.bf16", limits, PEOPLE, node) for node in PEOPLE.nodes]
    evidence = Evidence(directory, NONCE)
    return list(siblings_of(items[0], items, evidence.get, limits).values)


def test_siblings_are_all_devices_of_the_fleet(limits, directory):
    support.save(node_record(650, 651), directory)
    support.save(node_record(652, 653, node="worker1"), directory)
    assert siblings(limits, directory) == [650, 651, 652, 653]


@pytest.mark.parametrize("samples", [[], [0.0], [-1.0, 650.0]])
def test_a_sibling_without_a_usable_value_spoils_nobody_else_s_verdict(limits, directory, samples):
    support.save(node_record(650, 651), directory)
    broken = record(
        rank(0, "worker1", bf16(samples)), rank(1, "worker1", bf16()), placement="worker1"
    )
    support.save(broken, directory)
    assert siblings(limits, directory) == [650, 651, 650]
    assert judged(limits, directory).outcome is Outcome.PASS
    assert judged(limits, directory, "worker1").outcome is Outcome.NOT_MEASURED


# --- rank lines


def assembled(*lines: Any) -> Record | None:
    return assemble(
        lines, run_id="r", nonce=NONCE, workload="gemm", placement="worker0", attempt=1, job={}
    )


WHOLE = (result_line(0, bf16()), result_line(1, bf16()))


def test_a_record_needs_the_result_of_every_rank():
    assert assembled() is None
    assert assembled(WHOLE[0]) is None
    found = assembled(*WHOLE)
    assert found is not None
    assert [r.rank for r in found.ranks] == [0, 1]


@pytest.mark.parametrize(
    "other",
    [{"nonce": "f" * 32}, {"schema": 2}, {"workload": "allreduce"}, {"placement": "worker1"},
     {"event": "started"}],
)  # fmt: skip
def test_lines_of_something_else_do_not_count(other):
    assert assembled(WHOLE[0], {**WHOLE[1], **other}) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rank": "1"}, "rank '1' of 2"),
        ({"world_size": None}, "of None"),
        ({"node": 7}, "node is 7"),
        ({"measurements": {}}, "measurements is {}"),
        ({"facts": None}, "facts is None"),
        ({"start": float("nan")}, "is not finite"),
    ],
)
def test_a_malformed_line_is_refused_not_guessed(change, said):
    with pytest.raises(RecordError, match=said):
        assembled(WHOLE[0], {**WHOLE[1], **change})


@pytest.mark.parametrize("name", ["node", "device", "measurements", "start"])
def test_a_line_without_what_a_record_needs_is_refused(name):
    torn = {k: v for k, v in WHOLE[1].items() if k != name}
    with pytest.raises(RecordError, match=f"lacks {name}"):
        assembled(WHOLE[0], torn)


def test_a_torn_last_line_is_left_out(tmp_path):
    path = tmp_path / "rank0.jsonl"
    support.say(path, [line("started", 0)])
    with path.open("a") as file:
        file.write('{"event": "resu')
    assert [one["event"] for one in read_lines(path)] == ["started"]


# --- salvage


def salvaged(directory: RunDirectory) -> int:
    return previous_runs.salvage(directory, run_id="r", nonce=NONCE, into=directory)


def test_complete_lines_that_nobody_assembled_become_a_record_once(limits, directory):
    for k, one in enumerate(WHOLE):
        support.say(directory.job("node-worker0") / f"rank{k}.jsonl", [line("started", k), one])
    assert salvaged(directory) == 1
    assert salvaged(directory) == 0, "the record is there"
    assert judged(limits, directory).outcome is Outcome.PASS


def test_an_incomplete_set_of_lines_is_salvaged_as_nothing(directory):
    support.say(directory.job("node-worker0") / "rank0.jsonl", [WHOLE[0]])
    assert salvaged(directory) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"placement": "../../escaped"},
        {"workload": "../../escaped"},
        {"workload": "a/b"},
        {"workload": None},
        {"placement": [1]},
        {"attempt": "two"},
        {"rank": None},
        {"device": 3},
    ],
)
def test_hostile_lines_write_nothing_outside_and_break_nothing(directory, tmp_path, change):
    hostile = [{**one, **change} for one in WHOLE]
    support.say(directory.job("node-worker0") / "rank0.jsonl", hostile)
    before = set(tmp_path.rglob("*"))
    salvaged(directory)
    written = set(tmp_path.rglob("*")) - before
    assert all(path.parent == directory.records for path in written)


def test_a_line_behind_a_torn_one_is_a_line_of_its_own(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b'{"n": 1}\n{"n": 2, "to')
    append_line(path, {"n": 3})
    assert [line["n"] for line in read_lines(path)] == [1, 3]


@pytest.mark.parametrize(
    "data",
    [{"a": []}, {"a": [1, {"b": None}], "c": {"d": [2]}, "e\n": "\udcff"}, {"x": [[], "y"]}],
)
def test_a_line_for_each_key_and_element_is_the_same_json(data):
    text = "".join(json_lines(data))
    assert json.loads(text) == data
    lists = [value for value in data.values() if isinstance(value, list) and value]
    assert text.count("\n") == 2 + len(data) + sum(len(found) + 1 for found in lists)


def test_a_number_that_is_none_gets_into_no_file():
    with pytest.raises(ValueError, match="not JSON compliant"):
        list(json_lines({"a": [float("nan")]}))


@pytest.mark.parametrize(
    ("destructive", "allowed", "refused"),
    [(True, False, True), (True, True, False), (False, False, False), (None, False, False)],
)
def test_a_destructive_run_goes_on_only_where_that_is_allowed_again(destructive, allowed, refused):
    run = {} if destructive is None else {"destructive": destructive}
    again = pytest.raises(ConfigError, match=r"--resume RUN: .* give --allow-destructive again")
    with again if refused else contextlib.nullcontext():
        previous_runs.refuse_destructive(run, Path("RUN"), allowed=allowed)


def test_a_run_by_hand_is_not_gone_on_with(tmp_path):
    run = {"schema": 2, "id": "x", "nonce": "n", "origin": "by-hand", "population": {}}
    (tmp_path / "run.json").write_text(json.dumps(run))
    assert previous_runs.load_run_json(tmp_path)["origin"] == "by-hand"
    with pytest.raises(ConfigError, match="was made by hand: start its workload again"):
        previous_runs.load_resumed(tmp_path)


@pytest.mark.parametrize("owner", [[1], "x", 0, None, {"host": socket.gethostname(), "pid": "x"},
                                   {"host": socket.gethostname(), "pid": None}])  # fmt: skip
def test_a_broken_run_beside_a_new_one_costs_it_nothing(owner, tmp_path):
    whole = {"schema": 2, "id": "a", "nonce": "b", "population": {}, "owner": owner}
    for number, content in enumerate([[], 3, {}, {"owner": owner}, whole]):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "run.json").write_text(json.dumps(content))
    assert sweep.sweep(tmp_path, slurm=False) == []


@pytest.mark.parametrize("written", ["[]", "{}", '{"pid": [], "start": "x"}', "not JSON"])
def test_of_a_dead_run_only_what_can_be_read_is_ended(written, tmp_path):
    """The process beside the one that nobody can read is ended all the same."""
    owner = {"host": socket.gethostname(), "pid": 2**22 + 1, "start": "1"}
    proof = {PROOF: proof_of("b", tmp_path / "run" / "jobs" / "b")}
    left = subprocess.Popen(["sleep", "1000"], env={**os.environ, **proof})
    jobs = {"a": written, "b": json.dumps({"pid": left.pid, "start": start_time(left.pid)})}
    for job, content in jobs.items():
        (tmp_path / "run" / "jobs" / job).mkdir(parents=True)
        (tmp_path / "run" / "jobs" / job / "process.json").write_text(content)
    run = {"schema": 2, "id": "a", "nonce": "b", "population": {}, "owner": owner}
    (tmp_path / "run" / "run.json").write_text(json.dumps(run))
    try:
        assert sweep.sweep(tmp_path, slurm=False) == [
            f"ended process {left.pid} that run a left behind"
        ]
        assert left.wait(timeout=30) == -signal.SIGKILL
    finally:
        left.kill()
        left.wait(timeout=30)
