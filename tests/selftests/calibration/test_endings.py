"""How the sources of a proposal ended."""

from __future__ import annotations

import json

import pytest

from fixtures.calibration import endings
from fixtures.records.run_directory import RunDirectory

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("verdict", "ending"),
    [
        ({"verdict": "REJECTED", "counts": {"fail": 3}}, "REJECTED, 3 failed"),
        ({"verdict": "ACCEPTED", "counts": {"fail": 0}}, "ACCEPTED"),
        ({"verdict": "INCOMPLETE"}, "INCOMPLETE"),
        ({}, endings.WITHOUT),
        ([], endings.WITHOUT),
        (None, endings.WITHOUT),
    ],
)
def test_a_run_ended_as_its_verdict_says(tmp_path, verdict, ending):
    directory = RunDirectory(tmp_path)
    if verdict is not None:
        directory.verdict.write_text(json.dumps(verdict))
    assert endings.ending_of(directory) == ending
    lines = endings.of_sources([("r1", directory)])
    expected = f"Run r1 ended {ending}: its values are of a fleet that was not accepted."
    assert lines == ([] if ending == endings.GOOD else [expected])
