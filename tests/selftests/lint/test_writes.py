"""One door out: files of run directories are written by fixtures.records.files alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.paths import CHECKOUT

pytestmark = pytest.mark.cpu

PACKAGES = (
    "fixtures/backends", "fixtures/calibration", "fixtures/challenge", "fixtures/cluster",
    "fixtures/conclusion", "fixtures/jobs", "fixtures/patrol", "fixtures/plugin",
    "fixtures/records", "fixtures/run", "reports",
)  # fmt: skip
ALLOWED = {
    ("fixtures/records/files.py", "os.open"): "the door itself",
    ("fixtures/records/files.py", "os.fdopen"): "the door itself",
    ("fixtures/records/files.py", "os.replace"): "the door itself",
    ("fixtures/records/foreign_files.py", "os.open"): "the way in: it reads",
    ("fixtures/records/foreign_folders.py", "os.open"): "the way in: it reads",
    ("fixtures/backends/recertification.py", "os.link"): "a link is new, or an error",
    ("reports/handover/join.py", "shutil.copytree"): "into a folder that this call makes",
    ("fixtures/run/checks.py", "temporary.symlink_to"): "the link `latest` beside the runs",
    ("fixtures/run/checks.py", "temporary.replace"): "the link `latest` beside the runs",
    ("fixtures/plugin/install.py", "path.with_name(f'.{path.name}.new').write_bytes"):
        "into .venv, not into a run",
    ("fixtures/plugin/install.py", "new.replace"): "into .venv, not into a run",
    ("fixtures/plugin/session.py", "os.open"): "the null device, for a closed terminal",
    ("fixtures/patrol/visits.py", "os.open"): "a folder, to lock it",
    ("reports/exports/github.py", "Path(summary_path).open"): "the file that GitHub names",
    ("reports/console/live.py", "os.fdopen"): "a second descriptor of the terminal",
}  # fmt: skip
"""Module and call -> why it writes otherwise, or writes nothing of a run."""
METHODS = {"write_text", "write_bytes", "touch", "symlink_to", "hardlink_to", "rename"}
FUNCTIONS = {
    *(f"os.{name}" for name in ("open", "fdopen", "rename", "renames", "replace", "link",
                                "symlink", "truncate", "mkfifo")),
    *(f"shutil.{name}" for name in ("copy", "copy2", "copyfile", "copytree", "move")),
}  # fmt: skip


def writes(tree: ast.AST) -> Iterator[str]:
    """Yield the calls that may write a file otherwise."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        name = called.rpartition(".")[2]
        constants = [a.value for a in [*node.args, *(k.value for k in node.keywords)]
                     if isinstance(a, ast.Constant) and isinstance(a.value, str)]  # fmt: skip
        if called in FUNCTIONS or (name in METHODS and called != "write_text"):
            yield called.replace("(new := ", "").replace("))", ")")
        elif name == "open" and called not in FUNCTIONS:
            modes = {c for c in constants if len(c) < 5 and set(c) <= set("rwaxbt+")}
            if any(set(mode) & set("wax+") for mode in modes) or called == "gzip.open":
                yield called
        elif name == "replace" and len(node.args) == 1 and not node.keywords:
            yield called  # of a text it has two arguments


def of_repository() -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for package in PACKAGES:
        for path in sorted((CHECKOUT / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for call in writes(tree):
                key = (path.relative_to(CHECKOUT).as_posix(), call)
                found[key] = found.get(key, 0) + 1
    return found


def test_run_directories_are_written_through_one_door():
    found = of_repository()
    other = sorted(key for key in found if key not in ALLOWED)
    assert not other, "write by fixtures.records.files, which follows no link: " + str(other)
    assert sorted(key for key in ALLOWED if key not in found) == [], "nothing needs these any more"


@pytest.mark.parametrize(
    "text",
    [
        "path.write_text('a')", "(a / 'b').write_bytes(b'')", "path.open('w')", "open(path, 'ab')",
        "open(path, mode='x')", "path.open('r+')", "shutil.copy2(a, b)", "shutil.move(a, b)",
        "os.rename(a, b)", "a.rename(b)", "a.replace(b)", "os.open(path, os.O_WRONLY)",
        "path.touch()", "a.symlink_to(b)",
    ],
)  # fmt: skip
def test_another_way_to_write_would_be_found(text):
    assert list(writes(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    [
        "write_text(path, parts)", "path.open()", "path.open('rb')", "text.replace('a', 'b')",
        "replace(request, part=1)", "open(path, encoding='utf-8')",
    ],
)  # fmt: skip
def test_reading_is_not_writing(text):
    assert list(writes(ast.parse(text))) == []


def test_the_packages_are_there():
    assert [name for name in PACKAGES if not Path(CHECKOUT / name).is_dir()] == []
