"""A link in the place of any file of a run is replaced, and what it points to stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.errors import ConfigError
from fixtures.records.run_directory import RunDirectory
from fixtures.records.verdict_file import read_verdict
from fixtures.run import checks
from fixtures.run.run_files import RunFiles
from fixtures.verdict.model import Outcome, Verdict
from reports.pages.artefacts import NAMES, Artefacts
from tests.selftests import support
from tests.selftests.support import DATA

pytestmark = pytest.mark.cpu

RUN = DATA / "sandbox-2x2-cpu-failures"
APPENDED = ["ledger.jsonl", "jobs/missing.jsonl"]


def names_of_a_run() -> list[str]:
    names = {f"records/{path.name}" for path in (RUN / "records").iterdir()} | {*NAMES}
    names |= {"run.json", "limits.csv", "verdict.json", "manifest.sha256"}
    return sorted(names)


def run_into(root: Path) -> list[str]:
    """Judge a recorded run and make all its pages; return the names of its files."""
    support.judged(RUN, root)
    made = Artefacts(RunDirectory(root), read_verdict(RunDirectory(root)))
    for name in NAMES:
        made.write(name)
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if not p.is_dir())


def test_every_name_that_a_run_writes_may_be_a_link(tmp_path, monkeypatch):
    names = names_of_a_run()
    assert len(names) > 25
    outside, root = tmp_path / "outside", tmp_path / "second"
    outside.mkdir()
    make = RunDirectory.make

    def make_and_plant(directory: RunDirectory) -> None:
        make(directory)
        for k, name in enumerate(names):
            (outside / str(k)).write_text("as it was")
            (root / name).unlink(missing_ok=True)
            (root / name).symlink_to(outside / str(k))
        monkeypatch.setattr(RunDirectory, "make", make)

    monkeypatch.setattr(RunDirectory, "make", make_and_plant)
    assert run_into(root) == sorted([*names, *APPENDED]), "a name that was not tried"
    assert [name for name in names if (root / name).is_symlink()] == []
    assert {path.read_text() for path in outside.iterdir()} == {"as it was"}
    assert len([*outside.iterdir()]) == len(names)


def test_the_ledger_is_not_written_through_a_link_and_the_run_says_so(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    files = RunFiles(directory)
    files.make()
    (tmp_path / "profile").write_text("as it was")
    directory.ledger.symlink_to(tmp_path / "profile")
    row = Verdict(criterion="a", title="a", subject="n", outcome=Outcome.PASS)
    with pytest.raises(OSError, match="is a link") as refused:
        files.append_verdicts([row])
    said = checks.unwritable_reason(refused.value)
    assert said.startswith(f"the run directory cannot be written: {directory.ledger}: is a link")
    assert "make room" not in said
    assert (tmp_path / "profile").read_text() == "as it was"


def test_a_link_in_the_place_of_the_reasons_is_refused_in_one_line(tmp_path):
    (tmp_path / "run" / "jobs").mkdir(parents=True)
    (tmp_path / "profile").write_text("as it was")
    (tmp_path / "run" / "jobs" / "missing.jsonl").symlink_to(tmp_path / "profile")
    with pytest.raises(ConfigError, match=r"--run-dir .*: missing.jsonl: is a link to") as refused:
        RunFiles(RunDirectory(tmp_path / "run")).make()
    assert "\n" not in str(refused.value)
    assert (tmp_path / "profile").read_text() == "as it was"


@pytest.mark.parametrize("name", ["jobs", "records"])
def test_a_link_in_the_place_of_a_folder_is_refused_in_one_line(tmp_path, name):
    (tmp_path / "outside").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "outside")
    with pytest.raises(ConfigError, match=f"--run-dir .*/run/{name}: is a link or no") as refused:
        RunFiles(RunDirectory(tmp_path / "run")).make()
    assert "\n" not in str(refused.value)
    assert [*(tmp_path / "outside").iterdir()] == []
