"""certificate.html: a body to sign and its annexes, made of the evidence alone (login side).

The same evidence gives the same bytes, so `python -m reports verify` can make it again and compare.
For a run that is not ACCEPTED the page is written too: it states NOT ACCEPTED and has no place to
sign.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fixtures.conclusion.run_verdict import demonstration_note, judged_of
from fixtures.records.files import replace_file
from fixtures.records.foreign_files import is_content, read_text, sha256_of
from fixtures.records.run_directory import RunDirectory
from fixtures.records.verdict_file import read_verdict
from fixtures.run.reader import RunReader
from fixtures.slurm.hostlist import hostlist
from fixtures.thresholds import published
from fixtures.thresholds.contract import PARTIES
from fixtures.thresholds.overview import read_csv
from fixtures.verdict.model import Verdict, device_of
from fixtures.wording import counted, margin_text, plain, quantity
from reports.evidence import proof
from reports.facts import blame, fabric_load, groups, power, recertified
from reports.facts.areas import areas, coverage, ordered
from reports.facts.criterion_rows import CriterionRow
from reports.facts.limit_sources import LimitSources
from reports.facts.rows import attempts_of, outcome_text, split_limit
from reports.pages import banner
from reports.pages.cluster import PARTY_TITLES, Cluster

NAME = "certificate.html"
NAMESPACE = "gpu-cluster-acceptance"
"""Namespace of the signature (ssh-keygen -n): it is not valid for a file of another purpose."""

MAX_IN_BODY = 8
"""Most failures, and most waivers, in the body: it is to be signed on two sheets."""
MAX_NODES_TEXT = 300
"""Most characters of the host list in the body."""
_NOT_OF_A_RUN_ID = re.compile(r"[^A-Za-z0-9 -]")
"""The run ID stands in a style, on each sheet."""
MAX_EVERY = 3000
"""Most rows that annex 3 lists one by one; results.csv has all."""
IN_BODY = ("Run", "Measured on", "Scope", "When", "Suite commit", "Suite version", "Limits SHA-256")
"""Facts of the run in the body; the others are in annex 5."""
MAX_LISTED = 200
"""Most rows of a list (not accepted, or measured more than once); the rest is only counted."""
STYLE = banner.TEMPLATES / "certificate.css"
_WAIVED = re.compile(
    r"(?:(?P<more>.*); )?waived by (?P<owner>.*), until (?P<until>\S+): (?P<why>.*)"
)


def write(
    directory: RunDirectory,
    verdict: Mapping[str, Any] | None = None,
    reader: RunReader | None = None,
) -> Path:
    """Write certificate.html into the run directory.

    The signature is removed where the page changed, since it does not belong to the new page.
    """
    path = directory.root / NAME
    content = page(directory, verdict, reader).encode("utf-8", "replace")
    if is_content(path, content):
        return path
    replace_file(path, (content,), durable=False)
    (directory.root / f"{NAME}.sig").unlink(missing_ok=True)
    return path


def page(
    directory: RunDirectory,
    verdict: Mapping[str, Any] | None = None,
    reader: RunReader | None = None,
) -> str:
    """Return the page, made from the files of the run directory alone."""
    run: Mapping[str, Any] = directory.read_run()
    if verdict is None:
        verdict = read_verdict(directory)
    criteria = verdict["criteria"]
    rows = _criterion_rows(criteria)
    nodes = [str(node) for node in verdict["scope"].get("nodes") or []]
    reader = reader or RunReader.of(directory, run)
    cluster = Cluster.of(directory, run, verdict["scope"], reader)
    not_accepted = [_not_accepted(v) for v in criteria if v["outcome"] in ("FAIL", "NOT_MEASURED")]
    waivers = [_waiver(v) for v in criteria if v["outcome"] == "WAIVED"]
    repeated = list(_repeated_rows(directory, criteria))
    options = "".join(f" {shlex.quote(str(option))}" for option in run.get("options") or ())
    counts = verdict["counts"]
    facts = _facts(verdict, run, cluster)
    returns = recertified.returns(directory, run)
    listed = len(criteria) <= MAX_EVERY
    not_judged, challenge = _not_judged(directory), proof.of_run(directory)
    annexes = banner.render(
        "annexes.jinja2",
        returns=returns,
        max_returned=recertified.MAX_ROWS,
        cluster=cluster,
        coverage=coverage(criteria, nodes),
        not_accepted=not_accepted,
        waivers=waivers,
        repeated=repeated,
        max_listed=MAX_LISTED,
        max_in_body=MAX_IN_BODY,
        rows_by_area=[
            (area, [row for row in rows if row.area == area and row.planned])
            for area in ordered(row.area for row in rows)
        ],
        counts=counts,
        not_applicable=[row for row in rows if not row.planned],
        listed=listed,
        held=_limits_held(criteria, LimitSources.of(directory), listed=listed),
        options=options,
        limits=not_judged,
        power=list(power.lines(verdict)),
        fabric=banner.fabric(verdict, annex=True),
        more_facts=[fact for fact in facts if fact[0] not in IN_BODY],
    )
    judged, to_judge = judged_of(counts)
    return banner.render(
        "certificate.jinja2",
        style=banner.style_text(STYLE),
        sheet=_NOT_OF_A_RUN_ID.sub("", f"run {run.get('id', '')}"),
        accepted=verdict["verdict"] == "ACCEPTED",
        verdict=str(verdict["verdict"]),
        meaning=banner.MEANING.get(str(verdict["verdict"]), ""),
        demonstration=demonstration_note(verdict),
        blamed=blame.blame(verdict, blame.lists_of(directory, verdict, run, reader)).sentence,
        groups=groups.sentences(verdict),
        returns=returns,
        reasons=verdict.get("reasons") or [],
        counts=counts,
        tested=_tested(verdict, not_judged, challenge),
        mtbf=(verdict.get("basis") or {}).get("mtbf"),
        judged=judged,
        to_judge=to_judge,
        run=run,
        path=shlex.quote(str(run.get("path") or "RUN")),
        parties=[(title, cluster.contract.get(name)) for name, title in PARTY_TITLES.items()],
        nodes=_shortened(hostlist(nodes)),
        ordered_and_found=_ordered_and_found(run, nodes, cluster),
        by_area=_by_area(rows),
        facts=[fact for fact in facts if fact[0] in IN_BODY],
        not_accepted=not_accepted,
        waivers=waivers,
        repeated=repeated,
        max_in_body=MAX_IN_BODY,
        hashes={**hashes(directory), **(challenge.digests if challenge else {})},
        annexes=annexes,
        annexes_sha256=hashlib.sha256(f"{annexes}\n".encode("utf-8", "replace")).hexdigest(),
        namespace=NAMESPACE,
    )


_Reasons = list[tuple[str, list[tuple[str, str]]]]
"""Why limits were not judged: each reason with criteria and conditions."""
MAX_REASONS = 3
"""Most reasons in the body why rows do not apply."""


def _tested(
    verdict: Mapping[str, Any], not_judged: _Reasons, challenge: proof.Finding | None
) -> list[tuple[str, str]]:
    """Return (title, sentence): by how many limits, with which power, and what was not tested."""
    criteria, counts = verdict["criteria"], verdict["counts"]
    judged = {str(v["criterion"]) for v in criteria if v["limit"] and v["outcome"] != "RECORDED"}
    figures = published.sentence(
        len({str(v["criterion"]) for v in criteria if published.is_published(v)})
    )
    rows = [("Limits", f"{counted(len(judged), 'criterion')}, each with its limit and its source "
             "in annex 3; the file that has them is named by its SHA-256 below."
             f"{f' {figures}.' if figures else ''}")]  # fmt: skip
    if text := power.sentence(verdict):
        rows.append(("Power", text))
    if fabric := fabric_load.sentences(verdict):
        rows.append(("Fabric under load", " ".join([*fabric, "More in annex 7."])))
    reasons = Counter(str(v["reason"]) for v in criteria if v["outcome"] == "NOT_APPLICABLE")
    without = []
    if reasons:
        named = "; ".join(f"{why} ({n})" for why, n in reasons.most_common(MAX_REASONS))
        more = sum(reasons.values()) - sum(n for _, n in reasons.most_common(MAX_REASONS))
        rest = f"; and {more} for other reasons" if more else ""
        without.append(f"{counted(sum(reasons.values()), 'row')} that do not apply: {named}{rest}.")
    if recorded := counts.get("recorded"):
        without.append(f"{counted(recorded, 'row')} only recorded, without a limit.")
    if not_judged:
        number = counted(sum(len(names) for _, names in not_judged), "limit")
        without.append(f"{number} not judged under this order (annex 4).")
    if counts.get("not_measured"):
        without.append(f"{counted(counts['not_measured'], 'row')} not measured.")
    if challenge is not None:
        rows.append(("Challenge", challenge.sentence))
    rows.append(("Not tested", " ".join(without) or "Nothing that the suite has a criterion for."))
    return rows


def _by_area(rows: Iterable[CriterionRow]) -> list[tuple[str, Counter[str]]]:
    """Return the outcomes of each area, in the order in which pages show them."""
    found: dict[str, Counter[str]] = {}
    for row in rows:
        found.setdefault(row.area, Counter()).update(row.outcomes)
    return [(area, found[area]) for area in ordered(found) if found[area].total()]


def _not_accepted(v: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row that failed or was not measured, as people read it."""
    place = f"{v['subject']} {device_of(v.get('worst'))}".strip()
    failed = v["outcome"] == "FAIL"
    red = blame.red_of(str(v["criterion"])) if failed else ""
    said = {"noun": blame.noun_of(str(v["criterion"])), "red": red}
    return {**v, "place": place, "measured": Verdict.from_json(v).measured, **said}


