"""Who is to blame, and what to do first: the first sentence on a run (login side).

A node is named only where the reason lies in it (fixtures/conclusion/node_lists.py): a failure over
several nodes without a known culprit names none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fixtures.conclusion.node_lists import NodeLists, RowNodes, lists_of_run
from fixtures.records.run_directory import RunDirectory
from fixtures.run.reader import RunReader
from fixtures.slurm.hostlist import hostlist
from fixtures.thresholds.definitions import shipped
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.causes import IN_NODE
from fixtures.verdict.model import Verdict
from fixtures.wording import counted

DOWN = frozenset({"down", "fail", "failing", "not_responding", "unknown"})
"""States of Slurm, besides drained, of a node that does not answer or is broken."""
MAX_NAMES = 6
"""Most nodes named one by one; more are a Slurm host list."""
MAX_HOSTLIST = 120
"""Most characters of a host list in the sentence; bad-nodes.txt has all of it."""


def lists_of(
    directory: RunDirectory,
    verdict: Mapping[str, Any],
    run: Mapping[str, Any],
    reader: RunReader | None = None,
) -> NodeLists:
    """Return the good and bad nodes of a run, with the reasons; `reader`: that of its records."""
    nodes = tuple(str(n) for n in (verdict.get("scope") or {}).get("nodes") or ())
    verdicts = map(Verdict.of_row, verdict["criteria"])
    nodes_of = RowNodes(nodes, run.get("smaller_subjects") or {})
    rail_of = (reader or RunReader.of(directory, run)).rail_of
    return lists_of_run(directory, str(run.get("nonce")), verdicts, nodes_of, rail_of)


@dataclass(frozen=True)
class Blame:
    """What is wrong in a run, and where."""

    dead: Mapping[str, int]
    """Node without any measurement, for a reason that lies in it -> number of its lost rows."""
    bad: Mapping[str, int]
    """Other node that is at fault -> its rows that failed or were not measured."""
    doubtful: Sequence[str]
    """Nodes that are neither good nor bad, for a reason that was seen on them."""
    failed: int
    """Rows that failed, all together."""
    unmeasured: int
    """Rows that were not measured, all together."""
    drained: Mapping[str, int] = field(default_factory=dict)
    """Like `dead`, of nodes that Slurm drains: it sends no jobs there, whatever their condition."""
    shared: Sequence[str] = ()
    """Sentences on what nodes fail together."""

    @property
    def sentence(self) -> str:
        """Who is to blame; "" where nothing failed and everything was measured."""
        if not (self.failed or self.unmeasured):
            return ""
        parts = list(self.shared)
        for nodes, what in ((self.dead, "dead"), (self.drained, "drained"), (self.bad, "at fault")):
            if nodes:
                rows = counted(sum(nodes.values()), "row")
                parts.append(f"{_count(nodes, 'node')} {what} ({rows}): {_names(nodes)}")
        if self.doubtful:
            parts.append(f"{_count(self.doubtful, 'node')} to look at: {_names(self.doubtful)}")
        if not parts:
            parts.append("No node is to blame according to the measurements")
        return "; ".join(parts)


def blame(verdict: Mapping[str, Any], lists: NodeLists) -> Blame:
    """Return who is to blame, by the rows and node lists of a run."""
    criteria = verdict["criteria"]
    measured: set[str] = set()
    costs: Counter[str] = Counter()
    failed_rows: Counter[str] = Counter()
    out_of_service: set[str] = set()
    failed = unmeasured = 0
    for v in criteria:
        outcome = v["outcome"]
        if v["criterion"] == "scheduler.node_state" and is_drained(str(v["value"])):
            out_of_service.add(str(v["subject"]))
        if outcome in ("PASS", "FAIL", "WAIVED", "RECORDED") and not _asked_of_slurm(v):
            measured.add(str(v["subject"]))
        if outcome == "FAIL":
            failed += 1
            named = [(v.get("worst") or {}).get("node") or v["subject"]]
            failed_rows.update(map(str, v.get("cause_nodes") or named))
        elif outcome == "NOT_MEASURED":
            unmeasured += 1
            if v.get("cause") in IN_NODE:
                costs.update({str(node): 1 for node in v.get("cause_nodes") or ()})
    silent = {n: costs[n] for n in lists.bad if costs[n] and n not in measured}
    bad = {n: failed_rows[n] + costs[n] for n in lists.bad if n not in silent}
    drained = {n: rows for n, rows in silent.items() if n in out_of_service}
    dead = {n: rows for n, rows in silent.items() if n not in drained}
    return Blame(dead, bad, lists.doubtful, failed, unmeasured, drained, tuple(lists.shared))


def is_drained(state: str) -> bool:
    """Whether Slurm's state of a node ("idle+drain") says that it is drained, and not down."""
    words = set(re.findall(r"[a-z_]+", state.lower()))
    return bool(words & {"drain", "drained", "draining"}) and not words & DOWN


def _asked_of_slurm(v: Mapping[str, Any]) -> bool:
    """Whether a row was measured on the login node: a dead node can have it."""
    return str(v.get("record") or "").startswith(("slurm@", "scheduler@"))


def red_of(criterion: str, limits: Thresholds | None = None) -> str:
    """Return what a red row of a criterion usually means and what to do first, "" if unknown.

    For a criterion that is not the suite's own it is in the file of limits.
    """
    if limits is not None and (own := limits.criteria.get(criterion)) is not None and own.red:
        return own.red
    return shipped().red_of(criterion)


def noun_of(criterion: str, limits: Thresholds | None = None) -> str:
    """Return the name of what a criterion checks, its key if it has none."""
    own = None if limits is None else limits.criteria.get(criterion)
    return (own.noun if own is not None else "") or shipped().noun_of(criterion) or criterion


def named(text: str, criterion: str) -> str:
    """Return a text on red rows with what is wrong first, and the key of its criterion last."""
    noun = noun_of(criterion)
    if noun == criterion:
        return text
    return f"{noun}: {text.replace(f' {criterion}:', ':', 1)} ({criterion})"


def what_to_do(verdict: str) -> str:
    """Return the step after a run with this verdict, where nothing is red."""
    return {
        "ACCEPTED": "Sign the certificate: `python -m reports sign RUN --key KEY "
        "--thresholds AGREED`.",
        "PARTIAL": "For an acceptance run the whole scope: `pytest -m multinode` with the ordered "
        "cluster in `cluster:` of thresholds.yaml.",
        "DEMONSTRATION": "For an acceptance run `pytest -m multinode` on the ordered cluster.",
    }.get(verdict, "")


def _names(nodes: Sequence[str] | Mapping[str, int]) -> str:
    names = list(nodes)
    if len(names) <= MAX_NAMES:
        return ", ".join(names)
    text = hostlist(names)
    return text if len(text) <= MAX_HOSTLIST else f"{', '.join(names[:MAX_NAMES])} and others"


def _count(what: Sequence[str] | Mapping[str, int], word: str) -> str:
    return counted(len(what), word)
