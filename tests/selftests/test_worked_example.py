"""docs/adding-a-criterion.md tells the truth: its example touches three files, and works."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.selftests.cluster import copy_checkout

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).resolve().parents[2]
PATCH = ROOT / "docs" / "examples" / "adding-a-criterion.patch"


@pytest.fixture
def checkout(tmp_path):
    """A copy of the suite with the example applied to it."""
    copy_checkout(tmp_path, selftests=False)
    subprocess.run(["git", "apply", str(PATCH)], cwd=tmp_path, check=True, timeout=30)
    return tmp_path


def test_the_example_touches_a_workload_a_limit_and_a_test():
    touched = re.findall(r"^\+\+\+ b/(\S+)", PATCH.read_text(), re.M)
    assert sorted(touched) == [
        "fixtures/workloads/environment.py",
        "tests/test_inventory.py",
        "thresholds.yaml",
    ]


def test_the_example_is_planned_measured_judged_and_reported(checkout, tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "multinode", "--cluster", "local", "-q",
         "-k", "shared_memory", f"--run-dir={tmp_path / 'run'}"],
        cwd=checkout, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert verdict["verdict"] == "DEMONSTRATION", run.stdout
    (row,) = verdict["criteria"]
    assert (row["criterion"], row["outcome"], row["unit"]) == (
        "environment.shared_memory", "PASS", "GiB",
    )  # fmt: skip
    assert row["value"] > 4
    assert "environment.shared_memory" in (tmp_path / "run" / "report.html").read_text()


def test_the_document_shows_the_code_of_the_example():
    document = (ROOT / "docs" / "adding-a-criterion.md").read_text()
    added = [
        line[1:].strip() for line in PATCH.read_text().splitlines() if line.startswith("+    ")
    ]
    said = [line for line in added if line.startswith(("return", "size_gib", "limits", "title"))]
    assert said
    assert [line for line in said if line not in document] == []
