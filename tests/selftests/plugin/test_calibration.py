"""--calibrate: a proposal beside the verdict, which stands without it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.errors import RunError
from fixtures.plugin import calibration
from fixtures.plugin.state import SESSION_STATE

pytestmark = pytest.mark.cpu


def session(*, calibrate: bool = True, run: Any = "the run") -> Any:
    state = SimpleNamespace(
        options=SimpleNamespace(calibrate=calibrate, calibrate_with=("other",)), run=run
    )
    return SimpleNamespace(config=SimpleNamespace(stash={SESSION_STATE: state}))


def printed(given: Any) -> list[str]:
    lines: list[str] = []
    reporter = SimpleNamespace(write_line=lines.append)
    calibration.pytest_terminal_summary(reporter, given.config)
    return lines


def test_a_proposal_is_written_where_it_is_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(
        calibration, "write", lambda run, given: asked.append((run, given)) or ["proposal x"]
    )
    for given, lines in (
        (session(), ["proposal x"]), (session(calibrate=False), []), (session(run=None), [])
    ):  # fmt: skip
        calibration.pytest_acceptance_concluded(given, None)
        assert printed(given) == lines
    assert asked == [("the run", ("other",))]


@pytest.mark.parametrize("error", [RunError("no fleet"), OSError("no space")])
def test_a_proposal_that_fails_leaves_the_verdict(monkeypatch, error):
    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(calibration, "write", fails)
    given = session()
    calibration.pytest_acceptance_concluded(given, None)
    assert printed(given) == [f"no proposal: {error}"]


@pytest.mark.parametrize("replayed", [False, True])
def test_runs_beside_this_one_are_the_fleet(monkeypatch, tmp_path, replayed):
    now = SimpleNamespace(population="people", directory="place", nonce="x", devices="devices")
    runs = SimpleNamespace(left_out=["RUN2: of another model"])
    places = []

    def fleet_of(run: Any, parent: Any, given: Any) -> Any:
        places.append((run, parent, given))
        return runs

    monkeypatch.setattr(calibration.fleet.CalibrationRun, "of", lambda root: now)
    monkeypatch.setattr(calibration.fleet, "fleet_of", fleet_of)
    monkeypatch.setattr(calibration, "Evidence", lambda *given, devices: given)
    monkeypatch.setattr(calibration.observed_contract, "observe", lambda *given: given)
    without = SimpleNamespace(compared=[], summary="")
    monkeypatch.setattr(
        calibration, "propose",
        lambda runs, limits, order: SimpleNamespace(summary=f"{order}", replacement=without),
    )  # fmt: skip
    monkeypatch.setattr(calibration, "text", lambda proposal: "limits: {}\n")
    root = tmp_path / "runs" / "RUN"
    root.mkdir(parents=True)
    run: Any = SimpleNamespace(
        directory=SimpleNamespace(root=root), thresholds=None,
        replayed=tmp_path / "elsewhere" / "RUN" if replayed else None,
    )  # fmt: skip
    lines = calibration.write(run, ("given",))
    assert (root / "proposal.yaml").read_text() == "limits: {}\n"
    parent = tmp_path / ("elsewhere" if replayed else "runs")
    assert places == [(now, parent, ("given",))]
    assert lines == [
        f"proposal {root}/proposal.yaml", "  ('people', ('place', 'x'))",
        "  not used: RUN2: of another model",
    ]  # fmt: skip
