"""What units of a cluster have in common: which hardware each has, and what was ordered of all.

A node is known by its hardware and not by its name: a GPU, a board or an InfiniBand port that is in
two units would be accepted twice. Login side.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fixtures.records.run_directory import RunDirectory
from fixtures.run.reader import devices_of
from fixtures.slurm.hostlist import expand_hostlist, hostlist
from fixtures.wording import counted
from reports.evidence.run_files import CommandError, read_run, read_verdict

_GUID = re.compile(r"(?:[0-9a-f]{4}:){3}[0-9a-f]{4}", re.IGNORECASE)
_MAC = re.compile(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}", re.IGNORECASE)
_LOCAL = 0b10
"""Bit of a MAC address's first byte that is set where software chose the address (IEEE 802)."""

Found = tuple[str, str]
"""What it is, and where it is."""


def refuse_shared_hardware(runs: Sequence[Path]) -> None:
    """Raise CommandError where two of the runs measured the same hardware, under whatever name."""
    owners: dict[str, tuple[str, Path]] = {}
    for run in runs:
        of_run = dict(_hardware(run))
        for identity, (what, node) in of_run.items():
            if (known := owners.get(identity.casefold())) is not None:
                other, first = known
                raise CommandError(
                    f"{what} {identity} is in {other} of {first} and in {node} of {run}: units "
                    "must not share hardware. If it was moved, measure the unit that it was taken "
                    "from again (`pytest -m multinode --recertify=RUN`)"
                )
        owners |= {identity.casefold(): (node, run) for identity, (_, node) in of_run.items()}


def _hardware(run: Path) -> Iterator[tuple[str, Found]]:
    """Yield what identifies hardware of a unit, by its inventories; virtual nodes have none."""
    population = read_run(run).get("population") or {}
    if population.get("origin") == "sandbox":
        return
    known = devices_of(RunDirectory(run), read_run(run))
    for node in map(str, population.get("nodes") or ()):
        # Also by an inventory that does not count: what is in it may be in another unit.
        if (devices := known.of(node)) is None:
            continue
        for uuid in devices.slots:
            yield uuid, ("GPU", node)
        for serial in devices.serials.values():
            yield f"serial number {serial}", ("the board with", node)
        for name, identity in devices.nics.items():
            if is_of_hardware(identity):
                yield identity, (f"the port of {name},", node)


def is_of_hardware(identity: str) -> bool:
    """Whether a GUID or MAC address is one that a vendor gave and no software."""
    if not re.search(r"[1-9a-f]", identity, re.IGNORECASE):
        return False
    if _MAC.fullmatch(identity):
        return not int(identity[:2], 16) & _LOCAL
    return bool(_GUID.fullmatch(identity))


def ordered(folders: Sequence[Path], nodes: Sequence[str]) -> list[str]:
    """Return which ordered nodes are in no unit; units may have been ordered on their own."""
    orders = [(read_run(folder).get("contract") or {}).get("nodes") for folder in folders]
    if None in orders:
        return ["no contract: nothing says which nodes were ordered"]
    sizes_of: dict[str, list[int]] = {}
    for folder, order in zip(folders, orders, strict=True):
        size = len(read_verdict(folder)["scope"]["nodes"])
        sizes_of.setdefault(str(order), []).append(size)
    lines, named = [], set[str]()
    for order, sizes in sizes_of.items():
        if not order.isdigit():
            named |= {*expand_hostlist(order)}
            continue
        # One order for all, or alike ones: it is one order if no unit alone fills it.
        total = int(order) if max(sizes) < int(order) else int(order) * len(sizes)
        of = "" if len(sizes_of) == 1 else f", of {counted(len(sizes), 'unit')} ordered by number"
        lines.append(f"{sum(sizes)} of {total} ordered nodes are in a unit{of}")
    if absent := sorted(named - {*nodes}):
        lines.append(f"in no unit, though ordered: {hostlist(absent)}")
    elif named:
        lines.append(f"every {'' if len(lines) == 0 else 'named '}ordered node is in a unit")
    return lines
