"""Where a training step's time goes, and which variant of it is the fastest, on real GPUs.

python -m tests.tools.profile_training [--variants NAME ...] [--rounds 2] [--out DIR]

Trains the shape that is compared with torchtitan (16 layers of Llama-3-8B, sequence 8192, batch 2,
FSDP, compiled, no recomputation) on all GPUs of this host, variants in turns, and prints tokens/s
per GPU of each. The first variant is profiled too: DIR/profile.json has the time of every kernel on
GPU 0, DIR/profile.txt the table. Nothing is asserted. A variant takes 25 s per round, the first one
a minute more (compiling).
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from fixtures.records.files import write_json
from tests.tools.gpus import gpus_here

if TYPE_CHECKING:
    from training.attention import Kernel
    from training.loop import Training
    from training.settings import Settings
    from training.strategies import Team

WARM_UP_STEPS = 6
PROFILED_STEPS = 3
MAX_ROWS = 40


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What is done differently."""

    change: Callable[[], AbstractContextManager[Any]] = nullcontext
    settings: Mapping[str, Any] = field(default_factory=dict)
    kernel: tuple[str, bool] | None = None
    """Attention backend, and whether keys and values are repeated; None: the fastest by itself."""
    compiled_anew: bool = False


def chunks_of(logits: int) -> AbstractContextManager[Any]:
    """Limit the chunks of the loss."""
    from training import loss

    return mock.patch.multiple(loss, MAX_CHUNK_LOGITS=logits, MAX_FUSED_LOGITS=logits)


@contextmanager
def clipped_by_optimizer() -> Iterator[None]:
    """Let the fused optimizer scale the gradients, instead of a pass of its own over them."""
    import torch
    from torch import nn

    from training.strategies import ParallelModel, local_shard

    norms: dict[int, Any] = {}

    def norm_only(model: ParallelModel, max_norm: float) -> Any:
        gradients = [local_shard(p.grad) for p in model.module.parameters() if p.grad is not None]
        squares = nn.utils.get_total_norm(gradients, foreach=True).square()
        torch.distributed.all_reduce(squares, group=model.team.group)
        norms[0] = squares.sqrt()
        return norms[0]

    whole_step = torch.optim.AdamW.step

    def scaled_step(optimizer: Any, *given: Any, **named: Any) -> Any:
        optimizer.grad_scale = ((norms[0] + 1e-6) / 1.0).clamp(min=1.0)
        return whole_step(optimizer, *given, **named)

    with (
        mock.patch.object(ParallelModel, "clip_gradients", norm_only),
        mock.patch.object(torch.optim.AdamW, "step", scaled_step),
    ):
        yield


@contextmanager
def eager_norm() -> Iterator[None]:
    """Do not compile the head's norm."""
    from training.model import RMSNorm

    with mock.patch.object(RMSNorm, "compile", return_value=None):
        yield


@contextmanager
def last_block_stays() -> Iterator[None]:
    """Do not free the last block's parameters after its forward pass: it is the next one needed."""
    from training import strategies

    shard = strategies.shard

    def keeping(model: Any, settings: Any, team: Any) -> int:
        units = shard(model, settings, team)
        model.blocks[-1].set_reshard_after_forward(False)
        return units

    with mock.patch.object(strategies, "shard", keeping):
        yield


def inductor(**options: Any) -> AbstractContextManager[Any]:
    """Compile with these settings of inductor."""
    import torch._inductor.config as config

    context: AbstractContextManager[Any] = config.patch(**options)
    return context


