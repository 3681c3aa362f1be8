"""What buyers ask for: every requirement is traced to criteria, or left with a reason."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import yaml

from fixtures.thresholds import loader
from fixtures.thresholds.overview import file_key
from tests.selftests.support import CHECKOUT, SHIPPED

pytestmark = pytest.mark.cpu

TRACE = yaml.safe_load((CHECKOUT / "docs" / "requirements.yaml").read_text(encoding="utf-8"))
PAGE = (CHECKOUT / "docs" / "requirements.md").read_text(encoding="utf-8")


def test_every_requirement_is_there_once():
    left = [i for entry in TRACE["left"] for i in entry["ids"]]
    twice = [i for i, count in Counter([*TRACE["traced"], *left]).items() if count > 1]
    assert twice == []
    assert len(TRACE["traced"]) + len(left) == TRACE["source"]["requirements"]


def test_what_is_left_has_a_reason_and_what_is_traced_a_criterion():
    assert all(entry["why"].strip() and entry["ids"] for entry in TRACE["left"])
    criteria = loader.load(SHIPPED).criteria
    known = {*criteria, *(file_key(c) for c in criteria.values())}
    for requirement, entry in TRACE["traced"].items():
        assert entry["criteria"], requirement
        assert set(entry["criteria"]) <= known, requirement


NAMED = re.compile(r"\b[a-z][a-z_]*\.(?:[a-z_]+\.)*(?:\*|[a-z_]+\b)")
DENIED = re.compile(r"\bno criterion (?:measures|compares|judges|counts) ([^,;.]+)")
SMALL = frozenset({"with", "that", "from", "yet", "and", "the"})


def false_reasons(why: str) -> list[str]:
    """Return the criteria by which a reason is not true: those that measure what it says none does,
    and names that it has and no criterion."""
    criteria = loader.load(SHIPPED).criteria
    described = {
        key: f"{key} {c.title} {c.red}".lower().replace("_", " ") for key, c in criteria.items()
    }
    found = [
        name for name in NAMED.findall(why)
        if not any(re.match(name.replace(".", r"\.").replace("*", ""), key) for key in criteria)
    ]  # fmt: skip
    for denied in DENIED.findall(why):
        words = [w for w in re.findall(r"[a-z]+", denied.lower()) if w not in SMALL]
        stems = [re.sub(r"s$", "", word) for word in words]
        found += [key for key, text in described.items() if all(stem in text for stem in stems)]
    return found


@pytest.mark.parametrize("entry", TRACE["left"], ids=lambda entry: entry["ids"][0])
def test_a_reason_denies_nothing_that_a_criterion_measures(entry):
    assert false_reasons(entry["why"]) == []


@pytest.mark.parametrize(
    "why",
    [
        "no criterion measures local drives yet",
        "no criterion measures file locks",
        "no criterion counts Xid errors",
        "see nosuch.criterion.*",
    ],
)
def test_a_reason_that_is_not_true_is_found(why):
    assert false_reasons(why)


def test_the_page_says_what_the_file_says():
    source, traced = TRACE["source"], TRACE["traced"]
    total = source["requirements"]
    in_part = [entry for entry in traced.values() if "lacks" in entry]
    assert f"{len(traced)} of {total} requirements" in PAGE
    assert f"{len(in_part)} of them in part" in PAGE
    assert f"reasons of the other {total - len(traced)} stand" in PAGE
    assert f"version {source['version']}" in PAGE
    assert source["url"] in PAGE
    for requirement, entry in traced.items():
        cells = ", ".join(f"`{key}`" for key in entry["criteria"])
        lacks = f" {entry['lacks']} |" if "lacks" in entry else " |"
        assert f"| {requirement} | {cells} |{lacks}" in PAGE
