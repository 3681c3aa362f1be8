"""The house as docs/architecture.md describes it: entries, layers, sizes, picture, walks."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.selftests.support import CHECKOUT
from tests.tools import architecture

pytestmark = pytest.mark.cpu

ENTRIES = {
    "__init__.py", "__main__.py", "background.py", "entry.py", "errors.py", "hardware.py",
    "paths.py", "shapes.py", "wording.py", "calibration", "cluster", "criteria", "jobs",
    "localization", "patrol", "plan",
    "plugin", "records", "run", "sandbox", "slurm", "thresholds", "verdict", "workloads",
}  # fmt: skip
REASONED, MOST = 400, 600
"""Lines of a file: from here on with a reason, and at most."""
LONG_CLASS = 300
REASON = re.compile(r"^# Length: \w+", re.MULTILINE)
FILES = [
    path
    for top in ("fixtures", "reports", "training", "tests")
    for path in sorted((CHECKOUT / top).rglob("*.py"))
    if "runs" not in path.parts
]


def contracts() -> list[dict[str, object]]:
    data = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    found: list[dict[str, object]] = data["tool"]["importlinter"]["contracts"]
    return found


def test_fixtures_holds_these_entries_and_no_others():
    found = {p.name for p in (CHECKOUT / "fixtures").iterdir() if p.name != "__pycache__"}
    assert found == ENTRIES
    layers = {name for row in architecture.layers()[1:] for name in row}
    data = {"criteria"}  # definitions in YAML
    assert layers == {name.removesuffix(".py") for name in ENTRIES} - {"__init__"} - data


def test_no_contract_on_imports_has_an_exception():
    text = (CHECKOUT / "pyproject.toml").read_text(encoding="utf-8")
    assert "ignore_imports" not in text
    (layers,) = [c["layers"] for c in contracts() if c["type"] == "layers"]
    assert isinstance(layers, list)
    assert not any(":" in row for row in layers), "joined layers may import each other"
    assert [c["ancestors"] for c in contracts() if c["type"] == "acyclic_siblings"]


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("records/files.py", "from fixtures.plan import jobs"),
        ("verdict/judge.py", "from fixtures.run import evidence"),
        ("jobs/retry.py", "from fixtures.jobs import scheduler"),
    ],
)
def test_an_import_upwards_or_in_a_circle_is_found(file, line, tmp_path):
    for name in ("fixtures", "reports", "training"):
        shutil.copytree(CHECKOUT / name, tmp_path / name, ignore=shutil.ignore_patterns("runs"))
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").touch()
    shutil.copy(CHECKOUT / "pyproject.toml", tmp_path)
    planted = tmp_path / "fixtures" / file
    planted.write_text(planted.read_text(encoding="utf-8") + f"\n{line}\n", encoding="utf-8")
    lint = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run([lint, "--no-cache"], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 1, run.stdout
    assert re.search(r"Contracts: \d+ kept, [1-9] broken", run.stdout), run.stdout


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(CHECKOUT)))
def test_a_file_fits_in_a_head(path):
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    assert lines <= MOST, f"{lines} lines"
    if not REASON.search(text):
        assert lines <= REASONED, f"{lines} lines, and no line `# Length: why`"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and node.end_lineno is not None:
                assert node.end_lineno - node.lineno < LONG_CLASS, node.name


def test_the_picture_is_that_of_the_import_graph():
    assert architecture.PICTURE.read_text(encoding="utf-8") == architecture.picture(), (
        "run `python -m tests.tools.architecture --write`"
    )


def test_the_walks_lead_through_code_that_is_there():
    walks = architecture.walks()
    assert len(walks) == 3
    for title, stations in walks.items():
        assert len(stations) >= 8, title
        assert architecture.errors_in_walk(stations) == [], title
