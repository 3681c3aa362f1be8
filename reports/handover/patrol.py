"""`python -m reports patrol STATE --certificate RUN`: what visits of a patrol show (login side).

Adds new visits to the history, a folder of Parquet files; tests every GPU against its certificate,
which is confirmed first; says who of its nodes and GPUs is in no visit any more; writes a page of
the fleet over time and, if wanted, a textfile for Prometheus; starts the site's command once for
every GPU that is newly accused. It drains nothing and changes nothing in Slurm.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import statistics
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fixtures.records.files import in_real_folder, read_json, replace_file, write_json
from fixtures.records.run_directory import RunDirectory
from fixtures.statistics import cusum
from fixtures.statistics.cusum import Design, Track
from fixtures.wording import counted
from reports.evidence.run_files import CommandError, read_run
from reports.exports.tables import records_of
from reports.facts.silence import Place, Row, Stream, silence, until
from reports.handover import reference, visit_history
from reports.handover.life_of_visits import is_counter, life_lines
from reports.pages import banner

METRICS = ("gemm.bf16_per_ghz", "memory.triad")
DEFAULT_SIGMA = 0.005
"""Sigma of a visit, until the history shows it: the largest of four recorded H200 was 0.42 %."""
PAGE, STATUS = "patrol.html", "status.json"
HOOK_TIMEOUT_S = 60
SHOWN_VISITS = 60
DAY_S = 86400.0


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Where a stream stands."""

    node: str
    gpu: int
    uuid: str
    metric: str
    certified: float | None
    values: tuple[float, ...]
    """Of every visit, oldest first."""
    track: Track
    limit: float

    @property
    def change(self) -> float | None:
        """Relative, of the last visit."""
        return None if not self.certified else self.values[-1] / self.certified - 1


def add_to(commands: Any) -> None:
    """Add the subcommand."""
    add = commands.add_parser("patrol", help="results of the visits of a patrol").add_argument
    add("state", type=Path, metavar="STATE", help="state directory of `python -m fixtures.patrol`")
    add("--certificate", type=Path, required=True, metavar="RUN", help="the accepted run")
    add("--thresholds", type=Path, metavar="T", help="limits of that run, if not the shipped file")
    add("--history", type=Path, metavar="DIR", help="Parquet files (default: STATE/history)")
    add("--hook", metavar="CMD", help="started once for a GPU that is accused; gets ACCEPTANCE_*")
    add("--textfile", type=Path, metavar="FILE", help="for Prometheus's node_exporter")
    add("--shift", type=float, default=0.03, help="loss to find, relative (default: 0.03)")
    add("--false-alarms", type=float, default=1.0, help="per node and year (default: 1)")


def main(options: argparse.Namespace, confirm: reference.Confirm) -> int:
    """Read new visits, print results; 1: a GPU is accused, 2: the measurement is at fault, or
    somebody who is expected is silent."""
    state, source = options.state.resolve(), options.certificate.resolve()
    run = read_run(source)
    verdict = reference.confirmed(source, state, confirm)
    history = options.history or state / "history"
    visit_history.take_in(state / "visits.jsonl", history)
    rows = visit_history.read(history)
    streams = certified_streams(RunDirectory(source))
    certified = {stream: value for stream, (value, _) in streams.items()}
    places = {stream: place for stream, (_, place) in streams.items()}
    now = time.time()
    past, unseen = until(rows, now)
    silent = silence(past, [str(n) for n in verdict["scope"]["nodes"]], places, now)
    unseen += [*silent.lines, *visit_history.replaced(history, past, places)]
    unseen += visit_history.differing(history, past)
    counted_rows = [row for row in rows if is_counter(row)]
    rows = [row for row in rows if not is_counter(row)]
    worn = list(life_lines(counted_rows))
    try:
        findings, tests = assess(
            rows, certified, shift=options.shift, false_alarms=options.false_alarms
        )
    except ValueError as error:
        raise CommandError(f"{state}: {error}") from None
    accused = [f for f in findings if f.track.accused]
    suspect = cusum.is_suspect([f.node for f in accused], [f.node for f in findings])
    age = _age_days(run)
    said = [*lines(findings, tests, suspect=suspect, age=age), *silent.renamed]
    said += worn
    said += [f"SILENT: {line}" for line in unseen]
    status = _status(findings, tests, suspect=suspect, age=age)
    write_json(state / STATUS, {**status, "silent": unseen})
    replace_file(state / PAGE, (page(findings, rows, said, run, suspect=suspect),), durable=False)
    if options.textfile:
        text = prometheus(findings, suspect=suspect, age=age)
        replace_file(in_real_folder(options.textfile), (text.encode(),), durable=False)
    call_hook(state, options.hook, accused, suspect=suspect)
    for line in said:
        print(line)
    print(f"page {state / PAGE}")
    return 2 if suspect else 1 if accused or worn else 2 if unseen else 0


