"""Timed training runs: settings that fit, figures, and what the record says of them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.absence import Kind, of_metrics
from fixtures.workloads.timing.timing import Batches
from tests.selftests.training.one_rank import a_rank, a_team, a_timed_run, of_gpus
from training import metrics, run, stragglers
from training.settings import PRESETS, Settings, SettingsError

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("gib", "gpus", "preset", "batch"),
    [
        (140, 4, "8b-short", 4), (140, 2, "8b-short", 4), (140, 4, "8b", 2), (140, 2, "8b", 1),
        (79, 8, "8b-short", 2), (79, 8, "8b", 1), (79, 4, "8b", None), (39, 8, "8b", None),
    ],
)  # fmt: skip
def test_utilisation_is_judged_with_the_largest_batch_that_fits(gib, gpus, preset, batch):
    from training import fsdp, run

    asked = Settings(strategy="fsdp", preset=preset, dtype="bf16", batch=2)
    found = run.largest_batch(of_gpus(gib), asked, gpus, fsdp.BATCH_SIZES)
    assert (found.batch if found else None) == batch


@pytest.mark.parametrize(
    ("gib", "preset", "passes"),
    [(140, "1b", 1), (79, "1b", 4), (94, "1b", 4), (44, "160m", 4), (39, "160m", 4),
     (22, "160m", 4)],
)  # fmt: skip
def test_a_step_of_ddp_has_as_many_tokens_on_every_model_of_gpu(gib, preset, passes):
    from training import ddp, run

    asked = Settings(strategy="ddp", preset=ddp.PRESET, dtype="bf16")
    settings = run.fit_to_memory(of_gpus(gib), asked, (), 4, ddp.BATCH_SIZES, ddp.TOKENS_PER_STEP)
    assert (settings.preset, settings.passes_per_step(4)) == (preset, passes)
    assert passes * settings.batch * settings.tokens == ddp.TOKENS_PER_STEP == 65536
    assert run.fits(of_gpus(gib), settings, 4)


def test_the_copies_that_ddp_holds_are_foreseen():
    """On 4 H200, one pass of 8 sequences: 103.7 GiB alone, 114.8 in DDP."""
    from training.metrics import needed_gib
    from training.run import DDP_GRADIENT_COPIES

    def needed(copies: int) -> float:
        return needed_gib(
            PRESETS["1b"], tokens=65536, team_size=4, fsdp=False, gradient_copies=copies
        )

    assert needed(DDP_GRADIENT_COPIES) - needed(0) == pytest.approx(114.83 - 103.66, abs=0.1)


@pytest.mark.parametrize(("gib", "preset"), [(140, "1b"), (79, "1b"), (39, "160m")])
def test_a_gpu_alone_trains_what_it_can_hold(gib, preset):
    from training import run, single

    asked = Settings(preset=single.PRESET, dtype="bf16")
    settings = run.fit_to_memory(
        of_gpus(gib), asked, (), 1, single.BATCH_SIZES, single.TOKENS_PER_STEP
    )
    assert (settings.preset, settings.batch) == (preset, 2)
    assert settings.passes_per_step(1) * settings.batch * settings.tokens == single.TOKENS_PER_STEP
    assert run.fits(of_gpus(gib), settings, 1)
    assert (
        run.fit_to_memory(
            of_gpus(gib), asked, ("dtype",), 1, single.BATCH_SIZES, single.TOKENS_PER_STEP
        )
        is asked
    )


def test_steps_that_others_needed_are_not_shown(monkeypatch):
    import torch

    from training import loop, reference_run, run
    from training.strategies import Team

    real = loop.time_steps
    monkeypatch.setattr(run, "time_steps", lambda *a, **k: (real(*a, **k)[0], 3))
    device = torch.device("cpu")
    team = Team(members=(0,), rank=0, device=device, group=None)
    ranks: Any = SimpleNamespace(
        device=device, gather=lambda own: [own], barrier=lambda: None, nodes=["a"], world_size=1,
        on_gpu=False,
    )  # fmt: skip
    done = run.timed_run(ranks, team, reference_run.settings_for("single", steps=15))
    assert [len(x) for x in (done.losses, done.norms, done.learning_rates)] == [15, 15, 15]
    assert (len(done.seconds), done.excluded, done.overlap) == (5, 10, 1.0)


# --- settings


def test_a_run_on_a_gpu_is_longer_and_compiled():
    gpu = run.complete_settings(of_gpus(80), "ddp", {}, preset="1b")
    assert (gpu.preset, gpu.dtype, gpu.compile, gpu.steps) == ("1b", "bf16", True, 40)
    cpu = run.complete_settings(a_rank(), "fsdp", {"wrap": "block"}, preset="1b")
    assert (cpu.preset, cpu.dtype, cpu.compile, cpu.steps) == ("tiny", "fp32", False, 20)
    assert (cpu.strategy, cpu.wrap) == ("fsdp", "block")


def test_settings_are_refused_for_what_the_defaults_make_of_them(tmp_path):
    with pytest.raises(SettingsError, match="switch compile off"):
        run.complete_settings(of_gpus(80), "fsdp", {"wrap": "size"}, preset="1b")
    three = a_rank(world_size=3)
    given = {"batch": 2, "global_batch": 4}
    assert run.complete_settings(three, "single", given, preset="tiny").global_batch == 4
    with pytest.raises(SettingsError, match="not divisible by 3 ranks"):
        run.complete_settings(three, "ddp", given, preset="tiny")
    (tmp_path / "broken.jsonl").write_text("{")
    data = {"data": str(tmp_path / "broken.jsonl")}
    with pytest.raises(SettingsError, match="1 broken lines"):
        run.complete_settings(a_rank(), "single", data, preset="tiny")


def test_a_cpu_and_what_is_offloaded_always_fit():
    large = Settings(strategy="fsdp", preset="8b", batch=64)
    assert run.fits(a_rank(), large, 1) is True
    assert run.fits(of_gpus(8), large, 1) is False
    assert run.fits(of_gpus(8), replace(large, offload=True), 1) is True


def test_where_nothing_fits_the_smaller_shape_is_tried_with_the_smallest_batch():
    found = run.fit_to_memory(of_gpus(1), Settings(preset="1b"), (), 2, (4, 2), 8192)
    assert (found.preset, found.batch, found.global_batch) == ("160m", 2, 8)


# --- a run


class FakeTraining:
    """A training that is over at once."""

    def __init__(self, settings: Settings, team: Any, *, kernel: Any) -> None:
        self.settings, self.step, self.tokens_per_step = settings, 0, 64
        self.log: list[Any] = []
        values = [1.0] * settings.steps
        self.history = SimpleNamespace(losses=values, norms=values, learning_rates=values)
        self.model = SimpleNamespace(state_bytes=lambda optimizer: {"parameters": 4})
        self.optimizer = None

    def save(self) -> None:
        self.log.append("saved")


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs timed_run() on nothing; returns the run, and how it was made."""

    def start(ranks: Any, team: Any, settings: Settings, **more: Any) -> Any:
        made: list[Any] = []

        def new(*given: Any, **how: Any) -> Any:
            made.append(FakeTraining(*given, **how))
            return made[-1]

        def time_steps(ranks: Any, training: Any, steps: int, **how: Any) -> Any:
            training.how = {"steps": steps, **how}
            ended = [101.0 + k for k in range(steps)]
            return Batches(
                seconds=[1.0] * steps, started=100.0, ended=ended, launches=1,
                wall_over_marks=1.0, inside=steps,
            ), 0  # fmt: skip

        monkeypatch.setattr(run, "Training", new)
        monkeypatch.setattr(run, "time_steps", time_steps)
        monkeypatch.setattr(run, "agreed_kernel", lambda *given: SimpleNamespace(name="any"))
        done = run.timed_run(ranks, team, settings, **more)
        return done, made[0]

    return start


