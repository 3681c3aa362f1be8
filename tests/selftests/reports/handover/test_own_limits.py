"""The file of limits that calibration makes in place of published figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.handover import own_limits

pytestmark = pytest.mark.cpu

MADE = "# Limits.\n# Runs a.\n# REFUSED gemm.bf16: x\nschema: 1\nbase: elsewhere.yaml\n"


def test_it_is_written_with_the_path_to_its_base_from_there(tmp_path: Path):
    file = tmp_path / "site" / "own.yaml"
    file.parent.mkdir()
    own_limits.write(MADE, tmp_path / "limits.yaml", file)
    assert file.read_text() == MADE.replace("elsewhere.yaml", "../limits.yaml")


def test_it_says_its_runs_and_what_contradicts():
    assert own_limits.remarks(MADE) == ["Runs a.", "REFUSED gemm.bf16: x"]
    assert own_limits.contradicts(MADE)
    assert not own_limits.contradicts(MADE.replace("REFUSED ", ""))
