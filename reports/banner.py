"""What stands above and below the report's table: the verdict in words, and what it rests on.

Login side. The templates are rendered with autoescape: every string comes from a node, a YAML
file or a command line.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import escape

from fixtures.slurm.hostlist import hostlist
from fixtures.verdict.model import Outcome
from reports.rows import split_limit

MEANING = {
    "ACCEPTED": "Every criterion of the whole scope passed, was waived, or is declared not to "
    "apply.",
    "PARTIAL": "What was judged passed, but it was not the whole acceptance.",
    "DEMONSTRATION": "What was judged passed, but not on the hardware of a real cluster: nothing "
    "is accepted by this run.",
    "INCOMPLETE": "Something was not measured or not run: on this evidence the cluster cannot be "
    "accepted.",
    "REJECTED": "At least one criterion was measured and is not good enough.",
}

ORIGIN = {
    "cluster": "a Slurm cluster",
    "sandbox": "a sandbox: virtual nodes on one machine",
    "local": "one host, without a cluster",
    "by-hand": "workloads started by hand",
}

_STYLE = Path(__file__).with_name("report.css")
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


REMARKS = 100
"""So many notes are shown; those of ten thousand GPUs differ by a temperature each."""
NAMES = 16
"""Up to so many subjects are named one by one."""


def _short(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= NAMES else hostlist(names)


_TEMPLATES.filters["short"] = _short


@dataclass
class Group:
    """Verdicts with one reason in common: one dead node says so once, not sixty times."""

    reason: str
    next_step: str = ""
    where: dict[str, list[str]] = field(default_factory=dict)
    """Subjects by criterion."""

    @property
    def count(self) -> int:
        return sum(len(subjects) for subjects in self.where.values())


def style() -> str:
    """The page's own style, inlined.

    Not through pytest-html's --css: it prints the path of each such file into the page. The
    viewport is declared here too, because pytest-html's page does not and phones zoom out.
    """
    css = _STYLE.read_text(encoding="utf-8")
    viewport = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    return f"{viewport}<style>\n{css}</style>"


def banner(verdict: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """The verdict, its reasons and counts, what was not measured, and what all that is about."""
    counts = verdict["counts"]
    planned, unmeasured = counts.get("planned", 0), counts.get("not_measured", 0)
    return render(
        "banner.jinja2",
        verdict=str(verdict["verdict"]),
        meaning=MEANING.get(str(verdict["verdict"]), ""),
        reasons=verdict.get("reasons") or [],
        counts=counts,
        planned=planned,
        judged=planned - unmeasured,
        replay=verdict.get("replay"),
        unmeasured=_group(verdict["criteria"], Outcome.NOT_MEASURED),
        facts=facts(verdict, run),
        nodes=[str(n) for n in (verdict.get("scope") or {}).get("nodes") or []],
    )


def remarks(verdict: Mapping[str, Any]) -> str:
    """Loose limits, notes, waivers, and what does not apply."""
    criteria = verdict["criteria"]
    loose: dict[str, Group] = {}
    noted: dict[str, Group] = {}
    for v in criteria:
        if reason := split_limit(str(v["limit"]))[1]:
            _add(loose, v, reason)
        for note in v["notes"]:
            _add(noted, v, str(note))
    return render(
        "remarks.jinja2",
        sections=[
            ("Waived", list(_group(criteria, Outcome.WAIVED))),
            ("Loose limits", list(loose.values())),
            ("Notes", sorted(noted.values(), key=lambda g: -g.count)),
        ],
        most=REMARKS,
        not_applicable=_group(criteria, Outcome.NOT_APPLICABLE),
    )


def environment(run: Mapping[str, Any], versions: Mapping[str, str]) -> dict[str, str]:
    """A short table of what judged; pytest-html hands the values to innerHTML."""
    found = {"Suite commit": run.get("commit") or "not in git"}
    found |= {str(k): v for k, v in (run.get("versions") or {}).items() if v}
    found |= versions
    return {name.capitalize(): str(escape(v)) for name, v in found.items()}


def ordered(contract: Mapping[str, Any] | None) -> str:
    """The order in one line, as a person would say it."""
    if not contract:
        return "nothing (cluster: in thresholds.yaml is empty)"
    given = {name: value for name, value in contract.items() if value not in (None, "")}
    nodes = given.pop("nodes", None)
    said = [f"{nodes} nodes" if isinstance(nodes, int) else f"nodes {nodes}"] if nodes else []
    if (gpus := given.pop("gpus_per_node", None)) is not None:
        said.append(f"{gpus} x {given.pop('gpu_model', 'GPU')} a node")
    rate = given.pop("nic_gbps", None)
    if nics := given.pop("nics_per_node", None):
        said.append(f"{nics} NICs a node" + (f" at {rate:g} Gbit/s" if rate else ""))
    said += [f"{name.replace('_', ' ')} {value}" for name, value in given.items()]
    return ", ".join(said)


def facts(verdict: Mapping[str, Any], run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the run was: its order, place, scope, time, commit and limits."""
    replay = verdict.get("replay") or {}
    scope = verdict.get("scope") or {}
    commit = str(run.get("commit") or "not in git")
    found = [
        ("Ordered", ordered(run.get("contract"))),
        ("Run", str(replay.get("run") or verdict["run_id"])),
        ("Measured on", ORIGIN.get(str(scope.get("origin")), str(scope.get("origin", "")))),
        ("Scope", _scope(scope)),
        ("When", _when(replay or run)),
        ("Judged again", _when(run) if replay else ""),
        ("Suite commit", commit.replace("-dirty", ", with changes that are not committed")),
        ("Limits SHA-256", str((run.get("thresholds") or {}).get("sha256", ""))),
    ]
    return [(name, value) for name, value in found if value]


def _scope(scope: Mapping[str, Any]) -> str:
    if "tier" not in scope:
        return ""
    return f"{'all' if scope.get('whole') else 'a part'} of the {scope['tier']} tier"


def _when(run: Mapping[str, Any]) -> str:
    began, ended = (_minute(run.get(name)) for name in ("created", "ended"))
    return f"{began} to {ended}" if began and ended and began != ended else began or ended


def _minute(stamp: Any) -> str:
    try:
        when = datetime.datetime.fromisoformat(str(stamp))
    except ValueError:
        return ""
    return when.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def _group(criteria: Iterable[Mapping[str, Any]], outcome: Outcome) -> list[Group]:
    groups: dict[str, Group] = {}
    for v in criteria:
        if v["outcome"] == outcome.value:
            _add(groups, v, str(v["reason"]), str(v["next_step"]))
    return sorted(groups.values(), key=lambda g: -g.count)


def _add(groups: dict[str, Group], v: Mapping[str, Any], reason: str, step: str = "") -> None:
    group = groups.setdefault(f"{reason}\0{step}", Group(reason or "no reason given", step))
    group.where.setdefault(str(v["criterion"]), []).append(str(v["subject"]))


def render(name: str, **values: Any) -> str:
    """A template of this folder, every string in it escaped."""
    html = _TEMPLATES.get_template(name).render(**values)
    # A lone surrogate in a message (bytes that were no UTF-8) must not cost the whole report.
    return html.encode("utf-8", "replace").decode("utf-8")
