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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fixtures.conclusion.node_lists import nodes_of_subject
from fixtures.errors import EvidenceError
from fixtures.paths import version
from fixtures.records.files import RecordError, json_lines, read_json, replace_file
from fixtures.records.foreign_files import read_bytes
from fixtures.records.foreign_folders import folders_in
from fixtures.records.model import SAFE_ID
from fixtures.records.run_directory import RunDirectory
from fixtures.slurm.hostlist import hostlist
from fixtures.thresholds.contract import PARTIES
from fixtures.wording import counted
from reports.evidence import statement
from reports.evidence.findings import Findings
from reports.evidence.run_files import CommandError, read_run, read_verdict
from reports.handover import join_units, verify
from reports.pages import banner, certificate

NAME = "joined.json"
UNITS = "units"
LISTS = ("good-nodes.txt", "bad-nodes.txt")
WORST_FIRST = ("REJECTED", "INCOMPLETE", "DEMONSTRATION", "PARTIAL", "ACCEPTED")
EXIT_STATUS = {"REJECTED": 1, "INCOMPLETE": 2}
MEASURED = ("PASS", "FAIL", "WAIVED", "RECORDED")

CheckRun = Callable[..., Findings]
"""Checks a run directory as `python -m reports verify` does."""


def add_to(commands: Any) -> Any:
    """Add the subcommand, and return it."""
    parser = commands.add_parser("join", help="one certificate of runs over parts of a cluster")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run directory each")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write")
    return parser


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

    Raises CommandError where they do not belong together, and EvidenceError where one of them is
    not confirmed.
    """
    refuse_different(runs)
    if out.exists() and any(out.iterdir()):
        raise CommandError(f"--out {out}: is not empty; give a new directory")
    for run in runs:
        found = check_run(run)
        if found.status:
            raise EvidenceError(
                f"{run} is not joined: {(found.unconfirmed + found.strangers)[0]}; see "
                f"`python -m reports verify {shlex.quote(str(run))}`"
            )
    for run in runs:
        shutil.copytree(run, out / UNITS / str(read_run(run)["id"]), symlinks=True)
    for name, content in made_of(out).items():
        replace_file(out / name, (content,))
    statement.replace(out, _statement(out, statement.listing(out)))
    joined: dict[str, Any] = read_json(out / NAME)
    return joined


def _statement(root: Path, now: statement.Listing) -> str:
    joined = read_json(root / NAME)
    summary = {name: joined[name] for name in ("verdict", "reasons", "counts", "nodes")}
    summary["suiteVersion"] = joined["suite_version"]
    summary["runs"] = [unit["run"] for unit in joined["units"]]
    return statement.text(now, summary, limits={"limits": joined["units"][0]["limits_sha256"]})


def refuse_different(runs: Sequence[Path]) -> None:
    """Raise CommandError unless these are runs of different nodes and hardware, judged alike."""
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
    join_units.refuse_shared_hardware(runs)


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
    folders = folders_in(root / UNITS)
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
        *join_units.ordered(folders, nodes),
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
        style=banner.style_text(certificate.STYLE),
        joined=joined,
        units=[{**unit, "nodes": hostlist(unit["nodes"])} for unit in units],
        meaning=banner.MEANING.get(verdict, ""),
        nodes=hostlist(nodes),
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )
    lists = {
        name: b"".join(
            read_bytes(path, below=root) for f in folders if (path := f / name).exists()
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


# --- verify


def check(
    root: Path, check_run: CheckRun, signers: Path | None, demanded: Sequence[str] = ()
) -> Findings:
    """Check the files and signers of all, every unit as a separate run, then the joined files."""
    found, now = Findings(), statement.listing(root)
    verify.check_signed(root, now, found, signers, demanded=demanded)
    verify.check_others(root, now, found)
    if found.wrong:
        return found
    try:
        joined = read_json(root / NAME)
        folders = folders_in(root / UNITS)
        refuse_different(folders)
        for folder in folders:
            _add_unit(f"{UNITS}/{folder.name}", check_run(folder, covered=found.covered), found)
        made = made_of(root) if joined["suite_version"] == version() else {}
        statement_made = _statement(root, now)
    except (CommandError, OSError, RecordError, KeyError, TypeError, ValueError) as error:
        found.wrong.append(f"{NAME}: cannot be made from the units: {error}")
        return found
    if not made:
        found.leave(f"{NAME} and its pages: written by suite version {joined['suite_version']}")
        verify.check_word(root, now, found, "NOT ACCEPTED AS A WHOLE")
    elif statement_made.encode() != found.statement:
        found.wrong.append(f"{statement.NAME}: does not match {NAME}")
    for name, content in made.items():
        if now.files.get(name) == hashlib.sha256(content).hexdigest():
            found.confirmed.append(f"{name}: matches the units")
        else:
            found.wrong.append(f"{name}: does not match the units")
    if not found.covered:
        found.unchecked += [f"{name}: not a file of the suite in a joined directory"
                            for name in now.files if not _is_known(name, made)]  # fmt: skip
    return found


def _is_known(name: str, made: Mapping[str, bytes]) -> bool:
    return name in made or name.startswith(f"{UNITS}/")


def _add_unit(name: str, of_unit: Findings, found: Findings) -> None:
    for lines, more in (
        (found.wrong, of_unit.wrong), (found.unchecked, of_unit.unchecked),
        (found.strangers, of_unit.strangers), (found.notes, of_unit.notes),
    ):  # fmt: skip
        lines += [f"{name}: {line}" for line in more]
    found.judged &= of_unit.judged
    if not of_unit.status:
        found.confirmed.append(f"{name}: verified as a run of its own")
