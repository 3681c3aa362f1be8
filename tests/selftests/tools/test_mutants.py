"""The tool that changes rules: what a change is, and which ones a seed draws."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.tools import mutants

pytestmark = pytest.mark.cpu

SOURCE = '''
LIMIT = 3

def passes(value):
    """Whether it is below the limit."""
    if value is None or value < 0:
        return False
    return value < LIMIT
'''


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one file of rules."""
    path = tmp_path / "fixtures" / "verdict" / "rule.py"
    path.parent.mkdir(parents=True)
    path.write_text(SOURCE)
    monkeypatch.setattr(mutants, "CHECKOUT", tmp_path)
    return path


def test_each_rule_of_a_file_is_changed_alone(source: Path) -> None:
    changes = mutants.mutants_of("fixtures/verdict/rule.py")
    assert [(m.before, m.after) for m in changes] == [
        ("3", "7"),
        ("value is None or value < 0", "value is None and value < 0"),
        ("value is None", "value is not None"), ("value < 0", "value >= 0"), ("0", "1"),
        ("return False", "return True"), ("return value < LIMIT", "return None"),
        ("value < LIMIT", "value >= LIMIT"),
    ]  # fmt: skip
    original = ast.unparse(ast.parse(SOURCE))
    texts = [mutants.mutated(m) for m in changes]
    assert len({original, *texts}) == len(changes) + 1
    for change, text in zip(changes, texts, strict=True):
        different = [
            (old, new)
            for old, new in zip(original.splitlines(), text.splitlines(), strict=True)
            if old != new
        ]
        assert len(different) == 1, change


def test_a_draw_is_that_of_its_seed_and_other_code_draws_no_others(source: Path) -> None:
    drawn = mutants.draw(23, 4)
    assert len(drawn) == 4
    assert mutants.draw(24, 4) != drawn
    source.write_text(f"{SOURCE}\n\ndef later(value):\n    return value\n")
    kept = [m.name for m in mutants.draw(23, 5)]
    names = {m.name for m in drawn}
    assert [n for n in kept if n in names] == [m.name for m in drawn]
    assert names - set(kept) == set()


def test_what_leaves_the_program_as_it_is_is_replaced(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = mutants.draw(23, 8)
    monkeypatch.setitem(mutants.EQUIVALENT, first.name, "a reason")
    assert mutants.draw(23, 7) == others


def test_tests_of_a_module_are_those_of_its_name(tmp_path: Path) -> None:
    place = tmp_path / "tests" / "selftests" / "verdict"
    place.mkdir(parents=True)
    (tmp_path / "fixtures" / "verdict").mkdir(parents=True)
    for name in ("judge", "judge_power"):
        (tmp_path / "fixtures" / "verdict" / f"{name}.py").touch()
    for name in ("test_judge", "test_judge_waivers", "test_judge_power"):
        (place / f"{name}.py").touch()
    found = mutants.test_files("fixtures/verdict/judge.py", tmp_path)
    assert [p.stem for p in found] == ["test_judge", "test_judge_waivers"]


def test_a_change_is_noticed_by_the_tests_of_its_module_and_taken_back(
    source: Path, tmp_path: Path
) -> None:
    place = tmp_path / "tests" / "selftests" / "verdict" / "test_rule.py"
    place.parent.mkdir(parents=True)
    place.write_text(
        "import pytest\nfrom fixtures.verdict.rule import passes\npytestmark = pytest.mark.cpu\n"
        "def test_it():\n    assert passes(2) and not passes(None) and not passes(3)\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    cpu\n    slow\n")
    by_name = {m.before: m for m in mutants.mutants_of("fixtures/verdict/rule.py")}
    assert mutants.noticed(by_name["value < LIMIT"], tmp_path) is True
    assert mutants.noticed(by_name["value < 0"], tmp_path) is True
    assert mutants.noticed(by_name["0"], tmp_path) is False
    assert source.read_text() == SOURCE
