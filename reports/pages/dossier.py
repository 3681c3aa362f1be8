"""`python -m reports dossier RUN --node N [--gpu G]`: the evidence that a vendor needs for an RMA.

One node, or one GPU of it: its identity, failures with their raw samples, counters of the driver,
telemetry, links, versions, earlier attempts, and rows in which the same part passed. The first
lines name the part and the fault. HTML for a person and JSON for a ticket system, together at most
MAX_BYTES. It is for third parties: without secrets, user names, homes and addresses, and it lists
what was removed and what is left in (reports/evidence/third_parties.py).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fixtures.records.files import read_json, read_lines, replace_file
from fixtures.records.model import SCHEMA, Record
from fixtures.records.run_directory import RunDirectory
from fixtures.redaction import redacted
from fixtures.run.reader import RunReader
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.model import Verdict
from fixtures.wording import counted
from reports.evidence.run_files import CommandError
from reports.evidence.third_parties import CUSTOMER, VENDOR, Cleaned
from reports.facts import blame
from reports.pages.banner import render
from reports.pages.dossier_evidence import (
    Json,
    counters_of,
    errors_of,
    first_of,
    lines_of_bug_report,
    not_counted,
    ranks_of,
    row_of,
    telemetry_of,
    thinned,
)
from reports.pages.figures import telemetry_cells

MAX_BYTES = 5_000_000
"""Of both files together."""
FIRST_LINES = 12
"""Lines that name the part and its faults."""
MAX_ERRORS = 20
COUNTED = ("health", "under_load", "nvlink", "infiniband", "ib_counters", "inventory")
"""Workloads whose values come from driver and kernel: Xids, ECC, remapped rows, links, ports."""

ABOUT = ("id", "suite_version", "commit", "created", "ended", "tier")
"""The run's facts in run.json."""