@pytest.mark.parametrize(("nodes", "longest"), [(1, None), (2, 90.0), (3, 90.0)])
def test_over_several_nodes_a_timing_is_limited_to_90_seconds(nodes, longest, timed):
    done, training = timed(a_rank(nodes=["n"] * nodes), a_team(), Settings(steps=25))
    assert training.how == {"steps": 15, "excluded": 10, "max_timed_s": longest}
    assert (done.tokens, len(done.seconds), done.excluded) == (64, 15, 10)
    assert (done.facts, done.state_bytes) == ({"attention": "any"}, {"parameters": 4})


def test_each_team_has_a_directory_of_checkpoints_of_its_own(timed, tmp_path):
    settings = Settings(steps=12, checkpoint=str(tmp_path))
    for world_size, directory in ((2, tmp_path), (4, tmp_path / "rank0")):
        _, training = timed(a_rank(world_size=world_size), a_team(2), settings)
        assert (training.settings.checkpoint, training.log) == (str(directory), ["saved"])
    _, training = timed(a_rank(world_size=4), a_team(2), Settings(steps=12))
    assert (training.settings.checkpoint, training.log) == ("", [])


@pytest.mark.parametrize(
    ("asked", "team", "world_size", "rounds"),
    [(True, 2, 2, 1), (True, 3, 3, 1), (False, 2, 2, 0), (True, 1, 1, 0), (True, 2, 4, 0)],
)
def test_own_steps_are_trained_where_all_ranks_are_one_team(
    asked, team, world_size, rounds, timed, monkeypatch
):
    monkeypatch.setattr(stragglers, "measure", lambda ranks, training, step_s: [step_s])
    ranks, settings = a_rank(world_size=world_size), Settings(steps=12)
    done, _ = timed(ranks, a_team(team), settings, own_steps=asked)
    assert done.own_rounds == [1.0] * rounds

    def missed(*given: Any, **how: Any) -> Any:
        raise stragglers.CommunicationMissed("torch 9")

    monkeypatch.setattr(stragglers, "measure", missed)
    done, _ = timed(ranks, a_team(team), settings, own_steps=asked)
    assert [(a.metric, a.why) for a in done.absent] == [("pace", "torch 9")] * rounds