def _limits_held(
    criteria: Iterable[Mapping[str, Any]], sources: LimitSources, *, listed: bool
) -> dict[str, list[dict[str, Any]]]:
    """Return of each criterion its limits with their sources and the rows to which each applies;
    where rows are not `listed`, only the first limit, without rows."""
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    seen: set[str] = set()
    for v in criteria:
        if v["outcome"] == "NOT_APPLICABLE":
            continue
        key = str(v["criterion"])
        if not listed and key in seen:
            continue
        seen.add(key)
        rows = found.setdefault((key, str(v["limit"])), [])
        if listed:
            rows.append({
                "subject": str(v["subject"]), "outcome": str(v["outcome"]),
                "measured": Verdict.from_json(v).measured, "margin": margin_text(v["margin"]),
            })  # fmt: skip
    held: dict[str, list[dict[str, Any]]] = {}
    for (criterion, limit), rows in found.items():
        text = split_limit(limit)[0]
        source = sources.of_limit(criterion, limit) if text else ""
        held.setdefault(criterion, []).append({"limit": text, "source": source, "rows": rows})
    return held


def _shortened(names: str) -> str:
    """Return a host list that leaves room on the page; annex 1 has every node."""
    return names if len(names) <= MAX_NODES_TEXT else f"{names[:MAX_NODES_TEXT]}... (annex 1)"