def add_to(commands: Any) -> argparse.ArgumentParser:
    """Add the subcommand and its options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "dossier", help="evidence of a node or GPU of RUN for its vendor: HTML and JSON"
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--node", required=True, metavar="N", help="the node")
    parser.add_argument("--gpu", metavar="G", help="its GPU: index or UUID")
    parser.add_argument(
        "--bug-report",
        type=Path,
        metavar="FILE",
        help="output of nvidia-bug-report.sh on that node",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where to write (default: beside RUN)"
    )
    audience = parser.add_mutually_exclusive_group()
    audience.add_argument(
        "--for-vendor",
        dest="audience",
        action="store_const",
        const=VENDOR,
        default=VENDOR,
        help="without the parties of the order and command lines (the default)",
    )
    audience.add_argument(
        "--for-customer",
        dest="audience",
        action="store_const",
        const=CUSTOMER,
        help="with the order and the command lines",
    )
    parser.add_argument(
        "--without-host-names", action="store_true", help="call the nodes node-1, node-2, ..."
    )
    return parser


def write(
    source: Path, verdict: Mapping[str, Any], thresholds: Thresholds, options: argparse.Namespace
) -> int:
    """Write dossier-NODE[-gpuG].html and .json, and print the first lines."""
    made = of(
        source, verdict, thresholds, options.node, options.gpu, options.bug_report,
        audience=options.audience, without_host_names=options.without_host_names,
    )  # fmt: skip
    page, text = fitted(made)
    name = f"dossier-{made['run']['id']}-{made['node']}"
    if made["gpu"] is not None:
        name += f"-gpu{made['gpu']['index']}"
    # Not into the run, which holds what the suite measured, nor where somebody happens to be.
    folder: Path = (options.out or source.parent).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, content in (("html", page), ("json", text)):
        path = folder / f"{name}.{suffix}"
        replace_file(path, (content.encode("utf-8", "replace"),), durable=False)
    print("\n".join(made["first_lines"]))
    print(f"dossier  {folder / name}.html, .json: {(len(page) + len(text)) / 1e6:.1f} MB")
    removed = ", ".join(f"{kind} ({n})" for kind, n in made["third_parties"]["removed"].items())
    print(f"for the {options.audience}, without {removed}")
    return 0


def of(
    source: Path,
    verdict: Mapping[str, Any],
    thresholds: Thresholds,
    node: str,
    gpu: str | None = None,
    bug_report: Path | None = None,
    *,
    audience: str = VENDOR,
    without_host_names: bool = False,
) -> Json:
    """Return the dossier as plain data, as third parties get it."""
    directory = RunDirectory(source)
    run = read_json(directory.run_json)
    nodes = [str(n) for n in verdict["scope"].get("nodes") or ()]
    if node not in nodes:
        raise CommandError(f"--node {node}: the run has {', '.join(nodes[:8])}")
    reader = RunReader.of(directory, run)
    records = reader.gather(lambda record: [record] if node in record.nodes else [])
    gpus = _gpus(records, node)
    chosen = _chosen(gpus, gpu, node)
    red = [v for v in verdict["criteria"] if _concerns(v, node, chosen)]
    red.sort(key=lambda v: (v["outcome"] != "FAIL", v["subject"] != node, _without_part(v)))
    rows = [row_of(v, thresholds, verdict, reader, node) for v in red]
    good = [v for v in verdict["criteria"] if v["outcome"] == "PASS" and v["subject"] == node]
    made: Json = {
        "schema": SCHEMA,
        "first_lines": _first_lines(node, chosen, red, run),
        "node": node,
        "gpu": chosen,
        "run": {
            **{k: run.get(k) for k in ABOUT},
            "order": run.get("contract"), "versions": run.get("versions"),
            "verdict": verdict["verdict"], "commands": run.get("commands"),
        },
        "gpus": gpus,
        "nics": first_of(r.facts.get("nics") for r in ranks_of(records, node, "inventory")),
        "system": first_of(r.facts for r in ranks_of(records, node, "environment")),
        "rows": rows,
        "counted": {w: counters_of(records, node, w) for w in COUNTED},
        "good": [{k: v[k] for k in ("criterion", "title", "value", "unit", "limit", "margin")}
                 for v in good],
        "not_counted": not_counted(reader, node),
        "errors": list(errors_of(directory, node))[:MAX_ERRORS],
        "missing": [line for line in read_lines(directory.missing) if node in str(line)],
        "telemetry": telemetry_of(directory, records, node, chosen),
        "bug_report": lines_of_bug_report(bug_report) if bug_report is not None else None,
        "left_out": [],
    }  # fmt: skip
    secrets = [str(run[name]) for name in ("nonce",) if run.get(name)]
    cleaned = Cleaned(audience, run, nodes, source, without_host_names=without_host_names)
    clean: Json = cleaned(redacted(made, secrets))
    return {**clean, "third_parties": cleaned.listed()}


# --- which part, which rows


def _gpus(records: Sequence[Record], node: str) -> list[Json]:
    """Return index, name, UUID, serial, PCI address, VBIOS, ... of each GPU of a node."""
    ranks = ranks_of(records, node, "inventory")
    listed = first_of(r.facts.get("gpus") for r in ranks) or []
    if listed:
        return [{"index": k, **gpu} for k, gpu in enumerate(listed)]
    found: dict[Any, Json] = {}
    for record in records:
        for r in record.ranks:
            if r.node == node and (uuid := r.device.get("uuid")):
                known = {k: value for k, value in r.device.items() if value is not None}
                found[uuid] = {**found.get(uuid, {}), **known, "index": r.local_rank}
    return sorted(found.values(), key=lambda gpu: str(gpu["index"]))


def _chosen(gpus: Sequence[Json], wanted: str | None, node: str) -> Json | None:
    if wanted is None:
        return None
    for gpu in gpus:
        if wanted in (str(gpu["index"]), gpu.get("uuid")):
            return gpu
    known = ", ".join(f"{gpu['index']} ({gpu.get('uuid')})" for gpu in gpus)
    raise CommandError(f"--gpu {wanted}: {node} has {known or 'no GPU that was recorded'}")


def _concerns(v: Mapping[str, Any], node: str, gpu: Json | None) -> bool:
    """Whether a row is red for the node, or for one GPU of it, or may be."""
    worst = v.get("worst") or {}
    on_node = node in (v["subject"], worst.get("node")) or node in v.get("cause_nodes", ())
    with_others = node in str(v["subject"]).split("--") and not worst.get("node")
    if v["outcome"] not in ("FAIL", "NOT_MEASURED") or not (on_node or with_others):
        return False
    if v["outcome"] == "NOT_MEASURED" and v["subject"] != node and not on_node:
        return False
    of_another = worst.get("node") not in (None, node)
    named = None if of_another else worst.get("uuid") or worst.get("gpu")
    return gpu is None or named is None or named in (gpu.get("uuid"), gpu["index"])


def _without_part(v: Mapping[str, Any]) -> bool:
    """Whether a row names no part of the node; those that name one come first."""
    worst = v.get("worst") or {}
    return worst.get("uuid") is None and worst.get("part") in (None, "all GPUs", "all nodes")


def _first_lines(
    node: str, gpu: Json | None, red: Sequence[Mapping[str, Any]], run: Mapping[str, Any]
) -> list[str]:
    failed = [v for v in red if v["outcome"] == "FAIL"]
    part = node
    if gpu is not None:
        words = {"name": "", "uuid": "", "serial": "serial ", "pci": "PCI "}
        known = [f"{word}{gpu[k]}" for k, word in words.items() if gpu.get(k)]
        part = f"{node}, GPU {gpu['index']} ({', '.join(known)})"
    lines = [
        f"{part}: {counted(len(failed), 'criterion')} failed, "
        f"{len(red) - len(failed)} not measured "
        f"(run {run.get('id')}, {str(run.get('ended') or run.get('created') or '')[:10]})"
    ]
    for v in red[: FIRST_LINES - 1]:
        text = Verdict.from_json({k: v[k] for k in v if k in Verdict.__dataclass_fields__}).line
        worst = v.get("worst") or {}
        device = f" [{worst['uuid']}]" if worst.get("uuid") else ""
        word = str(v["outcome"]).replace("_", " ")
        noun = blame.noun_of(v["criterion"])
        lines.append(f"{word}: {noun}: {text.partition(chr(10))[0]}{device}")
    if len(red) > FIRST_LINES - 1:
        lines[-1] = f"and {len(red) - FIRST_LINES + 2} more rows, below"
    return lines


# --- the files


def fitted(made: Json) -> tuple[str, str]:
    """Return HTML and JSON; the least important parts are left out, and named, until they fit."""
    cuts: list[tuple[str, Callable[[], None]]] = [
        ("telemetry over time", lambda: made["telemetry"].update(points={})),
        ("samples of further rounds", lambda: _cut_samples(made, 40)),
        ("rows that passed", lambda: made.update(good=made["good"][:40])),
        ("most samples", lambda: _cut_samples(made, 5)),
        ("later rows", lambda: made.update(rows=made["rows"][:40])),
        ("counter values", lambda: made.update(counted={})),
        ("messages of ranks", lambda: made.update(errors=[], missing=[])),
        ("lines of the bug report", lambda: (made["bug_report"] or {}).update(lines=[])),
    ]
    while True:
        text = json.dumps(made, indent=1, sort_keys=True) + "\n"
        page = render("dossier.jinja2", d=made, telemetry=telemetry_cells, noun_of=blame.noun_of)
        if len(page.encode()) + len(text.encode()) <= MAX_BYTES or not cuts:
            return page, text
        name, cut = cuts.pop(0)
        cut()
        made["left_out"].append(name)


def _cut_samples(made: Json, most: int) -> None:
    for row in made["rows"]:
        for m in row["measured"]:
            m["samples"], m["rounds"] = thinned(m["samples"], most), []