def test_the_memory_of_a_gpu_is_read_and_freed(monkeypatch):
    import torch

    freed: list[int] = []
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**30)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(1))
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert (run.peak_gib(cpu), run.peak_gib(gpu)) == (None, 3.0)
    run.free_memory(cpu)
    assert freed == []
    run.free_memory(gpu)
    assert freed == [1]


# --- figures


def test_figures_are_those_of_the_timed_steps(monkeypatch):
    monkeypatch.setattr(
        metrics, "flops_per_token",
        lambda shape, tokens, causal_half: 2e12 if causal_half else 3e12,
    )  # fmt: skip
    done = a_timed_run(Settings(dtype="bf16"), seconds=[1.0, 2.0, 4.0])
    assert done.tokens_per_s == [100.0, 50.0, 25.0]
    assert (done.tflops(causal_half=True), done.tflops(causal_half=False)) == (100.0, 150.0)
    found = done.measurement("tokens", "tokens/s", [1 / 3], notes=["n"])
    assert (found.metric, found.unit, found.samples) == ("tokens", "tokens/s", [0.333333])
    assert found.checks == {"steps": 3.0, "excluded": 2.0, "overlap": 0.9877}
    assert (found.at, found.notes) == ({"preset": "tiny"}, ["n"])
    assert found.conditions == {"dtype": "bf16", "flops_per_token": 2e12}


def test_efficiency_is_relative_to_the_median_and_to_the_slowest_of_the_parts():
    parts = [([0], 100.0), ([1, 2], 90.0), ([1, 2], 80.0), ([3], 60.0)]
    ranks = a_rank(gather=lambda own: parts)
    whole = a_timed_run(seconds=[2.0, 1.25])  # 50 and 80 tokens/s
    of_median, of_slowest = run.efficiency(ranks, whole, a_timed_run())
    assert of_median == pytest.approx([62.5, 100])
    assert of_slowest == pytest.approx([83.333, 133.333], rel=1e-3)


def test_a_run_is_summed_up_with_numbers_that_json_has():
    done = a_timed_run(
        Settings(batch=2, global_batch=8), a_team(2), seconds=[1.0, 2.0, 4.0], losses=[9, 1, 1, 1,
        float("nan")], facts={"attention": "flash"},
    )  # fmt: skip
    found = run.summary(done)
    assert (found["ranks"], found["accumulation"], found["steps"]) == (2, 2, 5)
    assert (found["step_s"], found["tokens_per_s"], found["last_loss"]) == (2.0, 50.0, "nan")
    assert (found["attention"], "peak_gib" in found) == ("flash", False)
    assert run.summary(a_timed_run(peak_gib=1.23456789))["peak_gib"] == 1.23457
    assert run._json_number(float("inf")) == "inf"


def test_the_table_has_a_row_for_each_step_and_rates_of_timed_ones():
    done = a_timed_run(seconds=[2.0], excluded=1, first_step=7)
    assert run.table(done) == [[8, 8.0, 1.0, 0.1, None], [9, 7.0, 1.0, 0.1, 50.0]]


def test_facts_hold_tables_of_first_ranks_and_what_is_missing(capsys):
    first = a_timed_run(own_rounds=[stragglers.Round(own=[1.0], waiting=[0.0], reference=1.0)])
    second = a_timed_run(team=a_team(2, rank=1), absent=of_metrics(Kind.FAULT, {"pace": "torch 9"}))
    found = run.facts(a_rank(), [first, second], show=False)
    assert ["table" in r for r in found["runs"]] == [True, False]
    assert found["runs"][0]["own_steps"] == [{"own": [1.0], "waiting": [0.0], "reference": 1.0}]
    assert [(a.metric, a.why) for a in second.absent] == [("pace", "torch 9")]
    run.facts(a_rank(rank=1), [first], show=True)
    assert capsys.readouterr().out == ""
    run.facts(a_rank(), [a_timed_run(seconds=[2.0], excluded=1)], show=True)
    heading, first_row, second_row, last = capsys.readouterr().out.splitlines()
    assert heading.split()[-1] == "tokens/s"
    assert first_row.split() == ["1", "8.0", "1.0", "0.1", "-"]
    assert second_row.split() == ["2", "7.0", "1.0", "0.1", "50.0"]
    assert "tokens_per_s=50.0" in last
