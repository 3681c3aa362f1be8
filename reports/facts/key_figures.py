"""The figures that everyone asks for, as tiles below the verdict (login side)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fixtures.records.fields import is_number
from fixtures.thresholds import published
from fixtures.wording import digits
from reports.facts.rows import low_is_bad, outcome_text, split_limit

WANTED = (
    ("gemm.bf16", "bf16, slowest GPU"),
    ("gemm.fp8", "fp8, slowest GPU"),
    ("memory.copy", "Memory, slowest GPU"),
    ("allreduce.node", "All-reduce in a node"),
    ("allreduce.cluster", "All-reduce over all nodes"),
    ("training_ddp.cluster.efficiency", "Training keeps over all nodes"),
    ("training_ddp.efficiency", "Training keeps in a node"),
    ("training_fsdp.mfu", "Model FLOPS utilisation"),
    ("training_fsdp.cluster.tokens", "Training, all nodes"),
    ("finetune.rate", "Fine-tuning, per GPU"),
    ("filesystem.write.alone", "Storage, write"),
    ("filesystem.read.alone", "Storage, read"),
)
"""(criterion, what it is called), the most asked for first; of a sweep the largest size counts."""
MAX_TILES = 10
_SIZE = re.compile(r"(\d+)([KMG])iB$")


@dataclass(frozen=True)
class Tile:
    """One figure: the worst value of a criterion, and what it is compared with."""

    title: str
    criterion: str
    value: str
    unit: str
    where: str
    outcome: str
    limit: str

    @property
    def outcome_text(self) -> str:
        return outcome_text(self.outcome).lower()


def tiles(criteria: Iterable[Mapping[str, Any]]) -> list[Tile]:
    """Return the figures that the run has, at most MAX_TILES."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for v in criteria:
        if is_number(v["value"]):
            rows.setdefault(str(v["criterion"]), []).append(v)
    return list(_tiles(rows))[:MAX_TILES]


def _tiles(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Tile]:
    for name, title in WANTED:
        points = [key for key in rows if key == name or _size(key, name) is not None]
        if not points:
            continue
        key = max(points, key=lambda point: _size(point, name) or 0)
        worst = min(rows[key], key=_badness)
        of_size = key.removeprefix(name).removeprefix(".")
        limit = "" if worst["outcome"] == "RECORDED" else split_limit(str(worst["limit"]))[0]
        marked = f" ({published.MARK})" if published.is_shown_in(limit) else ""
        yield Tile(
            f"{title}, {of_size}" if of_size else title, key, digits(worst["value"]),
            str(worst["unit"]), str((worst.get("worst") or {}).get("node") or worst["subject"]),
            str(worst["outcome"]), limit.partition(" (")[0] + marked,
        )  # fmt: skip


def _size(key: str, name: str) -> int | None:
    """Return the size in bytes of a point of a sweep; None for what is not a point of `name`."""
    rest = key.removeprefix(f"{name}.")
    found = _SIZE.fullmatch(rest) if rest != key else None
    return int(found[1]) << {"K": 10, "M": 20, "G": 30}[found[2]] if found else None


def _badness(v: Mapping[str, Any]) -> tuple[bool, float]:
    """Return what is the least for the worst row."""
    if v["margin"] is not None:
        return v["outcome"] != "FAIL", float(v["margin"])
    value = float(v["value"])
    return v["outcome"] != "FAIL", value if low_is_bad(str(v["unit"])) else -value
