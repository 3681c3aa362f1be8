"""`python -m reports ready RUN --dest DEST`: the check of a node before each job, installed.

RUN is verified first, and what each of its nodes has to be is made of its records: a plain JSON
file. Beside it go the modules that the check is made of, pynvml, and the wrappers for Slurm's
hooks: a node needs a Python and no checkout. All of one installation is in a folder of its own, and
the starter that names it is written last, so that a node which starts a job has the old or the new.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.util
import math
import os
import re
import shlex
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fixtures.errors import AcceptanceError, EvidenceError
from fixtures.paths import CHECKOUT, THRESHOLDS, version
from fixtures.ready import certificate
from fixtures.records.files import dump_json, replace_file
from fixtures.records.foreign_files import read_bytes
from fixtures.records.model import RankResult, Record
from fixtures.records.run_directory import RunDirectory
from fixtures.run.reader import RunReader
from fixtures.slurm.hostlist import hostlist
from fixtures.thresholds import loader
from fixtures.thresholds.loader import Thresholds
from fixtures.wording import counted
from reports.evidence.run_files import CommandError, limits_file, read_run, read_verdict
from reports.handover import reference
from reports.handover.join import CheckRun

ENTRY = "fixtures.ready.__main__"
STARTER = "ready.py"
STARTER_TEXT = CHECKOUT / "deploy/ready" / STARTER
WRAPPERS = ("prolog.sh", "healthcheck.sh")
FOLDER = "{folder}"
"""In the starter: the folder of this installation."""
OLD = re.compile(r"[0-9a-f]{16}")

Json = Any


def add_to(commands: Any) -> Any:
    """Add the subcommand, and return it."""
    parser = commands.add_parser("ready", help="install the check of a node before each job")
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN",
        help="the accepted run, or all of a handover in parts; the last that has a node counts",
    )  # fmt: skip
    parser.add_argument("--dest", type=Path, required=True, metavar="DIR", help="where to install")
    parser.add_argument(
        "--mount", action="append", default=[], metavar="POINT",
        help="a mount that every node has to have, beside those of the order; may be repeated",
    )  # fmt: skip
    return parser


def main(options: argparse.Namespace, check_run: CheckRun) -> int:
    """Install the check; EvidenceError where a run is not verified, or cannot be a reference."""
    dest = options.dest.absolute()
    for point in options.mount:
        if not point.startswith("/"):
            raise CommandError(f"--mount {point}: expected a path that begins with /")
    for line in refused(dest):
        print(line)
    parts = [_part(run.resolve(), options, check_run) for run in options.runs]
    folder = install(dest, {"schema": certificate.SCHEMA, "parts": parts})
    print(f"installed {dest / STARTER} (code and certificate in {folder.name})")
    print(f"try it on a node: python3 -I {dest / STARTER} --all")
    return 0


def _part(source: Path, options: argparse.Namespace, check_run: CheckRun) -> dict[str, Json]:
    """Return what the nodes of one run have to be, after it was verified."""
    word = read_verdict(source)["verdict"]
    if word not in reference.REFERENCES:
        raise EvidenceError(
            f"{source} is {word}: nodes are compared with an accepted run, expected one of "
            f"{', '.join(reference.REFERENCES)}"
        )
    found = check_run(source)
    if found.status:
        raise EvidenceError(
            f"{source} is not installed: {(found.unconfirmed + found.strangers)[0]}; see "
            f"`python -m reports verify {shlex.quote(str(source))}`"
        )
    run = read_run(source)
    limits = loader.load(limits_file(run, options.thresholds) or THRESHOLDS)
    part = made_of(source, run, limits, options.mount)
    gpus = sum(len(node["gpus"]) for node in part["nodes"].values())
    print(f"certificate of {source.name} ({word}): {counted(len(part['nodes']), 'node')}, "
          f"{counted(gpus, 'GPU')}")  # fmt: skip
    left = sorted({*map(str, run["population"]["nodes"])} - part["nodes"].keys())
    if left:
        print(f"not covered: {hostlist(left)}, of which no inventory counts")
    return part


# --- what a node has to be


def made_of(
    source: Path, run: Mapping[str, Any], limits: Thresholds, mounts: Iterable[str] = ()
) -> dict[str, Json]:
    """Return what the nodes of a verified run have to be: a part of the certificate."""
    directory = RunDirectory(source)
    reader = RunReader.of(directory, run)
    ordered = dict((limits.cluster and limits.cluster.mounts) or {}) | dict.fromkeys(mounts, "")
    bounds = _limits(limits, str(run["population"].get("gpu_model", "")))
    names = sorted(map(str, run["population"]["nodes"]))
    found = {name: _node(reader, name, ordered, bounds) for name in names}
    nodes = {name: node for name, node in found.items() if node is not None}
    if not nodes:
        raise CommandError(f"{source}: no node of it has an inventory that counts")
    return {
        "run": str(source), "suite_version": version(),
        "manifest_sha256": hashlib.sha256(read_bytes(directory.manifest)).hexdigest(),
        "limits": bounds, "nodes": nodes,
    }  # fmt: skip


def _limits(limits: Thresholds, model: str) -> dict[str, float]:
    """Return the most that is allowed of each metric, where its limit is a plain number."""
    found = {}
    for metric in certificate.COUNTS:
        criterion = limits.criteria.get(f"health.{metric}")
        if criterion is None:
            continue
        try:
            value = criterion.limit_for({"model": model}).fail_above
        except AcceptanceError:  # it has conditions that only a measurement knows
            continue
        if value is not None and not (value.of_ceiling or value.of_model or value.of_contract):
            found[metric] = value.number
    return found


def _node(
    reader: RunReader, node: str, ordered: Mapping[str, str], bounds: Mapping[str, float]
) -> dict[str, Json] | None:
    """Return what one node has to be; None where it has no inventory that counts."""
    records = {
        name: record
        for name in (
            "inventory",
            "health",
            "nvlink",
            "under_load",
            "infiniband",
            "environment",
            "host",
        )
        if (record := reader.newest(name, node)) is not None
    }
    if "inventory" not in records:
        return None
    facts = {name: _leader(record, node) for name, record in records.items()}
    ranks = {
        name: {str(rank.device.get("uuid")): rank for rank in record.ranks if rank.node == node}
        for name, record in records.items()
    }
    ends = [rank.end for record in records.values() for rank in record.ranks if rank.node == node]
    return {
        "since": max(ends),
        "gpus": [_gpu(gpu, ranks, bounds) for gpu in facts["inventory"].get("gpus", [])],
        "nics": _nics(facts),
        "mounts": _mounts(facts.get("environment", {}), ordered),
    }


def _leader(record: Record, node: str) -> Mapping[str, Any]:
    """Return the facts of the node as its first rank tells them."""
    found: Mapping[str, Any] = next((r.facts for r in record.ranks if r.node == node), {})
    return found


def _gpu(
    gpu: Mapping[str, Any],
    ranks: Mapping[str, Mapping[str, RankResult]],
    bounds: Mapping[str, float],
) -> dict[str, Json]:
    uuid = str(gpu.get("uuid") or "")

    def values(workload: str) -> dict[str, Json]:
        rank = ranks.get(workload, {}).get(uuid)
        measured = rank.measurements if rank is not None else ()
        return {m.metric: m.value for m in measured if m.value is not None and not m.at}

    health, nvlink, load = values("health"), values("nvlink"), values("under_load")
    rank = ranks.get("under_load", {}).get(uuid)
    facts = rank.facts if rank is not None else {}
    life = {
        k: {"total": int(n)} for k, n in _mapping(facts.get("after")).items()
        if isinstance(n, int) and not k.endswith("_ns")
    } | {
        k: {part: n for part, n in told["counts"].items() if isinstance(n, int)}
        for k, told in _mapping(facts.get("life")).items()
        if isinstance(_mapping(told).get("counts"), Mapping)
    }  # fmt: skip
    return {
        "uuid": uuid, "pci": str(gpu.get("pci") or ""), "vbios": str(gpu.get("vbios") or ""),
        "states": {k: str(health[k]) for k in certificate.STATES if k in health},
        # What was waived at the acceptance is not sick before each job.
        "counts": [k for k in certificate.COUNTS if k in health
                   and not float(health[k]) > bounds.get(k, math.inf)],
        "links": int(nvlink.get("links") or gpu.get("nvlinks") or 0) or None,
        "width": int(load["pcie_width"]) if "pcie_width" in load else None,
        "fabric": str(nvlink.get("fabric") or ""),
        "life": life,
    }  # fmt: skip


def _mapping(stated: Any) -> Mapping[str, Any]:
    """Return what a node states as a mapping; an empty one for anything else."""
    return stated if isinstance(stated, Mapping) else {}


def _nics(facts: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Json]]:
    ports = facts.get("infiniband", {}).get("ports") or {}
    guids = {
        n["name"]: n.get("node_guid", "") for n in facts.get("environment", {}).get("nics", [])
    }
    links = facts.get("host", {}).get("links") or {}
    found = []
    for name in facts["inventory"].get("nics") or ():
        own = {part.partition(":")[2] or "1": state for part, state in ports.items()
               if part.partition(":")[0] == name}  # fmt: skip
        lanes = re.search(r" x(\d+)$", str(links.get(name, "")))
        found.append({
            "name": str(name), "guid": str(guids.get(name, "")), "ports": own,
            "lanes": int(lanes[1]) if lanes else None,
        })  # fmt: skip
    return found


def _mounts(environment: Mapping[str, Any], ordered: Mapping[str, str]) -> dict[str, Json]:
    """Return the mounts of the order, and the one that the run directory lay on."""
    mounts = {p: {"type": str(kind or ""), "writable": False} for p, kind in ordered.items()}
    own = environment.get("run_directory") or {}
    if point := str(own.get("point") or ""):
        mounts[point] = {
            "type": str(own.get("type") or ""),
            "writable": "rw" in str(own.get("options") or "").split(","),
        }
    return mounts


# --- the copy


def modules(entry: str = ENTRY) -> dict[str, Path]:
    """Return the files of the checkout that a module needs, itself among them, by their paths."""
    found: dict[str, Path] = {}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        for package in _above(name):
            path = CHECKOUT / package.replace(".", "/")
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            relative = str(file.relative_to(CHECKOUT))
            if file.is_file() and relative not in found:
                found[relative] = file
                waiting += imports(file, package)
    return dict(sorted(found.items()))


def _above(name: str) -> Iterator[str]:
    parts = name.split(".")
    yield from (".".join(parts[: k + 1]) for k in range(len(parts)))


def imports(file: Path, name: str, *, at_start: bool = False) -> list[str]:
    """Return the names that a module imports: of the suite all, `at_start` also all others of those
    that are imported when it is, and not in a function or for types alone."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    nodes: Iterable[ast.AST] = tree.body if at_start else ast.walk(tree)
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [n for n in found if at_start or n.partition(".")[0] == name.partition(".")[0]]


