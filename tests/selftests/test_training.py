"""Training: the pieces in this process, and whole runs of two ranks with a fault below them."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures import hardware
from fixtures.plan.items import planned_list
from fixtures.records.model import Measurement
from fixtures.run.judge_item import judge_item
from fixtures.thresholds import loader
from fixtures.verdict.model import Outcome
from tests.selftests import support, training_faults
from tests.selftests.support import CHECKOUT, SHIPPED
from tests.selftests.threads import Meeting, as_ranks, own_rank
from tests.selftests.training_faults import NAMED, RED
from training.schedule import rate
from training.settings import PRESETS, STRATEGIES, Settings, SettingsError, settings_of

pytestmark = pytest.mark.cpu

SCRIPTS = sorted((CHECKOUT / "training" / "slurm").glob("*.sbatch"))


# --- settings: one clear line before a GPU is used


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"preset": "8b-shrt"}, "no preset '8b-shrt' (did you mean '8b-short'?)"),
        ({"strategy": "fsdpp"}, "no strategy 'fsdpp'"),
        ({"dtype": "fp8"}, "no dtype 'fp8'"),
        ({"presett": "tiny"}, "no setting 'presett' (did you mean 'preset'?)"),
        ({"batch": 0}, "batch is 0, expected more than 0"),
        ({"batch": "2"}, "batch is '2', expected a int"),
        ({"steps": True}, "steps is True, expected a int"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"warm_up": -1}, "warm_up is -1, expected 0 or more"),
        ({"wrap": "size", "compile": True}, "no compile"),
        ({"resume": True}, "needs the directory of checkpoints"),
        ({"data": "/no/such/file.txt"}, "data file /no/such/file.txt is not there"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(given, said):
    with pytest.raises(SettingsError) as error:
        settings_of(given)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("batch", "whole", "ranks"), [(2, 9, 2), (4, 4, 2), (3, 16, 1)])
def test_a_batch_that_does_not_divide_is_refused(batch, whole, ranks):
    with pytest.raises(SettingsError, match=f"global batch {whole} does not divide by {ranks}"):
        Settings(batch=batch, global_batch=whole).accumulation(ranks)


def test_what_is_left_of_a_batch_is_accumulated():
    assert Settings(batch=2, global_batch=16).accumulation(4) == 2
    assert Settings(batch=2).accumulation(4) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--strategy", "fsdp", "--preset", "9b"), "no preset '9b'"),
        (("--strategy", "ddp", "--data", "/no/file"), "data file /no/file is not there"),
        (("--strategy", "pipeline"), "invalid choice: 'pipeline'"),
        (("--strategy", "ddp", "--batch", "two"), "invalid int value: 'two'"),
    ],
)
def test_the_command_line_refuses_before_torch_is_imported(arguments, said, tmp_path):
    command = [sys.executable, "-X", "importtime", "-m", "training", *arguments]
    run = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], cwd=CHECKOUT, capture_output=True, text=True,
        timeout=200,
    )  # fmt: skip
    assert run.returncode == 2
    assert said in run.stderr.splitlines()[-1]
    assert "| torch\n" not in run.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--global-batch", "9"), "global batch 9 does not divide by 1 ranks x 4 sequences"),
        (("--data", "broken.jsonl"), "broken.jsonl: 1 broken lines: line 2: "),
        (("--data", "short.txt"), "the data are 2 samples, a step takes 4"),
    ],
)
def test_what_only_a_rank_can_know_is_one_line_too(arguments, said, tmp_path):
    (tmp_path / "broken.jsonl").write_text('{"text": "' + "x" * 999 + '"}\nnonsense\n')
    (tmp_path / "short.txt").write_text("x" * 130)
    command = [sys.executable, "-m", "training", "--strategy", "single", "--cpu", *arguments]
    run = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], cwd=tmp_path, capture_output=True, text=True,
        timeout=200, env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )  # fmt: skip
    assert run.returncode == 2, run.stderr
    assert run.stdout == ""
    (line,) = run.stderr.splitlines()
    assert said in line


# --- data


def test_broken_lines_of_a_data_file_are_named_by_number(tmp_path):
    from training.data import Text

    path = tmp_path / "broken.jsonl"
    good = json.dumps({"text": "x" * 100})
    path.write_text(f'{good}\n{{"text": 1}}\n\n{good[:-3]}\n[1]\n{good}\n')
    with pytest.raises(SettingsError) as error:
        Text(path, 16)
    said = str(error.value)
    assert "3 broken lines" in said
    assert [f"line {n}:" in said for n in (1, 2, 3, 4, 5, 6)] == [0, 1, 0, 1, 1, 0]
    assert "\n" not in said


def test_many_broken_lines_are_counted(tmp_path):
    from training.data import Text

    path = tmp_path / "broken.jsonl"
    path.write_text("{\n" * 40)
    with pytest.raises(SettingsError, match=r"40 broken lines: line 1: .*; and 35 more"):
        Text(path, 16)


def test_a_data_file_without_a_sequence_in_it_is_refused(tmp_path):
    from training.data import Text

    path = tmp_path / "short.txt"
    path.write_text("short")
    with pytest.raises(SettingsError, match=r"5 bytes are no sequence of 16 \+ 1 tokens"):
        Text(path, 16)


def test_text_is_cut_into_sequences_that_overlap_by_the_target(tmp_path):
    from training.data import Text

    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(33)))
    data = Text(path, 16)
    assert len(data) == 2
    assert data[1][1].tolist() == list(range(16, 33))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_step_is_the_same_samples_for_any_number_of_ranks(ranks):
    from training.data import Feed, Synthetic

    data = Synthetic(256, 8, 96, seed=3)

    def steps(n: int, begin: int = 0) -> list[list[int]]:
        made = Settings(batch=8 // n, global_batch=8, sequence=8)
        feeds = [Feed(data, made, rank=k, ranks=n, step=begin) for k in range(n)]
        found = []
        iterators = [iter(feed) for feed in feeds]
        for _ in range(14):
            before = [len(f.seen) for f in feeds]
            for iterator in iterators:
                next(iterator)
            at = [b if b < len(f.seen) else 0 for b, f in zip(before, feeds, strict=True)]
            found.append(sorted(i for f, a in zip(feeds, at, strict=True) for i in f.seen[a:]))
        return found

    whole = steps(ranks)
    assert whole == steps(1)
    assert sorted(i for step in whole[:12] for i in step) == list(range(96))
    assert whole[12] != whole[0], "the next epoch has another order"
    assert steps(ranks, begin=5)[:7] == whole[5:12]


def test_too_little_data_for_a_step_is_refused():
    from training.data import Feed, Synthetic

    with pytest.raises(SettingsError, match="the data are 4 samples, a step takes 8"):
        Feed(Synthetic(256, 8, 4, 0), Settings(batch=4), rank=0, ranks=2)


# --- the model and its loss


@pytest.mark.parametrize("elements", [1 << 29, 256 * 3, 1])
def test_the_loss_in_pieces_has_the_value_and_gradients_of_the_whole(elements, monkeypatch):
    import torch
    from torch.nn import functional

    from training import loss

    monkeypatch.setattr(loss, "PIECE_ELEMENTS", elements)
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(10, 16, generator=generator).requires_grad_()
    weight = torch.randn(256, 16, generator=generator).requires_grad_()
    targets = torch.randint(0, 256, (10,), generator=generator)
    for _ in range(2):  # on some CPUs a process's first products are off by 2e-5
        whole = functional.cross_entropy(hidden @ weight.t(), targets)
        expected = torch.autograd.grad(3 * whole, (hidden, weight))
        pieces = loss.head_loss(hidden, weight, targets, compiled=False)
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
    assert shape.computing_parameters / 1e9 == pytest.approx(7.50, abs=0.01)


def test_memory_is_foreseen_as_it_was_measured():
    """On 4 H200: 16 layers, 2 x 8192 tokens 75 GiB, 8 layers, 8192 tokens on one GPU 54.

    Both with all logits at once (10 bytes each), of which here a piece of 8 GiB is held.
    """
    from training.metrics import needed_gib

    logits = 16384 * 128256 * 10 / 2**30
    four = needed_gib(PRESETS["8b-short"], tokens=16384, ranks=4, fsdp=True)
    one = needed_gib(PRESETS["8b-mini"], tokens=8192, ranks=1, fsdp=True)
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
    found = run.largest_batch(of_gpus(gib), asked, gpus, fsdp.BATCHES)
    assert (found.batch if found else None) == batch


@pytest.mark.parametrize(
    ("gib", "preset", "passes"),
    [(140, "1b", 1), (79, "1b", 4), (94, "1b", 4), (44, "160m", 4), (39, "160m", 4),
     (22, "160m", 4)],
)  # fmt: skip
def test_a_step_of_ddp_has_as_many_tokens_on_every_model_of_gpu(gib, preset, passes):
    from training import ddp, run

    asked = Settings(strategy="ddp", preset=ddp.PRESET, dtype="bf16")
    settings = run.held(of_gpus(gib), asked, (), 4, ddp.BATCHES, ddp.TOKENS)
    assert (settings.preset, settings.accumulation(4)) == (preset, passes)
    assert passes * settings.batch * settings.tokens == ddp.TOKENS == 65536
    assert run.fits(of_gpus(gib), settings, 4)


def test_the_copies_that_ddp_holds_are_foreseen():
    """On 4 H200, one pass of 8 sequences: 103.7 GiB alone, 114.8 in DDP."""
    from training.metrics import needed_gib
    from training.run import REDUCED

    def needed(copies: int) -> float:
        return needed_gib(PRESETS["1b"], tokens=65536, ranks=4, fsdp=False, copies=copies)

    assert needed(REDUCED) - needed(0) == pytest.approx(114.83 - 103.66, abs=0.1)


@pytest.mark.parametrize(("gib", "preset"), [(140, "1b"), (79, "1b"), (39, "160m")])
def test_a_gpu_alone_trains_what_it_can_hold(gib, preset):
    from training import run, single

    asked = Settings(preset=single.PRESET, dtype="bf16")
    settings = run.held(of_gpus(gib), asked, (), 1, single.BATCHES, single.TOKENS)
    assert (settings.preset, settings.batch) == (preset, 2)
    assert settings.accumulation(1) * settings.batch * settings.tokens == single.TOKENS
    assert run.fits(of_gpus(gib), settings, 1)
    assert run.held(of_gpus(gib), asked, ("dtype",), 1, single.BATCHES, single.TOKENS) is asked


@pytest.mark.parametrize(
    ("gib", "preset", "recompute"),
    [(140, "8b-short", "none"), (79, "8b-mini", "none"), (39, "1b", "block")],
)
def test_fsdp_scales_with_what_one_gpu_can_hold(gib, preset, recompute):
    from training import fsdp, run

    asked = Settings(strategy="fsdp", preset=fsdp.PRESET, dtype="bf16", batch=2)
    team: Any = SimpleNamespace(size=8)
    settings = fsdp._scalable(of_gpus(gib), team, asked)
    assert (settings.preset, settings.recompute) == (preset, recompute)
    assert settings.accumulation(8) * settings.batch == 2
    assert run.fits(of_gpus(gib), settings, 1)


def test_a_part_has_the_passes_and_sequences_of_the_whole():
    from training import ddp

    whole = Settings(batch=2, global_batch=32, checkpoint="somewhere", resume=True)
    part = ddp.of_part(whole, 4, 1)
    assert (part.accumulation(1), part.batch, part.global_batch) == (4, 2, 8)
    assert (part.checkpoint, part.resume) == ("", False)
    assert ddp.of_part(Settings(batch=2), 4, 2).accumulation(2) == 1


@pytest.mark.parametrize(("longest_s", "timed"), [(None, 30), (1e6, 30), (1e-6, 10)])
def test_where_a_step_takes_long_fewer_are_timed(longest_s, timed):
    import torch

    from training import exact, loop
    from training.strategies import Team

    device = torch.device("cpu")
    team = Team(members=(0,), rank=0, device=device, group=None)
    training = exact.begin(exact.settings("single", steps=40), team)
    ranks: Any = SimpleNamespace(device=device, gather=lambda own: [own], barrier=lambda: None)
    batches, spare = loop.timed(ranks, training, 30, excluded=10, longest_s=longest_s)
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
    from fixtures.workloads.runtime import timing
    from training import loop, run

    clocks = Clocks(2)
    fake = SimpleNamespace(time=clocks.read, perf_counter=clocks.read)
    monkeypatch.setattr(timing, "time", fake)
    monkeypatch.setattr(loop, "time", fake)

    def one(number: int) -> tuple[int, int, float, float]:
        ranks = clocks.rank(number)
        training = clocks.training(number, teams[number], paces[number], compiling[number])
        batches, more = loop.timed(ranks, training, 30, excluded=10)
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

    from training import exact, loop, run
    from training.strategies import Team

    real = loop.timed
    monkeypatch.setattr(run, "timed", lambda *a, **k: (real(*a, **k)[0], 3))
    device = torch.device("cpu")
    team = Team(members=(0,), rank=0, device=device, group=None)
    ranks: Any = SimpleNamespace(
        device=device, gather=lambda own: [own], barrier=lambda: None, nodes=["a"], world_size=1,
        on_gpu=False,
    )  # fmt: skip
    done = run.timed_run(ranks, team, exact.settings("single", steps=15))
    assert [len(x) for x in (done.losses, done.norms, done.rates)] == [15, 15, 15]
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
    rates = [rate(k, peak=1.0, steps=20, warm_up=5, last=0.1) for k in range(20)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[5] == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(0.1)
    assert rates[5:] == sorted(rates[5:], reverse=True)


def test_recomputation_and_bf16_change_the_loss_by_nothing_and_little():
    import torch

    from training import exact
    from training.strategies import Team

    team = Team(members=(0,), rank=0, device=torch.device("cpu"), group=None)
    plain = exact.losses(exact.settings("single", steps=3), team)
    again = exact.losses(exact.settings("single", steps=3, recompute="block"), team)
    half = exact.losses(exact.settings("single", steps=3, dtype="bf16"), team)
    assert again == plain
    assert 0 < exact.apart(half, plain) < 1


# --- checkpoints


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Any, Path, Path]:
    """A training run, and its checkpoints of steps 1 and 2."""
    import torch

    from training import exact
    from training.strategies import Team

    team = Team(members=(0,), rank=0, device=torch.device("cpu"), group=None)
    training = exact.begin(exact.settings("single", checkpoint=str(tmp_path)), team)
    training.run(1)
    first = training.save()
    training.run(1)
    return training, first, training.save()


def test_the_newest_whole_checkpoint_is_taken(saved, tmp_path):
    from training import checkpoint

    _, first, second = saved
    assert checkpoint.newest(tmp_path) == second
    assert checkpoint.wrong(first) is None
    assert not list(tmp_path.glob(".*")), "nothing is left of the writing"


def torn_file(path: Path) -> Path:
    return max(path.glob("*.distcp"), key=lambda p: p.stat().st_size)


def shorten(path: Path) -> None:
    file = torn_file(path)
    file.write_bytes(file.read_bytes()[:-1])


def flip(path: Path) -> None:
    file = torn_file(path)
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


DAMAGE = {
    "a file is shorter": (shorten, "bytes, expected"),
    "one bit is another": (flip, "is not what was written (sha256)"),
    "a file is gone": (lambda path: torn_file(path).unlink(), "is missing"),
    "no manifest": (lambda path: (path / "manifest.json").unlink(), "FileNotFoundError"),
    "half a manifest": (
        lambda path: (path / "manifest.json").write_text('{"step": 2, "fi'), "RecordError",
    ),
    "a manifest without files": (
        lambda path: (path / "manifest.json").write_text('{"step": 2}'), "KeyError",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_torn_checkpoint_is_passed_over_and_refused_by_name(damage, saved, tmp_path):
    from training import checkpoint

    training, first, second = saved
    harm, said = DAMAGE[damage]
    harm(second)
    assert checkpoint.newest(tmp_path) == first
    with pytest.raises(checkpoint.CheckpointError) as error:
        training.load(second)
    assert second.name in str(error.value)
    assert said in str(error.value)


def test_what_a_killed_writer_leaves_is_no_checkpoint(saved, tmp_path):
    from training import checkpoint

    training, _, second = saved
    (tmp_path / ".step-000003.partial").mkdir()
    (tmp_path / ".step-000003.partial" / "__0_0.distcp").write_bytes(b"x")
    assert checkpoint.newest(tmp_path) == second
    training.run(1)
    third = training.save()
    assert checkpoint.newest(tmp_path) == third
    assert checkpoint.wrong(third) is None


# --- whole runs of two ranks, healthy and with a fault below them

HEALTHY = ("healthy_single", "healthy_ddp", "healthy_fsdp", "healthy_resume")


@pytest.fixture(scope="module")
def faulty_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One torchrun for all of them."""
    out = tmp_path_factory.mktemp("faults")
    training_faults.start(out)
    return out


