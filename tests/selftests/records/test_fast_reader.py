"""A large record is parsed rank by rank: the same record as parsed as a whole, the same errors."""

from __future__ import annotations

import ast
import json
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.records import fast_reader
from fixtures.records.fast_reader import read_record
from fixtures.records.model import Measurement, Record
from tests.selftests import support

pytestmark = pytest.mark.cpu

RECORDS = sorted((support.DATA / "h200-2x2" / "records").glob("*.json"))


def outcome(path: Path, *, without_facts: bool) -> object:
    try:
        return read_record(path, without_facts=without_facts)
    except ValueError as error:
        return str(error)


def both(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, without_facts: bool = True
) -> tuple[object, object]:
    whole = outcome(path, without_facts=without_facts)
    with monkeypatch.context() as patch:
        patch.setattr(fast_reader, "LARGE_BYTES", 0)
        return whole, unpacked(outcome(path, without_facts=without_facts))


def unpacked(found: object) -> object:
    """A record with its numbers in lists: those of a large one are packed, and as large."""
    if not isinstance(found, Record):
        return found
    ranks = [
        replace(
            rank,
            measurements=[
                replace(m, samples=list(m.samples), ended=list(m.ended)) for m in rank.measurements
            ],
        )
        for rank in found.ranks
    ]
    return replace(found, ranks=ranks)


def test_the_numbers_of_a_large_record_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all are floats: what is judged of 600 and of 600.0 is not written alike."""
    path = support.DATA / "h200-2x2" / "records" / "gemm@worker0.json"
    monkeypatch.setattr(fast_reader, "LARGE_BYTES", 0)
    first = read_record(path).ranks[0].measurements[0]
    assert isinstance(first.samples, array)
    assert isinstance(first.ended, array)
    whole = {"metric": "x", "unit": "x", "samples": [600, 601.5]}
    assert Measurement.from_json(whole, {}).samples == [600, 601.5]


def test_recorded_records_can_be_cut() -> None:
    cut = [path for path in RECORDS if fast_reader._parts(path.read_bytes()) is not None]
    assert len(cut) >= 0.9 * len(RECORDS) > 20


@pytest.mark.parametrize("without_facts", [False, True])
def test_rank_by_rank_gives_the_same_record(
    without_facts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in RECORDS:
        whole, cut = both(path, monkeypatch, without_facts=without_facts)
        assert repr(cut) == repr(whole), path.name
        assert cut == whole


CHANGES = {
    "ends in its middle": lambda text: text[: len(text) // 2],
    "a field of another type": lambda text: text.replace('"start"', '"begin"', 1),
    "a rank twice": lambda text: text.replace('"rank": 1,', '"rank": 0,', 1),
    "a number that is not finite": lambda text: text.replace(
        '"samples": [', '"samples": [NaN, ', 1
    ),
    "a comma too many": lambda text: text.replace('"rank": 1,', '"rank": 1,,', 1),
    "the ranks twice": lambda text: text.rstrip().rstrip("}") + ', "ranks": []}',
    "a text that looks like a rank": lambda text: text.replace(
        '"facts": {', '"facts": {"x": ",{\\"rank\\": 1, \\"local_rank\\"", ', 1
    ),
    "a nested entry that looks like a rank": lambda text: text.replace(
        '"facts": {', '"facts": {"x": [1, {"rank": 1, "local_rank": 2}], ', 1
    ),
    "no comma between ranks": lambda text: text.replace('}, {"rank": 1', '} {"rank": 1', 1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_wrong_with_it_is_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = (support.DATA / "h200-2x2" / "records" / "gemm@worker0.json").read_text()
    text = json.dumps(json.loads(recorded))
    changed = CHANGES[name](text)
    assert changed != text
    path = tmp_path / "gemm@worker0.json"
    path.write_text(changed)
    whole, cut = both(path, monkeypatch)
    assert repr(cut) == repr(whole)


def test_equal_parts_of_a_large_record_are_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_reader, "LARGE_BYTES", 0)
    record = read_record(support.DATA / "h200-2x2" / "records" / "allreduce@all.json")
    measured = [m for _, m in record.points("busbw", {})]
    contents = {json.dumps(m.conditions) for m in measured}
    assert len({id(m.conditions) for m in measured}) == len(contents) < len(measured)
    assert len({id(m.samples) for m in measured}) == len(measured)


def test_every_fact_of_a_rank_that_verdicts_read_is_kept() -> None:
    """What is not kept is silently not there: busy cores were named in no run."""
    read = {}
    for path in sorted((support.CHECKOUT / "fixtures" / "verdict").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="get", value=ast.Attribute(attr="facts", value=of)),
                    args=[ast.Constant(value=str(name)), *_],
                ):
                    read[ast.unparse(of), name] = path.name
                case ast.Subscript(
                    value=ast.Attribute(attr="facts", value=of),
                    slice=ast.Constant(value=str(name)),
                ):
                    read[ast.unparse(of), name] = path.name
    # A case and its sheet have facts of the plan.
    of_ranks = {name for of, name in read if of not in ("case", "self", "sheet")}
    assert {"settings", "telemetry"} <= of_ranks
    given = {"facts": {name: {"cpus": 1} for name in of_ranks}}
    assert fast_reader._without_facts(given)["facts"].keys() == of_ranks


def test_only_the_facts_that_verdicts_depend_on_are_kept(tmp_path: Path) -> None:
    made = support.rank(0, "worker0", support.bf16())
    made.facts.update({"emulated": True, "table": [1, 2]})
    path = tmp_path / "a.json"
    path.write_text(json.dumps(support.record(made).to_json()))
    assert read_record(path).ranks[0].facts == made.facts
    kept = read_record(path, without_facts=True)
    assert kept.ranks[0].facts == {"emulated": True}
    # Of the telemetry only how busy the cores were: the rest is a summary of every GPU.
    telemetry = {"cpu_percent": 99.9, "cpus": 32, "gpus": {"GPU-0": {}}}
    for given, expected in ((telemetry, {"cpu_percent": 99.9, "cpus": 32}), (3, None)):
        rank = fast_reader._without_facts({"facts": {"telemetry": given}})
        assert rank["facts"].get("telemetry") == expected
    assert fast_reader.read_json_fast(path)["ranks"][0]["facts"] == made.facts
    for other in ([1], {"facts": 3}):
        assert fast_reader._without_facts(other) == other
    path.write_text('{"ranks": 3}')
    with pytest.raises(ValueError, match="schema None"):
        read_record(path, without_facts=True)
    path.write_text(json.dumps(support.record(made).to_json()))
    with pytest.raises(ValueError, match="of another run"):
        read_record(path, nonce="x")
    assert fast_reader.LARGE_BYTES == 4_000_000, "as a whole a record takes ten times its size"
