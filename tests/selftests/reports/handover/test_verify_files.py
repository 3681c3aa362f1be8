"""`python -m reports verify`: single files of a run, without a run that was rendered."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.run_directory import RunDirectory
from fixtures.records.verdict_file import SPLIT_SCHEMA
from reports.evidence.findings import Findings
from reports.handover import verify

pytestmark = pytest.mark.cpu


def artefacts(root: Path, *names: str, run: Any = None, **verdict) -> Any:
    directory = RunDirectory(root)
    return SimpleNamespace(directory=directory, names=names, run=run or {}, verdict=verdict)


def test_a_verdict_that_cannot_be_compared_is_wrong(tmp_path, monkeypatch):
    directory = RunDirectory(tmp_path)
    for text, said in ((None, "missing"), ("{", ""), ("{}", "")):
        if text is not None:
            directory.verdict.write_text(text)
        found = verify.check_verdict(directory, lambda: None)
        assert [line for line in found.wrong if line.startswith(f"verdict.json: {said}")]
    stated = {"schema": 1, "run_id": "x", "verdict": "PARTIAL", "exit_status": 2, "reasons": [],
              "criteria": [], "scope": {"nodes": []}, "counts": {}}  # fmt: skip
    monkeypatch.setattr(verify, "malformed", lambda _: "")
    directory.verdict.write_text(json.dumps(stated))
    for text in (None, "{}"):  # without run.json too
        if text is not None:
            directory.run_json.write_text(text)
        (line,) = verify.check_verdict(directory, lambda: {}["x"]).wrong[1:]
        assert "cannot be compared" in line
    (tmp_path / "run.json").write_text('{"schema": 1, "id": "x"}')
    assert verify.check_hashes(directory, None).status == 1


def test_a_file_is_compared_with_what_is_made_again(tmp_path):
    path = tmp_path / "a"
    for prepare, expected in (
        (lambda: None, "a: missing; "), (lambda: path.write_bytes(b"1\n2\n"), None),
        (lambda: path.write_bytes(b"1\n3\n"), "a: does not match it: line 2 has '1\\n3\\n', expec"),
        (lambda: path.write_bytes(b"1\n2"), "a: does not match it: line 2 has '1\\n2', expected"),
        (lambda: path.unlink() or path.symlink_to("b"), "a: is a link to b"),
        (lambda: path.unlink() or path.mkdir(), "a: is a folder"),
    ):  # fmt: skip
        prepare()
        found = Findings()
        assert verify._compare(found, path, b"1\n2\n", "it") is (expected is None)
        assert len(found.wrong) == (expected is not None)
        assert all(line.startswith(expected) for line in found.wrong)


def test_files_that_are_not_of_the_suite_are_named(tmp_path):
    root = tmp_path / "run"
    rest = RunDirectory(root).verdict_rest
    there = ("certificate.html.sig", "drills.json", "own.txt", "a.csv", "jobs/a/b.csv",
             "records/x.PDF", "records/x.json", "guests/x.xml", "guests/a/x.xml",
             "recertified/a/limits.csv", "recertified/a/jobs/x.csv", "elsewhere/x.json",
             "signatures/x.txt", "jobs", rest.name)  # fmt: skip

    def named(*names, **more):
        made = artefacts(root, *names, **more)
        return [line.partition(": ")[0] for line in verify._unknown_files(made, there)]

    assert named("a.csv") == [
        "certificate.html.sig", "own.txt", "jobs/a/b.csv", "records/x.PDF", "guests/a/x.xml",
        "recertified/a/limits.csv", "recertified/a/jobs/x.csv", "elsewhere/x.json",
        "signatures/x.txt", "jobs", rest.name,
    ]  # fmt: skip
    split = named(schema=SPLIT_SCHEMA, run={"recertifies": ["a"]})
    assert not {rest.name, "recertified/a/limits.csv"} & set(split)
    assert {"a.csv", "recertified/a/jobs/x.csv"} <= set(split)


def test_what_the_fine_tuning_leaves_is_of_the_suite_and_a_page_among_it_is_not(tmp_path):
    """A whole run has it, and is signed; a page would be read as one of the suite's."""
    names = ["finetune/summary.json", "finetune/small/final/adapter_model.safetensors"]
    assert [*verify._unknown_files(artefacts(tmp_path), names)] == []
    (line,) = verify._unknown_files(artefacts(tmp_path), ["finetune/report.html", *names])
    assert line.startswith("finetune/report.html: not a page of the suite")
    (line,) = verify._unknown_files(artefacts(tmp_path), ["finetune.txt", *names])
    assert line.startswith("finetune.txt: not a file of the suite")
