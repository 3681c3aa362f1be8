"""Definitions of the shipped criteria, and how they complete a file of limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.errors import ConfigError
from fixtures.thresholds import definitions, loader
from fixtures.thresholds.definitions import Definitions, complete
from fixtures.thresholds.kinds import KINDS
from fixtures.thresholds.strict_yaml import Document
from tests.selftests.small_thresholds import SMALL, load
from tests.selftests.support import SHIPPED

pytestmark = pytest.mark.cpu

TEXTS = {"noun": "One", "proves": "It is.", "not": "Why.", "red": "look"}
SAID = "noun: One, proves: It is., not: Why., red: look"
FILES = {
    "second.yaml": f"area: {{title: Second, position: 2}}\nb.one: {{per: node, {SAID}}}\n",
    "first.yaml": f"area: {{title: First, position: 1}}\na.one: {{per: pair, {SAID}}}\n",
    "demonstration.yaml": "limits: {a.one: [{fail_below: 1}]}\n",
    "tails.yaml": "steady: {slow: 0.9}\n",
}


def folder(tmp_path: Path, **changed: str) -> Path:
    for name, text in (FILES | {f"{k}.yaml": v for k, v in changed.items()}).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_definitions_are_read_from_the_files_of_their_areas(tmp_path):
    found = definitions.shipped(folder(tmp_path))
    assert found.criteria == {
        "a.one": {"per": "pair", **TEXTS}, "b.one": {"per": "node", **TEXTS},
    }  # fmt: skip
    assert found.areas == {"a.one": "first", "b.one": "second"}
    assert list(found.titles.items()) == [("first", "First"), ("second", "Second")]
    assert found.documents["first"].data == {"a.one": found.criteria["a.one"]}
    assert found.demonstration.data == {"limits": {"a.one": [{"fail_below": 1}]}}
    assert found.tails.data == {"steady": {"slow": 0.9}}
    (tmp_path / "other").mkdir()
    changed = definitions.shipped(folder(tmp_path / "other", tails="steady: {slow: 0.8}\n"))
    assert changed.sha256 != found.sha256
    assert len(found.sha256) == 64
    (tmp_path / "empty").mkdir()
    assert definitions.shipped(tmp_path / "empty").tails.data == {}


def test_a_mistake_in_a_definition_is_named(tmp_path):
    for k, (text, says) in enumerate((
        (f"a.one: {{{SAID}}}\narea: {{title: T, position: 3}}\n", "first.yaml defines it"),
        ("c: {per: node, title: x}\narea: {title: T, position: 3}\n", "expected a def"),
        ("c: 3\narea: {title: T, position: 3}\n", "expected a definition"),
        (f"c: {{{SAID}}}\n", "expected `area:"),
        ("area: T\n", "expected `area:"),
        ("area: {title: T}\n", "expected `area:"),
        ("area: {title: T, position: 3, more: 1}\n", "expected `area:"),
    )):  # fmt: skip
        place = tmp_path / str(k)
        place.mkdir()
        with pytest.raises(ConfigError, match=says):
            definitions.shipped(folder(place, third=text))


HEAD = "area: {title: T, position: 3}\n"
GROUPED = (
    "groups: {sides: [{side: left, name: Left}, {side: right, name: Right}]}\n"
    '"c.{side}": {for: sides, noun: "{name} side", as: c.both, '
    'measure: "m.{side}", at: {side: ["{side}", {of: "{name}"}]}}\n'
    f"c.both: {{{SAID}}}\n"
)


def test_an_entry_for_a_group_is_one_criterion_for_each_of_it(tmp_path):
    found = definitions.shipped(folder(tmp_path, third=HEAD + GROUPED))
    for side, name in (("left", "Left"), ("right", "Right")):
        assert found.criteria[f"c.{side}"] == {
            **TEXTS, "noun": f"{name} side", "measure": f"m.{side}",
            "at": {"side": [side, {"of": name}]},
        }  # fmt: skip
        assert found.areas[f"c.{side}"] == "third"
        error = found.documents["third"].error((f"c.{side}", "measure"), "wrong")
        assert str(error).startswith("third.yaml:3: ")


def test_texts_of_another_criterion_are_those_that_one_does_not_have(tmp_path):
    own = f"c: {{{SAID}}}\nd: {{noun: D, as: c, not: Else.}}\n"
    found = definitions.shipped(folder(tmp_path, third=HEAD + own))
    assert found.texts_of("d") == {**TEXTS, "noun": "D", "not": "Else."}
    assert found.criteria["d"] == found.texts_of("d")
    assert found.noun_of("d") == "D"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"c: {{{SAID.replace('noun: One, ', '')}}}", "c: needs noun: what people"),
        (f"c: {{{SAID.replace('It is.', chr(39) * 2)}}}", "needs proves"),
        (f"c: {{{SAID.replace('Why.', '3')}}}", "needs not"),
        ("c: {per: node}", "needs noun, proves, not, red"),
        (f"c: {{{SAID}}}\nd: {{as: c}}", "d: needs noun"),
        (
            f"c: {{{SAID}}}\nd: {{noun: D, as: c}}\ne: {{noun: E, as: d}}",
            "e.as: d is not a criterion",
        ),
        ("d: {noun: D, as: c}", "d.as: c is not a criterion of this file"),
        (f"c: {{{SAID.replace('One', 'One two three four five six')}}}", "c.noun: at most 5 words"),
        (GROUPED.replace("for: sides", "for: side"), "no group 'side', did you mean 'sides'"),
        (GROUPED.replace("right,", "left,"), "c.left is there twice"),
    ],
)
def test_a_criterion_without_its_texts_is_refused(tmp_path, text, says):
    with pytest.raises(ConfigError, match=says):
        definitions.shipped(folder(tmp_path, third=f"{HEAD}{text}\n"))


def test_pages_know_the_area_of_a_criterion_and_of_one_point_of_it(tmp_path):
    found = definitions.shipped(folder(tmp_path))
    for key in ("b.one", "b.one.1GiB"):
        assert found.area_of(key) == "second"
        assert found.title_of(key) == "Second"
        assert found.page_of(key) == "docs/second.md"
        assert found.red_of(key) == "look"
        assert found.noun_of(key) == "One"
    for own in ("own.rate", "b.one.1GiB.more"):
        assert found.area_of(own) == own.partition(".")[0]
        assert (found.title_of(own), found.page_of(own), found.red_of(own)) == ("Other", "", "")
        assert found.noun_of(own) == ""
    assert definitions.is_shipped("allreduce.node.1GiB") is True
    assert definitions.is_shipped("own.rate") is False


# --- a file of limits

FIELDS = ("per", "ceiling", "valid", "loose", "measure")
GEMM = {
    "per": "node", "ceiling": "gemm", "valid": {"batches": [20, None], "overlap": [0.8, None]},
}  # fmt: skip


def shipped(criterion: dict[str, Any] = GEMM, demonstration: Any = None) -> Definitions:
    return Definitions(
        {"gemm.bf16": criterion}, {}, {"gemm.bf16": "compute"}, {"compute": "Compute"},
        Document("demonstration.yaml", demonstration or {}),
        Document("tails.yaml", {"steady": {"slow": 0.9}}), "",
    )  # fmt: skip


def completed(body: Any, definitions: Definitions | None = None, **data: Any) -> Any:
    """The data of a file of limits with one criterion, when it is complete."""
    file = Document("x.yaml", {"criteria": {"gemm.bf16": body}, **data}, {(): 1}, "abc")
    found = complete(file, definitions or shipped(), FIELDS)
    assert (found.name, found.sha256, found.lines) == ("x.yaml", "abc", {(): 1})
    return found.data


def test_a_requirement_gets_the_suites_definition():
    body = {"title": "Fast", "unit": "TFLOPS", "limits": []}
    assert completed(body)["criteria"] == {"gemm.bf16": {**GEMM, **body}}
    with pytest.raises(ConfigError, match=r"ceiling: compute\.yaml defines it; here"):
        completed({**body, "ceiling": "hbm"})
    for odd in ("text", {"criteria": "text"}, {"schema": 1}):
        document = Document("x.yaml", odd)
        assert complete(document, shipped(), FIELDS) is document


def test_a_criterion_that_nobody_knows_needs_a_definition():
    for key, body, refused in (
        ("gemm.bf61", {"limits": []}, True),
        ("gemm.bf61", {"per": "node"}, False),
        ("gemm.bf61", "text", False),
        ("quite.different", {"limits": []}, False),
    ):
        file = Document("x.yaml", {"criteria": {key: body}})
        if refused:
            with pytest.raises(ConfigError, match=r"no criterion 'gemm\.bf61', did you mean 'gemm"):
                complete(file, shipped(), FIELDS)
        else:
            assert complete(file, shipped(), FIELDS).data["criteria"] == {key: body}


def test_a_whole_definition_of_a_shipped_criterion_keeps_the_suites_checks():
    own = {"per": "pair", "valid": {"overlap": [0.5, None]}}
    checks = {"batches": [20, None], "overlap": [0.5, None]}
    loose = {**GEMM, "loose": "small"}
    for body, definition, expected in (
        (own, GEMM, {**own, "valid": checks}),
        ({"per": "pair"}, GEMM, {"per": "pair", "valid": GEMM["valid"]}),
        ({**own, "loose": "x"}, GEMM, {**own, "loose": "x"}),
        (own, loose, {**own, "valid": checks, "loose": "small"}),
        ({**own, "measure": "other.rate"}, GEMM, {**own, "measure": "other.rate"}),
        (own, {"per": "node"}, own),
        ({"per": "pair", "valid": 3}, GEMM, {"per": "pair", "valid": 3}),
        ("text", GEMM, "text"),
    ):
        assert completed(body, shipped(definition))["criteria"]["gemm.bf16"] == expected


def test_the_demonstrations_rows_are_added_where_its_model_has_none():
    demonstration = {"limits": {"gemm.bf16": [{"fail_below": 1}], "other": [{"fail_below": 2}]}}
    made = {"fail_below": 1, "model": "cpu"}
    for rows, expected in (
        ([], [made]),
        ([{"model": "L40S"}], [{"model": "L40S"}, made]),
        ([{"fail_below": 9}], [{"fail_below": 9}, made]),
        (["text"], ["text", made]),
        ([{"model": "cpu"}], [{"model": "cpu"}]),
        ([{"model": ["L40S", "cpu"]}], [{"model": ["L40S", "cpu"]}]),
        ("text", "text"),
    ):
        found = completed({"limits": rows}, shipped(demonstration=demonstration))
        assert found["criteria"]["gemm.bf16"]["limits"] == expected
        assert set(found["criteria"]) == {"gemm.bf16"}
    whole = {"per": "node", "limits": []}
    found = completed(whole, shipped(demonstration=demonstration))
    assert found["criteria"]["gemm.bf16"]["limits"] == []


def test_the_demonstrations_exemptions_are_those_of_the_files_own_criteria():
    demonstration = {
        "not_applicable": [
            {"criteria": ["gemm.bf16", "gemm.bf16.1GiB", "other.x"], "reason": "large"},
            {"criteria": ["other.x"], "reason": "not here"},
        ]
    }
    definition = shipped(demonstration=demonstration)
    added = {
        "criteria": ["gemm.bf16", "gemm.bf16.1GiB"], "reason": "large", "when": {"model": "cpu"},
    }  # fmt: skip
    assert completed({"limits": []}, definition)["not_applicable"] == [added]
    own = [{"criteria": ["a"]}]
    found = completed({"limits": []}, definition, not_applicable=own)
    assert found["not_applicable"] == [*own, added]
    assert completed({"limits": []}, definition, not_applicable="x")["not_applicable"] == "x"


def test_classes_of_steadiness_are_the_suites_and_the_files_own():
    body: dict[str, Any] = {"limits": []}
    assert completed(body)["tails"] == {"steady": {"slow": 0.9}}
    assert completed(body, tails={"own": 1, "steady": 2})["tails"] == {"own": 1, "steady": 2}
    assert completed(body, tails="x")["tails"] == "x"


def test_a_shipped_criterion_keeps_its_checks_in_a_whole_definition(tmp_path):
    """As a customer's file of before a check was there: it does not get around it."""
    limits = load(tmp_path, SMALL.replace("    loose: a small test\n", "", 1))
    valid = limits.criteria["gemm.bf16"].valid
    assert valid["overlap"] == (0.8, None)
    assert valid["relative_error"] == (0.001, 0.005)
    assert valid["batches"] == (20, None)


def test_the_kind_of_a_criterion_is_that_of_its_definition():
    kinds = {key: definitions.shipped().kind_of(key) for key in (
        "allreduce.cluster.1GiB", "allreduce.cluster.errors", "infiniband.state", "ours.rate",
    )}  # fmt: skip
    assert kinds == {
        "allreduce.cluster.1GiB": KINDS["median", "ranks"],
        "allreduce.cluster.errors": KINDS["value", "devices"],
        "infiniband.state": KINDS["value", "nics"],
        "ours.rate": None,
    }
    limits = loader.load(SHIPPED)
    assert all(c.kind == definitions.shipped().kind_of(key) for key, c in limits.criteria.items())
