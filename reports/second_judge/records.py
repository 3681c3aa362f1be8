"""The second judge's reader of records: the parts that are sound, and of the planned devices.

A part of another shape, or of other ranks or devices, is left out with its node.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from reports.second_judge.absences import is_sound, typed
from reports.second_judge.physics import TABLES, Json, model_of

Key = tuple[str, str]  # (workload, placement)
_NUMBER, _TEXT, _SCALAR = (int, float), (str, type(None)), (str, int, float)
_MEASUREMENT = {
    "metric": (str,), "unit": (str,), "samples": (list,), "rounds": (list,), "ended": (list,),
    "notes": (list,), "at": (dict,), "conditions": (dict,), "checks": (dict,),
    "started": (*_NUMBER, type(None)), "value": (*_SCALAR, type(None)),
}  # fmt: skip
_RANK = {
    "rank": (int,), "local_rank": (int,), "node": (str,), "device": (dict,), "start": _NUMBER,
    "end": _NUMBER, "measurements": (list,), "facts": (dict,), "absent": (list,),
}  # fmt: skip
_DEVICE = {"index": (int,), "name": _TEXT, "model": _TEXT, "uuid": _TEXT, "pci": _TEXT}
_RECORD: dict[str, tuple[type, ...]] = {
    "schema": (int,), "run_id": (str,), "nonce": (str,), "workload": (str,), "placement": (str,),
    "attempt": (int,), "nodes": (list,), "world_size": (int,), "job": (dict,), "ranks": (list,),
    "provenance": (dict,),
}  # fmt: skip
_FILE = re.compile(r"([A-Za-z0-9._-]+)@([A-Za-z0-9._-]+?)(?:\.attempt(\d{1,4}))?\.json")
_UNUSABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
A_DAY_S = 86400.0


class Broken(ValueError):
    """Not of the shape that it must have."""


def is_gpu(uuid: Any) -> bool:
    return str(uuid).startswith(("GPU-", "MIG-"))


def gpus(record: Json, node: str | None = None) -> set[str]:
    ranks = [r for r in record["ranks"] if node in (None, r["node"])]
    return {u for r in ranks if is_gpu(u := r["device"].get("uuid"))}


class Records:
    """The records of a run directory: the parts that are sound and of the planned devices."""

    def __init__(self, root: Path, facts_of_packages: Iterable[Json] = (), *,
                 read: Callable[[Path], str] = lambda path: path.read_text("utf-8"),
                 files: Callable[[Path], Iterable[Path]] = Path.iterdir) -> None:  # fmt: skip
        """`facts_of_packages`: criteria, for a run by hand, which does not say what was installed:
        what it measured. `read`, `files`: how a file and a folder that others write are read."""
        self.root, self._text = root, read
        self.run: Json = json.loads(read(root / "run.json"))
        self.last: dict[Key, int] = {}
        for path in files(root / "records"):
            if match := _FILE.fullmatch(path.name):
                key = match[1], match[2]
                self.last[key] = max(self.last.get(key, 0), int(match[3] or 1))
        self.missing: dict[Key, int] = {}
        with suppress(OSError, ValueError):
            for line in read(root / "jobs" / "missing.jsonl").split("\n"):
                with suppress(ValueError, KeyError, TypeError):
                    m = json.loads(line)
                    if m["nonce"] == self.run["nonce"]:
                        self.missing[m["workload"], m["placement"]] = int(m.get("attempt", 0))
        self.failed: Any = defaultdict(lambda: defaultdict(set))  # row -> attempt -> failed values
        repairs = self.run.get("recertifies") or []
        for folder in (*(root / "recertified" / r["run"] for r in repairs), root):
            with suppress(OSError, ValueError):
                for line in filter(None, read(folder / "ledger.jsonl").split("\n")):
                    with suppress(ValueError, KeyError, TypeError):
                        v = json.loads(line)
                        values = self.failed[v["criterion"], v["subject"]][v["attempt"]]
                        if v["outcome"] in ("FAIL", "WAIVED"):
                            of_life = str(v.get("reason")).startswith("life counter")  # no attempt
                            values.update([] if of_life else [v.get("value")])
                        elif v["outcome"] != "NOT_MEASURED" or v["cause"] == "repetition":
                            values.discard(v.get("value"))
        absent = {**dict.fromkeys(TABLES["false_by_default"], False), "bindable": True,
                  "memory_control": True, "nics_per_node": 0, "nic_gbps": 0, "installed": None,
                  "nic_fabric": "InfiniBand", "origin": self.run.get("origin")}  # fmt: skip
        self.population = p = SimpleNamespace(**{**absent, **self.run["population"]})
        p.gpu_model = model_of(p.gpu_model) if p.gpu_model else None
        p.nodes, p.virtual, p.on_cpu = tuple(p.nodes), p.origin == "sandbox", p.gpu_model == "cpu"
        p.capability, p.nvlink = TABLES["gpus"].get(p.gpu_model, (math.inf, 1))[:2]
        p.measured = {workload for workload, _ in (*self.last, *self.missing)}
        criteria = [c for c in facts_of_packages if c["workload"] in p.measured]
        if p.installed is None:
            p.installed = [f for c in criteria for f in c["facts"]]
        for c in criteria:
            left_out = {*c["facts"]} & {*TABLES["packages"]} - {*p.installed}
            with suppress(*_UNUSABLE):
                if left_out and any(f'"{c["metric"]}"' in read(q) for q in files(root / "records")
                                    if q.name.startswith(f"{c['workload']}@")):  # fmt: skip
                    p.installed = [*p.installed, *left_out]
        self._read: dict[tuple[str, str, int], Json | None] = {}
        self._devices: dict[str, Any] = {}

    def forget(self, workload: str = "", place: str = "") -> None:
        """Read everything anew, or one record that does not define the devices."""
        defines = workload in ("", "inventory") or not any(w == "inventory" for w, _ in self.last)
        others = {k: v for k, v in self._read.items() if k[:2] != (workload, place)}
        self._read, self._devices = ({}, {}) if defines else (others, self._devices)

    def newest(self, workload: str, place: str) -> Json | None:
        """Return the record that counts; None without one that can be used."""
        last = self.last.get((workload, place), 0)
        if last == 0 or self.missing.get((workload, place), 0) > last:
            return None
        found = self._get(workload, place, last)
        if workload != "inventory" or found is None:
            return found
        others = (self._of(n).gpus for n in self.population.nodes if n != place)
        return None if any(gpus(found) & theirs for theirs in others) else found

    def attempts(self, workload: str, place: str) -> list[Json | None]:
        """Return the record that counts, then the usable ones of the attempts before it."""
        newest = self.newest(workload, place)
        if newest is None:
            return [None]
        numbers = range(self.last[workload, place] - 1, 0, -1)
        earlier = [r for n in numbers if (r := self._get(workload, place, n)) is not None]
        if workload == "inventory":  # it says which devices there are: older ones may be others
            earlier = [r for r in earlier if gpus(r) == gpus(newest)]
        return [newest, *earlier]

    def is_demonstration(self, workload: str, place: str) -> bool:
        record = self.newest(workload, place) if place != "login" else None
        return any(r["device"].get("name") == "cpu" or r["facts"].get("emulated")
                   for r in (record or {}).get("ranks", ()))  # fmt: skip

    def _get(self, workload: str, place: str, attempt: int) -> Json | None:
        key = workload, place, attempt
        if key not in self._read:
            self._read[key] = None
            with suppress(*_UNUSABLE):
                data = self._sound(self._load(*key))
                ids = Counter(r["device"].get("uuid") for r in data["ranks"])
                of_node: dict[str, list[Json]] = {}
                for rank in data["ranks"]:
                    of_node.setdefault(rank["node"], []).append(rank)
                for node, ranks in list(of_node.items()):
                    if workload != "slurm" and self._is_of_others(data, node, ranks, ids):
                        del of_node[node]
                data["left"] = {n for n in data["left"] if workload == "slurm" or n in of_node}
                data["ranks"] = [r for r in data["ranks"] if r["node"] in of_node]
                self._read[key] = {**data, "of_node": of_node}
        return self._read[key]

    def _load(self, workload: str, place: str, attempt: int) -> Json:
        suffix = "" if attempt == 1 else f".attempt{attempt}"
        path = self.root / "records" / f"{workload}@{place}{suffix}.json"
        data: Json = json.loads(self._text(path))  # NaN costs the node whose rank says it
        _check(data, _RECORD)
        stated = data["nonce"], data["workload"], data["placement"], data["attempt"]
        if data["schema"] not in (1, 2) or stated != (self.run["nonce"], workload, place, attempt):
            raise Broken("it is another record")
        _check_finite({k: v for k, v in data.items() if k != "ranks"})
        return data

    @staticmethod
    def _sound(data: Json) -> Json:
        """Return the record with its sound ranks and, as `left`, the nodes that they are of."""
        entries, nodes, size = data["ranks"], data["nodes"], data["world_size"]
        ranks, void = [], set()
        for entry in entries:
            try:
                old = data["schema"] == 1 and isinstance(entry, dict)
                _check_rank({"absent": [], **entry} if old else entry)
                ranks.append(typed(entry) if old else entry)
            except Broken:
                if not isinstance(entry, dict) or entry.get("node") not in nodes:
                    raise
                void.add(entry["node"])
        numbers = [e.get("rank") for e in entries]
        all_ranks = list(range(min(size, len(entries) + 1)))  # no list of a billion
        if data["workload"] == "slurm":
            if [r["rank"] for r in ranks] != all_ranks:
                raise Broken("entries are missing")
        elif numbers != all_ranks or {e["node"] for e in entries} != set(nodes):
            own = {n: [e.get("rank") for e in entries if e["node"] == n] for n in nodes}
            wrong = {n for n, of in own.items() if len(of) != size // len(nodes)
                     or any(k not in range(size) or numbers.count(k) > 1 for k in of)}  # fmt: skip
            void |= wrong or set(nodes)
        left = [n for n in nodes if n not in void]
        strangers = {e["node"] for e in entries} - set(nodes)
        if not left or (strangers and data["workload"] != "slurm") or len(set(nodes)) < len(nodes):
            raise Broken("no node's part is sound")
        return {**data, "left": left, "ranks": [r for r in ranks if r["node"] not in void]}

    def _of(self, node: str) -> Any:
        """Return the GPUs of a node, where they are, and its NICs: by its newest inventory."""
        if node in self._devices:
            return self._devices[node]
        found: Any = SimpleNamespace(gpus=set(), pci={}, nics={}, vbios={}, said={}, run_id=None)
        if any(workload == "inventory" for workload, _ in self.last):
            with suppress(*_UNUSABLE):
                data = self._load("inventory", node, self.last["inventory", node])
                found.run_id, found.taken = data["run_id"], max(r["start"] for r in data["ranks"])
                for device in [r["device"] for r in data["ranks"] if data["nodes"] == [node]]:
                    found.gpus |= {u for u in [device.get("uuid")] if is_gpu(u)}
                    found.pci[device.get("uuid")] = device.get("pci")
                    found.vbios[device.get("uuid")] = device.get("vbios")
                    found.said[device.get("uuid")] = {k: device.get(k) for k in TABLES["scaling"]}
                    found.nics |= device.get("nics") or {}
        else:  # without any: those of most records
            seen: Counter[str] = Counter()
            for (workload, place), last in self.last.items():
                for attempt in range(1, last + 1):
                    with suppress(*_UNUSABLE):
                        seen.update(gpus(self._load(workload, place, attempt), node))
            often = {uuid for uuid, count in seen.items() if count > 1}
            found.gpus = often if len(often) >= max(1, self.population.gpus_per_node) else set()
        self._devices[node] = found
        return found

    def _repaired(self, run_id: str, node: str, over_network: bool) -> bool:
        """Whether a repair of the node voids what an earlier run measured on it."""
        before: set[str] = set()
        for repair in self.run.get("recertifies") or []:
            before.add(repair["run"])
            if run_id not in before or node not in repair["nodes"]:
                continue
            taken, told = self._of(node).run_id, set(repair["told"])
            if taken in {None, *before} or "firmware" in told or ("cable" in told and over_network):
                return True
        return False

    def _is_of_others(self, data: Json, node: str, ranks: list[Json], ids: Counter[Any]) -> bool:
        """Whether one node's part was measured by other ranks or devices than were planned."""
        p, workload = self.population, data["workload"]
        source, session = self.run.get("replay_of") or {}, self.run.get("session") or {}
        first = (self.run.get("recertifies") or [{}])[0]
        start = first.get("created") or source.get("created") or self.run.get("created")
        times = (start, A_DAY_S), ((source or self.run).get("ended"), time.time())
        since, until = (datetime.fromisoformat(t).timestamp() if t else d for t, d in times)
        inventory, small = workload == "inventory", workload in TABLES["small"]
        nothing = SimpleNamespace(gpus=(), pci={}, nics={}, vbios={}, said={})
        now: Any = nothing if inventory else self._of(node)
        may_share = small or workload in TABLES["judges_devices"]
        over_network = len(data["nodes"]) > 1 or workload in TABLES["uses_nics"]
        run_id = source.get("run") or session.get("run_id") or self.run["id"]
        runs = {run_id, *(repair["run"] for repair in self.run.get("recertifies") or [])}
        slots = sorted(r["local_rank"] for r in ranks)
        wrong = [data["run_id"] not in runs, not small and slots != list(range(len(ranks)))]
        wrong += [not inventory and self._repaired(data["run_id"], node, over_network)]
        wrong += [not small and not inventory and len(ranks) != max(1, p.gpus_per_node)]
        for rank in ranks:
            device, uuid = rank["device"], rank["device"].get("uuid")
            wrong += [bool(uuid) and ids[uuid] > 1 and not may_share]
            wrong += [rank["start"] < since - A_DAY_S, rank["end"] > until + A_DAY_S]
            wrong += [bool(now.gpus) and is_gpu(uuid) and uuid not in now.gpus]
            said = [(device.get(k), v) for k, v in now.said.get(uuid, {}).items()]
            wrong += [None not in pair and pair[0] != pair[1] for pair in said]
            wrong += [len({device.get("pci"), now.pci.get(uuid)} - {None, ""}) > 1]
            firmware = device.get("vbios"), now.vbios.get(uuid)
            wrong += [all(firmware) and firmware[0] != firmware[1] and rank["start"] < now.taken]
            nics = (device.get("nics") or {}) if over_network and now.nics else {}
            wrong += [now.nics.get(name) != identity for name, identity in nics.items()]
            if not (inventory or p.on_cpu or p.virtual):
                name = device.get("name")
                named = p.gpu_model and name not in (None, "", "unknown", "cpu")
                wrong += [name == "cpu", bool(p.ordered and rank["facts"].get("emulated"))]
                wrong += [bool(named) and model_of(name) != p.gpu_model]
        return any(wrong)


