"""FSDP: the shapes that are timed, the shard of a rank, and its figures."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.model import Measurement
from tests.selftests.training.one_rank import a_rank, a_team, a_timed_run, of_gpus
from training import batch_search, ddp, fsdp, metrics, reference_run, single, strategies
from training import run as training_run
from training.settings import Settings

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("gib", "preset", "recompute"),
    [(140, "8b-short", "none"), (79, "8b-mini", "none"), (39, "1b", "block")],
)
def test_fsdp_scales_with_what_one_gpu_can_hold(gib, preset, recompute):
    run = training_run
    asked = Settings(strategy="fsdp", preset=fsdp.PRESET, dtype="bf16", batch=2)
    team: Any = SimpleNamespace(size=8)
    settings = fsdp._scaling_settings(of_gpus(gib), team, asked)
    assert (settings.preset, settings.recompute) == (preset, recompute)
    assert settings.passes_per_step(8) * settings.batch == 2
    assert run.fits(of_gpus(gib), settings, 1)


def test_scaling_of_a_node_is_measured_with_what_its_gpus_hold(monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr(
        training_run, "fits", lambda ranks, settings, size: bool(asked.append(size))
    )
    given = Settings(strategy="fsdp", preset="8b-short", batch=2)
    for nodes, size in ((1, 1), (2, 8), (3, 8)):
        asked.clear()
        ranks = of_gpus(40, nodes=["n"] * nodes, ranks_per_node=8)
        found = fsdp._scaling_settings(ranks, a_team(4), given)
        assert asked == [size] * 3
        assert (found.preset, found.batch, found.global_batch) == ("1b", 1, 8)
    found = fsdp._scaling_settings(ranks, a_team(4), replace(given, global_batch=16))
    assert found.global_batch == 16
    assert fsdp._scaling_settings(a_rank(), a_team(4), given) is given, "a CPU"


def value(metric: str) -> Measurement:
    return Measurement(metric=metric, unit="%", value=1)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the workload on nothing; returns its metrics, and with what it measured."""
    log: dict[str, Any] = {}

    def timed(ranks: Any, team: Any, settings: Any, measured: Any, **how: Any) -> Any:
        log.update(how, settings=settings)
        return [a_timed_run()], [value("tokens"), value("fall")]

    monkeypatch.setattr(fsdp, "_timed_measurements", timed)
    monkeypatch.setattr(fsdp, "_correctness", lambda ranks, team: [value("curve")])
    monkeypatch.setattr(training_run, "facts", lambda ranks, runs, show: {"runs": len(runs)})
    monkeypatch.setattr(strategies, "one_team", lambda ranks: a_team(2))
    monkeypatch.setattr(
        batch_search, "by_hand", lambda ranks, team, given, *more, show: replace(given, seed=7)
    )

    def start(names: list[str], **how: Any) -> Any:
        log.clear()
        result = fsdp.run(a_rank(world_size=2), names, **how)
        return [m.metric for m in result.measurements], result.facts["runs"], log

    return start


