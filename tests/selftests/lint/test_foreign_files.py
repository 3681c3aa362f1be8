"""Files that others write are opened in one place: fixtures/records/foreign_files.py."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.paths import CHECKOUT

pytestmark = pytest.mark.cpu

PACKAGES = (
    "fixtures/jobs", "fixtures/records", "fixtures/run", "fixtures/conclusion", "fixtures/verdict",
    "fixtures/plan", "fixtures/backends", "fixtures/calibration", "fixtures/patrol",
    "fixtures/localization", "fixtures/plugin", "reports",
)  # fmt: skip
"""Where run directories are read."""
METHODS = frozenset({"open", "read_text", "read_bytes", "glob", "rglob", "iterdir"})
"""Methods of paths, and of modules such as os, gzip, io and shutil."""
FUNCTIONS = frozenset({"scandir", "listdir", "walk", "copytree", "copyfile", "copy2", "copy"})
"""Functions of os and shutil."""
DOOR = ("fixtures/records/foreign_files.py", "fixtures/records/foreign_folders.py")

ALLOWED = {
    ("fixtures/records/files.py", "open"): "appends to a file of the run",
    ("fixtures/records/files.py", "scandir"): "asks NFS anew; no name of it is used",
    ("fixtures/run/checks.py", "iterdir"): "names in --run-dir, before it is taken",
    ("fixtures/plugin/session.py", "open"): "/dev/null, and the run's own open()",
    ("fixtures/plugin/start.py", "open"): "an options file that the user names, @FILE",
    ("fixtures/plugin/install.py", "read_text"): "the checkout's own files",
    ("fixtures/plugin/install.py", "read_bytes"): "the plug-in in site-packages",
    ("fixtures/plugin/install.py", "glob"): "the plug-in in site-packages",
    ("fixtures/plugin/invocation.py", "glob"): "names in the folder that pytest was called in",
    ("fixtures/patrol/visits.py", "open"): "the lock of the user's own state directory",
    ("reports/pages/page.py", "read_text"): "a style sheet of the package",
    ("reports/evidence/statement.py", "read_bytes"): "keys that the user names",
    ("reports/handover/join.py", "iterdir"): "whether --out is empty",
    ("reports/handover/join.py", "copytree"): "a unit that was verified; its links stay links",
    ("reports/handover/ready.py", "read_bytes"): "modules and wrappers of the checkout, pynvml",
    ("reports/handover/ready.py", "read_text"): "the same, and the starter of the one who installs",
    ("reports/handover/ready.py", "iterdir"): "folders of DEST, which others cannot change",
    ("reports/pages/banner.py", "read_text"): "style and script of the package",
    ("reports/exports/github.py", "open"): "appends to the file that GitHub names",
    ("reports/second_judge/physics.py", "read_text"): "tables of the package",
    ("reports/second_judge/records.py", "read_text"): "its caller gives it the one way in",
    ("reports/second_judge/records.py", "iterdir"): "its caller gives it the one way in",
}
"""File and call -> why it is not about what others write."""


def calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield (name, line) of everything that opens or lists, also where it is only passed on.

    What a module imports from the one way in by name is called as a plain name, which is allowed.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in METHODS | FUNCTIONS:
            is_copy_of_data = node.attr == "copy" and not _is_module(node.value)
            if not is_copy_of_data and not (node.attr == "walk" and not _is_module(node.value)):
                yield node.attr, node.lineno
        elif isinstance(node, ast.Name) and node.id == "open":
            yield "open", node.lineno


def _is_module(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("os", "shutil")


def found(root: Path = CHECKOUT) -> dict[tuple[str, str], int]:
    """Return file and call -> line, of all packages that read run directories."""
    return {
        (name, call): line
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
        if (name := str(path.relative_to(root))) not in DOOR
        for call, line in calls(ast.parse(path.read_text(encoding="utf-8")))
    }


def test_nothing_else_opens_or_lists_what_others_write() -> None:
    others = {key: line for key, line in found().items() if key not in ALLOWED}
    wrong = [f"{f}:{line}: {call}" for (f, call), line in others.items()]
    assert not wrong, "use fixtures/records/foreign_files.py and foreign_folders.py"


def test_every_exception_is_needed() -> None:
    assert sorted(set(ALLOWED) - set(found())) == []


@pytest.mark.parametrize(
    ("source", "call"),
    [
        ("path.open()", "open"),
        ("open(path)", "open"),
        ("os.open(path, 0)", "open"),
        ("Path.read_text(path)", "read_text"),
        ("reader = path.read_bytes", "read_bytes"),
        ("sorted(p for p in root.glob('*'))", "glob"),
        ("os.scandir(root)", "scandir"),
        ("shutil.copy2(a, b)", "copy2"),
        ("list(map(open, paths))", "open"),
    ],
)
def test_each_way_to_open_is_seen(source: str, call: str) -> None:
    assert [name for name, _ in calls(ast.parse(source))] == [call]


def test_what_is_imported_by_name_from_the_one_way_in_is_allowed() -> None:
    source = "read_text(path); files_in(folder); line.copy(); ast.walk(tree); walk(folder)"
    assert list(calls(ast.parse(source))) == []
