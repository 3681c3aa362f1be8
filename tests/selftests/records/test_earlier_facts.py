"""The six facts of records of schema 1 and their measurements without a value, as absences."""

from __future__ import annotations

import ast

import pytest

from fixtures.paths import CHECKOUT
from fixtures.records import earlier_facts
from fixtures.records.absence import Absence, Kind
from fixtures.records.model import Measurement, Record
from tests.selftests import support

pytestmark = pytest.mark.cpu


def read(*measured: Measurement, **facts: object) -> list[tuple[str, Kind, str]]:
    found, _ = earlier_facts.read(facts, list(measured))
    return [(a.metric, a.kind, a.why) for a in found]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"unsupported": {"m": "no port"}}, [("m", Kind.NOT_THERE, "no port")]),
        ({"not_offered": {"m": "NoPermission"}}, [("m", Kind.NOT_OFFERED, "NoPermission")]),
        ({"not_offered": {"m": "NotSupported"}}, [("m", Kind.NOT_THERE, "NotSupported")]),
        ({"not_measured": {"m": "FunctionNotFound"}}, [("m", Kind.NOT_THERE, "FunctionNotFound")]),
        ({"not_measured": {"m": "GpuIsLost"}}, [("m", Kind.FAULT, "GpuIsLost")]),
        ({"not_measured": {"m": "x"}, "not_offered": {"m": "y"}}, [("m", Kind.NOT_OFFERED, "y")]),
        ({"refused": {"m": "too old"}}, [("m", Kind.GUEST, "too old")]),
        (
            {"not_measured": {"m": "reset"}, "at_least": ["m"]},
            [("m", Kind.LOWER_BOUND, "reset")],
        ),
        (
            {"not_offered": {"m": "NotSupported"}, "at_least": ["m"]},
            [("m", Kind.NOT_OFFERED, "NotSupported")],
        ),
        ({"at_least": ["m"]}, [("m", Kind.UNKNOWN, "a lower bound, without a reason")]),
        ({"at_least": "m"}, [("", Kind.FAULT, "at_least is 'm', not a list of metrics")]),
        ({"left_out": {"sizes": [8], "why": "slow"}}, [("", Kind.NO_TIME, "slow")]),
        ({"left_out": {"mlx5_0": "a port of storage"}}, []),
        ({"unsupported": ["m"], "not_measured": "m", "refused": 1, "left_out": 1}, []),
        ({"emulated": True}, []),
    ],
)
def test_each_fact_is_an_absence_of_its_kind(facts, expected):
    assert read(**facts) == expected


def test_a_point_of_a_metric_and_a_size_are_kept():
    (counter,), _ = earlier_facts.read({"unsupported": {"rate rx_pause": "none"}}, [])
    assert counter == Absence(
        metric="rate", kind=Kind.NOT_THERE, why="none", at={"counter": "rx_pause"}
    )
    (size,), _ = earlier_facts.read({"left_out": {"sizes": [8], "why": "slow"}}, [])
    assert size.at == {"size": 8}


def test_a_measurement_without_a_value_says_why_in_its_notes():
    empty = Measurement(metric="m", unit="ms", notes=["no answer", "twice"])
    broken, sound = Measurement(metric="b", unit="ms"), support.value("v", "ms", 1)
    found, left = earlier_facts.read({}, [empty, broken, sound])
    assert [(a.metric, a.kind, a.why) for a in found] == [("m", Kind.UNKNOWN, "no answer; twice")]
    assert left == [broken, sound]


def test_a_record_of_schema_1_is_read_and_written_anew_in_the_typed_form():
    made = support.record(support.rank(0, "worker0", support.bf16([600.0] * 5), gpus=1))
    earlier = made.to_json() | {"schema": 1}
    for rank in earlier["ranks"]:
        del rank["absent"]
        rank["facts"] = {"not_measured": {"fp8": "GpuIsLost"}}
    found = Record.from_json(earlier)
    assert [(a.metric, a.kind) for a in found.ranks[0].absent] == [("fp8", Kind.FAULT)]
    again = Record.from_json(found.to_json())
    assert (again.schema, again.ranks[0].absent) == (2, found.ranks[0].absent)


OTHER_MEANINGS = {
    # Rows by outcome, in verdict.json and what is made of it.
    "not_measured": {
        "fixtures/conclusion/run_verdict.py", "reports/console/terminal.py",
        "reports/pages/certificate.py", "reports/pages/page.py",
    },
    # Parts of a dossier, and runs and workloads that a budget or a calibration leaves out.
    "left_out": {"reports/pages/dossier.py", "reports/evidence/differences.py"},
    # A lock, an allocation and a memory policy.
    "refused": {
        "fixtures/workloads/filesystem/filesystem_checks.py",
        "fixtures/workloads/filesystem/filesystem_child.py",
        "fixtures/workloads/scheduler/memory_limit.py", "fixtures/workloads/memory/hostcopy.py",
    },
    # A fault of the emulated driver.
    "unsupported": {"fixtures/sandbox/hardware_faults.py"},
}  # fmt: skip
KNOW = ("fixtures/records/earlier_facts.py", "reports/second_judge/")
"""The adapter, and the second judge, which shares nothing with the first and has its own."""


def test_no_other_module_knows_the_facts_of_earlier_runs():
    known: dict[str, set[str]] = {}
    for folder in ("fixtures", "reports", "training"):
        for path in (CHECKOUT / folder).rglob("*.py"):
            name = str(path.relative_to(CHECKOUT))
            text = path.read_text(encoding="utf-8")
            if name.startswith(KNOW) or not any(fact in text for fact in earlier_facts.FACTS):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Constant) and node.value in earlier_facts.FACTS:
                    known.setdefault(str(node.value), set()).add(name)
    assert known == OTHER_MEANINGS
