"""Forgeries of a run: one source of the evidence changed, all that follows from it made anew.

The forger of number k changes one source at random, in one way, and lets the suite itself write
verdict, pages, manifest and statement again. He may not gain by it: no row that was not green may
be green or gone while `verify` says what it said of the genuine run.
"""

from __future__ import annotations

import copy
import functools
import json
import random
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from fixtures.records.model import record_name
from tests.selftests.genuine_runs import BASES, GREEN, LOST, SLOW, Genuine, Json, tools

__all__ = ["ALIKE", "BASES", "Genuine", "attempt", "forge", "tools"]

# --- sources of evidence


@dataclass(frozen=True)
class Forgery:
    """What was changed, for the message of a test."""

    source: str
    operation: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.source}: {self.operation} {self.where}".strip()


def read(path: Path) -> Json:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return json.loads(text)


def write(path: Path, data: Json) -> None:
    if path.suffix == ".jsonl":
        text = "".join(json.dumps(line) + "\n" for line in data)
    else:
        text = json.dumps(data)
    path.write_text(text, encoding="utf-8")


def _places(data: Json, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a document."""
    keys: Iterable[Any] = ()
    if isinstance(data, dict):
        keys = data
    elif isinstance(data, list):
        keys = range(len(data))
    for key in keys:
        yield (*path, key)
        yield from _places(data[key], (*path, key))


def _place(rng: random.Random, data: Json) -> list[Any]:
    """A path into a document: each field is as likely as any, however often a list repeats it."""
    of_field: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for path in _places(data):
        field = tuple("[]" if isinstance(key, int) else key for key in path)
        of_field.setdefault(field, []).append(path)
    return [*rng.choice(of_field[rng.choice([*of_field])])] if of_field else []


def _holder(data: Json, path: list[Any]) -> Json:
    return functools.reduce(lambda at, key: at[key], path[:-1], data)


_DATE = re.compile(r"\d{4}-\d\d-\d\dT")
SHIFTS = (-86400 * 400, -86400, -3600, -60, 60, 3600, 86400, 86400 * 400)


def _is_time(value: Json) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return (number and 1.7e9 < value < 2.1e9) or (
        isinstance(value, str) and bool(_DATE.match(value))
    )


def _moved(value: Json, by: float) -> Json:
    """A document with all of its times moved."""
    if isinstance(value, dict):
        return {k: _moved(v, by) for k, v in value.items()}
    if isinstance(value, list):
        return [_moved(v, by) for v in value]
    if not _is_time(value):
        return value
    if isinstance(value, str):
        return (datetime.fromisoformat(value) + timedelta(seconds=by)).isoformat()
    return value + by


def _other(rng: random.Random, value: Json) -> Json:
    """Another value of the same type, or of another one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return rng.choice([value * 0.5, value * 2, value + 1, value - 1, -value, 0, 1])
    if isinstance(value, str):
        return rng.choice(["", f"{value}x", value[:-1], "PASS", "gpu0001", "RECORDED", "worker9"])
    return rng.choice([{}, [], 0, "", True])


def _exchanged(value: Json, one: str, other: str) -> Json:
    """A document in which two names stand in each other's places."""
    text = json.dumps(value).replace(one, "\0").replace(other, one).replace("\0", other)
    return json.loads(text.replace("\0", other))


def change(rng: random.Random, data: Json, operation: str) -> tuple[Json, str] | None:
    """Do one operation to a document; None where it changes nothing."""
    before = json.dumps(data)
    path = _place(rng, data)
    where = "/".join(map(str, path))
    if operation == "moved in time":
        by = rng.choice(SHIFTS)
        if rng.random() < 0.3 or not path:
            data, where = _moved(data, by), "all"
        else:
            _holder(data, path)[path[-1]] = _moved(_holder(data, path)[path[-1]], by)
        where += f" by {by} s"
    elif operation == "exchanged between nodes":
        data = _exchanged(data, "gpu0001", "gpu0002")
    elif operation == "exchanged between devices":
        found = sorted(set(re.findall(r"GPU-[0-9a-f-]{36}", before)))
        if len(found) < 2:
            return None
        one, other = rng.sample(found, 2)
        where = f"{one} {other}"
        data = _exchanged(data, one, other)
    elif not path:
        return None
    else:
        at, key = _holder(data, path), path[-1]
        if operation == "changed":
            at[key] = _other(rng, at[key])
        elif operation == "dropped":
            del at[key]
        elif operation == "emptied":
            at[key] = None
        elif operation == "doubled":
            if not isinstance(at, list):
                return None
            at.insert(rng.randrange(len(at) + 1), copy.deepcopy(at[key]))
        elif operation == "exchanged":
            keys = [*at] if isinstance(at, dict) else [*range(len(at))]
            other_key = rng.choice(keys)
            at[key], at[other_key] = at[other_key], at[key]
            where += f" with {other_key}"
        elif operation == "put in another place":
            goal = _place(rng, data)
            if not goal:
                return None
            _holder(data, goal)[goal[-1]] = copy.deepcopy(at[key])
            where += f" to {'/'.join(map(str, goal))}"
    return (data, where) if json.dumps(data) != before else None


OPERATIONS = (
    "changed", "changed", "changed", "dropped", "dropped", "emptied", "doubled", "exchanged",
    "put in another place", "moved in time", "exchanged between nodes",
    "exchanged between devices", "taken from a healthy run", "taken from a healthy run",
)  # fmt: skip


def _differing(one: Json, other: Json, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths at which two documents differ, from above to below."""
    if one == other:
        return
    yield path
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() & other.keys():
            yield from _differing(one[key], other[key], (*path, key))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for key in range(len(one)):
            yield from _differing(one[key], other[key], (*path, key))


def _as_healthy(rng: random.Random, data: Json, healthy: Json) -> tuple[Json, str] | None:
    """Take something from the same file of a run with nothing wrong."""
    paths = sorted(_differing(data, healthy), key=str)
    if not paths:
        return None
    path = rng.choice(paths)
    if not path:
        return healthy, "all"
    value = functools.reduce(lambda at, key: at[key], path, healthy)
    _holder(data, [*path])[path[-1]] = value
    return data, "/".join(map(str, path))


def _records(root: Path, pattern: str = "*.json") -> list[Path]:
    return sorted((root / "records").glob(pattern))


def _of_file(rng: random.Random, root: Path, path: Path, healthy: Path) -> Forgery | None:
    operation = rng.choice(OPERATIONS)
    data = read(path)
    # The half of what is done to many lines is done to those that are not like the others.
    if path.suffix == ".jsonl" and operation == "dropped" and rng.random() < 0.5:
        kept = [line for line in data if line.get("outcome") in (*GREEN, None)]
        if len(kept) == len(data):
            return None
        write(path, kept)
        return Forgery(path.name, "dropped", "all that is not green")
    if operation == "taken from a healthy run":
        twin = healthy / path.relative_to(root)
        done = _as_healthy(rng, data, read(twin)) if twin.exists() else None
    else:
        done = change(rng, data, operation)
    if done is None:
        return None
    write(path, done[0])
    return Forgery(str(path.relative_to(root)), operation, done[1])


def _other_run(rng: random.Random, root: Path, path: Path) -> None:
    """Write a record of another run in its place, with this run's head."""
    head = {k: v for k, v in read(path).items() if k != "ranks"}
    place = rng.choice(["gpu0001", "gpu0002"])
    donor = read(rng.choice(_records(root, f"{path.name.partition('@')[0]}@*.json")))
    shift = rng.choice(SHIFTS)
    ranks = _moved(donor["ranks"], shift)
    if len(head["nodes"]) == 1:
        ranks = json.loads(json.dumps(ranks).replace(place, head["nodes"][0]))
    write(path, {**head, "ranks": ranks})


def _of_attempts(rng: random.Random, root: Path) -> Forgery | None:
    """Change which records there are of the attempts."""
    path = rng.choice(_records(root, f"{SLOW}*.json") if rng.random() < 0.6 else _records(root))
    others = [p for p in _records(root, f"{path.name.partition('@')[0]}@*.json") if p != path]
    operation = rng.choice(
        ["removed", "torn", "empty", "another attempt", "exchanged", "of another node",
         "of another run", "ranks of another", "doubled"]
    )  # fmt: skip
    where = path.name
    if operation == "removed":
        path.unlink()
    elif operation in ("torn", "empty"):
        content = path.read_bytes()
        path.write_bytes(content[: rng.randrange(len(content)) if operation == "torn" else 0])
    elif operation == "another attempt":
        data = read(path)
        data["attempt"] = number = rng.choice([1, 2, 3, 4])
        name = record_name(*path.name.partition(".")[0].split("@"), number)
        path.unlink()
        write(path.with_name(name), data)
        where += f" as {name}"
    elif operation == "of another run":
        _other_run(rng, root, path)
    elif not others:
        return None
    else:
        other = rng.choice(others)
        mine, its = read(path), read(other)
        where += f" and {other.name}"
        heads = ("attempt", "placement", "nodes")
        if operation == "exchanged":
            for name in heads:
                mine[name], its[name] = its[name], mine[name]
            write(path, its)
            write(other, mine)
        elif operation == "of another node":
            text = json.dumps(its)
            if len(its["nodes"]) == len(mine["nodes"]) == 1:
                text = text.replace(its["nodes"][0], mine["nodes"][0])
            write(path, {**json.loads(text), **{name: mine[name] for name in heads}})
        elif operation == "ranks of another":
            for rank, source in zip(mine["ranks"], its["ranks"], strict=False):
                rank["measurements"] = source["measurements"]
            write(path, mine)
        else:
            number = rng.choice([3, 4])
            name = record_name(*path.name.partition(".")[0].split("@"), number)
            write(path.with_name(name), {**mine, "attempt": number})
            where = f"{path.name} as {name}"
    return Forgery("attempts", operation, where)


def _of_ranks(rng: random.Random, root: Path) -> Forgery | None:
    """Let a device say what another one measured."""
    path = rng.choice(_records(root, f"{SLOW}*.json") if rng.random() < 0.6 else _records(root))
    data = read(path)
    ranks = data["ranks"]
    if len(ranks) < 2:
        return None
    one, other = rng.sample(range(len(ranks)), 2)
    operation = rng.choice(["copied", "exchanged", "device of", "dropped"])
    if operation == "copied":
        ranks[one]["measurements"] = copy.deepcopy(ranks[other]["measurements"])
    elif operation == "exchanged":
        ranks[one]["measurements"], ranks[other]["measurements"] = (
            ranks[other]["measurements"], ranks[one]["measurements"],
        )  # fmt: skip
    elif operation == "device of":
        ranks[one]["device"] = copy.deepcopy(ranks[other]["device"])
    else:
        del ranks[one]
    write(path, data)
    return Forgery("ranks", operation, f"{path.name} {one} {other}")


def forge(number: int, root: Path, healthy: Path) -> Forgery:
    """Make one forgery in a copy of a genuine run; the same for the same number.

    `healthy`: such a run with nothing wrong, of which the forger can take what he likes.
    """
    rng = random.Random(number)
    while True:
        source = rng.choice(
            ["run.json", "verdict.json", "ledger.jsonl", "jobs/missing.jsonl", "inventory",
             "record", "attempts", "ranks"]
        )  # fmt: skip
        found: Forgery | None
        if source == "attempts":
            found = _of_attempts(rng, root)
        elif source == "ranks":
            found = _of_ranks(rng, root)
        else:
            if source == "inventory":
                path = rng.choice(_records(root, "inventory@*.json"))
            elif source == "record":
                path = rng.choice(_records(root))
            else:
                path = root / source
            found = _of_file(rng, root, path, healthy) if path.exists() else None
        if found is not None:
            return found


def is_of_the_verdict(forgery: Forgery) -> bool:
    """Whether the verdict itself was forged, which the forger then does not make anew."""
    return forgery.source == "verdict.json"


def attempt(genuine: Genuine, number: int, folder: Path) -> tuple[Forgery, list[str], list[str]]:
    """Forge a copy; return the forgery, what it gains unnoticed, and what verify says."""
    root = folder / f"forged{number}"
    shutil.copytree(genuine.root, root, symlinks=True)
    try:
        forgery = forge(number, root, genuine.healthy)
        try:
            genuine.made_anew(root, verdict=not is_of_the_verdict(forgery))
        except Exception as error:
            # The suite refuses to judge it, or cannot show it: nobody is shown a better verdict.
            return forgery, [], [f"not made: {error!r}"]
        return forgery, *genuine.gained(root)
    finally:
        shutil.rmtree(root)


# --- several sources, changed alike


def _healthy_record(root: Path, healthy: Path, name: str) -> None:
    shutil.copy(healthy / "records" / f"{name}.json", root / "records")


def _healthy_ledger(root: Path, healthy: Path) -> None:
    shutil.copy(healthy / "ledger.jsonl", root)


def failed_attempt(root: Path, healthy: Path) -> None:
    """The attempt that failed is another run's good one, and there is no other."""
    _healthy_record(root, healthy, SLOW)
    (root / "records" / record_name(*SLOW.split("@"), 2)).unlink()
    _healthy_ledger(root, healthy)


def lost_record(root: Path, healthy: Path) -> None:
    """The record that was lost is another run's, and nothing says that it was lost."""
    _healthy_record(root, healthy, LOST)
    (root / "jobs" / "missing.jsonl").unlink()
    _healthy_ledger(root, healthy)


ALIKE: dict[str, Callable[[Path, Path], None]] = {
    "failed once": failed_attempt, "not measured": lost_record,
}  # fmt: skip
"""Base -> a forgery of records, reasons and ledger that agree with each other."""
