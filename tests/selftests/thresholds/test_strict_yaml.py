"""Strict YAML: what is ambiguous or too large is refused, in one line with its number."""

from __future__ import annotations

import hashlib
from typing import Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, field_validator

from fixtures.errors import ConfigError
from fixtures.thresholds import strict_yaml
from fixtures.thresholds.strict_yaml import Document, Strict, as_number, dotted, parse

pytestmark = pytest.mark.cpu


def error_of(text: str | bytes) -> str:
    raw = text.encode() if isinstance(text, str) else text
    with pytest.raises(ConfigError) as caught:
        parse(raw, "x.yaml")
    return str(caught.value)


# --- plain data

SCALARS = {
    "a b": "a b", "'1'": "1", "null": None, "~": None, "true": True, "True": True, "yes": True,
    "ON": True, "false": False, "no": False, "Off": False, "0": 0, "-7": -7, "+12": 12, "10": 10,
    "1.5": 1.5, ".5": 0.5, "1.0e+3": 1000.0,
}  # fmt: skip


def test_scalars_become_plain_values_of_their_type():
    for text, value in SCALARS.items():
        found = parse(f"a: {text}\n".encode(), "x").data["a"]
        assert found == value, text
        assert type(found) is type(value), text


REFUSED = {
    "a: 010": "010 is not a plain decimal number",
    "a: 0x10": "0x10 is not a plain decimal number",
    "a: 1_000": "1_000 is not a plain decimal number",
    "a: 1:30.5": "1:30.5 is not a plain decimal number",
    "a: .nan": ".nan is not a finite number",
    "a: -.inf": "-.inf is not a finite number",
    "a: +.INF": "+.INF is not a finite number",
    "a: 1.0e+999": "1.0e+999 is not a finite number",
    "a: 2026-12-31": "2026-12-31 is read as a date: quote it",
    "a: !!binary aGk=": "tag 'tag:yaml.org,2002:binary' is not allowed",
    "a: !!set {}": "tag 'tag:yaml.org,2002:set' is not allowed",
    "a: !!omap []": "tag 'tag:yaml.org,2002:omap' is not allowed",
    "a: !own x": "tag '!own' is not allowed",
    "1: x": "a key must be text, not '1'",
    "on: x": "a key must be text, not 'on'",
    "[a]: x": "a key must be text, not a list or mapping",
    "a: &b x": "'b': anchors and aliases are not allowed",
    "a: *b": "'b': anchors and aliases are not allowed",
    "a: [": "",
    "": "is empty",
    "# nothing": "is empty",
}


def test_what_is_ambiguous_is_refused_in_its_line():
    for text, says in REFUSED.items():
        line = error_of(text)
        assert line.startswith("x.yaml:")
        assert says in line, text
        assert "\n" not in line
    assert error_of("a: 1\nb:\n  - x\n  - 010\n").startswith("x.yaml:4: b[1]: ")
    assert error_of("b: 1\nc: [1, 2\nd: 3\n").startswith("x.yaml:3: ")
    assert "x.yaml: is not UTF-8 text (byte 3)" in error_of(b"a: \xff")
    assert error_of(b"a: \x07").startswith("x.yaml:1: ")


def test_a_key_that_is_given_twice_is_named_with_both_lines():
    assert error_of("a: 1\nb:\n  c: 1\n  c: 2\n") == (
        "x.yaml:4: b.c: duplicate key 'c', first given in line 3"
    )
    assert parse(b"b: {c: 1}\nd: {c: 1}\n", "x").data == {"b": {"c": 1}, "d": {"c": 1}}


def test_twelve_levels_are_read_and_thirteen_are_not():
    assert strict_yaml.MAX_DEPTH == 12
    assert parse(b"[" * 11 + b"1" + b"]" * 11, "x").data is not None
    assert "nested deeper than 12 levels" in error_of("[" * 12 + "1" + "]" * 12)
    wide = "a:\n" + "".join(f"  k{k}: [1, [2]]\n" for k in range(30))
    assert len(parse(wide.encode(), "x").data["a"]) == 30, "depth is not the number of items"


def test_a_file_of_more_than_a_million_bytes_is_not_parsed(tmp_path):
    file = tmp_path / "x.yaml"
    most = 1_000_000
    file.write_bytes(b"a: 1\n#" + b"x" * (most - 6))
    assert file.stat().st_size == most
    assert strict_yaml.read(file).data == {"a": 1}
    file.write_bytes(b"a: 1\n#" + b"x" * (most - 5))
    with pytest.raises(ConfigError, match="1000001 bytes"):
        strict_yaml.read(file)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        strict_yaml.read(tmp_path / "none.yaml")


def test_a_document_knows_its_name_its_bytes_and_the_line_of_everything():
    found = parse(b"a:\n  b: [x,\n    y]\n", "x.yaml")
    assert found.name == "x.yaml"
    assert found.data == {"a": {"b": ["x", "y"]}}
    assert found.sha256 == hashlib.sha256(b"a:\n  b: [x,\n    y]\n").hexdigest()
    assert found.lines[("a",)] == 1
    assert found.lines[("a", "b")] == 2
    assert found.lines[("a", "b", 1)] == 3


def test_both_scanners_come_to_the_same_data():
    """libyaml reads most files; with a tab, or an exclamation mark, PyYAML's own scanner does."""
    plain = b"a: [1, {b: x}]\n"
    quoted = b'a: [1, {b: "x!"}]\n'
    assert parse(plain, "x").data == {"a": [1, {"b": "x"}]}
    assert parse(quoted, "x").data == {"a": [1, {"b": "x!"}]}
    assert strict_yaml._compose("a: 1\n").tag == "tag:yaml.org,2002:map"
    assert "\\t" in error_of("a:\n\tb: 1\n"), "in the words of PyYAML"