VARIANTS = {
    "usual": Variant(),
    "loss-512m": Variant(change=lambda: chunks_of(1 << 29)),
    "loss-1g": Variant(change=lambda: chunks_of(1 << 30)),
    "eager-norm": Variant(change=eager_norm),
    "clip-in-optimizer": Variant(change=clipped_by_optimizer),
    "last-block-stays": Variant(change=last_block_stays),
    "cudnn": Variant(kernel=("CUDNN_ATTENTION", False)),
    "cudnn-repeat": Variant(kernel=("CUDNN_ATTENTION", True)),
    "flash": Variant(kernel=("FLASH_ATTENTION", False)),
    "flash-repeat": Variant(kernel=("FLASH_ATTENTION", True)),
    "no-reshard": Variant(settings={"reshard": False}),
    "coordinate-descent": Variant(
        change=lambda: inductor(coordinate_descent_tuning=True), compiled_anew=True
    ),
    "no-padding": Variant(change=lambda: inductor(shape_padding=False), compiled_anew=True),
}
USUAL = (
    "usual",
    "loss-512m",
    "eager-norm",
    "clip-in-optimizer",
    "last-block-stays",
    "cudnn",
    "flash-repeat",
)


def agreed_kernel(variant: Variant, settings: Settings, team: Team) -> Kernel:
    """Return the variant's attention kernel, else that which is the fastest on the first rank."""
    import torch.distributed as dist
    from torch.nn.attention import SDPBackend

    from training.attention import Kernel, fastest_kernel

    if variant.kernel:
        backend, repeat_kv = variant.kernel
        return Kernel(backend=getattr(SDPBackend, backend), repeat_kv=repeat_kv)
    own = fastest_kernel(settings, team.device)
    found = [own.backend.name if own.backend else "", own.repeat_kv]
    dist.broadcast_object_list(found, src=0)
    name, repeat_kv = found
    return Kernel(backend=getattr(SDPBackend, name) if name else None, repeat_kv=repeat_kv)


def main(arguments: list[str] | None = None) -> int:
    """Start the ranks, or be one of them."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.profile_training", description=__doc__
    )
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(USUAL))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12, help="timed steps of a variant and round")
    parser.add_argument("--preset", default="8b-short")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--strategy", default="fsdp")
    parser.add_argument("--out", type=Path, default=Path("profile-training"), metavar="DIR")
    parser.add_argument("--cpu", action="store_true", help="try the tool itself, without GPUs")
    options = parser.parse_args(arguments)
    if "RANK" in os.environ:
        run_rank(options)
        return 0
    gpus = 2 if options.cpu else gpus_here()
    if gpus < 2:
        print(f"{gpus} GPUs here, two or more are needed", file=sys.stderr)
        return 2
    command = [
        sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={gpus}",
        "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0",
        "-m", "tests.tools.profile_training",
        *(sys.argv[1:] if arguments is None else arguments),
    ]  # fmt: skip
    return subprocess.run(command, check=False).returncode


def run_rank(options: argparse.Namespace) -> None:
    """Train every variant in turns, and let the first rank print and write what came out."""
    import torch
    import torch.distributed as dist

    from training.settings import Settings
    from training.strategies import Team

    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu") if options.cpu else torch.device("cuda", local_rank)
    if not options.cpu:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if options.cpu else "nccl", device_id=None)
    size = dist.get_world_size()
    team = Team(
        members=tuple(range(size)), rank=dist.get_rank(), device=device, group=dist.group.WORLD
    )
    settings = Settings(
        strategy=options.strategy, preset="tiny" if options.cpu else options.preset,
        batch=options.batch, dtype="fp32" if options.cpu else "bf16", compile=not options.cpu,
        steps=WARM_UP_STEPS + options.steps + PROFILED_STEPS,
    )  # fmt: skip
    rates: dict[str, list[float]] = {name: [] for name in options.variants}
    peaks: dict[str, float] = {}
    for number in range(options.rounds):
        for name in options.variants:
            profiled = number == 0 and name == options.variants[0]
            rate, peak = one_variant(name, settings, team, options, profiled=profiled)
            rates[name].append(rate)
            peaks[name] = max(peak, peaks.get(name, 0.0))
            if team.rank == 0:
                print(
                    f"round {number + 1} {name}: {rate:,.0f} tokens/s per GPU, peak {peak:.1f} GiB"
                )
    if team.rank == 0:
        first = statistics.median(rates[options.variants[0]])
        figures = []
        for name, values in rates.items():
            median = statistics.median(values)
            shown = ", ".join(f"{x:,.0f}" for x in values)
            print(f"{name:20} {median:10,.0f} ({median / first - 1:+.2%})  rounds {shown}")
            figures.append({"variant": name, "tokens_per_s": values, "peak_gib": peaks[name]})
        options.out.mkdir(parents=True, exist_ok=True)
        write_json(options.out / "variants.json", figures)
    dist.destroy_process_group()


def one_variant(
    name: str, settings: Settings, team: Team, options: argparse.Namespace, *, profiled: bool
) -> tuple[float, float]:
    """Return tokens/s per GPU in the slowest rank's median step, and the peak memory in GiB."""
    import torch
    import torch.distributed as dist

    from training.loop import Training

    on_gpu = team.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    variant = VARIANTS[name]
    if variant.compiled_anew:
        torch._dynamo.reset()
    with variant.change():
        kernel = agreed_kernel(variant, settings, team)
        training = Training(replace(settings, **variant.settings), team, kernel=kernel)
        training.run(WARM_UP_STEPS)
        marks = StepTimes(on_gpu)
        dist.barrier()
        training.run(options.steps, marks=marks)
        step_s = torch.tensor([statistics.median(marks.finish())], device=team.device)
        dist.all_reduce(step_s, op=dist.ReduceOp.MAX)
        if profiled:
            profile(training, options.out, team.rank)
    if variant.compiled_anew:
        torch._dynamo.reset()
    rate = training.tokens_per_step / float(step_s)
    if team.rank == 0:
        print(f"{name}: attention {kernel.name}")
    del training
    gc.collect()
    if not on_gpu:
        return rate, 0.0
    peak = torch.cuda.max_memory_allocated() / 2**30
    torch.cuda.empty_cache()
    return rate, peak


