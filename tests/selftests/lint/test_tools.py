"""Nothing is left over: tools that nobody runs, production code that only a test uses."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from vulture import Vulture

from fixtures.paths import CHECKOUT

pytestmark = pytest.mark.cpu

TOOLS = CHECKOUT / "tests" / "tools"
MODULES = {path.stem for path in TOOLS.glob("*.py")} - {"__init__"}
NAMED = re.compile(
    r"\btests[./]tools[./](?P<module>\w+)\b(?P<past>(?:\.py)?`? of\s+commit [0-9a-f]{7})?"
)


def _texts() -> Iterator[tuple[Path, str]]:
    """Makefile, workflows, pages and tests: what names a tool, besides other tools."""
    paths = [CHECKOUT / "Makefile", CHECKOUT / "README.md", CHECKOUT / "conftest.py"]
    for folder, pattern in ((".github", "*.yml"), ("docs", "*.md"), ("docs", "*.yaml"),
                            ("tests", "*.py")):  # fmt: skip
        paths += (CHECKOUT / folder).rglob(pattern)
    for path in paths:
        if path.parent != TOOLS and "data" not in path.parts and path != Path(__file__):
            yield path, path.read_text(encoding="utf-8")


def _imported(text: str) -> set[str]:
    """The tools that a module's text imports."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == "tests.tools":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests.tools."):
            found.add((node.module or "").split(".")[2])
    return found


def test_every_tool_is_named_by_the_makefile_a_page_or_a_test():
    waiting: list[str] = []
    for path, text in _texts():
        waiting += [m["module"] for m in NAMED.finditer(text) if not m["past"]]
        waiting += _imported(text) if path.suffix == ".py" else set()
    reached: set[str] = set()
    while waiting:
        if (name := waiting.pop()) in MODULES - reached:
            reached.add(name)
            waiting += _imported((TOOLS / f"{name}.py").read_text(encoding="utf-8"))
    unnamed = MODULES - reached
    assert not unnamed, "nothing runs these tools: name them, or delete them"


def test_every_tool_that_is_named_exists_or_is_named_with_its_commit():
    absent = {
        f"{path.relative_to(CHECKOUT)}: {match['module']}"
        for path, text in _texts()
        for match in NAMED.finditer(text)
        if not match["past"] and match["module"] not in MODULES
    }
    assert not absent


def test_no_production_code_is_dead_and_no_exception_is_stale():
    """As `make lint`, which cannot tell that an exception is needed no longer."""
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    allowed = settings["vulture"]["ignore_names"]
    scan = Vulture(ignore_decorators=settings["vulture"]["ignore_decorators"])
    paths, excluded = (
        [str(CHECKOUT / path) for path in settings["vulture"][key]] for key in ("paths", "exclude")
    )
    scan.scavenge(paths, exclude=excluded)
    unused = {
        str(item.name): f"{item.filename.relative_to(CHECKOUT)}:{item.first_lineno} {item.message}"
        for item in scan.get_unused_code()
    }
    dead = [said for name, said in unused.items()
            if not any(fnmatchcase(name, pattern) for pattern in allowed)]  # fmt: skip
    stale = [pattern for pattern in allowed
             if not any(fnmatchcase(name, pattern) for name in unused)]  # fmt: skip
    assert (dead, stale) == ([], [])
