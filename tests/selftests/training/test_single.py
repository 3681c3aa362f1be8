"""Training of every GPU alone: loss, throughput, and who is slow."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fixtures.records.model import Measurement
from tests.selftests.training.one_rank import a_rank, a_team, a_timed_run
from training import single
from training.settings import Settings
from training.stragglers import Round

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("losses", "fall"),
    [
        ([12.5, 9.0, 7.0, 6.0, 6.1, 6.0, 5.9, 20.7], 52.0),  # seen on H200: one step jumped
        ([12.5, 9.0, 7.0, 6.0, 20.0, 21.0, 20.5, 22.0], 0.0),
        ([12.5, 9.0, math.nan, 6.0, 6.1, 6.0, 5.9, 6.0], 0.0),
    ],
)
def test_a_loss_has_fallen_where_the_last_steps_say_so(losses, fall):
    timed: Any = SimpleNamespace(losses=losses, norms=[1.0] * 8, settings=Settings())
    found = {m.metric: m.value for m in single.health(timed)}
    assert found["fall"] == pytest.approx(fall, abs=0.1)


def test_a_loss_that_jumps_in_two_of_the_last_steps_has_fallen_all_the_same():
    losses = [10.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 20.0, 5.0, 5.0, 5.0, 20.0]
    timed: Any = SimpleNamespace(losses=losses, norms=[1.0] * 12, settings=Settings())
    assert {m.metric: m.value for m in single.health(timed)}["fall"] == 50.0


def test_steps_without_a_usable_gradient_are_counted():
    norms = [1.0, 0.0, math.inf, math.nan, 2.0]
    timed: Any = SimpleNamespace(losses=[2.0] * 5, norms=norms, settings=Settings())
    fall, gradients = single.health(timed)
    assert (fall.value, fall.unit, fall.at) == (0.0, "%", {"preset": "tiny"})
    assert (gradients.metric, gradients.value) == ("gradients", 3)
    assert gradients.notes == ["first in step 2"]
    timed.norms = [0.5] * 5
    assert single.health(timed)[1].notes == []


@pytest.mark.parametrize(
    ("name", "dtype", "metrics"),
    [
        ("NVIDIA H200", "bf16", ["tokens", "mfu", "mfu_half"]),
        ("NVIDIA H200", "fp32", ["tokens"]), ("cpu", "bf16", ["tokens"]),
    ],
)  # fmt: skip
def test_utilisation_is_that_of_known_gpus_in_bf16(name, dtype, metrics, monkeypatch):
    from training import metrics as costs

    monkeypatch.setattr(
        costs, "flops_per_token", lambda shape, tokens, causal_half: 1e12 if causal_half else 2e12
    )
    monkeypatch.setattr(costs, "peak_tflops", {"NVIDIA H200": 1000.0}.get)
    ranks = a_rank(device_facts=lambda: {"name": name})
    found = single.throughput(ranks, a_timed_run(Settings(dtype=dtype)), notes=["n"])
    assert [m.metric for m in found] == metrics
    values = {m.metric: (m.unit, m.samples[0], m.notes) for m in found}
    assert values["tokens"] == ("tokens/s", 100.0, ["n"])
    if "mfu" in metrics:
        assert (values["mfu"], values["mfu_half"]) == (("%", 20.0, ["n"]), ("%", 10.0, ["n"]))


def test_a_rank_is_noted_that_is_slow_in_every_round():
    def rounds(*paces: float) -> list[Round]:
        return [Round(own=[2.0] * 5, waiting=[0.5] * 5, reference=p / 50) for p in paces]

    ranks = a_rank(node="n1", device_facts=lambda: {"index": 3})
    assert single.pace(ranks, a_timed_run()) == []
    for paces, notes in (((90.0, 96.9), 1), ((90.0, 97.1), 0), ((110.0,), 0)):
        (found,) = single.pace(ranks, a_timed_run(own_rounds=rounds(*paces)))
        assert (found.metric, found.unit, len(found.notes)) == ("pace", "%", notes)
        assert found.samples == pytest.approx([paces[0]] * 5)
        assert len(found.rounds) == len(paces) - 1
        assert found.checks == {"steps": 5.0}
        assert all(n.startswith("n1 gpu3 takes 2000 ms") for n in found.notes)
        assert all("waits 500 ms" in n for n in found.notes)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the workload on nothing; returns its result, and what it did."""
    from training import batch_search, strategies
    from training import run as training_run

    log: dict[str, Any] = {}

    def fit(ranks: Any, settings: Any, overrides: Any, *given: Any) -> Any:
        log["fit"] = given
        return settings

    monkeypatch.setattr(training_run, "fit_to_memory", fit)
    monkeypatch.setattr(training_run, "timed_run", lambda *given: a_timed_run())
    monkeypatch.setattr(training_run, "facts", lambda ranks, runs, show: {"runs": len(runs)})
    monkeypatch.setattr(strategies, "one_team_per_rank", lambda ranks: a_team())
    monkeypatch.setattr(batch_search, "by_hand", lambda ranks, team, given, *more, show: given)
    checked = Measurement(metric="curve", unit="%", value=0.5)
    monkeypatch.setattr(single, "_correctness", lambda ranks, team: [checked])

    def start(metrics: list[str], **how: Any) -> Any:
        result = single.run(a_rank(), metrics, **how)
        return [m.metric for m in result.measurements], result.facts["runs"], log

    return start


def test_what_is_asked_for_is_measured(started):
    metrics, runs, log = started(["curve", "tokens"])
    assert (metrics, runs) == (["curve", "tokens"], 1)
    # 16,384 tokens: two sequences of 8,192, one after the other where memory is short.
    assert log["fit"] == (1, (2, 1), 16384)
    assert started(["curve"])[:2] == (["curve"], 0)
    assert started(["fall"])[:2] == (["fall"], 1)
    assert started(["curve"], checks=False)[:2] == ([], 0)


def test_what_is_reloaded_is_compared_bit_by_bit(tmp_path, monkeypatch):
    from training import checkpoint

    honest = checkpoint.load
    found = {m.metric: m for m in single._correctness(a_rank(tmp_path), a_team())}
    assert (found["reload"].value, found["reload"].unit) == (0, "tensors")
    assert found["curve"].value < 0.01
    assert list(tmp_path.iterdir()) == [], "the checkpoint is removed"

    def forgetful(path: Any, module: Any, *more: Any, **how: Any) -> int:
        step = honest(path, module, *more, **how)
        with torch.no_grad():
            next(iter(module.parameters()))[0, 0] += 1
        return step

    monkeypatch.setattr(checkpoint, "load", forgetful)
    found = {m.metric: m for m in single._correctness(a_rank(tmp_path), a_team())}
    assert found["reload"].value == 1
