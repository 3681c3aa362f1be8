"""Teams of ranks, and what differs between a model alone, under DDP and under FSDP."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fixtures.shapes import Shape
from tests.selftests.training.one_rank import a_rank, a_team
from training import strategies
from training.model import Block, Decoder
from training.settings import Settings
from training.strategies import ParallelModel, Team

pytestmark = pytest.mark.cpu


# --- teams


@pytest.mark.parametrize(
    ("size", "group", "mean"), [(1, None, 3), (2, None, 3), (1, "g", 3), (2, "g", 5), (3, "g", 4)]
)
def test_the_mean_of_a_team_is_taken_where_there_is_more_than_one(size, group, mean, monkeypatch):
    def add_others(total: Any, group: Any) -> None:
        total += {2: 7, 3: 9}[size]  # what the other ranks have, together

    monkeypatch.setattr(strategies.dist, "all_reduce", add_others)
    team = a_team(size, group=group)
    value = torch.tensor(3.0)
    assert team.size == size
    assert team.mean(value).item() == mean
    assert value.item() == 3, "what was given stays as it is"


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies.process_group, "of", lambda ranks: "world")
    monkeypatch.setattr(strategies.dist, "new_group", lambda members: f"group of {members}")


def facts(team: Team | None) -> Any:
    return team and (team.members, team.rank, team.group)


def test_a_rank_finds_its_team_and_its_place_in_it(groups):
    ranks = a_rank(rank=2, world_size=4)
    assert facts(strategies.split_into_teams(ranks, [[0, 1], [3, 2]])) == (
        (3, 2), 1, "group of [3, 2]",
    )  # fmt: skip
    assert strategies.split_into_teams(ranks, [[0, 1]]) is None
    assert facts(strategies.split_into_teams(ranks, [[0, 1, 2, 3]])) == ((0, 1, 2, 3), 2, "world")
    without = strategies.split_into_teams(ranks, [[2]], make_groups=False)
    assert facts(without) == ((2,), 0, None)


def test_teams_are_of_one_rank_of_one_node_or_of_all(groups):
    nodes = ["b", "a", "b", "c"]
    ranks = a_rank(rank=2, world_size=4, node="b", nodes=["a", "b", "c"], gather=lambda own: nodes)
    assert facts(strategies.one_team_per_rank(ranks)) == ((2,), 0, None)
    alone = strategies.one_team_per_rank(ranks, make_groups=True)
    assert facts(alone) == ((2,), 0, "group of [2]")
    assert facts(strategies.one_team(ranks)) == ((0, 1, 2, 3), 2, "world")
    assert facts(strategies.one_team_per_node(ranks)) == ((0, 2), 1, "group of [0, 2]")


# --- a model under a strategy


@pytest.mark.parametrize(("dtype", "computed"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
@pytest.mark.parametrize("recompute", ["none", "block"])
def test_a_model_alone_is_computed_as_its_settings_say(dtype, computed, recompute):
    found = ParallelModel(Settings(dtype=dtype, recompute=recompute), a_team())
    assert found.module is found.decoder
    assert found.decoder.compute_dtype is computed
    assert [block.recompute for block in found.decoder.blocks] == [recompute == "block"] * 2


@pytest.mark.parametrize(("device", "devices"), [("cpu", None), ("cuda", [3])])
def test_ddp_is_given_its_device_and_large_buckets(device, devices, monkeypatch):
    made: list[Any] = []
    tensor = SimpleNamespace(to=lambda device: tensor)
    model = SimpleNamespace(cos=tensor, sin=tensor, blocks=[])
    monkeypatch.setattr(strategies, "build", lambda *given, **how: model)
    monkeypatch.setattr(
        strategies, "DistributedDataParallel", lambda module, **how: made.append(how) or "ddp"
    )
    team: Any = SimpleNamespace(device=SimpleNamespace(type=device, index=3), group="g")
    assert ParallelModel(Settings(strategy="ddp"), team).module == "ddp"
    assert made[0]["device_ids"] == devices
    # 25 MB and 256 MB were measured to be slower on H200.
    assert made[0]["bucket_cap_mb"] == 1024
    monkeypatch.setattr(strategies, "shard", lambda *given: 7)
    found: Any = ParallelModel(Settings(strategy="fsdp"), team)
    assert (found.module, found.units) == (model, 7)
    assert len(made) == 1


def test_ddp_alone_leaves_gradients_of_all_but_the_last_pass(monkeypatch):
    held: list[int] = []

    class Fake:
        @contextmanager
        def no_sync(self) -> Any:
            held.append(1)
            yield

    monkeypatch.setattr(strategies, "DistributedDataParallel", Fake)
    for module, is_last, expected in ((Fake(), False, 1), (Fake(), True, 0), (None, False, 0)):
        held.clear()
        model = object.__new__(ParallelModel)
        model.module = module  # type: ignore[assignment]
        with model.accumulation_pass(is_last):
            pass
        assert len(held) == expected


def of_module(module: nn.Module, strategy: str = "single") -> ParallelModel:
    model = object.__new__(ParallelModel)
    model.module, model.team, model.strategy = module, a_team(2, group="g"), strategy
    return model


@pytest.mark.parametrize(("strategy", "norm"), [("single", 5.0), ("ddp", 5.0), ("fsdp", 13.0)])
def test_gradients_are_clipped_by_the_norm_of_the_whole_model(strategy, norm, monkeypatch):
    def all_reduce(squares: Any, group: Any) -> None:
        squares += 144  # the other rank's shard

    monkeypatch.setattr(strategies.dist, "all_reduce", all_reduce)
    module = nn.Linear(2, 1)
    module.weight.grad = torch.tensor([[3.0, 4.0]])  # the bias has none
    found = of_module(module, strategy).clip_gradients(1.0)
    assert found.item() == pytest.approx(norm)
    assert module.weight.grad[0].tolist() == pytest.approx([3 / norm, 4 / norm], rel=1e-4)
    of_module(module, "single").clip_gradients(100.0)
    assert module.weight.grad[0].tolist() == pytest.approx([3 / norm, 4 / norm], rel=1e-4)


def test_bytes_of_a_rank_are_those_that_it_holds():
    module = nn.Linear(3, 2)
    module.weight.grad = torch.zeros(2, 3)
    state = {
        module.weight: {"exp_avg": torch.zeros(2, 3), "step": torch.tensor(1.0)},
        module.bias: {"exp_avg": torch.zeros(2), "note": 5},
    }
    optimizer: Any = SimpleNamespace(state=state)
    assert of_module(module).state_bytes(optimizer) == {
        "parameters": 32, "gradients": 24, "optimizer": 32,
    }  # fmt: skip


def test_a_sharded_tensor_has_a_whole_and_a_local_part():
    plain = torch.zeros(4, dtype=torch.bfloat16)
    sharded: Any = SimpleNamespace(full_tensor=lambda: "whole", to_local=lambda: plain)
    assert strategies.gathered(plain) is plain
    assert strategies.gathered(sharded) == "whole"
    assert strategies.local_shard(plain) is plain
    assert strategies.local_shard(sharded) is plain
    assert strategies._local_bytes(sharded) == 8


# --- what FSDP shards as one unit


@pytest.fixture
def sharded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What fully_shard() was given, in order."""
    calls: list[Any] = []
    mesh = SimpleNamespace(from_group=lambda group, kind: (group, kind))
    monkeypatch.setattr(strategies, "DeviceMesh", mesh)
    monkeypatch.setattr(
        strategies, "fully_shard", lambda module, **how: calls.append((module, how))
    )
    return calls