def _check(data: Any, fields: dict[str, tuple[type, ...]], *, optional: bool = False) -> None:
    if not isinstance(data, dict) or (not optional and data.keys() != fields.keys()):
        raise Broken("fields are missing, or there are others")
    for name, types in fields.items():
        value = data.get(name)
        number_only = isinstance(value, bool) and str not in types
        if name in data and (not isinstance(value, types) or number_only):
            raise Broken(f"{name} is {value!r:.40}")


def _check_rank(rank: Any) -> None:
    _check_finite(rank)
    _check(rank, _RANK)
    _check(rank["device"], _DEVICE, optional=True)
    if rank["end"] < rank["start"]:
        raise Broken("it ended before it started")
    if not all(isinstance(a, dict) and is_sound(a) for a in rank["absent"]):
        raise Broken("an absence of no kind")
    for m in rank["measurements"]:
        _check(m, _MEASUREMENT, optional=True)
        if not {"metric", "unit"} <= m.keys() <= _MEASUREMENT.keys():
            raise Broken("fields of a measurement")
        samples, rounds = m.get("samples", []), m.get("rounds", [])
        if any(not isinstance(r, list) or not r or not samples for r in rounds):
            raise Broken("a round without samples")
        numbers = [*samples, *m.get("ended", []), *m.get("checks", {}).values()]
        if any(type(x) not in _NUMBER for x in (*numbers, *(x for r in rounds for x in r))):
            raise Broken("a sample is not a number")
        scalars = [*m.get("at", {}).values(), *m.get("conditions", {}).values()]
        if not all(isinstance(x, _SCALAR) for x in scalars):
            raise Broken("a condition is not a plain value")
        if samples and m.get("value") is not None:
            raise Broken("samples and a value")
        if not all(isinstance(note, str) for note in m.get("notes", [])):
            raise Broken("a note is not text")


def _check_finite(data: Any) -> None:
    if isinstance(data, _NUMBER):
        if not abs(data) <= 2**1000:
            raise Broken("a number is not finite")
    elif isinstance(data, (dict, list)):
        for part in data.values() if isinstance(data, dict) else data:
            _check_finite(part)