def _not_judged(directory: RunDirectory) -> _Reasons:
    """Return each reason why a limit was not judged, with criteria and conditions; [] without."""
    if not directory.limits.exists():
        return []
    found: dict[str, list[tuple[str, str]]] = {}
    for row in read_csv(read_text(directory.limits)):
        if row.not_judged:
            found.setdefault(row.not_judged, []).append((row.criterion, row.when))
    return list(found.items())


def _criterion_rows(criteria: Iterable[Mapping[str, Any]]) -> list[CriterionRow]:
    criteria = list(criteria)
    area_of_criterion = areas(criteria)
    rows: dict[str, CriterionRow] = {}
    for v in criteria:
        key = str(v["criterion"])
        if key not in rows:
            rows[key] = CriterionRow(key, str(v["title"]), area_of_criterion[key], str(v["unit"]))
        rows[key].add(v)
    return list(rows.values())


def hashes(directory: RunDirectory) -> dict[str, str]:
    """Return the SHA-256 of manifest.sha256, which lists all evidence, and of verdict.json."""
    return {
        path.name: sha256_of(path)
        for path in (directory.manifest, directory.verdict)
        if path.exists()
    }


def _repeated_rows(
    directory: RunDirectory, criteria: Iterable[Mapping[str, Any]]
) -> Iterator[dict[str, str]]:
    """Yield the rows that were measured more than once, with the earlier outcomes and values."""
    repeated = {(str(v["criterion"]), str(v["subject"])): v for v in criteria if v["attempt"] > 1}
    if not repeated:  # reading the ledger of a large cluster takes long
        return
    attempts = attempts_of(directory, repeated)
    for key, v in repeated.items():
        earlier = [n for n in attempts.get(key, []) if n.get("attempt", 1) < v["attempt"]]
        before = [f"attempt {n.get('attempt', 1)}: {_outcome_and_value(n)}" for n in earlier]
        # A replay has no ledger of the sessions before, but the records of all attempts.
        before = before or [n for n in v.get("notes", []) if n.startswith("attempt ")]
        if key[0].startswith("inventory.") and all(": PASS" in line for line in before):
            continue  # every session takes the inventory again
        yield {
            "criterion": key[0], "subject": key[1], "last": _outcome_and_value(v),
            "before": "; ".join(before) or "never judged",
        }  # fmt: skip


