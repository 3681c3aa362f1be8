"""The files that are made of a run: which there are, what they hold, how they are written."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fixtures.records.run_directory import RunDirectory
from reports.evidence import statement
from reports.exports import export
from reports.facts import blame
from reports.pages import artefacts, certificate, page
from reports.pages.artefacts import NAMES, Artefacts
from tests.selftests.reports.test_exports import written
from tests.selftests.support import change

pytestmark = pytest.mark.cpu


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return written(tmp_path / "run")


def of(run: RunDirectory, **more: object) -> Artefacts:
    change(run.run_json, **more)
    return Artefacts(run, json.loads(run.verdict.read_text()))


def test_a_replay_and_what_was_started_by_hand_have_no_certificate(run):
    for origin in ("cluster", "sandbox", "local"):
        assert of(run, origin=origin).names == list(NAMES)
    for origin in ("by-hand", "replay", None):
        found = of(run, origin=origin).names
        assert set(NAMES) - set(found) == {certificate.NAME, statement.NAME}
        assert found == [name for name in NAMES if name in found]


def test_each_file_is_made_by_the_module_that_it_belongs_to(run):
    found = of(run, origin="cluster", created="2026-11-20T14:15:00+00:00")
    assert found.run["origin"] == "cluster"
    assert found.make(certificate.NAME).decode() == certificate.page(run, found.verdict)
    assert found.make(statement.NAME).decode() == statement.page(run, found.verdict)
    assert found.make(export.NAME).decode() == export.results(found.verdict)
    assert found.make(page.NAME).decode() == page.page(run, found.verdict)
    assert found.ledger == page.read_ledger(run, found.verdict["criteria"])
    assert found.lists == blame.lists_of(run, found.verdict, found.run)
    (suite,) = ElementTree.fromstring(found.make("junit.xml"))
    assert suite.get("timestamp") == "2026-11-20T14:15:00+00:00"
    (undated,) = ElementTree.fromstring(of(run, created=None).make("junit.xml"))
    assert not undated.get("timestamp")


def test_the_lists_of_nodes_are_the_texts_of_the_run(run):
    found = of(run)
    assert found.make("good-nodes.txt").decode() == found.lists.text("good")
    assert found.make("bad-nodes.txt") == b"worker1\n"
    assert b"gemm.bf16 failed" in found.make("node-reasons.txt")


def test_each_file_is_written_as_it_is_made_and_a_signature_goes_with_its_page(run):
    found = of(run, origin="cluster")
    signatures = {certificate.NAME: run.root / f"{certificate.NAME}.sig",
                  statement.NAME: run.root / statement.ENVELOPE}  # fmt: skip
    for name in found.names:
        for signature in signatures.values():
            signature.write_text("signed")
        found.write(name)
        assert (run.root / name).read_bytes() == found.make(name), name
        gone = {of for of, signature in signatures.items() if not signature.exists()}
        assert gone == {name} & signatures.keys(), name


def test_the_spreadsheet_is_written_by_its_module(run, monkeypatch):
    """It writes the rows one after another, and does not hold the text of a large cluster."""
    made: list[str] = []
    monkeypatch.setattr(artefacts.export, "write_results", lambda *_: made.append("rows"))
    found = of(run)
    for name in ("results.csv", "junit.xml"):
        found.write(name)
    assert made == ["rows"]
