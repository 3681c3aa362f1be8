"""Tests stand beside their rule: a module's in its package's folder; an area has one name."""

from __future__ import annotations

import re

import pytest

from fixtures.paths import CHECKOUT
from fixtures.plugin import invocation
from tests.tools import checkout_files, mutants

pytestmark = pytest.mark.cpu

SELFTESTS = CHECKOUT / "tests" / "selftests"
AREAS = {p.stem for p in (CHECKOUT / "fixtures" / "criteria").glob("*.yaml")} - {
    "demonstration", "tails",
}  # fmt: skip
OF_TRAINING = {"failures", "finetuning", "training"}
"""Areas whose workloads are in training/."""


def committed() -> list[str]:
    """The files of the repository, without recorded data."""
    return [name for name in checkout_files.names() if not name.startswith("tests/selftests/data/")]


def test_every_module_with_a_rule_has_a_test_file_of_its_name():
    without = [
        path
        for path in mutants.sources()
        if not mutants.test_files(path, CHECKOUT) and mutants.mutants_of(path)
    ]
    assert without == []


def test_every_test_file_is_in_the_folder_of_a_package():
    flat = [p.name for p in SELFTESTS.glob("test_*.py")]
    assert flat == []
    # Those are the folders that the plug-in reads, and no other.
    folders = {p.parent for p in SELFTESTS.rglob("test_*.py")}
    assert folders - set(invocation._test_folders(CHECKOUT)) == set()


def test_every_test_file_is_of_a_mark_that_is_run():
    """`make test` runs the mark cpu; a file without one is run by nothing."""
    mark = re.compile(r"pytest\.mark\.(cpu|sandbox|slow)\b")
    unmarked = [p.name for p in SELFTESTS.rglob("test_*.py") if not mark.search(p.read_text())]
    assert unmarked == []


def places(area: str) -> set[str]:
    """Where the word of an area may stand as the name of a file or folder."""
    package = set() if area in OF_TRAINING else {f"fixtures/workloads/{area}/"}
    return package | {
        f"fixtures/criteria/{area}.yaml", f"tests/test_{area}.py", f"docs/{area}.md",
        f"tests/selftests/workloads/{area}/", "training/", "tests/selftests/training/",
    }  # fmt: skip


@pytest.mark.parametrize("area", sorted(AREAS))
def test_the_word_of_an_area_names_its_places_and_nothing_else(area):
    allowed = places(area)
    files = committed()
    for place in allowed - {"training/", "tests/selftests/training/"}:
        if "selftests" not in place:
            assert any(name.startswith(place) for name in files), place
    if area not in OF_TRAINING:
        assert any(name.startswith(f"tests/selftests/workloads/{area}/test_") for name in files)
    strangers = [
        name
        for name in files
        if area in (part.partition(".")[0].removeprefix("test_") for part in name.split("/"))
        and not name.startswith(tuple(allowed))
    ]
    assert strangers == []
