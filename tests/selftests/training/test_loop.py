"""The training loop: its steps, its history and its timing."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.selftests.threads import Meeting, as_ranks, own_rank
from tests.selftests.training.one_rank import a_rank, a_team
from training.settings import Settings

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(("longest_s", "timed"), [(None, 12), (1e6, 12), (1e-6, 10)])
def test_where_a_step_takes_long_fewer_are_timed(longest_s, timed):
    import torch

    from training import loop, reference_run
    from training.strategies import Team

    device = torch.device("cpu")
    team = Team(members=(0,), rank=0, device=device, group=None)
    training = reference_run.new_training(reference_run.settings_for("single", steps=14), team)
    ranks: Any = SimpleNamespace(device=device, gather=lambda own: [own], barrier=lambda: None)
    batches, spare = loop.time_steps(ranks, training, 12, excluded=2, max_timed_s=longest_s)
    assert (len(batches.seconds), spare) == (timed, 0)
    assert training.step == 2 + timed


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


@pytest.mark.parametrize(
    ("steps", "longest_s", "step_s", "timed"),
    [(40, 20.0, 1.0, 20), (40, 5.0, 1.0, 10), (40, 90.0, 1.0, 40), (8, 5.0, 1.0, 8)],
)
def test_at_least_ten_steps_are_timed_however_long_they_take(
    steps, longest_s, step_s, timed, monkeypatch
):
    from training import loop

    ran: list[int] = []
    training: Any = SimpleNamespace(
        run=lambda steps, marks=None: ran.append(steps), team=SimpleNamespace(members=(0,))
    )
    monkeypatch.setattr(loop, "seconds_per_step", lambda *given: step_s)
    fake = SimpleNamespace(finish=lambda launches: f"{launches} launch")
    monkeypatch.setattr(loop, "Marks", lambda ranks: fake)
    found = loop.time_steps(a_rank(), training, steps, excluded=5, max_timed_s=longest_s)
    assert found == ("1 launch", 0)
    assert ran == [2, timed], "the other three of five are for the rate"


@pytest.mark.parametrize(("slowest", "extra"), [(1.09, 0), (1.2, 6), (2.0, 30), (3.0, 60)])
def test_a_team_that_is_a_tenth_faster_trains_on(slowest, extra, monkeypatch):
    from training import loop

    training: Any = SimpleNamespace(
        run=lambda steps, marks=None: None, team=SimpleNamespace(members=(0, 1))
    )
    monkeypatch.setattr(loop, "seconds_per_step", lambda *given: 0.9)
    fake = SimpleNamespace(finish=lambda launches: None)
    monkeypatch.setattr(loop, "Marks", lambda ranks: fake)
    ranks = a_rank(gather=lambda own: [own, 1.0, slowest])
    found = loop.time_steps(ranks, training, 30, excluded=10)[1]
    assert found == pytest.approx(extra, abs=1)


def test_the_time_of_a_step_is_that_of_all_by_their_number(monkeypatch):
    from training import loop

    clock = SimpleNamespace(now=5.0)
    monkeypatch.setattr(loop, "synchronize", lambda ranks: None)
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    def run(steps: int) -> None:
        clock.now += 2.0 * steps

    assert loop.seconds_per_step(a_rank(), SimpleNamespace(run=run), 4) == 2.0  # type: ignore[arg-type]


# --- the loop itself


class Recorder:
    """Notes when it was asked to mark."""

    def __init__(self) -> None:
        self.marks = 0

    def mark(self) -> None:
        self.marks += 1


def a_training(**settings: Any) -> Any:
    from training import reference_run

    return reference_run.new_training(reference_run.settings_for("single", **settings), a_team())


def test_a_training_goes_on_to_its_last_step_and_keeps_its_history():
    training = a_training(steps=3)
    marks = Recorder()
    history = training.run(1, marks=marks)
    assert (training.step, marks.marks) == (1, 2), "before the first step and after each"
    assert training.run() is history
    assert (training.step, len(history.losses), len(history.norms)) == (3, 3, 3)
    assert all(loss > 1 for loss in history.losses)
    assert all(norm > 0 for norm in history.norms)
    assert history.learning_rates == sorted(history.learning_rates)
    assert training.tokens_per_step == 8 * 64


def test_a_history_without_a_step_is_empty():
    from training.loop import History

    assert (History().losses, History().norms) == ([], [])


def test_accumulated_passes_are_told_which_is_the_last(monkeypatch):
    from training.strategies import ParallelModel

    told: list[bool] = []

    @contextmanager
    def noted(model: Any, is_last: bool) -> Any:
        told.append(is_last)
        yield

    monkeypatch.setattr(ParallelModel, "accumulation_pass", noted)
    a_training(steps=2, batch=2).run(1)
    assert told == [False, False, False, True]


@pytest.mark.parametrize(
    ("save_every", "directory", "saved"),
    [(2, "d", [2, 4]), (3, "d", [3]), (0, "d", []), (2, "", [])],
)
def test_checkpoints_are_written_every_so_many_steps(save_every, directory, saved, monkeypatch):
    from training.loop import Training

    steps: list[int] = []
    monkeypatch.setattr(Training, "save", lambda training: steps.append(training.step))
    a_training(steps=4, save_every=save_every, checkpoint=directory).run()
    assert steps == saved


def test_a_resumed_training_goes_on_after_the_newest_checkpoint(tmp_path):
    first = a_training(steps=3, checkpoint=str(tmp_path))
    first.run(2)
    path = first.save()
    assert path == tmp_path / "step-000002"
    resumed = a_training(steps=3, checkpoint=str(tmp_path), resume=True)
    assert resumed.step == 2
    assert resumed.run().losses == pytest.approx(first.run().losses[2:])
    assert a_training(steps=3, checkpoint=str(tmp_path)).step == 0, "it was not asked to resume"
    (path / "manifest.json").unlink()
    assert a_training(steps=3, checkpoint=str(tmp_path), resume=True).step == 0


def test_data_are_as_many_samples_as_the_steps_need_unless_given():
    from training.loop import Training

    settings = Settings(batch=2, steps=5, dtype="fp32")
    assert Training(settings, a_team()).batch_loader.steps_per_epoch == 5
    assert Training(settings, a_team(), samples=6).batch_loader.steps_per_epoch == 3


@pytest.mark.parametrize("backend", [None, "MATH"])
def test_the_kernel_that_was_chosen_comes_first(backend, monkeypatch):
    from torch.nn.attention import SDPBackend

    from training import loop
    from training.attention import Kernel

    asked: list[Any] = []

    @contextmanager
    def noted(backends: Any, *, set_priority: bool) -> Any:
        asked.append((list(backends), set_priority))
        yield

    monkeypatch.setattr(loop, "sdpa_kernel", noted)
    chosen = SDPBackend.MATH if backend else None
    kernel = Kernel(backend=chosen, repeat_kv=True)
    training = loop.Training(Settings(steps=1, dtype="fp32"), a_team(), kernel=kernel)
    training.run(0)
    ((backends, priority),) = asked
    assert priority is (chosen is not None)
    assert backends == [*([chosen] if chosen else []), *loop.ATTENTION_BACKENDS]
    assert training.model.decoder.blocks[0].attention.repeat_kv is True


@pytest.mark.parametrize(
    ("device", "offload", "fused"), [("cuda", False, True), ("cuda", True, False),
                                     ("cpu", False, False)],
)  # fmt: skip
def test_the_optimizer_is_fused_where_parameters_are_on_a_gpu(device, offload, fused, monkeypatch):
    import torch

    from training import loop

    asked: list[bool] = []
    monkeypatch.setattr(
        loop, "ParallelModel",
        lambda *given, **how: SimpleNamespace(module=torch.nn.Linear(2, 2)),
    )  # fmt: skip
    monkeypatch.setattr(torch.optim, "AdamW", lambda *given, fused, **how: asked.append(fused))
    loop.Training(Settings(offload=offload), a_team(device=device))
    assert asked == [fused]
