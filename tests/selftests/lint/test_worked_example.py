"""docs/adding-a-criterion.md tells the truth: its examples touch four places, and work."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.selftests.sandboxes import copy_checkout

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs" / "adding-a-criterion.md"
EXAMPLES = ROOT / "docs" / "examples"
PATCHES = {
    "adding-a-criterion.patch": (
        "shared_memory and not tenant",
        {"environment.shared_memory": "GiB"},
    ),
    "adding-a-node-rate.patch": ("scratch and not tenant", {"scratch.write": "GB/s"}),
    "adding-a-collective.patch": (
        "scatter and not reducescatter",
        {"scatter.node.16MiB": "GB/s", "scatter.node.errors": "elements"},
    ),
}
"""Patch -> what selects its criteria, and their units."""
PLACES = ("fixtures/workloads/", "fixtures/criteria/", "thresholds.yaml", "tests/")


@pytest.mark.parametrize("name", PATCHES)
def test_an_example_touches_a_workload_a_definition_a_limit_and_a_test(name):
    touched = re.findall(r"^\+\+\+ b/(\S+)", (EXAMPLES / name).read_text(), re.M)
    places = [next(place for place in PLACES if path.startswith(place)) for path in touched]
    assert sorted(set(places)) == sorted(PLACES)
    folders = {path if "/" not in path else path.rpartition("/")[0] for path in touched}
    assert len(folders) == len(PLACES), touched
    assert name in DOCUMENT.read_text()


@pytest.mark.parametrize("name", PATCHES)
def test_an_example_is_planned_measured_judged_and_reported(name, tmp_path):
    select, units = PATCHES[name]
    checkout = tmp_path / "checkout"
    copy_checkout(checkout, selftests=False)
    subprocess.run(["git", "apply", str(EXAMPLES / name)], cwd=checkout, check=True, timeout=30)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "multinode", "--cluster", "local", "-q",
         "-k", select, f"--run-dir={tmp_path / 'run'}"],
        cwd=checkout, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert verdict["verdict"] == "DEMONSTRATION", run.stdout
    criteria = [row for row in verdict["criteria"] if row["outcome"] != "NOT_APPLICABLE"]
    rows = {row["criterion"]: row for row in criteria}
    assert {key: row["unit"] for key, row in rows.items()} == units
    assert {row["outcome"] for row in rows.values()} == {"PASS"}, run.stdout
    report = (tmp_path / "run" / "report.html").read_text()
    assert [key for key in units if key not in report] == []


def test_the_document_shows_the_code_of_the_example():
    document = DOCUMENT.read_text()
    patch = (EXAMPLES / "adding-a-criterion.patch").read_text()
    added = [line[1:].strip() for line in patch.splitlines() if line.startswith("+    ")]
    said = [line for line in added if line.startswith(("return", "size_gib", "limits", "title"))]
    assert said
    assert [line for line in said if line not in document] == []
