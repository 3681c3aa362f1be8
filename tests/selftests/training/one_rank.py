"""One rank on the CPU, without a job: a stand-in for Ranks, a team of one, and a process group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def a_rank(directory: Path | None = None, **more: Any) -> Any:
    """As much of Ranks as a training takes; `lines` is what it has written."""
    import torch

    made = SimpleNamespace(
        rank=0, local_rank=0, world_size=1, ranks_per_node=1, node="worker0", nodes=["worker0"],
        on_gpu=False, device=torch.device("cpu"), directory=directory, spec={"nonce": "n"},
        leads_node=True, process_group=None, lines=[], gather=lambda item: [item],
        gather_node=lambda item: [item], agree=lambda item, choose: choose([item]),
        barrier=lambda: None, device_facts=lambda: {"name": "cpu", "uuid": "cpu-0"},
        extend_deadline=lambda seconds: None,
    )  # fmt: skip
    made.write_line = made.lines.append
    vars(made).update(more)
    return made


def a_team(size: int = 1, *, rank: int = 0, group: Any = None, device: str = "cpu") -> Any:
    """A team of `size` ranks, seen by one of them."""
    import torch

    from training.strategies import Team

    members = tuple(range(size))
    return Team(members=members, rank=rank, device=torch.device(device), group=group)


@contextmanager
def a_group(size: int = 1, rank: int = 0) -> Iterator[Any]:
    """A process group: of one rank with gloo, of more with torch's own stand-in for them."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if size == 1:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    else:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def of_gpus(gib: int, **more: Any) -> Any:
    """As much of Ranks as says which GPUs they have."""
    return a_rank(
        on_gpu=True, device_facts=lambda: {"name": "any", "memory_bytes": gib * 2**30}, **more
    )


def a_timed_run(
    settings: Any = None, team: Any = None, *, seconds: Any = (1.0,) * 5, excluded: int = 2,
    **more: Any,
) -> Any:  # fmt: skip
    """A timed run of 100 tokens per step on a CPU, unless told otherwise."""
    from training.run import TimedRun
    from training.settings import Settings

    steps = len(seconds) + excluded
    values: dict[str, Any] = {
        "settings": settings or Settings(), "team": team or a_team(), "seconds": list(seconds),
        "started": 100.0, "ended": [101.0 + k for k in range(len(seconds))], "tokens": 100,
        "first_step": 0, "overlap": 0.987654, "losses": [8.0 - k for k in range(steps)],
        "norms": [1.0] * steps, "learning_rates": [0.1] * steps,
        "state_bytes": {"parameters": 4}, "peak_gib": None,
    }  # fmt: skip
    return TimedRun(**{**values, **more})
