"""`make tour`: one run from beginning to end, with an explanation of each part (login side).

Runs `make accept`'s job on the available backend, then leads through its run directory. With `--run
RUN` it leads through a run that is there already.
"""

from __future__ import annotations

import shlex
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from fixtures.background import run_to_its_end
from fixtures.conclusion.run_verdict import demonstration_note
from fixtures.paths import CHECKOUT
from fixtures.records.model import Record
from fixtures.records.run_directory import RunDirectory
from fixtures.records.verdict_file import read_verdict
from fixtures.slurm.hostlist import natural_sort_key
from fixtures.suggestions import ArgumentParser
from fixtures.thresholds import definitions
from fixtures.wording import digits
from reports.console.watch import LATEST, PIPE_COLUMNS
from reports.exports.tables import records_of, table, training_tables
from reports.facts.key_figures import tiles

ALL = "all"
"""Placement of what was measured on all nodes together."""
HEALTH = ("inventory", "scheduler", "health", "infiniband")
"""Areas of criteria (files of fixtures/criteria) on the state of a node, before benchmarks."""
TRAINING = ("training", "finetuning")
OUTCOME_COLOURS = {"PASS": "green", "FAIL": "red", "NOT_MEASURED": "yellow", "WAIVED": "yellow"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tour; return the run's exit status, 4 where --run names no run."""
    parser = ArgumentParser(prog="python -m reports.console.tour", description=__doc__)
    parser.add_argument("--run", type=Path, metavar="RUN", help="of this run, without a new one")
    parser.add_argument(
        "--quick", action="store_true", help="run the probe tier only: health, no benchmarks"
    )
    options, more = parser.parse_known_args(argv)
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_COLUMNS)
    banner(console)
    status = 0
    if options.run is None:
        console.print(Rule("the run"))
        tier = ["--tier", "probe"] if options.quick else []
        command = [sys.executable, "-m", "fixtures", "-rN", *tier, *more]
        status, interrupted = run_to_its_end(command, cwd=CHECKOUT)
        if interrupted:
            return status
        given = [a.partition("=")[2] for a in more if a.startswith("--run-dir=")]
        options.run = Path(given[-1]) if given else LATEST
    directory = RunDirectory(options.run.resolve())
    if not directory.verdict.exists():
        console.print(f"tour: {directory.root} has no verdict.json", style="red", markup=False)
        return status or 4
    try:
        show(console, directory)
    except BrokenPipeError:
        console.on_broken_pipe()
    except (KeyboardInterrupt, EOFError):
        pass  # whoever was asked for Enter has seen enough
    return status


def banner(console: Console) -> None:
    text = (
        "The acceptance of a GPU cluster: one job per node measures all that needs the node,\n"
        "then pairs, then all nodes together; each figure is judged against thresholds.yaml;\n"
        "a value that was not measured never passes."
    )
    console.print(Panel(text, title="GPU cluster acceptance", expand=False))


def show(console: Console, directory: RunDirectory) -> None:
    """Print hardware, health, figures, benchmarks and training, as far as there are any, and a
    summary; on a terminal a screen at a time."""
    records = by_node(records_of(directory))
    verdict = read_verdict(directory)
    sections: dict[str, list[RenderableType]] = {
        "hardware": _filled(hardware(records)),
        "health": _filled(outcomes(verdict, HEALTH)),
        "figures": _filled(figures(verdict)),
        "benchmarks": [*benchmarks(records)],
        "training": [
            *_filled(outcomes(verdict, TRAINING)),
            *(f"{text}\n" for text in map(training_tables, records) if text),
        ],
    }
    there = [(title, parts) for title, parts in sections.items() if parts]
    for k, (title, parts) in enumerate(there):
        following = there[k + 1][0] if k + 1 < len(there) else "summary"
        show_section(console, [Rule(f"{k + 1}. {title}"), *parts], following)
    counts = ", ".join(f"{k.replace('_', ' ')} {n}" for k, n in verdict["counts"].items())
    parts = [
        Rule("summary"), Text(verdict["verdict"], "bold"), counts, *verdict["reasons"],
        *filter(None, [demonstration_note(verdict)]),
        f"report  {directory.root / 'report.html'}",
        f"next    python -m reports watch {shlex.quote(str(directory.root))} --speed 10",
    ]  # fmt: skip
    show_section(console, parts, "")