def judged(run: Path, tmp_path: Path) -> dict[str, dict[str, Any]]:
    return training_faults.judged(run, tmp_path / "replay")


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_training_passes(name, faulty_runs, tmp_path):
    rows = judged(faulty_runs / name, tmp_path)
    assert len(rows) >= 3
    assert {key: row["outcome"] for key, row in rows.items()} == dict.fromkeys(rows, "PASS")


@pytest.mark.parametrize("name", RED)
def test_a_fault_below_training_is_red_by_name_and_nothing_else(name, faulty_runs, tmp_path):
    rows = judged(faulty_runs / name, tmp_path)
    red = {key for key, row in rows.items() if row["outcome"] == "FAIL"}
    assert red == RED[name]
    rest = {row["outcome"] for key, row in rows.items() if key not in red}
    assert rest <= {"PASS"}
    for key in red:
        assert rows[key]["next_step"]
        if name in NAMED:
            assert rows[key]["worst"]["gpu"] == 1, key


def test_every_criterion_of_correct_training_has_a_fault_that_turns_it_red():
    criteria = {
        key
        for key, c in loader.load(SHIPPED).criteria.items()
        if c.workload.startswith("training_")
        and c.statistic == "value"
        and c.per != "cluster"
        and c.tier != "destructive"
    }
    # On GPUs only, or said by the same lines as for a single GPU.
    elsewhere = {
        "training_fsdp.offload", "training_fsdp.memory", "training_fsdp.fall",
        "training_fsdp.gradients",
    }  # fmt: skip
    assert criteria - set().union(*RED.values()) == elsewhere


