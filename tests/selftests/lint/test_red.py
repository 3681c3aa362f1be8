"""Every criterion says what it checks, what a pass shows and does not, and what to do when red."""

from __future__ import annotations

import re

import pytest

from fixtures.thresholds.contract import Contract
from fixtures.thresholds.definitions import shipped
from tests.selftests.support import CHECKOUT

pytestmark = pytest.mark.cpu

DEFINED = shipped().criteria
REFERENCE = re.compile(r"(?<![/\w.`<-])[a-z][a-z_]+\.[a-z][a-z_.0-9]*[a-z0-9]")
"""What looks like the key of a criterion: words with a dot between them."""
FILES = re.compile(r"\.(?:yaml|conf|log|jsonl|json|stacks|md|sh)$")


def unfit(text: str) -> list[str]:
    """What such a text lacks."""
    wants = {
        f"40 to 260 characters, not {len(text)}": 40 <= len(text) <= 260,
        "a full stop": text.endswith("."),
        "single blanks": text == " ".join(text.split()),
        "a cause, and a step": ": " in text or ". " in text,
    }
    return [want for want, met in wants.items() if not met]


def dead_ends(text: str) -> list[str]:
    """Criteria, fields of the order and pages that a text names and that are not there."""
    order = {f"cluster.{field}" for field in Contract.model_fields}
    keys = [found for found in REFERENCE.findall(text) if not FILES.search(found)]
    pages = re.findall(r"docs/[\w./-]+\.md", text)
    return [key for key in keys if key not in {*DEFINED, *order}] + [
        page for page in pages if not (CHECKOUT / page).is_file()
    ]


def test_every_criterion_says_what_a_red_row_means_and_what_to_do():
    texts = {key: shipped().red_of(key) for key in DEFINED}
    assert len(texts) >= 300
    assert {key: faults for key, text in texts.items() if (faults := unfit(text))} == {}


def test_no_criterion_sends_the_reader_to_what_is_not_there():
    texts = {key: " ".join(shipped().texts_of(key).values()) for key in DEFINED}
    assert any(REFERENCE.search(text) for text in texts.values())
    assert {key: ends for key, text in texts.items() if (ends := dead_ends(text))} == {}


def test_every_criterion_has_a_name_and_says_what_a_pass_shows_and_what_not():
    nouns = [shipped().noun_of(key) for key in DEFINED]
    assert len(set(nouns)) == len(nouns), "two criteria of one name"
    assert [noun for noun in nouns if len(noun) > 36 or noun.endswith(".")] == []
    said = {key: shipped().texts_of(key) for key in DEFINED}
    for part, least in (("proves", 20), ("not", 10)):
        texts = {key: text[part] for key, text in said.items()}
        assert [key for key, text in texts.items() if not text.endswith(".")] == []
        assert [key for key, text in texts.items() if not least <= len(text) <= 360] == []


HARDWARE_IS_AT_FAULT = ("gemm.identical", "memory.whole", "health.ecc_new", "p2p.errors")
MAY_BE_DISTURBED = ("health.ecc_rate", "health.ecc_siblings", "nvlink.errors", "gemm.bf16_per_ghz")


def test_a_node_is_drained_for_what_a_measurement_shows_and_else_measured_again_first():
    for key in HARDWARE_IS_AT_FAULT:
        assert "rain the node" in shipped().red_of(key), key
    for key in MAY_BE_DISTURBED:
        before, _, _ = shipped().red_of(key).partition("easure again")
        assert before != shipped().red_of(key), key
        assert not re.search("drain|RMA|replace", before), key


GOOD = "The clock is low: drain the node, and look at `health.clocks` in docs/host.md."


@pytest.mark.parametrize(
    ("text", "faults", "ends"),
    [
        (GOOD, [], []),
        ("Slow. Drain it.", ["40 to 260 characters, not 15"], []),
        (GOOD + 200 * "x" + ".", ["40 to 260 characters, not 279"], []),
        (GOOD[:-1], ["a full stop"], []),
        (GOOD.replace("drain the", "drain  the"), ["single blanks"], []),
        (GOOD.replace(":", ","), ["a cause, and a step"], []),
        (GOOD.replace("`health.clocks`", "health.klocks"), [], ["health.klocks"]),
        (GOOD.replace("host.md", "hosts.md"), [], ["docs/hosts.md"]),
        (GOOD.replace("`health.clocks`", "cluster.mounts"), [], []),
        (GOOD.replace("`health.clocks`", "cluster.mount"), [], ["cluster.mount"]),
    ],
)
def test_a_text_that_does_not_serve_is_found(text, faults, ends):
    assert (unfit(text), dead_ends(text)) == (faults, ends)


def test_a_point_of_a_sweep_has_the_text_of_its_criterion():
    assert shipped().red_of("allreduce.node.1GiB") == shipped().red_of("allreduce.node")
    assert shipped().red_of("of.nobody") == ""
