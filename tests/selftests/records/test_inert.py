"""fixtures.records.inert: nothing of foreign text acts where it is shown."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest

from fixtures.records import inert as inert_module
from fixtures.records.fast_reader import read_json_fast
from fixtures.records.files import RecordError, Tail, read_json, read_lines
from fixtures.records.inert import (
    LONGEST,
    LONGEST_LOG,
    inert,
    inert_answer,
    inert_json,
    inert_lines,
    needs_a_look,
    without_commands,
)
from fixtures.records.model import Record
from fixtures.redaction import Known
from tests.selftests import support

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
    blocks = ((0, 0x3100), (0xD7A0, 0x11000), (0x1D100, 0x1D200), (0xE0000, 0xE0200))
    characters = "".join(chr(n) for block in blocks for n in range(*block)) + chr(sys.maxunicode)
    assert {unicodedata.category(c) for c in characters} >= acts
    shown = inert(characters, longest=10**6)
    assert {c for c in shown if unicodedata.category(c) in acts} == set()


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


def test_it_is_inert_however_json_is_read(tmp_path):
    data = {"name": "GPU\x1b[2J\n::error::x", "text": "a\n\x1bb", "long": "x" * 9000}
    clean = {"name": r"GPU\x1b[2J\n\x3a:error::x", "long": "x" * 9000}
    cut = {"long": inert("x" * 9000)}
    path = tmp_path / "file.json"
    path.write_text(json.dumps(data) + "\n")
    as_one_line = {**clean, "text": r"a\n\x1bb"}
    assert read_json(path) == as_one_line, "the suite's own lists of nodes may be long"
    assert read_json_fast(path) == {**as_one_line, **cut}, "those of a record are not"
    of_lines = {**clean, "text": "a\n\\x1bb", **cut}
    assert list(read_lines(path)) == Tail(path).read() == [of_lines]
    path.write_text(json.dumps({**data, "event": "test"}) + "\n")
    assert list(read_lines(path)) == [{**of_lines, "long": "x" * 9000, "event": "test"}]
    path.write_text(json.dumps({**data, "ranks": []}) + "\n")
    assert read_json(path) == {**as_one_line, **cut, "ranks": []}
    assert json.loads(path.read_text())["name"] == data["name"], "the file keeps its bytes"
    path.write_text(json.dumps({"text": {"text": "a\nb"}}) + "\n")
    assert list(read_lines(path)) == [{"text": {"text": r"a\nb"}}], "only what the suite writes"


def test_a_record_of_a_node_without_a_name_of_a_host_is_refused(tmp_path):
    found = support.node_record(600.0, node="worker0").to_json()
    for name in ("::error::x", "a b", "a\x1b", "", "a/b", "\u202ea"):
        changed = json.loads(json.dumps(found).replace('"worker0"', json.dumps(name)))
        with pytest.raises(RecordError, match="is not a name of a node"):
            Record.from_json(changed)


def test_a_secret_that_this_process_knows_is_removed_where_a_text_enters(monkeypatch):
    known = Known()
    known.learn(["hunter2-Correct"])
    monkeypatch.setattr(inert_module, "KNOWN", known)
    assert inert("said hunter2-Correct") == "said [removed]"
    assert needs_a_look(b'{"error": "said hunter2-Correct"}')
    assert not needs_a_look(b'{"error": "said nothing"}')


# --- commands


@pytest.mark.parametrize("text", [
    "a note", "GPU-1f: Xid 79: the GPU fell off the bus (RMA)", "the next node: gpu7",
    "Slurm's reason: to drainage", "scontrol show node",
])  # fmt: skip
def test_what_is_no_command_is_left_as_it_is(text):
    assert without_commands(text) is text


def test_what_marks_a_command_is_taken_from_a_text():
    assert without_commands("see `reboot`") == "see 'reboot'"
    assert without_commands("next: reboot") == "next, reboot"
    assert without_commands("to drain  scontrol update NodeName=ALL") == "...  ... NodeName=ALL"
