"""The training job that fails on purpose: when it fails, how, and what it reports before."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.selftests.training.one_rank import a_rank, a_team
from training import victim

pytestmark = pytest.mark.cpu


class Stop(Exception):
    """Ends what else would not end."""


def stop(*given: Any) -> None:
    raise Stop


class FakeTraining:
    """Counts its steps, and ends the test after the last of them."""

    def __init__(self, last: int = 12, step: int = 0) -> None:
        self.last, self.step = last, step
        self.log: list[Any] = []

    def run(self, steps: int | None = None) -> Any:
        self.log.append(steps)
        self.step += self.last - self.step if steps is None else steps
        if steps == 1 and self.step >= self.last:
            raise Stop
        return SimpleNamespace(losses=[2.0, 1.0])

    def save(self) -> Path:
        self.log.append(f"saved {self.step}")
        return Path(f"step-{self.step:06}")


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a victim without training, and returns what came of it."""
    found = SimpleNamespace(faults=[], deadlines=[], pauses=[], saved=[], training=None)
    monkeypatch.setattr(victim.resource, "setrlimit", lambda *given: None)
    monkeypatch.setattr(victim, "time", SimpleNamespace(sleep=found.pauses.append))

    def run(way: str, number: int = 1) -> Any:
        for noted in (found.faults, found.deadlines, found.pauses, found.saved):
            noted.clear()
        training = FakeTraining()
        monkeypatch.setattr(victim, "_endless_training", lambda *given: (training, None))
        monkeypatch.setattr(
            victim, "_inject_fault", lambda ranks, way, blocked: found.faults.append(training.step)
        )
        monkeypatch.setattr(victim, "_save", lambda *given: found.saved.append(training.step))
        from training import strategies

        monkeypatch.setattr(strategies, "one_team", lambda ranks: a_team(2, rank=number))
        found.ranks = a_rank(
            rank=number, world_size=2, leads_node=False,
            extend_deadline=found.deadlines.append,
        )  # fmt: skip
        monkeypatch.setattr(victim, "_hold_lock", lambda ranks: None)
        with pytest.raises(Stop):
            victim.run(found.ranks, ["curve"], way=way)
        return found

    return run


def test_the_last_rank_fails_once_after_four_steps_and_says_so_before(job):
    found = job("kill")
    assert found.faults == [4]
    assert found.ranks.lines == [{"event": "fault", "way": "kill", "step": 4}]
    assert set(found.deadlines) == {12.0}, "a step takes milliseconds"
    assert set(found.pauses) == {0.05}, "twenty steps a second leave the cores to others"
    assert found.saved == []
    assert job("kill", number=0).faults == []


def test_where_memory_runs_out_a_step_may_take_longer(job):
    for way in ("host_memory", "gpu_memory"):
        assert set(job(way).deadlines) == {40.0}


def test_where_storage_fails_the_fault_follows_the_first_checkpoint(job):
    found = job("storage_hang")
    assert found.saved == [5, 10], "every fifth step"
    assert found.faults == [6]


def test_a_lost_node_has_a_training_of_its_own(monkeypatch):
    monkeypatch.setattr(victim.resource, "setrlimit", lambda *given: None)
    monkeypatch.setattr(victim, "_train_through_node_loss", lambda ranks, team: "its result")
    from training import strategies

    monkeypatch.setattr(strategies, "one_team", lambda ranks: a_team())
    assert victim.run(a_rank(leads_node=False), ["curve"], way="node") == "its result"


# --- what it reports, and what it leaves


def test_files_in_shared_memory_are_those_of_this_user(monkeypatch):
    def entry(name: str, owner: int) -> Any:
        return SimpleNamespace(name=name, lstat=lambda: SimpleNamespace(st_uid=owner))

    def gone() -> Any:
        raise FileNotFoundError

    entries = [entry("b", 7), entry("other", 8), SimpleNamespace(name="c", lstat=gone)]
    entries.append(entry("a", 7))
    monkeypatch.setattr(victim, "Path", lambda path: SimpleNamespace(iterdir=lambda: entries))
    monkeypatch.setattr(victim.os, "getuid", lambda: 7)
    assert victim.shared_memory() == ["a", "b"]


@pytest.mark.parametrize(("info", "mib"), [(SimpleNamespace(used=(5 << 20) + 1), 5), (None, None)])
def test_memory_of_a_gpu_is_told_in_mib(info, mib, monkeypatch):
    answers = {"nvmlDeviceGetMemoryInfo": info, "nvmlDeviceGetUUID": "GPU-1"}
    monkeypatch.setattr(victim.devices, "query_nvml", lambda call, handle: answers[call])
    assert victim.gpu_memory("handle") == ("GPU-1", mib)


def test_only_the_leader_of_a_node_reports_its_state(monkeypatch):
    monkeypatch.setattr(victim, "shared_memory", lambda: ["mine"])
    monkeypatch.setattr(victim.devices, "open_handles", lambda: ["h"])
    monkeypatch.setattr(victim, "gpu_memory", lambda handle: ("GPU-1", 7))
    leader, other = a_rank(on_gpu=True), a_rank(leads_node=False)
    victim._report_node_state(leader)
    victim._report_node_state(other)
    (line,) = leader.lines
    assert (line["event"], line["shm"], line["gpus"]) == ("place", ["mine"], {"GPU-1": 7})
    assert other.lines == []


