"""A limits file that lists its differences from another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.errors import ConfigError
from fixtures.paths import THRESHOLDS
from fixtures.thresholds import loader, overlay
from fixtures.thresholds.strict_yaml import Document

pytestmark = pytest.mark.cpu

ROW_A, ROW_B = {"model": ["A", "B"], "fail_below": 1}, {"fail_below": 2}
BASE: dict[str, Any] = {
    "schema": 1, "cluster": {}, "waivers": [{"node": "old"}], "spread": {"gemm": 1},
    "criteria": {"own.rate": {"title": "x", "limits": [ROW_A, ROW_B]}, "own.other": {"title": "y"}},
}  # fmt: skip


def document(data: Any, name: str = "mine.yaml", sha256: str = "1") -> Document:
    return Document(name, data, {(): 1}, sha256)


def applied(**data: Any) -> Any:
    return overlay.apply(document({"base": "b", **data}), document(BASE, "base.yaml", "2")).data


def refusal(**data: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        applied(**data)
    return str(caught.value)


def test_what_the_file_does_not_say_is_as_in_the_base():
    found = applied(cluster={"nodes": 2}, waivers=[{"node": "new"}])
    assert found == BASE | {
        "cluster": {"nodes": 2}, "waivers": [{"node": "new"}, {"node": "old"}],
        "not_applicable": [],
    }  # fmt: skip
    assert applied(not_applicable="text")["not_applicable"] == "text", "left for the schema"
    assert "unknown key 'spread'" in refusal(spread={})
    made = overlay.apply(document({}), document(BASE, "base.yaml", "2"))
    assert made.name == "mine.yaml"
    other = overlay.apply(document({}), document(BASE, "base.yaml", "3"))
    assert made.sha256 not in ("1", "2", other.sha256), "of both files together"


def test_rows_for_a_model_replace_those_of_the_base_for_it():
    for rows, merged in (
        ([{"model": "A"}], [{"model": "A"}, ROW_A | {"model": ["B"]}, ROW_B]),
        ([{"model": ["A", "B"]}], [{"model": ["A", "B"]}, ROW_B]),
        ([{"model": "C"}], [{"model": "C"}, ROW_A, ROW_B]),
        ([{"model": "A"}, {"fail_below": 3}], [{"model": "A"}, {"fail_below": 3}]),
        (["text"], ["text"]),
        ([{"model": 3}], [{"model": 3}]),
    ):
        found = applied(criteria={"own.rate": {"limits": rows}})["criteria"]
        assert found["own.rate"] == {"title": "x", "limits": merged}
        assert found["own.other"] == {"title": "y"}


def test_only_the_limits_of_a_criterion_of_the_base_can_be_others():
    new = {"title": "z", "limits": []}
    assert applied(criteria={"own.new": new})["criteria"]["own.new"] == new
    for criteria, says in (
        ({"own.rte": {"limits": []}}, "no criterion 'own.rte' in base.yaml, did you mean"),
        ({"own.rate": {"limits": [], "title": "x"}}, "only its `limits:` can be others"),
        ({"own.rate": {"limits": "x"}}, "only its `limits:` can be others"),
        ({"own.rate": 3}, "only its `limits:` can be others"),
        (3, "criteria: expected a mapping"),
    ):
        assert says in refusal(criteria=criteria)


# --- the files that a file is based on


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_is_followed_by_its_bases(tmp_path):
    (tmp_path / "below").mkdir()
    write(tmp_path, "last.yaml", "schema: 1\ncriteria: {}\ncluster: {}\n")
    write(tmp_path / "below", "middle.yaml", "base: ../last.yaml\n")
    first = write(tmp_path, "first.yaml", "base: below/middle.yaml\ncluster: {}\n")
    names = [found.name for found in overlay.chain_of(first)]
    assert names == ["first.yaml", "middle.yaml", "last.yaml"]
    assert len(overlay.chain_of(write(tmp_path, "text.yaml", "text\n"))) == 1


def test_a_base_that_cannot_be_used_is_refused(tmp_path):
    write(tmp_path, "list.yaml", "- 1\n")
    write(tmp_path, "b.yaml", "base: a.yaml\n")
    for text, says in (
        ("base: 3\n", "expected the name of a file, got 3"),
        ("base: a.yaml\n", "a.yaml is based on itself"),
        ("base: b.yaml\n", "a.yaml is based on itself"),
        ("base: none.yaml\n", "cannot be read: a relative path is taken from"),
        ("base: list.yaml\n", "list.yaml is not a file of limits"),
    ):
        with pytest.raises(ConfigError, match=says):
            overlay.chain_of(write(tmp_path, "a.yaml", text))


def test_an_order_without_limits_is_told_where_the_suites_own_are(tmp_path):
    for text in ("cluster: {}\n", "schema: 1\ncluster: {}\nwaivers: []\n"):
        with pytest.raises(ConfigError, match="an order without limits") as caught:
            overlay.chain_of(write(tmp_path, "a.yaml", text))
        shown = str(caught.value).partition("here `base: ")[2].partition("`")[0]
        assert (tmp_path / shown).resolve() == THRESHOLDS
    for text in ("schema: 1\n", "cluster: {}\ncriteria: {}\n", "cluster: {}\nspread: {}\n"):
        assert len(overlay.chain_of(write(tmp_path, "a.yaml", text))) == 1


# --- points that a layer takes away


def layered(tmp_path: Path, rows: str, key: str = "gemm.bf16") -> dict[str, str]:
    """What is said of a file that has other limits for a criterion than the shipped ones."""
    own = tmp_path / "own.yaml"
    own.write_text(f"base: {THRESHOLDS}\ncriteria:\n  {key}:\n    limits:\n{rows}")
    return dict(loader.load(own).taken_away)


def test_a_layer_that_records_what_its_base_judges_says_so(tmp_path):
    said = layered(tmp_path, "      - {model: H100 SXM, recorded: not agreed}\n")
    assert said == {
        "gemm.bf16": "gemm.bf16 is recorded and not judged: own.yaml takes away the limit that "
        "thresholds.yaml has (not agreed)"
    }
    assert layered(tmp_path, "      - {recorded: not agreed}\n", "host.edac_corrected")
    (tmp_path / "top.yaml").write_text("base: own.yaml\ncluster: {}\n")
    assert set(loader.load(tmp_path / "top.yaml").taken_away) == {"host.edac_corrected"}


def test_a_layer_that_judges_or_records_what_was_recorded_says_nothing(tmp_path):
    assert (
        layered(
            tmp_path, "      - {model: H100 SXM, expect: 600, fail_below: 500, source: a test}\n"
        )
        == {}
    )
    scratch = "      - {recorded: nothing was agreed}\n"
    assert layered(tmp_path, scratch, "host.scratch_size") == {}
    assert dict(loader.load(THRESHOLDS).taken_away) == {}


def test_a_layer_that_declares_not_applicable_what_its_base_judges_says_so(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(
        f"base: {THRESHOLDS}\nnot_applicable:\n"
        "  - {when: {model: H100 SXM}, criteria: [gemm.bf16], reason: cold}\n"
    )
    said = dict(loader.load(own).taken_away)
    assert set(said) == {"gemm.bf16"}
    assert "gemm.bf16 is not judged where own.yaml says so (cold)" in said["gemm.bf16"]


def test_rows_that_stand_beside_those_of_the_base_replace_none():
    found = applied(criteria={"own.rate": {"limits": [{"model": "A", "n": 1}], "beside": True}})
    assert found["criteria"]["own.rate"]["limits"] == [{"model": "A", "n": 1}, ROW_A, ROW_B]
    assert "expected true" in refusal(criteria={"own.rate": {"limits": [], "beside": False}})
    assert "no criterion 'own.new'" in refusal(criteria={"own.new": {"limits": [], "beside": True}})
