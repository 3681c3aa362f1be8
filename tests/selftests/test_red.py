"""Every criterion says what a red row usually means, and what to do first."""

from __future__ import annotations

import re

import pytest

from fixtures.thresholds.definitions import shipped
from tests.selftests.support import CHECKOUT

pytestmark = pytest.mark.cpu

DEFINED = shipped().criteria
REFERENCE = re.compile(r"(?<![/\w.`<-])[a-z][a-z_]+\.[a-z][a-z_.0-9]*[a-z0-9]")
"""What looks like the key of a criterion: words with a dot between them."""
FILES = re.compile(r"\.(?:yaml|conf|log|jsonl|json|stacks|md|sh)$")


@pytest.mark.parametrize("key", DEFINED)
def test_a_criterion_says_what_a_red_row_means_and_what_to_do(key):
    text = shipped().red_of(key)
    assert 40 <= len(text) <= 260, text
    assert text.endswith(".")
    assert text == " ".join(text.split())
    assert ": " in text or ". " in text, f"{key}: a cause, and a step: {text}"


@pytest.mark.parametrize("key", DEFINED)
def test_it_sends_the_reader_only_to_criteria_and_pages_that_there_are(key):
    text = shipped().red_of(key)
    for found in REFERENCE.findall(text):
        if not FILES.search(found):
            assert found in DEFINED, f"{key} sends to {found}"
    for page in re.findall(r"docs/[\w./-]+\.md", text):
        assert (CHECKOUT / page).is_file(), page


def test_a_point_of_a_sweep_has_the_text_of_its_criterion():
    assert shipped().red_of("allreduce.node.1GiB") == shipped().red_of("allreduce.node")
    assert shipped().red_of("of.nobody") == ""
