"""One training: what fits into a GPU, its times and its entry in the summary."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.selftests.training.one_rank import a_rank
from training.finetune import settings, training_run

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(("gib", "batch"), [(126, 4), (71, 2), (36, 1)])
def test_the_batch_is_halved_until_it_fits_and_the_step_stays(cost, gib, batch):
    wanted = settings.load(settings.find("optimised"))
    found, notes = training_run.fit_to_memory(wanted, cost, gib)
    assert found.training.batch_size == batch
    assert found.training.global_batch_size == wanted.training.global_batch_size
    assert bool(notes) == (batch != 4)


def test_a_gpu_is_filled_to_nine_tenths(cost, monkeypatch):
    asked: list[float] = []
    monkeypatch.setattr(
        training_run, "fit_to_memory",
        lambda wanted, cost, gib: asked.append(gib) or ("smaller", ["note"]),
    )  # fmt: skip
    properties = SimpleNamespace(total_memory=100 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    wanted = settings.load(settings.find("optimised"))
    assert training_run.fit_to_gpu(wanted, cost, a_rank()) == (wanted, [])
    assert training_run.fit_to_gpu(wanted, cost, a_rank(on_gpu=True)) == ("smaller", ["note"])
    assert asked == [pytest.approx(90.0)]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs a training without a model; returns it, and what was done."""
    log: list[Any] = []
    history = SimpleNamespace(
        losses=[1.0], norms=[1.0], learning_rates=[0.1], tokens=[100], seconds=[4.0]
    )
    board = SimpleNamespace(add_step="add", close=lambda: log.append("closed"))
    prepared = SimpleNamespace(packed="packed", about={"padding": 0.1})
    monkeypatch.setattr(training_run.summary, "folder", lambda ranks: tmp_path)
    monkeypatch.setattr(training_run.summary, "TensorBoardLog", lambda folder: board)
    monkeypatch.setattr(
        training_run.prepare, "prepare", lambda *given, **how: log.append("prepared")
    )
    monkeypatch.setattr(training_run.prepare, "load_prepared", lambda folder: prepared)
    monkeypatch.setattr(training_run, "wait_for_all_ranks", lambda ranks: None)
    fakes = {
        "build": None, "add_adapters": SimpleNamespace(get_base_model=lambda: SimpleNamespace(
            config=None)), "count_parameters": (7, 9), "resident_bytes": 5,
        "prepare_for_training": "loss model", "is_compiled": False,
    }  # fmt: skip
    for name, value in fakes.items():
        monkeypatch.setattr(training_run.model, name, lambda *given, v=value, **how: v)

    def train(*given: Any, max_steps: Any, on_step: Any) -> Any:
        log.append((max_steps, on_step))
        return history

    monkeypatch.setattr(training_run.loop, "train", train)

    def start(*, rank: int = 0, **how: Any) -> Any:
        log.clear()
        wanted = settings.load(settings.find("small"))
        found = training_run.run_training(a_rank(rank=rank), wanted, **how)
        return found, list(log)

    return start


def test_one_rank_prepares_the_data_and_writes_the_logs(trained):
    found, log = trained(log=True)
    assert log == ["prepared", (None, "add"), "closed"]
    assert found.log is not None
    found, log = trained(rank=1, log=True, max_steps=3)
    assert (log, found.log) == ([(3, None)], None)
    found, log = trained(excluded=2)
    assert (log, found.log, found.excluded) == (["prepared", (None, None)], None, 2)


def test_the_summary_tells_of_model_times_and_steps(trained):
    found, _ = trained()
    assert found.tokens_per_s() == [25.0]
    entry = found.summary_entry(a_rank(world_size=2))
    assert (entry["model"], entry["trainable"], entry["gpus"]) == ("random weights, tiny", 7, 2)
    assert (entry["steps"], entry["table"][0]["tokens_per_s_gpu"]) == (1, 25.0)
    found.settings = found.settings.with_values("model", path="/my/model")
    assert found.summary_entry(a_rank())["model"] == "/my/model"