# --- judging figures of GPUs


def judge_gpu(key: str, samples: list[float], *, nodes: int = 1, **more: Any) -> Any:
    """The verdict on a training figure of H200 nodes with four GPUs each."""
    limits = loader.load(SHIPPED)
    people = support.population(nodes, 4, "H200 SXM")
    item = next(i for i in planned_list(limits, people) if i.criterion == key)
    criterion = limits.criteria[key]
    checks = {"steps": 30.0, "excluded": 10.0, "overlap": 0.99, **more.pop("checks", {})}
    measured = Measurement(
        metric=criterion.metric, unit=criterion.unit, samples=samples, at=dict(criterion.at),
        checks=checks, conditions={"dtype": "bf16", "flops_per_token": 9.4e9}, **more,
    )  # fmt: skip
    ranks = [
        support.rank(k, f"worker{k // 4}", measured, gpus=4) for k in range(4 * len(item.nodes))
    ]
    found = support.record(*ranks, workload=criterion.workload, placement=item.placement)
    return judge_item(item, found, thresholds=limits, population=people)


def test_a_slow_network_between_nodes_fails_scaling_and_is_named():
    notes = ["network between the nodes: NET/Socket"]
    verdict = judge_gpu("training_fsdp.cluster.efficiency", [31.0] * 30, nodes=2, notes=notes)
    assert verdict.outcome is Outcome.FAIL
    assert "NET/Socket" in verdict.line


