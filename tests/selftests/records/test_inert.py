"""fixtures.records.inert: nothing of foreign text acts where it is shown."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest

from fixtures.records.inert import (
    LONGEST,
    LONGEST_LOG,
    inert,
    inert_answer,
    inert_json,
    inert_lines,
    needs_a_look,
)

pytestmark = pytest.mark.cpu

SHOWN = {
    "\x1b]0;title\x07": r"\x1b]0;title\x07",
    "\x1b[31mred": r"\x1b[31mred",
    "a\nb\r\nc\x0b\x0c\x85\u2028\u2029d": r"a\nb\r\nc\x0b\x0c\x85\u2028\u2029d",
    "\t\x00\x7f\x9b": r"\t\x00\x7f\x9b",
    "\u202egnp": r"\u202egnp",
    "\u2066\u061c\u200e": r"\u2066\u061c\u200e",
    "a\u200bb\ufeffc\u2060": r"a\u200bb\ufeffc\u2060",
    "\udcff": r"\udcff",
    "\U000e0041\ufe0f\u3164": r"\U000e0041\ufe0f\u3164",
    "\ue000\u0378": r"\ue000\u0378",
    "::error::x": r"\x3a:error::x",
    "a ::stop-commands::x": r"a \x3a:stop-commands::x",
    "::error file=a": r"\x3a:error file=a",
    "##[error]x": r"\x23#[error]x",
    "##vso[task.complete]": r"\x23#vso[task.complete]",
}
AS_IT_IS = (
    "", "NVIDIA H200", "25 µs at 40 °C", "c10::DistBackendError", "std::vector<int>::size", "::1",
    "fe80::a:b", "::ffff:10.0.0.1", "C:\\x1b", "wide\u3000blank", "日本語", "## 3", "a\u0301",
)  # fmt: skip


@pytest.mark.parametrize("text", SHOWN, ids=ascii)
def test_what_acts_is_shown(text):
    assert inert(text) == SHOWN[text]
    assert inert(inert(text)) == inert(text)


@pytest.mark.parametrize("text", AS_IT_IS, ids=ascii)
def test_what_does_not_act_stays(text):
    assert inert(text) is text or inert(text) == text


def test_no_character_that_acts_is_left():
    acts = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    for start in range(0, sys.maxunicode + 1, 2000):
        characters = "".join(map(chr, range(start, min(start + 2000, sys.maxunicode + 1))))
        left = {c for c in inert(characters, longest=10**6) if unicodedata.category(c) in acts}
        assert left == set(), start


def test_long_text_is_cut_and_says_how_long_it_was():
    for text in ("x" * 5000, "\x1b" * 5000, "ä" * 5000, "::error::" * 5000):
        shown = inert(text)
        assert len(shown) == LONGEST
        assert shown.endswith(f"... ({len(text):,} characters)")
        assert inert(shown) == shown
    assert inert("x" * LONGEST) == "x" * LONGEST


def test_lines_stay_lines_and_each_is_inert():
    assert inert_lines("a\n::error::b\n\x1bc") == "a\n\\x3a:error::b\n\\x1bc"
    long = inert_lines("first\n" + "x" * 2 * LONGEST_LOG)
    assert len(long) <= LONGEST_LOG
    assert long.startswith("... (40,006 characters)\nxxx")
    assert inert_answer("NODE\x1b\n" + "x" * 2 * LONGEST) == "NODE\\x1b\n" + "x" * 2 * LONGEST


def test_every_text_of_json_is_made_inert_names_too():
    data = {"a\x1b": ["\u202e", {"b": "c\nd"}, 1, 2.5, None, True], "text": "e\nf"}
    clean = {r"a\x1b": [r"\u202e", {"b": r"c\nd"}, 1, 2.5, None, True], "text": r"e\nf"}
    assert inert_json(data) == clean
    assert inert_json(data, lines=frozenset({"text", "b"})) == {**clean, "text": "e\nf"}
    assert inert_json(clean) == clean


@pytest.mark.parametrize("text", [*SHOWN, "x" * 3 * LONGEST], ids=lambda text: ascii(text[:20]))
@pytest.mark.parametrize("in_ascii", [True, False])
def test_json_text_that_holds_something_is_looked_at(text, in_ascii):
    content = json.dumps({"samples": [1.5] * 999, "a": [text]}, ensure_ascii=in_ascii)
    assert needs_a_look(content.encode("utf-8", "surrogatepass"))


def test_json_text_without_is_not_looked_at():
    for data in ({"samples": [1.0 / 3, -1e-9] * 9999}, {"a": 'a "quoted" word'}, {"a": "b/c"}, []):
        for indent in (None, 1):
            assert not needs_a_look(json.dumps(data, indent=indent).encode()), data
