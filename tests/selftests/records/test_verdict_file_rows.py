"""The two files of a verdict: which rows stand where, and what is refused when they are read."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.records import verdict_file
from fixtures.records.files import RecordError
from fixtures.records.model import VERDICT_SCHEMA
from fixtures.records.run_directory import RunDirectory
from fixtures.records.verdict_file import (
    SPLIT_SCHEMA,
    is_as_written,
    read_verdict,
    remove_verdict,
    schema_of,
    table_of,
    write_verdict,
)
from fixtures.verdict.model import Outcome
from tests.selftests.support import change
from tests.selftests.verdict.made import verdict

pytestmark = pytest.mark.cpu

OUTCOMES = ("PASS", "FAIL", "RECORDED", "NOT_APPLICABLE", "NOT_MEASURED", "WAIVED", "PASS")


def rows() -> list[Any]:
    """One row of each outcome, with values of every type."""
    values = (1, 2.0, "text", None, True, -3, 0)
    return [
        verdict(
            outcome=Outcome(outcome), subject=f"n{k}", value=values[k],
            margin=None if k % 2 else 0.5, notes=["ä"] * (k % 3), attempt=k,
            worst={"node": "n", "gpu": k} if k % 2 else None,
        ).to_json()
        for k, outcome in enumerate(OUTCOMES)
    ]  # fmt: skip


def whole(schema: int = SPLIT_SCHEMA) -> dict[str, Any]:
    return {"schema": schema, "verdict": "REJECTED", "criteria": rows(), "summary": {"a": 1}}


def written(tmp_path: Path, schema: int = SPLIT_SCHEMA) -> RunDirectory:
    tmp_path.mkdir(exist_ok=True)
    directory = RunDirectory(tmp_path)
    write_verdict(directory, whole(schema))
    return directory


def test_a_verdict_of_many_rows_has_a_second_file():
    assert verdict_file.MAX_ROWS == 20_000, "a cluster of about a hundred nodes"
    for count, schema in ((20_000, VERDICT_SCHEMA), (20_001, SPLIT_SCHEMA)):
        assert schema_of([{}] * count) == schema
    assert (VERDICT_SCHEMA, SPLIT_SCHEMA) == (2, 3)


def test_rows_that_need_no_look_stand_in_the_second_file(tmp_path):
    directory = written(tmp_path)
    shown = json.loads(directory.verdict.read_text(encoding="utf-8"))
    assert [row["outcome"] for row in shown["criteria"]] == ["FAIL", "NOT_MEASURED", "WAIVED"]
    digest = hashlib.sha256(directory.verdict_rest.read_bytes()).hexdigest()
    assert shown["rest"] == {"file": "verdict-rest.parquet", "rows": 4, "sha256": digest}
    assert list(shown) == ["schema", "verdict", "criteria", "rest", "summary"]
    assert json.dumps(read_verdict(directory)) == json.dumps(whole()), "with the types of all"
    remove_verdict(directory)
    assert not directory.verdict.exists()
    assert not directory.verdict_rest.exists()
    remove_verdict(directory)


def test_a_small_verdict_is_one_file(tmp_path):
    directory = written(tmp_path, VERDICT_SCHEMA)
    assert not directory.verdict_rest.exists()
    assert read_verdict(directory) == whole(VERDICT_SCHEMA)
    directory.verdict.write_text("[1]", encoding="utf-8")
    assert read_verdict(directory) == [1]


def test_the_second_file_is_written_in_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(verdict_file, "ROWS_PER_GROUP", 2)
    directory = written(tmp_path)
    assert read_verdict(directory) == whole()
    assert is_as_written(directory, whole())
    assert verdict_file._parquet().ParquetFile(directory.verdict_rest).num_row_groups == 2
    monkeypatch.undo()
    assert is_as_written(directory, whole()), "however it was cut"


def test_a_group_has_twenty_thousand_rows():
    assert verdict_file.ROWS_PER_GROUP == 20_000, "memory for one group at a time"


def test_a_verdict_is_compared_with_what_is_on_the_disk(tmp_path):
    for schema in (VERDICT_SCHEMA, SPLIT_SCHEMA):
        directory = written(tmp_path / str(schema), schema)
        assert is_as_written(directory, whole(schema)) is True
        for k, name, value in ((0, "value", 5), (1, "value", 5), (0, "title", "other")):
            changed = whole(schema)
            changed["criteria"][k][name] = value
            assert is_as_written(directory, changed) is False
        assert is_as_written(directory, {**whole(schema), "verdict": "ACCEPTED"}) is False


def refusal(directory: RunDirectory, **changes: Any) -> str:
    """What is said of a verdict whose verdict.json was changed."""
    change(directory.verdict, **changes)
    with pytest.raises(RecordError) as caught:
        read_verdict(directory)
    return str(caught.value)


def test_files_that_do_not_fit_each_other_are_refused(tmp_path):
    for k, (about, says) in enumerate((
        ({"rows": 5}, "4 rows, by verdict.json 5"),
        ({"sha256": "0" * 64}, "changed: SHA-256"),
        ({"file": "other.parquet"}, "of other.parquet"),
    )):  # fmt: skip
        directory = written(tmp_path / str(k))
        rest = json.loads(directory.verdict.read_text(encoding="utf-8"))["rest"]
        assert says in refusal(directory, rest={**rest, **about})
    for k, changes in enumerate(({"rest": 3}, {"criteria": {}}, {"rest": None})):
        assert "needs `rest` and `criteria`" in refusal(written(tmp_path / f"b{k}"), **changes)
    gone = written(tmp_path / "gone")
    gone.verdict_rest.unlink()
    assert "No such file" in refusal(gone)
    broken = written(tmp_path / "broken")
    broken.verdict_rest.write_bytes(b"text")
    digest = hashlib.sha256(b"text").hexdigest()
    about = {"file": "verdict-rest.parquet", "rows": 4, "sha256": digest}
    assert refusal(broken, rest=about).startswith("verdict-rest.parquet: ")


def test_two_rows_never_share_a_place():
    row = {"criterion": "a"}
    merged = verdict_file._merged([{"criterion": "b"}], [(1, row)])
    assert merged == [{"criterion": "b"}, row]
    assert verdict_file._merged([{"criterion": "b"}], [(0, row)]) == [row, {"criterion": "b"}]
    for places in ((0, 0), (0, 2), (-1, 0)):
        with pytest.raises(RecordError, match="is not that of one row"):
            verdict_file._merged([], [(place, row) for place in places])


def test_a_column_has_the_values_of_its_field_and_equal_texts_once():
    table = table_of(rows(), [0, 2, 6])
    assert table.column("place").to_pylist() == [0, 2, 6]
    assert verdict_file._column(table, "value") == [1, "text", 0]
    assert verdict_file._column(table, "attempt") == [0, 2, 6]
    assert verdict_file._column(table, "devices") == [{"planned": 2, "measured": 0}] * 3
    titles = verdict_file._column(table, "title")
    assert titles == ["x"] * 3
    assert titles[0] is titles[1]
    assert verdict_file._column(table, "record") == [None] * 3
    plain = verdict_file._plain(table)
    assert verdict_file._column(plain, "subject") == ["n0", "n2", "n6"]
    assert str(plain.schema.field("subject").type) == "string"
    assert str(plain.schema.field("place").type) == "int32"
    assert table_of(rows(), []).num_rows == 0
    assert "devices_planned" in table.column_names


def test_json_texts_are_one_value_each():
    for value in (1, 1.5, "ä", None, {"a": [1]}):
        text = verdict_file._text(value)
        assert verdict_file._value(text) == value
    assert verdict_file._value(verdict_file._text("\ud800")) == r"\ud800", "it is made inert"
    assert verdict_file._text(2**70) == str(2**70), "by the writer of the standard library"
    with pytest.raises(ValueError, match="is not one value"):
        verdict_file._value("1 2")
