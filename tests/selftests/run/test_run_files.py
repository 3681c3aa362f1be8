"""What the owner of a run writes into its directory."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.errors import ConfigError
from fixtures.records.files import read_lines
from fixtures.records.run_directory import RunDirectory
from fixtures.redaction import REMOVED, Known
from fixtures.run import run_files
from fixtures.run.run_files import MAX_TEXT, RunFiles
from fixtures.verdict.model import Outcome, Verdict

pytestmark = pytest.mark.cpu


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "run")


@pytest.fixture
def files(directory: RunDirectory) -> RunFiles:
    made = RunFiles(directory)
    assert made.make() == 0
    return made


def verdict(subject: str = "n1") -> Verdict:
    return Verdict(criterion="gemm.bf16", title="Fast", subject=subject, outcome=Outcome.PASS)


def test_a_run_directory_is_its_owner_s_alone_and_keeps_what_is_missing(files, directory):
    assert directory.root.stat().st_mode & 0o777 == 0o700
    assert directory.jobs.is_dir()
    assert directory.records.is_dir()
    directory.missing.write_text('{"a": 1}\n{"b": 2}\n')
    assert files.count_missing() == 2
    (directory.root / "verdict.json").write_text("{}")
    assert files.make() == 2
    assert not (directory.root / "verdict.json").exists()


def test_a_directory_that_cannot_be_made_is_named_with_the_reason(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--run-dir .*/file/run: Not a directory"):
        RunFiles(RunDirectory(tmp_path / "file" / "run")).make()


def test_verdicts_of_the_ledger_are_read_again_and_all_else_is_passed_over(files, directory):
    files.append_verdicts([verdict("n1"), verdict("n2")])
    files.append_test("tests/x.py::test_y", "failed", "text", verdict("n1"))
    lines = list(read_lines(directory.ledger))
    (more := dict(lines[0])).update(subject="n3", of_a_later_version=1)
    with directory.ledger.open("a") as file:
        file.write(json.dumps(more) + "\n")
        for torn in ({"criterion": "half", "outcome": "PASS"}, {"criterion": "no outcome"}):
            file.write(json.dumps({"event": "verdict", **torn}) + "\n")
    found = list(files.ledger())
    assert [v.subject for v in found] == ["n1", "n2", "n3"]
    assert found[0] == verdict("n1")


def test_of_the_text_of_a_test_the_last_20000_characters_are_kept(files, directory):
    files.append_test("a", "failed", "x" + "y" * 20_000, None)
    files.append_test("b", "error", "short", verdict())
    first, second = read_lines(directory.ledger)
    assert first["text"] == "y" * 20_000
    assert len(first["text"]) == MAX_TEXT
    assert "criterion" not in first
    assert (second["text"], second["criterion"], second["subject"]) == ("short", "gemm.bf16", "n1")


def test_the_ledger_is_on_the_disk_once_a_second(files, monkeypatch):
    durable = []
    monkeypatch.setattr(
        run_files, "append_lines", lambda path, lines, durable: flags.append(durable)
    )
    flags = durable
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(run_files, "time", SimpleNamespace(time=lambda: clock.now))
    for now in (1000.0, 1000.5, 1000.9, 1001.0, 1001.5, 999.0):
        clock.now = now
        files.append_verdicts([verdict()])
    # Also when the clock was set back.
    assert durable == [True, False, False, True, False, True]


def job(directory: RunDirectory, name: str, **more: Any) -> None:
    folder = directory.job(name)
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps({"name": name, **more}))


def test_hours_are_those_of_jobs_with_beginning_and_end(files, directory):
    job(directory, "a", started=100.0, ended=3700.0, gpus=4)
    job(directory, "b", started=3600.0, ended=5500.0)
    job(directory, "c", started=1.0, ended=None, gpus=8)
    job(directory, "d", started=None, ended=9.0, gpus=8)
    (directory.job("e")).mkdir()
    (directory.job("e") / "job.json").write_text("{")
    assert files.durations() == {
        "jobs": {"a": [100.0, 3700.0], "b": [3600.0, 5500.0]}, "union_s": 5400.0, "gpu_hours": 4.0,
    }  # fmt: skip


def test_results_of_the_end_stand_in_the_ledger_and_node_lists(files, directory):
    files.append_end(
        SimpleNamespace(
            verdict="ACCEPTED",
            exit_status=0,
            reasons=["r"],
            counts={"PASS": 1},
            basis={"interrupted": ""},
        )
    )
    (end,) = read_lines(directory.ledger)
    assert (end["event"], end["verdict"], end["exit_status"]) == ("end", "ACCEPTED", 0)
    files.write_node_lists(SimpleNamespace(text=lambda name: f"{name}\n"))
    names = ("good-nodes", "bad-nodes", "node-reasons")
    assert [(directory.root / f"{n}.txt").read_text() for n in names] == [
        "good\n", "bad\n", "reasons\n",
    ]  # fmt: skip


def test_what_nodes_wrote_is_kept_without_the_secrets_of_the_options(files, directory, monkeypatch):
    folder = directory.jobs / "node-n1" / "submitit"
    folder.mkdir(parents=True)
    log = folder / "1_0_log.out"
    long = b"x" * 5_000_000
    content = b"+ export A=hunter2-Correct\n" + long + b"\nhunter2-Correct"
    log.write_bytes(content)
    outside = directory.root.parent / "outside"
    outside.write_bytes(content)
    (folder / "link_log.out").symlink_to(outside)
    known = Known()
    for module in ("fixtures.records.files", "fixtures.run.run_files"):
        monkeypatch.setattr(f"{module}.KNOWN", known)
    known.learn(["hunter2-Correct"], nodes_have_them=False)
    files.remove_secrets()
    assert log.read_bytes() == content
    known.learn(["hunter2-Correct"])
    files.remove_secrets()
    gone = REMOVED.encode()
    assert log.read_bytes() == b"+ export A=" + gone + b"\n" + long + b"\n" + gone
    assert outside.read_bytes() == content
