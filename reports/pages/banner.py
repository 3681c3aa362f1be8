"""The parts of the report above and below its table: verdict, counts, run facts, notes.

Login side. The templates are rendered with autoescape, because every string comes from a node, a
YAML file or a command line.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from fixtures.conclusion.next_steps import RunCommand
from fixtures.conclusion.run_verdict import counts_rows, demonstration_note, judged_of
from fixtures.slurm.hostlist import hostlist
from fixtures.verdict.model import Outcome
from fixtures.wording import counted, digits, duration, legible, margin_text, plain, quantity
from reports.evidence import proof
from reports.facts import causes, fabric_load, policy
from reports.facts.blame import named, what_to_do
from reports.facts.groups import looked_for
from reports.facts.rows import split_limit
from reports.plots import leaf_map

MEANING = {
    "ACCEPTED": "Every criterion of the whole scope passed, was waived, is only recorded, or "
    "does not apply.",
    "PARTIAL": "Everything judged passed, but it was not the whole acceptance.",
    "DEMONSTRATION": "Everything judged passed, but not on the hardware of a real cluster: "
    "this run accepts nothing.",
    "INCOMPLETE": "Some checks were not measured or not run: the cluster cannot be accepted "
    "on this evidence.",
    "REJECTED": "At least one value is outside its limit.",
}

ORIGIN = {
    "cluster": "a Slurm cluster",
    "sandbox": "a sandbox: virtual nodes on one machine",
    "local": "one host, without a cluster",
    "by-hand": "workloads started by hand",
}

TEMPLATES = Path(__file__).parents[1] / "templates"
_BASE = TEMPLATES / "base.css"
_STYLE = TEMPLATES / "report.css"
_SCRIPT = TEMPLATES / "report.js"
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(TEMPLATES),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


HARDWARE = ("nodes", "gpus_per_node", "gpu_model", "nics_per_node", "nic_gbps")
"""Fields of an order that stand on the first screen."""
MAX_NOTES = 100
"""Most notes shown in a section: those of 10 000 GPUs differ by a temperature each."""
MAX_CAUSES = 3
"""Causes that stand on the first screen; one alone is below it, with all that is known of it."""
MAX_NAMES = 16
"""Most subjects named one by one; more are written as a Slurm host list."""


def _name_list(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= MAX_NAMES else hostlist(names)


def _breakable(text: str) -> Markup:
    """Return a key that may be broken after its dots and underscores, and nowhere else."""
    return Markup("<wbr>").join(re.findall(r"[^._]*[._]?", text))


def _with_code(text: str) -> Markup:
    """Return text in which what stands between backticks is code."""
    parts = str(text).split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    pieces = [Markup("<code>{}</code>").format(p) if k % 2 else escape(p)
              for k, p in enumerate(parts)]  # fmt: skip
    return Markup("").join(pieces)


def _quantity(value: Any, unit: str) -> str:
    return value if isinstance(value, str) else quantity(value, unit)


def _in_words(value: Any) -> str:
    """Return a name of a record, or a mapping with such names, as text."""
    return plain(value).replace("_", " ")


def anchor(key: str) -> str:
    """Return the id of the chart of a key."""
    return "chart-" + re.sub(r"[^A-Za-z0-9]+", "-", key)


@dataclass
class Group:
    """Verdicts with the same reason: that of a dead node is shown once, not for each criterion."""

    reason: str
    next_step: str = ""
    subjects_by_criterion: dict[str, list[str]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of verdicts."""
        return sum(len(subjects) for subjects in self.subjects_by_criterion.values())


def style_text(own: Path | None = None) -> str:
    """Return the style that all pages share, and after it a page's own."""
    return "\n".join(path.read_text(encoding="utf-8") for path in (_BASE, own) if path)


def style() -> str:
    """Return the report's style as an inline style element, and the viewport declaration.

    Not through pytest-html's --css, which prints the path of each such file into the page.
    pytest-html declares no viewport, and without one phones show the page zoomed out.
    """
    viewport = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    return f"{viewport}<style>\n{style_text(_STYLE)}</style>"


def script() -> str:
    """Return report.js as an inline script element."""
    return f"<script>{script_text()}</script>"


def script_text() -> str:
    """Return what stands between the tags of that element."""
    return f"\n{_SCRIPT.read_text(encoding='utf-8')}"


