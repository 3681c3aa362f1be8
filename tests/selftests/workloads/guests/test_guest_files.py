"""Parsers of other tools' results: what they know, and that they refuse everything else."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fixtures.workloads.guests import guest_dcgmi, guest_files, guest_fio, guest_nvidia_smi
from fixtures.workloads.guests.guest_files import GuestError, JsonFile
from tests.selftests import guest_samples

pytestmark = pytest.mark.cpu

UUIDS = ("GPU-0badcafe-0000-1111-2222-333333333333", "GPU-0badcafe-0000-1111-2222-333333333334")
PARSERS = (guest_dcgmi.parse, guest_fio.parse, guest_nvidia_smi.parse)
SAMPLES = (
    guest_samples.dcgm3("GPU Memory"), guest_samples.dcgm4("pcie"), guest_samples.fio(5),
    guest_samples.smi(UUIDS),
)  # fmt: skip


def _quiet(text: str) -> None:
    """No parser raises anything but its own error, and no noise is a result."""
    for parse in PARSERS:
        with contextlib.suppress(GuestError):
            parse(text)
            assert any(key in text for key in ("fio version", "DCGM", "nvidia_smi_log"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(
            ["DCGM Diagnostic", "test_categories", "tests", "results", "status", "name", "jobs",
             "fio version", "error", "read", "bw_bytes", "category"]
        ) | st.text(max_size=6),
        inner, max_size=5,
    ),
    max_leaves=20,
)  # fmt: skip


@given(st.text(max_size=200))
@example("")
@example("[" * 100_000)
@example('{"a":' * 100_000)
@example("<a>" * 100_000)
@example("9" * 5000)
@example('{"fio version": "fio-3", "jobs": [' + "9" * 5000 + "]}")
@example("<?xml version='1.0' encoding='utf-99'?><a/>")
@example("\ud800")
@example('{"a": "\\ud800", "fio version": 1e999}')
def test_noise_is_refused_and_nothing_else_is_raised(text):
    with pytest.raises(GuestError):
        guest_dcgmi.parse(text)
    with pytest.raises(GuestError):
        guest_fio.parse(text)
    with pytest.raises(GuestError):
        guest_nvidia_smi.parse(text)


@given(JSON)
def test_json_of_any_shape_raises_nothing_else(data):
    _quiet(json.dumps(data))


@given(st.sampled_from(SAMPLES), st.integers(0, 10_000), st.text(max_size=4), st.integers(0, 30))
def test_a_damaged_result_is_refused_or_says_what_is_left(sample, place, noise, cut):
    place %= len(sample)
    _quiet(sample[:place] + noise + sample[place + cut :])


@given(st.sampled_from(SAMPLES), st.integers(1, 10_000))
def test_a_result_that_was_cut_off_is_never_one(sample, place):
    cut = sample.rstrip()[: place % (len(sample.rstrip()) - 1) + 1]
    for parse in PARSERS:
        with pytest.raises(GuestError):
            parse(cut[:-1])


# --- files, their age, and their JSON


def test_a_file_is_read_in_utf_8_up_to_its_largest_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "a"
    file.write_bytes("h\u00e9".encode())
    assert guest_files.read_text(file) == "h\u00e9"
    assert guest_files.LARGEST_BYTES == 32 << 20
    monkeypatch.setattr(guest_files, "LARGEST_BYTES", 3)
    assert guest_files.read_text(file)
    monkeypatch.setattr(guest_files, "LARGEST_BYTES", 2)
    with pytest.raises(GuestError, match="3 bytes, more than 2"):
        guest_files.read_text(file)
    monkeypatch.undo()
    file.write_bytes(b"a\nb\n\xff\n")
    with pytest.raises(GuestError, match="line 3: byte 0xff is not UTF-8"):
        guest_files.read_text(file)
    with pytest.raises(GuestError, match="cannot be read: No such file"):
        guest_files.read_text(tmp_path / "none")


def test_a_result_is_of_this_boot_and_not_of_the_future():
    guest_files.check_age(100, 100, 100)
    guest_files.check_age(3700, 100, 100)
    with pytest.raises(GuestError, match="before this node booted"):
        guest_files.check_age(99.5, 100, 200)
    with pytest.raises(GuestError, match="this node's clock says"):
        guest_files.check_age(3701, 100, 100)
    assert guest_files._date(1e300) == "1e+300 s after 1970"
    assert guest_files._date(0).startswith(("1970-01-01 ", "1969-12-31 "))


TEXT = """
{"a": 1,
 "b": [10,
       {"c": "x", "d":
         null}, 30],
 "e": {}, "f": [],
 "g": true}
"""


def test_the_line_of_a_value_is_where_it_begins():
    file = JsonFile(TEXT)
    for path, line in (
        ([], 2), (["a"], 2), (["b"], 3), (["b", 0], 3), (["b", 1], 4), (["b", 1, "d"], 5),
        (["b", 2], 5), (["e"], 6), (["g"], 7),
    ):  # fmt: skip
        assert file.line_of(path) == line, path
    assert str(file.refuse(["b", 1, "c"], "why")) == "line 4: b[1].c: why"
    assert str(file.refuse([], "why")) == "line 2: why"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "line 1: list [] where an object"),
        ("\n{", "line 2: is not JSON"),
        ('{"a": 1, "a": 2}', "an object has 'a' twice"),
        ('{"a": Infinity}', "Infinity is not"),
        ('{"a": 1e999}', "1e999 is too large"),
        ('{"a": -1e999}', "too large"),
        ("null", "nothing where an object"),
        ("{} x", "is not JSON"),
        ('{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_what_is_not_one_object_is_refused(text, says):
    with pytest.raises(GuestError) as refused:
        JsonFile(text)
    assert says in str(refused.value)


def test_values_are_of_the_kind_that_is_expected():
    file = JsonFile(TEXT)
    good: list[tuple[Any, Any]] = [
        (file.mapping, {}), (file.sequence, []), (file.text, ""), (file.number, 0),
        (file.number, 1.5),
    ]  # fmt: skip
    for check, value in good:
        assert check(value, ["a"]) == value
    bad: list[tuple[Any, Any, str]] = [
        (file.mapping, None, "nothing where an object"),
        (file.sequence, {}, "dict {} where a list"),
        (file.text, 3, "int 3 where a text"), (file.number, -1, "-1 where a number"),
        (file.number, True, "True where"), (file.number, "1", "'1' where a number"),
    ]  # fmt: skip
    for check, value, says in bad:
        with pytest.raises(GuestError) as refused:
            check(value, ["a"])
        assert f"line 2: a: {says}" in str(refused.value)
    file.keys({"a": 1, "b": 2}, [], needed=("a",), known=("b", "c"))
    for value, says in (({"b": 1}, "has no 'a'"), ({"a": 1, "g": 1}, "g: is not known here")):
        with pytest.raises(GuestError, match=says):
            file.keys(value, [], needed=("a",), known=("b",))