NARROW = Shape(layers=2, width=64, heads=1, kv_heads=1, hidden=864, vocabulary=256, sequence=8)
"""Attention has 9 % of a block's parameters."""
WIDE = Shape(layers=2, width=64, heads=1, kv_heads=1, hidden=64, vocabulary=256, sequence=8)


@pytest.mark.parametrize(
    ("wrap", "shape", "units"),
    [
        ("block", NARROW, ["Block", "Block", "Head", "Decoder"]),
        ("root", NARROW, ["Decoder"]),
        ("size", NARROW, ["FeedForward", "FeedForward", "Head", "Decoder"]),
        ("size", WIDE, ["Attention", "FeedForward"] * 2 + ["Head", "Decoder"]),
    ],
)
def test_units_follow_the_wrapping_policy(wrap, shape, units, sharded):
    with torch.device("meta"):
        model = Decoder(shape)
    settings: Any = SimpleNamespace(
        dtype="fp32", offload=False, wrap=wrap, shape=shape, reshard=True
    )
    count = strategies.shard(model, settings, a_team(2, group="g"))
    assert [type(module).__name__ for module, _ in sharded] == units
    assert count == len(units)
    assert isinstance(model.blocks[0], Block)
    kept = [how["reshard_after_forward"] for module, how in sharded if module is model.head]
    assert kept == [False] * (wrap != "root")
    assert all(how == {"mesh": ("g", "cpu"), "reshard_after_forward": True}
               for module, how in sharded if module is not model.head)  # fmt: skip


@pytest.mark.parametrize(("dtype", "policies"), [("fp32", 0), ("bf16", 1)])
def test_bf16_is_gathered_and_reduced_in_fp32(dtype, policies, sharded):
    with torch.device("meta"):
        model = Decoder(WIDE)
    settings = Settings(strategy="fsdp", dtype=dtype, wrap="root", offload=True)
    strategies.shard(model, settings, a_team(2, group="g"))
    ((_, how),) = sharded
    assert ("mp_policy" in how, "offload_policy" in how) == (bool(policies), True)
    if policies:
        policy = how["mp_policy"]
        assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)