def test_libyaml_is_used_for_plain_text_and_not_for_what_it_reads_otherwise(monkeypatch):
    read: list[str] = []
    for name in ("_LibyamlLoader", "_Loader"):
        monkeypatch.setattr(strict_yaml, name, lambda text, name=name: (name, text))
    monkeypatch.setattr(strict_yaml, "_root", lambda loader: read.append(loader[0]) or loader)
    strict_yaml._compose("a: 1\n")
    strict_yaml._compose("a: x!\n")
    monkeypatch.setattr(strict_yaml, "_LibyamlLoader", None)
    strict_yaml._compose("a: 1\n")
    assert read == ["_LibyamlLoader", "_Loader", "_Loader"]


# --- messages


def test_an_error_has_the_line_of_the_nearest_known_location():
    document = Document("x", {}, {(): 1, ("a",): 3, ("a", "b", 0): 5})
    assert str(document.error(("a", "b", 0), "no")) == "x:5: a.b[0]: no"
    assert str(document.error(("a", "b", 1), "no")) == "x:3: a.b[1]: no"
    assert str(document.error(("z",), "two\n lines")) == "x:1: z: two lines"
    assert str(document.error((), "no")) == "x:1: no"
    assert dotted(("a", 0, "b", "c")) == "a[0].b.c"


class Inner(Strict):
    number: float = 1.0
    count: int = 1
    text: str = "x"
    flag: bool = True
    names: list[str] = Field(default_factory=lambda: ["x"], min_length=1)


class Outer(Strict):
    required: int
    inner: Inner = Field(default_factory=Inner)
    schema_: int = Field(default=1, alias="schema")
    kind: Literal["a", "b"] = "a"
    even: int = 0

    @field_validator("even")
    @classmethod
    def _is_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError(f"{value} is odd")
        return value


INVALID = {
    "required: 1\nother: 2": "x:2: unknown key 'other'",
    "required: 1\ninner: {numbr: 2}": "x:2: inner: unknown key 'numbr', did you mean 'number'?",
    "schema: 1": "x:1: missing key 'required'",
    "inner: {number: [1]}\nrequired: 1": "expected a number, got a list or mapping",
    "inner: {number: fast}\nrequired: 1": "inner.number: expected a number, got 'fast'",
    "inner: {number: 1e3}\nrequired: 1": "'1e3' is read as text: write 1000 or 1.0e+3",
    "inner: {count: 1e3}\nrequired: 1": "'1e3' is read as text: write 1000 or 1.0e+3",
    "inner: {text: 535.10}\nrequired: 1": "expected text, got 535.1 (quote it)",
    "inner: {text: null}\nrequired: 1": "x:1: inner.text: expected text, got None",
    "inner: {flag: 1e3}\nrequired: 1": "expected true or false, got '1e3'",
    "inner: {names: []}\nrequired: 1": "inner.names: is empty",
    "inner: {names: x}\nrequired: 1": "expected a list, got 'x'",
    "inner: 3\nrequired: 1": "inner: expected a mapping, got 3",
    "3": "x:1: expected a mapping, got 3",
    "required: 1\nkind: c": "x:2: kind: Input should be 'a' or 'b', got 'c'",
    "required: 1\neven: 3": "x:2: even: 3 is odd",
}


def test_an_invalid_value_is_told_in_the_words_of_the_file():
    for text, says in INVALID.items():
        with pytest.raises(ConfigError) as caught:
            strict_yaml.validate(Outer, parse(f"{text}\n".encode(), "x"))
        line = str(caught.value)
        assert says in line, text
        assert "\n" not in line
        assert line.endswith("quote it)") == ("quote it" in says), text


def test_the_error_of_the_first_line_is_told():
    text = b"required: x\ninner: {count: y}\nschema: z\n"
    with pytest.raises(ConfigError, match=r"^x:1: required: expected a number"):
        strict_yaml.validate(Outer, parse(text, "x"))
    text = b"schema: z\ninner: {count: y}\nrequired: x\n"
    with pytest.raises(ConfigError, match=r"^x:1: schema: expected a number"):
        strict_yaml.validate(Outer, parse(text, "x"))
    fine = strict_yaml.validate(Outer, parse(b"required: 3\nschema: 4\n", "x"))
    assert (fine.required, fine.schema_) == (3, 4)


def test_names_of_validators_are_no_part_of_a_location():
    assert strict_yaml._names_validator("function-plain[_value()]")
    assert strict_yaml._names_validator("list[str]")
    assert strict_yaml._names_validator("f(x)")
    assert not strict_yaml._names_validator("limits")
    assert not strict_yaml._names_validator(0)


# --- numbers

WRITTEN = {
    "1e3": "1000 or 1.0e+3", "8e-2": "8.0e-2", "1.25e3": "1250 or 1.25e+3", "1e0": "1 or 1.0e+0",
    "0.5": "5.0e-1", "1e14": "100000000000000 or 1.0e+14", "1e15": "1.0e+15", "0": "0.0e+0",
    "2.5": "2.5e+0",
}  # fmt: skip


def test_a_number_is_proposed_as_yaml_reads_it():
    for text, proposed in WRITTEN.items():
        assert as_number(text) == proposed


@given(st.floats(1e-12, 1e15))
def test_the_proposed_spelling_is_a_number_in_yaml(number):
    for proposal in as_number(f"{number!r}").split(" or "):
        assert isinstance(yaml.safe_load(proposal), (int, float))
