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
    "__init__.py", "__main__.py", "background.py", "entry.py", "errors.py", "gpu_parts.py",
    "hardware.py", "paths.py", "processes.py", "redaction.py", "shapes.py", "suggestions.py",
    "wording.py", "backends", "calibration", "challenge", "cluster", "conclusion", "criteria",
    "jobs",
    "localization", "patrol", "permutations", "plan", "plugin", "ready", "records", "run",
    "sandbox", "setup", "slurm", "statistics", "thresholds", "verdict", "workloads",
}  # fmt: skip
REASONED, MOST = 400, 600
"""Lines of a file: from here on with a reason, and at most."""
SECOND_JUDGE = 1600
"""Lines of the second judge with all its parts, at most: it reads what is absent in both schemas of
records, apart from the first."""
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
    found = [c["layers"] for c in contracts() if c["type"] == "layers"]
    assert len(found) == 3
    for layers in found:
        assert isinstance(layers, list)
        assert not any(":" in row for row in layers), "joined layers may import each other"
    assert [c["ancestors"] for c in contracts() if c["type"] == "acyclic_siblings"]


def test_reports_see_of_a_run_its_one_reader_alone():
    """The contract names each other module of fixtures.run: a new one is not forgotten."""
    (contract,) = [c for c in contracts() if c.get("source_modules") == ["reports"]]
    forbidden = contract["forbidden_modules"]
    assert isinstance(forbidden, list)
    modules = {f"fixtures.run.{p.stem}" for p in (CHECKOUT / "fixtures/run").glob("[!_]*.py")}
    found = {module for module in forbidden if module.startswith("fixtures.run")}
    assert found == modules - {"fixtures.run.reader"}


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("records/files.py", "from fixtures.plan import jobs"),
        ("verdict/judge.py", "from fixtures.run import evidence"),
        ("jobs/retry.py", "from fixtures.jobs import job_queue"),
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


def test_every_file_is_short_enough_to_be_read():
    assert FILES
    assert [fault for path in FILES for fault in too_long(path)] == []


def too_long(path: Path) -> list[str]:
    """What of a file is longer than it may be."""
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    if lines > MOST:
        return [f"{path}: {lines} lines, at most {MOST}"]
    found = [f"{path}: {lines} lines"] if lines > REASONED else []
    # A class that is too long stands in a file that is longer.
    for node in ast.walk(ast.parse(text)) if lines >= LONG_CLASS else ():
        if isinstance(node, ast.ClassDef) and node.end_lineno is not None:
            size = node.end_lineno - node.lineno
            if size >= LONG_CLASS:
                found.append(f"{path}: class {node.name}, {size} lines, at most {LONG_CLASS}")
    reasons = len(REASON.findall(text))
    if reasons == bool(found):
        return []
    return [*found, f"{path}: {reasons} lines `# Length: why`, expected {int(bool(found))}"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("x = 1\n" * (MOST + 1), "601 lines, at most 600"),
        ("# Length: a table\n" + "x = 1\n" * MOST, "601 lines, at most 600"),
        ("x = 1\n" * (REASONED + 1), "0 lines `# Length: why`, expected 1"),
        ("class Long:\n" + "    x = 1\n" * LONG_CLASS, "0 lines `# Length: why`, expected 1"),
        ("# Length: a table\n" + "x = 1\n" * REASONED, None),
        ("# Length: a table\nx = 1\n", "1 lines `# Length: why`, expected 0"),
        ("x = 1\n" * REASONED, None),
    ],
)
def test_a_file_that_is_too_long_is_found(text, fault, tmp_path):
    path = tmp_path / "x.py"
    path.write_text(text, encoding="utf-8")
    assert too_long(path)[-1:] == ([f"{path}: {fault}"] if fault else [])


def test_the_second_judge_can_be_read_in_an_hour():
    """Its worth is that an outsider reads all of it; what is added to it takes something away."""
    reports = CHECKOUT / "reports"
    paths = [*(reports / "second_judge").iterdir(), reports / "evidence" / "rejudge.py"]
    lines = {p.name: p.read_text(encoding="utf-8").count("\n") for p in paths if p.is_file()}
    assert {"judge.py", "plan.py", "tables.yaml", "rejudge.py"} <= lines.keys()
    assert sum(lines.values()) <= SECOND_JUDGE, lines


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
