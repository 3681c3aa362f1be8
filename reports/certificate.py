"""certificate.html: one page to sign, made of verdict.json and the evidence (login side).

The same evidence gives the same bytes, so `python -m reports verify` can make it again and compare.
A run that is not ACCEPTED gets the page too: it says NOT ACCEPTED, and has no place to sign.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fixtures.records.files import RecordError, read_json, replace_file
from fixtures.records.run_directory import RunDirectory
from fixtures.slurm.hostlist import hostlist
from fixtures.thresholds.conditions import digits
from reports import banner
from reports.areas import AREAS, OTHER, areas, coverage
from reports.rows import attempts_of, split_limit, words

NAME = "certificate.html"
NAMESPACE = "gpu-cluster-acceptance"
"""What ssh-keygen binds a signature to, so that it stands for nothing else."""

LISTED = 200
"""So many rows that are not PASS are listed one by one; the rest is counted by criterion."""
_STYLE = Path(__file__).with_name("certificate.css")
_WAIVED = re.compile(
    r"(?:(?P<more>.*); )?waived by (?P<owner>.*), until (?P<until>\S+): (?P<why>.*)"
)


@dataclass
class Line:
    """One criterion over all its subjects."""

    key: str
    id: str
    title: str
    area: str
    unit: str
    outcomes: Counter[str] = field(default_factory=Counter)
    limits: Counter[str] = field(default_factory=Counter)
    worst: Mapping[str, Any] | None = None
    """The verdict with the smallest margin."""
    subject: str = ""
    """Of the worst, else the first: for the command that measures it again."""

    def add(self, v: Mapping[str, Any]) -> None:
        self.outcomes[str(v["outcome"])] += 1
        if v["outcome"] == "NOT_APPLICABLE":
            return
        self.subject = self.subject or str(v["subject"])
        if v["limit"]:
            self.limits[split_limit(str(v["limit"]))[0]] += 1
        rank = {"FAIL": 0, "WAIVED": 1}.get(str(v["outcome"]), 2)
        if v["value"] is not None and (self.worst is None or (rank, _margin(v)) < self._rank):
            self.worst, self.subject = v, str(v["subject"])
            self._rank = (rank, _margin(v))

    _rank: tuple[int, float] = (9, 0.0)

    @property
    def planned(self) -> int:
        return sum(self.outcomes.values()) - self.outcomes["NOT_APPLICABLE"]

    @property
    def limit(self) -> str:
        first, *others = [text for text, _ in self.limits.most_common()] or [""]
        return f"{first} (and {len(others)} others)" if others else first

    @property
    def value(self) -> str:
        value = (self.worst or {}).get("value")
        if value is None or isinstance(value, str):
            return value or ""
        return f"{digits(value)} {self.unit}"

    @property
    def margin(self) -> str:
        margin = (self.worst or {}).get("margin")
        return "" if margin is None else f"{100 * margin:+.1f} %"

    @property
    def where(self) -> str:
        """The worst device, by UUID where it has one."""
        if self.worst is None:
            return ""
        at = self.worst.get("worst") or {}
        part = at.get("part") or (f"gpu{at['gpu']}" if at.get("gpu") is not None else "")
        names = dict.fromkeys((self.subject, at.get("node") or "", part, at.get("uuid") or ""))
        return " ".join(str(name) for name in names if name)

    @property
    def said(self) -> str:
        bad = self.outcomes["FAIL"], self.outcomes["NOT_MEASURED"], self.outcomes["WAIVED"]
        words = ("failed", "not measured", "waived")
        told = [f"{n} {word}" for n, word in zip(bad, words, strict=True) if n]
        return ", ".join(told) or "passed"

    @property
    def outcome(self) -> str:
        for name in ("FAIL", "NOT_MEASURED", "WAIVED"):
            if self.outcomes[name]:
                return name
        return "PASS" if self.planned else "NOT_APPLICABLE"


def _margin(v: Mapping[str, Any]) -> float:
    return float("inf") if v["margin"] is None else float(v["margin"])


def write(directory: RunDirectory, verdict: Mapping[str, Any] | None = None) -> Path:
    """Write certificate.html beside the verdict; a signature of another one goes."""
    path = directory.root / NAME
    made = page(directory, verdict).encode("utf-8", "replace")
    if path.exists() and path.read_bytes() == made:
        return path
    replace_file(path, (made,), durable=False)
    (directory.root / f"{NAME}.sig").unlink(missing_ok=True)
    return path


def page(directory: RunDirectory, verdict: Mapping[str, Any] | None = None) -> str:
    """The page, from the run's files alone."""
    run: Mapping[str, Any] = read_json(directory.run_json)
    if verdict is None:
        verdict = read_json(directory.verdict)
    criteria = verdict["criteria"]
    lines = _lines(criteria)
    nodes = [str(node) for node in verdict["scope"].get("nodes") or []]
    gpus, versions = _inventory(directory, nodes)
    counts = verdict["counts"]
    return banner.render(
        "certificate.jinja2",
        style=_STYLE.read_text(encoding="utf-8"),
        accepted=verdict["verdict"] == "ACCEPTED",
        verdict=str(verdict["verdict"]),
        meaning=banner.MEANING.get(str(verdict["verdict"]), ""),
        reasons=verdict.get("reasons") or [],
        counts=counts,
        judged=counts["planned"] - counts["not_measured"],
        run=run,
        nodes=hostlist(nodes),
        both=_ordered_and_found(run, nodes, gpus),
        facts=_facts(verdict, run, versions),
        lines=[line for line in lines if line.planned],
        grouped=[
            (area, [line for line in lines if line.area == area and line.planned])
            for area in (*AREAS.values(), OTHER)
        ],
        unused=[line for line in lines if not line.planned],
        bad=[v for v in criteria if v["outcome"] in ("FAIL", "NOT_MEASURED")],
        repeated=list(_repeated(directory, criteria)),
        listed=LISTED,
        waivers=[_waiver(v) for v in criteria if v["outcome"] == "WAIVED"],
        coverage=coverage(criteria, nodes),
        gpus=gpus,
        hashes=hashes(directory),
        namespace=NAMESPACE,
    )