def _outcome_and_value(v: Mapping[str, Any]) -> str:
    value = v.get("value")
    measured = "" if value is None else f" {quantity(value, str(v.get('unit') or ''))}"
    return f"{outcome_text(str(v['outcome']))}{measured}"


def _waiver(v: Mapping[str, Any]) -> dict[str, str]:
    match = _WAIVED.fullmatch(str(v["reason"]))
    parts = match.groupdict() if match else {"owner": "", "until": "", "why": str(v["reason"])}
    return {**parts, "criterion": str(v["criterion"]), "subject": str(v["subject"])}


def _ordered_and_found(
    run: Mapping[str, Any], nodes: list[str], cluster: Cluster
) -> list[tuple[str, str, str]]:
    contract = {name: v for name, v in (run.get("contract") or {}).items() if name not in PARTIES}
    gpus_per_node = Counter(len(facts.gpus) for facts in cluster.found.values() if facts.gpus)
    nics_per_node = Counter(len(facts.nics) for facts in cluster.found.values() if facts.nics)
    facts = {fact.title: ", ".join(value for value, _ in fact.values) for fact in cluster.facts}
    found_values = {
        "nodes": f"{len(cluster.found)} of {len(nodes)} answered",
        "gpus_per_node": _per_node(gpus_per_node),
        "gpu_model": ", ".join(f"{n} x {name}" for name, n in cluster.gpu_names.most_common()),
        "nics_per_node": _per_node(nics_per_node),
        "driver": facts.get("Driver", ""),
        "cuda": facts.get("CUDA", ""),
    }
    rows: list[tuple[str, str, str]] = []
    for name in ("nodes", "gpus_per_node", "gpu_model", *sorted(contract)):
        wanted = contract.get(name)
        if (wanted in (None, "") and name not in ("nodes", "gpus_per_node", "gpu_model")) or any(
            r[0] == _field_title(name) for r in rows
        ):
            continue
        rows.append(
            (
                _field_title(name),
                "" if wanted is None else plain(wanted),
                found_values.get(name, ""),
            )
        )
    return rows


def _per_node(numbers: Counter[int]) -> str:
    """Return how many there are on how many nodes: "8 on each of 2 nodes"."""
    return ", ".join(
        f"{n} on {'each of ' if k > 1 else ''}{counted(k, 'node')}"
        for n, k in sorted(numbers.items())
    )


_SHORT = re.compile(r"gpu|nic|nvls|mtbf")


def _field_title(name: str) -> str:
    """Return a field of the order as people write it: "GPUs per node", "NVLS"."""
    return _SHORT.sub(lambda found: found[0].upper(), name.replace("_", " "))


def _facts(
    verdict: Mapping[str, Any], run: Mapping[str, Any], cluster: Cluster
) -> list[tuple[str, str]]:
    versions: dict[str, Counter[str]] = {}
    for node in cluster.found.values():
        for name, value in node.provenance.items():
            versions.setdefault(str(name), Counter())[str(value)] += 1
    facts = banner.facts(verdict, run)
    used = run.get("durations") or {}
    seconds, gpu_hours = used.get("union_s"), used.get("gpu_hours")
    facts.append(("Time of its jobs", f"{seconds / 60:.1f} min" if seconds else ""))
    facts.append(("GPU-hours", f"{gpu_hours:.2f}, of exclusive jobs" if gpu_hours else ""))
    login_versions = {k: v for k, v in (run.get("versions") or {}).items() if v}
    facts.append(("Suite version", str(run.get("suite_version") or "")))
    facts.append(("Versions, login side", ", ".join(f"{k} {v}" for k, v in login_versions.items())))
    on_nodes = {n: ", ".join(v for v, _ in c.most_common(3)) for n, c in versions.items()}
    facts.append(("Versions, nodes", ", ".join(f"{k} {v}" for k, v in on_nodes.items())))
    facts.append(("Started by", "; then by ".join(run.get("commands") or [])))
    return [(name, value) for name, value in facts if value and name != "Ordered"]
