"""Conversations as Glaive writes them: read, broken, and held out."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.selftests.finetuning_cases import ROW
from training.finetune import glaive, sample
from training.finetune.settings import InputError

pytestmark = pytest.mark.cpu


BROKEN = [
    ("{", "not JSON"),
    ("[1]", "no object with system and chat"),
    (json.dumps({"system": "SYSTEM: x"}), "chat is missing"),
    (json.dumps({**ROW, "chat": "Hello"}), "expected USER:"),
    (json.dumps({**ROW, "chat": "USER: Hello"}), "no ASSISTANT: turn"),
    (json.dumps({**ROW, "chat": "USER: x\nASSISTANT: <functioncall> {"}), "cannot be read"),
]


def test_a_conversation_is_read_as_glaive_writes_it():
    conversation = glaive.parse(ROW)
    assert conversation.system == "You may call f."
    roles = [turn.role for turn in conversation.turns]
    assert roles == ["USER", "ASSISTANT", "FUNCTION RESPONSE", "ASSISTANT"]
    assert glaive.call_of(conversation.turns[1].text) == glaive.Call("f", {"city": "Oslo", "n": 2})
    assert glaive.parse(glaive.row_of(conversation)) == conversation


@pytest.mark.parametrize(
    "text",
    [
        '<functioncall> {"name": "f", "arguments": {"a": "it\'s"}}',
        '<functioncall> {"name": "f", "arguments": "{\\"a\\": \\"it\'s\\"}"} <|endoftext|>',
        """<functioncall> {"name": "f", "arguments": '{"a": "it\\'s"}'}""",
    ],
)
def test_every_spelling_of_a_call_is_read(text):
    assert glaive.call_of(text) == glaive.Call("f", {"a": "it's"})


@pytest.mark.parametrize(
    "text", ["", "Hello", "<functioncall> {}", '<functioncall> {"name": "f", "arguments": [1]}']
)
def test_what_is_no_call_is_none(text):
    assert glaive.call_of(text) is None


@pytest.mark.parametrize(("line", "said"), BROKEN)
def test_a_broken_line_is_named_by_its_number(tmp_path, line, said):
    path = tmp_path / "data.jsonl"
    path.write_text(f"{json.dumps(ROW)}\n\n{line}\n{json.dumps(ROW)}\n")
    with pytest.raises(InputError, match=r"1 of 3 conversations are broken: line 3: ") as error:
        glaive.read(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    found, broken = glaive.read(path, skip_broken=True)
    assert len(found) == 2
    assert broken == [b for b in broken if b.startswith("line 3: ")]


def test_of_many_broken_lines_some_are_named(tmp_path):
    path = tmp_path / "data.json"
    path.write_text(json.dumps([ROW, *[{}] * 9]))
    with pytest.raises(InputError, match=r"9 of 10 .*entry 2: .*entry 6: .*and 4 more"):
        glaive.read(path)


def test_a_file_without_conversations_is_refused(tmp_path):
    (tmp_path / "data.jsonl").write_text("\n")
    with pytest.raises(InputError, match="no conversation"):
        glaive.read(tmp_path / "data.jsonl")


def test_what_is_held_out_is_not_trained_on():
    conversations = [glaive.parse(row) for row in sample.rows(40)]
    training, held_out = glaive.split(conversations, 0.25, 3)
    assert (len(training), len(held_out)) == (30, 10)
    assert Counter(map(repr, training + held_out)) == Counter(map(repr, conversations))
    assert glaive.split(conversations, 0.25, 3) == (training, held_out)


def test_only_what_the_assistant_says_ends_and_is_learned():
    conversation = glaive.parse(ROW)
    row = glaive.row_of(conversation)
    assert row["chat"].count("<|endoftext|>") == 2
    assert row["chat"].startswith("USER: Call it.\n\n\nASSISTANT: <functioncall>")
    parts = list(glaive.segments(conversation, "<end>"))
    learned = [text for text, is_learned in parts if is_learned]
    assert [text.endswith("<end>") for text, _ in parts] == [t in learned for t, _ in parts]
    assert learned[-1] == " Done.<end>"
    assert len(learned) == 2


def test_a_call_is_asked_for_after_all_that_came_before_it():
    ((prompt, expected),) = glaive.expected_calls(glaive.parse(ROW), "<end>")
    assert "".join(prompt) == "SYSTEM: You may call f.\n\nUSER: Call it.\n\nASSISTANT:"
    assert expected.startswith("<functioncall>")
    assert "<end>" not in expected
