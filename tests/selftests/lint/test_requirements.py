"""What buyers ask for: every requirement is traced to criteria, or left with a reason."""

from __future__ import annotations

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