def install(dest: Path, data: Mapping[str, Json]) -> Path:
    """Write code, certificate, wrappers and, last, the starter; return the installation's folder.

    The installation before this one stays, for a check that is under way; older ones go.
    """
    pynvml = importlib.util.find_spec("pynvml")
    if pynvml is None or pynvml.origin is None:
        raise CommandError("nvidia-ml-py (pynvml) is not installed: `make setup`")
    files = {name: path.read_bytes() for name, path in modules().items()}
    files["pynvml.py"] = Path(pynvml.origin).read_bytes()
    files[certificate.NAME] = dump_json(data).encode()
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    dest.mkdir(parents=True, exist_ok=True)
    folder = dest / digest.hexdigest()[:16]
    before = _folders(dest)
    for name, content in files.items():
        replace_file(folder / name, (content,), root=dest)
    for path in {above for name in files for above in (folder / name).parents} - {*dest.parents}:
        path.chmod(0o755)  # whatever the umask: who tries it by hand reads it
    for name in WRAPPERS:
        replace_file(dest / name, (STARTER_TEXT.with_name(name).read_bytes(),), root=dest)
        (dest / name).chmod(0o755)
    starter = STARTER_TEXT.read_text(encoding="utf-8")
    in_use = _named(dest / STARTER)
    replace_file(dest / STARTER, (starter.replace(FOLDER, folder.name).encode(),), root=dest)
    for old in before:
        if old.name not in (folder.name, in_use):
            shutil.rmtree(old)
    return folder