def test_three_checkpoints_are_kept(tmp_path):
    for step in (5, 10, 15, 20):
        (tmp_path / f"step-{step:06}").mkdir()
    training = SimpleNamespace(step=25, save=lambda: tmp_path / "step-000025")
    (tmp_path / "step-000025").mkdir()
    other, first = a_rank(rank=1), a_rank()
    victim._save(other, training)  # type: ignore[arg-type]
    assert len(list(tmp_path.iterdir())) == 5
    victim._save(first, training)  # type: ignore[arg-type]
    assert sorted(p.name[-2:] for p in tmp_path.iterdir()) == ["15", "20", "25"]
    assert first.lines == [{"event": "saved", "step": 25}]
    assert other.lines == []


# --- how it fails


def test_each_way_has_the_fault_of_its_name(monkeypatch):
    log: list[Any] = []
    fake = SimpleNamespace(
        _exit=lambda status: log.append(("exit", status)), getpid=lambda: 42,
        kill=lambda number, signal: log.append((number, signal.name)),
    )  # fmt: skip
    monkeypatch.setattr(victim, "os", fake)
    monkeypatch.setattr(victim.ctypes, "string_at", lambda address: log.append(("read", address)))
    monkeypatch.setattr(victim.signal, "pause", stop)
    monkeypatch.setattr(victim, "_exhaust_host_memory", lambda: log.append("host memory"))
    monkeypatch.setattr(victim, "_exhaust_gpu_memory", lambda ranks: log.append("gpu memory"))
    blocked = SimpleNamespace(set=lambda: log.append("loader"))
    wanted: dict[str, list[Any]] = {
        "exit": [("exit", 3)], "raise": [ValueError], "kill": [(42, "SIGKILL")],
        "segfault": [("read", 0)], "collective": [Stop], "loader": ["loader"],
        "frozen": [(42, "SIGSTOP")], "host_memory": ["host memory"],
        "gpu_memory": ["gpu memory"], "cancelled": [],
    }  # fmt: skip
    for way, expected in wanted.items():
        log.clear()
        try:
            victim._inject_fault(a_rank(), way, blocked)
        except (ValueError, Stop) as error:
            log.append(type(error))
        assert log == expected, way


def test_a_blocked_loader_gives_no_sample(tmp_path, monkeypatch):
    from training import loop

    made = []

    def training(settings: Any, team: Any, samples: int) -> Any:
        made.append((settings, samples))
        return SimpleNamespace(settings=settings)

    monkeypatch.setattr(loop, "Training", training)
    found, blocked = victim._endless_training(a_rank(tmp_path), a_team(), "loader")
    data = found.batch_loader.loader.dataset
    index, tokens = data[3]
    assert (index, len(tokens)) == (3, found.settings.tokens + 1)
    assert len(data) == made[0][1]
    assert (found.settings.strategy, found.settings.steps) == ("ddp", 1_000_000)
    monkeypatch.setattr(victim.signal, "pause", stop)
    blocked.set()
    with pytest.raises(Stop):
        data[3]
    stored, _ = victim._endless_training(a_rank(tmp_path), a_team(), "storage_full")
    assert stored.settings.strategy == "fsdp"


# --- a node that is lost


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The trainings of a job whose node is lost: each begins at step 4 if it is resumed."""
    from training import checkpoint, reference_run, strategies

    made: list[Any] = []

    def new(settings: Any, team: Any) -> Any:
        made.append(FakeTraining(last=8, step=4 if settings.resume else 0))
        return made[-1]

    monkeypatch.setattr(reference_run, "new_training", new)
    monkeypatch.setattr(reference_run, "losses", lambda *given: [9.0] * 4 + [2.0, 0.8])
    monkeypatch.setattr(strategies, "one_team_per_rank", lambda ranks: a_team())
    monkeypatch.setattr(checkpoint, "awaited_intact", lambda folder: None)
    monkeypatch.setattr(victim.signal, "pause", stop)
    return made


@pytest.mark.parametrize(("number", "lines"), [(0, 0), (1, 1)])
def test_the_node_is_lost_two_steps_after_the_checkpoint(
    number, lines, tmp_path, trainings, monkeypatch
):
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    ranks = a_rank(tmp_path, rank=number, world_size=2)
    with pytest.raises(Stop):
        victim._train_through_node_loss(ranks, a_team(2))
    assert trainings[0].log == [4, "saved 4", 2]
    assert ranks.lines == [{"event": "fault", "way": "node", "step": 6}] * lines


@pytest.mark.parametrize("number", [0, 1])
def test_a_restarted_job_resumes_and_compares_its_losses(number, tmp_path, trainings, monkeypatch):
    from training import checkpoint

    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    ranks = a_rank(tmp_path, rank=number, world_size=2)
    with pytest.raises(RuntimeError, match="no intact checkpoint"):
        victim._train_through_node_loss(ranks, a_team(2))
    monkeypatch.setattr(checkpoint, "awaited_intact", lambda folder: folder)
    result = victim._train_through_node_loss(ranks, a_team(2))
    assert trainings[-1].log == [2, None]
    assert ranks.lines == ([] if number else [{"event": "regained", "step": 6}])
    (curve,) = result.measurements
    assert (curve.metric, curve.unit, curve.value) == ("curve", "%", pytest.approx(25))
    assert "from step 4" in curve.notes[0]
    assert result.facts == {"losses": [2.0, 1.0], "begun": 4}