def test_what_is_asked_for_is_measured(started):
    names, runs, log = started(["curve", "tokens"])
    assert (names, runs) == (["curve", "tokens"], 1)
    assert (log["judged_shapes"], log["settings"].seed) == (True, 1234)
    assert started(["curve"])[:2] == (["curve"], 0)
    assert started(["tokens"])[:2] == (["tokens"], 1)
    assert started(["curve"], checks=False)[:2] == ([], 0)
    _, _, log = started(["tokens"], batch=4, show=True)
    assert (log["judged_shapes"], log["by_hand"], log["settings"].seed) == (False, True, 7)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs _timed_measurements() on nothing; returns presets of the runs, and the metrics."""
    largest = {"8b-short": 4, "8b": 1}
    log: list[Any] = []

    def run(ranks: Any, team: Any, settings: Any) -> Any:
        return a_timed_run(settings, team, peak_gib=60.0)

    def first_that_fits(ranks: Any, settings: Any, size: int, batches: Any) -> Any:
        log.append(("fits", size, batches))
        batch = largest.get(settings.preset)
        return batch and replace(settings, batch=batch)

    def searched(ranks: Any, team: Any, settings: Any) -> Any:
        log.append("searched")
        return replace(settings, batch=16)

    monkeypatch.setattr(training_run, "timed_run", run)
    monkeypatch.setattr(training_run, "largest_batch", first_that_fits)
    monkeypatch.setattr(batch_search, "fastest", searched)
    monkeypatch.setattr(ddp, "network_notes", lambda ranks, team: ["network"])
    monkeypatch.setattr(single, "pace", lambda ranks, run: [])
    monkeypatch.setattr(
        fsdp, "_share_of_gemm", lambda ranks, run: value(f"gemm {run.settings.preset}")
    )
    monkeypatch.setattr(
        fsdp, "_scaling_settings", lambda ranks, team, given: replace(given, preset="1b")
    )

    def start(names: list[str], *, parts: Any = (50.0,), **how: Any) -> Any:
        log.clear()

        def scaling(ranks: Any, team: Any, settings: Any, measured: Any) -> Any:
            runs = [a_timed_run(settings, peak_gib=gib) for gib in (*parts, 20.0)]
            return runs, {"efficiency": [90.0]} if parts else {}

        monkeypatch.setattr(ddp, "scaling_runs", scaling)
        ranks = how.pop("ranks", of_gpus(80))
        given = {"judged_shapes": True, "by_hand": False, **how}
        runs, found = fsdp._timed_measurements(
            ranks, a_team(2), Settings(strategy="fsdp", preset="8b-short"), names, **given
        )
        presets = [(r.settings.preset, r.settings.batch) for r in runs]
        return presets, [m.metric for m in found], found

    start.log = log  # type: ignore[attr-defined]
    start.largest = largest  # type: ignore[attr-defined]
    return start


HEALTH = ["fall", "gradients"]
SCALING = [("1b", 2), ("1b", 2)]


def test_on_one_node_of_gpus_the_shapes_that_are_judged_are_timed_too(measured):
    presets, names, found = measured(["tokens"])
    assert presets == [*SCALING, ("8b-short", 4), ("8b", 1)]
    assert names == [*HEALTH, "memory", "tokens", "tokens", "tokens", "efficiency"]
    # 4, 2 and 1 sequences per pass are tried, the largest first.
    assert measured.log == [("fits", 2, (4, 2, 1))] * 2
    memory = next(m for m in found if m.metric == "memory")
    assert (memory.value, memory.unit) == (40.0, "%")
    assert [m.at["preset"] for m in found if m.metric == "tokens"] == ["1b", "8b-short", "8b"]


def test_a_shape_that_does_not_fit_is_not_timed(measured):
    del measured.largest["8b-short"]
    assert measured(["tokens"])[0] == [*SCALING, ("8b", 1)]
    measured.largest.clear()
    assert measured(["tokens"])[0] == SCALING


def test_elsewhere_only_scaling_is_timed(measured):
    for ranks in (a_rank(), of_gpus(80, nodes=["a", "b"]), of_gpus(80, nodes=["a"] * 3)):
        assert measured(["tokens"], ranks=ranks)[0] == SCALING
        assert measured.log == []
    presets, _, _ = measured(["tokens"], judged_shapes=False)
    assert presets == [("8b-short", 2)] * 2


def test_by_hand_the_fastest_batch_is_searched_for_on_gpus(measured):
    presets, _, _ = measured(["tokens"], by_hand=True)
    assert presets == [*SCALING, ("8b-short", 16), ("8b", 16)]
    assert measured.log == ["searched"] * 2


def test_the_share_of_a_plain_product_is_that_of_the_judged_shape(measured):
    assert "gemm 8b-short" in measured(["gemm"])[1]
    assert "gemm 1b" in measured(["gemm"], ranks=of_gpus(80, nodes=["a", "b"]))[1]
    assert measured(["gemm"], ranks=a_rank())[1][2] == "memory"
    assert not [n for n in measured(["tokens"])[1] if n.startswith("gemm")]


def test_memory_is_compared_where_parts_were_timed(measured):
    assert "memory" not in measured(["memory"], parts=())[1]
    assert "memory" not in measured(["memory"], parts=(None,))[1]
    assert "memory" in measured(["memory"], parts=(50.0,))[1]


def test_the_share_of_a_product_counts_half_of_the_attention(monkeypatch):
    monkeypatch.setattr(metrics, "gemm_tflops", lambda ranks: 500.0)
    monkeypatch.setattr(
        metrics, "flops_per_token", lambda shape, tokens, causal_half: 1e12 if causal_half else 9e12
    )
    found = fsdp._share_of_gemm(a_rank(), a_timed_run())
    assert (found.metric, found.unit, found.samples[0]) == ("gemm", "%", 20.0)
    assert found.notes == ["product: 500 TFLOPS"]


@pytest.mark.parametrize(
    ("ranks", "policies"),
    [
        (a_rank(), ["block", "root", "size"]), (a_rank(nodes=["a", "b"]), ["block"]),
        (a_rank(nodes=["a", "b", "c"]), ["block"]),
        (a_rank(on_gpu=True), ["block", "root", "size", "offload"]),
    ],
)  # fmt: skip
def test_losses_and_shards_are_compared_for_each_policy(ranks, policies, monkeypatch):
    def new(settings: Any, team: Any) -> Any:
        held = {"parameters": 4 * settings.shape.parameters / 2}
        return SimpleNamespace(
            run=lambda: SimpleNamespace(losses=[3.0]), optimizer=None, settings=settings,
            model=SimpleNamespace(state_bytes=lambda optimizer: held, units=3),
        )  # fmt: skip

    monkeypatch.setattr(reference_run, "new_training", new)
    monkeypatch.setattr(reference_run, "losses", lambda settings, team: [2.0])
    found = fsdp._correctness(ranks, a_team(2))
    curves = [(m.at["policy"], m.value) for m in found if m.metric == "curve"]
    shares = [(m.at["policy"], m.value) for m in found if m.metric == "sharded"]
    assert curves == [(name, 50.0) for name in policies]
    assert shares == [(name, 100.0) for name in policies]