def _folders(dest: Path) -> list[Path]:
    return [
        p for p in dest.iterdir() if OLD.fullmatch(p.name) and p.is_dir() and not p.is_symlink()
    ]


def _named(starter: Path) -> str:
    """Return the folder that an installed starter names, "" where there is none."""
    try:
        match = re.search(r'^FOLDER = "([0-9a-f]{16})"$', starter.read_text(encoding="utf-8"), re.M)
    except (OSError, UnicodeDecodeError):
        return ""
    return match[1] if match else ""


def refused(dest: Path) -> list[str]:
    """Return what root has to know; CommandError where others could change what root will run."""
    real = dest.resolve()
    if real != dest:
        raise CommandError(f"--dest {dest}: a link; name {real}")
    if real.is_relative_to(CHECKOUT):
        raise CommandError(f"--dest {dest}: inside the checkout; name a folder of root's")
    for path in (real, *real.parents):
        if not path.exists():
            continue
        status = path.stat()
        loose = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
        if (
            status.st_uid not in (0, os.geteuid())
            or loose
            or (path == real and status.st_mode & 0o022)
        ):
            raise CommandError(f"--dest {dest}: {path} can be changed by others than root and you")
    if os.geteuid() == 0:
        return []
    return [f"note   {dest} is not root's: Slurm's hooks run as root; copy it as root, or install "
            "it as root"]  # fmt: skip
