"""Forgeries of a cluster that was handed over in parts: of one unit, or between two of them."""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fixtures.records.files import replace_file
from reports.evidence import statement
from reports.evidence.findings import Findings
from reports.handover import join
from tests.selftests import forgeries
from tests.selftests.forgeries import Forgery
from tests.selftests.genuine_runs import BASES, HEALTHY, Genuine, not_green, rows_of
from tests.tools.rank_texts import gpu_uuid

FIRST, SECOND = ("gpu0001", "gpu0002"), ("gpu0003", "gpu0004")


def _as_second_unit(text: str) -> str:
    """A text of a run as that of another unit: other nodes, devices and another id."""
    for one, other in zip(FIRST, SECOND, strict=True):
        for k in range(2):
            text = text.replace(gpu_uuid(one, k), gpu_uuid(other, k))
        text = text.replace(one, other)
    text = text.replace('"serial": "1650', '"serial": "1651').replace(
        '"serial":"1650', '"serial":"1651'
    )
    return re.sub(r"(\d{8}-\d{6})-99e8", r"\1-99e9", text)


def second_unit(root: Path) -> None:
    """Make a run that of another unit."""
    for path in [root / "run.json", *sorted((root / "records").iterdir())]:
        text = _as_second_unit(path.read_text(encoding="utf-8"))
        path.unlink()
        path.with_name(_as_second_unit(path.name)).write_text(text, encoding="utf-8")


@dataclass
class Joined:
    """Two units, one of which has something wrong, and their joined certificate."""

    root: Path
    units: tuple[Genuine, Genuine]
    names: tuple[str, str]
    status: int = -1
    rows: Counter[str] | None = None
    nodes: int = 0

    @classmethod
    def make(cls, base: str, first: Genuine, folder: Path) -> Joined:
        """Join a run of one base with a healthy unit."""
        plant, ordered = HEALTHY[0], BASES[base][1]
        second = Genuine.made(
            lambda root: (plant(root), second_unit(root))[1], ordered, folder / "second" / "run",
            folder / "none",
        )  # fmt: skip
        roots = [first.root, second.root]
        out = folder / "joined"
        assert join.main(argparse.Namespace(runs=roots, out=out), lambda *_, **__: Findings()) in (
            0, 1, 2,
        )  # fmt: skip
        names = tuple(json.loads((r / "run.json").read_text())["id"] for r in roots)
        made = cls(out, (first, second), (names[0], names[1]))
        made.status, said = first.verified(out)
        assert made.status == 0, said
        made.rows, made.nodes = made.red(out)
        assert made.rows.total(), "something is wrong with it"
        return made

    def red(self, root: Path) -> tuple[Counter[str], int]:
        """Rows that are not green, and how many nodes the certificate has."""
        found: Counter[str] = Counter()
        for unit in sorted((root / join.UNITS).iterdir()):
            found += not_green(rows_of(unit))
        return found, len(json.loads((root / join.NAME).read_text())["nodes"])

    def made_anew(self, root: Path) -> None:
        for name, content in join.made_of(root).items():
            replace_file(root / name, (content,))
        statement.replace(root, join._statement(root, statement.listing(root)))


def _unit(root: Path, joined: Joined, k: int) -> Path:
    return root / join.UNITS / joined.names[k]


def _within(rng: random.Random, root: Path, joined: Joined) -> Forgery:
    """Forge a unit as a run of its own."""
    k = rng.choice([0, 0, 0, 1])
    unit = joined.units[k]
    healthy = unit.healthy if k == 0 else unit.root
    forgery = forgeries.forge(rng.randrange(1 << 40), _unit(root, joined, k), healthy)
    unit.made_anew(_unit(root, joined, k), verdict=not forgeries.is_of_the_verdict(forgery))
    return forgery


def _record_of_the_other(rng: random.Random, root: Path, joined: Joined) -> Forgery:
    """Put a record of the second unit in the place of one of the first, under its names."""
    path = rng.choice(sorted((_unit(root, joined, 0) / "records").glob("*.json")))
    twin = _unit(root, joined, 1) / "records" / _as_second_unit(path.name)
    if not twin.exists():
        twin = twin.with_name(twin.name.replace(".attempt2", ""))
    text = twin.read_text(encoding="utf-8") if twin.exists() else "{}"
    renamed = rng.random() < 0.7
    for one, other in zip(FIRST, SECOND, strict=True) if renamed else ():
        text = text.replace(other, one)
    text = text.replace("99e9", "99e8")
    if rng.random() < 0.5:  # the devices too: then it is what the other unit measured
        for one, other in zip(FIRST, SECOND, strict=True):
            for k in range(2):
                text = text.replace(gpu_uuid(other, k), gpu_uuid(one, k))
        text = text.replace('"1651', '"1650')
    path.write_text(text, encoding="utf-8")
    joined.units[0].made_anew(_unit(root, joined, 0))
    return Forgery("units", "record of the other unit", path.name)


