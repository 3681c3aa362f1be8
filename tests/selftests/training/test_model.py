"""Training in this process: the model and its loss, the memory it takes, the timing of steps."""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace
from typing import Any

import pytest

from tests.selftests.threads import Meeting, as_ranks, own_rank
from training.schedule import learning_rate_at
from training.settings import PRESETS, Settings

pytestmark = pytest.mark.cpu


# --- the model and its loss


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what compiles
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("elements", [1 << 29, 256 * 3, 1])
def test_the_loss_in_pieces_has_the_value_and_gradients_of_the_whole(
    elements, compiled, monkeypatch, request
):
    import torch
    from torch.nn import functional

    from training import loss

    monkeypatch.setattr(loss, "MAX_CHUNK_LOGITS", elements)
    monkeypatch.setattr(loss, "MAX_FUSED_LOGITS", elements)
    # No compiler of C++ is needed for what changes values: the place that gradients are put into.
    whole_function = functools.partial(torch.compile, backend="aot_eager")
    monkeypatch.setattr(torch, "compile", whole_function)
    loss._compiled_chunk_loss.cache_clear()
    request.addfinalizer(loss._compiled_chunk_loss.cache_clear)
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(10, 16, generator=generator).requires_grad_()
    weight = torch.randn(256, 16, generator=generator).requires_grad_()
    targets = torch.randint(0, 256, (10,), generator=generator)
    for _ in range(2):  # on some CPUs a process's first products are off by 2e-5
        whole = functional.cross_entropy(hidden @ weight.t(), targets)
        expected = torch.autograd.grad(3 * whole, (hidden, weight))
        pieces = loss.head_loss(hidden, weight, targets, compiled=compiled)
        found = torch.autograd.grad(3 * pieces, (hidden, weight))
    torch.testing.assert_close(pieces, whole)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_the_model_looks_back_only():
    import torch

    from training.model import build

    model = build("tiny", seed=1, device=torch.device("cpu"))
    tokens = torch.arange(16)[None] % 256
    changed = tokens.clone()
    changed[0, 10:] = 7
    hidden = []
    model.head.forward = lambda x, targets: hidden.append(x) or x.sum()
    model(tokens, tokens), model(changed, changed)
    assert torch.equal(hidden[0][:, :10], hidden[1][:, :10])
    assert not torch.equal(hidden[0][:, 10:], hidden[1][:, 10:])


@pytest.mark.parametrize("name", PRESETS)
def test_the_parameters_of_a_preset_are_as_many_as_its_shape_says(name):
    import torch

    from training.model import Decoder

    with torch.device("meta"):
        model = Decoder(PRESETS[name])
    assert sum(p.numel() for p in model.parameters()) == PRESETS[name].parameters


def test_flops_are_those_that_others_publish():
    from training.metrics import flops_per_token

    shape = PRESETS["8b"]
    # torchtitan and nanochat 57.9 GFLOP a token at 8192, Megatron-LM 51.5
    assert flops_per_token(shape, 8192, causal_half=False) / 1e9 == pytest.approx(57.9, abs=0.1)
    assert flops_per_token(shape, 8192, causal_half=True) / 1e9 == pytest.approx(51.5, abs=0.1)
    assert shape.non_embedding_parameters / 1e9 == pytest.approx(7.50, abs=0.01)


def test_memory_is_foreseen_as_it_was_measured():
    """On 4 H200: 16 layers, 2 x 8192 tokens 75 GiB, 8 layers, 8192 tokens on one GPU 54.

    Both with all logits at once (10 bytes each), of which here a piece of 8 GiB is held.
    """
    from training.metrics import needed_gib

    logits = 16384 * 128256 * 10 / 2**30
    four = needed_gib(PRESETS["8b-short"], tokens=16384, team_size=4, fsdp=True)
    one = needed_gib(PRESETS["8b-mini"], tokens=8192, team_size=1, fsdp=True)
    assert four == pytest.approx(75 - logits + 8, rel=0.1)
    assert one == pytest.approx(54 - logits / 2 + 8, rel=0.25)


def of_gpus(gib: int) -> Any:
    """As much of Ranks as says which GPUs they have."""
    return SimpleNamespace(
        on_gpu=True,
        gather=lambda own: [own],
        device_facts=lambda: {"memory_bytes": gib * 2**30},
        nodes=["worker0"],
    )


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


@pytest.mark.parametrize(
    ("gib", "preset", "recompute"),
    [(140, "8b-short", "none"), (79, "8b-mini", "none"), (39, "1b", "block")],
)
def test_fsdp_scales_with_what_one_gpu_can_hold(gib, preset, recompute):
    from training import fsdp, run

    asked = Settings(strategy="fsdp", preset=fsdp.PRESET, dtype="bf16", batch=2)
    team: Any = SimpleNamespace(size=8)
    settings = fsdp._scaling_settings(of_gpus(gib), team, asked)
    assert (settings.preset, settings.recompute) == (preset, recompute)
    assert settings.passes_per_step(8) * settings.batch == 2
    assert run.fits(of_gpus(gib), settings, 1)


def test_a_part_has_the_passes_and_sequences_of_the_whole():
    from training import ddp

    whole = Settings(batch=2, global_batch=32, checkpoint="somewhere", resume=True)
    part = ddp.settings_of_part(whole, 4, 1)
    assert (part.passes_per_step(1), part.batch, part.global_batch) == (4, 2, 8)
    assert (part.checkpoint, part.resume) == ("", False)
    assert ddp.settings_of_part(Settings(batch=2), 4, 2).passes_per_step(2) == 1


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


@pytest.mark.parametrize(
    ("losses", "fall"),
    [
        ([12.5, 9.0, 7.0, 6.0, 6.1, 6.0, 5.9, 20.7], 52.0),  # seen on H200: one step jumped
        ([12.5, 9.0, 7.0, 6.0, 20.0, 21.0, 20.5, 22.0], 0.0),
        ([12.5, 9.0, math.nan, 6.0, 6.1, 6.0, 5.9, 6.0], 0.0),
    ],
)
def test_a_loss_has_fallen_where_the_last_steps_say_so(losses, fall):
    from training import single

    timed: Any = SimpleNamespace(losses=losses, norms=[1.0] * 8, settings=Settings())
    found = {m.metric: m.value for m in single.health(timed)}
    assert found["fall"] == pytest.approx(fall, abs=0.1)


def test_the_learning_rate_rises_and_ends_at_its_share():
    rates = [learning_rate_at(k, peak=1.0, steps=20, warm_up=5, final_share=0.1) for k in range(20)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[5] == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(0.1)
    assert rates[5:] == sorted(rates[5:], reverse=True)


def test_recomputation_and_bf16_change_the_loss_by_nothing_and_little():
    import torch

    from training import reference_run
    from training.strategies import Team

    team = Team(members=(0,), rank=0, device=torch.device("cpu"), group=None)
    plain = reference_run.losses(reference_run.settings_for("single", steps=3), team)
    again = reference_run.losses(
        reference_run.settings_for("single", steps=3, recompute="block"), team
    )
    half = reference_run.losses(reference_run.settings_for("single", steps=3, dtype="bf16"), team)
    assert again == plain
    assert 0 < reference_run.max_difference_percent(half, plain) < 1