@pytest.mark.parametrize(
    ("key", "good", "bad", "impossible"),
    [
        ("training_fsdp.mfu", 60, 50, 103),
        ("training_fsdp.mfu_half", 53, 45, 103),
        ("training_fsdp.mfu_8b", 57, 48, 103),
        ("training_fsdp.gemm", 80, 65, 103),
        ("training_fsdp.efficiency", 99, 88, 111),
        ("training_fsdp.efficiency_slowest", 99, 94, 111),
        ("training_ddp.efficiency", 97, 88, 111),
        ("training_ddp.efficiency_slowest", 97, 94, 111),
        ("training_single.tokens", 45_000, 20_000, 200_000),
        ("training_ddp.tokens", 44_000, 20_000, 200_000),
    ],
)
def test_figures_pass_fail_or_are_not_believed(key, good, bad, impossible):
    assert judge_gpu(key, [float(good)] * 30).outcome is Outcome.PASS
    assert judge_gpu(key, [float(bad)] * 30).outcome is Outcome.FAIL
    above = judge_gpu(key, [float(impossible)] * 30)
    assert above.outcome is Outcome.NOT_MEASURED
    assert "physical ceiling" in above.reason


@pytest.mark.parametrize(
    ("checks", "said"), [({"steps": 29.0}, "steps is 29"), ({"excluded": 9.0}, "excluded is 9")]
)
def test_too_few_steps_or_a_start_that_was_counted_is_not_measured(checks, said):
    verdict = judge_gpu("training_fsdp.mfu", [60.0] * 30, checks=checks)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert said in verdict.reason