def banner(
    verdict: Mapping[str, Any],
    run: Mapping[str, Any],
    *,
    cluster: str = "",
    found: str = "",
    blamed: str = "",
    groups: Sequence[str] = (),
    failures: str = "",
) -> str:
    """Return the HTML of the verdict and its reasons, what failed, what was not measured, counts.

    `cluster`, `found`, `blamed` and `groups` are sentences: which cluster it is, what hardware it
    has, who is to blame, and what failing nodes have in common. `failures` is the HTML of what
    failed.
    """
    counts = verdict["counts"]
    judged, to_judge = judged_of(counts)
    wrong = causes.found(verdict["criteria"])
    return render(
        "banner.jinja2",
        causes=[named(c.text, c.criterion) for c in wrong[:MAX_CAUSES]] if len(wrong) > 1 else [],
        more_causes=len(wrong[MAX_CAUSES:]),
        verdict=str(verdict["verdict"]),
        meaning=MEANING.get(str(verdict["verdict"]), ""),
        demonstration=demonstration_note(verdict),
        reasons=[r for r in verdict.get("reasons") or () if not counts_rows(str(r))],
        counts=counts,
        to_judge=to_judge,
        judged=judged,
        cluster=cluster,
        blame=blamed,
        groups=groups,
        failures=failures,
        when=when(verdict, run),
        ordered=ordered_and_found(run, found) if found else "",
        next="" if blamed else RunCommand.of(run, "RUN").completed(what_to_do(verdict["verdict"])),
        unmeasured=causes.reasons(verdict["criteria"]),
    )


