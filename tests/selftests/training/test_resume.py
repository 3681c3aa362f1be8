"""Checkpoints that are resumed from: the torn one is passed over, with fewer ranks too."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.selftests.training.one_rank import a_rank, a_team
from training import checkpoint, reference_run, resume, strategies

pytestmark = pytest.mark.cpu

CURVE = [12.0 - k for k in range(12)]


class FakeTraining:
    """Twelve steps of a known curve; its checkpoints are files of ten bytes."""

    def __init__(self, settings: Any, team: Any) -> None:
        self.settings = settings
        self.step = self.begun = 6 if settings.resume else 0

    @property
    def history(self) -> Any:
        return SimpleNamespace(losses=CURVE[self.begun : self.step])

    def run(self, steps: int | None = None) -> Any:
        self.step = 12 if steps is None else self.step + steps
        return self.history

    def save(self) -> Path:
        path = Path(self.settings.checkpoint) / f"step-{self.step:06}"
        path.mkdir(parents=True)
        (path / "a.distcp").write_bytes(b"x" * 10)
        (path / "b.distcp").write_bytes(b"x" * 5)
        (path / "manifest.json").write_bytes(b"x" * 99)
        return path


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the workload without training; returns its metrics by name, and what it saw."""
    seen = SimpleNamespace(sizes={}, teams=[], sizes_of=[])

    def awaited(directory: Path, step: int) -> Path:
        seen.asked = step
        for path in sorted(directory.glob("step-*/*")):
            seen.sizes[f"{path.parent.name[-2:]}/{path.name}"] = path.stat().st_size
        return directory / seen.newest

    def split(ranks: Any, teams: list[list[int]]) -> Any:
        seen.teams.append(teams)
        return a_team(len(teams[0])) if ranks.rank in teams[0] else None

    def new(settings: Any, team: Any) -> Any:
        seen.sizes_of.append((team.size, settings.batch, settings.resume))
        return FakeTraining(settings, team)

    monkeypatch.setattr(checkpoint, "awaited_intact", awaited)
    monkeypatch.setattr(reference_run, "new_training", new)
    monkeypatch.setattr(strategies, "split_into_teams", split)

    def start(
        metrics: list[str], *, size: int = 2, rank: int = 0, newest: str = "step-000006"
    ) -> Any:
        monkeypatch.setattr(strategies, "one_team", lambda ranks: a_team(size))
        seen.newest = newest
        seen.teams.clear()
        seen.sizes_of.clear()
        seen.sizes.clear()
        seen.directory = tmp_path / "jobs" / f"{metrics}{size}{rank}{newest}"
        result = resume.run(a_rank(seen.directory, rank=rank), metrics)
        return {m.metric: m for m in result.measurements}, result.facts, seen

    return start


ALL = ["torn", "resume", "other_ranks"]


def test_the_second_checkpoint_is_torn_and_the_first_resumed_from(started):
    found, facts, seen = started(ALL)
    assert list(found) == ALL
    assert (found["torn"].value, found["torn"].notes) == ("passed over", [])
    assert (found["resume"].value, found["resume"].unit) == (0.0, "%")
    assert found["resume"].notes == ["2 ranks, from step 6"]
    assert found["other_ranks"].notes == ["1 rank, from step 6"]
    assert seen.sizes == {
        "06/a.distcp": 10, "06/b.distcp": 5, "06/manifest.json": 99,
        "12/a.distcp": 7, "12/b.distcp": 5, "12/manifest.json": 99,
    }  # fmt: skip
    assert (facts["bytes"], seen.asked) == (114, 6)
    # The batch of all is divided among half of the ranks.
    assert seen.sizes_of == [(2, 4, False), (2, 4, True), (1, 8, True)]
    assert list(seen.directory.parent.parent.rglob("step-*")) == [], "nothing is left"
    assert list(started(["resume"])[0]) == ["resume"]


def test_other_ranks_tear_and_remove_nothing(started):
    found, facts, seen = started(ALL, rank=1)
    assert list(found) == ["torn", "resume"], "it is not among the fewer"
    assert "bytes" not in facts
    assert seen.sizes["12/a.distcp"] == 10
    assert list(seen.directory.parent.parent.rglob("step-*"))


def test_a_torn_checkpoint_that_is_taken_is_told(started):
    found, _, _ = started(ALL, newest="step-000012")
    assert list(found) == ["torn"]
    assert found["torn"].value == "taken"
    assert "step-000012 was taken for intact" in found["torn"].notes[0]


@pytest.mark.parametrize(
    ("size", "fewer"), [(1, []), (2, [[[0]]]), (3, [[[0]]]), (4, [[[0, 1]]]), (6, [[[0, 1, 2]]])]
)
def test_half_of_the_ranks_resume_where_the_batch_divides(size, fewer, started):
    _, _, seen = started(ALL, size=size)
    assert seen.teams == fewer


def test_fewer_ranks_among_which_the_batch_does_not_divide_do_not_resume(started, monkeypatch):
    monkeypatch.setattr(reference_run, "global_batch_for", lambda size: 10)
    _, _, seen = started(ALL, size=9)  # ten sequences and four ranks
    assert seen.teams == []


def test_a_resumption_at_another_step_ends_the_workload():
    settings = reference_run.settings_for("single")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference_run, "new_training", FakeTraining)
        with pytest.raises(RuntimeError, match="resumed at step 6, expected 5 more"):
            resume._resumed_curve("resume", a_team(), settings, [1.0] * 5)
