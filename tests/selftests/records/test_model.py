"""Measurements, ranks and records: what is read, what is refused, and how points are found."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from fixtures.records.absence import Kind
from fixtures.records.model import (
    LOGIN_WORKLOAD,
    Measurement,
    Record,
    Void,
    record_name,
    typed,
)
from tests.selftests.records.test_fields import refusal
from tests.selftests.support import NONCE, absent, bf16, rank, record, value

pytestmark = pytest.mark.cpu

LEAST = {"metric": "bf16", "unit": "TFLOPS"}


def test_a_flag_and_a_count_have_different_keys():
    assert typed({"a": True}) != typed({"a": 1})
    assert typed({"a": 1}) == typed({"a": 1})
    assert typed({"a": 1}) == ((("a", 1),), (int,))


# --- measurements


def test_a_measurement_is_written_without_empty_fields():
    full = Measurement(**LEAST, samples=[1.0, 2.0], at={"size": 1}, started=0.0, notes=["x"])
    data = full.to_json()
    assert data == {**LEAST, "samples": [1.0, 2.0], "at": {"size": 1}, "started": 0.0,
                    "notes": ["x"]}  # fmt: skip
    assert Measurement.from_json(data) == full
    assert Measurement(**LEAST, value=0).to_json() == {**LEAST, "value": 0}
    assert Measurement.from_json(dict(LEAST)) == Measurement(**LEAST)


MEASUREMENTS: list[tuple[Any, str]] = [
    ({"samples": [1, 2.5], "rounds": [[1.0], [2, 3]]}, ""),
    ({"at": {"a": 1, "b": "x", "c": True}, "conditions": {"a": 0.5}}, ""),
    ({"value": "H200", "notes": ["a", "b"]}, ""),
    ({"started": True}, "measurement: started is True"),
    ({"other": 1}, "unknown fields"),
    ({"samples": [1.0, "2"]}, "'2' is not a number"),
    ({"samples": [True]}, "True is not a number"),
    ({"samples": [1.0], "rounds": [[None]]}, "None is not a number"),
    ({"samples": [1.0], "ended": ["x"]}, "'x' is not a number"),
    ({"checks": {"a": "x"}}, "'x' is not a number"),
    ({"rounds": [[1.0]]}, "[1.0] is not a further round of samples"),
    ({"samples": [1.0], "rounds": [[]]}, "[] is not a further round of samples"),
    ({"samples": [1.0], "rounds": [3]}, "3 is not a further round of samples"),
    ({"at": {"a": [1]}}, "[1] is not a plain value"),
    ({"conditions": {"a": None}}, "None is not a plain value"),
    ({"samples": [1.0], "value": 1}, "has samples and a value"),
    ({"samples": [1.0], "value": None}, ""),
    ({"notes": ["a", 3]}, "a note is not text"),
]


def test_a_measurement_of_another_form_is_refused():
    for given, says in MEASUREMENTS:
        found = refusal(Measurement.from_json, {**LEAST, **given})
        assert (found == "") == (says == ""), (given, found)
        assert says in found
    assert "must be a JSON object" in refusal(Measurement.from_json, [1])
    assert "lacks metric" in refusal(Measurement.from_json, {"unit": "TFLOPS"})


def test_equal_parts_are_kept_once_and_floats_packed():
    shared: dict[Any, Any] = {}
    first, second = (
        Measurement.from_json(
            {**LEAST, "samples": [1.0, 2.0], "at": {"size": 1}, "ended": [1, 2]}, shared
        )
        for _ in range(2)
    )
    assert first == Measurement(
        **LEAST, samples=array("d", [1.0, 2.0]), at={"size": 1}, ended=[1, 2]
    )
    assert type(first.samples) is array
    assert type(first.ended) is list, "whole numbers stay what they are"
    assert first.at is second.at
    assert first.notes is second.notes
    assert first.conditions is second.conditions
    flag = Measurement.from_json({**LEAST, "at": {"size": True}}, shared)
    assert flag.at == {"size": True}
    assert type(flag.at["size"]) is bool
    texts = [{"metric": "".join(("b", "f16")), "unit": "x"} for _ in range(2)]
    one, other = (Measurement.from_json(m, shared) for m in texts)
    assert one.metric is other.metric
    assert one.samples is other.samples


# --- ranks


def test_facts_of_a_device_are_those_that_do_not_identify_it():
    made = rank(0, "worker0", table=[1], cores=None)
    assert made.device_facts == {
        "compute_capability": 9.0, "sm_count": 132, "max_sm_clock_mhz": 1980,
    }  # fmt: skip
    assert made.device_facts_key == typed(made.device_facts)
    emulated = rank(0, "worker0", emulated=True, part="the node", serial="1")
    assert emulated.device_facts["emulated"] is True
    assert not {"part", "serial"} & set(emulated.device_facts)


def test_a_rank_that_gives_a_reason_or_is_no_gpu_is_found():
    plain, why = rank(0, "worker0"), rank(1, "worker0")
    assert record(plain, why).absences == {}
    gap = absent(Kind.FAULT, "bf16")
    why.absent.append(gap)
    assert record(plain, why).absences == {"bf16": [(why, gap)]}
    assert record(plain).on_cpu_or_emulated is False
    assert record(plain, rank(1, "worker0", name="cpu")).on_cpu_or_emulated is True
    why.facts["emulated"] = True
    assert record(plain, why).on_cpu_or_emulated is True


# --- records

AB = ("a", "b")


def of_two() -> Record:
    def sized(size: int, v: float) -> Measurement:
        return Measurement(metric="busbw", unit="GB/s", samples=[v], at={"size": size, "to": 1})

    return record(
        rank(0, "a", sized(1, 10.0), sized(2, 20.0), bf16()), rank(1, "a", bf16()),
        rank(2, "b", sized(1, 30.0)), rank(3, "b", value("gpus", "GPUs", 2)),
    )  # fmt: skip


def test_measurements_are_found_by_metric_point_and_node():
    found = of_two()

    def ranks(metric: str, at: Any = None, **node: str) -> list[int]:
        return [r.rank for r, m in found.points(metric, at or {}, **node) if m.metric == metric]

    assert ranks("bf16") == [0, 1]
    assert ranks("busbw") == [0, 0, 2]
    assert ranks("busbw", {"size": 1}) == [0, 2]
    assert ranks("busbw", {"size": 1, "to": 1}, node="b") == [2]
    assert ranks("busbw", {"size": 2}, node="b") == []
    assert ranks("bf16", node="a") == [0, 1]
    assert ranks("bf16", node="b") == []
    assert ranks("none") == []
    assert ranks("none", {"size": 1}, node="a") == []
    assert [m.samples for _, m in found.points("busbw", {"size": 2})] == [[20]]
    assert found.points("busbw", {"size": 1}) is found.points("busbw", {"size": 1})


def test_a_record_knows_its_file_and_its_nodes():
    found = of_two()
    assert found.name == "gemm@worker0.json"
    assert found.node_set == {"a", "b"}
    assert record_name("gemm", "a", 2) == "gemm@a.attempt2.json"
    assert record_name("gemm", "a") == "gemm@a.json"
    rest = found.without({"b": Void("broken")}).without({"c": Void("x")})
    assert (rest.nodes, [r.rank for r in rest.ranks]) == (["a"], [0, 1])
    assert rest.void == {"b": Void("broken"), "c": Void("x")}
    assert Void("broken").cause == "record"


def test_a_record_is_read_as_it_was_written():
    found = of_two()
    data = found.to_json()
    assert "void" not in data
    assert data["ranks"][3]["measurements"] == [
        {"metric": "gpus", "unit": "GPUs", "value": 2, "started": 100.0}
    ]
    assert Record.from_json(data, nonce=NONCE) == found
    without = {**data, "ranks": []}
    one_by_one = Record.from_json(without, ranks_one_by_one=iter(data["ranks"]))
    assert one_by_one.nodes == found.nodes
    assert type(one_by_one.ranks[0].measurements[0].samples) is array


def changed(**data: Any) -> Any:
    return {**of_two().to_json(), **data}


def test_a_record_of_another_form_is_refused():
    for data, says in (
        ([], "a record must be a JSON object"),
        (changed(schema=3), "schema 3, expected 1 or 2"),
        (changed(schema=True), "schema True, expected 1"),
        (changed(nonce="x"), "nonce 'x' is of another run"),
        (changed(job={"a": float("nan")}), "job.a: nan is not finite"),
        (changed(attempt="1"), "record: attempt is '1'"),
        (changed(nodes=["a", 3]), "is not a name of a node"),
        (changed(nodes=["a", "a"]), "are not those of a job"),
        (changed(nodes=[]), "are not those of a job"),
        (changed(ranks=[3]), "a rank must be a JSON object"),
        (changed(ranks=[]), "0 of 2 ranks"),
    ):
        assert says in refusal(Record.from_json, data, nonce=NONCE), says
    assert refusal(Record.from_json, changed(nonce="x")) == "", "of any run"
    nan = changed(job={"a": float("nan")})
    assert refusal(Record.from_json, nan, known_finite=True) == "", "the parser has looked"


def test_a_broken_part_voids_its_node_alone():
    def broken(k: int, **fields: Any) -> Any:
        data = of_two().to_json()
        data["ranks"][k].update(fields)
        return data

    for fields, says in (
        ({"end": 1.0}, "rank 2 ended before it started"),
        ({"facts": 3}, "rank: facts is 3"),
        ({"device": {"index": "0"}}, "device: index is '0'"),
        ({"start": float("nan")}, "nan is not finite"),
        ({"measurements": [{"metric": "x"}]}, "measurement lacks unit"),
    ):
        found = Record.from_json(broken(2, **fields))
        assert (found.nodes, [r.rank for r in found.ranks]) == (["a"], [0, 1]), fields
        assert says in found.void["b"].reason
        assert found.void["b"].reason.startswith("b: ")
    both = broken(2, facts=3)
    both["ranks"][0]["facts"] = 3
    assert refusal(Record.from_json, both) == "rank: facts is 3"
    assert "rank: facts is 3" in refusal(Record.from_json, broken(2, facts=3, node="c"))
    assert refusal(Record.from_json, broken(2, end=100.0)) == "", "no time passed"
    assert Record.from_json(broken(2, start=float("nan")), known_finite=True).void == {}
    lacking = of_two().to_json()
    lacking["ranks"].pop()
    assert "1 of 2 ranks" in Record.from_json(lacking).void["b"].reason


def test_the_login_nodes_record_has_one_entry_for_each_subject():
    data = changed(workload=LOGIN_WORKLOAD, nodes=["login"])
    for entry in data["ranks"]:
        entry["node"] = "any"
    assert len(Record.from_json(data).ranks) == 4
    data["ranks"].pop()
    assert refusal(Record.from_json, data) == "3 entries, 4 were written"
