"""Training on two ranks with a fault below it, one after another: started by torchrun.

    torchrun --nproc-per-node=2 -m tests.selftests.training_faults OUT

A fault is put into what the training stands on (torch, the checkpoint's files), never into the
workload. Each leaves a run by hand in OUT/NAME, which the tests replay.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from fixtures.thresholds import loader
from fixtures.workloads.runtime import standalone
from tests.selftests import support

RANK = int(os.environ.get("RANK", "0"))

SINGLE = ("training_single", ("curve", "reload", "gradients", "fall"))
DDP = ("training_ddp", ("ranks", "coverage", "replicas", "curve", "accumulation"))
FSDP = ("training_fsdp", ("curve", "sharded"))
RESUME = ("training_resume", ("resume", "other_ranks", "torn"))

Fault = Callable[[], contextlib.AbstractContextManager[Any]]
FAULTS: dict[str, tuple[tuple[str, tuple[str, ...]], Fault]] = {}
"""By name: the workload with its metrics, and what is wrong below it."""


def fault(of: tuple[str, tuple[str, ...]]) -> Callable[[Fault], Fault]:
    def register(make: Fault) -> Fault:
        FAULTS[make.__name__] = (of, make)
        return make

    return register


@fault(SINGLE)
def healthy_single() -> Any:
    return contextlib.nullcontext()


@fault(DDP)
def healthy_ddp() -> Any:
    return contextlib.nullcontext()


@fault(FSDP)
def healthy_fsdp() -> Any:
    return contextlib.nullcontext()


@fault(RESUME)
def healthy_resume() -> Any:
    return contextlib.nullcontext()


@fault(SINGLE)
@contextlib.contextmanager
def another_loss() -> Iterator[None]:
    """Steps are one per cent too long, on rank 1."""
    import torch

    step = torch.optim.AdamW.step

    def longer(self: Any, *more: Any, **named: Any) -> Any:
        for group in self.param_groups:
            group["lr"] *= 1.01
        return step(self, *more, **named)

    with mock.patch.object(torch.optim.AdamW, "step", longer if RANK else step):
        yield


@fault(SINGLE)
@contextlib.contextmanager
def not_a_number() -> Iterator[None]:
    """The norm of the gradient is NaN from the second half of the run on, on rank 1."""
    import torch

    norm, calls = torch.nn.utils.get_total_norm, [0]

    def broken(*more: Any, **named: Any) -> Any:
        calls[0] += 1
        found = norm(*more, **named)
        return found * float("nan") if RANK and calls[0] > 22 else found

    with mock.patch.object(torch.nn.utils, "get_total_norm", broken):
        yield


@fault(SINGLE)
@contextlib.contextmanager
def one_bit_read_wrong() -> Iterator[None]:
    """One bit of one parameter is another after it was read back."""
    import torch

    from training import checkpoint

    read = checkpoint.set_state_dict

    def flipped(module: Any, *more: Any, **named: Any) -> Any:
        found = read(module, *more, **named)
        if RANK:
            with torch.no_grad():
                first = next(iter(module.parameters()))
                first.view(torch.int32).view(-1)[0] ^= 1
        return found

    with mock.patch.object(checkpoint, "set_state_dict", flipped):
        yield


@fault(DDP)
@contextlib.contextmanager
def one_bit_flips() -> Iterator[None]:
    """The memory of rank 1 flips the lowest bit of one parameter."""
    import torch

    step = torch.optim.AdamW.step

    def flipping(self: Any, *more: Any, **named: Any) -> Any:
        found = step(self, *more, **named)
        with torch.no_grad():
            first = self.param_groups[0]["params"][0]
            first.view(torch.int32).view(-1)[0] ^= 1
        return found

    with mock.patch.object(torch.optim.AdamW, "step", flipping if RANK else step):
        yield


@fault(DDP)
@contextlib.contextmanager
def another_seed() -> Iterator[None]:
    """The generator of rank 1 begins elsewhere: its model is another from the start."""
    import torch

    class Elsewhere(torch.Generator):
        def __new__(cls, *place: Any) -> Any:
            made = super().__new__(cls, *place)
            made.of_the_model = bool(place)  # that of the sampler names no device
            return made

        def manual_seed(self, seed: int) -> torch.Generator:
            return super().manual_seed(seed + self.of_the_model)

    with mock.patch.object(torch, "Generator", Elsewhere) if RANK else contextlib.nullcontext():
        yield


@fault(DDP)
@contextlib.contextmanager
def a_sample_twice() -> Iterator[None]:
    """DistributedSampler gives rank 1 its first sample a second time instead of its last."""
    from torch.utils.data.distributed import DistributedSampler

    order = DistributedSampler.__iter__

    def repeating(self: Any) -> Any:
        found = list(order(self))
        if self.num_replicas > 1 and self.rank == 1:
            found[-1] = found[0]
        return iter(found)

    with mock.patch.object(DistributedSampler, "__iter__", repeating):
        yield


@fault(DDP)
@contextlib.contextmanager
def the_first_pass_is_lost() -> Iterator[None]:
    """Gradients are not added to those of the pass before."""
    from torch.nn.parallel import DistributedDataParallel

    @contextlib.contextmanager
    def forgetting(self: Any) -> Iterator[None]:
        yield
        for parameter in self.parameters():
            parameter.grad = None

    with mock.patch.object(DistributedDataParallel, "no_sync", forgetting):
        yield


@fault(DDP)
@contextlib.contextmanager
def one_device_for_two() -> Iterator[None]:
    """Both ranks are bound to the same device."""
    from fixtures.workloads.devices import devices

    facts = devices.cpu_facts

    def same(*rank: Any) -> Any:
        return {**facts(*rank), "uuid": "the-only-one"}

    with mock.patch.object(devices, "cpu_facts", same):
        yield


@fault(FSDP)
@contextlib.contextmanager
def not_sharded() -> Iterator[None]:
    """Every rank is a shard group of its own: gradients are averaged, and nothing is spread."""
    from torch.distributed.device_mesh import init_device_mesh

    from training import strategies

    class Whole:
        @staticmethod
        def from_group(group: Any, kind: str) -> Any:
            names = ("replicate", "shard")
            return init_device_mesh(kind, (group.size(), 1), mesh_dim_names=names)

    with mock.patch.object(strategies, "DeviceMesh", Whole):
        yield


@fault(FSDP)
@contextlib.contextmanager
def one_unit_is_not_reduced() -> Iterator[None]:
    """The gradients of the head stay on the rank that computed them, and are not used."""
    from training import strategies
    from training.model import Head

    shard = strategies.fully_shard

    def forgetting(module: Any, **more: Any) -> Any:
        found = shard(module, **more)
        if isinstance(module, Head):
            found.set_requires_gradient_sync(False)
        return found

    with mock.patch.object(strategies, "fully_shard", forgetting):
        yield


@fault(RESUME)
@contextlib.contextmanager
def torn_is_taken() -> Iterator[None]:
    """Nobody looks whether the files of a checkpoint are whole."""
    from training import checkpoint_integrity

    with mock.patch.object(checkpoint_integrity, "defect_of", return_value=None):
        yield


@fault(RESUME)
@contextlib.contextmanager
def begins_again() -> Iterator[None]:
    """What is resumed begins with the first sample again."""
    from training.data import ResumableSampler

    with mock.patch.object(
        ResumableSampler, "skip", property(lambda self: 0, lambda self, value: None)
    ):
        yield


FSDP_CURVES = {f"training_fsdp.curve.{policy}" for policy in ("block", "root", "size")}
FSDP_SHARDS = {f"training_fsdp.sharded.{policy}" for policy in ("block", "root", "size")}
RED: dict[str, set[str]] = {
    "another_loss": {"training_single.curve"},
    "not_a_number": {"training_single.gradients", "training_single.fall"},
    "one_bit_read_wrong": {"training_single.reload"},
    "one_bit_flips": {"training_ddp.replicas"},
    "another_seed": {"training_ddp.replicas", "training_ddp.curve"},
    "a_sample_twice": {"training_ddp.coverage", "training_ddp.curve"},
    "the_first_pass_is_lost": {"training_ddp.accumulation"},
    "one_device_for_two": {"training_ddp.ranks"},
    # A norm over shards counts what is there twice twice.
    "not_sharded": FSDP_SHARDS | FSDP_CURVES,
    "one_unit_is_not_reduced": FSDP_CURVES - {"training_fsdp.curve.root"},
    "torn_is_taken": {"training_resume.torn"},
    "begins_again": {"training_resume.resume", "training_resume.other_ranks"},
}
"""The criteria that must be red, and no others, for each fault of training_faults.py."""
NAMED = ("another_loss", "not_a_number", "one_bit_read_wrong", "one_bit_flips")
"""What happens on rank 1 alone, and must be pinned to its device."""


def start(out: Path, names: Iterable[str] = ()) -> None:
    """One torchrun for these faults, or for all."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    command += ["-m", "tests.selftests.training_faults", str(out), *names]
    run = subprocess.run(command, cwd=support.CHECKOUT, capture_output=True, text=True, timeout=900)
    if run.returncode:
        raise RuntimeError(f"torchrun ended with {run.returncode}: {run.stderr[-3000:]}")


