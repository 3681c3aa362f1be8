"""What kind of criterion a row is stands in tables: nobody else compares their words."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from fixtures.paths import CHECKOUT

pytestmark = pytest.mark.cpu

WORDS = ("statistic", "over", "per")
ALLOWED = {"fixtures/thresholds/kinds.py", "fixtures/plan/items.py"}
MOST = 15


def is_word(node: ast.expr) -> bool:
    """Whether an expression is one of the words of a criterion, by itself or within a tuple."""
    if isinstance(node, ast.Tuple):
        return any(map(is_word, node.elts))
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name in WORDS


def has_text(node: ast.expr) -> bool:
    return any(isinstance(n, ast.Constant) and isinstance(n.value, str) for n in ast.walk(node))


def comparisons(tree: ast.AST) -> Iterator[int]:
    """Yield the line of each comparison of a word with text: ==, in, match, a dict of texts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(is_word, sides)) and any(map(has_text, sides)):
                yield node.lineno
        elif isinstance(node, ast.Match) and is_word(node.subject):
            yield from (case.pattern.lineno for case in node.cases)
        elif isinstance(node, ast.Subscript) and is_word(node.slice) and has_text(node.value):
            yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of_word = is_word(node.func.value) and node.func.attr in ("startswith", "endswith")
            looked_up = node.func.attr == "get" and has_text(node.func.value)
            if of_word or (looked_up and any(map(is_word, node.args))):
                yield node.lineno


def test_a_comparison_is_found_however_it_is_written():
    for text, count in (
        ('c.per == "node"', 1), ('"node" != c.per', 1), ('over in ("ranks", "links")', 1),
        ('(c.metric, c.per) == ("x", "node")', 1), ('{"node": 1}.get(c.per, 2)', 1),
        ('{"node": 1}[per]', 1), ('statistic.startswith("m")', 1), ("c.per == other.per", 0),
        ('c.unit == "node"', 0), ("KINDS[c.statistic, c.over]", 0), ('c.kind == "x"', 0),
        ('match c.over:\n case "a": pass\n case "b": pass', 2),
    ):  # fmt: skip
        assert len(list(comparisons(ast.parse(text)))) == count, text


def test_only_the_tables_and_the_plan_compare_the_words_of_a_criterion():
    found = {
        f"{path.relative_to(CHECKOUT)}:{line}"
        for top in ("fixtures", "reports", "training")
        for path in sorted((CHECKOUT / top).rglob("*.py"))
        if "second_judge" not in path.parts and "runs" not in path.parts
        for line in comparisons(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert {place for place in found if place.partition(":")[0] not in ALLOWED} == set()
    assert len(found) <= MOST
