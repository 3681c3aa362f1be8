"""Who trains together, and how a model is spread over them: alone, DDP, or FSDP (fully_shard)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from fixtures.workloads.runtime import process_group
from training.model import Block, Decoder, build
from training.settings import Settings

if TYPE_CHECKING:
    from fixtures.workloads.runtime.ranks import Ranks

BUCKET_MB = 1024
"""What DDP reduces at once: four blocks of the 1B shape, not 25 MB. Products below a reduction wait
for the SMs that NCCL has, so little is won by hiding it: on four H200 a step of 64k tokens took
1,191 ms without communication, 1,219 with 1,024 MB at once or all 5,716, 1,230 with 256, and 1,237
with those and 8 SMs for NCCL. A step of 16k tokens: 320, 341 with 256 MB, 345 with 25."""
SIZE_POLICY = 8
"""`wrap: size` shards every part of a block with more than a part in so many of its parameters."""


@dataclass(frozen=True, kw_only=True)
class Team:
    """The ranks that train one model together, this rank among them."""

    members: tuple[int, ...]
    """Ranks of the job."""
    rank: int
    """This rank's place among the members."""
    device: torch.device
    group: dist.ProcessGroup | None
    """None where one rank trains alone and needs nobody."""

    @property
    def size(self) -> int:
        return len(self.members)

    def mean(self, value: Tensor) -> Tensor:
        """The mean over the team, on every member."""
        if self.group is None or self.size == 1:
            return value
        total = value.clone()
        dist.all_reduce(total, group=self.group)
        return total / self.size


def teams_of(ranks: Ranks, parts: list[list[int]], *, groups: bool = True) -> Team | None:
    """Split ranks of the job into teams; None where this rank is in none of them.

    Every rank of the job must call it with the same parts.
    """
    mine = None
    world = process_group.of(ranks) if groups else None
    for part in parts:
        group = None
        if groups:
            group = world if len(part) == ranks.world_size else dist.new_group(part)
        if ranks.rank in part:
            place = part.index(ranks.rank)
            mine = Team(members=tuple(part), rank=place, device=ranks.device, group=group)
    return mine


def alone(ranks: Ranks, *, groups: bool = False) -> Team:
    """Every rank a team of its own, all at the same time."""
    team = teams_of(ranks, [[k] for k in range(ranks.world_size)], groups=groups)
    assert team is not None
    return team


def together(ranks: Ranks) -> Team:
    """All ranks of the job as one team."""
    team = teams_of(ranks, [list(range(ranks.world_size))])
    assert team is not None
    return team


def by_node(ranks: Ranks) -> Team:
    """The ranks of each node a team, all at the same time."""
    nodes = ranks.gather(ranks.node)
    parts = [[k for k, n in enumerate(nodes) if n == node] for node in ranks.nodes]
    team = teams_of(ranks, parts)
    assert team is not None
    return team


class Spread:
    """A model as a strategy has spread it, and what depends on how."""

    def __init__(self, settings: Settings, team: Team, *, repeat_kv: bool = False) -> None:
        self.team = team
        self.strategy = settings.strategy
        # What is offloaded is sharded on the host; FSDP takes it to the device when it is needed.
        place = torch.device("cpu") if settings.offload else team.device
        model = build(settings.preset, seed=settings.seed, device=place, sequence=settings.tokens)
        model.cos, model.sin = model.cos.to(team.device), model.sin.to(team.device)
        self.decoder: Decoder = model
        model.compute = torch.bfloat16 if settings.dtype == "bf16" else torch.float32
        for block in model.blocks:
            assert isinstance(block, Block)
            block.recompute = settings.recompute == "block"
            block.attention.repeat_kv = repeat_kv
        if settings.compile:
            model.compile_blocks()
        self.module: nn.Module = model
        if settings.strategy == "ddp":
            on_gpu = team.device.type == "cuda"
            self.module = DistributedDataParallel(
                model,
                device_ids=[team.device.index] if on_gpu else None,
                process_group=team.group,
                # All ranks draw the same parameters; one that did not must not be hidden.
                init_sync=False,
                gradient_as_bucket_view=True,
                bucket_cap_mb=BUCKET_MB,
            )
        elif settings.strategy == "fsdp":
            self.units = shard(model, settings, team)

    @contextmanager
    def accumulating(self, last: bool) -> Iterator[None]:
        """A forward and backward pass; DDP reduces gradients in the last one of a step only.

        FSDP reduces in each: gradients of the whole model would not fit on one rank.
        """
        if isinstance(self.module, DistributedDataParallel) and not last:
            with self.module.no_sync():
                yield
        else:
            yield

    def clip(self, largest: float) -> Tensor:
        """Scale the gradient to a norm of at most `largest`; the norm before, on the device.

        Not clip_grad_norm_: offloaded shards are on the host, where NCCL reduces nothing.
        """
        gradients = [local(p.grad) for p in self.module.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients, foreach=True).to(self.team.device)
        if self.strategy == "fsdp":
            squares = norm.square()
            dist.all_reduce(squares, group=self.team.group)
            norm = squares.sqrt()
        scale = (largest / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, scale.to(gradients[0].device))
        return norm

    def state_bytes(self, optimizer: torch.optim.Optimizer) -> dict[str, int]:
        """Bytes that this rank holds of parameters, gradients and optimizer."""
        parameters = list(self.module.parameters())
        held = {"parameters": sum(_bytes(p) for p in parameters)}
        held["gradients"] = sum(_bytes(p.grad) for p in parameters if p.grad is not None)
        held["optimizer"] = sum(
            _bytes(value)
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor) and value.dim()
        )
        return held


def shard(model: Decoder, settings: Settings, team: Team) -> int:
    """Apply fully_shard by the settings' wrapping policy; the number of units that it made."""
    assert team.group is not None
    mesh = DeviceMesh.from_group(team.group, team.device.type)
    same: dict[str, Any] = {"mesh": mesh}
    if settings.dtype == "bf16":
        same["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )
    if settings.offload:
        same["offload_policy"] = CPUOffloadPolicy()
    units: list[nn.Module] = []
    if settings.wrap == "block":
        units = list(model.blocks)
    elif settings.wrap == "size":
        enough = settings.shape.block_parameters // SIZE_POLICY
        for block in model.blocks:
            assert isinstance(block, Block)
            parts = (block.attention, block.feed_forward)
            units += [p for p in parts if sum(x.numel() for x in p.parameters()) >= enough]
    for unit in units:
        fully_shard(unit, reshard_after_forward=settings.reshard, **same)
    if settings.wrap != "root":
        # Its backward pass comes at once: freed parameters would be gathered again for nothing.
        fully_shard(model.head, reshard_after_forward=False, **same)
        units.append(model.head)
    fully_shard(model, reshard_after_forward=settings.reshard, **same)
    return len(units) + 1


def full(value: Tensor) -> Tensor:
    """A plain tensor of what may be spread over ranks; all of them must call it."""
    whole = getattr(value, "full_tensor", None)
    return whole() if whole is not None else value


def local(value: Tensor) -> Tensor:
    """The part that this rank holds."""
    own = getattr(value, "to_local", None)
    return own() if own is not None else value


def _bytes(value: Tensor) -> int:
    part = local(value)
    return part.numel() * part.element_size()
