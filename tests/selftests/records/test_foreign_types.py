"""Foreign data is typed by the interface; no name in run.json leads elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.records.files import read_json
from fixtures.records.foreign_types import mistyped, refused_run
from fixtures.records.interface import LocatedJson, RunJson
from tests.selftests import support

pytestmark = pytest.mark.cpu

RUN = {"schema": 2, "id": "20261128-a1", "nonce": support.NONCE, "recertifies": [{"run": "r1"}]}


@pytest.mark.parametrize(
    "path", sorted(support.DATA.glob("*/run.json")), ids=lambda p: p.parent.name
)
def test_recorded_runs_are_read(path: Any) -> None:
    assert refused_run(read_json(path)) == ""


@pytest.mark.parametrize("name", ["../..", "..", ".", "a/b", "", "a\nb", 7, None])
def test_a_run_whose_names_lead_elsewhere_is_refused(name: Any) -> None:
    assert refused_run(RUN) == ""
    assert "is not the name of a run" in refused_run({**RUN, "recertifies": [{"run": name}]})
    if not isinstance(name, str):
        return
    assert "is not the name of a run" in refused_run({**RUN, "id": name})
    job = {"name": name, "stage": "node", "placement": "x", "nodes": [], "ranks_per_node": 1,
           "parts": 1, "small": False, "workloads": [], "estimated_s": 1.0}  # fmt: skip
    assert "is not the name of a job" in refused_run({**RUN, "plan": [job]})


def test_what_is_not_of_its_type_is_named() -> None:
    assert refused_run([]) == "not a run.json of schema 2"
    assert refused_run({**RUN, "plan": "soon"}).startswith("plan: Input should be a valid list")
    assert mistyped({"schema": 1}, LocatedJson) == "nonce: Field required"
    assert mistyped({"schema": 1}, LocatedJson, partly=True) == ""
    assert mistyped({"schema": 1, "why": 7}, LocatedJson, partly=True).startswith("why: ")
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    assert mistyped({**RUN, "population": deep, "plan": deep}, RunJson, partly=True)
