"""Files of the run directory that nodes see late, or never: of other hosts, by way of a network."""

from __future__ import annotations

import pytest

from fixtures import entry
from fixtures.jobs import diagnosis
from fixtures.records import files
from fixtures.records.absence import JobKind
from fixtures.redaction import Known
from training import checkpoint_integrity

pytestmark = pytest.mark.cpu


def test_a_file_that_a_node_sees_late_is_waited_for(tmp_path, monkeypatch):
    """A job's spec, through every rank's door; the run itself stands still here."""
    spec, started = tmp_path / "spec.json", []
    monkeypatch.setattr(entry, "run_spec", lambda spec, part: started.append(spec))
    monkeypatch.setattr(files, "ask_anew", lambda directory: spec.write_text('{"schema": 1}'))
    entry.run(str(spec))
    assert started == [{"schema": 1}]


def test_a_file_that_never_comes_is_the_run_directory_s_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(entry, "is_visible", lambda path: files.is_visible(path, 0.0))
    with pytest.raises(files.RecordError) as caught:
        entry.run(str(tmp_path / "spec.json"))
    failure = diagnosis.diagnose(
        [], state="FAILED", log_tail=f"fixtures.RecordError: {caught.value}", job="7", world_size=2
    )
    assert failure.kind is JobKind.NOT_VISIBLE
    assert str(tmp_path) in failure.reason


def test_a_checkpoint_of_other_nodes_is_waited_for(tmp_path, monkeypatch):
    for step in (10, 20):
        files.write_json(tmp_path / f"step-{step:06}" / "manifest.json", {"files": {}})
    late = tmp_path / "step-000020"
    late.rename(tmp_path / ".late")
    monkeypatch.setattr(
        checkpoint_integrity.time, "sleep", lambda s: (tmp_path / ".late").rename(late)
    )
    assert checkpoint_integrity.awaited_intact(tmp_path, 20) == late
    assert checkpoint_integrity.awaited_intact(tmp_path, 30, timeout_s=0.0) == late


def test_what_is_known_to_be_a_secret_is_written_into_no_file(tmp_path, monkeypatch):
    known = Known()
    known.learn(["hunter2-Correct"])
    monkeypatch.setattr(files, "KNOWN", known)
    files.append_line(tmp_path / "a.jsonl", {"error": "said hunter2-Correct"})
    files.write_json(tmp_path / "b.json", {"error": "said hunter2-Correct"})
    assert "hunter2" not in (tmp_path / "a.jsonl").read_text() + (tmp_path / "b.json").read_text()
    assert files.read_json(tmp_path / "b.json") == {"error": "said [removed]"}
