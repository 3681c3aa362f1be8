"""docs/schemas: current, and true of every run that was ever recorded and of one made now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fixtures.records.interface import FILES
from tests.selftests import support
from tests.tools import schemas

pytestmark = pytest.mark.cpu

RECORDED = sorted(p.parent for p in (support.CHECKOUT / "tests/selftests/data").glob("*/run.json"))


@pytest.mark.parametrize("name", FILES)
def test_a_schema_is_made_from_the_types_of_today(name: str) -> None:
    stored = (schemas.FOLDER / f"{name}.schema.json").read_text(encoding="utf-8")
    assert stored == schemas.schema(name), "python -m tests.tools.schemas --write"


@pytest.mark.parametrize("run", RECORDED, ids=lambda p: p.name)
def test_a_recorded_run_fits_its_schemas(run: Path) -> None:
    assert list(schemas.documents(run))
    assert list(schemas.problems(run)) == []


def test_a_run_made_now_fits_its_schemas(tmp_path: Path) -> None:
    (source,) = (run for run in RECORDED if run.name == "h200-1x4")
    support.replay(source, tmp_path / "run")
    names = {name for name, _, _ in schemas.documents(tmp_path / "run")}
    assert names >= {"run", "verdict", "ledger-line"}
    assert list(schemas.problems(tmp_path / "run")) == []


def test_what_does_not_fit_is_named_by_file_and_place(tmp_path: Path) -> None:
    (source,) = (run for run in RECORDED if run.name == "h200-1x4")
    data = json.loads((source / "run.json").read_text(encoding="utf-8"))
    (tmp_path / "run.json").write_text(json.dumps({**data, "tier": "all", "planned": "many"}))
    found = list(schemas.problems(tmp_path))
    assert [line.partition(": ")[2].partition(":")[0] for line in sorted(found)] == [
        "planned", "tier",
    ]  # fmt: skip