def _devices_exchanged(rng: random.Random, root: Path, joined: Joined) -> Forgery:
    """Let a device of one unit be one of the other in a record, or in all of them."""
    one, other = gpu_uuid(FIRST[1], rng.choice([0, 1])), gpu_uuid(SECOND[0], rng.choice([0, 1]))
    everywhere = rng.random() < 0.5
    for k in (0, 1):
        paths = sorted((_unit(root, joined, k) / "records").glob("*.json"))
        for path in paths if everywhere else [rng.choice(paths)]:
            text = path.read_text(encoding="utf-8")
            text = text.replace(one, "\0").replace(other, one).replace("\0", other)
            path.write_text(text, encoding="utf-8")
        joined.units[k].made_anew(_unit(root, joined, k))
    return Forgery("units", "devices exchanged", f"{one} {other} everywhere {everywhere}")


def _unit_dropped(_: random.Random, root: Path, joined: Joined) -> Forgery:
    shutil.rmtree(_unit(root, joined, 0))
    return Forgery("units", "dropped")


def _unit_in_place_of_the_other(rng: random.Random, root: Path, joined: Joined) -> Forgery:
    """The healthy unit twice: the second time under another id, or other names of its nodes too."""
    unit, other = _unit(root, joined, 0), _unit(root, joined, 1)
    shutil.rmtree(unit)
    shutil.copytree(other, unit, symlinks=True)
    renamed = rng.random() < 0.6
    for path in [unit / "run.json", *sorted((unit / "records").iterdir())]:
        text = path.read_text(encoding="utf-8").replace("99e9", "99e8")
        name = path.name
        for one, second in zip(FIRST, SECOND, strict=True) if renamed else ():
            text, name = text.replace(second, one), name.replace(second, one)
        path.unlink()
        path.with_name(name).write_text(text, encoding="utf-8")
    joined.units[0].made_anew(unit)
    return Forgery("units", "the other unit again", f"renamed {renamed}")


def _page_changed(rng: random.Random, root: Path, joined: Joined) -> Forgery:
    """What is made of the units says something better; the statement is made anew."""
    path = root / rng.choice([join.NAME, "certificate.html", *join.LISTS])
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    path.write_text(text.replace("REJECTED", "PARTIAL").replace("INCOMPLETE", "PARTIAL") + " ",
                    encoding="utf-8")  # fmt: skip
    statement.replace(root, join._statement(root, statement.listing(root)))
    return Forgery("joined", "changed", path.name)


WAYS: tuple[Callable[[random.Random, Path, Joined], Forgery], ...] = (
    _within, _within, _within, _record_of_the_other, _record_of_the_other, _devices_exchanged,
    _unit_dropped, _unit_in_place_of_the_other, _page_changed,
)  # fmt: skip


def attempt(joined: Joined, number: int, folder: Path) -> tuple[Forgery, list[str], list[str]]:
    """Forge a copy; return the forgery, what it gains unnoticed, and what verify says."""
    rng = random.Random(number)
    root = folder / f"joined{number}"
    shutil.copytree(joined.root, root, symlinks=True)
    way = rng.choice(WAYS)
    forgery = Forgery("units", way.__name__)
    try:
        try:
            forgery = way(rng, root, joined)
            if way is not _page_changed:
                joined.made_anew(root)
        except Exception as error:  # it cannot be made: nobody is shown a better one
            return forgery, [], [f"not made: {error!r}"]
        status, said = joined.units[0].verified(root)
        if status != joined.status:
            return forgery, [], said
        assert joined.rows is not None
        now, nodes = joined.red(root)
        gained = [f"{key}: {number} rows are not green, {now[key]} in the forged one"
                  for key, number in joined.rows.items() if now[key] < number]  # fmt: skip
        gained += [f"{nodes} nodes instead of {joined.nodes}"] if nodes != joined.nodes else []
        return forgery, gained, said
    finally:
        shutil.rmtree(root)
