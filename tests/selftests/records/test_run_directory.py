"""Paths of a run directory, its manifest, and records made of the ranks' lines."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fixtures.records import run_directory
from fixtures.records.files import RecordError
from fixtures.records.foreign_files import linked_beside
from fixtures.records.run_directory import (
    RunDirectory,
    assemble,
    attempt_of,
    changed_file,
    guest_file,
    rank_files,
    rank_folder,
    read_manifest,
)
from tests.selftests.support import NONCE, bf16, line, result_line

pytestmark = pytest.mark.cpu

PATHS = {
    "run_json": "run.json", "ledger": "ledger.jsonl", "verdict": "verdict.json",
    "verdict_rest": "verdict-rest.parquet", "jobs": "jobs", "records": "records",
    "missing": "jobs/missing.jsonl", "located": "jobs/located.json", "drills": "drills.json",
    "recertified": "recertified", "limits": "limits.csv", "guests": "guests",
    "manifest": "manifest.sha256",
}  # fmt: skip
"""Names that other tools rely on."""


def test_the_names_in_a_run_directory_stay():
    run = RunDirectory(Path("/run"))
    assert {name: str(getattr(run, name).relative_to("/run")) for name in PATHS} == PATHS
    assert run.job("node") == Path("/run/jobs/node")
    assert run.record("gemm", "a", 2) == Path("/run/records/gemm@a.attempt2.json")
    assert guest_file(Path("/run"), "x.json") == Path("/run/guests/x.json")


def put(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_run_json_is_read_without_its_scope(tmp_path):
    run = RunDirectory(tmp_path)
    put(run.run_json, '{"id": "a", "scope": [1]}')
    assert run.read_run() == {"id": "a"}
    put(run.run_json, "[1]")
    assert run.read_run() == [1]


def test_a_large_jobs_files_are_spread_over_folders(tmp_path):
    for rank, size, folder in ((999, 1000, ""), (0, 1001, "ranks000"), (999, 1001, "ranks000"),
                               (1000, 1001, "ranks001"), (2500, 4096, "ranks002")):  # fmt: skip
        assert rank_folder(tmp_path, rank, size) == tmp_path / folder
    run = RunDirectory(tmp_path)
    one = put(run.job("b") / "rank0.jsonl")
    two = put(run.job("a") / "ranks000" / "rank7.jsonl")
    put(run.job("a") / "spec.json")
    assert run.rank_files() == [two, one]
    assert rank_files(run.job("b")) == [one]


def test_the_newest_attempt_is_found_where_some_are_missing(tmp_path):
    run = RunDirectory(tmp_path)
    assert run.latest_attempt("gemm", "a") == 0
    run.records.mkdir()
    assert run.latest_attempt("gemm", "a") == 0
    names = ("gemm@a.attempt3.json", "gemm@a.json", "gemm@b.json", "gemm@a.txt")
    for n, name in enumerate(names):
        put(run.records / name)
        os.utime(run.records, ns=(n, n))  # each change of the folder has a time of its own
    assert run.latest_attempt("gemm", "a") == 3
    assert run.latest_attempt("gemm", "b") == 1
    assert run.latest_attempt("gemm", "c") == 0
    put(run.records / "gemm@a.attempt4.json")
    put(run.records / "gemm@a.attempt5.json")
    os.utime(run.records, ns=(3, 3))  # as if the time had not gone on
    assert run.latest_attempt("gemm", "a") == 5


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("gemm@a.json", ("gemm", "a", 1)), ("gemm@a.attempt2.json", ("gemm", "a", 2)),
        ("gemm@a.attempt9999.json", ("gemm", "a", 9999)),
        ("peers@a--b.json", ("peers", "a--b", 1)), ("gemm@n@1.json", ("gemm", "n@1", 1)),
        ("gemm.json", None), ("gemm@a.txt", None), ("gemm@a.json.part", None), ("@a/b.json", None),
    ],
)  # fmt: skip
def test_the_name_of_a_record_says_workload_placement_and_attempt(name, found):
    assert attempt_of(name) == found


# --- the manifest


def test_a_name_is_escaped_as_sha256sum_does(tmp_path):
    run = RunDirectory(tmp_path)
    run.run_json.write_text("{}")
    run.records.mkdir()
    for name in ("a\\b.json", "a\\nb.json", "plain.json"):
        (run.records / name).write_text(name)
    (run.records / "link.json").symlink_to(run.run_json)
    run.write_manifest()
    check = ["sha256sum", "--check", "--strict", "--quiet", "manifest.sha256"]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode == 0
    assert set(read_manifest(run.manifest)) == {
        "run.json", "records/a\\b.json", "records/a\\nb.json", "records/plain.json"
    }  # fmt: skip
    assert all(map(run.is_evidence, read_manifest(run.manifest)))
    assert not any(map(run.is_evidence, ("report.html", "records", "elsewhere/run.json")))
    assert changed_file(run.manifest, tmp_path) == ""


def test_the_manifest_covers_the_evidence_and_finds_a_change(tmp_path):
    run = RunDirectory(tmp_path)
    names = ("run.json", "limits.csv", "ledger.jsonl", "jobs/a/rank0.jsonl", "records/x.json",
             "guests/g.json", "recertified/r/run.json")  # fmt: skip
    for name in names:
        put(tmp_path / name, name)
    put(tmp_path / "verdict.json")
    assert [str(p.relative_to(tmp_path)) for p in run.evidence()[0]] == sorted(names)
    (tmp_path / "jobs" / "a" / "link").symlink_to("rank0.jsonl")
    assert len(run.evidence()[0]) == len(names), "a link to a file beside it is none of its own"
    run.write_manifest()
    held = dict(row.split("  ")[::-1] for row in run.manifest.read_text().splitlines())
    assert held["run.json"] == hashlib.sha256(b"run.json").hexdigest()
    assert set(held) == set(names)
    assert changed_file(run.manifest, tmp_path) == ""
    put(tmp_path / "records/x.json", "y")
    assert changed_file(run.manifest, tmp_path) == (
        "records/x.json: changed since manifest.sha256 was written"
    )
    (tmp_path / "records/x.json").unlink()
    missing = "records/x.json: missing, though manifest.sha256 names it"
    assert changed_file(run.manifest, tmp_path) == missing
    other = tmp_path / "other"
    put(other / "records/x.json", "records/x.json")
    assert changed_file(run.manifest, tmp_path, other) == ""


def test_a_link_stands_for_the_file_of_its_name_in_the_same_folder(tmp_path):
    file = put(tmp_path / "file")
    link, moved, broken, itself = (tmp_path / n for n in ("link", "moved", "broken", "itself"))
    link.symlink_to("file")
    moved.symlink_to("/gone/before/file")
    broken.symlink_to("none")
    itself.symlink_to("itself")
    assert linked_beside(file) is None
    assert linked_beside(link) == linked_beside(moved) == file
    assert linked_beside(broken) is None
    assert linked_beside(itself) is None
    elsewhere = tmp_path / "folder" / "file"
    elsewhere.parent.mkdir()
    elsewhere.symlink_to(file)
    assert linked_beside(elsewhere) is None


def test_each_run_has_a_nonce_of_its_own():
    first, second = run_directory.new_nonce(), run_directory.new_nonce()
    assert first != second
    assert len(bytes.fromhex(first)) == 16


# --- records


def made(lines: list[Any], **given: Any) -> Any:
    fields: dict[str, Any] = {
        "run_id": "r", "nonce": NONCE, "workload": "gemm", "placement": "worker0", "attempt": 1,
        "job": {"id": "42"},
    }  # fmt: skip
    return assemble(lines, **fields | given)


def result(k: int, **more: Any) -> Any:
    return {**result_line(k, bf16()), **more}


def test_a_record_is_made_of_one_result_of_each_rank():
    found = made([line("started", 0), result(1), result(0, provenance={"python": "3"})])
    assert [r.rank for r in found.ranks] == [0, 1]
    assert (found.nodes, found.world_size, found.job) == (["worker0"], 2, {"id": "42"})
    assert (found.run_id, found.nonce, found.attempt) == ("r", NONCE, 1)
    assert found.provenance == {"python": "3"}
    assert made([result(0)]) is None
    assert made([]) is None


def test_lines_of_another_run_or_workload_are_not_taken():
    good = [result(0), result(1)]
    for name, other in (
        ("event", "error"), ("schema", 2), ("nonce", "x"), ("workload", "hbm"),
        ("placement", "worker1"),
    ):  # fmt: skip
        assert made([good[0], {**good[1], name: other}]) is None, name
        assert made([*good, {**result(0), name: other}]) is not None, name


def test_a_later_attempt_replaces_an_earlier_one():
    first = [result(0), result(1)]
    again = [result(k, attempt=2, node="worker1") for k in (0, 1)]
    assert made([*first, *again]).nodes == ["worker1"]
    assert made([*again, *first]).nodes == ["worker1"]
    assert made([*first, again[0]]) is None, "it has begun"
    assert made([result(k, attempt=None) for k in (0, 1)]) is not None
    no_number = [result(k, attempt="x", node="worker9") for k in (0, 1)]
    assert made([*no_number, *first]).nodes == ["worker0"]


def test_lines_that_contradict_each_other_are_refused():
    for lines, says in (
        ([result(0), result(0)], "two result lines of gemm by rank 0"),
        ([result(0, job="1"), result(1, job="2")], "are of 2 different starts"),
        ([result(0), result(1, world_size=3)], "are of 2 different starts"),
        ([result(0, rank="0")], "rank '0' of 2"),
        ([result(0, world_size="2")], "rank 0 of '2'"),
        ([result(0, rank=True)], "rank True of 2"),
        ([result(0), result(1, facts=3)], "result line of gemm: facts is 3"),
    ):
        with pytest.raises(RecordError, match=says):
            made(lines)
    assert made([result(0), result(2)]) is None


def test_what_is_no_regular_file_is_left_out_of_the_manifest_and_named(tmp_path, monkeypatch):
    run = RunDirectory(tmp_path / "run")
    for name in ("run.json", "jobs/a/rank0.jsonl", "jobs/a/secret", "outside/x"):
        put(run.root / name, name)
    outside = put(tmp_path / "outside" / "y").parent
    (run.jobs / "x").symlink_to(outside)
    (run.jobs / "a" / "link").symlink_to(outside / "y")
    (run.jobs / "a" / "mem").symlink_to("/proc/self/mem")
    os.mkfifo(run.jobs / "a" / "pipe")
    for name in (b"\xff", b"new\nline", "sep\u2028".encode()):
        (run.jobs / os.fsdecode(name)).touch()
    run.records.symlink_to(outside)
    real = os.open

    def denied(path, *args, **kwargs):
        if str(path).endswith("secret"):
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", denied)
    left_out = run.write_manifest()
    names = [row.partition("  ")[2] for row in run.manifest.read_text().splitlines()]
    assert names == ["jobs/a/rank0.jsonl", "run.json"]
    assert sorted(left_out) == sorted(
        [
            "jobs/\\udcff: a name that is not one line of text",
            f"jobs/a/link: is a link to {outside / 'y'}, expected a regular file",
            "jobs/a/mem: is a link to /proc/self/mem, expected a regular file",
            "jobs/a/pipe: is a FIFO, expected a regular file",
            "jobs/a/secret: Permission denied",
            "jobs/new\\nline: a name that is not one line of text",
            "jobs/sep\\u2028: a name that is not one line of text",
            "jobs/x: a linked folder, which is not followed",
            "records: is a link, expected a folder",
        ]
    )
    assert sorted(run.evidence()[1]) == sorted(set(left_out) - {"jobs/a/secret: Permission denied"})


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "jobs/../../outside", "jobs//x"])
def test_a_manifest_that_leads_out_of_the_run_is_refused(tmp_path, name):
    run = RunDirectory(tmp_path / "run")
    put(tmp_path / "outside", "x")
    put(run.manifest, f"{hashlib.sha256(b'x').hexdigest()}  {name}\n")
    assert changed_file(run.manifest, run.root) == (
        f"{name}: manifest.sha256 names what is not of the run"
    )


def test_a_number_of_ranks_that_no_job_has_costs_no_memory(tmp_path):
    lines = [{**result_line(k), "world_size": 10**9} for k in range(2)]
    about = {"run_id": "r", "nonce": NONCE, "workload": "gemm", "placement": "worker0"}
    assert assemble(lines, **about, attempt=1, job={}) is None
