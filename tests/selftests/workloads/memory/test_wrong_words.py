"""Words that do not hold what was written: how they are told."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.workloads.memory.wrong_words import LOCATED, WrongWord, WrongWords

pytestmark = pytest.mark.cpu


def test_more_bits_than_a_line_has_room_for_are_counted():
    few = {"offset": 0, "chunk": 0, "number": 0, "stays": True, "belongs": ""}
    word = WrongWord(wrote=0, read=0b11111, **few)
    assert word.what == "5 bits"
    bits = [WrongWord(wrote=0, read=1 << k, **few) for k in range(6)]
    assert "2 others" in WrongWords(6, bits).summary
    assert "more than 4 bits in 1" in WrongWords(1, [word]).summary


def a_word(wrote: int, read: int, **more: Any) -> WrongWord:
    values = {"offset": 64, "chunk": 2, "number": 4, "stays": True, "belongs": "", **more}
    return WrongWord(wrote=wrote, read=read, **values)


def test_bits_are_told_with_their_direction():
    word = a_word(0b0101, 0b0110)
    assert word.flips == [(0, 1), (1, 0)]
    assert word.what == "bit 0 from 1 to 0, bit 1 from 0 to 1"
    assert word.text == f"byte 0x40 (chunk 2, pass 5): {word.what}"
    assert a_word(1, 0, stays=False).text.endswith(", right when read again")
    assert a_word(0, 0b1111).what.count("bit ") == 4
    assert a_word(0, 0b11111).what == "5 bits"
    assert a_word(0, 1, belongs="of byte 0x8").what == "holds the word of byte 0x8"


def test_a_record_has_words_in_hexadecimal():
    assert a_word(1 << 63, 255).to_json() == {
        "byte": 64, "chunk": 2, "pass": 5, "wrote": "8000000000000000", "read": f"{255:016x}",
        "differ": "80000000000000ff", "what": "9 bits", "stays": True,
    }  # fmt: skip


def test_a_summary_counts_kinds_and_places():
    assert WrongWords().notes("gpu0") == []
    words = [a_word(0, 1), a_word(0, 1, offset=72), a_word(0, 31), a_word(0, 3, belongs="of x")]
    found = WrongWords(9, words)
    assert found.summary == (
        "of the first 4, at 2 addresses: bit 0 from 0 to 1 in 2, more than 4 bits in 1, "
        "holds a word of another address or pass in 1"
    )
    assert found.notes("gpu3")[0] == f"gpu3: 9 wrong words; {found.summary}"
    assert found.notes("gpu3")[1:] == [f"gpu3: {word.text}" for word in words]
    four = WrongWords(4, [a_word(0, 1 << k) for k in range(4)])
    assert "other" not in four.summary
    assert LOCATED == 16, "a note for each stays readable"