def test_the_ceiling_of_training_is_that_of_its_products():
    facts = {
        "model": "H200 SXM", "compute_capability": 9.0, "sm_count": 132, "max_sm_clock_mhz": 1980,
        "flops_per_token": 51.5e9,
    }  # fmt: skip
    bound = hardware.ceiling("training", facts)
    assert bound is not None
    assert math.isclose(bound * 51.5e9 / 1e12, hardware.ceiling("gemm", facts | {"dtype": "bf16"}))
    with pytest.raises(hardware.MissingFact, match="flops_per_token"):
        hardware.ceiling("training", {k: v for k, v in facts.items() if k != "flops_per_token"})


# --- the three ways to start it


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_for_sbatch_is_a_script_and_names_a_strategy(path):
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=30)
    text = path.read_text()
    assert "set -euo pipefail" in text
    (strategy,) = re.findall(r"-m training --strategy (\w+) ", text)
    assert strategy in STRATEGIES


def test_there_is_an_example_for_every_strategy():
    assert {p.stem for p in SCRIPTS} == {
        "1gpu", "ddp_1node", "ddp_2nodes", "fsdp_1node", "fsdp_2nodes",
    }  # fmt: skip


def test_a_plain_sbatch_script_leaves_what_the_suite_judges(shared_sandbox, checkout, tmp_path):
    out = tmp_path / "out"
    given = f"ALL,PYTHON={sys.executable},OUT={out},RANKS=2"
    command = ["sbatch", "--wait", "--nodes=2", "--gpus-per-node=2", f"--export={given}"]
    command += [f"--output={tmp_path}/said.txt", "training/slurm/ddp_2nodes.sbatch", "--cpu"]
    done = subprocess.run(
        command, cwd=checkout, env=shared_sandbox.environ, capture_output=True, text=True,
        timeout=240,
    )  # fmt: skip
    said = (tmp_path / "said.txt").read_text()
    assert done.returncode == 0, done.stderr + said
    assert "strategy=ddp" in said
    rows = judged(out, tmp_path)
    assert {row["subject"] for row in rows.values()} == {"cluster"}
    assert {key: row["outcome"] for key, row in rows.items()} == dict.fromkeys(rows, "PASS")
    assert {f"training_ddp.cluster.{m}" for m in ("replicas", "curve", "tokens")} <= set(rows)