class StepTimes:
    """Marks between steps, with at most one step queued behind the running one."""

    def __init__(self, on_gpu: bool) -> None:
        self.on_gpu = on_gpu
        self.marks: list[Any] = []

    def mark(self) -> None:
        import torch

        if not self.on_gpu:
            self.marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self.marks.append(event)
        if len(self.marks) > 1:
            self.marks[-2].synchronize()

    def finish(self) -> list[float]:
        """Return the seconds of each step."""
        if not self.on_gpu:
            return [b - a for a, b in zip(self.marks, self.marks[1:], strict=False)]
        self.marks[-1].synchronize()
        pairs = zip(self.marks, self.marks[1:], strict=False)
        return [a.elapsed_time(b) / 1000 for a, b in pairs]


def profile(training: Training, out: Path, rank: int) -> None:
    """Profile some steps; the first rank writes the time of each kernel per step."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    on_gpu = training.team.device.type == "cuda"
    activities = [ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]
    with torch_profile(activities=activities) as profiler:
        training.run(PROFILED_STEPS)
        if on_gpu:
            import torch

            torch.cuda.synchronize()
    if rank:
        return
    rows = sorted(
        (
            {
                "kernel": event.key,
                "ms_per_step": _time_us(event, on_gpu) / 1000 / PROFILED_STEPS,
                "calls_per_step": event.count / PROFILED_STEPS,
            }
            for event in profiler.key_averages()
        ),
        key=lambda row: -row["ms_per_step"],
    )
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "profile.json", rows)
    total = sum(row["ms_per_step"] for row in rows)
    lines = [
        f"{row['ms_per_step']:9.3f} ms {row['calls_per_step']:7.1f} x  {row['kernel'][:120]}"
        for row in rows[:MAX_ROWS]
    ]
    text = "\n".join([*lines, f"{total:9.3f} ms of all kernels, which overlap", ""])
    (out / "profile.txt").write_text(text, encoding="utf-8")
    print(text)


def _time_us(event: Any, on_gpu: bool) -> float:
    names = ("self_device_time_total", "self_cuda_time_total") if on_gpu else (
        "self_cpu_time_total",
    )  # fmt: skip
    return float(next(getattr(event, name) for name in names if hasattr(event, name)))


if __name__ == "__main__":
    sys.exit(main())
