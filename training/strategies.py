"""Teams of ranks that train together, and models under DDP, FSDP (fully_shard) or neither."""

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
"""Size of DDP's gradient buckets: four blocks of the 1B shape, instead of 25 MB. Matrix products
that overlap an all-reduce wait for the SMs that NCCL uses, so overlap gains little: on four H200 a
step of 64k tokens took 1,191 ms without communication, 1,219 with buckets of 1,024 MB or of all
5,716, 1,230 with 256, and 1,237 with 256 and 8 SMs for NCCL. A step of 16k tokens: 320 ms, 341 with
256 MB, 345 with 25."""
SIZE_POLICY = 8
"""`wrap: size` shards every module with at least 1/SIZE_POLICY of its block's parameters."""


@dataclass(frozen=True, kw_only=True)
class Team:
    """The ranks that train one model together, including this rank."""

    members: tuple[int, ...]
    """Their ranks in the job."""
    rank: int
    """This rank's index among the members."""
    device: torch.device
    group: dist.ProcessGroup | None
    """None where one rank trains alone and communicates with no other."""

    @property
    def size(self) -> int:
        return len(self.members)

    def mean(self, value: Tensor) -> Tensor:
        """Return the mean over the team, on every member."""
        if self.group is None or self.size == 1:
            return value
        total = value.clone()
        dist.all_reduce(total, group=self.group)
        return total / self.size


def split_into_teams(
    ranks: Ranks, teams: list[list[int]], *, make_groups: bool = True
) -> Team | None:
    """Return this rank's team of the given ones; None if it is in none of them.

    Every rank of the job must call it with the same teams.
    """
    own_team = None
    world = process_group.of(ranks) if make_groups else None
    for members in teams:
        group = None
        if make_groups:
            group = world if len(members) == ranks.world_size else dist.new_group(members)
        if ranks.rank in members:
            position = members.index(ranks.rank)
            own_team = Team(members=tuple(members), rank=position, device=ranks.device, group=group)
    return own_team


def one_team_per_rank(ranks: Ranks, *, make_groups: bool = False) -> Team:
    """Return this rank's team where every rank trains alone, all at the same time."""
    team = split_into_teams(ranks, [[k] for k in range(ranks.world_size)], make_groups=make_groups)
    assert team is not None
    return team


def one_team(ranks: Ranks) -> Team:
    """Return the team of all ranks of the job."""
    team = split_into_teams(ranks, [list(range(ranks.world_size))])
    assert team is not None
    return team


def one_team_per_node(ranks: Ranks) -> Team:
    """Return this rank's team where each node trains alone, all at the same time."""
    nodes = ranks.gather(ranks.node)
    teams = [[k for k, n in enumerate(nodes) if n == node] for node in ranks.nodes]
    team = split_into_teams(ranks, teams)
    assert team is not None
    return team


class ParallelModel:
    """A model under a strategy (single, ddp or fsdp), and the operations that depend on it."""

    def __init__(self, settings: Settings, team: Team, *, repeat_kv: bool = False) -> None:
        self.team = team
        self.strategy = settings.strategy
        # Offloaded parameters are sharded on the host; FSDP copies them to the device when used.
        initial_device = torch.device("cpu") if settings.offload else team.device
        model = build(
            settings.preset, seed=settings.seed, device=initial_device, sequence=settings.tokens
        )
        model.cos, model.sin = model.cos.to(team.device), model.sin.to(team.device)
        self.decoder: Decoder = model
        model.compute_dtype = torch.bfloat16 if settings.dtype == "bf16" else torch.float32
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
                # All ranks initialize equal parameters; a rank that did not must be detected.
                init_sync=False,
                gradient_as_bucket_view=True,
                bucket_cap_mb=BUCKET_MB,
            )
        elif settings.strategy == "fsdp":
            self.units = shard(model, settings, team)

    @contextmanager
    def accumulation_pass(self, is_last: bool) -> Iterator[None]:
        """Wrap a forward and backward pass; DDP reduces gradients in the last one of a step only.

        FSDP reduces in each: unsharded gradients of the whole model would not fit on one rank.
        """
        if isinstance(self.module, DistributedDataParallel) and not is_last:
            with self.module.no_sync():
                yield
        else:
            yield

    def clip_gradients(self, max_norm: float) -> Tensor:
        """Scale the gradient to at most `max_norm`; return the norm before, on the device.

        Not clip_grad_norm_: offloaded shards are on the host, where NCCL cannot reduce.
        """
        gradients = [local_shard(p.grad) for p in self.module.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients, foreach=True).to(self.team.device)
        if self.strategy == "fsdp":
            squares = norm.square()
            dist.all_reduce(squares, group=self.team.group)
            norm = squares.sqrt()
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, scale.to(gradients[0].device))
        return norm

    def state_bytes(self, optimizer: torch.optim.Optimizer) -> dict[str, int]:
        """Return the bytes that this rank holds of parameters, gradients and optimizer state."""
        parameters = list(self.module.parameters())
        sizes = {"parameters": sum(_local_bytes(p) for p in parameters)}
        sizes["gradients"] = sum(_local_bytes(p.grad) for p in parameters if p.grad is not None)
        sizes["optimizer"] = sum(
            _local_bytes(value)
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor) and value.dim()
        )
        return sizes


def shard(model: Decoder, settings: Settings, team: Team) -> int:
    """Apply fully_shard by the settings' wrapping policy; return the number of FSDP units."""
    assert team.group is not None
    mesh = DeviceMesh.from_group(team.group, team.device.type)
    options: dict[str, Any] = {"mesh": mesh}
    if settings.dtype == "bf16":
        options["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )
    if settings.offload:
        options["offload_policy"] = CPUOffloadPolicy()
    units: list[nn.Module] = []
    if settings.wrap == "block":
        units = list(model.blocks)
    elif settings.wrap == "size":
        min_parameters = settings.shape.block_parameters // SIZE_POLICY
        for block in model.blocks:
            assert isinstance(block, Block)
            parts = (block.attention, block.feed_forward)
            units += [p for p in parts if sum(x.numel() for x in p.parameters()) >= min_parameters]
    for unit in units:
        fully_shard(unit, reshard_after_forward=settings.reshard, **options)
    if settings.wrap != "root":
        # Its backward pass follows immediately: freed parameters would only be gathered again.
        fully_shard(model.head, reshard_after_forward=False, **options)
        units.append(model.head)
    fully_shard(model, reshard_after_forward=settings.reshard, **options)
    return len(units) + 1


def gathered(value: Tensor) -> Tensor:
    """Return the full tensor of one that may be sharded; all of its ranks must call it."""
    full_tensor = getattr(value, "full_tensor", None)
    return full_tensor() if full_tensor is not None else value


def local_shard(value: Tensor) -> Tensor:
    """Return the part of a tensor that this rank holds."""
    to_local = getattr(value, "to_local", None)
    return to_local() if to_local is not None else value


def _local_bytes(value: Tensor) -> int:
    shard = local_shard(value)
    return shard.numel() * shard.element_size()