# --- the test


def certified_streams(directory: RunDirectory) -> dict[Stream, tuple[float, Place]]:
    """Return what a run measured of each GPU, as means like those of a visit, and where it is."""
    return {
        (str(rank.device.get("uuid")), f"{record.workload}.{m.metric}"): (
            statistics.fmean(m.samples), (rank.node, rank.local_rank)
        )
        for record in records_of(directory)
        for rank in record.ranks
        for m in rank.measurements
        if m.samples and not m.at and f"{record.workload}.{m.metric}" in METRICS
    }  # fmt: skip


def assess(
    rows: Sequence[Row], certified: Mapping[Stream, float], *, shift: float, false_alarms: float
) -> tuple[list[Finding], dict[str, Design]]:
    """Return where every GPU and metric stands, and the test of each metric.

    Raises ValueError where visits are too noisy for the shift.
    """
    values: dict[Stream, list[float]] = {}
    place: dict[Stream, tuple[str, int]] = {}
    for row in rows:
        if row["value"] is not None:
            key = (row["uuid"], row["metric"])
            values.setdefault(key, []).append(row["value"])
            place[key] = (row["node"], row["gpu"])
    metrics = sorted({metric for _, metric in values})
    nodes = {node for node, _ in place.values()}
    streams = max(1, round(len(values) / max(1, len(nodes))))
    tests = {}
    for metric in metrics:
        of_metric = {uuid: v for (uuid, name), v in values.items() if name == metric}
        tests[metric] = cusum.design(
            sigma=cusum.noise(of_metric) or DEFAULT_SIGMA, shift=shift, streams=streams,
            visits_per_hour=_visits_per_hour(rows), false_alarms=false_alarms,
        )  # fmt: skip
    findings = []
    for (uuid, metric), seen in sorted(values.items(), key=lambda item: (*place[item[0]], item[0])):
        known = certified.get((uuid, metric))
        node, gpu = place[uuid, metric]
        track = cusum.tracked(seen, known, tests[metric]) if known else Track(visits=len(seen))
        findings.append(
            Finding(node=node, gpu=gpu, uuid=uuid, metric=metric, certified=known,
                    values=tuple(seen), track=track, limit=tests[metric].limit)
        )  # fmt: skip
    return findings, tests


def _visits_per_hour(rows: Sequence[Row]) -> float:
    """Return visits of a node per hour over the history, at least one a day."""
    visits = {(row["node"], row["start"]) for row in rows}
    nodes = {node for node, _ in visits}
    starts = [start for _, start in visits]
    hours = (max(starts) - min(starts)) / 3600 if len(starts) > 1 else 0.0
    return max(1 / 24, len(visits) / len(nodes) / max(1.0, hours)) if nodes else 1 / 24


# --- texts


def lines(
    findings: Sequence[Finding], tests: Mapping[str, Design], *, suspect: bool, age: float
) -> Iterable[str]:
    """Yield what a person reads."""
    nodes = {f.node for f in findings}
    yield f"{counted(len(nodes), 'node')} visited; the certificate is {age:.0f} days old"
    for metric, test in tests.items():
        yield f"{metric}: {test.sentence}"
    if suspect:
        yield (
            "SUSPECT: half of the nodes or more lost speed at once: check the measurement and "
            "what they share (driver, image, power, cooling) before any node"
        )
    for f in findings:
        if f.track.accused:
            yield (f"{f.node} gpu{f.gpu} {f.uuid}: {f.metric} {100 * f.track.loss:.1f} % below its "
                   f"certificate over {counted(f.track.rising, 'visit')}")  # fmt: skip
    strangers = sorted({f.uuid for f in findings if f.certified is None})
    if strangers:
        yield (f"not in the certificate: {counted(len(strangers), 'GPU')}, as {strangers[0]}: "
               "`pytest -m multinode --recertify=RUN`")  # fmt: skip


