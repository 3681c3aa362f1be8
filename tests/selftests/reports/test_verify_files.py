"""`python -m reports verify`: single files of a run, without a run that was rendered."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.run_directory import RunDirectory
from fixtures.records.verdict_file import SPLIT_SCHEMA
from reports import page, verify

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
    assert verify.check_hashes(directory, None).judged is False


def test_a_file_is_compared_with_what_is_made_again(tmp_path):
    path = tmp_path / "a"
    for prepare, expected in (
        (lambda: None, "a: missing; "), (lambda: path.write_bytes(b"1\n2\n"), None),
        (lambda: path.write_bytes(b"1\n3\n"), "a: does not match it: line 2 has '1\\n3\\n', expec"),
        (lambda: path.write_bytes(b"1\n2"), "a: does not match it: line 2 has '1\\n2', expected"),
        (lambda: path.unlink() or path.symlink_to("b"), "a: a link to b"),
        (lambda: path.unlink() or path.mkdir(), "a: [Errno 21]"),
    ):  # fmt: skip
        prepare()
        found = verify.Findings()
        assert verify._compare(found, path, b"1\n2\n", "it") is (expected is None)
        assert len(found.wrong) == (expected is not None)
        assert all(line.startswith(expected) for line in found.wrong)


def test_a_report_by_other_tools_is_compared_without_their_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "generator_of", lambda text: text.partition("|")[0])
    monkeypatch.setattr(page, "generator", lambda run=None: "here" if run is None else "there")
    made, report = b"here|<script>1</script>text", tmp_path / page.NAME
    for text, expected in (
        (None, False), ("there|", False), ("here|<script>2</script>text", False),
        ("nobody|text", False), ("there|<script>2</script>text", True),
    ):  # fmt: skip
        found, again = verify.Findings(), made
        if text is not None:
            report.write_text(text)
            again = made.replace(b"here", text.partition("|")[0].encode())
        assert verify._by_other_tools(artefacts(tmp_path), again, found) is expected
        assert len(found.unchecked) == expected


def test_files_that_are_not_of_the_suite_are_named(tmp_path):
    root = tmp_path / "run"
    for name in ("certificate.html.sig", "drills.json", "own.txt", "a.csv", "jobs/a/b.csv",
                 "records/x.PDF", "records/x.json", "recertified/a/limits.csv"):  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("{}")
    rest = RunDirectory(root).verdict_rest
    rest.write_text("{}")

    def named(*names, **more):
        return {line.partition(": ")[0]: line for line in
                verify._unknown_files(artefacts(root, *names, **more))}  # fmt: skip

    found = named("a.csv")
    assert "no record of its original" in found["drills.json"]
    assert {
        "own.txt",
        "certificate.html.sig",
        rest.name,
        "records/x.PDF",
        "jobs/a/b.csv",
    } <= found.keys()
    assert not {"records/x.json", "a.csv", "records", "recertified/a/limits.csv"} & found.keys()
    split = named("certificate.html", schema=SPLIT_SCHEMA)
    assert not {rest.name, "certificate.html.sig"} & split.keys()
    assert "a.csv" in split


def test_pages_of_another_version_are_compared_by_their_facts(tmp_path):
    run, verdict = {"suite_version": "0.1.0"}, {"verdict": "PARTIAL"}
    found = verify.Findings()
    names = (page.NAME, "junit.xml", "results.csv")
    verify._check_facts(artefacts(tmp_path, *names, run=run, **verdict), found)
    assert [line.split("; ")[0] for line in found.wrong] == ["results.csv: missing"]
    for title, wrong in (("PARTIAL", False), ("ACCEPTED", True)):
        (tmp_path / page.NAME).write_text(f"<title>x: {title}</title>")
        (tmp_path / "junit.xml").write_text("")
        found = verify.Findings()
        verify._check_facts(artefacts(tmp_path, *names[:2], run=run, **verdict), found)
        assert [line.partition(":")[0] for line in found.wrong] == [page.NAME] * wrong
        assert [line.partition(":")[0] for line in found.unchecked] == [page.NAME, "junit.xml"]
    assert verify._rows_without_text("criterion,reason\nk,x\n") == [{"criterion": "k"}]
