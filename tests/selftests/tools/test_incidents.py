"""Every incident of 2026 in the table has a drill that exists; those in records are run here."""

from __future__ import annotations

import re

import pytest

from fixtures.verdict.model import Outcome
from tests.selftests.incidents import GPUS4, INCIDENTS, Incident, Plant, Put, SelfTest, judged
from tests.selftests.support import CHECKOUT
from tests.tools import failure_causes

pytestmark = pytest.mark.cpu

FOLDER = CHECKOUT / "tests" / "selftests"
PLANTED = [i for i in INCIDENTS if isinstance(i.drill, Plant)]


@pytest.mark.parametrize("incident", PLANTED, ids=lambda i: i.threads[0])
def test_an_incident_in_a_record_is_seen(incident: Incident):
    plant = incident.drill
    assert isinstance(plant, Plant)
    healthy, verdict = judged(plant)
    assert healthy.outcome is Outcome.PASS
    assert verdict.outcome == plant.outcome
    assert plant.says in verdict.line


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda i: i.threads[0])
def test_the_drill_of_an_incident_exists(incident: Incident):
    drill = incident.drill
    if isinstance(drill, Put):
        assert (drill.key, drill.name) in failure_causes.known_drills()
    elif isinstance(drill, SelfTest):
        text = (FOLDER / drill.file).read_text(encoding="utf-8")
        assert re.search(rf"^def {drill.name}\(", text, re.M)


def test_there_are_enough_and_each_has_its_thread():
    assert len(INCIDENTS) >= 20
    threads = [thread for incident in INCIDENTS for thread in incident.threads]
    assert len(threads) == len({*threads})
    for thread in threads:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+(#\d+| ADR-\d+)", thread), thread


def test_a_plant_that_changes_nothing_is_seen_as_healthy():
    _, verdict = judged(Plant(key="gemm.bf16", run=GPUS4, says=""))
    assert verdict.outcome is Outcome.PASS
