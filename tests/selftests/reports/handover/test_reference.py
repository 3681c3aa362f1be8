"""What is a reference for others is confirmed first: its verdict, its manifest, its word."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from fixtures.errors import EvidenceError
from fixtures.records.run_directory import RunDirectory
from reports import __main__ as command
from reports.evidence.run_files import CommandError, read_verdict
from reports.handover import reference
from tests.selftests import support
from tests.selftests.judged_runs import judged_run

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def judged(tmp_path_factory) -> Path:
    """A recorded run that is REJECTED, with another word."""
    source = support.DATA / "h200-1x2-neighbour"
    root = judged_run(source, tmp_path_factory.mktemp("reference") / "run")
    support.change(root / "verdict.json", verdict="PARTIAL")
    return root


@pytest.fixture
def run(judged, tmp_path) -> Path:
    return Path(shutil.copytree(judged, tmp_path / "run"))


def confirms(source: Path) -> Any:
    return read_verdict(source)


def never(source: Path) -> Any:
    raise AssertionError("it is confirmed already")


def without_limits(source: Path) -> Any:
    raise CommandError("other limits")


def test_a_reference_is_judged_again_once_and_then_known_by_its_hashes(run, tmp_path):
    state = tmp_path / "state"
    assert reference.confirmed(run, state, confirms)["verdict"] == "PARTIAL"
    assert reference.confirmed(run, state, never)["verdict"] == "PARTIAL"
    record = next((run / "records").iterdir())
    record.write_bytes(record.read_bytes() + b" ")
    with pytest.raises(EvidenceError, match="has changed since it was confirmed: records/"):
        reference.confirmed(run, state, never)
    RunDirectory(run).write_manifest()
    with pytest.raises(AssertionError):  # another manifest: it is judged again
        reference.confirmed(run, state, never)


@pytest.mark.parametrize("word", ["REJECTED", "INCOMPLETE"])
def test_a_run_that_was_not_accepted_cannot_be_a_reference(run, tmp_path, word):
    support.change(run / "verdict.json", verdict=word)
    with pytest.raises(EvidenceError, match=f"is {word}, so it cannot be a reference"):
        reference.confirmed(run, tmp_path / "state", confirms)


def test_a_certificate_whose_verdict_does_not_follow_is_refused(run, tmp_path, capsys):
    """The run is REJECTED by its records; somebody wrote another word."""
    state = tmp_path / "state"
    assert command.main(["patrol", str(state), "--certificate", str(run)]) == command.USAGE
    assert "is not confirmed: verdict.json: " in capsys.readouterr().err
    assert not (state / reference.NAME).exists()


def test_what_a_command_rests_on_is_confirmed_or_said(run, tmp_path):
    assert reference.remark(run, confirms) == "note   run is PARTIAL"
    assert "is not confirmed here: other limits" in reference.remark(run, without_limits)
    (run / "verdict.json").unlink()
    assert reference.remark(run, never).startswith(
        "note   run has no verdict: what it measured was not judged"
    )
    accepted = {"verdict": "ACCEPTED"}
    (run / "verdict.json").write_text("{}")
    assert reference.remark(run, lambda _: accepted) == ""
