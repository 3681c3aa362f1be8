"""Results of other tools in a run on a sandbox: rows, contradictions, evidence, replay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.run_directory import RunDirectory
from fixtures.sandbox import Sandbox
from reports import __main__ as command
from tests.selftests import faults, faults_guests, guest_samples, support
from tests.selftests.faults import Fault
from tests.selftests.sandboxes import refuse

pytestmark = [pytest.mark.cpu, pytest.mark.slow]


@pytest.fixture(scope="module")
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    refuse(request, Sandbox.refusal())
    with Sandbox.up(nodes=2, gpus=2) as up:
        yield up


@pytest.mark.parametrize("fault", faults_guests.FAULTS, ids=lambda f: f.criterion)
def test_what_another_tool_found_is_red_on_its_node(sandbox: Sandbox, fault: Fault, tmp_path: Path):
    found = faults.drill(sandbox, fault, tmp_path / "run")
    assert found.named == (fault.culprit,), found.said
    assert fault.says in found.lines[0], found.lines
    assert found.others == ()


def _rows(verdict: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(r["criterion"], r["subject"]): r for r in verdict["criteria"]}


def test_files_become_rows_evidence_and_contradictions(
    sandbox: Sandbox, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = guest_samples.write(
        tmp_path / "files",
        worker0__dcgmi=guest_samples.dcgm4(), worker1__dcgmi=guest_samples.dcgm4("software"),
        worker0__fio=guest_samples.fio(), worker7__fio=guest_samples.fio(),
    )  # fmt: skip
    root = tmp_path / "run"
    options = ("-m", "multinode", "-q", "-k", "guests or environment")
    done = support.run_pytest(
        *options, "--cluster", "slurm", f"--guest-results={folder}", f"--run-dir={root}",
        **sandbox.env,
    )  # fmt: skip
    verdict = json.loads((root / "verdict.json").read_text(encoding="utf-8"))
    rows = _rows(verdict)
    assert rows["guests.dcgmi", "worker0"]["outcome"] == "PASS", done.stdout
    failed = rows["guests.dcgmi", "worker1"]
    assert failed["outcome"] == "FAIL"
    assert any(note.startswith("contradicted on software: ours pass") for note in failed["notes"])
    ours = rows["environment.versions", "worker1"]
    assert ours["outcome"] == "PASS"
    assert ours["notes"] == ["contradicted: dcgmi diag 4.5.3 fails on software"]
    assert rows["environment.versions", "worker0"]["notes"] == []
    assert rows["guests.fio", "worker0"]["outcome"] == "PASS"
    for node, why in (("worker1", "no such file was given"), ("worker7", "not a node of this run")):
        row = rows["guests.fio", node]
        assert (row["outcome"], row["cause"]) == ("NOT_MEASURED", "guest")
        assert why in row["reason"]
    assert ("guests.nvidia_smi", "worker0") not in rows  # nobody gave such a file
    copied = {path.name for path in RunDirectory(root).guests.iterdir()}
    assert copied == {path.name for path in folder.iterdir()}
    assert "guests/worker1.dcgmi.json" in (root / "manifest.sha256").read_text(encoding="utf-8")
    assert command.main(["verify", str(root)]) == 0, capsys.readouterr().out
    status, again = support.judged(root, tmp_path / "replayed")
    assert status == verdict["exit_status"]
    assert {k: (r["outcome"], r["notes"]) for k, r in _rows(again).items()} == {
        k: (r["outcome"], r["notes"]) for k, r in rows.items()
    }