def _status(
    findings: Sequence[Finding], tests: Mapping[str, Design], *, suspect: bool, age: float
) -> dict[str, Any]:
    return {
        "schema": 1, "suspect": suspect, "certificate_days": round(age, 2),
        "tests": {metric: {**vars(test), "sentence": test.sentence}
                  for metric, test in tests.items()},
        "gpus": [
            {"node": f.node, "gpu": f.gpu, "uuid": f.uuid, "metric": f.metric,
             "certified": f.certified, "last": f.values[-1], "limit": f.limit, **vars(f.track)}
            for f in findings
        ],
    }  # fmt: skip


def prometheus(findings: Sequence[Finding], *, suspect: bool, age: float) -> str:
    """Return the state of the fleet in Prometheus's text format."""
    gauges: dict[str, tuple[str, list[str]]] = {
        "accused": ("1 where a GPU drifted from its certificate.", []),
        "sum": ("Cumulative sum of losses, as a share of its limit.", []),
        "change": ("Last visit against the certificate, relative.", []),
        "visits": ("Visits so far.", []),
    }
    for f in findings:
        pairs = {"node": f.node, "gpu": f.gpu, "uuid": f.uuid, "metric": f.metric}
        labels = ",".join(f"{k}={json.dumps(str(v))}" for k, v in pairs.items())
        values = {"accused": int(f.track.accused), "sum": f.track.sum / f.limit,
                  "change": f.change, "visits": f.track.visits}  # fmt: skip
        for name, value in values.items():
            if value is not None:
                gauges[name][1].append(f"gpu_patrol_{name}{{{labels}}} {value!r}")
    text = []
    for name, (meaning, samples) in gauges.items():
        text += [f"# HELP gpu_patrol_{name} {meaning}", f"# TYPE gpu_patrol_{name} gauge", *samples]
    for name, meaning, value in (
        ("suspect", "1 where the measurement, not the nodes, is at fault.", int(suspect)),
        ("certificate_age_days", "Age of the certificate.", round(age, 2)),
    ):
        text += [f"# HELP gpu_patrol_{name} {meaning}", f"# TYPE gpu_patrol_{name} gauge",
                 f"gpu_patrol_{name} {value}"]  # fmt: skip
    return "\n".join(text) + "\n"


def page(
    findings: Sequence[Finding], rows: Sequence[Row], said: Sequence[str],
    run: Mapping[str, Any], *, suspect: bool,
) -> bytes:  # fmt: skip
    """Return the page of the fleet over time."""
    outcomes: dict[str, int] = {}
    for _, outcome in {((row["node"], row["start"]), row["outcome"]) for row in rows}:
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    text = banner.render(
        "patrol.jinja2",
        said=said,
        suspect=suspect,
        run=run,
        outcomes=sorted(outcomes.items()),
        findings=[(f, _points(f)) for f in findings],
    )
    return text.encode("utf-8", "replace")


def _points(f: Finding) -> str:
    """Return an SVG polyline of the last visits against the certificate: 2 px a visit, +-5 %."""
    if not f.certified:
        return ""
    changes = [value / f.certified - 1 for value in f.values[-SHOWN_VISITS:]]
    return " ".join(f"{2 * k},{12 - max(-12, min(12, 240 * x)):.1f}" for k, x in enumerate(changes))


def _age_days(run: Mapping[str, Any]) -> float:
    created = datetime.datetime.fromisoformat(str(run["created"]))
    return (datetime.datetime.now(datetime.UTC) - created).total_seconds() / DAY_S


# --- the site's command


def call_hook(
    state: Path, command: str | None, accused: Sequence[Finding], *, suspect: bool
) -> list[str]:
    """Start the site's command once for each GPU that is newly accused; return their names.

    Where the measurement is suspect no GPU is named: the command gets ACCEPTANCE_EVENT=suspect.
    """
    path = state / "hooked.json"
    known = set(read_json(path)) if path.exists() else set()
    events = {"suspect": {"EVENT": "suspect"}} if suspect else {
        f"{f.uuid} {f.metric}": {
            "EVENT": "drift", "NODE": f.node, "GPU": str(f.gpu), "UUID": f.uuid,
            "METRIC": f.metric, "LOSS": f"{f.track.loss:.4f}",
        }
        for f in accused
    }  # fmt: skip
    new = [name for name in events if name not in known]
    for name in new if command else ():
        variables = {f"ACCEPTANCE_{key}": text for key, text in events[name].items()}
        try:
            subprocess.run(
                shlex.split(str(command)), env={**os.environ, **variables}, check=True,
                timeout=HOOK_TIMEOUT_S,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            print(f"--hook for {name}: {error}")
            events.pop(name)  # it is started again by the next round
    write_json(path, sorted(events))
    return new