def _lines(criteria: Iterable[Mapping[str, Any]]) -> list[Line]:
    criteria = list(criteria)
    known = areas(criteria)
    found: dict[str, Line] = {}
    for v in criteria:
        key = str(v["criterion"])
        if key not in found:
            found[key] = Line(key, str(v["id"]), str(v["title"]), known[key], str(v["unit"]))
        found[key].add(v)
    return list(found.values())


def hashes(directory: RunDirectory) -> dict[str, str]:
    """SHA-256 of the list of all evidence, and of the verdict on it."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (directory.manifest, directory.verdict)
        if path.exists()
    }


def _repeated(
    directory: RunDirectory, criteria: Iterable[Mapping[str, Any]]
) -> Iterator[dict[str, str]]:
    """Rows that were measured again, with what came out before: a second try is no secret."""
    again = {(str(v["criterion"]), str(v["subject"])): v for v in criteria if v["attempt"] > 1}
    if not again:  # the ledger of a large fleet is large
        return
    attempts = attempts_of(directory, again)
    for key, v in again.items():
        before = [n for n in attempts.get(key, []) if n.get("attempt", 1) < v["attempt"]]
        yield {
            "criterion": key[0], "subject": key[1], "last": _came_to(v),
            "before": "; ".join(map(_came_to, before)) or "never judged",
        }  # fmt: skip


def _came_to(v: Mapping[str, Any]) -> str:
    value = v.get("value")
    measured = "" if value is None else f" {digits(value)} {v.get('unit') or ''}".rstrip()
    return f"{words(str(v['outcome']))}{measured}"


def _waiver(v: Mapping[str, Any]) -> dict[str, str]:
    said = _WAIVED.fullmatch(str(v["reason"]))
    parts = said.groupdict() if said else {"owner": "", "until": "", "why": str(v["reason"])}
    return {**parts, "criterion": str(v["criterion"]), "subject": str(v["subject"])}


Gpu = dict[str, str]


def _inventory(
    directory: RunDirectory, nodes: Iterable[str]
) -> tuple[dict[str, list[Gpu]], dict[str, str]]:
    """GPUs by node with UUID and serial, and the versions that the nodes' own workloads saw."""
    gpus: dict[str, list[Gpu]] = {}
    versions: dict[str, Counter[str]] = {}
    for node in nodes:
        for workload in ("inventory", "gemm"):
            attempt = directory.latest_attempt(workload, node)
            with suppress(OSError, RecordError, KeyError, TypeError):
                data = read_json(directory.record(workload, node, max(1, attempt)))
                for name, value in data["provenance"].items():
                    versions.setdefault(str(name), Counter())[str(value)] += 1
                if workload == "inventory":
                    devices = [rank["device"] for rank in data["ranks"]]
                    gpus[node] = [
                        {
                            "index": str(d.get("index")), "name": str(d.get("name")),
                            "uuid": str(d.get("uuid") or "no UUID"),
                            "serial": str(d.get("serial") or ""),
                        }
                        for d in devices
                    ]  # fmt: skip
    return gpus, {n: ", ".join(v for v, _ in c.most_common(3)) for n, c in versions.items()}


def _ordered_and_found(
    run: Mapping[str, Any], nodes: list[str], gpus: Mapping[str, list[Gpu]]
) -> list[tuple[str, str, str]]:
    order = run.get("contract") or {}
    models = Counter(gpu["name"] for of_node in gpus.values() for gpu in of_node)
    a_node = Counter(len(of_node) for of_node in gpus.values())
    found = {
        "nodes": f"{len(gpus)} of {len(nodes)} answered",
        "gpus_per_node": ", ".join(f"{n} on {k} nodes" for n, k in sorted(a_node.items())),
        "gpu_model": ", ".join(f"{n} x {name}" for name, n in models.most_common()),
    }
    rows: list[tuple[str, str, str]] = []
    for name in ("nodes", "gpus_per_node", "gpu_model", *sorted(order)):
        wanted = order.get(name)
        if (wanted in (None, "") and name not in found) or any(r[0] == _words(name) for r in rows):
            continue
        rows.append((_words(name), "" if wanted is None else str(wanted), found.get(name, "")))
    return rows


def _words(name: str) -> str:
    return name.replace("_", " ").replace("gpu", "GPU").replace("nic", "NIC")


def _facts(
    verdict: Mapping[str, Any], run: Mapping[str, Any], versions: Mapping[str, str]
) -> list[tuple[str, str]]:
    facts = banner.facts(verdict, run)
    used = run.get("durations") or {}
    seconds, gpu_hours = used.get("union_s"), used.get("gpu_hours")
    facts.append(("Time of its jobs", f"{seconds / 60:.1f} min" if seconds else ""))
    facts.append(("GPU-hours", f"{gpu_hours:.2f}, of exclusive jobs" if gpu_hours else ""))
    suite = {k: v for k, v in (run.get("versions") or {}).items() if v}
    facts.append(("Versions, login side", ", ".join(f"{k} {v}" for k, v in suite.items())))
    facts.append(("Versions, nodes", ", ".join(f"{k} {v}" for k, v in versions.items())))
    facts.append(("Started by", "; then by ".join(run.get("commands") or [])))
    return [(name, value) for name, value in facts if value and name != "Ordered"]