def by_node(records: Sequence[Record]) -> list[Record]:
    """Return records as their workloads began, those of one workload in the order of the nodes."""
    began = {record.workload: k for k, record in reversed(list(enumerate(records)))}
    return sorted(
        records,
        key=lambda r: (began[r.workload], r.placement == ALL, natural_sort_key(r.placement)),
    )


def _filled(table: Table) -> list[RenderableType]:
    """Return the table, or nothing where it has no row: headings alone say nothing."""
    return [table] if table.row_count else []


def show_section(console: Console, parts: Sequence[RenderableType], following: str) -> None:
    """Print the parts of a section; on a terminal wait for Enter after each screen and before the
    section that follows."""
    with console.capture() as capture:
        for part in parts:
            console.print(part, markup=False, highlight=False, soft_wrap=isinstance(part, str))
    lines = capture.get().splitlines()
    paged = console.is_terminal and sys.stdin.isatty()
    size = max(1, console.height - 2) if paged else max(1, len(lines))
    for first in range(0, len(lines), size):
        console.file.write("\n".join(lines[first : first + size]) + "\n")
        last = first + size >= len(lines)
        if paged and (following or not last):
            console.input(f"[dim]Enter: {following if last else 'more'}; Ctrl-C: end[/dim] ")


def hardware(records: Iterable[Record]) -> Table:
    """Return a table of the hardware of each node, from its record of `environment`."""
    shown = Table("node", "CPU", "cores", "GiB", "GPUs", "NICs", "driver", "torch", box=None)
    for record in records:
        if record.workload != "environment":
            continue
        facts = record.ranks[0].facts
        gpus = [str(gpu.get("name", "?")) for gpu in facts.get("gpus", [])]
        cells = (
            record.nodes[0], facts.get("cpu", "?"), facts.get("cpus", "?"),
            facts.get("memory_gib", "?"),
            f"{len(gpus)} x {gpus[0]}" if gpus else "none",
            len(facts.get("nics", [])), facts.get("driver", "none"), facts.get("torch", "?"),
        )  # fmt: skip
        shown.add_row(*(Text(str(cell)) for cell in cells))
    return shown


def figures(verdict: Mapping[str, Any]) -> Table:
    """Return the key figures of the report: the worst value of each, and its limit."""
    shown = Table("figure", "worst", "unit", "limit", "where", "outcome", box=None)
    for tile in tiles(verdict["criteria"]):
        style = OUTCOME_COLOURS.get(tile.outcome, "dim")
        cells = (tile.title, tile.value, tile.unit, tile.limit, tile.where)
        shown.add_row(*map(Text, cells), Text(tile.outcome_text, style))
    return shown


def outcomes(verdict: Mapping[str, Any], areas: Sequence[str]) -> Table:
    """Return one line per area: the number of each outcome, and the first problem."""
    shown = Table("area", "outcomes", "first red check", box=None)
    for area in areas:
        criteria = [c for c in verdict["criteria"] if _area(c) == area]
        if not criteria:
            continue
        tally = Text()
        for outcome in dict.fromkeys(c["outcome"] for c in criteria):
            n = sum(c["outcome"] == outcome for c in criteria)
            text = f"{n} {outcome.lower().replace('_', ' ')}  "
            tally.append(text, OUTCOME_COLOURS.get(outcome, "dim"))
        problems = [c for c in criteria if c["outcome"] in ("FAIL", "NOT_MEASURED")]
        first = f"{problems[0]['subject']} {problems[0]['criterion']}" if problems else ""
        shown.add_row(area, tally, Text(first))
    return shown


def benchmarks(records: Iterable[Record]) -> Iterator[str]:
    """Yield GEMM rates, and tables in the form of nccl-tests and nvbandwidth."""
    for record in records:
        if record.workload == "gemm":
            rates: dict[str, list[float]] = {}
            for rank in record.ranks:
                for m in rank.measurements:
                    if m.samples and m.unit == "TFLOPS":
                        rates.setdefault(m.metric, []).append(statistics.median(m.samples))
            shown = ", ".join(f"{k} {digits(min(v))}" for k, v in rates.items())
            yield f"# gemm {record.placement}, slowest of {len(record.ranks)}, TFLOPS: {shown}\n"
        elif record.workload in ("memory", "p2p", "allreduce") and (text := table(record)):
            yield f"{text}\n"


def _area(criterion: Mapping[str, Any]) -> str:
    return definitions.shipped().area_of(str(criterion["criterion"]))


if __name__ == "__main__":
    sys.exit(main())
