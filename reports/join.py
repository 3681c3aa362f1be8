"""`python -m reports join RUN RUN ... --out DIR`: handover in parts (login side).

A cluster that is handed over by scalable units has one run for each. Joined they make one
certificate, which names every run and states what was measured only within a unit. It is never
ACCEPTED: nothing was measured between the units. DIR holds the whole of every run.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fixtures.conclusion.node_lists import nodes_of_subject
from fixtures.errors import EvidenceError
from fixtures.paths import version
from fixtures.records.files import RecordError, json_lines, read_json, replace_file
from fixtures.records.model import SAFE_ID
from fixtures.records.run_directory import RunDirectory
from fixtures.slurm.hostlist import expand_hostlist, hostlist
from fixtures.thresholds.contract import PARTIES
from fixtures.wording import counted
from reports import banner, certificate, signature, verify
from reports.run_files import CommandError, read_run, read_verdict

NAME = "joined.json"
UNITS = "units"
LISTS = ("good-nodes.txt", "bad-nodes.txt")
WORST_FIRST = ("REJECTED", "INCOMPLETE", "DEMONSTRATION", "PARTIAL", "ACCEPTED")
EXIT_STATUS = {"REJECTED": 1, "INCOMPLETE": 2}
MEASURED = ("PASS", "FAIL", "WAIVED", "RECORDED")

CheckRun = Callable[[Path], verify.Findings]
"""Checks a run directory as `python -m reports verify` does."""


def add_to(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("join", help="one certificate of runs over parts of a cluster")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run directory each")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write")


def is_joined(root: Path) -> bool:
    """Whether a directory is what join() wrote."""
    return (root / NAME).is_file()


def main(options: argparse.Namespace, check_run: CheckRun) -> int:
    """Join runs; print the verdict and return its exit status."""
    joined = join([run.resolve() for run in options.runs], options.out.absolute(), check_run)
    print(f"{joined['verdict']}: {counted(len(joined['units']), 'unit')}, "
          f"{counted(len(joined['nodes']), 'node')}")  # fmt: skip
    for reason in joined["reasons"]:
        print(f"  {reason}")
    print(f"certificate {options.out / certificate.NAME}")
    return EXIT_STATUS.get(joined["verdict"], 0)


def join(runs: Sequence[Path], out: Path, check_run: CheckRun) -> dict[str, Any]:
    """Write the joined certificate of runs over disjoint nodes, and a copy of each run.

    Raises CommandError where they do not belong together, and EvidenceError where the evidence of
    one of them is not as it was.
    """
    refuse_different(runs)
    if out.exists() and any(out.iterdir()):
        raise CommandError(f"--out {out}: is not empty; give a new directory")
    for run in runs:
        if wrong := check_run(run).wrong:
            raise EvidenceError(
                f"{run} is not joined: {wrong[0]}; see "
                f"`python -m reports verify {shlex.quote(str(run))}`"
            )
    for run in runs:
        shutil.copytree(run, out / UNITS / str(read_run(run)["id"]), symlinks=True)
    for name, content in made_of(out).items():
        replace_file(out / name, (content,))
    joined: dict[str, Any] = read_json(out / NAME)
    return joined


def refuse_different(runs: Sequence[Path]) -> None:
    """Raise CommandError unless these are runs of different nodes by the same limits and order."""
    if len(runs) < 2:
        raise CommandError("join needs the runs of at least 2 units")
    first = read_run(runs[0])
    owner_of: dict[str, Path] = {}
    ids: set[str] = set()
    for run in runs:
        data, verdict = read_run(run), read_verdict(run)
        if data["id"] in ids or not SAFE_ID.fullmatch(str(data["id"])):
            raise CommandError(f"{run}: run {data['id']} is given twice")
        ids.add(data["id"])
        if not data.get("ended"):
            raise CommandError(f"{run}: has not ended")
        for what, of in _ALIKE.items():
            if of(data) != of(first):
                raise CommandError(
                    f"{run} and {runs[0]} have other {what}: units must be judged alike"
                )
        for node in verdict["scope"]["nodes"]:
            if node in owner_of:
                raise CommandError(
                    f"{node} is in {owner_of[node]} and in {run}: units must not share nodes"
                )
            owner_of[node] = run


_ALIKE: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "limits": lambda run: (run.get("thresholds") or {}).get("sha256"),
    "definitions of criteria": lambda run: (run.get("thresholds") or {}).get("definitions_sha256"),
    "suite versions": lambda run: run.get("suite_version"),
    "orders, apart from the nodes,": lambda run: {
        k: v for k, v in (run.get("contract") or {}).items() if k not in ("nodes", *PARTIES)
    },
    "tiers": lambda run: run.get("tier"),
    "origins": lambda run: run.get("origin"),
}


# --- what is made of the units


def made_of(root: Path) -> dict[str, bytes]:
    """Return the files of a joined directory, made of its units alone; the bytes are the same
    whenever they are made."""
    folders = sorted(path for path in (root / UNITS).iterdir() if path.is_dir())
    units = [_unit(folder) for folder in folders]
    nodes = [node for unit in units for node in unit["nodes"]]
    words = [unit["verdict"] for unit in units]
    verdict = min([*words, "PARTIAL"], key=WORST_FIRST.index)
    counts: Counter[str] = Counter()
    for unit in units:
        counts.update(unit["counts"])
    within = sorted({key for unit in units for key in unit["measured_within"]})
    tally = ", ".join(f"{n} {word}" for word, n in Counter(words).items())
    reasons = [
        f"{counted(len(units), 'unit')}: {tally}",
        *_ordered(folders, nodes),
        "nothing was measured between units: no collective, pair or rail across them, and devices "
        "were compared with those of their own unit",
    ]
    joined = {
        "schema": 1, "suite_version": version(), "verdict": verdict, "reasons": reasons,
        "nodes": list(nodes), "counts": dict(counts), "units": units, "only_within_a_unit": within,
    }  # fmt: skip
    text = "".join(json_lines(joined))
    page = banner.render(
        "joined.jinja2",
        style=(Path(__file__).with_name("certificate.css")).read_text(encoding="utf-8"),
        joined=joined,
        units=[{**unit, "nodes": hostlist(unit["nodes"])} for unit in units],
        meaning=banner.MEANING.get(verdict, ""),
        nodes=hostlist(nodes),
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )
    lists = {
        name: b"".join(
            path.read_bytes() for f in folders if (path := f / name).exists()
        )
        for name in LISTS
    }  # fmt: skip
    return {NAME: text.encode(), certificate.NAME: page.encode("utf-8", "replace"), **lists}


def _unit(folder: Path) -> dict[str, Any]:
    run, verdict = read_run(folder), read_verdict(folder)
    nodes = tuple(str(node) for node in verdict["scope"]["nodes"])
    known = frozenset(nodes)
    within = {
        str(row["criterion"])
        for row in verdict["criteria"]
        if row["outcome"] in MEASURED
        and len(nodes_of_subject(str(row["subject"]), nodes, known)) > 1
    }
    return {
        "run": run["id"], "verdict": verdict["verdict"], "reasons": verdict["reasons"],
        "nodes": list(nodes), "counts": verdict["counts"], "created": run["created"],
        "ended": run.get("ended"), "limits_sha256": (run.get("thresholds") or {}).get("sha256"),
        "sha256": certificate.hashes(RunDirectory(folder)),
        "measured_within": sorted(within) if len(nodes) > 1 else [],
    }  # fmt: skip


def _ordered(folders: Sequence[Path], nodes: Sequence[str]) -> list[str]:
    """Return how many of the ordered nodes are in a unit; [] without an order."""
    contracts = [read_run(folder).get("contract") for folder in folders]
    if not all(contracts):
        return ["no contract: nothing says which nodes were ordered"]
    orders = {str(contract["nodes"]) for contract in contracts if contract}
    if len(orders) > 1:  # each unit was ordered on its own
        return []
    order = orders.pop()
    if order.isdigit():
        # One order for all, or alike ones: it is one order if no unit alone fills it.
        sizes = [len(read_verdict(folder)["scope"]["nodes"]) for folder in folders]
        total = int(order) if max(sizes) < int(order) else int(order) * len(folders)
        return [f"{len(nodes)} of {total} ordered nodes are in a unit"]
    absent = [node for node in expand_hostlist(order) if node not in nodes]
    if not absent:
        return ["every ordered node is in a unit"]
    return [f"in no unit, though ordered: {hostlist(absent)}"]


# --- verify and sign


def check(root: Path, check_run: CheckRun, signers: Path | None) -> verify.Findings:
    """Verify every unit as a separate run, then the joined files."""
    found = verify.Findings()
    try:
        folders = sorted(path for path in (root / UNITS).iterdir() if path.is_dir())
        stated = {str(unit["run"]) for unit in read_json(root / NAME)["units"]}
        for name in sorted(stated - {folder.name for folder in folders}):
            found.wrong.append(f"{UNITS}/{name}: missing, though {NAME} names it")
        refuse_different(folders)
        for folder in folders:
            of_unit = check_run(folder)
            found.wrong += [f"{UNITS}/{folder.name}: {line}" for line in of_unit.wrong]
            found.unchecked += [f"{UNITS}/{folder.name}: {line}" for line in of_unit.unchecked]
            if not of_unit.wrong:
                found.confirmed.append(f"{UNITS}/{folder.name}: verified as a run of its own")
        made = made_of(root)
    except (CommandError, OSError, RecordError, KeyError, TypeError, ValueError) as error:
        found.wrong.append(f"{NAME}: cannot be made from the units: {error}")
        return found
    for name, content in made.items():
        try:
            same = (root / name).read_bytes() == content
        except OSError as error:
            found.wrong.append(f"{name}: {error}")
            continue
        if same:
            found.confirmed.append(f"{name}: matches the units")
        else:
            found.wrong.append(f"{name}: does not match the units")
    is_wrong, line = signature.check(RunDirectory(root), signers)
    (found.wrong if is_wrong else found.confirmed).append(line)
    known = {*made, UNITS, signature.NAME}
    found.unchecked += [f"{p.name}: not a file of the suite in a joined directory"
                        for p in sorted(root.iterdir()) if p.name not in known]  # fmt: skip
    return found


def verify_or_sign(source: Path, options: argparse.Namespace, check_run: CheckRun) -> int:
    """Carry out `verify` or `sign` on a joined directory; CommandError for all other commands."""
    if options.command not in ("verify", "sign"):
        raise CommandError(f"{source} joins several runs: give one of {source / UNITS}")
    signers = options.allowed_signers if options.command == "verify" else None
    found = check(source, check_run, signers)
    if options.command == "verify" or found.wrong:
        return verify.show(source, found)
    try:
        print(f"signature {signature.sign(RunDirectory(source), options.key)}")
    except (OSError, subprocess.CalledProcessError) as error:
        raise CommandError(f"ssh-keygen -Y sign with {options.key}: {error}") from None
    return 0