def when(verdict: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """Return when and how long a run measured, and which run it is: the first screen's line."""
    replay = verdict.get("replay") or {}
    told = _time_range(replay or run)
    began, ended = (_moment((replay or run).get(name)) for name in ("created", "ended"))
    lasted = f" ({duration((ended - began).total_seconds())})" if began and ended else ""
    which = replay.get("run") or verdict.get("run_id") or run.get("id", "")
    return f"Measured {told}{lasted}, run {which}" if told else f"Run {which}"


def ordered_and_found(run: Mapping[str, Any], found: str) -> str:
    """Return what was ordered beside what hardware is there; "" without an order."""
    contract = run.get("contract") or {}
    hardware = {name: contract[name] for name in HARDWARE if name in contract}
    return f"Ordered: {contract_text(hardware)}. Found: {found}." if hardware else ""


CONTENTS = {
    "failed": "Failed", "not-measured": "Not measured", "figures": "Key figures",
    "areas": "Coverage", "fabric-load": "Fabric under load", "values": "Values",
    "charts": "Charts", "trainings": "Trainings", "rows": "Rows",
    "cluster": "Cluster", "run": "The run", "challenge": "Challenge", "drills": "Drills",
}  # fmt: skip
"""Id of a part of the page -> its name in the list of contents."""


def contents(parts: Iterable[str]) -> str:
    """Return the HTML of a list of contents of those parts that are there."""
    whole = "".join(parts)
    there = [(name, title) for name, title in CONTENTS.items() if f'id="{name}"' in whole]
    return render("contents.jinja2", there=there)


def run_section(verdict: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """Return the HTML of what was ordered, when, where and by which limits the run was made."""
    return render(
        "run.jinja2",
        replay=verdict.get("replay"),
        facts=facts(verdict, run),
        nodes=[str(n) for n in (verdict.get("scope") or {}).get("nodes") or []],
    )


def challenge(found: proof.Finding | None) -> str:
    """Return the HTML of what a customer's challenge proves, "" for a run that was given none."""
    return "" if found is None else render("challenge.jinja2", found=found)


def fabric(verdict: Mapping[str, Any], *, annex: bool = False) -> str:
    """Return the HTML of what the fabric did under load, "" for a run without that tier."""
    sentences, load = fabric_load.sentences(verdict), fabric_load.of(verdict)
    if not sentences:
        return ""
    return render(
        "fabric_load.jinja2",
        annex=annex,
        sentences=sentences,
        findings=[str(line) for line in load["findings"]] if load else [],
        max_findings=fabric_load.MAX_FINDINGS,
        map=leaf_map.leaf_map(load) if load else None,
        swatch=leaf_map.SWATCH,
        missing=fabric_load.missing(load) if load else [],
        not_listed=fabric_load.not_listed(load) if load else 0,
    )


def notes(verdict: Mapping[str, Any]) -> str:
    """Return the HTML of waivers, loose limits, notes and what is not applicable."""
    criteria = verdict["criteria"]
    loose_limits: dict[str, Group] = {}
    noted_groups: dict[str, Group] = {}
    for v in criteria:
        if reason := split_limit(str(v["limit"]))[1]:
            _add_to_group(loose_limits, v, reason)
        for note in v["notes"]:
            _add_to_group(noted_groups, v, str(note))
    return render(
        "notes.jinja2",
        sections=[
            ("Waived", list(_group_by_reason(criteria, Outcome.WAIVED))),
            ("Loose limits", list(loose_limits.values())),
            ("Notes", sorted(noted_groups.values(), key=lambda g: -g.count)),
        ],
        max_notes=MAX_NOTES,
        not_applicable=_group_by_reason(criteria, Outcome.NOT_APPLICABLE),
    )


def environment(run: Mapping[str, Any], versions: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of the judging suite, escaped: pytest-html hands values to innerHTML."""
    values = {"Suite commit": run.get("commit") or "not in git"}
    values |= {str(k): v for k, v in (run.get("versions") or {}).items() if v}
    values |= versions
    return {name.capitalize(): str(escape(v)) for name, v in values.items()}


def contract_text(contract: Mapping[str, Any] | None) -> str:
    """Return the contract, which states what was ordered, as one line of text."""
    if not contract:
        return "nothing (the run has no order)"
    given = {name: value for name, value in contract.items() if value not in (None, "")}
    nodes = given.pop("nodes", None)
    parts = (
        [f"{counted(nodes, 'node')}" if isinstance(nodes, int) else f"nodes {nodes}"]
        if nodes
        else []
    )
    if (gpus := given.pop("gpus_per_node", None)) is not None:
        parts.append(f"{gpus} x {given.pop('gpu_model', 'GPU')} per node")
    rate = given.pop("nic_gbps", None)
    if nics := given.pop("nics_per_node", None):
        parts.append(f"{counted(nics, 'NIC')} per node" + (f" at {rate:g} Gbit/s" if rate else ""))
    parts += [f"{name.replace('_', ' ')} {plain(value)}" for name, value in given.items()]
    return ", ".join(parts)


def facts(verdict: Mapping[str, Any], run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (title, value) of the run's contract, origin, scope, time, commit and limits."""
    replay = verdict.get("replay") or {}
    scope = verdict.get("scope") or {}
    commit = str(run.get("commit") or "not in git")
    rows = [
        ("Ordered", contract_text(run.get("contract"))),
        ("Run", str(replay.get("run") or verdict["run_id"])),
        ("Measured on", ORIGIN.get(str(scope.get("origin")), str(scope.get("origin", "")))),
        ("Scope", _scope_text(scope)),
        ("Groups looked for", looked_for(len(scope.get("nodes") or ()), _gpus_per_node(scope))),
        ("When", _time_range(replay or run)),
        ("Judged again", _time_range(run) if replay else ""),
        ("Suite commit", commit.replace("-dirty", ", with uncommitted changes")),
        ("Limits SHA-256", str((run.get("thresholds") or {}).get("sha256", ""))),
    ]
    return [(name, value) for name, value in rows if value]


def _scope_text(scope: Mapping[str, Any]) -> str:
    if "tier" not in scope:
        return ""
    return f"{'all' if scope.get('whole') else 'a part'} of the {scope['tier']} tier"


def _gpus_per_node(scope: Mapping[str, Any]) -> int:
    return int(scope.get("gpus_per_node") or 0)


def _time_range(run: Mapping[str, Any]) -> str:
    began, ended = (_format_minute(run.get(name)) for name in ("created", "ended"))
    return f"{began} to {ended}" if began and ended and began != ended else began or ended


def _format_minute(stamp: Any) -> str:
    moment = _moment(stamp)
    return "" if moment is None else moment.strftime("%Y-%m-%d %H:%M UTC")


def _moment(stamp: Any) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromisoformat(str(stamp)).astimezone(datetime.UTC)
    except ValueError:
        return None


_TEMPLATES.filters |= {
    "short": _name_list,
    "breakable": _breakable,
    "anchor": anchor,
    "code": _with_code,
    "counted": counted,
    "digits": digits,
    "quantity": _quantity,
    "margin": margin_text,
    "legible": legible,
    "plain": plain,
    "words": _in_words,
    "moment": _format_minute,
}


def _group_by_reason(criteria: Iterable[Mapping[str, Any]], outcome: Outcome) -> list[Group]:
    groups: dict[str, Group] = {}
    for v in criteria:
        if v["outcome"] == outcome.value:
            _add_to_group(groups, v, str(v["reason"]), str(v["next_step"]))
    return sorted(groups.values(), key=lambda g: -g.count)


def _add_to_group(
    groups: dict[str, Group], v: Mapping[str, Any], reason: str, step: str = ""
) -> None:
    group = groups.setdefault(f"{reason}\0{step}", Group(reason or "no reason given", step))
    subjects = group.subjects_by_criterion.setdefault(str(v["criterion"]), [])
    subjects.append(str(v["subject"]))


def render(name: str, **values: Any) -> str:
    """Render a template of this folder; every string in it is escaped."""
    html = _TEMPLATES.get_template(name).render(
        policy=Markup(policy.meta()), base=style_text, **values
    )
    # A lone surrogate in a message (from bytes that are not UTF-8) must not prevent the report.
    return html.encode("utf-8", "replace").decode("utf-8")
