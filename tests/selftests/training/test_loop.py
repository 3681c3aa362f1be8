"""The training loop: its steps, its history and its timing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.selftests.threads import Meeting, as_ranks, own_rank

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(("longest_s", "timed"), [(None, 30), (1e6, 30), (1e-6, 10)])
def test_where_a_step_takes_long_fewer_are_timed(longest_s, timed):
    import torch

    from training import loop, reference_run
    from training.strategies import Team

    device = torch.device("cpu")
    team = Team(members=(0,), rank=0, device=device, group=None)
    training = reference_run.new_training(reference_run.settings_for("single", steps=40), team)
    ranks: Any = SimpleNamespace(device=device, gather=lambda own: [own], barrier=lambda: None)
    batches, spare = loop.time_steps(ranks, training, 30, excluded=10, max_timed_s=longest_s)
    assert (len(batches.seconds), spare) == (timed, 0)
    assert training.step == 10 + timed


class Clocks(Meeting):
    """Each rank has a clock of its own; who waits for others sets it by the latest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.now = [1000.0] * self.size

    def read(self) -> float:
        return self.now[own_rank()]

    def gather(self, rank: int, item: Any) -> list[Any]:
        said = super().gather(rank, (item, self.now[rank]))
        self.now[rank] = max(now for _, now in said)
        return [item for item, _ in said]

    def training(self, number: int, members: tuple[int, ...], pace: float, compiling: float) -> Any:
        begun: list[int] = []
        calls: list[tuple[float, float]] = []

        def run(steps: int, marks: Any = None) -> None:
            started = self.read()
            if marks:
                marks.mark()
            for _ in range(steps):
                self.now[number] += pace if begun else compiling
                begun.append(1)
                if marks:
                    marks.mark()
            calls.append((started, self.read()))

        return SimpleNamespace(run=run, calls=calls, team=SimpleNamespace(members=members))


@pytest.mark.parametrize(
    ("paces", "compiling", "teams", "spare"),
    [
        ((0.3, 0.3), (3.0, 5.3), [(0,), (1,)], [0, 0]),  # seen on H200: overlap 0.75
        ((0.3, 0.31), (5.0, 5.0), [(0,), (1,)], [0, 0]),
        ((0.25, 1.0), (5.0, 5.0), [(0,), (1,)], [90, 0]),
        ((1.0, 1.0), (3.0, 5.0), [(0, 1), (0, 1)], [0, 0]),
        ((0.5, 0.25), (9.0, 2.0), [(0,), (1,)], [0, 30]),
    ],
)
def test_teams_are_timed_while_all_others_train(paces, compiling, teams, spare, monkeypatch):
    from fixtures.workloads.timing import timing
    from training import loop, run

    clocks = Clocks(2)
    fake = SimpleNamespace(time=clocks.read, perf_counter=clocks.read)
    monkeypatch.setattr(timing, "time", fake)
    monkeypatch.setattr(loop, "time", fake)

    def one(number: int) -> tuple[int, int, float, float]:
        ranks = clocks.rank(number)
        training = clocks.training(number, teams[number], paces[number], compiling[number])
        batches, more = loop.time_steps(ranks, training, 30, excluded=10)
        training.run(more)
        share = run.overlap(ranks, batches, clocks.read())
        (_, warm), (started, _) = training.calls[1:3]
        return len(batches.seconds), more, share, started - warm

    timed, spared, shares, idle = zip(*as_ranks(2, one), strict=True)
    assert (list(timed), list(spared)) == ([30, 30], spare)
    assert min(shares) > 0.95
    # Who is as fast as the others never stood idle before.
    assert paces[0] != paces[1] or idle == (0, 0)
