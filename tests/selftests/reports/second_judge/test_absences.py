"""What a rank lacks, as the second judge reads it; it agrees with the first on both forms."""

from __future__ import annotations

import pytest

from fixtures.records import earlier_facts
from fixtures.records.absence import Kind
from fixtures.records.model import Measurement
from reports.second_judge import absences

pytestmark = pytest.mark.cpu


def test_it_knows_every_kind():
    assert set(Kind) == absences.KINDS


def test_an_absence_has_a_known_kind_and_plain_fields():
    sound = {"metric": "m", "kind": absences.NONE, "why": "x", "at": {"size": 8}}
    assert absences.is_sound(sound)
    for wrong in (
        {"kind": "other"}, {"kind": 3}, {"why": None}, {"at": []}, {"at": {"size": []}}, {"y": 1},
    ):  # fmt: skip
        assert not absences.is_sound({**sound, **wrong}), wrong


def read(*measured: dict, **facts: object) -> tuple[list, list]:
    rank = absences.typed({"facts": facts, "measurements": list(measured)})
    return [(a["metric"], a["kind"], a.get("at", {})) for a in rank["absent"]], rank["measurements"]


ACCUSING = {Kind.FAULT, Kind.LOWER_BOUND, Kind.NOT_OFFERED, Kind.UNKNOWN}
"""Kinds that the second judge need not tell apart: a value with any of them is not green."""


@pytest.mark.parametrize(
    "facts",
    [
        {"unsupported": {"m": "x", "rate rx": "y"}}, {"not_offered": {"m": "NotSupported"}},
        {"not_measured": {"m": "FunctionNotFound"}}, {"not_measured": {"m": "GpuIsLost"}},
        {"not_offered": {"m": "NoPermission"}}, {"refused": {"m": "old"}}, {"at_least": "m"},
        {"at_least": ["m"], "not_measured": {"m": "reset"}}, {"at_least": ["m"]},
        {"at_least": ["m"], "not_offered": {"m": "NotSupported"}}, {"at_least": [1]},
        {"left_out": {"sizes": [8], "why": "slow"}}, {"left_out": {"p": "x"}}, {"refused": 1},
        {"unsupported": ["m"], "not_offered": "m"}, {},
    ],
)  # fmt: skip
def test_both_judges_read_the_same_from_earlier_facts(facts):
    def groups(found: list) -> set:
        return {
            (metric, "gap" if kind in ACCUSING else str(kind), tuple(at.items()))
            for metric, kind, at in found
        }

    ours, _ = earlier_facts.read(facts, [])
    assert groups(read(**facts)[0]) == groups([(a.metric, a.kind, dict(a.at)) for a in ours])


def test_an_empty_value_is_left_out_and_its_metric_lacking():
    empty, broken = {"metric": "m", "notes": ["no"]}, {"metric": "m"}
    assert read(empty, broken) == ([("m", absences.UNKNOWN, {})], [broken])
    ours, left = earlier_facts.read({}, [Measurement(metric="m", unit="x", notes=["no"])])
    assert ([a.kind for a in ours], left) == ([Kind.UNKNOWN], [])
    new = {"absent": [], "facts": {"refused": {"m": "x"}}, "measurements": [empty]}
    assert absences.typed(new) is new


def test_a_gap_is_of_a_metric_and_its_point():
    rank = {"absent": [
        {"metric": "m", "kind": absences.FAULT, "at": {"size": 8}},
        {"metric": "", "kind": absences.NO_TIME, "at": {"size": 16}},
    ]}  # fmt: skip
    for metric, at, kinds in (
        ("m", {"size": 8}, [absences.FAULT]), ("m", {}, [absences.FAULT]), ("n", {"size": 8}, []),
        ("m", {"size": 16}, [absences.NO_TIME]), ("n", {}, []),
    ):  # fmt: skip
        assert absences.gaps(rank, metric, at) == kinds
