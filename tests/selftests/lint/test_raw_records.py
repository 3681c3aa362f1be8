"""Records are read by the one reader, so that nobody counts what the judge voids."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.paths import CHECKOUT

pytestmark = pytest.mark.cpu

PACKAGES = ("fixtures", "reports")
OUTSIDE = ("fixtures/records", "fixtures/workloads", "reports/second_judge")
"""The format itself, what ranks write themselves, and the judge that shares nothing."""
READS = frozenset({"read_json", "read_bytes", "read_text", "read_lines", "raw_lines"})
OF_RECORDS = frozenset({"read_record", "read_json_fast"})
"""They are for records alone."""
PLACES = frozenset({"records", "record"})
"""Attributes of a run directory that lead to records."""
FOLDERS = ("inventory@", "records/")

ALLOWED = {
    "fixtures/backends/recertification.py": "copies records unseen; reads a list of nodes",
    "reports/console/progress.py": "names of records, to count them",
    "fixtures/run/evidence.py": "the judge's own reader, on which the one reader stands",
    "fixtures/run/devices_of_record.py": "inventories, which define what records are held against",
    "fixtures/run/burn_in.py": "wrong results in a record that cannot be used: a failure counts",
    "fixtures/run/order.py": "what was measured or may share nodes: only takes exemptions away",
    "fixtures/run/previous_runs.py": "copies records without looking into them",
    "reports/evidence/attempts_shown.py": "whether an attempt in the ledger can be read: verify",
    "reports/evidence/basis.py": "all times and devices that stand there, for verify",
    "reports/evidence/differences.py": "the newest time that stands there: a waiver ends by it",
}  # fmt: skip
"""Module -> why it reads records without their checks."""


def reading(tree: ast.AST) -> Iterator[int]:
    """Yield the lines at which a module reads records: by a function that is for records, or by
    another where the module knows the place of records too."""
    named = [n for n in ast.walk(tree) if isinstance(n, ast.Name | ast.Attribute)]
    knows_place = any(isinstance(n, ast.Attribute) and n.attr in PLACES for n in named) or any(
        isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value.startswith(FOLDERS)
        for n in ast.walk(tree)
    )
    for node in named:
        if _name(node) in OF_RECORDS or (knows_place and _name(node) in READS):
            yield node.lineno


def _name(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr


def found(root: Path = CHECKOUT) -> dict[str, list[int]]:
    """Return module -> lines at which it reads records."""
    lines: dict[str, list[int]] = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            name = str(path.relative_to(root))
            at = sorted({*reading(ast.parse(path.read_text(encoding="utf-8")))})
            if at and not name.startswith(OUTSIDE):
                lines[name] = at
    return lines


def test_only_the_one_reader_and_named_modules_read_records() -> None:
    others = {name: lines for name, lines in found().items() if name not in ALLOWED}
    assert not others, "use fixtures/run/reader.py: RunReader"


def test_every_exception_is_needed() -> None:
    assert sorted(set(ALLOWED) - set(found())) == []


@pytest.mark.parametrize(
    "source",
    [
        "read_record(path)",
        "fast_reader.read_json_fast(path)",
        "readers = map(read_record, paths)",
        "def f(d):\n  return read_json(d.record('gemm', 'n0'))",
        "def f(d):\n  for path in files_in(d.records):\n    yield read_bytes(path)",
        "f = lambda d: read_json(d.records / 'x')",
        "def f(root):\n  return files.read_json(root / 'records/inventory@n0.json')",
    ],
)
def test_each_way_to_read_a_record_is_seen(source: str) -> None:
    assert list(reading(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "def f(d):\n  return read_json(d.run_json)",
        "def f(d):\n  return list(files_in(d.records))",
        "from fixtures.records.files import read_json",
        "reader.newest('gemm', 'n0')",
    ],
)
def test_other_files_are_read_as_before(source: str) -> None:
    assert not list(reading(ast.parse(source)))