def judged(
    run: Path, into: Path, by: Callable[[Path, Path], support.Replayed] = support.judged
) -> dict[str, dict[str, Any]]:
    """The rows that were measured, by criterion."""
    _, verdict = by(run, into)
    names = {
        m["metric"]
        for path in (into / "records").glob("*.json")
        for rank in json.loads(path.read_text())["ranks"]
        for m in rank["measurements"]
    }
    criteria = loader.load(support.SHIPPED).criteria
    return {
        row["criterion"]: row
        for row in verdict["criteria"]
        if criteria[row["criterion"]].metric in names and row["outcome"] != "NOT_APPLICABLE"
    }


def red(run: Path, into: Path) -> dict[str, int]:
    """The criteria that a fault turned red by a real replay, each with the GPU that was named."""
    rows = judged(run, into, lambda run, into: support.replay(run, into, "-m", "training"))
    return {k: (r["worst"] or {}).get("gpu", -1) for k, r in rows.items() if r["outcome"] == "FAIL"}


def main() -> None:
    out = Path(sys.argv[1])
    chosen = sys.argv[2:] or list(FAULTS)
    size = int(os.environ["WORLD_SIZE"])
    store = standalone.rendezvous(RANK, size)
    for k, name in enumerate(chosen):
        (workload, metrics), make = FAULTS[name]
        request = standalone.Request(names=[workload], out=out / name, metrics=metrics, cpu=True)
        with make():
            standalone.run_once(request, RANK, size, standalone.with_fresh_prefix(store, k))


if __name__ == "__main__":
    main()
